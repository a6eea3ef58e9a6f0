// The cluster as a picture: members on an ellipse, links between them, joiners beside. The tables
// below it say the same in words.

import { el, svg } from "./elements.js";
import { mbit, ms, plural, short } from "./words.js";

const MOST_NODES = 40; // of more, the first ones are drawn
const MOST_LABELS = 10; // links; more labels would cover each other
const NARROW = 480; // pixels
const RADIUS = 17;
const LETTER = 6.8; // pixels that a letter of a label takes, about

/** Draw the cluster. */
export function picture(place, snapshot) {
  const width = Math.max(240, place.clientWidth);
  const nodes = nodesOf(snapshot);
  const shown = nodes.slice(0, MOST_NODES);
  const height = shown.length < 3 ? 150 : Math.round(Math.min(400, Math.max(270, width * 0.5)));
  if (shown.length === 0) {
    place.replaceChildren(el("p", { class: "quiet" }, "This agent is no member of a cluster yet."));
    return;
  }
  placed(shown, width, height);
  const at = new Map(shown.map((node) => [node.name, node]).reverse());
  const links = snapshot.pairs.filter((pair) => at.has(pair.a) && at.has(pair.b));
  const narrow = width < NARROW;
  const most = narrow ? 1 : MOST_LABELS;
  const letters = narrow || shown.length > 8 ? 10 : 16;
  const words = description(snapshot, nodes.length - shown.length);
  place.replaceChildren(
    svg(
      "svg",
      { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": words },
      ...links.map((pair) => line(pair, at)),
      ...shown.flatMap((node) => pulls(node, at)),
      ...(links.length <= most ? links.flatMap((pair) => label(pair, at, shown.length)) : []),
      ...shown.map((node) => drawn(node, letters, shown.length <= 12, narrow)),
    ),
    ...(nodes.length > shown.length
      ? [el("p", { class: "quiet" }, `and ${plural(nodes.length - shown.length, "member")} more`)]
      : []),
  );
}

function nodesOf({ status }) {
  const late = status.waiting?.node;
  const nodes = status.members.map((member) => ({
    name: member.name,
    me: member.me,
    scheduler: member.scheduler,
    slow: member.name === late,
    behind: member.trainer === "late" || member.trainer === "away" ? member.trainer : "",
    joining: null,
  }));
  for (const change of status.pending) {
    if (change.kind !== "scale-out" || nodes.some((node) => node.name === change.node)) continue;
    const pull = change.pull ?? { bytes: 0, total_bytes: 0, sources: [] };
    nodes.push({ name: change.node, joining: pull });
  }
  if (status.joining && !nodes.some((node) => node.me)) {
    nodes.push({ name: status.node, me: true, joining: status.joining });
  }
  return nodes;
}

/** Give every node its place: side by side, or on an ellipse that fills the picture. */
function placed(nodes, width, height) {
  const [cx, top, bottom] = [width / 2, RADIUS + 12, height - RADIUS - 48];
  if (nodes.length < 3) {
    const apart = nodes.length === 2 ? width * 0.3 : 0;
    nodes.forEach((node, k) => Object.assign(node, { x: cx + (2 * k - 1) * apart, y: (top + bottom) / 2 }));
    if (nodes.length === 1) nodes[0].x = cx;
    return;
  }
  const turns = nodes.map((_, k) => (k / nodes.length) * 2 * Math.PI);
  const lowest = Math.max(...turns.map((turn) => -Math.cos(turn)));
  const rx = width / 2 - Math.min(70, width * 0.16);
  nodes.forEach((node, k) => {
    node.x = cx + rx * Math.sin(turns[k]);
    node.y = top + ((1 - Math.cos(turns[k])) / (1 + lowest)) * (bottom - top);
  });
}

function slower(pair) {
  const known = [pair.there_mbit_s, pair.back_mbit_s].filter((rate) => rate !== null);
  return known.length ? Math.min(...known) : null;
}

function line(pair, at) {
  const [a, b, rate] = [at.get(pair.a), at.get(pair.b), slower(pair)];
  const wide = rate === null ? 1 : Math.min(7, Math.max(1, 1 + 1.2 * Math.log10(Math.max(1, rate))));
  const kind = pair.in_tree ? "link tree" : "link";
  return svg("line", { class: kind, x1: a.x, y1: a.y, x2: b.x, y2: b.y, "stroke-width": wide.toFixed(1) });
}

function label(pair, at, count) {
  const [a, b, rate] = [at.get(pair.a), at.get(pair.b), slower(pair)];
  const known = [rate !== null && `${mbit(rate)} Mbit/s`, pair.delay_ms !== null && `${ms(pair.delay_ms)} ms`];
  const texts = known.filter(Boolean);
  if (texts.length === 0) return [];
  const part = count > 3 ? 0.36 : 0.5; // where several lines cross in the middle, nearer to one end
  const [x, y] = [a.x + part * (b.x - a.x), a.y + part * (b.y - a.y)];
  const wide = LETTER * Math.max(...texts.map((text) => text.length)) + 8;
  const high = 14 * texts.length + 4;
  return [
    svg("rect", { class: "plate", x: x - wide / 2, y: y - high / 2, width: wide, height: high, rx: 4 }),
    ...texts.map((text, k) =>
      svg("text", { class: "rate", x, y: y + 4 + 14 * (k - (texts.length - 1) / 2), "text-anchor": "middle" }, text),
    ),
  ];
}

/** Arrows from the sources of a joiner's state to it. */
function pulls(node, at) {
  if (!node.joining) return [];
  return node.joining.sources
    .filter((source) => at.has(source.node))
    .map(({ node: name }) => {
      const source = at.get(name);
      return svg("line", { class: "pull", x1: source.x, y1: source.y, x2: node.x, y2: node.y });
    });
}

function drawn(node, letters, withRole, narrow) {
  const joins = Boolean(node.joining);
  const kinds = ["node", node.me && "me", node.slow && "slow", node.behind && "behind", joins && "joins"];
  const group = svg("g", { class: kinds.filter(Boolean).join(" ") });
  if (node.scheduler) group.append(svg("circle", { class: "ring", cx: node.x, cy: node.y, r: RADIUS + 5 }));
  group.append(svg("circle", { class: "disc", cx: node.x, cy: node.y, r: RADIUS }));
  const part = joins && node.joining.total_bytes ? node.joining.bytes / node.joining.total_bytes : 0;
  if (part > 0) {
    const length = 2 * Math.PI * (RADIUS + 5);
    const arc = { class: "arc", cx: node.x, cy: node.y, r: RADIUS + 5, transform: `rotate(-90 ${node.x} ${node.y})` };
    arc["stroke-dasharray"] = `${Math.min(1, part) * length} ${length}`;
    group.append(svg("circle", arc));
  }
  const inside = joins ? `${Math.round(100 * Math.min(1, part))}%` : node.slow ? "!" : "";
  if (inside) group.append(svg("text", { class: "inside", x: node.x, y: node.y + 4, "text-anchor": "middle" }, inside));
  const roles = [node.scheduler && "scheduler", node.me && "this device", node.behind, joins && "joining"];
  const role = roles.filter(Boolean).join(", ");
  const shown = narrow ? (node.me ? "this device" : role) : role; // two roles are too wide there
  const name = { class: "name", x: node.x, y: node.y + RADIUS + 20, "text-anchor": "middle" };
  group.append(svg("title", {}, `${node.name}${role ? `: ${role}` : ""}`));
  group.append(svg("text", name, short(node.name, letters)));
  if (role && withRole) {
    group.append(svg("text", { ...name, class: "role", y: node.y + RADIUS + 34 }, shown));
  }
  return group;
}

function description(snapshot, hidden) {
  const { status } = snapshot;
  const inTree = snapshot.pairs.filter((pair) => pair.in_tree).length;
  const more = hidden > 0 ? ` (${hidden} not drawn)` : "";
  return (
    `${plural(snapshot.members_in_all, "member")}${more}, ${plural(snapshot.pairs_in_all, "link")}, ` +
    `${inTree} of them carry sums; scheduler ${status.scheduler || "not known"}. ` +
    "The tables below say the same."
  );
}

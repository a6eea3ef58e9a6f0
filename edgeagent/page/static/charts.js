// A curve over the iterations, with its text alternative.

import { el, svg } from "./elements.js";
import { grouped } from "./words.js";

const HEIGHT = 180;
const EDGE = { left: 52, right: 12, top: 10, bottom: 24 }; // around the curve, for the figures
const LEAST_WIDTH = 160;

/**
 * Draw `points`, pairs of an iteration and a value that may be null. `text` writes a value.
 * `zero`: the axis begins at 0. `best` says which value is told beside the last.
 */
export function chart(place, points, text, title, { zero = false, best }) {
  const known = points.filter(([, value]) => value !== null);
  if (known.length === 0) {
    place.replaceChildren(el("p", { class: "quiet" }, "No step was done since this agent started."));
    return;
  }
  const width = Math.max(LEAST_WIDTH, place.clientWidth);
  const values = known.map(([, value]) => value);
  const [from, to] = [known[0][0], known.at(-1)[0]];
  const ticks = niceTicks(zero ? 0 : Math.min(...values), Math.max(...values));
  const [low, high] = [ticks[0], ticks.at(-1)];
  const x = (iteration) =>
    EDGE.left + ((iteration - from) / Math.max(1, to - from)) * (width - EDGE.left - EDGE.right);
  const y = (value) =>
    HEIGHT - EDGE.bottom - ((value - low) / (high - low)) * (HEIGHT - EDGE.top - EDGE.bottom);
  const most = (best === "lowest" ? Math.min : Math.max)(...values);
  const words =
    `${text(values.at(-1))} at step ${grouped(to)}; ${best} ${text(most)} ` +
    `since step ${grouped(from)}`;
  const picture = svg(
    "svg",
    { viewBox: `0 0 ${width} ${HEIGHT}`, height: HEIGHT, role: "img", "aria-label": `${title}: ${words}` },
    ...ticks.flatMap((value) => [
      svg("line", { class: "grid", x1: EDGE.left, x2: width - EDGE.right, y1: y(value), y2: y(value) }),
      svg("text", { class: "tick", x: EDGE.left - 6, y: y(value) + 4, "text-anchor": "end" }, tick(value, high)),
    ]),
    svg("text", { class: "tick", x: EDGE.left, y: HEIGHT - 6 }, `step ${grouped(from)}`),
    svg("text", { class: "tick", x: width - EDGE.right, y: HEIGHT - 6, "text-anchor": "end" }, grouped(to)),
    svg("path", { class: "curve", d: path(points, x, y) }),
    svg("circle", { class: "end", cx: x(to), cy: y(values.at(-1)), r: 3.5 }),
  );
  place.replaceChildren(picture, el("p", { class: "quiet" }, words));
}

function path(points, x, y) {
  let pen = "M";
  const parts = [];
  for (const [iteration, value] of points) {
    if (value === null) {
      pen = "M"; // what is not known is a gap
      continue;
    }
    parts.push(`${pen}${x(iteration).toFixed(1)} ${y(value).toFixed(1)}`);
    pen = "L";
  }
  return parts.join("");
}

/** Three to six round values that enclose `low` and `high`. */
function niceTicks(low, high) {
  const span = high - low || Math.abs(high) || 1;
  const rough = span / 3;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * unit).find((size) => size >= rough);
  const first = Math.floor(low / step);
  const last = Math.max(first + 1, Math.ceil(high / step - 1e-9));
  return Array.from({ length: last - first + 1 }, (_, k) => Number(((first + k) * step).toPrecision(12)));
}

function tick(value, high) {
  if (high >= 1e6) return `${Number((value / 1e6).toPrecision(3))}M`;
  if (high >= 1e4) return `${Number((value / 1e3).toPrecision(3))}k`;
  return String(Number(value.toPrecision(3)));
}

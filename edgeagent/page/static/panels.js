// The parts of the page that are text: facts, members, links, times, joins, policy and log.

import { changeLink, expel } from "./acts.js";
import { byId, el, keyed, named, setText, show } from "./elements.js";
import * as words from "./words.js";

const REASON_LINES = 64;
const NOT_ENOUGH = "devices are here: training begins when all of them are.";
const LET_IN = "This device is let in: it copies the state when the others' running step is done.";

/** The figures below the page's title. */
export function facts({ status, members_in_all: all }) {
  const end = status.steps ? ` of ${words.grouped(status.steps)}` : "";
  const rows = [
    ["Phase", status.phase],
    ["Step", `${words.grouped(status.iteration)}${end}`],
    ["Loss", words.loss(status.loss)],
    ["Samples/s", words.rate(status.samples_per_second)],
    ["Members", String(all)],
    ["Scheduler", status.scheduler || "-"],
  ];
  keyed(
    byId("facts"),
    rows,
    ([name]) => name,
    ([name]) => el("div", {}, el("dt", {}, name), el("dd", {}, el("bdi"))),
    (row, [, value]) => setText(row.querySelector("bdi"), value),
  );
}

/** Who holds everybody up and why. */
export function waits({ status }) {
  const known = status.members.filter((member) => member.compute_ms !== null).length;
  const { assembling: wait } = status;
  const lines = [];
  if (status.standby) lines.push(["advice", `This device stands by: ${status.standby}.`]);
  if (status.paused) lines.push(["advice", `This device pauses: ${status.paused}.`]);
  if (status.waiting) lines.push(["slow", status.waiting.text]);
  else if (wait) lines.push(["", `${wait.here} of ${wait.wanted} ${NOT_ENOUGH}`]);
  else if (status.let_in) lines.push(["", LET_IN]);
  else if (known > 1) lines.push(["", "Nobody holds the others up."]);
  else if (status.members.length === 1) lines.push(["", "This device trains alone at present."]);
  else lines.push(["", "Whether anybody holds the others up is not measured yet."]);
  if (status.advice) lines.push(["advice", status.advice.text]);
  keyed(
    byId("waits"),
    lines,
    ([kind]) => kind,
    ([kind]) => el("p", { class: kind }),
    (line, [, text]) => setText(line, text),
  );
}

const COLUMNS = [
  ["Share", ""],
  ["Each", "ms"],
  ["Computing", "ms"],
  ["Waiting", "ms"],
  ["Transfer", "ms"],
];

/** The table of members, with what can be done about each. */
export function members({ status, times, linked, members_in_all: all }) {
  const place = byId("members");
  if (!place.firstElementChild) {
    place.setAttribute("role", "table");
    place.setAttribute("aria-labelledby", "members-title");
    place.append(el("div", { role: "rowgroup" }, heading()), el("div", { role: "rowgroup" }));
    place.append(el("p", { class: "quiet" }));
  }
  const [, body, more] = place.children;
  const rows = status.members.map((member, k) => ({
    ...member,
    times: times[k],
    linked: linked.includes(member.name),
    acts: status.phase === "training",
  }));
  keyed(body, rows, (member) => member.id, memberRow, fillMember);
  setText(more, all > rows.length ? `and ${words.plural(all - rows.length, "member")} more` : "");
}

function heading() {
  const cell = (text, unit) =>
    el("span", { role: "columnheader" }, text, unit ? el("small", {}, ` ${unit}`) : null);
  const figures = COLUMNS.map(([text, unit]) => cell(text, unit));
  return el("div", { role: "row", class: "head" }, cell("Member"), ...figures, cell("Change"));
}

function memberRow(member) {
  const name = el("span", { role: "rowheader" }, named(member.name), el("small", { class: "roles" }));
  const figures = COLUMNS.map(([text, unit]) =>
    el("span", { role: "cell", class: "figure", "data-label": unit ? `${text}, ${unit}` : text }),
  );
  const link = el("button", { type: "button" });
  const out = el("button", { type: "button", class: "danger", "aria-label": `Expel ${member.name}` }, "Expel");
  const acts = el("span", { role: "cell", class: "acts" }, link, out);
  return el("div", { role: "row" }, name, ...figures, acts);
}

function fillMember(row, member) {
  const behind = member.trainer === "prompt" ? "" : `${member.trainer} ${member.owes_s.toFixed(0)} s`;
  const roles = [member.me && "this device", member.scheduler && "scheduler", behind];
  setText(row.querySelector(".roles"), roles.filter(Boolean).join(", "));
  const { computing_ms: computing, waiting_ms: waiting, transfer_ms: transfer } = member.times;
  const figures = [String(member.share), ...[member.micro_batch_ms, computing, waiting, transfer].map(words.ms)];
  row.querySelectorAll(".figure").forEach((cell, k) => setText(cell, figures[k]));
  row.classList.toggle("me", member.me);
  const [link, out] = row.querySelectorAll("button");
  link.hidden = out.hidden = member.me;
  setText(link, member.linked ? "Remove link" : "Add link");
  link.setAttribute("aria-label", `${link.textContent} to ${member.name}`);
  link.disabled = out.disabled = !member.acts;
  link.onclick = () => changeLink(member, !member.linked);
  out.onclick = () => expel(member);
}

/** The links as a table. */
export function links({ pairs, pairs_in_all: all }) {
  const place = byId("links");
  if (!place.firstElementChild) {
    const titles = ["From", "To", "Delay, ms", "Mbit/s there", "Mbit/s back", "Carries sums"];
    const head = el("thead", {}, el("tr", {}, ...titles.map((text) => el("th", { scope: "col" }, text))));
    place.append(el("table", {}, head, el("tbody")), el("p", { class: "quiet" }));
  }
  keyed(
    place.querySelector("tbody"),
    pairs,
    (pair) => `${pair.a}\n${pair.b}`,
    (pair) =>
      el(
        "tr",
        {},
        el("th", { scope: "row" }, named(pair.a)),
        el("td", {}, named(pair.b)),
        ...Array.from({ length: 4 }, () => el("td", { class: "number" })),
      ),
    (row, pair) => {
      const figures = [words.ms(pair.delay_ms), words.mbit(pair.there_mbit_s), words.mbit(pair.back_mbit_s)];
      const cells = row.querySelectorAll(".number");
      [...figures, words.used(pair)].forEach((text, k) => setText(cells[k], text));
    },
  );
  const more = all > pairs.length ? `and ${words.plural(all - pairs.length, "link")} more` : "";
  setText(place.lastElementChild, more || (all === 0 ? "There are no links." : ""));
}

/** Where the time of each member's step goes, as bars. */
export function times({ times: rows }) {
  const known = rows.filter((row) => row.transfer_ms !== null);
  const longest = Math.max(0, ...known.map((row) => row.computing_ms + row.waiting_ms + row.transfer_ms));
  const parts = ["computing", "waiting", "transfer"];
  keyed(
    byId("times"),
    known,
    (row) => row.name,
    (row) =>
      el(
        "li",
        {},
        named(row.name),
        el("span", { class: "stack", "aria-hidden": "true" }, ...parts.map((part) => el("span", { class: part }))),
        el("small"),
      ),
    (item, row) => {
      parts.forEach((part, k) => {
        const width = longest > 0 ? (100 * row[`${part}_ms`]) / longest : 0;
        item.querySelector(".stack").children[k].style.width = `${width.toFixed(2)}%`;
      });
      const texts = parts.map((part) => `${words.ms(row[`${part}_ms`])} ms ${part}`);
      setText(item.querySelector("small"), texts.join(", "));
    },
  );
  show(byId("no-times"), known.length === 0);
}

/** Joins under way: this device's own, and those that the scheduler knows of. */
export function joins({ status }) {
  const all = status.pending.map((change) => ({
    title:
      change.kind === "standby"
        ? `${change.node} ${change.phase}`
        : `${change.kind === "scale-out" ? "Join" : "Leave"} of ${change.node}: ${change.phase}`,
    pull: change.pull,
  }));
  if (status.joining) all.unshift({ title: "This device copies the training state", pull: status.joining });
  keyed(
    byId("joins"),
    all,
    (join) => join.title,
    (join) => el("div", { class: "join" }, el("h3", {}, named(join.title)), el("div")),
    (place, join) => fillJoin(place.lastElementChild, join.pull),
  );
  const here = status.members.some((member) => member.me && member.scheduler);
  const where = here || !status.scheduler ? "" : ` The page of ${status.scheduler}, the scheduler, tells of the joins of others.`;
  setText(byId("no-joins"), `No join is under way here.${where}`);
  show(byId("no-joins"), all.length === 0);
}

function fillJoin(place, pull) {
  if (!pull) return;
  if (!place.firstElementChild) {
    place.append(el("progress", { max: 1, "aria-label": "Part of the state that is here" }), el("p"), el("ul"));
  }
  const [bar, text, list] = place.children;
  bar.value = pull.total_bytes ? Math.min(1, pull.bytes / pull.total_bytes) : 0;
  const left = pull.seconds_left === null ? "" : `, ${words.seconds(pull.seconds_left)} left`;
  setText(text, `${words.bytes(pull.bytes)} of ${words.bytes(pull.total_bytes)}${left}`);
  keyed(
    list,
    pull.sources,
    (source) => source.node,
    (source) => el("li", {}, named(source.node), el("progress", { max: 1, "aria-label": `From ${source.node}` }), el("span")),
    (item, source) => {
      item.querySelector("progress").value = pull.total_bytes ? source.bytes / pull.total_bytes : 0;
      const link = source.mbit_s === null ? "" : `, link ${words.mbit(source.mbit_s)} Mbit/s`;
      setText(item.lastElementChild, `${words.bytes(source.bytes)}${link}`);
    },
  );
}

/** The policy in force and its reasons. */
export function policy({ status, reasons }) {
  const text = status.policy
    ? `Policy ${status.policy}, view ${status.view}; scheduler ${status.scheduler || "-"} in term ${status.term}.`
    : "No policy is in force yet.";
  setText(byId("policy"), text);
  keyed(
    byId("reasons"),
    reasons.slice(0, REASON_LINES),
    (reason) => reason,
    (reason) => el("li", {}, named(reason)),
    () => {},
  );
}

/** The log, the newest line first. */
export function log({ lines }) {
  keyed(
    byId("log"),
    [...lines].reverse(),
    ([number]) => String(number),
    ([, seconds, text]) => {
      const when = new Date(seconds * 1000);
      const time = el("time", { datetime: when.toISOString() }, when.toLocaleTimeString([], { hour12: false }));
      return el("li", {}, time, named(text));
    },
    () => {},
  );
}

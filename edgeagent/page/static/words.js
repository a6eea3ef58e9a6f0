// Numbers in words, as the terminal writes them (edgeagent/terminal/text.py).

const UNITS = ["kB", "MB", "GB", "TB"];

/** A size such as "512 B" or "12.3 MB". */
export function bytes(count) {
  if (count < 1000) return `${Math.trunc(count)} B`;
  let value = count / 1000;
  let unit = 0;
  while (value >= 999.95 && unit < UNITS.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${value.toFixed(1)} ${UNITS[unit]}`;
}

/** A duration such as "3.0 ms", "0.42 s", "12 s" or "4 min 10 s". */
export function seconds(value) {
  if (value === null) return "-";
  if (value < 0.01) return `${(value * 1000).toFixed(1)} ms`;
  if (value < 0.1) return `${(value * 1000).toFixed(0)} ms`;
  if (value < 10) return `${value.toFixed(2)} s`;
  if (value < 100) return `${value.toFixed(0)} s`;
  const minutes = Math.floor(Math.round(value) / 60);
  if (minutes < 60) return `${minutes} min ${Math.round(value) % 60} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** Milliseconds without their unit. */
export function ms(value) {
  if (value === null) return "-";
  return value < 1000 ? value.toFixed(value < 10 ? 2 : 1) : value.toFixed(0);
}

/** Mbit/s without their unit. */
export function mbit(value) {
  if (value === null) return "-";
  return value.toFixed(value < 10 ? 2 : value < 100 ? 1 : 0);
}

/** Whether sums travel along a link, with the part of them if that is not all. */
export function used(pair) {
  if (!pair.in_tree) return "";
  return pair.part === null || pair.part === 1 ? "yes" : `${Math.round(100 * pair.part)}%`;
}

/** A loss with four significant places. */
export function loss(value) {
  if (value === null) return "-";
  return Math.abs(value) >= 0.001 || value === 0 ? value.toFixed(4) : value.toPrecision(3);
}

/** A rate of samples without its unit. */
export function rate(value) {
  if (!(value > 0)) return "-";
  return value >= 10 ? grouped(Math.round(value)) : value.toFixed(1);
}

/** A whole number with thin spaces between its thousands. */
export function grouped(value) {
  return String(value).replace(/\B(?=(\d{3})+$)/g, "\u202f");
}

/** "1 member" or "3 members". */
export function plural(count, word) {
  return `${count} ${word}${count === 1 ? "" : "s"}`;
}

/** A name that fits into a picture. */
export function short(name, most) {
  const letters = [...name];
  return letters.length <= most ? name : `${letters.slice(0, most - 1).join("")}…`;
}

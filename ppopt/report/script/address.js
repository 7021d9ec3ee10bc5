// The view in the address of the page.

import { FREE } from "./data.js";

/** @param {Set<string>} names */
const listed = (names) => [...names].sort().join(",");

/** What differs from the first view, as `#x=0,9&m=3`. @param {View} view @param {View} first */
export function link(view, first) {
  const said = [];
  if (view.from !== first.from || view.to !== first.to) said.push(`x=${view.from},${view.to}`);
  if (view.low !== first.low || view.high !== first.high) said.push(`y=${view.low},${view.high}`);
  if (view.microbatch !== FREE) said.push(`m=${view.microbatch}`);
  if (view.chosen.row !== FREE) said.push(`op=${view.chosen.schedule},${view.chosen.row}`);
  if (view.only !== first.only) said.push(`s=${view.only}`);
  if (view.off.size) said.push(`off=${listed(view.off)}`);
  if (listed(view.on) !== listed(first.on)) said.push(`on=${listed(view.on)}`);
  if (view.drag !== first.drag) said.push(`drag=${view.drag}`);
  if (view.theme) said.push(`theme=${view.theme}`);
  return `#${said.join("&")}`;
}

/** Read an address that `link` wrote; parts that do not fit these schedules are ignored.
 * @param {string} hash @param {View} first @param {Schedule[]} schedules
 * @returns {View} */
export function linked(hash, first, schedules) {
  const said = new URLSearchParams(hash.slice(1));
  const names = (/** @type {string} */ key) =>
    new Set((said.get(key) ?? "").split(",").filter(Boolean));
  const numbers = (/** @type {string} */ key) => (said.get(key) ?? "").split(",").map(Number);
  const view = { ...first };
  const [from, to] = numbers("x");
  if (from >= first.from && to <= first.to && from < to) Object.assign(view, { from, to });
  const [low, high] = said.has("y") ? numbers("y").map((at) => wholeBelow(at, first.high + 1)) : [];
  if (low >= 0 && low < high) Object.assign(view, { low, high });
  const batches = Math.max(...schedules.map(({ batches }) => batches));
  if (said.has("m")) view.microbatch = wholeBelow(numbers("m")[0], batches);
  const [schedule, row] = numbers("op");
  const known = schedules[schedule];
  if (known) view.chosen = { schedule, row: wholeBelow(row, known.ops.length) };
  const section = first.only === FREE ? FREE : sectionOf(hash);
  const [only] = said.has("s") ? numbers("s") : [section];
  if (schedules[only]) view.only = only;
  if (said.has("off")) view.off = names("off");
  if (said.has("on")) view.on = names("on");
  if (said.get("drag") === "pan") view.drag = "pan";
  const theme = said.get("theme");
  if (theme === "light" || theme === "dark") view.theme = theme;
  return view;
}

/** The schedule whose section an address names, `#schedule-1` being the first; FREE: none.
 * @param {string} hash */
export function sectionOf(hash) {
  const [, section] = /^#schedule-(\d+)$/.exec(hash) ?? [];
  return section ? Number(section) - 1 : FREE;
}

/** @param {number} value @param {number} end */
function wholeBelow(value, end) {
  return Number.isInteger(value) && value >= 0 && value < end ? value : FREE;
}

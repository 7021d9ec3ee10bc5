// The rows of a study: which are shown, in which order, and in words.

import { FREE, number } from "./data.js";
import { percent, plain } from "./words.js";

/** Numbers of the rows that no choice of a value leaves out. @param {Study} data
 * @param {StudyChoice} choice */
export function keptRows({ rows }, { only }) {
  const kept = (/** @type {StudyRow} */ row) =>
    only.every((value, setting) => value === FREE || row.settings[setting] === value);
  return [...rows.keys()].filter((number) => kept(rows[number]));
}

/** The first of the best rows by a figure; FREE: none has it.
 * @param {Study} data @param {number} figure @param {number[]} numbers */
export function bestRow(data, figure, numbers) {
  const sign = data.figures[figure].more ? -1 : 1;
  const worth = (/** @type {number} */ row) => sign * (data.rows[row].figures[figure] ?? Infinity);
  return numbers.filter((row) => data.rows[row].figures[figure] !== null)
    .reduce((best, row) => best === FREE || worth(row) < worth(best) ? row : best, FREE);
}

/** Rows than which none has less memory and less time: of least memory first.
 * @param {Study} data @param {number[]} numbers */
export function frontOf(data, numbers) {
  const spot = (/** @type {number} */ row) => {
    const { figures } = data.rows[row];
    return [figures[data.memory] ?? Infinity, figures[data.time] ?? Infinity];
  };
  const sorted = numbers.filter((row) => spot(row).every(Number.isFinite)).sort((one, other) => {
    const [[memory, time], [more, longer]] = [spot(one), spot(other)];
    return memory - more || time - longer;
  });
  let least = Infinity;
  return sorted.filter((row) => {
    const better = spot(row)[1] < least;
    if (better) least = spot(row)[1];
    return better;
  });
}

/** A figure with its unit. @param {Study} data @param {number} figure @param {number | null} value */
export function figureWords({ figures }, figure, value) {
  if (value === null) return "–";
  const { share, unit } = figures[figure];
  if (share) return percent(value);
  return unit ? `${shortNumber(value)} ${unit}` : shortNumber(value);
}

/** At most four digits behind the point, and six in all where that loses no whole one.
 * @param {number} value */
export function shortNumber(value) {
  const whole = Math.max(1, Math.ceil(Math.log10(Math.abs(value) + 1)));
  return number(Number(value.toFixed(Math.min(4, Math.max(0, 6 - whole)))));
}

/** @param {Study} data @param {number} row @param {number} setting */
export function settingWords({ settings, rows }, row, setting) {
  const value = rows[row].settings[setting];
  return value === FREE ? "–" : settings[setting].values[value];
}

/** The settings of a row that vary, in one line. @param {Study} data @param {number} row */
export function rowName(data, row) {
  const parts = data.settings.map(({ name }, setting) =>
    `${name} ${settingWords(data, row, setting)}`
  );
  return parts.join(" · ") || "the only row";
}

/** Settings and figures of a row as plotly's markup. @param {Study} data @param {number} row */
export function aboutRow(data, row) {
  const { figures, status, section } = data.rows[row];
  const known = data.figures.flatMap(({ name }, figure) => {
    const value = figures[figure];
    return value === null ? [] : [plain(`${name} ${figureWords(data, figure, value)}`)];
  });
  const more = section === null ? [] : ["<i>click: its schedule</i>"];
  return [`<b>${plain(rowName(data, row))}</b>`, ...known, plain(status), ...more].join("<br>");
}

/** Numbers of rows in the order of the table. @param {Study} data @param {StudyChoice} choice
 * @param {number[]} numbers */
export function inOrder(data, { sort, down }, numbers) {
  if (sort === FREE) return numbers;
  const settings = data.settings.length;
  const key = (/** @type {number} */ row) => {
    const { settings: values, figures, status } = data.rows[row];
    if (sort < settings) return values[sort];
    return sort < settings + figures.length ? figures[sort - settings] : status;
  };
  const sign = down ? -1 : 1;
  return [...numbers].sort((one, other) => {
    const [first, second] = [key(one), key(other)];
    if (first === null || second === null) return Number(first === null) - Number(second === null);
    return sign * (first < second ? -1 : first > second ? 1 : 0);
  });
}

// The table of a study: sorted by any column; a row leads to its schedule.

import { FREE } from "./data.js";
import { figureWords, inOrder, keptRows, settingWords } from "./study_rows.js";

/** Rows that are shown at first, and at most. */
export const FIRST_ROWS = 15;
const MAX_ROWS = 5000;

/** @template {keyof HTMLElementTagNameMap} Name
 * @param {Name} name @param {Partial<HTMLElementTagNameMap[Name]>} [fields]
 * @param {...(Node | string)} inside */
function made(name, fields = {}, ...inside) {
  const element = Object.assign(document.createElement(name), fields);
  element.append(...inside);
  return element;
}

/** Write the table anew. @param {HTMLElement} place @param {Study} data
 * @param {StudyChoice} choice @param {number} shown Section of the schedule that is shown.
 * @param {(change: Partial<StudyChoice>) => void} change @param {(row: number) => void} open */
export function studyTable(place, data, choice, shown, change, open) {
  const names = [
    ...data.settings.map(({ name }) => name),
    ...data.figures.map(({ name, unit }) => unit ? `${name} (${unit})` : name),
    "status",
  ];
  const settings = data.settings.length;
  const heads = names.map((name, column) => {
    const text = column < settings || column === names.length - 1;
    return heading(name, column, text, choice, change);
  });
  const rows = inOrder(data, choice, keptRows(data, choice));
  const body = rows.slice(0, choice.most).map((row) => line(data, row, shown, open));
  const left = Math.min(rows.length, MAX_ROWS) - body.length;
  place.replaceChildren(
    made(
      "table",
      {},
      made("thead", {}, made("tr", {}, ...heads)),
      made("tbody", {}, ...body),
    ),
  );
  if (left <= 0) return;
  place.append(made("button", {
    type: "button",
    textContent: `show ${left} more`,
    onclick: () => change({ most: MAX_ROWS }),
  }));
}

/** @param {string} name @param {number} column @param {boolean} text @param {StudyChoice} choice
 * @param {(change: Partial<StudyChoice>) => void} change */
function heading(name, column, text, { sort, down }, change) {
  const sorted = sort === column;
  const arrow = sorted ? down ? " ↓" : " ↑" : "";
  const button = made("button", {
    type: "button",
    title: `sort by ${name}`,
    textContent: name + arrow,
    onclick: () => change({ sort: column, down: sorted && !down }),
  });
  const head = made("th", { scope: "col", className: text ? "text" : "" }, button);
  if (sorted) head.setAttribute("aria-sort", down ? "descending" : "ascending");
  return head;
}

/** @param {Study} data @param {number} row @param {number} shown
 * @param {(row: number) => void} open */
function line(data, row, shown, open) {
  const { figures, status, section } = data.rows[row];
  const settings = data.settings.map((_, setting) => settingWords(data, row, setting));
  const values = figures.map((value, figure) =>
    data.figures[figure].share || value === null
      ? figureWords(data, figure, value)
      : figureWords(data, figure, value).split(" ")[0]
  );
  const cells = [
    ...settings.map((text) => made("td", { className: "text" }, text)),
    ...values.map((text) => made("td", {}, text)),
  ];
  const link = section === null
    ? status
    : made("a", { href: `#schedule-${section}`, textContent: status });
  const found = made(
    "tr",
    { onclick: () => open(row) },
    ...cells,
    made("td", { className: "text" }, link),
  );
  found.classList.toggle("opens", section !== null);
  found.classList.toggle("shown", section !== null && section === shown && shown !== FREE);
  return found;
}

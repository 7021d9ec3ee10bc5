// A study: charts and a table of its rows that follow the same choices; each leads to a schedule.

import { FREE } from "./data.js";
import { follow, FURTHER, part } from "./dom.js";
import { heatMap, memoryFront, parallel } from "./study_charts.js";
import { keptRows, rowName } from "./study_rows.js";
import { FIRST_ROWS, studyTable } from "./study_table.js";

const CHART_CONFIG = {
  displaylogo: false,
  showSendToCloud: false,
  displayModeBar: false,
  doubleClick: "reset",
};

/** Draw the rows of a page, where it has a study, and draw them again where that changes.
 * @param {Page} page */
function study(page) {
  const found = document.getElementById("study-data");
  if (!found) return;
  /** @type {Study} */
  const data = JSON.parse(found.textContent ?? "");
  const charts = { heat: heatMap, front: memoryFront, parallel };
  /** @type {StudyChoice} */
  let choice = firstChoice(data);
  let seen = "";
  const open = (/** @type {number} */ row) => openRow(data, row);
  const change = (/** @type {Partial<StudyChoice>} */ changed) => {
    choice = { ...choice, ...changed };
    show(true);
  };
  const show = (/** @type {boolean} */ force = false) => {
    const names = /** @type {(keyof typeof charts)[]} */ (Object.keys(charts));
    const plots = names.map((name) => ({ name, plot: document.getElementById(name) }));
    const widths = plots.map(({ plot }) => plot?.parentElement?.clientWidth);
    const state = [page.view.only, document.documentElement.dataset.theme, ...widths].join();
    if (state === seen && !force) return;
    seen = state;
    for (const { name, plot } of plots) {
      if (!plot) continue;
      const width = plot.parentElement?.clientWidth ?? 0;
      const { traces, layout } = charts[name](data, choice, width, page);
      Plotly.react(
        plot,
        traces,
        { ...themed(page, data, width), ...axed(page, layout) },
        CHART_CONFIG,
      );
    }
    part("count").textContent = counted(data, choice);
    studyTable(part("rows"), data, choice, page.view.only + 1, change, open);
  };
  connectChoices(data, choice, change);
  show();
  for (const name of Object.keys(charts)) {
    const plot = document.getElementById(name);
    plot?.on?.("plotly_click", ({ points }) => {
      const row = points?.[0]?.customdata;
      if (typeof row === "number") open(row);
    });
  }
  const places = Object.keys(charts).map((name) => document.getElementById(name)?.parentElement);
  follow(page, places.flatMap((place) => place ?? []), () => show());
}

/** @param {Study} data @returns {StudyChoice} */
function firstChoice({ settings, time }) {
  const [x, y] = [...settings.keys()].filter((n) => settings[n].values.length > 1);
  return {
    x: x ?? 0,
    y: y ?? FREE,
    figure: time,
    only: settings.map(() => FREE),
    sort: FREE,
    down: false,
    most: FIRST_ROWS,
  };
}

/** @param {Study} data @param {StudyChoice} choice */
function counted(data, choice) {
  const kept = keptRows(data, choice).length;
  return kept === data.rows.length ? `${kept} rows` : `${kept} of ${data.rows.length} rows`;
}

/** Show the schedule of a row, or say that it is not here. @param {Study} data @param {number} row */
function openRow(data, row) {
  const { section, status } = data.rows[row];
  if (section !== null) {
    location.hash = `schedule-${section}`;
    return;
  }
  const has = data.rows[row].figures[data.time] !== null;
  const why = has ? "this page has the best schedules, not this one" : status;
  part("count").textContent = `${rowName(data, row)}: ${why}`;
}

/** Fill and connect the fields that choose. @param {Study} data @param {StudyChoice} first
 * @param {(change: Partial<StudyChoice>) => void} change */
function connectChoices(data, first, change) {
  const now = { x: first.x, y: first.y };
  const settings = data.settings.map(({ name }, setting) => ({ name, setting }));
  for (const [axis, other] of /** @type {("x" | "y")[][]} */ ([["x", "y"], ["y", "x"]])) {
    field(`heat-${axis}`, settings.map(({ name, setting }) => [setting, name]), now[axis], (to) => {
      if (to === now[other]) now[other] = now[axis];
      now[axis] = to;
      const twin = /** @type {HTMLSelectElement | null} */ (
        document.getElementById(`heat-${other}`)
      );
      if (twin) twin.value = String(now[other]);
      change({ ...now });
    });
  }
  field(
    "heat-figure",
    [...data.figures.map(({ name }) => name).entries()],
    first.figure,
    (figure) => change({ figure }),
  );
  const only = [...first.only];
  for (const { setting } of settings) {
    const values = data.settings[setting].values.entries();
    field(`only-${setting}`, [[FREE, "all"], ...values], FREE, (value) => {
      only[setting] = value;
      change({ only: [...only], most: FIRST_ROWS });
    });
  }
}

/** @param {string} id @param {[number, string][]} entries @param {number} now
 * @param {(value: number) => void} chosen */
function field(id, entries, now, chosen) {
  const select = /** @type {HTMLSelectElement | null} */ (document.getElementById(id));
  if (!select) return;
  select.replaceChildren(
    ...entries.map(([value, name]) => new Option(name, String(value), false, value === now)),
  );
  select.onchange = () => chosen(Number(select.value));
}

/** @param {Page} page @param {Study} data @param {number} width */
function themed(page, data, width) {
  const { paper, ink } = page.theme();
  return {
    width,
    font: { ...data.font, color: ink },
    hoverlabel: data.hover,
    hovermode: "closest",
    paper_bgcolor: paper,
    plot_bgcolor: paper,
    dragmode: false,
  };
}

/** A layout with the grid of the theme. @param {Page} page
 * @param {Trace} layout */
function axed(page, layout) {
  const { grid } = page.theme();
  const axis = (/** @type {unknown} */ given) => ({
    gridcolor: grid,
    .../** @type {Record<string, unknown>} */ (given),
  });
  return { ...layout, xaxis: axis(layout.xaxis), yaxis: axis(layout.yaxis) };
}

FURTHER.push(study);

// The charts of a study: heat map, memory against time, parallel coordinates.

import { FREE } from "./data.js";
import { aboutRow, bestRow, figureWords, frontOf, keptRows, shortNumber } from "./study_rows.js";

/** @typedef {{traces: Trace[], layout: Trace}} Chart */

/** Points and lines that a chart draws at most: the best ones. */
const MOST_POINTS = 4000;
const MOST_LINES = 1000;
/** Cells and their least width in pixels up to which a heat map writes its figures. */
const MOST_WRITTEN = 400;
const LEAST_WRITTEN = 44;
/** Heights in pixels. */
const CELL = 34;
const FRONT = 400;
const PARALLEL = 380;
/** Of lines from good to bad, a fifth each; the first stands out, on light and on dark. */
const SHADES = ["#d55e00", "#0072b2", "#5b94bd", "#8fa8bd", "#a9b3bf"];

/** The best row of every cell, and what stands where none has the figure.
 * @param {Study} data @param {StudyChoice} choice @param {number} width @param {Page} page
 * @returns {Chart} */
export function heatMap(data, choice, width, page) {
  const { x, y, figure } = choice;
  const columns = data.settings[x].values;
  const lines = y === FREE ? [""] : data.settings[y].values;
  const cells = lines.map(() => columns.map(() => /** @type {number[]} */ ([])));
  for (const row of keptRows(data, choice)) {
    const { settings } = data.rows[row];
    const line = y === FREE ? 0 : settings[y];
    if (settings[x] !== FREE && line !== FREE) cells[line][settings[x]].push(row);
  }
  const best = cells.map((line) => line.map((rows) => bestRow(data, figure, rows)));
  const each = (/** @type {(row: number) => unknown} */ say) =>
    best.map((line) => line.map((row) => row === FREE ? null : say(row)));
  const value = (/** @type {number} */ row) => data.rows[row].figures[figure] ?? 0;
  const { share, name, unit } = data.figures[figure];
  const written = columns.length * lines.length <= MOST_WRITTEN &&
    (width - 180) / columns.length >= LEAST_WRITTEN;
  const words = (/** @type {number} */ row) =>
    share ? figureWords(data, figure, value(row)) : shortNumber(value(row));
  const longest = Math.max(...lines.map((line) => line.length));
  const left = Math.min(width / 3, 34 + 7 * longest);
  return {
    traces: [{
      type: "heatmap",
      x: [...columns.keys()],
      y: [...lines.keys()],
      z: each(value),
      text: each(words),
      texttemplate: written ? "%{text}" : "",
      hovertext: each((row) => aboutRow(data, row)),
      hovertemplate: "%{hovertext}<extra></extra>",
      hoverongaps: false,
      customdata: each((row) => row),
      colorscale: "Viridis",
      reversescale: !data.figures[figure].more,
      showscale: width > 520,
      colorbar: {
        thickness: 12,
        tickformat: share ? ".0%" : "",
        title: { text: share ? "" : unit },
      },
      xgap: 1,
      ygap: 1,
    }, without(data, cells, best, page)],
    layout: {
      height: 110 + Math.max(3, lines.length) * CELL,
      margin: { t: 12, b: 78, l: left, r: width > 520 ? 70 : 12 },
      title: undefined,
      xaxis: { ...ticks(columns), title: { text: data.settings[x].name }, showgrid: false },
      yaxis: {
        ...ticks(lines),
        title: { text: y === FREE ? "" : data.settings[y].name, standoff: 6 },
        range: [lines.length - 0.5, -0.5],
        showgrid: false,
      },
      meta: name,
    },
  };
}

/** Words in the cells that have rows, and none with the figure.
 * @param {Study} data @param {number[][][]} cells @param {number[][]} best @param {Page} page
 * @returns {Trace} */
function without(data, cells, best, page) {
  const bare = cells.flatMap((line, y) =>
    line.flatMap((rows, x) => rows.length && best[y][x] === FREE ? [{ x, y, row: rows[0] }] : [])
  );
  return {
    type: "scatter",
    mode: "text",
    x: bare.map(({ x }) => x),
    y: bare.map(({ y }) => y),
    text: bare.map(({ row }) => data.rows[row].status.split(/[ :]/)[0]),
    textfont: { color: page.theme().quiet, size: 10 },
    hovertext: bare.map(({ row }) => aboutRow(data, row)),
    hovertemplate: "%{hovertext}<extra></extra>",
    customdata: bare.map(({ row }) => row),
    showlegend: false,
  };
}

/** An axis of names. @param {string[]} names @returns {Trace} */
function ticks(names) {
  return {
    tickmode: "array",
    tickvals: [...names.keys()],
    ticktext: names.map((name) => name.length > 22 ? `${name.slice(0, 20)}…` : name),
    range: [-0.5, names.length - 0.5],
    zeroline: false,
    automargin: false,
  };
}

/** Memory against time: every row, and those that none outdoes in both.
 * @param {Study} data @param {StudyChoice} choice @param {number} width @param {Page} page
 * @returns {Chart} */
export function memoryFront(data, choice, width, page) {
  const { memory, time, colours } = data;
  const kept = keptRows(data, choice).filter((row) =>
    data.rows[row].figures[memory] !== null && data.rows[row].figures[time] !== null
  );
  const front = frontOf(data, kept);
  const points = shortened(data, kept, MOST_POINTS);
  const along = (/** @type {number[]} */ rows, /** @type {number} */ figure) =>
    rows.map((row) => data.rows[row].figures[figure]);
  const spots = (/** @type {number[]} */ rows) => ({
    type: "scatter",
    x: along(rows, memory),
    y: along(rows, time),
    customdata: rows,
    hovertext: rows.map((row) => aboutRow(data, row)),
    hovertemplate: "%{hovertext}<extra></extra>",
  });
  const marks = (/** @type {boolean} */ proved) => {
    const rows = points.filter((row) => data.rows[row].proved === proved);
    return rows.length === 0 ? [] : [{
      ...spots(rows),
      name: proved ? "proved optimal" : "not proved, or by hand",
      mode: "markers",
      marker: {
        size: 8,
        opacity: 0.75,
        symbol: proved ? "circle" : "circle-open",
        color: colours.row,
        line: { width: 1.5, color: colours.row },
      },
    }];
  };
  const { ink } = page.theme();
  const shown = kept.filter((row) => data.rows[row].section === page.view.only + 1);
  return {
    traces: [...marks(true), ...marks(false), {
      ...spots(front),
      name: "none is better in both",
      mode: "lines+markers",
      line: { shape: "hv", color: colours.front, width: 2 },
      marker: { size: 9, color: colours.front, line: { width: 1, color: colours.edge } },
    }, {
      ...spots(shown),
      name: "shown below",
      hoverinfo: "skip",
      hovertemplate: "",
      mode: "markers",
      marker: { size: 18, symbol: "circle-open", color: ink, line: { width: 2, color: ink } },
    }],
    layout: {
      height: FRONT,
      margin: { t: width > 700 ? 30 : 66, b: 48, l: 64, r: 16 },
      legend: { orientation: "h", x: 0, y: 1, yanchor: "bottom" },
      xaxis: { title: { text: figureTitle(data, memory) }, zeroline: false },
      yaxis: { title: { text: figureTitle(data, time) }, zeroline: false },
    },
  };
}

/** The best rows by time, not more than so many, in the order of the study.
 * @param {Study} data @param {number[]} rows @param {number} most */
function shortened(data, rows, most) {
  if (rows.length <= most) return rows;
  const time = (/** @type {number} */ row) => data.rows[row].figures[data.time] ?? Infinity;
  return [...rows].sort((one, other) => time(one) - time(other)).slice(0, most)
    .sort((one, other) => one - other);
}

/** @param {Study} data @param {number} figure */
function figureTitle(data, figure) {
  const { name, unit } = data.figures[figure];
  return unit ? `${name} (${unit})` : name;
}

/** One line per row over an axis for every setting that varies and every figure; the best by time
 * lie on top.
 * @param {Study} data @param {StudyChoice} choice @param {number} width @param {Page} page
 * @returns {Chart} */
export function parallel(data, choice, width, page) {
  const kept = keptRows(data, choice).filter((row) => data.rows[row].figures[data.time] !== null);
  const time = (/** @type {number} */ row) => data.rows[row].figures[data.time] ?? 0;
  const rows = shortened(data, kept, MOST_LINES).sort((one, other) => time(one) - time(other));
  const axes = axesOf(data, rows);
  const size = Math.max(1, Math.ceil(rows.length / SHADES.length));
  const groups = SHADES.map((colour, group) => ({
    colour,
    rows: rows.slice(group * size, (group + 1) * size),
  }));
  const { quiet, ink, paper } = page.theme();
  const lines = groups.filter(({ rows }) => rows.length).map(({ colour, rows }, group) => ({
    type: "scatter",
    mode: "lines+markers",
    name: group === 0 ? "best fifth by time" : "",
    x: rows.flatMap(() => [...axes.keys(), null]),
    y: rows.flatMap((row) => [...axes.map(({ place }) => place(row)), null]),
    customdata: rows.flatMap((row) => [...axes.map(() => row), null]),
    hovertext: rows.flatMap((row) => [...axes.map(() => aboutRow(data, row)), null]),
    hovertemplate: "%{hovertext}<extra></extra>",
    line: { color: colour, width: group === 0 ? 2 : 1 },
    marker: { color: colour, size: group === 0 ? 6 : 4 },
    opacity: group === 0 ? 1 : 0.55,
    connectgaps: false,
    showlegend: false,
  })).reverse();
  return {
    traces: lines,
    layout: {
      height: PARALLEL,
      width: Math.max(width, 90 * axes.length),
      margin: { t: 52, b: 16, l: 56, r: 56 },
      xaxis: {
        tickmode: "array",
        tickvals: [...axes.keys()],
        ticktext: axes.map(({ name }) => name),
        side: "top",
        range: [-0.35, axes.length - 0.65],
        showgrid: true,
        gridcolor: quiet,
        fixedrange: true,
        zeroline: false,
      },
      yaxis: { visible: false, range: [-0.06, 1.06], fixedrange: true },
      annotations: axes.flatMap(({ marks }, axis) =>
        marks.map(({ text, at }) => ({
          x: axis,
          y: at,
          text,
          xanchor: "left",
          xshift: 5,
          showarrow: false,
          font: { size: 11, color: ink },
          bgcolor: paper,
          opacity: 0.85,
        }))
      ),
    },
  };
}

/** @param {Study} data @param {number[]} rows */
function axesOf(data, rows) {
  const share = (/** @type {number} */ place, /** @type {number} */ of) => of ? place / of : 0.5;
  const settings = data.settings.map(({ name, values }, setting) => ({
    name,
    place: (/** @type {number} */ row) => {
      const value = data.rows[row].settings[setting];
      return value === FREE ? null : share(value, values.length - 1);
    },
    marks: values.length > 12 ? [0, values.length - 1] : [...values.keys()],
    text: (/** @type {number} */ mark) => values[mark].slice(0, 16),
    at: (/** @type {number} */ mark) => share(mark, values.length - 1),
  }));
  const known = data.figures.map((_, figure) => {
    const values = rows.flatMap((row) => data.rows[row].figures[figure] ?? []);
    return { low: Math.min(...values), high: Math.max(...values), some: values.length > 0 };
  });
  const figures = data.figures.flatMap(({ name }, figure) => {
    const { low, high, some } = known[figure];
    if (!some) return [];
    return [{
      name,
      place: (/** @type {number} */ row) => {
        const value = data.rows[row].figures[figure];
        return value === null ? null : share(value - low, high - low);
      },
      marks: low === high ? [low] : [low, high],
      text: (/** @type {number} */ mark) => figureWords(data, figure, mark),
      at: (/** @type {number} */ mark) => share(mark - low, high - low),
    }];
  });
  return [...settings, ...figures].map(({ name, place, marks, text, at }) => ({
    name,
    place,
    marks: marks.map((mark) => ({ text: text(mark), at: at(mark) })),
  }));
}

// The layout: panels one below the other, all on one time axis.

/** A chart of one schedule: its devices, or links, from `low` to below `high`; `top` and `height` in
 * pixels, `row` those of one of them.
 * @typedef {{kind: string, schedule: Schedule,
 *   index: number, axis: string, low: number, high: number, top: number, height: number, row: number}} Panel */

/** @typedef {{width: number, left: number, right: number, side: number, height: number,
 *   panels: Panel[]}} Frame */

const LEFT = 52;
const BOTTOM = 46;
const HEADING = 26;
/** More of it where there is no room for all in one line. */
const SECOND_LINE = 14;
const BETWEEN = 14;
const SIDE = 190;
/** Pixels for a word at the end of a row. */
const LABEL = 54;
const NARROW = 760;
const TALLEST_ROW = 36;
const LEAST_ROW = 4;
/** Pixels that the rows of all Gantt charts share, when there are many. */
const ROWS = 720;
/** Rows of this height are easy to read: several charts may share more pixels for it. */
const EASY_ROW = 24;
const MORE = 3;
const LEAST_LABEL = 11;
/** In rows lower than this, a drag zooms in on devices too. */
const THIN_ROW = 24;

/** Lay out the charts of schedules, with or without memory. `side`: width of the time by use to
 * the right of every row, 0 where there is no room.
 * @param {{schedule: Schedule, index: number}[]} shown @param {View} view
 * @param {number} width
 * @returns {Frame} */
export function frameOf(shown, view, width) {
  const side = width < NARROW ? 0 : SIDE;
  const heading = HEADING + (side ? 0 : SECOND_LINE);
  const windows = shown.map(({ schedule: { devices } }) => {
    const low = Math.min(view.low, devices - 1);
    return { low, high: Math.min(view.high, devices) };
  });
  const row = rowOf(windows.reduce((sum, { low, high }) => sum + high - low, 0), shown.length);
  /** @type {Panel[]} */
  const panels = [];
  let top = 0;
  shown.forEach(({ schedule, index }, place) => {
    for (const kind of ["gantt", ...schedule.charts.map(({ raw }) => raw.name), "memory"]) {
      if (kind !== "gantt" && !view.on.has(kind)) continue;
      const { low, high } = linesOf(schedule, kind, windows[place]);
      if (low === high) continue;
      top += panels.length ? heading + BETWEEN : heading;
      const axis = panels.length ? `y${panels.length + 1}` : "y";
      const height = (high - low) * row;
      panels.push({ kind, schedule, index, axis, low, high, top, height, row });
      top += height;
    }
  });
  return { width, left: LEFT, right: side + 14, side, height: top + BOTTOM, panels };
}

/** The lines of a chart in a window of devices, from the first to the last that has an end there.
 * @param {Schedule} schedule @param {string} kind @param {{low: number, high: number}} window */
function linesOf(schedule, kind, window) {
  const lines = schedule.beside(kind)?.raw.devices;
  if (!lines) return window;
  const ends = (/** @type {number[]} */ devices) =>
    devices.some((device) => device >= window.low && device < window.high);
  const low = lines.findIndex(ends);
  return low < 0 ? { low: 0, high: 0 } : { low, high: lines.findLastIndex(ends) + 1 };
}

/** Height of a row. @param {number} rows of all Gantt charts @param {number} charts */
function rowOf(rows, charts) {
  const shared = ROWS / rows;
  const easy = Math.min(EASY_ROW, Math.min(MORE, charts) * shared);
  return Math.min(TALLEST_ROW, Math.max(shared, easy, LEAST_ROW));
}

/** Width of the time axis in pixels. @param {Frame} frame */
export function span(frame) {
  return frame.width - frame.left - frame.right;
}

/** The layout of the picture, for plotly.
 * @param {Frame} frame @param {View} view @param {number} last end of the time axis
 * @param {Theme} theme @param {Trace[]} notes
 * @returns {Trace} */
export function layoutOf(frame, view, last, theme, notes) {
  const { panels, width, height, left, right, side } = frame;
  const inner = width - left;
  const bottom = panels[panels.length - 1];
  const text = { family: "system-ui, sans-serif", size: 12, color: theme.ink };
  /** @type {Trace} */
  const layout = {
    width,
    height,
    margin: { l: left, r: 0, t: 0, b: BOTTOM, autoexpand: false },
    font: text,
    hovermode: false,
    dragmode: view.drag,
    showlegend: false,
    paper_bgcolor: theme.paper,
    plot_bgcolor: theme.paper,
    modebar: { bgcolor: "rgba(0,0,0,0)", color: theme.quiet, activecolor: theme.ink },
    xaxis: {
      domain: [0, (inner - right) / inner],
      range: [view.from, view.to],
      minallowed: 0,
      maxallowed: last,
      anchor: bottom.axis,
      title: { text: timeTitle(panels), standoff: 6 },
      gridcolor: theme.grid,
      zeroline: false,
    },
    annotations: notes,
    shapes: endLines(panels, theme),
  };
  if (side) {
    layout.xaxis2 = {
      domain: [(inner - side) / inner, (inner - LABEL) / inner],
      range: [0, last],
      anchor: panels[0].axis,
      fixedrange: true,
      visible: false,
    };
  }
  for (const panel of panels) {
    layout[`yaxis${panel.axis.slice(1)}`] = rowsAxis(panel, height, view, theme);
  }
  return layout;
}

/** Title of the time axis: the unit is named where all schedules have the same.
 * @param {Panel[]} panels */
function timeTitle(panels) {
  const [unit, other] = new Set(panels.map(({ schedule }) => schedule.raw.timeName));
  return unit && other === undefined ? `time (${unit})` : "time";
}

/** @param {Panel} panel @param {number} height @param {View} view @param {Theme} theme
 * @returns {Trace} */
function rowsAxis(panel, height, view, theme) {
  const inner = height - BOTTOM;
  const { low, high, schedule } = panel;
  const chart = schedule.beside(panel.kind);
  const rows = chart?.raw.devices.length ?? schedule.devices;
  const carrying = Boolean(chart?.raw.labels);
  return {
    domain: [1 - (panel.top + panel.height) / inner, 1 - panel.top / inner],
    range: [high - 0.5, low - 0.5],
    minallowed: -0.5,
    maxallowed: rows - 0.5,
    fixedrange: carrying ||
      (view.drag === "pan" ? high - low === rows : panel.row >= THIN_ROW),
    ...rowTicks(panel),
    showgrid: false,
    zeroline: false,
    title: { text: panel.height > 60 ? (chart?.raw.axis ?? "device") : "", standoff: 6 },
    tickcolor: theme.grid,
  };
}

/** Marks of the rows: numbers of devices, or the two devices of a link.
 * @param {Panel} panel @returns {Trace} */
function rowTicks({ kind, schedule, row, low, high }) {
  const step = Math.max(1, Math.ceil(LEAST_LABEL / row));
  const labels = schedule.beside(kind)?.raw.labels;
  if (!labels) return { tick0: 0, dtick: step };
  const shown = Array.from({ length: Math.ceil((high - low) / step) }, (_, at) => low + at * step);
  return { tickvals: shown, ticktext: shown.map((line) => labels[line]) };
}

/** A line at the end of every schedule; the end of the shortest is dotted through all others.
 * @param {Panel[]} panels @param {Theme} theme
 * @returns {Trace[]} */
function endLines(panels, theme) {
  const ends = panels.map(({ schedule: { raw, unit } }) => raw.last / unit);
  const best = Math.min(...ends);
  return panels.flatMap((panel, index) => {
    const own = verticalLine(panel, ends[index], { color: theme.ink, width: 1.2 });
    if (ends[index] === best) return [own];
    return [own, verticalLine(panel, best, { color: theme.ink, width: 1, dash: "dot" })];
  });
}

/** @param {Panel} panel @param {number} time @param {Trace} line @returns {Trace} */
function verticalLine({ axis, low, high }, time, line) {
  const rows = { yref: axis, y0: low - 0.5, y1: high - 0.5 };
  return { type: "line", xref: "x", x0: time, x1: time, ...rows, line };
}

/** Text above a chart.
 * @param {Panel} panel @param {string} text @param {Trace} place
 * @returns {Trace} */
export function note({ axis, low }, text, place) {
  const above = { yref: axis, y: low - 0.5, yanchor: "bottom", yshift: 2 };
  const left = { xref: "paper", xanchor: "left", showarrow: false };
  return { ...left, ...above, text, font: { size: 11 }, ...place };
}

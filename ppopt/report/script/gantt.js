// Traces of operations and idle time: a filled path per colour, or a grid of cells for many.

import { cells } from "./cells.js";
import { FREE } from "./data.js";

/** Most operations and idle intervals drawn as shapes of their own; above, as cells. */
export const MOST_SHAPES = 6000;
const MAX_LABELS = 1500;
const MOST_ARROWS = 1500;
const LEAST_LABELLED_ROW = 11;
const LEAST_LETTER = 7;
/** Width of a digit as a share of its size. */
const LETTER_WIDTH = 0.6;
const DIM = 0.22;
/** From the middle of a device's row to the line of the critical path, in rows. */
const BELOW = 0.33;

/** Collects boxes, one path per colour.
 * @param {string} yaxis @param {string} [xaxis] */
export function boxes(yaxis, xaxis = "x") {
  /** @type {Map<string, {look: Trace, x: (number | null)[], y: (number | null)[]}>} */
  const paths = new Map();
  return {
    /** @param {string} name @param {Trace} look @param {number[]} box x0, x1, y0, y1 */
    add(name, look, [x0, x1, y0, y1]) {
      let path = paths.get(name);
      if (!path) paths.set(name, path = { look, x: [], y: [] });
      path.x.push(x0, x1, x1, x0, x0, null);
      path.y.push(y0, y0, y1, y1, y0, null);
    },
    /** @returns {Trace[]} */
    traces: () =>
      [...paths].map(([name, { look, x, y }]) => {
        return { ...scatter("none", yaxis, xaxis), ...look, name, x, y };
      }),
  };
}

/** What all traces but cells have; those without lines and marks are areas.
 * @param {string} mode @param {string} yaxis @param {string} [xaxis] @returns {Trace} */
export function scatter(mode, yaxis, xaxis = "x") {
  const fill = mode === "none" ? "toself" : "none";
  return { type: "scatter", mode, fill, hoverinfo: "skip", showlegend: false, xaxis, yaxis };
}

/** @param {Style} style @param {number} cause @returns {Trace} */
export function idleLook(style, cause) {
  const { colour, pattern } = style.causes[cause];
  if (!pattern) return { fillcolor: colour };
  return {
    fillpattern: { shape: pattern, bgcolor: colour, fgcolor: colour, size: 6, solidity: 0.25 },
  };
}

/** Lower and upper edge of an operation: a whole row, or half of it in a pair.
 * @param {number} device @param {number} lane @param {number} bar */
export function edges(device, lane, bar) {
  const top = device - bar / 2;
  const bottom = device + bar / 2;
  if (lane === 1) return [top, device - 0.015];
  return lane === 2 ? [device + 0.015, bottom] : [top, bottom];
}

/** Draw one schedule in the window of the view, widened to both sides so that it can be moved.
 * @param {Panel} panel @param {Scene} scene @param {Set<number> | null} highlighted rows to highlight
 * @returns {Trace[]} */
export function gantt(panel, scene, highlighted) {
  const { schedule } = panel;
  const { style, view, pixel } = scene;
  const spare = (view.to - view.from) / 2;
  const from = Math.max(0, view.from - spare) * schedule.unit;
  const to = Math.min(schedule.raw.last, (view.to + spare) * schedule.unit);
  const rows = Math.ceil((panel.high - panel.low) / 2);
  const [low, high] = [panel.low - rows, panel.high + rows];
  const { kind } = schedule.ops;
  const { cause } = schedule.gaps;
  const shown = schedule.ops.within(from, to, low, high).filter((row) =>
    !view.off.has(style.kinds[kind[row]].hidden)
  );
  const idle = schedule.gaps.within(from, to, low, high).filter((row) =>
    !view.off.has(style.causes[cause[row]].name)
  );
  const window = { from: from / schedule.unit, to: to / schedule.unit, pixel };
  /** @param {number[]} rows @param {number[]} gaps @param {number} opacity @returns {Trace[]} */
  const layer = (rows, gaps, opacity) => {
    const traces = rows.length + gaps.length > MOST_SHAPES
      ? [cells(panel, style, rows, gaps, window)]
      : [...shapes(panel, scene, rows, gaps), ...labels(panel, scene, rows)];
    return traces.map((trace) => ({ ...trace, opacity }));
  };
  if (!highlighted) return layer(shown, idle, 1);
  const front = shown.filter((row) => highlighted.has(row));
  const back = layer(shown, idle, DIM).filter((trace) => trace.mode !== "text");
  return [...back, ...layer(front, [], 1)];
}

/** @param {Panel} panel @param {Scene} scene @param {number[]} rows @param {number[]} idle */
function shapes(panel, { style, pixel }, rows, idle) {
  const { schedule: { ops, gaps, unit, raw }, axis } = panel;
  const paths = boxes(axis);
  for (const row of idle) {
    const cause = gaps.cause[row];
    const times = [gaps.start[row] / unit, gaps.end[row] / unit];
    const box = [...times, ...edges(gaps.device[row], 0, style.bar)];
    paths.add(style.causes[cause].name, idleLook(style, cause), box);
  }
  for (const row of rows) {
    const { name } = style.kinds[ops.kind[row]];
    const start = ops.start[row] / unit;
    const end = ops.end[row] / unit;
    const apart = Math.min(pixel, 0.15 * (end - start));
    const sides = edges(ops.device[row], ops.lane[row], style.bar);
    const box = [start, Math.max(end - apart, start + pixel / 2), ...sides];
    paths.add(
      `${name} ${ops.part[row]}`,
      { fillcolor: raw.colours[ops.kind[row]][ops.part[row]] },
      box,
    );
  }
  return paths.traces();
}

/** Microbatch numbers with slices as subscripts: all operations of a kind and stage show theirs, or
 * none does, so that whether there is room depends on the longest number. One size per kind. Where
 * there are many, only those that the view shows.
 * @param {Panel} panel @param {Scene} scene @param {number[]} rows @returns {Trace[]} */
function labels(panel, { style, pixel, view }, rows) {
  const { schedule, axis } = panel;
  const { ops, unit, raw } = schedule;
  if (panel.row < LEAST_LABELLED_ROW) return [];
  const letters = raw.letters + (schedule.sliced ? 1 : 0);
  const size = (/** @type {number} */ row) => {
    const height = ops.lane[row] ? panel.row * 0.32 : panel.row * 0.5;
    const pixels = (ops.end[row] - ops.start[row]) / unit / pixel;
    return Math.min(12, Math.max(height, 7), (pixels - 1.5) / (LETTER_WIDTH * letters));
  };
  const roomy = rows.filter((row) => {
    const halved = ops.lane[row] && panel.row < 2 * LEAST_LABELLED_ROW;
    return !halved && size(row) >= LEAST_LETTER;
  });
  const fitting = roomy.length > MAX_LABELS ? roomy.filter((row) => seen(panel, view, row)) : roomy;
  if (!fitting.length || fitting.length > MAX_LABELS) return [];
  const sort = (/** @type {number} */ row) => 3 * ops.kind[row] + ops.lane[row];
  /** @type {Map<number, number>} */
  const sizes = new Map();
  for (const row of fitting) {
    sizes.set(sort(row), Math.min(size(row), sizes.get(sort(row)) ?? Infinity));
  }
  const middle = (/** @type {number} */ row) => {
    const [top, bottom] = edges(ops.device[row], ops.lane[row], style.bar);
    return (top + bottom) / 2;
  };
  return [{
    ...scatter("text", axis),
    name: "microbatch",
    x: fitting.map((row) => (ops.start[row] + ops.end[row]) / 2 / unit),
    y: fitting.map(middle),
    text: fitting.map((row) => schedule.label(row, style.kinds)),
    textfont: {
      size: fitting.map((row) => sizes.get(sort(row)) ?? LEAST_LETTER),
      color: fitting.map((row) => raw.inks[ops.kind[row]][ops.part[row]]),
    },
  }];
}

/** Whether the picture shows an operation, or part of it.
 * @param {Panel} panel @param {View} view @param {number} row */
function seen({ schedule: { ops, unit }, low, high }, view, row) {
  const device = ops.device[row];
  return device >= low && device < high && ops.end[row] > view.from * unit &&
    ops.start[row] < view.to * unit;
}

/** A line along a chain of operations, below their numbers.
 * @param {Panel} panel @param {Iterable<number>} rows @param {string} ink @returns {Trace} */
export function path(panel, rows, ink) {
  const { schedule: { ops, unit }, axis } = panel;
  const x = [];
  const y = [];
  for (const row of rows) {
    x.push(ops.start[row] / unit, ops.end[row] / unit);
    y.push(ops.device[row] + BELOW, ops.device[row] + BELOW);
  }
  const line = { color: ink, width: 2, shape: "linear", simplify: true };
  return { ...scatter("lines", axis), name: "critical path", x, y, line };
}

/** Transfers between devices into the given operations; null where they are too many to read.
 * @param {Panel} panel @param {number[]} rows @param {string} ink
 * @returns {Trace | null} */
export function arrows(panel, rows, ink) {
  const { schedule: { ops, unit }, axis } = panel;
  const x = [];
  const y = [];
  for (const row of rows) {
    for (const column of ops.needs) {
      const need = column[row];
      if (need === FREE || ops.device[need] === ops.device[row]) continue;
      x.push(ops.end[need] / unit, ops.start[row] / unit, null);
      y.push(ops.device[need], ops.device[row], null);
    }
  }
  if (x.length > 3 * MOST_ARROWS) return null;
  return {
    ...scatter("lines+markers", axis),
    name: "transfers",
    x,
    y,
    line: { color: ink, width: 1 },
    marker: {
      symbol: "arrow",
      angleref: "previous",
      color: ink,
      size: x.map((_, index) => (index % 3 === 1 ? 8 : 0)),
      line: { width: 0 },
    },
  };
}

/** A frame around one operation.
 * @param {Panel} panel @param {number} row @param {number} bar @param {string} ink
 * @returns {Trace} */
export function framed(panel, row, bar, ink) {
  const { schedule: { ops, unit }, axis } = panel;
  const [top, bottom] = edges(ops.device[row], ops.lane[row], bar);
  const [start, end] = [ops.start[row] / unit, ops.end[row] / unit];
  return {
    ...scatter("lines", axis),
    name: "chosen",
    x: [start, end, end, start, start],
    y: [top, top, bottom, bottom, top],
    line: { color: ink, width: 2.5 },
  };
}

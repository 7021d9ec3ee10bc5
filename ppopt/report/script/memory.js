// Traces of memory over time, stacked by part, and of the time of devices by use.

import { firstAbove } from "./data.js";
import { boxes, idleLook, scatter } from "./gantt.js";

/** Most steps that all devices of a panel show together. */
const MOST_STEPS = 16000;

/** Memory of every device in its row: 0 at the lower edge, all rows to one scale.
 * @param {Panel} panel @param {Scene} scene @returns {Trace[]} */
export function memory(panel, scene) {
  const { raw } = panel.schedule;
  const { style, theme } = scene;
  const scale = style.bar / Math.max(1, ...raw.peak, ...(raw.limits ?? []));
  const y = (/** @type {number} */ device, /** @type {number} */ level) =>
    device + style.bar / 2 - level * scale;
  return [
    ...stack(panel, scene, y),
    ...(raw.limits ? [limitLines(panel, style, y)] : []),
    peaks(panel, y, theme.ink),
  ];
}

/** Static memory and, above it, what the operations of every part hold.
 * @param {Panel} panel @param {Scene} scene @param {(device: number, level: number) => number} y
 * @returns {Trace[]} */
function stack({ schedule, axis }, { style, view }, y) {
  const { raw, unit, devices } = schedule;
  const names = [
    "static memory",
    ...raw.parts.map((part) => `memory ${part}`.trim()),
    ...(raw.gathers ? ["gathered weights"] : []),
  ];
  const colours = [style.static, ...raw.memory, style.gathered];
  const traces = names.map((name, index) => {
    /** @type {Trace} */
    const trace = { ...scatter("none", axis), name, fillcolor: colours[index], x: [], y: [] };
    return trace;
  });
  const spare = (view.to - view.from) / 2;
  const window = [(view.from - spare) * unit, (view.to + spare) * unit];
  const columns = Math.max(60, Math.floor(MOST_STEPS / devices / raw.parts.length));
  const x = (/** @type {number} */ tick) => tick / unit;
  for (let device = 0; device < devices; device++) {
    const { edges, levels } = sampled(schedule.memory(device), window, columns, raw.last);
    const held = (/** @type {number} */ level) => y(device, level);
    let below = edges.slice(1).map(() => 0);
    [below.map(() => raw.static[device]), ...levels].forEach((level, index) => {
      const above = below.map((value, step) => value + level[step]);
      if (level.some((value) => value)) area(traces[index], edges, below, above, x, held);
      below = above;
    });
  }
  return traces.filter((trace) => /** @type {unknown[]} */ (trace.x).length);
}

/** The steps of a window: n + 1 edges and, by part, n levels; where there are too many, the
 * highest of every column.
 * @param {Steps} steps @param {number[]} window from, to @param {number} columns
 * @param {number} last
 * @returns {{edges: number[], levels: number[][]}} */
function sampled({ time, levels }, window, columns, last) {
  const from = Math.max(0, window[0]);
  const to = Math.min(last, window[1]);
  let step = Math.max(0, firstAbove(time, from, 0, time.length) - 1);
  const end = firstAbove(time, to, 0, time.length);
  if (end - step <= columns) {
    const edges = [...time.slice(step, end), time[end] ?? last];
    return { edges, levels: levels.map((level) => level.slice(step, end)) };
  }
  const total = (/** @type {number} */ at) => levels.reduce((sum, level) => sum + level[at], 0);
  const edges = [];
  /** @type {number[]} */
  const kept = [];
  for (let column = 0; column < columns; column++) {
    edges.push(from + (column * (to - from)) / columns);
    const next = from + ((column + 1) * (to - from)) / columns;
    let best = step;
    while (step + 1 < end && time[step + 1] < next) {
      step++;
      if (total(step) > total(best)) best = step;
    }
    kept.push(best);
  }
  return { edges: [...edges, to], levels: levels.map((level) => kept.map((at) => level[at])) };
}

/** Add the area between two step functions to a trace.
 * @param {Trace} trace @param {number[]} edges @param {number[]} below @param {number[]} above
 * @param {(tick: number) => number} x @param {(level: number) => number} y */
function area(trace, edges, below, above, x, y) {
  const xs = /** @type {(number | null)[]} */ (trace.x);
  const ys = /** @type {(number | null)[]} */ (trace.y);
  for (let step = 0; step < above.length; step++) {
    xs.push(x(edges[step]), x(edges[step + 1]));
    ys.push(y(above[step]), y(above[step]));
  }
  for (let step = above.length - 1; step >= 0; step--) {
    xs.push(x(edges[step + 1]), x(edges[step]));
    ys.push(y(below[step]), y(below[step]));
  }
  xs.push(null);
  ys.push(null);
}

/** @param {Panel} panel @param {Style} style @param {(device: number, level: number) => number} y
 * @returns {Trace} */
function limitLines({ schedule: { raw, unit }, axis }, style, y) {
  const limits = raw.limits ?? [];
  return {
    ...scatter("lines", axis),
    name: "memory limit",
    x: limits.flatMap(() => [0, raw.last / unit, null]),
    y: limits.flatMap((limit, device) => [y(device, limit), y(device, limit), null]),
    line: { color: style.limit, width: 1.4, dash: "4px,3px" },
  };
}

/** A mark where every device first holds most.
 * @param {Panel} panel @param {(device: number, level: number) => number} y @param {string} ink
 * @returns {Trace} */
function peaks({ schedule, axis, row }, y, ink) {
  const { raw, unit } = schedule;
  return {
    ...scatter("markers", axis),
    name: "peak memory",
    x: raw.peak.map((peak, device) => peakTime(schedule, device, peak) / unit),
    y: raw.peak.map((peak, device) => y(device, peak)),
    marker: { symbol: "triangle-down", size: Math.min(9, Math.max(4, row / 3)), color: ink },
  };
}

/** @param {Schedule} schedule @param {number} device @param {number} peak */
function peakTime(schedule, device, peak) {
  const { time, total } = schedule.memory(device);
  return time[total.indexOf(peak)] ?? 0;
}

/** Time of every device by use, as bars to the right of its row: by kind, then idle by cause.
 * @param {Panel} panel @param {Style} style @param {string} xaxis
 * @returns {Trace[]} */
export function uses({ schedule, axis }, style, xaxis) {
  const paths = boxes(axis, xaxis);
  schedule.uses(style.kinds.length, style.causes.length).forEach((ticks, device) => {
    const low = device - style.bar / 2;
    let at = 0;
    ticks.forEach((tick, index) => {
      if (!tick) return;
      const [name, look] = use(style, index);
      const next = at + tick / schedule.unit;
      paths.add(name, look, [at, next, low, low + style.bar]);
      at = next;
    });
  });
  return paths.traces();
}

/** @param {Style} style @param {number} index @returns {[string, Trace]} */
function use(style, index) {
  const kind = style.kinds[index];
  if (kind) return [`time in ${kind.name}`, { fillcolor: kind.colour }];
  const cause = index - style.kinds.length;
  return [`idle: ${style.causes[cause].name}`, idleLook(style, cause)];
}

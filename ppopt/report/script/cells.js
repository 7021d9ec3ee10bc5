// Operations and idle time as cells of about a pixel, each in the colour of what fills most of it.

/** Steps of a colour channel: cells of nearly one colour share it. */
const STEPS = 32;

/** What every cell shows: a line of cells for each half of a device's row, four numbers a cell, the
 * colour times the weight, and the weight: opacity times the share that is covered.
 * @param {Schedule} schedule @param {Style} style @param {number[]} rows @param {number[]} idle
 * @param {{from: number, to: number, pixel: number}} window in the user's unit */
export function covered({ ops, gaps, unit, devices, raw }, style, rows, idle, { from, to, pixel }) {
  const columns = Math.ceil((to - from) / pixel);
  const halves = ops.lane.some((lane) => lane > 0) ? 2 : 1;
  const blank = () => Array.from({ length: devices * halves }, () => new Float32Array(4 * columns));
  const lines = blank();
  const kinds = style.kinds.map(() => blank());
  const time = (/** @type {number} */ tick) => (tick / unit - from) / pixel;
  const shades = raw.colours.map((tones) => tones.map(channels));
  const causes = style.causes.map((cause) => channels(cause.colour));
  for (const row of idle) {
    for (let half = 0; half < halves; half++) {
      const line = lines[gaps.device[row] * halves + half];
      cover(line, time(gaps.start[row]), time(gaps.end[row]), causes[gaps.cause[row]]);
    }
  }
  for (const row of rows) {
    const colour = shades[ops.kind[row]][ops.part[row]];
    for (let half = 0; half < halves; half++) {
      if (ops.lane[row] && ops.lane[row] !== half + 1) continue;
      const line = kinds[ops.kind[row]][ops.device[row] * halves + half];
      cover(line, time(ops.start[row]), time(ops.end[row]), colour);
    }
  }
  lines.forEach((line, index) => merge(line, kinds.map((kind) => kind[index]), style));
  return { lines, halves, columns };
}

/** Add operations to cells of idle time: in the colour of the kind that fills most of a cell, or in
 * that of several: the mean of blue and orange would pass for the green of another kind.
 * @param {Float32Array} line @param {Float32Array[]} kinds the same cells, by kind
 * @param {Style} style */
function merge(line, kinds, style) {
  const several = channels(style.several);
  for (let at = 0; at < line.length; at += 4) {
    const weight = kinds.reduce((sum, kind) => sum + kind[at + 3], 0);
    if (!weight) continue;
    const most = kinds.reduce((one, other) => (other[at + 3] > one[at + 3] ? other : one));
    const clear = most[at + 3] >= style.most * weight;
    for (let channel = 0; channel < 3; channel++) {
      const tone = clear ? most[at + channel] / most[at + 3] : several[channel];
      line[at + channel] += tone * weight;
    }
    line[at + 3] += weight;
  }
}

/** The cells of a window, as a heatmap.
 * @param {Panel} panel @param {Style} style @param {number[]} rows @param {number[]} idle
 * @param {{from: number, to: number, pixel: number}} window in the user's unit
 * @returns {Trace} */
export function cells({ schedule, axis }, style, rows, idle, window) {
  const { lines, halves, columns } = covered(schedule, style, rows, idle, window);
  const { from, pixel } = window;
  const x = Array.from({ length: columns + 1 }, (_, column) => from + column * pixel);
  const y = edgesOfRows(schedule.devices, halves, style.bar);
  const fixed = { name: "cells", type: "heatmap", xaxis: "x", yaxis: axis, hoverinfo: "skip" };
  return { ...fixed, x, y, ...coded(lines, halves, columns) };
}

/** Red, green and blue, 0 to 255, and opacity of `#rrggbb` or `rgba(...)`.
 * @param {string} colour */
function channels(colour) {
  if (!colour.startsWith("#")) return (colour.match(/[\d.]+/g) ?? []).map(Number);
  return [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16)).concat(1);
}

/** Add a colour to the columns from..to, to each by how much of it is covered.
 * @param {Float32Array} line @param {number} from @param {number} to
 * @param {number[]} colour */
function cover(line, from, to, [red, green, blue, opacity]) {
  const end = Math.min(to, line.length / 4);
  for (let column = Math.max(0, Math.floor(from)); column < end; column++) {
    const part = (Math.min(end, column + 1) - Math.max(from, column)) * opacity;
    line[4 * column] += part * red;
    line[4 * column + 1] += part * green;
    line[4 * column + 2] += part * blue;
    line[4 * column + 3] += part;
  }
}

/** @param {number} devices @param {number} halves @param {number} bar */
function edgesOfRows(devices, halves, bar) {
  const y = [];
  for (let device = 0; device < devices; device++) {
    y.push(device - bar / 2);
    if (halves === 2) y.push(device);
    y.push(device + bar / 2);
  }
  return [...y, devices - bar / 2];
}

/** Cells as indices into a colour scale, with an empty row below every device.
 * @param {Float32Array[]} paint @param {number} halves @param {number} columns
 * @returns {Trace} */
function coded(paint, halves, columns) {
  /** @type {Map<number, number>} */
  const codes = new Map();
  /** @type {(number | null)[][]} */
  const z = [];
  paint.forEach((line, index) => {
    const row = new Array(columns).fill(null);
    for (let column = 0; column < columns; column++) {
      const key = toneOf(line, 4 * column);
      if (key < 0) continue;
      let code = codes.get(key);
      if (code === undefined) codes.set(key, code = codes.size);
      row[column] = code;
    }
    z.push(row);
    if (index % halves === halves - 1) z.push(new Array(columns).fill(null));
  });
  return { z, ...scale([...codes.keys()].map(colourOf)) };
}

/** A colour in 24 bits, six each for opacity, red, green and blue; -1 where there is nothing.
 * @param {Float32Array} line @param {number} at */
function toneOf(line, at) {
  const part = line[at + 3];
  if (part < 0.01) return -1;
  let key = Math.round(Math.min(1, part) * STEPS);
  for (let channel = 0; channel < 3; channel++) {
    key = 64 * key + Math.round((line[at + channel] / part / 255) * STEPS);
  }
  return key;
}

/** @param {number} key */
function colourOf(key) {
  const [opacity, ...tones] = [18, 12, 6, 0].map((bits) => ((key >> bits) & 63) / STEPS);
  return `rgba(${tones.map((tone) => Math.round(255 * tone))},${opacity})`;
}

/** A colour scale of steps: code k has colour k. @param {string[]} colours @returns {Trace} */
function scale(colours) {
  const steps = colours.flatMap((colour, code) => [
    [code / colours.length, colour],
    [(code + 1) / colours.length, colour],
  ]);
  return { colorscale: steps, zmin: -0.5, zmax: colours.length - 0.5, showscale: false };
}

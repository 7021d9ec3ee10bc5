// A preview of the picture until plotly is loaded: rows of cells.

import { covered } from "./cells.js";
import { span } from "./layout.js";

/** Paint the rows of all Gantt charts where plotly will draw them; returns what removes them.
 * @param {Page} page */
export function preview(page) {
  const { frame, plot } = page;
  const canvas = document.createElement("canvas");
  canvas.width = frame.width;
  canvas.height = frame.height;
  canvas.style.position = "absolute";
  plot.style.minHeight = `${frame.height}px`;
  plot.prepend(canvas);
  const context = canvas.getContext("2d");
  const { ink } = page.theme();
  for (const panel of frame.panels) {
    if (!context || panel.kind !== "gantt") continue;
    context.fillStyle = ink;
    context.font = "bold 12px system-ui, sans-serif";
    context.fillText(panel.schedule.raw.title, frame.left + 2, panel.top - 8);
    context.putImageData(image(page, panel), frame.left, panel.top);
  }
  return () => {
    canvas.remove();
    plot.style.minHeight = "";
  };
}

/** @param {Page} page @param {Panel} panel */
function image({ frame, style, view }, { schedule, row, height, low, high }) {
  const length = view.to - view.from;
  const window = { from: view.from, to: view.to, pixel: length / span(frame) };
  const ticks = [view.from * schedule.unit, view.to * schedule.unit];
  const rows = schedule.ops.within(ticks[0], ticks[1], low, high);
  const idle = schedule.gaps.within(ticks[0], ticks[1], low, high);
  const { lines, halves, columns } = covered(schedule, style, rows, idle, window);
  const found = new ImageData(columns, Math.ceil(height));
  const bytes = lines.map((line) => colours(line, columns));
  for (let y = 0; y < found.height; y++) {
    const within = low + (y + 0.5) / row;
    const part = (within % 1 - (1 - style.bar) / 2) / style.bar;
    const line = bytes[Math.floor(within) * halves + Math.floor(part * halves)];
    if (part >= 0 && part < 1 && line) found.data.set(line, 4 * columns * y);
  }
  return found;
}

/** @param {Float32Array} line @param {number} columns */
function colours(line, columns) {
  const bytes = new Uint8ClampedArray(4 * columns);
  for (let at = 0; at < bytes.length; at += 4) {
    const part = line[at + 3] || 1;
    for (let channel = 0; channel < 3; channel++) bytes[at + channel] = line[at + channel] / part;
    bytes[at + 3] = 255 * Math.min(1, line[at + 3]);
  }
  return bytes;
}

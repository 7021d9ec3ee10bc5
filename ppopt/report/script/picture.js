// The picture of a view: the traces of all charts with their text.

import { FREE, number } from "./data.js";
import { arrows, framed, gantt, path, scatter } from "./gantt.js";
import { layoutOf, note, span } from "./layout.js";
import { busy, links } from "./links.js";
import { memory, uses } from "./memory.js";
import { percent, plain } from "./words.js";

/** Least distance between texts, in pixels. */
const LINE = 13;
/** Width of a letter of a heading in pixels, on average, at most. */
const LETTER = 6.4;
const OVERVIEW =
  "seen from afar: a spot has the colour of what fills most of it, slate blue where " +
  "several kinds share it; zoom in for single operations (drag a box, or keys + and v)";

/** Traces and layout for plotly, and messages for the reader.
 * @param {Frame} frame @param {Style} style @param {View} view @param {number} last
 * @param {Theme} theme */
export function picture(frame, style, view, last, theme) {
  const pixel = (view.to - view.from) / span(frame);
  /** @type {Scene} */
  const scene = { style, view, theme, last, pixel, messages: [] };
  const charts = new Map([["gantt", drawn], ["memory", memory]]);
  const traces = frame.panels.flatMap((panel) => [
    ...(charts.get(panel.kind) ?? links)(panel, scene),
    ...(frame.side ? rowNotes(panel, scene) : []),
  ]);
  const notes = frame.panels.flatMap((panel) => notesOf(panel, frame));
  if (traces.some(({ name }) => name === "cells")) scene.messages.push(OVERVIEW);
  return { traces, layout: layoutOf(frame, view, last, theme, notes), messages: scene.messages };
}

/** To the right of the rows of a chart: time by use and idle share, busy share, or peak memory.
 * @param {Panel} panel @param {Scene} scene @returns {Trace[]} */
function rowNotes(panel, { style, last }) {
  const { schedule: { raw, unit } } = panel;
  if (panel.kind === "memory") return [words(panel, 0, (device) => peak(raw, device))];
  const other = panel.schedule.beside(panel.kind)?.schedule;
  if (other) return [words(panel, 0, (line) => percent(busy(other, line) / raw.last))];
  const idle = (/** @type {number} */ device) => panel.schedule.idle(device) / raw.last;
  const end = Math.max(last, raw.last / unit);
  return [...uses(panel, style, "x2"), words(panel, end, (device) => percent(idle(device)))];
}

/** A word to the right of every row that has room for it.
 * @param {Panel} panel @param {number} x @param {(device: number) => string} word
 * @returns {Trace} */
function words({ axis, row, low, high }, x, word) {
  const apart = Math.max(1, Math.ceil(LINE / row));
  const devices = Array.from(
    { length: Math.ceil((high - low) / apart) },
    (_, at) => low + at * apart,
  );
  return {
    ...scatter("text", axis, "x2"),
    name: "words",
    cliponaxis: false,
    x: devices.map(() => x),
    y: devices,
    text: devices.map((device) => `\u00a0${word(device)}`),
    textposition: "middle right",
    textfont: { size: 11 },
  };
}

/** @param {Panel} panel @param {Scene} scene @returns {Trace[]} */
function drawn(panel, scene) {
  const { schedule, index } = panel;
  const { style, view, theme, messages } = scene;
  const rows = view.microbatch === FREE ? [] : schedule.rowsOf(view.microbatch);
  const critical = view.on.has("critical") ? [...schedule.critical] : [];
  const highlighted = rows.length ? rows : critical;
  const traces = gantt(panel, scene, highlighted.length ? new Set(highlighted) : null);
  if (critical.length) {
    traces.push(path(panel, critical, theme.ink));
    messages.push(`critical path of ${schedule.raw.title}: ${critical.length} operations`);
  }
  const entering = view.on.has("transfers") ? inWindow(panel, view) : rows;
  const drawnArrows = arrows(panel, entering, theme.ink);
  if (drawnArrows) traces.push(drawnArrows);
  else messages.push("too many transfers to be read: zoom in");
  if (view.chosen.schedule === index && view.chosen.row !== FREE) {
    traces.push(framed(panel, view.chosen.row, style.bar, theme.ink));
  }
  return traces;
}

/** @param {Panel} panel @param {View} view */
function inWindow({ schedule, low, high }, view) {
  return schedule.ops.within(view.from * schedule.unit, view.to * schedule.unit, low, high);
}

/** Heading of a chart, and of the notes to the right of its rows.
 * @param {Panel} panel @param {Frame} frame
 * @returns {Trace[]} */
function notesOf(panel, frame) {
  const { schedule: { raw }, schedule, kind } = panel;
  const room = Math.floor(span(frame) / LETTER);
  const heading = kind === "gantt"
    ? headed(raw.title, raw.note, room, !frame.side)
    : schedule.beside(kind)?.raw.heading ??
      `memory of every device  (largest peak ${schedule.amount(Math.max(...raw.peak))})`;
  const notes = [note(panel, heading, { x: 0, align: "left", font: { size: 12 } })];
  if (!frame.side) return notes;
  const x = 1 - frame.side / (frame.width - frame.left);
  const peaks = raw.memoryName ? `peak (${raw.memoryName})` : "peak";
  const shares = kind === "gantt" ? "time by use, idle share" : "busy share";
  const beside = kind === "memory" ? peaks : shares;
  return [...notes, note(panel, beside, { x })];
}

/** Title and note in as many letters as there is room for, in one line or two.
 * @param {string} title @param {string} said @param {number} letters @param {boolean} two */
function headed(title, said, letters, two) {
  const cut = (/** @type {string} */ text, /** @type {number} */ most) =>
    text.length > most ? `${text.slice(0, Math.max(0, most - 1))}…` : text;
  // Isolated, a name written from right to left leaves the figures after it in their place.
  const turns = /[^\0-\x7f]/.test(title);
  const name = turns ? `\u2068${cut(title, letters - 2)}\u2069` : cut(title, letters);
  if (two) return `<b>${plain(name)}</b><br>${plain(cut(said, letters))}`;
  return `<b>${plain(name)}</b>  ${plain(cut(said, letters - name.length - 2))}`;
}

/** @param {Raw} raw @param {number} device */
function peak(raw, device) {
  const held = number(raw.peak[device] / raw.memoryUnit);
  return raw.limits ? `${held} of ${number(raw.limits[device] / raw.memoryUnit)}` : held;
}

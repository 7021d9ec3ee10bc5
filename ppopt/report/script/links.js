// Operations of other resources than devices: transfers of links, collectives, moves to the host.

import { FREE } from "./data.js";
import { gantt } from "./gantt.js";
import { measured, number, percent } from "./words.js";

/** @typedef {import("./data.js").Schedule} Schedule */
/** @typedef {import("./types.d.ts").Style} Style */
/** @typedef {import("./types.d.ts").Trace} Trace */
/** @typedef {import("./types.d.ts").View} View */
/** @typedef {import("./layout.js").Panel} Panel */

/** Transfers in the colour of the kind that hands them on, with their microbatches; or collectives.
 * @param {Panel} panel @param {Style} style @param {View} view @param {number} pixel
 * @returns {Trace[]} */
export function links(panel, style, view, pixel) {
  const carried = panel.schedule.besides(panel.kind);
  if (!carried) return [];
  const rows = view.microbatch === FREE ? [] : carried.rowsOf(view.microbatch);
  const lit = rows.length ? new Set(rows) : null;
  return gantt({ ...panel, schedule: carried }, style, view, pixel, lit);
}

/** Ticks in which a link or a queue is busy. @param {Schedule} carried @param {number} link */
export function busy({ ops }, link) {
  let ticks = 0;
  for (let row = ops.bounds[link]; row < ops.bounds[link + 1]; row++) {
    ticks += ops.end[row] - ops.start[row];
  }
  return ticks;
}

/** Lines about a link or a collective queue.
 * @param {Schedule} schedule @param {string} kind of its chart @param {number} link */
export function aboutResource(schedule, kind, link) {
  const carried = schedule.besides(kind);
  if (!carried) return [];
  const { raw, unit, ops } = carried;
  const ticks = busy(carried, link);
  const title = kind === "links" ? schedule.raw.links?.titles[link] : undefined;
  const count = ops.bounds[link + 1] - ops.bounds[link];
  return [
    title ?? `${schedule.raw.collectives?.words} of device ${link}`,
    `${number(count)} ${title ? "transfers" : "operations"}, one at a time`,
    `busy ${measured(ticks / unit, raw.timeName)} (${percent(ticks / raw.last)})`,
  ];
}

/** Lines about an operation of a link or queue; the first is its name in files.
 * @param {Schedule} schedule @param {Style} style @param {string} kind of its chart
 * @param {number} row */
export function aboutBesides(schedule, style, kind, row) {
  return kind === "links"
    ? aboutTransfer(schedule, style, row)
    : aboutCollective(/** @type {Schedule} */ (schedule.collectives), style, row);
}

/** @param {Schedule} queued @param {Style} style @param {number} row */
function aboutCollective(queued, style, row) {
  const { ops, raw, unit } = queued;
  const time = (/** @type {number} */ ticks) => measured(ticks / unit, raw.timeName);
  const [kind, stage] = [ops.kind[row], ops.stage[row]];
  const microbatch = ops.microbatch[row] === FREE ? "" : `microbatch ${ops.microbatch[row]}`;
  const part = raw.parts[ops.part[row]];
  const place = [`stage ${stage}`, microbatch, part, `device ${ops.device[row]}`];
  const lines = [
    `${queued.opName(row, style.kinds)}  ${style.kinds[kind].words}`,
    place.filter(Boolean).join(" · "),
    `start ${time(ops.start[row])} · end ${time(ops.end[row])} · ` +
    `duration ${time(ops.end[row] - ops.start[row])}`,
  ];
  const held = ops.takes[row] - ops.gives[row];
  const amount = measured(Math.abs(held) / raw.memoryUnit, raw.memoryName);
  return held ? [...lines, `${held > 0 ? "takes" : "gives back"} memory ${amount}`] : lines;
}

/** Lines about a transfer; the first is its name in files.
 * @param {Schedule} schedule @param {Style} style @param {number} row of its transfers */
function aboutTransfer(schedule, style, row) {
  const { ops, raw, unit } = /** @type {Schedule} */ (schedule.links);
  const forward = style.kinds[ops.kind[row]].name === "F";
  const time = (/** @type {number} */ ticks) => measured(ticks / unit, raw.timeName);
  const [stage, microbatch] = [ops.stage[row], ops.microbatch[row]];
  const slice = ops.slice[row];
  const sender = maker(schedule, style, { stage, microbatch, slice }, forward);
  const other = stage + (forward ? 1 : -1);
  const user = maker(schedule, style, { stage: other, microbatch, slice }, forward);
  const { device, start, end } = schedule.ops;
  const name = (/** @type {number} */ at) => schedule.opName(at, style.kinds);
  return [
    `${stage}SEND_${forward ? "F" : "B"}${microbatch}${slice ? `s${slice}` : ""}` +
    `  ${forward ? "activation" : "gradient"}`,
    `microbatch ${microbatch} · device ${device[sender]} to device ${device[user]}`,
    `start ${time(ops.start[row])} · end ${time(ops.end[row])} · ` +
    `duration ${time(ops.end[row] - ops.start[row])}`,
    `from ${name(sender)}, which ends at ${time(end[sender])}`,
    `for ${name(user)}, which starts at ${time(start[user])}`,
  ];
}

/** Row of the operation of a stage that makes an activation, or a gradient.
 * @param {Schedule} schedule @param {Style} style
 * @param {{stage: number, microbatch: number, slice: number}} place @param {boolean} forward */
function maker({ ops }, style, { stage, microbatch, slice }, forward) {
  const makes = forward ? ["F"] : ["B", "BW"];
  return ops.stage.findIndex((value, at) =>
    value === stage && ops.microbatch[at] === microbatch && ops.slice[at] === slice &&
    makes.includes(style.kinds[ops.kind[at]].name)
  );
}

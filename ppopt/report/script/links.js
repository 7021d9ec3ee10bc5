// Operations of other resources than devices: transfers of links, collectives, moves to the host.

import { FREE, number } from "./data.js";
import { gantt } from "./gantt.js";
import { percent } from "./words.js";

/** Transfers in the colour of the kind that hands them on, with their microbatches; or collectives.
 * @param {Panel} panel @param {Scene} scene @returns {Trace[]} */
export function links(panel, scene) {
  const { microbatch } = scene.view;
  const carried = panel.schedule.beside(panel.kind)?.schedule;
  if (!carried) return [];
  const rows = microbatch === FREE ? [] : carried.rowsOf(microbatch);
  return gantt({ ...panel, schedule: carried }, scene, rows.length ? new Set(rows) : null);
}

/** Ticks in which a link or a queue is busy. @param {Schedule} carried @param {number} link */
export function busy({ ops }, link) {
  let ticks = 0;
  for (let row = ops.bounds[link]; row < ops.bounds[link + 1]; row++) {
    ticks += ops.end[row] - ops.start[row];
  }
  return ticks;
}

/** Lines about a link or a queue.
 * @param {Beside} chart @param {number} line */
export function aboutResource({ schedule, raw: { titles, counted } }, line) {
  const { raw, ops } = schedule;
  const ticks = busy(schedule, line);
  return [
    titles[line],
    `${number(ops.bounds[line + 1] - ops.bounds[line])} ${counted}, one at a time`,
    `busy ${schedule.time(ticks)} (${percent(ticks / raw.last)})`,
  ];
}

/** Lines about an operation of a link or queue; the first is its name in files.
 * @param {Schedule} devices the schedule @param {Beside} chart @param {Style} style
 * @param {number} row */
export function aboutBeside(devices, { schedule, source, target, made, used }, style, row) {
  const { ops, raw } = schedule;
  const microbatch = ops.microbatch[row] === FREE ? "" : `microbatch ${ops.microbatch[row]}`;
  const there = target[row] === source[row] ? "" : ` to device ${target[row]}`;
  const place = [`stage ${ops.stage[row]}`, microbatch, raw.parts[ops.part[row]]];
  const lines = [
    `${schedule.opName(row, style.kinds)}  ${style.kinds[ops.kind[row]].words}`,
    [...place, `device ${source[row]}${there}`].filter(Boolean).join(" · "),
    schedule.times(ops, row),
  ];
  const held = ops.takes[row] - ops.gives[row];
  const amount = schedule.amount(Math.abs(held));
  if (held) lines.push(`${held > 0 ? "takes" : "gives back"} memory ${amount}`);
  const name = (/** @type {number} */ at) => devices.opName(at, style.kinds);
  const [from, to] = [made[row], used[row]];
  const { start, end } = devices.ops;
  if (from !== FREE) lines.push(`from ${name(from)}, which ends at ${schedule.time(end[from])}`);
  if (to !== FREE) lines.push(`for ${name(to)}, which starts at ${schedule.time(start[to])}`);
  return lines;
}

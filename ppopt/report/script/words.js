// Texts: the hover text of what is under the pointer, and numbers in words.

import { FREE, number } from "./data.js";

/** @param {number} share */
export function percent(share) {
  return `${Number((100 * share).toFixed(share < 0.1 ? 2 : 1))} %`;
}

/** Letters that plotly would read as markup, as text. @param {string} text */
export function plain(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

/** Lines about an operation; the first is its name.
 * @param {Schedule} schedule @param {Style} style @param {number} row */
export function aboutOperation(schedule, style, row) {
  const { ops, raw } = schedule;
  const kind = style.kinds[ops.kind[row]];
  const part = raw.parts[ops.part[row]];
  const slice = schedule.sliced ? `slice ${ops.slice[row]}` : "";
  const place = ops.microbatch[row] === FREE
    ? []
    : [`stage ${ops.stage[row]}`, part, `microbatch ${ops.microbatch[row]}`, slice];
  const [during, after] = schedule.memoryAround(row).map((ticks) => schedule.amount(ticks));
  const lines = [
    `${schedule.opName(row, style.kinds)}  ${kind.words}`,
    [...place.filter(Boolean), `device ${ops.device[row]}`].join(" · "),
    schedule.times(ops, row),
    `memory ${during} while it runs, ${after} after it`,
  ];
  if (ops.microbatch[row] in raw.microbatches) lines.push(raw.microbatches[ops.microbatch[row]]);
  if (ops.lane[row]) lines.push(`runs as one with ${partner(schedule, style, row)}`);
  for (const column of ops.needs) {
    const need = column[row];
    if (need === FREE) continue;
    const name = schedule.opName(need, style.kinds);
    const end = schedule.time(ops.end[need]);
    lines.push(`after ${name}, which ends at ${end} on device ${ops.device[need]}`);
  }
  return lines;
}

/** @param {Schedule} schedule @param {Style} style @param {number} row */
function partner(schedule, style, row) {
  return schedule.opName(row + (schedule.ops.lane[row] === 1 ? 1 : -1), style.kinds);
}

/** Lines about an idle interval; the first is its cause.
 * @param {Schedule} schedule @param {Style} style @param {number} row */
export function aboutGap(schedule, style, row) {
  const { gaps, ops } = schedule;
  const lines = [
    `idle  ${style.causes[gaps.cause[row]].words}`,
    `device ${gaps.device[row]} · ${schedule.times(gaps, row)}`,
  ];
  const next = gaps.following[row];
  const subject = gaps.subject[row];
  if (next !== FREE) lines.push(`next is ${schedule.opName(next, style.kinds)}`);
  if (subject === FREE) return lines;
  const name = schedule.opName(subject, style.kinds);
  if (style.causes[gaps.cause[row]].name === "memory") {
    lines.push(`${name} could start, but does not fit the memory limit`);
  } else {
    const end = schedule.time(ops.end[subject]);
    lines.push(`it waits for ${name}: ends at ${end} on device ${ops.device[subject]}`);
  }
  return lines;
}

/** Lines about the memory of a device at a tick.
 * @param {Schedule} schedule @param {number} device @param {number} tick */
export function aboutMemory(schedule, device, tick) {
  const { raw, unit } = schedule;
  const { edges, levels, total } = schedule.memoryAt(device, tick);
  const held = (/** @type {number} */ ticks) => schedule.amount(ticks);
  const limit = raw.limits ? ` of ${held(raw.limits[device])}` : "";
  const lines = [
    `memory ${held(total)}  on device ${device}`,
    `from ${number(edges[0] / unit)} to ${schedule.time(edges[1])}`,
    `peak ${held(raw.peak[device])}${limit} · static ${held(raw.static[device])}`,
  ];
  if (raw.parts.length > 1) {
    lines.push(raw.parts.map((part, index) => `${part} ${held(levels[index])}`).join(" · "));
  }
  if (raw.gathers) lines.push(`gathered weights ${held(levels[raw.parts.length])}`);
  return lines;
}

/** Lines about the time of a device by use.
 * @param {Schedule} schedule @param {Style} style @param {number} device */
export function aboutDevice(schedule, style, device) {
  const { raw } = schedule;
  const ticks = schedule.uses(style.kinds.length, style.causes.length)[device];
  const say = (/** @type {string} */ name, /** @type {number} */ tick) =>
    tick ? [`${name} ${schedule.time(tick)} (${percent(tick / raw.last)})`] : [];
  const idle = ticks.slice(style.kinds.length).reduce((sum, tick) => sum + tick, 0);
  return [
    `device ${device}`,
    `busy ${schedule.time(raw.last - idle)} (${percent(1 - idle / raw.last)}): ` +
    style.kinds.flatMap((kind, index) => say(kind.name, ticks[index])).join(", "),
    `idle ${schedule.time(idle)} (${percent(idle / raw.last)})`,
    ...style.causes.flatMap((cause, index) => say(cause.words, ticks[style.kinds.length + index])),
  ];
}

// The schedules of the page, unpacked from its data: columns of operations and of idle intervals.

/** @typedef {import("./types.d.ts").Packed} Packed */
/** @typedef {import("./types.d.ts").Raw} Raw */
/** @typedef {import("./types.d.ts").Column} Column */

export const FREE = -1;
const TYPES = { i1: Int8Array, i2: Int16Array, i4: Int32Array, f8: Float64Array };

/** Unpack a column: whole numbers, little-endian, in base64.
 * @param {Packed} packed
 * @returns {Column} */
export function unpack(packed) {
  const text = atob(packed.base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return new TYPES[packed.type](bytes.buffer);
}

/** First place in `column`, between low and high, whose value is above `value`.
 * @param {Column | number[]} column @param {number} value @param {number} low @param {number} high */
export function firstAbove(column, value, low, high) {
  while (low < high) {
    const middle = (low + high) >> 1;
    if (column[middle] > value) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** Rows sorted by device, then start, each with an end; ticks. */
export class Intervals {
  /** @param {Record<string, Packed>} packed @param {number} devices */
  constructor(packed, devices) {
    this.device = unpack(packed.device);
    this.start = unpack(packed.start);
    this.end = unpack(packed.end);
    this.bounds = [0];
    for (let device = 0; device < devices; device++) {
      this.bounds.push(firstAbove(this.device, device, this.bounds[device], this.device.length));
    }
  }

  get length() {
    return this.device.length;
  }

  /** Row of a device that covers a tick; FREE where there is none.
   * @param {number} device @param {number} tick */
  at(device, tick) {
    const row = firstAbove(this.start, tick, this.bounds[device], this.bounds[device + 1]) - 1;
    return row >= this.bounds[device] && this.end[row] > tick ? row : FREE;
  }

  /** Rows of the devices from low to below high that touch the ticks from..to, in order.
   * @param {number} from @param {number} to @param {number} low @param {number} high
   * @returns {number[]} */
  within(from, to, low, high) {
    const rows = [];
    const end = Math.min(high, this.bounds.length - 1);
    for (let device = Math.max(0, low); device < end; device++) {
      const first = this.bounds[device];
      const last = firstAbove(this.start, to, first, this.bounds[device + 1]);
      let row = firstAbove(this.end, from, first, last);
      while (row > first && this.end[row - 1] > from) row--;
      for (; row < last; row++) rows.push(row);
    }
    return rows;
  }
}

/** Operations of a schedule. */
class Ops extends Intervals {
  /** @param {Record<string, Packed>} packed @param {Packed[]} needs @param {number} devices */
  constructor(packed, needs, devices) {
    super(packed, devices);
    this.kind = unpack(packed.kind);
    this.stage = unpack(packed.stage);
    this.microbatch = unpack(packed.microbatch);
    /** Chunk and route: index of the shade. */
    this.part = unpack(packed.part);
    /** Part of the microbatch along the sequence, from 0. */
    this.slice = unpack(packed.slice);
    /** 0: the whole height of its row; 1, 2: upper, lower half of a pair run as one. */
    this.lane = unpack(packed.lane);
    /** Rows that it waits for, a column each for the first, the second; FREE where there is none. */
    this.needs = needs.map(unpack);
  }
}

/** Idle intervals of a schedule. */
class Gaps extends Intervals {
  /** @param {Record<string, Packed>} packed @param {number} devices */
  constructor(packed, devices) {
    super(packed, devices);
    this.cause = unpack(packed.cause);
    this.following = unpack(packed.following);
    this.subject = unpack(packed.subject);
  }
}

/** Memory of a device as steps: level of every part from a tick on, static memory apart.
 * @typedef {{time: number[], levels: number[][]}} Steps */

/** One schedule. Times in ticks; `unit` ticks are one unit of the user's. */
export class Schedule {
  /** @param {Raw} raw */
  constructor(raw) {
    this.raw = raw;
    this.unit = raw.unit;
    this.devices = raw.devices;
    this.ops = new Ops(raw.ops, raw.needs, raw.devices);
    this.gaps = new Gaps(raw.gaps, raw.devices);
    this.critical = unpack(raw.critical);
    this.batches = 0;
    for (const value of this.ops.microbatch) this.batches = Math.max(this.batches, value + 1);
    this.sliced = this.ops.slice.some((value) => value > 0);
    /** @type {Map<number, Steps>} */
    this.steps = new Map();
    const { during, after } = this.levels();
    this.during = during;
    this.after = after;
  }

  /** Memory of the device while every operation runs, and after it; static memory included. */
  levels() {
    const { kind, stage, device, lane } = this.ops;
    const during = new Float64Array(kind.length);
    const after = new Float64Array(kind.length);
    let held = 0;
    for (let row = 0; row < kind.length; row++) {
      if (row === this.ops.bounds[device[row]]) held = this.raw.static[device[row]];
      const change = this.raw.change[kind[row]][stage[row]];
      during[row] = held + Math.max(change, 0);
      after[row] = held += change;
      if (lane[row] === 2) {
        during[row] = during[row - 1] += Math.max(change, 0);
        after[row - 1] = held;
      }
    }
    return { during, after };
  }

  /** Memory of a device over time, by part: increases at starts, decreases at ends.
   * @param {number} device
   * @returns {Steps} */
  memory(device) {
    const known = this.steps.get(device);
    if (known) return known;
    const level = this.raw.parts.map(() => 0);
    const time = [0];
    const levels = level.map((value) => [value]);
    for (let row = this.ops.bounds[device]; row < this.ops.bounds[device + 1]; row++) {
      const change = this.raw.change[this.ops.kind[row]][this.ops.stage[row]];
      if (!change) continue;
      level[this.ops.part[row]] += change;
      time.push(change > 0 ? this.ops.start[row] : this.ops.end[row]);
      level.forEach((value, part) => levels[part].push(value));
    }
    const made = { time, levels };
    this.steps.set(device, made);
    return made;
  }

  /** Levels by part of a device at a tick, and the ticks from when to when they hold.
   * @param {number} device @param {number} tick */
  memoryAt(device, tick) {
    const { time, levels } = this.memory(device);
    const step = Math.max(0, firstAbove(time, tick, 0, time.length) - 1);
    return {
      edges: [time[step], time[step + 1] ?? this.raw.last],
      levels: levels.map((level) => level[step]),
    };
  }

  /** Ticks of every device by kind, then by cause: [device][kinds, causes].
   * @param {number} kinds @param {number} causes @returns {number[][]} */
  uses(kinds, causes) {
    const table = Array.from({ length: this.devices }, () => new Array(kinds + causes).fill(0));
    const { ops, gaps } = this;
    for (let row = 0; row < ops.length; row++) {
      const share = ops.lane[row] ? 0.5 : 1;
      table[ops.device[row]][ops.kind[row]] += share * (ops.end[row] - ops.start[row]);
    }
    for (let row = 0; row < gaps.length; row++) {
      table[gaps.device[row]][kinds + gaps.cause[row]] += gaps.end[row] - gaps.start[row];
    }
    return table;
  }

  /** Ticks for which a device stands idle. @param {number} device */
  idle(device) {
    let ticks = 0;
    for (let row = this.gaps.bounds[device]; row < this.gaps.bounds[device + 1]; row++) {
      ticks += this.gaps.end[row] - this.gaps.start[row];
    }
    return ticks;
  }

  /** Rows of one microbatch. @param {number} microbatch */
  way(microbatch) {
    const rows = [];
    for (let row = 0; row < this.ops.length; row++) {
      if (this.ops.microbatch[row] === microbatch) rows.push(row);
    }
    return rows;
  }

  /** Name of an operation as in files: stage, kind, microbatch. @param {number} row
   * @param {{name: string}[]} kinds */
  opName(row, kinds) {
    const { kind, stage, microbatch, slice } = this.ops;
    const part = slice[row] ? `s${slice[row]}` : "";
    return `${stage[row]}${kinds[kind[row]].name}${microbatch[row]}${part}`;
  }
}

// The schedules of the page, unpacked from its data: columns of operations and of idle intervals.

export const FREE = -1;

/** A number without trailing zeros, at most six decimals. @param {number} value */
export function number(value) {
  const text = Math.abs(value) < 1e-3 && value ? value.toPrecision(6) : value.toFixed(6);
  return String(Number(text));
}

/** A number with its unit; empty: unknown. @param {number} value @param {string} unit */
function measured(value, unit) {
  return unit ? `${number(value)} ${unit}` : number(value);
}

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
    /** 0: the whole height of its row; 1, 2: upper, lower half, of a pair run as one or of moves to
     * the host and back. */
    this.lane = unpack(packed.lane);
    /** Memory that it takes at its start and gives at its end, in ticks. */
    this.takes = unpack(packed.takes);
    this.gives = unpack(packed.gives);
    /** Rows of its predecessors: columns of the first, the second, ...; FREE: none. */
    this.needs = needs.map(unpack);
  }

  /** Row of a device that covers a tick in a half of its height; FREE where there is none.
   * @param {number} device @param {number} tick @param {number} half 1 or 2 */
  inHalf(device, tick, half) {
    let row = firstAbove(this.start, tick, this.bounds[device], this.bounds[device + 1]) - 1;
    for (; row >= this.bounds[device]; row--) {
      if (this.end[row] > tick && (!this.lane[row] || this.lane[row] === half)) return row;
    }
    return FREE;
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

/** A number in subscript digits. @param {number} value */
function lowered(value) {
  return [...String(value)].map((digit) => String.fromCharCode(0x2080 + Number(digit))).join("");
}

/** Memory of a device: the level of every part from a tick on, without static memory; and, for
 * every operation, the memory while it runs and after it, with static memory.
 * @typedef {{time: number[], levels: number[][], total: number[], during: number[], after: number[]}} Steps */

/** A chart of other resources than devices, as a schedule whose devices are its lines.
 * @param {Raw} raw @param {RawChart} chart
 * @returns {Raw} */
function apart(raw, { devices, rows, letters }) {
  const none = /** @type {Packed} */ ({ type: "i1", base64: "" });
  const gaps = { device: none, start: none, end: none, cause: none, following: none };
  return {
    ...raw,
    devices: devices.length,
    letters,
    ops: rows,
    needs: [],
    gaps: { ...gaps, subject: none },
    critical: none,
    charts: [],
  };
}

/** A chart of links, or of queues of devices, beside that of the devices. */
export class Beside {
  /** @param {Raw} raw @param {RawChart} chart */
  constructor(raw, chart) {
    this.raw = chart;
    /** Its operations, as a schedule whose devices are the lines of the chart. */
    this.schedule = new Schedule(apart(raw, chart));
    /** Device that an operation is of, or that sends. */
    this.source = unpack(chart.rows.source);
    /** Device that receives; of all but transfers, the device. */
    this.target = unpack(chart.rows.target);
    /** Row of the compute that it follows; FREE: none. */
    this.made = unpack(chart.rows.made);
    /** Row of the compute that follows it; FREE: none. */
    this.used = unpack(chart.rows.used);
  }
}

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
    /** Memory by device, computed on first use. @type {Map<number, Steps>} */
    this.steps = new Map();
    /** Charts of other resources than devices, from top to bottom. */
    this.charts = raw.charts.map((chart) => new Beside(raw, chart));
  }

  /** The chart of links or queues of this name; null: it is another one.
   * @param {string} name of a chart */
  beside(name) {
    return this.charts.find(({ raw }) => raw.name === name) ?? null;
  }

  /** Changes of the memory of a device by what it does not compute, by time; at one tick, what is
   * given back comes first. Gathered weights are the part behind all parts.
   * @param {number} device
   * @returns {{part: number, tick: number, amount: number}[]} */
  moves(device) {
    const changes = [];
    for (const { schedule: { ops }, source } of this.charts) {
      for (let row = 0; row < ops.length; row++) {
        if (source[row] !== device) continue;
        const part = ops.microbatch[row] === FREE ? this.raw.parts.length : ops.part[row];
        changes.push({ part, tick: ops.start[row], amount: ops.takes[row] });
        changes.push({ part, tick: ops.end[row], amount: -ops.gives[row] });
      }
    }
    return changes.filter(({ amount }) => amount).sort((one, other) =>
      one.tick - other.tick || one.amount - other.amount
    );
  }

  /** Memory of a device over time: every operation takes an amount at its start and gives an
   * amount at its end; the two of a pair take and give together. Behind the levels of the parts
   * stands that of gathered weights, where these take memory.
   * @param {number} device
   * @returns {Steps} */
  memory(device) {
    const known = this.steps.get(device);
    if (known) return known;
    const { ops, raw } = this;
    const level = raw.parts.map(() => 0);
    if (raw.gathers) level.push(0);
    const levels = level.map((value) => [value]);
    let held = raw.static[device];
    /** @type {Steps} */
    const made = { time: [0], levels, total: [held], during: [], after: [] };
    /** @param {number} part @param {number} tick @param {number} amount */
    const change = (part, tick, amount) => {
      if (!amount) return;
      held += amount;
      level[part] += amount;
      made.time.push(tick);
      made.total.push(held);
      level.forEach((value, part) => levels[part].push(value));
    };
    const moves = this.moves(device);
    let next = 0;
    /** Changes by other operations before a tick, and at it: all before what is taken, those that
     * give before what is given. @param {number} tick @param {boolean} taking */
    const upTo = (tick, taking) => {
      for (; next < moves.length; next++) {
        const one = moves[next];
        if (one.tick > tick || (one.tick === tick && !taking && one.amount > 0)) break;
        change(one.part, one.tick, one.amount);
      }
    };
    const end = ops.bounds[device + 1];
    for (let first = ops.bounds[device]; first < end;) {
      const rows = ops.lane[first] ? [first, first + 1] : [first];
      upTo(ops.start[first], true);
      for (const row of rows) change(ops.part[row], ops.start[row], ops.takes[row]);
      made.during.push(...rows.map(() => held));
      upTo(ops.end[first], false);
      for (const row of rows) change(ops.part[row], ops.end[row], -ops.gives[row]);
      made.after.push(...rows.map(() => held));
      first += rows.length;
    }
    upTo(Infinity, true);
    this.steps.set(device, made);
    return made;
  }

  /** Memory of its device while an operation runs, and after it. @param {number} row */
  memoryAround(row) {
    const device = this.ops.device[row];
    const { during, after } = this.memory(device);
    const place = row - this.ops.bounds[device];
    return [during[place], after[place]];
  }

  /** Levels by part of a device at a tick, and the ticks between which they hold.
   * @param {number} device @param {number} tick */
  memoryAt(device, tick) {
    const { time, levels, total } = this.memory(device);
    const step = Math.max(0, firstAbove(time, tick, 0, time.length) - 1);
    return {
      edges: [time[step], time[step + 1] ?? this.raw.last],
      levels: levels.map((level) => level[step]),
      total: total[step],
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

  /** Idle ticks of a device. @param {number} device */
  idle(device) {
    let ticks = 0;
    for (let row = this.gaps.bounds[device]; row < this.gaps.bounds[device + 1]; row++) {
      ticks += this.gaps.end[row] - this.gaps.start[row];
    }
    return ticks;
  }

  /** Rows of one microbatch. @param {number} microbatch */
  rowsOf(microbatch) {
    const rows = [];
    for (let row = 0; row < this.ops.length; row++) {
      if (this.ops.microbatch[row] === microbatch) rows.push(row);
    }
    return rows;
  }

  /** Number of an operation's microbatch, with its slice; else that of its stage.
   * @param {number} row @param {Kind[]} kinds */
  label(row, kinds) {
    const { kind, microbatch, slice, stage } = this.ops;
    if (microbatch[row] !== FREE) {
      return microbatch[row] + (this.sliced ? lowered(slice[row]) : "");
    }
    return kinds[kind[row]].staged ? String(stage[row]) : "";
  }

  /** A time with its unit. @param {number} ticks */
  time(ticks) {
    return measured(ticks / this.unit, this.raw.timeName);
  }

  /** An amount of memory with its unit. @param {number} ticks */
  amount(ticks) {
    return measured(ticks / this.raw.memoryUnit, this.raw.memoryName);
  }

  /** Start, end and duration of an operation or idle interval.
   * @param {Intervals} intervals @param {number} row */
  times({ start, end }, row) {
    const duration = this.time(end[row] - start[row]);
    return `start ${this.time(start[row])} · end ${this.time(end[row])} · duration ${duration}`;
  }

  /** Name of an operation as in files: stage, kind, microbatch. @param {number} row
   * @param {{name: string}[]} kinds */
  opName(row, kinds) {
    const { kind, stage, microbatch, slice } = this.ops;
    const part = slice[row] ? `s${slice[row]}` : "";
    const number = microbatch[row] === FREE ? "" : microbatch[row];
    return `${stage[row]}${kinds[kind[row]].name}${number}${part}`;
  }
}

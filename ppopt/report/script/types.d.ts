// Types of what the script uses: the data of the page, written by ppopt, and plotly.

export type Column = Int8Array | Int16Array | Int32Array | Float64Array;

export interface Packed {
  type: "i1" | "i2" | "i4" | "f8";
  base64: string;
}

/** One schedule; times and memory in ticks. */
export interface Raw {
  title: string;
  note: string;
  devices: number;
  unit: number;
  memoryUnit: number;
  /** Units of time and memory; empty: unknown. */
  timeName: string;
  memoryName: string;
  last: number;
  ops: Record<string, Packed>;
  needs: Packed[];
  gaps: Record<string, Packed>;
  critical: Packed;
  parts: string[];
  /** [kind][part]. */
  colours: string[][];
  inks: string[][];
  /** By part. */
  memory: string[];
  /** Memory that an operation takes at its start and gives at its end, [kind][stage]. */
  takes: number[][];
  gives: number[][];
  static: number[];
  limits: number[] | null;
  peak: number[];
}

export interface Kind {
  name: string;
  words: string;
  colour: string;
}

export interface Cause {
  name: string;
  words: string;
  colour: string;
  pattern: string;
}

export interface Style {
  kinds: Kind[];
  causes: Cause[];
  static: string;
  limit: string;
  bar: number;
  /** Colour of a spot that several kinds share: no kind fills the share `most` of it. */
  several: string;
  most: number;
}

export interface Data {
  style: Style;
  /** Whether one schedule is shown at a time. */
  single: boolean;
  /** How many of them the page opens with, where it shows several. */
  few: number;
  /** The one that it opens with, where it shows one at a time. */
  first: number;
  schedules: Raw[];
}

/** Colours that the theme of the page decides. */
export interface Theme {
  paper: string;
  ink: string;
  quiet: string;
  grid: string;
}

/** What of the schedules is shown. Times in the user's unit. */
export interface View {
  from: number;
  to: number;
  /** The devices that are shown: from low to below high. */
  low: number;
  high: number;
  /** The only schedule that is shown; -1: the first few, or all. */
  only: number;
  /** Names of kinds and causes that are hidden. */
  off: Set<string>;
  /** Layers that are shown: critical, transfers, memory; all: the charts of all schedules. */
  on: Set<string>;
  /** Highlighted microbatch; -1: none. */
  microbatch: number;
  /** Schedule and row of the chosen operation; row -1: none. */
  chosen: { schedule: number; row: number };
  /** What a drag over the picture does. */
  drag: "zoom" | "pan";
  /** Empty: the theme of the system. */
  theme: "" | "light" | "dark";
}

export type Trace = Record<string, unknown>;

/** The curve of a frontier, in `#curve-data`. */
export interface Curve {
  traces: Trace[];
  layout: {
    height: number;
    margin: { l: number; r: number; t: number; b: number };
    font: Record<string, unknown>;
    xaxis: Record<string, unknown>;
    yaxis: Record<string, unknown>;
  };
  /** Ranges of the axes that the chart opens with, and those of everything. */
  x: number[];
  y: number[];
  whole: { x: number[]; y: number[] };
  /** Points of the frontier; `section` counts the schedules of the page from 1, null: not there. */
  points: { x: number; y: number; section: number | null }[];
  /** Corners of the line through them. */
  steps: { x: number; y: number }[];
  /** Hand strategies; those at one spot share the text of the first. */
  names: { x: number; y: number; text: string }[];
}

interface Plotting {
  react(
    div: HTMLElement,
    data: Trace[],
    layout: Record<string, unknown>,
    config: Record<string, unknown>,
  ): Promise<HTMLElement>;
  downloadImage(figure: unknown, options: Record<string, unknown>): Promise<string>;
}

declare global {
  var Plotly: Plotting;
  /** The page, for tests and the browser's console. */
  var ppopt: import("./page.js").Page;
  interface HTMLElement {
    on?(event: string, react: (data: Record<string, number>) => unknown): void;
  }
}

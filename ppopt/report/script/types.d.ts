// Types of what the script uses, known in all modules: the data of the page, written by ppopt, the
// classes of the script, and plotly.

import type { Beside as B, Schedule as S, Steps as T } from "./data.js";
import type { Frame as F, Panel as P } from "./layout.js";
import type { Page as G } from "./page.js";

declare global {
  type Beside = B;
  type Frame = F;
  type Page = G;
  type Panel = P;
  type Schedule = S;
  type Steps = T;

  type Column = Int8Array | Int16Array | Int32Array | Float64Array;

  interface Packed {
    type: "i1" | "i2" | "i4" | "f8";
    base64: string;
  }

  /** One schedule; times and memory in ticks. */
  interface Raw {
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
    static: number[];
    limits: number[] | null;
    peak: number[];
    /** Digits of the longest number of an operation. */
    letters: number;
    /** Charts of other resources than devices, from top to bottom. */
    charts: RawChart[];
    /** What is said of every microbatch; empty: they are alike. */
    microbatches: string[];
    /** Whether gathered weights take memory. */
    gathers: boolean;
  }

  /** A chart of links, or of queues of devices. */
  interface RawChart {
    name: string;
    heading: string;
    /** Title of the axis of its lines. */
    axis: string;
    /** Word for its operations. */
    counted: string;
    /** Names of its lines; null: each is named by its device. */
    labels: string[] | null;
    titles: string[];
    /** Devices of every line. */
    devices: number[][];
    letters: number;
    rows: Record<string, Packed>;
  }

  interface Kind {
    name: string;
    words: string;
    colour: string;
    /** Name of the kind that hides it, too. */
    hidden: string;
    /** Whether a step has one per stage. */
    staged: boolean;
  }

  interface Cause {
    name: string;
    words: string;
    colour: string;
    pattern: string;
  }

  interface Style {
    kinds: Kind[];
    causes: Cause[];
    static: string;
    /** Memory of gathered weights. */
    gathered: string;
    limit: string;
    bar: number;
    /** Colour of a spot that several kinds share: no kind fills the share `most` of it. */
    several: string;
    most: number;
  }

  interface Data {
    style: Style;
    /** Whether one schedule is shown at a time. */
    single: boolean;
    /** How many of them the page opens with, where it shows several. */
    few: number;
    /** The one that it opens with, where it shows one at a time. */
    first: number;
    schedules: Raw[];
  }

  /** The answer of the app's server to an edit: parts of the page as HTML, and its data as JSON. */
  interface Parts {
    above: string;
    kinds: string;
    causes: string;
    layers: string;
    below: string;
    data: string;
    command: string;
    /** Strategies that are left out, each with the reason. */
    skipped: Record<string, string>;
    /** Names of the schedules that are drawn. */
    drawn: string[];
  }

  /** Colours that the theme of the page decides. */
  interface Theme {
    paper: string;
    ink: string;
    quiet: string;
    grid: string;
  }

  /** What of the schedules is shown. Times in the user's unit. */
  interface View {
    from: number;
    to: number;
    /** The devices that are shown: from low to below high. */
    low: number;
    high: number;
    /** The only schedule that is shown; -1: the first few, or all. */
    only: number;
    /** Names of kinds and causes that are hidden. */
    off: Set<string>;
    /** Layers that are shown: critical, transfers, links, collectives, memory; all: the charts of all schedules. */
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

  type Trace = Record<string, unknown>;

  /** What all charts of a picture share. */
  interface Scene {
    style: Style;
    view: View;
    theme: Theme;
    /** End of the time axis, and width of a pixel, in the user's unit. */
    last: number;
    pixel: number;
    /** What the reader is told. */
    messages: string[];
  }

  /** The curve of a frontier, in `#curve-data`. */
  interface Curve {
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
    /** Hand strategies; those at one spot share the text of the first. */
    names: { x: number; y: number; text: string }[];
  }

  /** The rows of a study, in `#study-data`. */
  interface Study {
    /** Settings that vary, each with its values in words. */
    settings: { name: string; values: string[] }[];
    figures: { name: string; unit: string; share: boolean; more: boolean }[];
    rows: StudyRow[];
    /** Numbers of the figures that the front has: memory, and time. */
    memory: number;
    time: number;
    colours: { front: string; row: string; edge: string };
    font: Record<string, unknown>;
    hover: Record<string, unknown>;
  }

  /** One combination of settings. */
  interface StudyRow {
    /** Number of the value of every setting; -1: not given. */
    settings: number[];
    /** Of every figure; null: not known. */
    figures: (number | null)[];
    status: string;
    proved: boolean;
    /** Which schedule of the page it has, from 1; null: none of them. */
    section: number | null;
  }

  /** What of a study is shown. */
  interface StudyChoice {
    /** Settings along the heat map; y may be -1: there is one row. */
    x: number;
    y: number;
    /** The figure of the heat map. */
    figure: number;
    /** Per setting, the number of the only value that is shown; -1: all. */
    only: number[];
    /** Column that the table is sorted by: settings, figures, status; -1: the order of the study. */
    sort: number;
    down: boolean;
    /** Rows that the table shows at most. */
    most: number;
  }

  interface Clicked {
    points?: { x: string; y: string; customdata: number | null }[];
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

  var Plotly: Plotting;
  /** The page, for tests and the browser's console. */
  var ppopt: Page;
  /** The form of the app, for tests. */
  var ppoptApp: { asked: number; drawn: number };
  interface HTMLElement {
    on?(event: string, react: (data: Record<string, number> & Clicked) => unknown): void;
  }
}

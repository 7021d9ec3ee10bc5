// The page: holds the view and draws it; pointer, keyboard and address change it.

import { link, linked, sectionOf } from "./address.js";
import { connect } from "./controls.js";
import { FREE, Schedule } from "./data.js";
import { FURTHER, part } from "./dom.js";
import { frontier } from "./frontier.js";
import { frameOf } from "./layout.js";
import { picture } from "./picture.js";
import { preview } from "./preview.js";

const CONFIG = {
  displayModeBar: false,
  doubleClick: false,
  doubleClickDelay: 500,
  showSendToCloud: false,
};
/** Width of the picture on paper: A4 on its side, less margins, in pixels. */
const PAPER = 1000;
const DARK = matchMedia("(prefers-color-scheme: dark)");

/** The parts of the page and what is shown of it. */
export class Page {
  constructor() {
    /** @type {Data} */
    this.data = JSON.parse(part("data").textContent ?? "");
    this.style = this.data.style;
    this.schedules = this.data.schedules.map((raw) => new Schedule(raw));
    this.last = Math.max(...this.schedules.map(({ raw, unit }) => raw.last / unit));
    this.plot = part("plot");
    this.devices = Math.max(...this.schedules.map(({ devices }) => devices));
    this.view = linked(location.hash, this.whole(), this.schedules);
    this.printing = false;
    this.applyTheme();
    this.frame = this.layOut();
    /** Whether a picture is due: the first one, until plotly is unpacked. */
    this.waiting = true;
    /** How many pictures plotly was asked for, and has drawn. */
    this.asked = 0;
    this.drawn = 0;
    /** @type {{traces: Trace[], layout: Trace}} */
    this.figure = { traces: [], layout: {} };
    /** Time of the first preview, in ms. */
    this.painted = 0;
  }

  /** Show other schedules, all of their time; layers, what is hidden and theme stay.
   * @param {Data} data */
  replace(data) {
    const { on, off, drag, theme } = this.view;
    const alike = data.single === this.data.single;
    this.data = data;
    this.style = data.style;
    this.schedules = data.schedules.map((raw) => new Schedule(raw));
    this.last = Math.max(...this.schedules.map(({ raw, unit }) => raw.last / unit));
    this.devices = Math.max(...this.schedules.map(({ devices }) => devices));
    this.view = { ...this.whole(), off, drag, theme, ...(alike ? { on } : {}) };
    this.redraw();
  }

  /** The view that the page opens with. @returns {View} */
  whole() {
    return {
      from: 0,
      to: this.last,
      low: 0,
      high: this.devices,
      only: this.data.single ? this.data.first : FREE,
      off: new Set(),
      on: new Set(this.data.single ? this.layers() : []),
      microbatch: FREE,
      chosen: { schedule: 0, row: FREE },
      drag: "zoom",
      theme: "",
    };
  }

  /** The charts that a page of one schedule at a time opens with, beside the Gantt chart. */
  layers() {
    const names = this.schedules.flatMap(({ charts }) =>
      charts.filter(({ raw }) => !raw.labels).map(({ raw }) => raw.name)
    );
    return [...new Set(names), "memory"];
  }

  /** The schedules that the view shows, each with its number. */
  shown() {
    const { only, on } = this.view;
    const end = on.has("all") ? this.schedules.length : this.data.few;
    const all = this.schedules.map((schedule, index) => ({ schedule, index }));
    return all.filter(({ index }) => only === FREE ? index < end : only === index);
  }

  layOut() {
    const width = this.printing ? PAPER : Math.max(320, Math.floor(this.plot.clientWidth));
    return frameOf(this.shown(), this.view, width);
  }

  /** Show another view, with the next frame. @param {Partial<View>} change */
  show(change) {
    const view = { ...this.view, ...change };
    const length = Math.min(this.last, Math.max(this.last * 1e-6, view.to - view.from));
    const from = Math.min(Math.max(0, view.from), this.last - length);
    const rows = Math.min(this.devices, Math.max(1, Math.round(view.high - view.low)));
    const low = Math.min(Math.max(0, Math.round(view.low)), this.devices - rows);
    this.view = { ...view, from, to: from + length, low, high: low + rows };
    history.replaceState(null, "", link(this.view, this.whole()));
    this.redraw();
  }

  redraw() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.figure = this.draw();
    });
  }

  draw() {
    this.applyTheme();
    this.frame = this.layOut();
    const { traces, layout, messages } = picture(
      this.frame,
      this.style,
      this.view,
      this.last,
      this.theme(),
    );
    part("message").textContent = messages.join(" · ");
    this.asked += 1;
    Plotly.react(this.plot, traces, layout, CONFIG).then(() => {
      this.drawn += 1;
    });
    return { traces, layout };
  }

  /** Apply the theme of the view or, without one, of the system; prints are light. */
  applyTheme() {
    const system = DARK.matches ? "dark" : "light";
    document.documentElement.dataset.theme = this.printing ? "light" : this.view.theme || system;
  }

  /** @returns {Theme} */
  theme() {
    const found = getComputedStyle(document.documentElement);
    const colour = (/** @type {string} */ name) => found.getPropertyValue(`--${name}`).trim();
    return {
      paper: colour("surface"),
      ink: colour("ink"),
      quiet: colour("quiet"),
      grid: colour("grid"),
    };
  }
}

/** Draw the page and connect its controls. @param {Page} page */
function begin(page) {
  page.figure = page.draw();
  page.waiting = false;
  connect(page);
  frontier(page);
  for (const further of FURTHER) further(page);
  if (sectionOf(location.hash) === FREE) return;
  const section = part(page.data.single ? "tools" : location.hash.slice(1));
  if (section instanceof HTMLDetailsElement) section.open = true;
  section?.scrollIntoView();
}

/** Show a preview at once, and begin when plotly, which takes long to load, is loaded.
 * @param {Page} page */
function open(page) {
  const remove = preview(page);
  requestAnimationFrame(() =>
    setTimeout(async () => {
      page.painted = performance.now();
      if (!globalThis.DecompressionStream) {
        part("message").textContent = "the chart needs a browser of 2023 or later";
        return;
      }
      const script = document.createElement("script");
      script.textContent = await unzipped(part("plotly").textContent ?? "");
      document.head.append(script);
      begin(page);
      remove();
    })
  );
}

/** The text of a gzip file in base64. @param {string} base64 */
function unzipped(base64) {
  const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

globalThis.ppopt = new Page();
open(globalThis.ppopt);

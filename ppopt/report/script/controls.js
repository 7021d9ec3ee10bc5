// The controls of the view: pointer, keyboard, buttons, search and the time strip.

import { linked, sectionOf } from "./address.js";
import { FREE } from "./data.js";
import { clicked, part } from "./dom.js";
import { span } from "./layout.js";
import { exported } from "./export.js";
import { aboutBeside, aboutResource } from "./links.js";
import { slider } from "./slider.js";
import { aboutDevice, aboutGap, aboutMemory, aboutOperation } from "./words.js";

/** What lies under the pointer; `margin`: it is to the right of the chart.
 * @typedef {{panel: Panel, device: number, tick: number, margin: boolean, row: number,
 *   gap: number}} Spot */

/** Connect pointer, buttons, search, keyboard and address. @param {Page} page */
export function connect(page) {
  pointer(page);
  plotly(page);
  const press = buttons(page);
  search(page);
  keyboard(page, press);
  const strip = slider(page);
  const draw = page.draw.bind(page);
  page.draw = () => {
    strip();
    updateButtons(page);
    return draw();
  };
  strip();
  updateButtons(page);
  new ResizeObserver(() => page.layOut().width !== page.frame.width && page.redraw()).observe(
    page.plot,
  );
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => page.redraw());
  addEventListener("beforeprint", () => {
    page.printing = true;
    page.figure = page.draw();
  });
  addEventListener("afterprint", () => {
    page.printing = false;
    page.redraw();
  });
  addEventListener("hashchange", () => followAddress(page));
}

/** Show the view or the schedule that a new address names.
 * @param {Page} page */
function followAddress(page) {
  const only = sectionOf(location.hash);
  const section = part(location.hash.slice(1));
  if (section instanceof HTMLDetailsElement) section.open = true;
  if (only === FREE) page.show(linked(location.hash, page.whole(), page.schedules));
  else if (page.data.single && page.schedules[only]) {
    page.show({ only, microbatch: FREE, chosen: { schedule: 0, row: FREE } });
    part("tools").scrollIntoView();
  }
}

/** @param {Page} page @param {MouseEvent} event @returns {Spot | null} */
function spotOf(page, event) {
  const { frame, view } = page;
  const box = page.plot.getBoundingClientRect();
  const x = event.clientX - box.left - frame.left;
  const y = event.clientY - box.top;
  const panel = frame.panels.find(({ top, height }) => y >= top && y < top + height);
  if (!panel || x < 0) return null;
  const within = panel.low + (y - panel.top) / panel.row;
  const device = Math.floor(within);
  const { schedule } = panel;
  const time = view.from + (x / span(frame)) * (view.to - view.from);
  const tick = time * schedule.unit;
  const margin = x > span(frame);
  if (!margin && tick >= schedule.raw.last) return null;
  const other = schedule.beside(panel.kind)?.schedule;
  if (other) {
    const row = other.ops.inHalf(device, tick, within - device < 0.5 ? 1 : 2);
    return { panel, device, tick, margin, row, gap: FREE };
  }
  let row = schedule.ops.at(device, tick);
  if (row !== FREE && schedule.ops.lane[row] && within - device < 0.5) row -= 1;
  const gap = schedule.gaps.at(device, tick);
  const { kinds, causes } = page.style;
  if (row !== FREE && view.off.has(kinds[schedule.ops.kind[row]].name)) row = FREE;
  const hidden = gap !== FREE && view.off.has(causes[schedule.gaps.cause[gap]].name);
  return { panel, device, tick, margin, row, gap: hidden ? FREE : gap };
}

/** @param {Page} page @param {Spot} spot @returns {string[]} */
function description(page, { panel, device, tick, margin, row, gap }) {
  const { schedule } = panel;
  const chart = schedule.beside(panel.kind);
  if (chart) {
    if (margin) return aboutResource(chart, device);
    return row === FREE ? [] : aboutBeside(schedule, chart, page.style, row);
  }
  if (margin) return aboutDevice(schedule, page.style, device);
  if (panel.kind === "memory") return aboutMemory(schedule, device, tick);
  if (row !== FREE) return aboutOperation(schedule, page.style, row);
  return gap === FREE ? [] : aboutGap(schedule, page.style, gap);
}

/** @param {Page} page */
function pointer(page) {
  const tip = part("tip");
  page.plot.addEventListener("pointermove", (event) => {
    const spot = event.buttons ? null : spotOf(page, event);
    showTip(tip, spot ? description(page, spot) : [], event);
  });
  page.plot.addEventListener("pointerleave", () => tip.hidden = true);
  page.plot.addEventListener("pointerdown", () => tip.hidden = true, true);
  clicked(page.plot, (event) => choose(page, spotOf(page, event)));
  page.plot.addEventListener("wheel", (event) => {
    const spot = event.ctrlKey || event.shiftKey ? spotOf(page, event) : null;
    if (!spot || spot.margin) return;
    event.preventDefault();
    const factor = Math.exp((event.deltaY || event.deltaX) / 300);
    if (event.shiftKey) zoomDevices(page, factor, spot.device);
    else zoom(page, factor, spot.tick / spot.panel.schedule.unit);
  }, { passive: false });
}

/** Highlight the microbatch of an operation; elsewhere, clear the highlight. @param {Page} page
 * @param {Spot | null} spot */
function choose(page, spot) {
  if (!spot || spot.margin || spot.panel.kind === "memory") return;
  const { panel: { schedule, index }, row } = spot;
  const chart = schedule.beside(spot.panel.kind);
  if (chart) {
    const microbatch = row === FREE ? FREE : chart.schedule.ops.microbatch[row];
    page.show({ microbatch, chosen: { schedule: 0, row: FREE } });
    return;
  }
  const same = page.view.chosen.row === row && page.view.chosen.schedule === index;
  if (row === FREE || same) page.show({ microbatch: FREE, chosen: { schedule: 0, row: FREE } });
  else page.show({ microbatch: schedule.ops.microbatch[row], chosen: { schedule: index, row } });
}

/** @param {HTMLElement} tip @param {string[]} lines @param {MouseEvent} event */
function showTip(tip, lines, event) {
  tip.hidden = lines.length === 0;
  tip.replaceChildren(...lines.map((line) => {
    const div = document.createElement("div");
    div.textContent = line;
    return div;
  }));
  const room = document.documentElement.clientWidth - tip.offsetWidth - 8;
  const low = event.clientY + 18 + tip.offsetHeight > innerHeight;
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, room))}px`;
  tip.style.top = `${low ? event.clientY - tip.offsetHeight - 12 : event.clientY + 18}px`;
}

/** Take over the ranges that a drag or double click of plotly sets. @param {Page} page */
function plotly(page) {
  page.plot.on?.("plotly_relayout", (event) => {
    const { from, to, low, high } = page.view;
    const [, axis] = Object.keys(event).join(" ").match(/\b(yaxis\d*)\.range/) ?? [];
    page.show({
      from: event["xaxis.range[0]"] ?? from,
      to: event["xaxis.range[1]"] ?? to,
      low: axis ? rowAt(page, event[`${axis}.range[1]`] + 0.5, Math.floor) : low,
      high: axis ? rowAt(page, event[`${axis}.range[0]`] + 0.5, Math.ceil) : high,
    });
  });
  page.plot.on?.("plotly_doubleclick", () => page.show(everything(page)));
}

/** An edge of a drag in whole rows, rounded outwards for a zoom and to the nearest for a pan.
 * @param {Page} page @param {number} edge @param {(edge: number) => number} outwards */
function rowAt(page, edge, outwards) {
  return page.view.drag === "pan" ? Math.round(edge) : outwards(edge);
}

/** All of the time and of the devices. @param {Page} page */
function everything(page) {
  const { from, to, low, high } = page.whole();
  return { from, to, low, high };
}

/** @param {Page} page @param {number} factor @param {number} [at] time that stays in place */
function zoom(page, factor, at) {
  const { from, to } = page.view;
  const centre = at ?? (from + to) / 2;
  page.show({ from: centre + (from - centre) * factor, to: centre + (to - centre) * factor });
}

/** Show fewer devices in taller rows, or more.
 * @param {Page} page @param {number} factor @param {number} [at] device that stays in place */
function zoomDevices(page, factor, at) {
  const { low, high } = page.view;
  const rows = Math.min(page.devices, Math.max(1, scaledRows(high - low, factor)));
  const centre = at === undefined ? (low + high) / 2 : at + 0.5;
  const first = Math.round(centre - rows * (centre - low) / (high - low));
  page.show({ low: first, high: first + rows });
}

/** A number of rows times a factor, changed by at least one.
 * @param {number} rows @param {number} factor */
function scaledRows(rows, factor) {
  return factor < 1
    ? Math.min(rows - 1, Math.round(rows * factor))
    : Math.max(rows + 1, Math.round(rows * factor));
}

/** @param {Page} page @param {number} share of the devices that are shown */
function panDevices(page, share) {
  const { low, high } = page.view;
  const step = Math.sign(share) * Math.max(1, Math.round(Math.abs(share) * (high - low)));
  page.show({ low: low + step, high: high + step });
}

/** @param {Page} page @param {number} share of the window */
function pan(page, share) {
  const step = share * (page.view.to - page.view.from);
  page.show({ from: page.view.from + step, to: page.view.to + step });
}

/** @param {Set<string>} names @param {string} name */
function toggled(names, name) {
  const changed = new Set(names);
  if (!changed.delete(name)) changed.add(name);
  return changed;
}

/** @param {Page} page @returns {(name: string) => void} what presses a button by its name */
function buttons(page) {
  /** @type {Record<string, () => void>} */
  const acts = {
    whole: () => page.show(everything(page)),
    in: () => zoom(page, 0.5),
    out: () => zoom(page, 2),
    left: () => pan(page, -0.25),
    right: () => pan(page, 0.25),
    taller: () => zoomDevices(page, 0.5),
    lower: () => zoomDevices(page, 2),
    up: () => panDevices(page, -0.25),
    down: () => panDevices(page, 0.25),
    drag: () => page.show({ drag: page.view.drag === "zoom" ? "pan" : "zoom" }),
    idle: () => {
      const names = page.style.causes.map((cause) => cause.name);
      const hidden = names.every((name) => page.view.off.has(name));
      const kinds = [...page.view.off].filter((name) => !names.includes(name));
      page.show({ off: new Set(hidden ? kinds : [...kinds, ...names]) });
    },
    clear: () => {
      const on = new Set(
        [...page.view.on].filter((name) => !["critical", "transfers"].includes(name)),
      );
      page.show({ microbatch: FREE, chosen: { schedule: 0, row: FREE }, on });
    },
    next: () => highlight(page, page.view.microbatch + 1),
    back: () => highlight(page, page.view.microbatch - 1),
    theme: () =>
      page.show({ theme: document.documentElement.dataset.theme === "dark" ? "light" : "dark" }),
    link: () => {
      const said = part("message");
      said.textContent = "the address bar holds the address of this view";
      navigator.clipboard?.writeText(location.href).then(() => {
        said.textContent = "the address of this view is copied";
      }, () => {});
    },
    print: () => print(),
    png: () => exported(page, "png"),
    svg: () => exported(page, "svg"),
    search: () => {
      /** @type {HTMLDetailsElement} */ (part("more")).open = true;
      part("search").focus();
    },
  };
  const press = (/** @type {string} */ name) => {
    if (acts[name]) acts[name]();
    else if (part("tools").querySelector(`[data-layer="${name}"]`)) {
      page.show({ on: toggled(page.view.on, name) });
    } else if (part("tools").querySelector(`[data-name="${name}"]`)) {
      page.show({ off: toggled(page.view.off, name) });
    }
  };
  part("tools").addEventListener("click", (event) => {
    const button = /** @type {HTMLElement} */ (event.target).closest("button");
    if (button) press(button.dataset.do ?? button.dataset.layer ?? button.dataset.name ?? "");
  });
  return press;
}

/** Highlight a microbatch; beyond the first or the last, that one.
 * @param {Page} page @param {number} microbatch */
function highlight(page, microbatch) {
  const batches = Math.max(...page.shown().map(({ schedule }) => schedule.batches));
  const near = Math.min(batches - 1, Math.max(0, microbatch));
  page.show({ microbatch: near, chosen: { schedule: 0, row: FREE } });
}

/** Set the pressed state of every button. @param {Page} page */
function updateButtons(page) {
  for (const button of part("tools").querySelectorAll("button")) {
    const { layer, name, do: act } = button.dataset;
    if (layer) button.setAttribute("aria-pressed", String(page.view.on.has(layer)));
    if (name) button.setAttribute("aria-pressed", String(!page.view.off.has(name)));
    if (act === "drag") button.setAttribute("aria-pressed", String(page.view.drag === "pan"));
  }
}

/** Find a microbatch, `12`, or an operation, `3F12`. @param {Page} page */
function search(page) {
  const field = /** @type {HTMLInputElement} */ (part("search"));
  field.form?.addEventListener("submit", (event) => {
    event.preventDefault();
    const words = /^\s*(?:(\d+)(BW|F|B|W))?(\d+)\s*$/i.exec(field.value);
    const found = words && find(page, Number(words[1]), words[2]?.toUpperCase(), Number(words[3]));
    part("message").textContent = found ? "" : `nothing is called ${field.value}`;
    field.setAttribute("aria-invalid", String(!found));
    if (found) field.blur();
  });
}

/** Highlight a microbatch and bring it, or one operation of it, into view.
 * @param {Page} page @param {number} stage @param {string | undefined} kind
 * @param {number} microbatch */
function find(page, stage, kind, microbatch) {
  for (const { schedule: { ops, unit }, index: schedule } of page.shown()) {
    const row = ops.microbatch.findIndex((value, at) =>
      value === microbatch &&
      (!kind || (ops.stage[at] === stage && page.style.kinds[ops.kind[at]].name === kind))
    );
    if (row === FREE) continue;
    const rows = kind ? [row] : page.schedules[schedule].rowsOf(microbatch);
    const start = Math.min(...rows.map((at) => ops.start[at])) / unit;
    const end = Math.max(...rows.map((at) => ops.end[at])) / unit;
    const { from, to } = page.view;
    const seen = start >= from && end <= to;
    const length = Math.max(to - from, 1.1 * (end - start));
    const middle = (start + end) / 2;
    page.show({
      microbatch,
      chosen: { schedule, row: kind ? row : FREE },
      ...(seen ? {} : { from: middle - length / 2, to: middle + length / 2 }),
    });
    return true;
  }
  return false;
}

/** @type {Record<string, string>} */
const KEYS = {
  ArrowLeft: "left",
  ArrowRight: "right",
  ArrowUp: "up",
  ArrowDown: "down",
  "+": "in",
  "=": "in",
  "-": "out",
  "0": "whole",
  Escape: "clear",
  "/": "search",
  a: "transfers",
  b: "B",
  c: "critical",
  d: "drag",
  f: "F",
  g: "collectives",
  i: "idle",
  l: "links",
  m: "memory",
  n: "next",
  p: "back",
  s: "all",
  t: "theme",
  v: "taller",
  V: "lower",
  w: "W",
  x: "BW",
};

/** @param {Page} page @param {(name: string) => void} press */
function keyboard(page, press) {
  addEventListener("keydown", (event) => {
    const target = /** @type {HTMLElement} */ (event.target);
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (target.matches?.("input, textarea, select, [contenteditable]")) {
      if (event.key === "Escape") target.blur();
      return;
    }
    const name = KEYS[event.key];
    if (!name) return;
    const all = page.view.high - page.view.low === page.devices;
    if (all && (name === "up" || name === "down")) return;
    event.preventDefault();
    press(name);
  });
  page.plot.tabIndex = 0;
}

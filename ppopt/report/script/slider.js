// The time strip above the picture: how many devices work over time, and the window shown.

import { part } from "./dom.js";
import { number } from "./data.js";

const BINS = 400;
const HANDLE = 8;

/** Draw the strip and let it move the window; returns a function that updates the strip.
 * @param {Page} page */
export function slider(page) {
  const strip = part("strip");
  const window = /** @type {HTMLElement} */ (strip.querySelector(".window"));
  let only = NaN;
  drag(page, strip);
  keys(page, strip);
  return () => {
    if (only !== page.view.only) strip.querySelector("path")?.setAttribute("d", outline(page));
    only = page.view.only;
    strip.style.marginRight = `${page.frame.right}px`;
    window.style.left = `${(100 * page.view.from) / page.last}%`;
    window.style.width = `${(100 * (page.view.to - page.view.from)) / page.last}%`;
    strip.ariaValueMax = number(page.last);
    strip.ariaValueNow = number(page.view.from);
    strip.ariaValueText = `${number(page.view.from)} to ${number(page.view.to)}`;
  };
}

/** Share of the devices that work, as the outline of an area 400 wide and 1 high.
 * @param {Page} page */
function outline(page) {
  const busy = new Float64Array(BINS);
  for (const { schedule: { ops, unit } } of page.shown()) {
    const wide = (unit * page.last) / BINS;
    for (let row = 0; row < ops.length; row++) {
      if (ops.lane[row] === 2) continue;
      const [start, end] = [ops.start[row] / wide, ops.end[row] / wide];
      for (let bin = Math.floor(start); bin < end && bin < BINS; bin++) {
        busy[bin] += Math.min(end, bin + 1) - Math.max(start, bin);
      }
    }
  }
  const devices = page.shown().reduce((sum, { schedule }) => sum + schedule.devices, 0);
  const points = [...busy].map((value, bin) => {
    const y = (1 - value / devices).toFixed(3);
    return `${bin} ${y}L${bin + 1} ${y}`;
  });
  return `M0 1L${points.join("L")}L${BINS} 1Z`;
}

/** @param {Page} page @param {HTMLElement} strip */
function drag(page, strip) {
  /** @type {((time: number) => void) | null} */
  let move = null;
  const time = (/** @type {PointerEvent} */ event) => {
    const box = strip.getBoundingClientRect();
    return ((event.clientX - box.left) / box.width) * page.last;
  };
  strip.addEventListener("pointerdown", (event) => {
    event.preventDefault();
    const wide = (HANDLE / strip.getBoundingClientRect().width) * page.last;
    move = mover(page, time(event), wide);
    move(time(event));
    strip.setPointerCapture(event.pointerId);
  });
  strip.addEventListener("pointermove", (event) => move?.(time(event)));
  strip.addEventListener("pointerup", () => move = null);
}

/** Keys of the strip, which is a slider.
 * @param {Page} page @param {HTMLElement} strip */
function keys(page, strip) {
  strip.addEventListener("keydown", (event) => {
    const { from, to } = page.view;
    const length = to - from;
    /** @type {Record<string, number>} */
    const starts = { Home: 0, End: page.last, PageUp: from - length, PageDown: to };
    const start = starts[event.key];
    if (start === undefined) return;
    event.preventDefault();
    page.show({ from: start, to: start + length });
  });
}

/** What a drag that begins at a time moves: an edge of the window, or all of it.
 * @param {Page} page @param {number} began @param {number} near
 * @returns {(time: number) => void} */
function mover(page, began, near) {
  const { from, to } = page.view;
  if (Math.abs(began - from) < near) return (time) => page.show({ from: Math.min(time, to) });
  if (Math.abs(began - to) < near) return (time) => page.show({ to: Math.max(time, from) });
  const length = to - from;
  const hold = began > from && began < to ? began - from : length / 2;
  return (time) => page.show({ from: time - hold, to: time - hold + length });
}

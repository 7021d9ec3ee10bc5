// The curve of a frontier, with labels that do not overlap; a click on a point opens its schedule.

import { FREE } from "./data.js";
import { clicked, follow } from "./dom.js";
import { placed } from "./names.js";

/** Pixels from a point within which a click opens it. */
const NEAR = 14;
/** Least widths of a legend of one line, and of one of three. */
const WIDE = 1150;
const MIDDLING = 640;
const LEGEND_LINE = 19;
const CURVE_CONFIG = {
  displaylogo: false,
  showSendToCloud: false,
  modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "resetScale2d"],
  toImageButtonOptions: { filename: "frontier", scale: 2 },
  doubleClickDelay: 500,
  doubleClick: false,
};

/** Draw the curve of a page, where it has one, and draw it again where a new view changes it.
 * @param {Page} page */
export function frontier(page) {
  const found = document.getElementById("curve");
  if (!found) return;
  const plot = found;
  /** @type {Curve} */
  const curve = JSON.parse(document.getElementById("curve-data")?.textContent ?? "");
  const window = { x: curve.x, y: curve.y };
  let seen = "";
  const show = (/** @type {boolean} */ force = false) => {
    const state = [page.view.only, document.documentElement.dataset.theme, plot.clientWidth].join();
    if (state === seen && !force) return;
    seen = state;
    const layout = layoutOfCurve(page, curve, plot.clientWidth, window);
    Plotly.react(plot, [...curve.traces, ...shownPoint(page, curve)], layout, CURVE_CONFIG);
  };
  show();
  plot.on?.("plotly_relayout", (event) => {
    for (const axis of /** @type {("x" | "y")[]} */ (["x", "y"])) {
      const [low, high] = window[axis];
      window[axis] = [event[`${axis}axis.range[0]`] ?? low, event[`${axis}axis.range[1]`] ?? high];
    }
    show(true);
  });
  plot.on?.("plotly_doubleclick", () => {
    Object.assign(window, curve.whole);
    show(true);
  });
  opening(plot, curve, window);
  follow(page, [plot], () => show());
}

/** The layout with room for the legend, whose lines depend on the width. Plotly must not make that
 * room itself: the positions of points would then be unknown.
 * @param {Curve} curve @param {number} width */
function roomy({ layout }, width) {
  const more = LEGEND_LINE * (width >= WIDE ? 0 : width >= MIDDLING ? 2 : 4);
  const margin = { ...layout.margin, t: layout.margin.t + more, autoexpand: false };
  return { ...layout, height: layout.height + more, margin };
}

/** Pixels of a time and a memory within the element.
 * @param {Curve} curve @param {number} width @param {{x: number[], y: number[]}} window */
function scales(curve, width, window) {
  const layout = roomy(curve, width);
  const { l, r, t, b } = layout.margin;
  const along = (/** @type {number[]} */ [low, high], /** @type {number} */ value) =>
    (value - low) / (high - low);
  return {
    box: { left: l, right: width - r, top: t, bottom: layout.height - b },
    x: (/** @type {number} */ value) => l + along(window.x, value) * (width - l - r),
    y: (/** @type {number} */ value) =>
      layout.height - b - along(window.y, value) * (layout.height - t - b),
  };
}

/** @param {Page} page @param {Curve} curve @param {number} width
 * @param {{x: number[], y: number[]}} window @returns {Trace} */
function layoutOfCurve(page, curve, width, window) {
  const { paper, ink, quiet, grid } = page.theme();
  const { names } = curve;
  const layout = roomy(curve, width);
  const text = { ...layout.font, color: ink };
  const scale = scales(curve, width, window);
  const marks = [...curve.points, ...names].map(({ x, y }) => ({ x: scale.x(x), y: scale.y(y) }));
  const inside = (/** @type {{x: number, y: number}} */ { x, y }) =>
    x >= window.x[0] && x <= window.x[1] && y >= window.y[0] && y <= window.y[1];
  const wanted = names.filter((name) => name.text && inside(name)).map(({ x, y, text }) => ({
    x: scale.x(x),
    y: scale.y(y),
    text,
  }));
  const { points, whole } = curve;
  const steps = points.flatMap(({ x, y }, at) =>
    [x, points[at + 1]?.x ?? whole.x[1]].map((each) => ({ x: scale.x(each), y: scale.y(y) }))
  );
  return {
    ...layout,
    width,
    font: text,
    paper_bgcolor: paper,
    plot_bgcolor: paper,
    modebar: { bgcolor: "rgba(0,0,0,0)", color: quiet, activecolor: ink },
    xaxis: { ...layout.xaxis, range: [...window.x], gridcolor: grid },
    yaxis: { ...layout.yaxis, range: [...window.y], gridcolor: grid },
    annotations: placed(wanted, marks, steps, scale.box).map(({ name, x, y, far }) => ({
      xref: "paper",
      yref: "paper",
      x: (name.x - scale.box.left) / (scale.box.right - scale.box.left),
      y: (scale.box.bottom - name.y) / (scale.box.bottom - scale.box.top),
      ax: x - name.x,
      ay: y - name.y,
      text: name.text,
      font: text,
      showarrow: true,
      arrowhead: 0,
      arrowwidth: 0.8,
      arrowcolor: far ? quiet : "rgba(0,0,0,0)",
      standoff: 7,
      borderpad: 0,
    })),
  };
}

/** A ring around the point whose schedule is shown. @param {Page} page @param {Curve} curve
 * @returns {Trace[]} */
function shownPoint(page, curve) {
  const point = curve.points.find(({ section }) => section === page.view.only + 1);
  if (!point || page.view.only === FREE) return [];
  const line = { color: page.theme().ink, width: 2 };
  return [{
    name: "shown below",
    type: "scatter",
    mode: "markers",
    hoverinfo: "skip",
    x: [point.x],
    y: [point.y],
    marker: { size: 20, symbol: "circle-open", color: line.color, line },
  }];
}

/** Open the schedule of the nearest point where the mouse is pressed and let go without a drag.
 * @param {HTMLElement} plot @param {Curve} curve @param {{x: number[], y: number[]}} window */
function opening(plot, curve, window) {
  const near = (/** @type {PointerEvent} */ event) => {
    const box = plot.getBoundingClientRect();
    const scale = scales(curve, plot.clientWidth, window);
    const away = (/** @type {{x: number, y: number}} */ { x, y }) =>
      Math.hypot(scale.x(x) - event.clientX + box.left, scale.y(y) - event.clientY + box.top);
    const [first] = curve.points.filter(({ section }) => section)
      .sort((one, other) => away(one) - away(other));
    return first && away(first) <= NEAR ? first : null;
  };
  clicked(plot, (event) => {
    const point = near(event);
    if (point) location.hash = `schedule-${point.section}`;
  });
  plot.addEventListener("pointermove", (event) => {
    plot.classList.toggle("opens", near(event) !== null);
  });
}

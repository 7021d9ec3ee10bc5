// The picture as a file, with a legend in place of the buttons of the page.

import { part } from "./dom.js";
import { idleLook } from "./gantt.js";

const LEGEND = 60;

/** Save the picture that is shown. @param {Page} page @param {"png" | "svg"} format */
export function exported(page, format) {
  const { traces, layout } = page.figure;
  const { width, height } = page.frame;
  const margin = /** @type {Record<string, unknown>} */ (layout.margin);
  const figure = {
    data: [...explained(traces), ...legend(page)],
    layout: {
      ...layout,
      annotations: [.../** @type {Trace[]} */ (layout.annotations), ...shades()],
      height: height + LEGEND,
      margin: { ...margin, b: Number(margin.b) + LEGEND },
      showlegend: true,
      legend: { orientation: "h", x: 0, y: 0, yref: "container", yanchor: "bottom" },
    },
  };
  const options = { format, width, height: height + LEGEND, scale: format === "png" ? 2 : 1 };
  return Plotly.downloadImage(figure, { ...options, filename: "schedule" });
}

/** @param {Page} page @returns {Trace[]} */
function legend({ style, schedules, view }) {
  const { kinds, causes } = style;
  const used = schedules.flatMap((schedule) => schedule.uses(kinds.length, causes.length));
  const present = (/** @type {number} */ index) => used.some((ticks) => ticks[index] > 0);
  const entries = [
    ...kinds.map(({ name, words, colour }) => ({
      name,
      said: `${name} ${words}`,
      look: { fillcolor: colour },
    })),
    ...causes.map(({ name, words }, index) => ({
      name,
      said: `idle: ${words}`,
      look: idleLook(style, index),
    })),
  ];
  return entries
    .filter((entry, index) => present(index) && !view.off.has(entry.name))
    .map(({ said, look }) => ({
      ...look,
      type: "scatter",
      mode: "none",
      fill: "toself",
      x: [null],
      y: [null],
      name: said,
    }));
}

/** Traces, the first of every name that needs a word in the legend with one.
 * @param {Trace[]} traces */
function explained(traces) {
  const names = ["critical path", "transfers", "memory limit", "peak memory"];
  return traces.map((trace, index) => {
    const first = traces.findIndex(({ name }) => name === trace.name) === index;
    return { ...trace, showlegend: first && names.includes(String(trace.name)) };
  });
}

/** What the page says of shades and of spots, below the legend.
 * @returns {Trace[]} */
function shades() {
  const said = [part("shades")?.textContent, part("message").textContent].filter(Boolean);
  if (!said.length) return [];
  const corner = { xref: "paper", x: 0, xanchor: "left", yref: "paper", y: 0, yanchor: "top" };
  return [{ ...corner, yshift: -44, showarrow: false, text: said.join(" · ") }];
}

// The picture as a file, with a legend: what the buttons beside it explain on the page.

/** @typedef {import("./page.js").Page} Page */
/** @typedef {import("./types.d.ts").Trace} Trace */

import { idleLook } from "./gantt.js";

const LEGEND = 60;

/** Save the picture that is shown. @param {Page} page @param {"png" | "svg"} format */
export function exported(page, format) {
  const { traces, layout } = page.figure;
  const { width, height } = page.frame;
  const margin = /** @type {Record<string, unknown>} */ (layout.margin);
  const figure = {
    data: [...traces, ...legend(page)],
    layout: {
      ...layout,
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
    ...kinds.map((kind) => ({ ...kind, look: { fillcolor: kind.colour } })),
    ...causes.map((cause, index) => ({ ...cause, look: idleLook(style, index) })),
  ];
  return entries
    .filter((entry, index) => present(index) && !view.off.has(entry.name))
    .map(({ name, words, look }) => ({
      ...look,
      type: "scatter",
      mode: "none",
      fill: "toself",
      x: [null],
      y: [null],
      name: name === words ? words : `${name} ${words}`,
    }));
}

// Elements of the page, and what some pages have besides the schedules.

/** Called with the page when it begins; modules that not every page has add to it.
 * @type {((page: import("./page.js").Page) => void)[]} */
export const FURTHER = [];

/** @param {string} id */
export function part(id) {
  return /** @type {HTMLElement} */ (document.getElementById(id));
}

// Elements of the page.

/** @param {string} id */
export function part(id) {
  return /** @type {HTMLElement} */ (document.getElementById(id));
}

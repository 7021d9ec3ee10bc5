// Elements of the page, and what some pages have besides the schedules.

/** Called with the page when it begins; modules that not every page has add to it.
 * @type {((page: Page) => void)[]} */
export const FURTHER = [];

/** React to presses that are let go without a drag.
 * @param {HTMLElement} element @param {(event: PointerEvent) => void} react */
export function clicked(element, react) {
  let pressed = { x: NaN, y: NaN };
  element.addEventListener("pointerdown", (event) => {
    pressed = { x: event.clientX, y: event.clientY };
  }, true);
  addEventListener("pointerup", (event) => {
    const moved = Math.hypot(event.clientX - pressed.x, event.clientY - pressed.y);
    pressed = { x: NaN, y: NaN };
    if (moved < 4) react(event);
  }, true);
}

/** Call a function again after each picture of a page, and where the size of an element changes.
 * @param {Page} page @param {Element[]} elements @param {() => void} show */
export function follow(page, elements, show) {
  for (const element of elements) new ResizeObserver(show).observe(element);
  const draw = page.draw.bind(page);
  page.draw = () => {
    const drawn = draw();
    show();
    return drawn;
  };
}

/** @param {string} id */
export function part(id) {
  return /** @type {HTMLElement} */ (document.getElementById(id));
}

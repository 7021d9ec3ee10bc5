// Labels of points of a chart, placed so that none covers another label, a point or the frame.

/** @typedef {{x: number, y: number}} Point */
/** @typedef {Point & {text: string}} Name */
/** @typedef {{left: number, right: number, top: number, bottom: number}} Box */

const HEIGHT = 15;
/** Half a mark, in pixels. */
const MARK = 8;
/** Names this far from their point get a line to it. */
const FAR = 24;
const FARTHEST = 3;

/** Where to write names; those without room near their point are left out. In pixels; x and y are middles.
 * @param {Name[]} names @param {Point[]} marks @param {Point[]} line corners of a line that names
 * cross only where they must @param {Box} frame
 * @returns {{name: Name, x: number, y: number, far: boolean}[]} */
export function placed(names, marks, line, frame) {
  const taken = marks.map((mark) => around(mark, 2 * MARK, 2 * MARK));
  const found = [];
  for (const name of names) {
    const width = wide(name.text);
    const free = places(name, width).filter((place) => {
      const box = around(place, width, HEIGHT);
      return within(box, frame) && !taken.some((other) => overlap(box, other));
    });
    const clear = (/** @type {Point} */ place) => !crossed(around(place, width, HEIGHT), line);
    const place = free.find(clear) ?? free[0];
    if (!place) continue;
    taken.push(around(place, width, HEIGHT));
    found.push({ name, ...place, far: Math.abs(place.y - name.y) > FAR || place.leans });
  }
  return found;
}

/** Places around a point, the nearest first. @param {Point} point @param {number} width */
function places({ x, y }, width) {
  const aside = MARK + width / 2 + 2;
  const above = MARK + HEIGHT / 2 + 1;
  const corner = aside - MARK / 2;
  const found = [
    { x, y: y - above, leans: false },
    { x: x + aside, y, leans: false },
    { x, y: y + above, leans: false },
    { x: x - aside, y, leans: false },
    { x: x + corner, y: y - above, leans: false },
    { x: x + corner, y: y + above, leans: false },
    { x: x - corner, y: y - above, leans: false },
    { x: x - corner, y: y + above, leans: false },
  ];
  for (let ring = 1; ring <= FARTHEST; ring++) {
    for (const lift of [-1, 1]) {
      for (const lean of [0.6, -0.6, 0]) {
        const far = { x: x + lean * aside * (1 + ring / 6), y: y + lift * (above + ring * HEIGHT) };
        found.push({ ...far, leans: lean !== 0 });
      }
    }
  }
  return found;
}

/** @param {Point} middle @param {number} width @param {number} height @returns {Box} */
function around({ x, y }, width, height) {
  const [aside, above] = [width / 2, height / 2];
  return { left: x - aside, right: x + aside, top: y - above, bottom: y + above };
}

/** @param {Box} box @param {Box} other */
function overlap(box, other) {
  return box.left < other.right && other.left < box.right && box.top < other.bottom &&
    other.top < box.bottom;
}

/** @param {Box} box @param {Box} frame */
function within(box, frame) {
  return box.left >= frame.left && box.right <= frame.right && box.top >= frame.top &&
    box.bottom <= frame.bottom;
}

/** Whether a line of upright and level pieces runs through a box.
 * @param {Box} box @param {Point[]} line */
function crossed(box, line) {
  return line.slice(1).some((end, index) => {
    const start = line[index];
    const piece = {
      left: Math.min(start.x, end.x),
      right: Math.max(start.x, end.x) + 0.1,
      top: Math.min(start.y, end.y),
      bottom: Math.max(start.y, end.y) + 0.1,
    };
    return overlap(box, piece);
  });
}

/** Width of a text in the letters of the charts. @param {string} text */
function wide(text) {
  const context = document.createElement("canvas").getContext("2d");
  if (!context) return 8 * text.length;
  context.font = "12px system-ui, sans-serif";
  const letters = text.replaceAll("&lt;", "<").replaceAll("&gt;", ">").replaceAll("&amp;", "&");
  return context.measureText(letters).width + 4;
}

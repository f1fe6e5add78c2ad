// The part of a sent picture that a model reads: ksrv/images/geometry.py
// backwards, from the properties that a model's metadata has for an image input.

/**
 * @param {Object} properties - of the model's metadata
 * @param {string} input - the input's name
 * @returns {Object} its properties of images, or null
 */
export function imageOf(properties, input) {
  const prefix = `${input}.image.`;
  const found = Object.entries(properties ?? {}).filter(([key]) => key.startsWith(prefix));
  if (!found.length) return null;
  return Object.fromEntries(found.map(([key, value]) => [key.slice(prefix.length), value]));
}

/** The size of a side ("224", "100:200" or "any") that follows from `size`. */
function bounded(size, side) {
  const [low, high = low] = side === "any" ? [0, Infinity] : side.split(":").map(Number);
  return Math.min(Math.max(size, low), high);
}

const most = (side) => bounded(Infinity, side);
const isNumber = (side) => !Number.isNaN(Number(side));

/** As Python's `round`: halves become the even number. */
const nearest = (value) => (Math.abs(value % 1) === 0.5 ? 2 * Math.round(value / 2) : Math.round(value));

const ROUND = { nearest, down: Math.floor, up: Math.ceil };

/** The size at which the shorter side has `shorter` pixels. */
const shorterSideSize = (size, shorter) => size.map((side) => Math.floor((shorter * side) / Math.min(...size)));

/** The factor by which a picture that keeps its proportions is resized. */
function ratioOf(size, sides, image, boxed) {
  const fitting = Math.min(...sides.map((side, axis) => most(side) / size[axis]));
  if (boxed && fitting !== Infinity) return fitting;
  const ratio = image.shorter_side ? image.shorter_side / Math.min(...size) : 1;
  const enlarged = Math.max(ratio, (image.min_side ?? 0) / Math.min(...size));
  return Math.min(enlarged, (image.max_side ?? Infinity) / Math.max(...size));
}

/** The size of the resized picture in a row that follows its proportions, or in a letterbox. */
function proportional(size, sides, image, boxed) {
  if (image.shorter_side && !image.max_side) return shorterSideSize(size, image.shorter_side);
  const toPixels = (value) => Math.max(ROUND[image.rounding ?? (boxed ? "nearest" : "down")](value), 1);
  if (isNumber(sides[0]) !== isNumber(sides[1])) {
    const fixed = isNumber(sides[0]) ? 0 : 1;
    const made = size.map((side) => toPixels(most(sides[fixed]) * (side / size[fixed])));
    if (!boxed || made.every((side, axis) => side <= most(sides[axis]))) return made;
  }
  const ratio = ratioOf(size, sides, image, boxed);
  return size.map((side, axis) => Math.min(toPixels(side * ratio), most(sides[axis])));
}

/** The size of the row of a picture that is alone in its request. */
function rowOf(size, sides, image, boxed) {
  const step = Number(image.multiple ?? 1);
  const keys = image.shorter_side || image.min_side || image.max_side || step > 1;
  const open = image.resize !== "none" && !sides.every(isNumber);
  if (!open || !(sides.includes("any") || boxed || keys)) return size.map((side, axis) => bounded(side, sides[axis]));
  const steps = boxed ? Math.ceil : nearest;
  return proportional(size, sides, image, boxed)
    .map((side, axis) => bounded(Math.max(steps(side / step), 1) * step, sides[axis]));
}

/**
 * @param {{width: number, height: number}} picture
 * @param {?Object} image - of `imageOf`
 * @returns {Object} `columns` and `rows` that the model reads, and the rectangle of the picture that
 *   they cover (`x`, `y`, `width`, `height`, in the picture's pixels; a letterbox reaches beyond it)
 */
export function seenBy(picture, image) {
  // Sizes are [height, width].
  const properties = image ?? {};
  const size = [picture.height, picture.width];
  const sides = (properties.size ?? "anyxany").split("x");
  const boxed = properties.resize === "letterbox";
  const row = rowOf(size, sides, properties, boxed);
  let whole = row;
  let start = [0, 0]; // The row's pixel at which the picture begins; below 0 if the row cuts the picture off.
  if (boxed) {
    whole = proportional(size, sides, properties, boxed);
    if (properties.align !== "start") {
      start = row.map((side, axis) => Math.max(nearest((side - whole[axis]) / 2 - 0.1), 0));
    }
  } else if (sides.every(isNumber) && (properties.shorter_side || properties.resize_to)) {
    whole = properties.resize_to?.split("x") ?? shorterSideSize(size, properties.shorter_side);
    start = row.map((side, axis) => -nearest((whole[axis] - side) / 2));
  }
  const ratio = ratioOf(size, sides, properties, boxed);
  const [down, across] = size.map((side, axis) => (boxed ? ratio : whole[axis] / side));
  const covered = { x: -start[1] / across, y: -start[0] / down, width: row[1] / across, height: row[0] / down };
  return { columns: row[1], rows: row[0], ...covered };
}

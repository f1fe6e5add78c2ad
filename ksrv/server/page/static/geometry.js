// The part of a sent picture that a model reads: ksrv/images/geometry.py
// backwards, from the properties that a model's metadata tells of an image input.

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

/**
 * One side of the tensor in pixels. `text` is a size ("224"), a range ("100:200", to which the picture's side is cut),
 * or "any" for the picture's side; `picture` is the picture's side.
 */
function side(text, picture) {
  if (text === undefined || text === "any") return picture;
  const [low, high] = text.split(":").map(Number);
  return high === undefined ? low : Math.min(Math.max(picture, low), high);
}

/**
 * @param {{width: number, height: number}} picture
 * @param {?Object} image - of `imageOf`
 * @returns {Object} `columns` and `rows` that the model reads, and the rectangle of the picture that
 *   they cover (`x`, `y`, `width`, `height`, in the picture's pixels; a letterbox reaches beyond it)
 */
export function seenBy(picture, image) {
  // The size is "HEIGHTxWIDTH". `side` reads each of the two texts.
  const [high, wide] = (image?.size ?? "anyxany").split("x");
  const rows = side(high, picture.height);
  const columns = side(wide, picture.width);
  let scale;
  if (image?.shorter_side !== undefined) {
    scale = Number(image.shorter_side) / Math.min(picture.width, picture.height);
  } else if (image?.resize === "letterbox") {
    scale = Math.min(rows / picture.height, columns / picture.width);
    if (image.align === "start") {
      return { columns, rows, x: 0, y: 0, width: columns / scale, height: rows / scale };
    }
  } else if (image?.resize_to !== undefined) {
    const [down, across] = image.resize_to.split("x").map(Number);
    const height = (picture.height * rows) / down;
    const width = (picture.width * columns) / across;
    const x = (picture.width - width) / 2;
    return { columns, rows, x, y: (picture.height - height) / 2, width, height };
  } else {
    return { columns, rows, x: 0, y: 0, width: picture.width, height: picture.height };
  }
  const width = columns / scale;
  const height = rows / scale;
  const x = (picture.width - width) / 2;
  const y = (picture.height - height) / 2;
  return { columns, rows, x, y, width, height };
}

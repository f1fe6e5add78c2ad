// Ways to show one row of an answer: bars, masks, boxes, pictures, heat maps, texts, numbers.
// Each view is a function that returns an element.

import { element, freshId, table } from "./dom.js";
import { canvasOf } from "./pictures.js";
import { seenBy } from "./geometry.js";
import { fileType, show, textOf } from "./tensors.js";

const SHOWN_VALUES = 400;
const SHOWN_BOXES = 200;

export const labelOf = (labels, index) => labels?.[index] ?? `class ${index}`;

/** A colour for each class; neighbours differ, on light and on dark. */
export function colourOf(index) {
  const hue = (index * 137.508) % 360;
  return { css: `hsl(${hue} 75% 50%)`, rgb: rgbOf(hue) };
}

function rgbOf(hue) {
  const part = (shift) => {
    const k = (shift + hue / 30) % 12;
    return Math.round(255 * (0.5 - 0.375 * Math.max(-1, Math.min(k - 3, 9 - k, 1))));
  };
  return [part(0), part(8), part(4)];
}

/** The likeliest classes as bars; `entries` have a label and a score. */
export function bars(entries) {
  const shares = entries.every(({ score }) => score >= 0 && score <= 1.0001);
  const low = Math.min(0, ...entries.map(({ score }) => score));
  const high = shares ? 1 : Math.max(...entries.map(({ score }) => score), low + 1e-9);
  const list = element("ol", { class: "bars" });
  for (const { label, score } of entries) {
    const bar = element("span", { class: "bar", "aria-hidden": "true" });
    bar.style.width = `${(100 * (score - low)) / (high - low)}%`;
    const number = shares ? `${(100 * score).toFixed(1)} %` : show(score, "FP32");
    list.append(element("li", {},
      element("span", { class: "label" }, label), element("span", { class: "track" }, bar),
      element("span", { class: "number" }, number)));
  }
  return list;
}

/** The picture, or a grey ground without a picture, in the frame that the model saw. */
function ground(picture, rows, columns) {
  if (picture?.bitmap) {
    const drawn = canvasOf(picture.bitmap);
    return { ...drawn, seen: seenBy(picture.bitmap, picture.image) };
  }
  const canvas = element("canvas");
  const scale = Math.max(1, Math.floor(400 / Math.max(rows, columns)));
  canvas.width = columns * scale;
  canvas.height = rows * scale;
  const context = canvas.getContext("2d");
  context.fillStyle = "#888";
  context.fillRect(0, 0, canvas.width, canvas.height);
  return { canvas, context, scale, seen: { x: 0, y: 0, width: columns, height: rows, columns, rows } };
}

function slider(text, value, changed, { most = 100, unit = "%" } = {}) {
  const id = freshId("slider");
  const output = element("output", { for: id }, `${value} ${unit}`);
  const input = element("input", { id, type: "range", min: 0, max: most, value });
  input.addEventListener("input", () => {
    output.textContent = `${input.value} ${unit}`;
    changed(Number(input.value));
  });
  return element("p", { class: "slider" }, element("label", { for: id }, text), input, output);
}

function named(canvas, text) {
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", text);
}

/**
 * Pixels for the part of the picture that the model saw. `paint(pixel, data, place)` colours a pixel: it writes RGBA
 * into `data` from `place` on. Returns a function that draws all pixels over the picture with an opacity.
 */
function overlay(base, rows, columns, paint) {
  const layer = document.createElement("canvas");
  layer.width = columns;
  layer.height = rows;
  const context = layer.getContext("2d");
  const image = context.createImageData(columns, rows);
  for (let pixel = 0; pixel < rows * columns; pixel += 1) paint(pixel, image.data, pixel * 4);
  context.putImageData(image, 0, 0);
  const { seen, scale } = base;
  return (opacity) => {
    base.context.save();
    base.context.globalAlpha = opacity;
    base.context.imageSmoothingEnabled = false;
    base.context.drawImage(layer, seen.x * scale, seen.y * scale, seen.width * scale, seen.height * scale);
    base.context.restore();
  };
}

function copyOf(canvas) {
  const copy = document.createElement("canvas");
  copy.width = canvas.width;
  copy.height = canvas.height;
  copy.getContext("2d").drawImage(canvas, 0, 0);
  return copy;
}

/** A class for each pixel, over the picture, with a legend. */
export function mask(tensor, labels, picture) {
  const [rows, columns] = tensor.shape;
  const counts = new Map();
  for (const value of tensor.values) {
    const index = Number(value);
    counts.set(index, (counts.get(index) ?? 0) + 1);
  }
  const classes = [...counts].sort((one, other) => other[1] - one[1]).slice(0, 40);
  // Class 0 is the ground by custom: it is left clear as long as there is another class.
  const shown = new Set(classes.map(([index]) => index).filter((index) => index !== 0 || classes.length === 1));
  const base = ground(picture, rows, columns);
  const clean = copyOf(base.canvas);
  let opacity = 0.6;
  const draw = () => {
    base.context.drawImage(clean, 0, 0);
    const colours = new Map([...shown].map((index) => [index, colourOf(index).rgb]));
    overlay(base, rows, columns, (pixel, data, place) => {
      const colour = colours.get(Number(tensor.values[pixel]));
      if (colour) data.set([...colour, 255], place);
    })(opacity);
  };
  const legend = element("ul", { class: "legend" });
  const parts = [];
  for (const [index, pixels] of classes) {
    const share = `${((100 * pixels) / (rows * columns)).toFixed(1)} %`;
    parts.push(`${labelOf(labels, index)} ${share}`);
    const id = freshId("class");
    const box = element("input", { type: "checkbox", id, change: () => {
      if (box.checked) shown.add(index);
      else shown.delete(index);
      draw();
    } });
    box.checked = shown.has(index);
    const swatch = element("span", { class: "swatch", "aria-hidden": "true" });
    swatch.style.background = colourOf(index).css;
    legend.append(element("li", {}, box, element("label", { for: id },
      swatch, labelOf(labels, index), " ", element("small", {}, share))));
  }
  named(base.canvas, `Mask of ${rows} by ${columns} pixels: ${parts.join(", ")}`);
  draw();
  return element("div", {}, base.canvas,
    slider("Opacity of the mask", 60, (value) => { opacity = value / 100; draw(); }), legend);
}

/** A number for each pixel, from clear (lowest) to red (highest). */
export function heat(tensor, picture) {
  const [rows, columns] = tensor.shape;
  let low = Infinity;
  let high = -Infinity;
  for (const value of tensor.values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  const span = high > low ? high - low : 1;
  const base = ground(picture, rows, columns);
  const clean = copyOf(base.canvas);
  const draw = overlay(base, rows, columns, (pixel, data, place) => {
    const level = (tensor.values[pixel] - low) / span;
    data.set([255, 255 * (1 - level), 0, 255 * level], place);
  });
  named(base.canvas, `Heat map of ${rows} by ${columns} numbers from ${show(low, "FP32")} to ${show(high, "FP32")}`);
  draw(0.7);
  return element("div", {}, base.canvas, slider("Opacity of the map", 70, (value) => {
    base.context.drawImage(clean, 0, 0);
    draw(value / 100);
  }), element("p", { class: "note" }, `from ${show(low, "FP32")} (clear) to ${show(high, "FP32")} (red)`));
}

/** Boxes over the picture; each has x1, y1, x2, y2 in the model's pixels or from 0 to 1. */
export function boxes(found, picture) {
  const most = found.reduce((far, { box }) => Math.max(far, ...box), 1);
  const size = Math.ceil(most);
  const base = ground(picture, size, size);
  const clean = copyOf(base.canvas);
  const { seen, scale } = base;
  // Values of at most 1.5 are fractions of the picture, unless the model reads a picture of at most four columns.
  const relative = most <= 1.5 && (picture?.bitmap ? seen.columns > 4 : true);
  const across = seen.width / (relative ? 1 : seen.columns);
  const down = seen.height / (relative ? 1 : seen.rows);
  const kinds = [...new Set(found.map(({ label }) => label))];
  const list = element("div");
  let least = 0;
  const draw = () => {
    const kept = found.filter(({ score }) => score === null || score * 100 >= least).slice(0, SHOWN_BOXES);
    const { context } = base;
    context.drawImage(clean, 0, 0);
    context.lineWidth = Math.max(2, base.canvas.width / 250);
    const height = Math.max(12, Math.round(base.canvas.width / 40));
    context.font = `${height}px sans-serif`;
    context.textBaseline = "bottom";
    for (const { box: [x1, y1, x2, y2], label, score } of kept) {
      const left = (seen.x + x1 * across) * scale;
      const top = (seen.y + y1 * down) * scale;
      const colour = colourOf(kinds.indexOf(label)).css;
      context.strokeStyle = colour;
      context.strokeRect(left, top, (x2 - x1) * across * scale, (y2 - y1) * down * scale);
      const text = score === null ? label : `${label} ${(100 * score).toFixed(0)} %`;
      const place = Math.max(top, height + 4);
      context.fillStyle = colour;
      context.fillRect(left, place - height - 4, context.measureText(text).width + 6, height + 4);
      context.fillStyle = "#000";
      context.fillText(text, left + 3, place - 1);
    }
    const count = kept.length === 1 ? "1 box" : `${kept.length} boxes`;
    named(base.canvas, `${count}: ${kept.map(({ label }) => label).join(", ")}`);
    list.replaceChildren(element("p", {}, count), table("Boxes", ["label", "score", "x1", "y1", "x2", "y2"],
      kept.map(({ box, label, score }) =>
        [label, score === null ? "" : score.toFixed(3), ...box.map((value) => show(value, "FP32"))])));
  };
  draw();
  const scored = found.some(({ score }) => score !== null);
  return element("div", {}, base.canvas,
    ...(scored ? [slider("Least score", 0, (value) => { least = value; draw(); })] : []), list);
}

/** An output that is a picture itself: UINT8 [height, width, 1, 3 or 4]. */
export function pixels(tensor) {
  const [rows, columns, channels] = tensor.shape;
  const canvas = element("canvas");
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  for (let pixel = 0; pixel < rows * columns; pixel += 1) {
    const at = (channel) => tensor.values[pixel * channels + (channels === 1 ? 0 : channel)];
    image.data.set([at(0), at(1), at(2), channels === 4 ? at(3) : 255], pixel * 4);
  }
  context.putImageData(image, 0, 0);
  named(canvas, `Picture of ${columns} by ${rows} pixels`);
  return canvas;
}

/** The first texts of an output, and how many values are left out. */
function textBlocks(shown, rest) {
  return element("div", {}, ...shown.map((text) => element("pre", { class: "text", tabindex: 0 }, text)),
    ...(rest > 0 ? [element("p", { class: "note" }, `and ${rest} more`)] : []));
}

const urls = [];

/** Free the files of the last answer, which the browser would keep until the page is closed. */
export const forgetFiles = () => urls.splice(0).forEach((url) => URL.revokeObjectURL(url));

/** Files: sounds and videos to play, pictures to see, and each file to save. */
export function files(tensor) {
  const type = fileType(tensor);
  const kind = type.split("/")[0];
  const name = `${tensor.name}.${/\/(?:x-)?(\w+)/.exec(type)?.[1] ?? "bin"}`;
  return element("div", {}, ...tensor.values.slice(0, SHOWN_VALUES).flatMap((bytes) => {
    const src = URL.createObjectURL(new Blob([bytes], { type }));
    urls.push(src);
    const link = element("a", { href: src, download: name }, `Save ${name} (${bytes.length} bytes)`);
    if (kind === "image") return [element("img", { src, alt: `${tensor.name}, ${type}` }), element("p", {}, link)];
    if (kind === "audio" || kind === "video") return [element(kind, { src, controls: true }), element("p", {}, link)];
    return [element("p", {}, link)];
  }));
}

/** Byte strings as text; JSON is set out in lines. */
export function texts(tensor) {
  const shown = tensor.values.slice(0, SHOWN_VALUES).map((bytes) => {
    const text = textOf(bytes);
    try {
      const parsed = JSON.parse(text);
      return typeof parsed === "object" ? JSON.stringify(parsed, null, 2) : text;
    } catch {
      return text;
    }
  });
  return textBlocks(shown, tensor.values.length - shown.length);
}

/** Numbers, laid out by the last dimension, with a summary of large tensors. */
export function numbers(tensor) {
  const { values, datatype } = tensor;
  if (datatype === "BYTES") return texts(tensor);
  const width = Math.max(1, Math.min(tensor.shape.at(-1) ?? 1, SHOWN_VALUES));
  const lines = [];
  for (let place = 0; place < Math.min(values.length, SHOWN_VALUES); place += width) {
    lines.push(Array.from(values.slice(place, place + width), (value) => show(value, datatype)).join("  "));
  }
  return textBlocks([lines.join("\n")], values.length - SHOWN_VALUES);
}

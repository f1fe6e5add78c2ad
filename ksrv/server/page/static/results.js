// An answer as its user wants to see it: which views fit its outputs, judged by names and shapes.

import { element, freshId, table } from "./dom.js";
import { fileType, isFloat, rowOf, show, textOf } from "./tensors.js";
import { bars, boxes, files, heat, labelOf, mask, numbers, pixels, texts } from "./views.js";

const BEST = 5;
const SHOWN_ROWS = 16;

const hasRank = (tensor, rank) => tensor !== undefined && tensor.shape.length === rank;
const isNumbers = (tensor) => tensor.datatype !== "BYTES";

/** The tensor of a row whose name says what it is, in the wanted rank. */
const byName = (tensors, pattern, rank) =>
  tensors.find((tensor) => pattern.test(tensor.name) && hasRank(tensor, rank));

const best = (entries) => entries.sort((one, other) => other.score - one.score).slice(0, BEST);

/** Labels and scores of one length, or one label with one score. */
function namedClasses(tensors, labels) {
  const score = tensors.find((tensor) => /prob|score|conf/i.test(tensor.name) && tensor.shape.length <= 1 &&
    isFloat(tensor.datatype));
  const label = tensors.find((tensor) => /label|class|name/i.test(tensor.name) && tensor.shape.length <= 1 &&
    tensor.datatype === "BYTES" && tensor.values.length === score?.values.length);
  const index = tensors.find((tensor) => /label|class|index/i.test(tensor.name) && tensor.shape.length <= 1 &&
    isNumbers(tensor) && !isFloat(tensor.datatype) && tensor.values.length === score?.values.length);
  if (score === undefined || (label ?? index) === undefined || score.values.length === 0) return null;
  return best(Array.from(score.values, (value, place) => ({
    label: label ? textOf(label.values[place]) : labelOf(labels, Number(index.values[place])),
    score: value,
  })));
}

/** Whether numbers are probabilities: by the tensor's name, or because they are at least 0 and add up to 1. */
const isProbable = ({ name, values }) => /prob|score|conf|softmax/i.test(name) ||
  (values.every((value) => value >= 0) && Math.abs(values.reduce((sum, value) => sum + value, 0) - 1) < 0.01);

/** A score for each class, if the classes have labels or the numbers are probabilities. */
function scores(tensor, labels) {
  if (!hasRank(tensor, 1) || !isFloat(tensor.datatype) || tensor.shape[0] < 2) return null;
  if (labels === null && !isProbable(tensor)) return null;
  return best(Array.from(tensor.values, (score, place) => ({ label: labelOf(labels, place), score })));
}

/** Boxes with their scores and classes; boxes beyond `count`, or of class -1, are fill. */
function detections(tensors, labels) {
  const box = tensors.find((tensor) => hasRank(tensor, 2) && tensor.shape[1] === 4 && isFloat(tensor.datatype) &&
    /box|rect|bbox|det/i.test(tensor.name));
  if (box === undefined) return null;
  const score = byName(tensors, /score|conf|prob/i, 1);
  const label = tensors.find((tensor) => /label|class|name/i.test(tensor.name) && hasRank(tensor, 1));
  const filled = byName(tensors, /count|num/i, 0);
  const found = [];
  const count = Math.min(box.shape[0], filled ? Number(filled.values[0]) : Infinity);
  for (let place = 0; place < count; place += 1) {
    const kind = label?.values[place];
    if (kind !== undefined && !(kind instanceof Uint8Array) && Number(kind) < 0) continue;
    found.push({
      box: Array.from(box.values.slice(place * 4, place * 4 + 4)),
      score: score ? score.values[place] : null,
      label: kind instanceof Uint8Array ? textOf(kind)
        : kind === undefined ? "object" : labelOf(labels, Number(kind)),
    });
  }
  return found;
}

/** OpenVINO's detectors: [1, N, 7] of image, class, score and a box from 0 to 1. */
function openvinoDetections(tensor, labels) {
  if (!hasRank(tensor, 3) || tensor.shape[2] !== 7 || !isFloat(tensor.datatype)) return null;
  const found = [];
  for (let place = 0; place < tensor.shape[1]; place += 1) {
    const [image, kind, score, ...box] = tensor.values.slice(place * 7, place * 7 + 7);
    if (image < 0) break;
    found.push({ label: labelOf(labels, kind), score, box });
  }
  return found;
}

/** The JSON answers of TorchServe's handlers: an object {LABEL: score}, or a list of {LABEL: box, score}. */
function fromJson(tensor) {
  if (tensor.datatype !== "BYTES" || tensor.values.length !== 1 || fileType(tensor)) return {};
  let parsed;
  try {
    parsed = JSON.parse(textOf(tensor.values[0]));
  } catch {
    return {};
  }
  if (Array.isArray(parsed) && parsed.length && parsed.every((entry) => typeof entry?.score === "number")) {
    const found = parsed.map(({ score, ...rest }) => {
      const [label, box] = Object.entries(rest)[0] ?? [];
      return { label, score, box };
    });
    if (found.every(({ box }) => Array.isArray(box) && box.length === 4)) return { found };
  }
  if (parsed !== null && typeof parsed === "object" && !Array.isArray(parsed)) {
    const entries = Object.entries(parsed);
    if (entries.length && entries.every(([, score]) => typeof score === "number")) {
      return { entries: best(entries.map(([label, score]) => ({ label, score }))) };
    }
  }
  return {};
}

/** Scores [classes, height, width] as the likeliest class of each pixel. */
function likeliest(tensor) {
  const [classes, rows, columns] = tensor.shape;
  const values = new Int32Array(rows * columns);
  for (let pixel = 0; pixel < values.length; pixel += 1) {
    let top = -Infinity;
    for (let index = 0; index < classes; index += 1) {
      const score = tensor.values[index * rows * columns + pixel];
      if (score > top) {
        top = score;
        values[pixel] = index;
      }
    }
  }
  return { name: tensor.name, datatype: "INT32", shape: [rows, columns], values };
}

/**
 * The ways to show one row, the best first.
 *
 * @param {Object[]} tensors - the row of each output
 * @param {?string[]} labels
 * @param {?Object} picture - that was sent
 * @returns {{title: string, make: function(): HTMLElement}[]}
 */
export function viewsOf(tensors, labels, picture) {
  const views = [];
  const add = (title, make) => views.push({ title, make });
  const found = detections(tensors, labels);
  if (found !== null) add("boxes", () => boxes(found, picture));
  for (const tensor of tensors) {
    const { name, datatype, shape } = tensor;
    const flat = hasRank(tensor, 3) && shape[2] === 1 && picture ? { ...tensor, shape: shape.slice(0, 2) } : tensor;
    // Smaller planes are lists of numbers, such as boxes, and no pictures.
    const plane = hasRank(flat, 2) && shape[0] > 3 && shape[1] > 4;
    const listed = openvinoDetections(tensor, labels);
    if (listed !== null) add(`${name} as boxes`, () => boxes(listed, picture));
    else if (plane && isNumbers(tensor) && !isFloat(datatype)) {
      add(name === "mask" ? "mask" : `${name} as mask`, () => mask(flat, labels, picture));
    } else if (datatype === "UINT8" && hasRank(tensor, 3) && [1, 3, 4].includes(shape[2])) {
      add(`${name} as picture`, () => pixels(tensor));
    } else if (picture && hasRank(tensor, 3) && isFloat(datatype) && shape[0] > 1 && shape[1] > 4 && shape[2] > 4) {
      add(`${name} as mask`, () => mask(likeliest(tensor), labels, picture));
    }
  }
  const classes = namedClasses(tensors, labels);
  if (classes !== null && found === null) add("classes", () => bars(classes));
  for (const tensor of tensors) {
    const { found: listed, entries } = fromJson(tensor);
    if (listed) add(`${tensor.name} as boxes`, () => boxes(listed, picture));
    if (entries) add(`${tensor.name} as classes`, () => bars(entries));
    const graded = found === null && classes === null ? scores(tensor, labels) : null;
    if (graded) add(`${tensor.name} as classes`, () => bars(graded));
    if (picture && hasRank(tensor, 2) && isFloat(tensor.datatype) && tensor.shape[0] > 4 && tensor.shape[1] > 4) {
      add(`${tensor.name} as heat map`, () => heat(tensor, picture));
    }
  }
  for (const tensor of tensors) {
    if (fileType(tensor)) add(`${tensor.name} as file`, () => files(tensor));
    else if (tensor.datatype === "BYTES") add(`${tensor.name} as text`, () => texts(tensor));
    else add(`${tensor.name} as numbers`, () => numbers(tensor));
  }
  return views;
}

/** One row, with a choice among its views. */
function rowResult(title, tensors, labels, picture) {
  const views = viewsOf(tensors, labels, picture);
  const box = element("div", { class: "view" });
  const draw = (place) => {
    try {
      box.replaceChildren(views[place].make());
    } catch (error) {
      box.replaceChildren(element("p", { class: "trouble" }, `this view cannot be drawn: ${error.message}`));
    }
  };
  const node = element("article", { class: "result" }, element("h4", {}, title));
  if (views.length > 1) {
    const id = freshId("view");
    const choice = element("select", { id, change: () => draw(choice.selectedIndex) },
      ...views.map((view) => element("option", {}, view.title)));
    node.append(element("p", { class: "pair" }, element("label", { for: id }, "Show"), choice));
  }
  node.append(box);
  if (views.length) draw(0);
  else box.append("the answer has no outputs");
  return node;
}

/**
 * @param {Object} answer - of `readAnswer`
 * @param {?string[]} labels
 * @param {Object[]} pictures - that were sent, in the order of their rows
 * @returns {HTMLElement}
 */
export function results(answer, labels, pictures) {
  const { outputs } = answer;
  const rows = outputs[0]?.shape[0] ?? 0;
  const batched = outputs.length > 0 && outputs.every(({ shape }) => shape.length > 0 && shape[0] === rows);
  const node = element("div", { class: rows > 1 && pictures.length ? "side-by-side" : null });
  if (batched) {
    for (let row = 0; row < Math.min(rows, SHOWN_ROWS); row += 1) {
      const title = pictures[row]?.name ?? (rows === 1 ? "Answer" : `Row ${row + 1}`);
      node.append(rowResult(title, outputs.map((output) => rowOf(output, row)), labels, pictures[row] ?? null));
    }
    if (rows === 0) node.append(element("p", { class: "note" }, "the answer has no rows"));
    if (rows > SHOWN_ROWS) node.append(element("p", { class: "note" }, `and ${rows - SHOWN_ROWS} rows more`));
  } else {
    node.append(rowResult("Answer", outputs, labels, pictures[0] ?? null));
  }
  return node;
}

/** The answer to a table as a table; null if an output has more than a few values for a row. */
export function rowsTable({ outputs }) {
  const rows = outputs[0]?.shape[0] ?? 0;
  const fits = ({ shape }) => shape.length > 0 && shape.length < 3 && shape[0] === rows && (shape[1] ?? 1) <= 16;
  if (!rows || !outputs.every(fits) || outputs.some(fileType)) return null;
  const cell = (output, row) => Array.from(rowOf(output, row).values, (value) => show(value, output.datatype)).join(", ");
  return table("Answer by row", ["row", ...outputs.map(({ name }) => name)],
    Array.from({ length: rows }, (_, row) => [String(row + 1), ...outputs.map((output) => cell(output, row))]));
}

/** The stages of a request as a bar and a table; what they leave of `total` is the way there and back. */
export function timing(stages, total) {
  const spent = stages.reduce((sum, { milliseconds }) => sum + milliseconds, 0);
  const all = [...stages, { name: "network and browser", milliseconds: Math.max(0, total - spent) }];
  const strip = element("div", { class: "strip", "aria-hidden": "true" });
  all.forEach(({ milliseconds }, place) => {
    const part = element("span", { class: `stage-${place < stages.length ? place % 5 : "rest"}` });
    part.style.flexGrow = String(Math.max(milliseconds, total / 200));
    strip.append(part);
  });
  return element("div", {}, strip, table("Time of each stage", ["stage", "ms", "share"],
    all.map(({ name, milliseconds }) =>
      [name, milliseconds.toFixed(2), `${((100 * milliseconds) / (total || 1)).toFixed(0)} %`])),
    element("p", { class: "note" }, `${show(total, "FP64")} ms in all`));
}

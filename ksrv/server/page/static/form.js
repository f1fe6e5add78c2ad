// The form of a model: a field for each input, made of what the metadata declares.
//
// A field's `collect()` gives what is sent and how to say it in a shell and in Python:
//   {name, datatype, shape, data | blobs, sizes, commands, python, imports, pictures, pictured}
// Its `save()` gives what the user filled in, as JSON with a `title`; `restore(value)` fills it in again.
// `data` is JSON text; `blobs` are bytes behind the JSON, `sizes` how long each bare element is.
// `pictures` are the sent files as {name, image, bitmap}, over which the answer is drawn; `image` is the result of
// `imageOf`, and `bitmap` is null if the browser cannot show the file. `pictured` is true if the input declares images.

import { element, freshId, table } from "./dom.js";
import { imageOf } from "./geometry.js";
import { filePlace, readPicture, readable, canvasOf } from "./pictures.js";
import { DATATYPES, bytesPart, count, isFloat, itemSize, readNpy, readNumbers } from "./tensors.js";
import { pythonText, shellFile } from "./code.js";
import { packFile, unpackFile } from "./kept.js";

const WRITTEN = 64; // values that the field writes out; the others are zeros until the user writes them

/** An input that cannot be sent as it is; `field` is where the user mends it. */
export class FieldError extends Error {
  constructor(field, message) {
    super(message);
    this.field = field;
  }
}

const declared = ({ datatype, shape }) => `${datatype} [${shape.join(", ")}]`;

/** A fieldset named by its input. */
function fieldset(input, ...children) {
  return element("fieldset", {},
    element("legend", {}, input.name, " ", element("small", {}, declared(input))), ...children);
}

function pictureField(input, image) {
  let files = [];
  const previews = element("div", { class: "previews" });
  const batched = input.shape[0] === -1;
  const place = filePlace(
    batched ? "Drop, paste or choose pictures" : "Drop, paste or choose a picture",
    {
      accept: "image/*", multiple: batched,
      changed: async (chosen) => {
        files = chosen;
        previews.replaceChildren();
        for (const file of chosen) {
          try {
            const bitmap = await readPicture(file, image);
            const { canvas } = canvasOf(bitmap, 160);
            canvas.setAttribute("role", "img");
            canvas.setAttribute("aria-label", `${file.name}, ${bitmap.width} by ${bitmap.height} pixels`);
            previews.append(canvas);
          } catch {
            previews.append(element("p", { class: "note" }, `${file.name}: the browser cannot show it`));
          }
        }
        node.dispatchEvent(new Event("filled", { bubbles: true }));
      },
    });
  const node = fieldset(input, place, previews);
  return {
    node,
    take: (given) => place.take(given),
    save: () => savedFiles(files),
    restore: (value) => place.take(value.files.map(unpackFile)),
    async collect() {
      if (!files.length) throw new FieldError(place.querySelector("input"), "choose a picture first");
      const sent = [];
      for (const file of files) sent.push(await readable(file, image).catch(() => file));
      const pictures = await Promise.all(sent.map(async (file) => ({
        name: file.name, image, bitmap: await readPicture(file, image).catch(() => null),
      })));
      return { ...bareFiles(input.name, sent), pictures, pictured: true };
    },
  };
}

async function savedFiles(files) {
  return { title: files.map((file) => file.name).join(", "), files: await Promise.all(files.map(packFile)) };
}

/** Files as elements of BYTES, as they are. */
function bareFiles(name, files) {
  return {
    name, datatype: "BYTES", shape: [files.length], blobs: files,
    sizes: files.map((file) => ({ bytes: file.size, shell: `$(($(wc -c < ${shellFile(file.name)})))` })),
    commands: files.map((file) => `cat ${shellFile(file.name)}`),
    python: `[${files.map((file) => `Path(${pythonText(file.name)})`).join(", ")}]`,
    imports: ["from pathlib import Path"],
  };
}

function bytesField(input) {
  const id = freshId("text");
  let files = [];
  const area = element("textarea", { id, rows: 4, spellcheck: false });
  const batched = input.shape[0] === -1 || input.shape.length === 0;
  const lines = element("input", { type: "checkbox", id: freshId("lines") });
  const writeAgain = () => {
    files = [];
    area.disabled = false;
    drop.hidden = true;
    place.querySelector(".chosen").textContent = "";
  };
  const drop = element("button", { type: "button", hidden: true, click: writeAgain }, "Send the text instead");
  const place = filePlace("or drop, paste or choose a file", {
    multiple: batched,
    changed: (chosen) => {
      files = chosen;
      area.disabled = true;
      drop.hidden = false;
    },
  });
  const node = fieldset(input, element("label", { for: id }, "Text"), area,
    ...(batched ? [element("p", { class: "check" }, lines,
      element("label", { for: lines.id }, "each line is a separate row"))] : []),
    place, drop);
  const shapeOf = (rows) => [rows, ...input.shape.slice(1).map((size) => (size < 0 ? 1 : size))];
  return {
    node,
    take: (given) => place.take(given),
    async save() {
      const saved = files.length ? await savedFiles(files) : { title: area.value.trim(), files: [] };
      return { ...saved, text: area.value, lines: lines.checked };
    },
    restore(value) {
      area.value = value.text;
      lines.checked = value.lines;
      if (value.files.length) place.take(value.files.map(unpackFile));
      else writeAgain();
    },
    async collect() {
      if (files.length) {
        const pictures = await Promise.all(files.map(async (file) => ({
          name: file.name, image: null,
          bitmap: file.type.startsWith("image/") ? await readPicture(file, null).catch(() => null) : null,
        })));
        return { ...bareFiles(input.name, files), shape: shapeOf(files.length), pictures };
      }
      const texts = lines.checked ? area.value.split("\n").filter((line) => line !== "") : [area.value];
      if (!texts.length) throw new FieldError(area, "write a text first");
      const data = JSON.stringify(texts);
      const shape = shapeOf(texts.length);
      // ksrv.client takes texts in one dimension; deeper shapes are lists in lists.
      let python = `[${texts.map(pythonText).join(", ")}]`;
      if (shape.length > 1) python = `np.array(${python}, object).reshape(${pythonTuple(shape)})`;
      return {
        name: input.name, datatype: "BYTES", shape, data, python,
        imports: shape.length > 1 ? ["import numpy as np"] : [],
      };
    },
  };
}

const pythonTuple = (shape) => `(${shape.join(", ")}${shape.length === 1 ? "," : ""})`;

/** Zeros as nested JSON arrays, on one line. */
function zerosText(shape, datatype) {
  const zero = datatype === "BOOL" ? "false" : "0";
  const level = (sizes) =>
    sizes.length === 0 ? zero : `[${Array(sizes[0]).fill(level(sizes.slice(1))).join(", ")}]`;
  return level(shape);
}

function numbersField(input) {
  const shape = input.shape.map((size, place) => (size >= 0 ? size : place === 0 ? 1 : 8));
  const small = count(shape) <= WRITTEN;
  const areaId = freshId("numbers");
  const area = element("textarea", { id: areaId, rows: 4, spellcheck: false });
  area.value = small ? zerosText(shape, input.datatype) : "";
  const sizes = element("input", { id: freshId("shape"), value: shape.join(", "), inputmode: "numeric" });
  let file = null;
  const place = filePlace("Drop or choose a .npy file", {
    accept: ".npy", changed: ([chosen]) => { file = chosen; },
  });
  const panes = {
    values: element("div", {}, element("label", { for: areaId }, "Numbers in JSON arrays"), area),
    zeros: element("div", {}, element("label", { for: sizes.id }, "Shape"), sizes),
    file: element("div", {}, place),
  };
  const kind = element("select", { id: freshId("kind") },
    element("option", { value: "values" }, "numbers"),
    element("option", { value: "zeros" }, "zeros"),
    element("option", { value: "file" }, "a .npy file"));
  const show = () => {
    for (const [name, pane] of Object.entries(panes)) pane.hidden = name !== kind.value;
  };
  kind.value = small ? "values" : "zeros";
  kind.addEventListener("change", show);
  show();
  const node = fieldset(input, element("label", { for: kind.id }, "Send"), kind, ...Object.values(panes));

  function written() {
    let read;
    try {
      read = readNumbers(area.value);
    } catch (error) {
      throw new FieldError(area, error.message);
    }
    // A value with one dimension fewer than declared is one row, as in ksrv.client.
    const row = read.shape.length + 1 === input.shape.length && input.shape[0] === -1;
    const found = row ? [1, ...read.shape] : read.shape;
    const words = area.value.trim().replace(/\s+/g, " ");
    const python = row ? `[${words}]` : words;
    const part = {
      name: input.name, datatype: input.datatype, shape: found, imports: [],
      python: python.replace(/\btrue\b/g, "True").replace(/\bfalse\b/g, "False"),
    };
    // The JSON of KServe v2 has no form for FP16 and BF16: their bytes are sent.
    if (input.datatype !== "FP16" && input.datatype !== "BF16") {
      return { ...part, data: `[${read.tokens.join(",")}]` };
    }
    return { ...part, ...bytesPart(input.datatype, read.tokens.map((token) => Number(JSON.parse(token)))) };
  }

  function zeros() {
    const words = sizes.value.split(/[\s,]+/).filter(Boolean);
    if (words.some((word) => !/^[0-9]{1,9}$/.test(word))) {
      throw new FieldError(sizes, "a shape is sizes with commas, such as 1, 224, 224, 3");
    }
    const found = words.map(Number);
    const bytes = count(found) * itemSize(input.datatype);
    if (bytes > 2 ** 30) throw new FieldError(sizes, "zeros of more than 1 GiB are not sent from here");
    return {
      name: input.name, datatype: input.datatype, shape: found, blobs: [new Uint8Array(bytes)],
      commands: [`head -c ${bytes} /dev/zero`],
      python: `np.zeros(${pythonTuple(found)}, ${pythonText(numpyName(input.datatype))})`,
      imports: ["import numpy as np"],
    };
  }

  async function fromFile() {
    if (file === null) throw new FieldError(place.querySelector("input"), "choose a .npy file first");
    let array;
    try {
      array = await readNpy(file);
    } catch (error) {
      throw new FieldError(place.querySelector("input"), error.message);
    }
    return {
      name: input.name, datatype: array.datatype, shape: array.shape, blobs: [array.bytes],
      commands: [`tail -c ${array.bytes.length} ${shellFile(file.name)}`],
      python: `np.load(${pythonText(file.name)})`, imports: ["import numpy as np"],
    };
  }

  return {
    node,
    async save() {
      const saved = kind.value === "file" && file !== null ? await savedFiles([file]) : { files: [] };
      const title = kind.value === "zeros" ? `zeros ${sizes.value}` : area.value.replace(/\s+/g, " ");
      return { title, ...saved, kind: kind.value, text: area.value, shape: sizes.value };
    },
    restore(value) {
      kind.value = value.kind;
      area.value = value.text;
      sizes.value = value.shape;
      if (value.files.length) place.take(value.files.map(unpackFile));
      show();
    },
    take: (given) => {
      kind.value = "file";
      show();
      place.take(given);
    },
    collect: async () => ({ values: written, zeros, file: fromFile })[kind.value](),
  };
}

function numpyName(datatype) {
  if (datatype === "BOOL") return "bool";
  if (datatype === "BF16") return "float32";
  return datatype.toLowerCase().replace(/^fp/, "float");
}

/** An input that the user names: for models that declare none. */
function freeField(remove) {
  const name = element("input", { id: freshId("name"), value: "data", spellcheck: false });
  const datatype = element("select", { id: freshId("datatype") },
    ...DATATYPES.map((name) => element("option", {}, name)));
  datatype.value = "BYTES";
  const box = element("div");
  let inner;
  const build = () => {
    const shape = datatype.value === "BYTES" ? [-1] : [-1, 4];
    const input = { name: name.value, datatype: datatype.value, shape };
    inner = datatype.value === "BYTES" ? bytesField(input) : numbersField(input);
    box.replaceChildren(inner.node);
  };
  datatype.addEventListener("change", build);
  build();
  const node = element("div", { class: "free" },
    element("div", { class: "pair" },
      element("label", { for: name.id }, "Input's name"), name,
      element("label", { for: datatype.id }, "Datatype"), datatype,
      element("button", { type: "button", click: () => remove(field) }, "Remove")),
    box);
  const field = {
    node,
    take: (files) => inner.take(files),
    save: async () => ({ ...(await inner.save()), name: name.value, datatype: datatype.value }),
    restore(value) {
      name.value = value.name;
      datatype.value = value.datatype;
      build();
      inner.restore(value);
    },
    collect: async () => ({ ...(await inner.collect()), name: name.value }),
  };
  return field;
}

/** Whether the inputs of a model are the columns of a table. */
function areColumns({ inputs, properties = {} }) {
  return inputs.length > 1 && inputs.some(({ datatype }) => datatype !== "BYTES") && inputs.every(({ name, shape }) =>
    shape.length === 1 && shape[0] === -1 && properties[`${name}.optional`] !== "true");
}

/** A cell's text as JSON; null for a missing number. */
function jsonOf(cell, { name, datatype }) {
  const text = cell.value.trim();
  if (datatype === "BYTES") return JSON.stringify(cell.value);
  if (text === "" && isFloat(datatype)) return null;
  const fits = datatype === "BOOL" ? /^(true|false)$/ : /^-?\d+(\.\d+)?([eE][+-]?\d+)?$/;
  if (fits.test(text)) return text.replace(/^(-?)0+(?=\d)/, "$1");
  throw new FieldError(cell, `${name}: expected ${datatype === "BOOL" ? "true or false" : "a number"}, found '${text}'`);
}

function partOf(input, cells) {
  const { name, datatype } = input;
  const values = cells.map((cell) => jsonOf(cell, input));
  const words = { null: 'float("nan")', true: "True", false: "False" };
  const python = `[${values.map((value, place) => datatype === "BYTES"
    ? pythonText(cells[place].value) : words[value] ?? value).join(", ")}]`;
  const part = { name, datatype, shape: [cells.length], python, imports: [] };
  if (datatype === "FP16" || datatype === "BF16" || values.includes(null)) {
    return { ...part, ...bytesPart(datatype, values.map((value) => (value === null ? NaN : Number(value)))) };
  }
  return { ...part, data: `[${values.join(",")}]` };
}

/** A table to fill in, for a model whose inputs are columns: a row of the table is a row of the request. */
function tableField(inputs) {
  const rows = [];
  const node = element("div");
  const show = () => node.replaceChildren(
    table("Rows to send", ["row", ...inputs.map((input) => `${input.name} (${input.datatype === "BYTES" ? "text" : input.datatype})`)],
      rows.map((cells, place) => [String(place + 1), ...cells])),
    element("p", { class: "buttons" },
      element("button", { type: "button", click: () => add() }, "Add a row"),
      element("button", { type: "button", hidden: rows.length < 2, click: () => { rows.pop(); show(); } }, "Remove a row")),
    element("p", { class: "note" }, "Cells of a spreadsheet can be pasted. An empty number is a missing value."));

  function add(values = []) {
    rows.push(inputs.map((input, place) => {
      const label = `${input.name}, row ${rows.length + 1}`;
      const cell = element("input", { "aria-label": label, spellcheck: false, paste: (event) => spread(event, cell) });
      cell.value = values[place] ?? (input.datatype === "BYTES" || isFloat(input.datatype) ? "" : "0");
      return cell;
    }));
    show();
  }

  /** Put the cells of a spreadsheet into the table, from the given cell on. */
  function spread(event, cell) {
    const lines = event.clipboardData.getData("text").replace(/\r?\n$/, "").split(/\r?\n/).map((line) => line.split("\t"));
    if (lines.length === 1 && lines[0].length === 1) return;
    event.preventDefault();
    const top = rows.findIndex((cells) => cells.includes(cell));
    const left = rows[top].indexOf(cell);
    lines.forEach((words, place) => {
      if (rows.length === top + place) add();
      words.forEach((word, column) => { if (rows[top + place][left + column]) rows[top + place][left + column].value = word; });
    });
  }

  add();
  return {
    node,
    take: () => {},
    save: async () => ({ title: rows[0].map((cell) => cell.value).join(", "), rows: rows.map((cells) => cells.map((cell) => cell.value)) }),
    restore: (value) => {
      rows.length = 0;
      value.rows.forEach(add);
    },
    collect: async () => inputs.map((input, place) => partOf(input, rows.map((cells) => cells[place]))),
  };
}

function fieldOf(input, properties) {
  const image = imageOf(properties, input.name);
  if (image !== null) return pictureField(input, image);
  return input.datatype === "BYTES" ? bytesField(input) : numbersField(input);
}

/**
 * The fields of a model.
 *
 * @param {Object} metadata - of the model
 * @returns {{node: HTMLElement, take: function, save: function, restore: function, collect: function}}
 */
export function formOf({ inputs, properties }) {
  let fields = [];
  const list = element("div");
  const put = (field) => {
    fields.push(field);
    list.append(field.node);
    return field;
  };
  const add = () => put(freeField((gone) => {
    fields = fields.filter((field) => field !== gone);
    gone.node.remove();
  }));
  const isTable = areColumns({ inputs, properties });
  if (isTable) put(tableField(inputs));
  else for (const input of inputs) put(fieldOf(input, properties));
  if (!inputs.length) add();
  return {
    isTable,
    node: inputs.length ? list : element("div", {},
      element("p", { class: "note" }, "This model declares no inputs: it takes what its handler reads."),
      list, element("button", { type: "button", click: add }, "Add an input")),
    take: (files) => {
      const pictures = fields.find((field) => field.node.querySelector('[accept="image/*"]'));
      (pictures ?? fields[0])?.take(files);
    },
    save: () => Promise.all(fields.map((field) => field.save())),
    restore: (values) => {
      if (!inputs.length) {
        fields = [];
        list.replaceChildren();
      }
      values.forEach((value, place) => (fields[place] ?? add()).restore(value));
    },
    collect: async () => {
      if (!fields.length) throw new FieldError(null, "add an input first");
      const parts = [];
      for (const field of fields) parts.push(...[await field.collect()].flat());
      return parts;
    },
  };
}

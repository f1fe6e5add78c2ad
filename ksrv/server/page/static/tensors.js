// Tensors between their bytes, their JSON text and arrays.

import { DTYPES, FLOATING } from "./datatypes.js";

const textDecoder = new TextDecoder();
const strictDecoder = new TextDecoder("utf-8", { fatal: true });

/** The arrays of numpy's dtypes. */
const ARRAYS = {
  "|b1": Uint8Array, "|u1": Uint8Array, "<u2": Uint16Array, "<u4": Uint32Array, "<u8": BigUint64Array,
  "|i1": Int8Array, "<i2": Int16Array, "<i4": Int32Array, "<i8": BigInt64Array, "<f2": globalThis.Float16Array,
  "<f4": Float32Array, "<f8": Float64Array,
};

export const DATATYPES = [...Object.keys(DTYPES), "BYTES"];

/** The class of a datatype's arrays. Browsers from before 2025 have none for FP16, and serve the other datatypes. */
function arrayClass(datatype) {
  const dtype = DTYPES[datatype];
  if (!(dtype in ARRAYS)) throw new Error(`the answer has the unknown datatype ${datatype}`);
  if (!ARRAYS[dtype]) throw new Error(`this browser has no arrays of ${datatype}: update it`);
  return ARRAYS[dtype];
}

export const itemSize = (datatype) => arrayClass(datatype).BYTES_PER_ELEMENT;

export const count = (shape) => shape.reduce((product, size) => product * size, 1);

export const isFloat = (datatype) => FLOATING.includes(datatype);

function fromBrain(bits) {
  return new Float32Array(Uint32Array.from(bits, (entry) => entry << 16).buffer);
}

function toBrain(values) {
  const words = new Uint32Array(Float32Array.from(values).buffer);
  return Uint16Array.from(words, (word) => {
    // NaN stays NaN; any other number is rounded to the nearest, and to the even one of two equally near.
    if ((word & 0x7fffffff) > 0x7f800000) return (word >>> 16) | 0x40;
    return (word + 0x7fff + ((word >>> 16) & 1)) >>> 16;
  });
}

/** The bytes of floating-point numbers after the JSON, and the shell command that prints them. */
export function bytesPart(datatype, numbers) {
  const words = datatype === "BF16" ? toBrain(numbers) : arrayClass(datatype).from(numbers);
  const bytes = new Uint8Array(words.buffer);
  const octal = Array.from(bytes, (byte) => `\\${byte.toString(8).padStart(3, "0")}`).join("");
  return { blobs: [bytes], commands: [`printf '${octal}'`] };
}

/** Values from a tensor's bytes: a typed array of numbers, or a list of byte strings. */
export function decode(datatype, bytes) {
  if (datatype === "BYTES") {
    const elements = [];
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    for (let place = 0; place + 4 <= bytes.length;) {
      const size = view.getUint32(place, true);
      elements.push(bytes.subarray(place + 4, place + 4 + size));
      place += 4 + size;
    }
    return elements;
  }
  const type = arrayClass(datatype);
  const words = new type(bytes.slice().buffer, 0, Math.floor(bytes.length / itemSize(datatype)));
  if (datatype === "BF16") return fromBrain(words);
  return words;
}

/**
 * @param {ArrayBuffer} buffer - an answer
 * @param {?string} headerLength - its `Inference-Header-Content-Length`
 * @returns {Object} the answer's JSON, whose outputs have `values`
 */
export function readAnswer(buffer, headerLength) {
  const bytes = new Uint8Array(buffer);
  let place = headerLength === null ? bytes.length : Number(headerLength);
  const answer = JSON.parse(textDecoder.decode(bytes.subarray(0, place)));
  const outputs = (answer.outputs ?? []).map((output) => {
    const size = output.parameters?.binary_data_size;
    if (size === undefined) {
      const data = (output.data ?? []).flat(Infinity);
      const values = output.datatype === "BYTES" ? data.map((entry) => elementOf(entry, output.parameters)) : data;
      return { ...output, values };
    }
    const part = bytes.subarray(place, place + size);
    place += size;
    return { ...output, values: decode(output.datatype, part) };
  });
  return { ...answer, outputs };
}

/** The bytes of an element in JSON: a text, or base64 if it is not text or the output's parameters ask for base64. */
export function elementOf(entry, parameters) {
  const code = parameters?.content_type === "base64" ? entry : entry?.b64;
  if (code === undefined) return new TextEncoder().encode(String(entry));
  return Uint8Array.from(atob(code), (unit) => unit.charCodeAt(0));
}

/** The type of the files that an output has; undefined for an output of texts or numbers. */
export const fileType = (tensor) => tensor.parameters?.media_type;

/** Text of a byte string, or a description of it if it is not text. */
export function textOf(bytes) {
  try {
    return strictDecoder.decode(bytes);
  } catch {
    return `${bytes.length} bytes that are not text`;
  }
}

/** One value as a person reads it. */
export function show(value, datatype) {
  if (value instanceof Uint8Array) return textOf(value);
  if (datatype === "BOOL") return value ? "true" : "false";
  if (typeof value === "number" && !Number.isInteger(value)) return String(Number(value.toPrecision(6)));
  return String(value);
}

/** The part of a tensor that belongs to one row, with the shape of a row. */
export function rowOf(tensor, row) {
  const shape = tensor.shape.slice(1);
  const size = count(shape);
  const values = tensor.values.slice(row * size, (row + 1) * size);
  return { name: tensor.name, datatype: tensor.datatype, parameters: tensor.parameters, shape, values };
}

/**
 * @param {string} text - numbers, true and false in JSON arrays, or one number
 * @returns {{shape: number[], tokens: string[]}} the numbers as they are written: JavaScript would
 *   round integers beyond 2^53
 */
export function readNumbers(text) {
  let parsed;
  try {
    parsed = JSON.parse(text);
  } catch (error) {
    throw new Error(`this is not JSON: ${error.message}`, { cause: error });
  }
  const shape = [];
  for (let level = parsed; Array.isArray(level); level = level[0]) shape.push(level.length);
  const check = (level, depth) => {
    if (depth === shape.length) {
      if (typeof level !== "number" && typeof level !== "boolean") {
        throw new Error(`expected numbers in arrays, found ${JSON.stringify(level).slice(0, 40)}`);
      }
    } else if (!Array.isArray(level) || level.length !== shape[depth]) {
      throw new Error("the arrays must have one length in each dimension");
    } else {
      for (const entry of level) check(entry, depth + 1);
    }
  };
  check(parsed, 0);
  return { shape, tokens: text.match(/[^\s,[\]]+/g) ?? [] };
}

/** Datatype, shape and bytes of a .npy file of numbers in C order, little-endian. */
export async function readNpy(file) {
  const bytes = new Uint8Array(await file.arrayBuffer());
  const magic = String.fromCharCode(...bytes.subarray(0, 6));
  if (magic !== "\x93NUMPY") throw new Error(`${file.name} is no .npy file`);
  const view = new DataView(bytes.buffer);
  const wide = bytes[6] > 1;
  const length = wide ? view.getUint32(8, true) : view.getUint16(8, true);
  const start = (wide ? 12 : 10) + length;
  const header = textDecoder.decode(bytes.subarray(start - length, start));
  const kind = /'descr':\s*'([^']*)'/.exec(header)?.[1] ?? "";
  const sizes = /'shape':\s*\(([^)]*)\)/.exec(header)?.[1] ?? "";
  const datatype = Object.keys(DTYPES).find((name) => DTYPES[name] === kind);
  if (datatype === undefined || !header.includes("'fortran_order': False")) {
    throw new Error(`${file.name} holds ${kind || "no array"}; expected numbers in C order, little-endian`);
  }
  const shape = sizes.split(",").map((size) => size.trim()).filter(Boolean).map(Number);
  const needed = count(shape) * itemSize(datatype);
  if (bytes.length - start !== needed) {
    throw new Error(`${file.name} holds ${bytes.length - start} bytes of numbers; its shape needs ${needed}`);
  }
  return { datatype, shape, bytes: bytes.subarray(start) };
}

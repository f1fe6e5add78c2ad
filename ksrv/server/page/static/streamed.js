// Answers that come piece by piece, as server-sent events of infer responses.

import { CallFailed } from "./api.js";
import { element } from "./dom.js";
import { elementOf, fileType, show, textOf } from "./tensors.js";
import { files } from "./views.js";

/** The events of a response, each with its type and its data. */
async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split(/\r?\n\r?\n/);
    rest = blocks.pop();
    for (const block of blocks) {
      const event = { type: "message", data: "" };
      for (const line of block.split(/\r?\n/)) {
        if (line.startsWith("event:")) event.type = line.slice(6).trim();
        if (line.startsWith("data:")) event.data += line.slice(5);
      }
      if (event.data) yield event;
    }
  }
}

/**
 * Show the pieces of an answer as they come: each row of each output has a text that grows.
 *
 * @param {Response} response - with the type text/event-stream
 * @param {HTMLElement} place
 * @param {function(number)} counted - gets the number of pieces
 */
export async function showPieces(response, place, counted) {
  const texts = new Map();
  let pieces = 0;
  for await (const { type, data } of eventsOf(response)) {
    const document = JSON.parse(data);
    if (type === "error" || document.error !== undefined) throw new CallFailed(0, String(document.error));
    pieces += 1;
    for (const { name, datatype, shape, parameters, data: values = [] } of document.outputs ?? []) {
      const rows = shape[0] || 1;
      const flat = values.flat(Infinity);
      for (let row = 0; row < rows; row += 1) {
        const key = `${name}, row ${row + 1}`;
        if (!texts.has(key)) {
          texts.set(key, element("pre", { class: "text", tabindex: 0, role: "log", "aria-label": key }));
          place.append(element("article", { class: "result" }, element("h4", {}, key), texts.get(key)));
        }
        const step = flat.length / rows;
        const part = flat.slice(row * step, (row + 1) * step);
        const bytes = datatype === "BYTES" ? part.map((entry) => elementOf(entry, parameters)) : [];
        texts.get(key).append(fileType({ parameters }) ? files({ name, parameters, values: bytes })
          : datatype === "BYTES" ? bytes.map(textOf).join("")
          : `${part.map((value) => show(value, datatype)).join("  ")}\n`);
      }
    }
    counted(pieces);
  }
}

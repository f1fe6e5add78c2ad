// Up to three requests of a model that the user wants to send again, kept in the browser's storage.

import { element } from "./dom.js";

const MOST = 3;
const MOST_BYTES = 2 ** 20; // a browser keeps about five MiB for a site

const keyOf = (model) => `ksrv.requests.${model}`;

function read(model) {
  try {
    const found = JSON.parse(localStorage.getItem(keyOf(model)) ?? "[]");
    return Array.isArray(found) ? found.slice(0, MOST) : [];
  } catch {
    return []; // storage is switched off, or holds what another program wrote
  }
}

/** A file as text for JSON, and back. */
export async function packFile(file) {
  const bytes = new Uint8Array(await file.arrayBuffer());
  let text = "";
  for (let place = 0; place < bytes.length; place += 8192) {
    text += String.fromCharCode(...bytes.subarray(place, place + 8192));
  }
  return { name: file.name, type: file.type, base64: btoa(text) };
}

export function unpackFile({ name, type, base64 }) {
  return new File([Uint8Array.from(atob(base64), (unit) => unit.charCodeAt(0))], name, { type });
}

/**
 * The buttons that keep the form's content, and fill it again.
 *
 * @param {string} model - the model's address on this page
 * @param {Object} form - of `formOf`
 * @returns {HTMLElement}
 */
export function keepForm(model, form) {
  let kept = read(model);
  const list = element("span", { class: "buttons" });
  const said = element("span", { role: "status", class: "note" });

  function write(changed, sentence) {
    try {
      localStorage.setItem(keyOf(model), JSON.stringify(changed));
    } catch {
      said.textContent = "this browser does not keep anything for this page";
      return;
    }
    kept = changed;
    said.textContent = sentence;
    show();
  }

  function show() {
    list.replaceChildren(...kept.map(({ title, values }, place) => element("span", { class: "kept" },
      element("button", { type: "button", click: () => form.restore(values) }, title),
      element("button", {
        type: "button", "aria-label": `Forget ${title}`,
        click: () => write(kept.filter((_, other) => other !== place), "forgotten"),
      }, "×"))));
  }

  const keep = element("button", { type: "button", click: async () => {
    const values = await form.save();
    const title = values.map((value) => value.title).filter(Boolean).join(", ").slice(0, 40) || "zeros";
    if (JSON.stringify(values).length > MOST_BYTES) {
      said.textContent = "too large to be kept: at most 1 MiB";
      return;
    }
    const others = kept.filter((entry) => entry.title !== title);
    write([{ title, values }, ...others].slice(0, MOST), `kept in this browser; the last ${MOST} stay`);
  } }, "Keep this request");
  show();
  return element("div", { class: "buttons" }, keep, list, said);
}

// The page: the list of models, the open one with its form, and what its answers look like.

import * as api from "./api.js";
import { curlCode, pythonCode, requestOf } from "./code.js";
import { element, freshId } from "./dom.js";
import { FieldError, formOf } from "./form.js";
import { fromHash, hashOf, listModels, modelHead, statisticsList, tensorsTable } from "./models.js";
import { keepForm } from "./kept.js";
import { results, rowsTable, timing } from "./results.js";
import { showPieces } from "./streamed.js";
import { readAnswer } from "./tensors.js";
import { forgetFiles } from "./views.js";

const REFRESH_MS = 2000;

const at = (id) => document.getElementById(id);

let entries = [];
let open = null;
let shown = null; // of the open model: {state, head, said, take, refresh}

function askToken(sentence) {
  const dialog = at("token-dialog");
  at("token-text").textContent = sentence;
  at("token").value = "";
  dialog.showModal();
  return new Promise((resolve) => {
    const done = (event) => {
      event.preventDefault();
      const value = event.type === "submit" ? at("token").value.trim() : "";
      at("token-form").removeEventListener("submit", done);
      dialog.removeEventListener("cancel", done);
      at("token-cancel").removeEventListener("click", done);
      dialog.close();
      if (value) api.keepToken(value);
      at("forget-token").hidden = !api.hasToken();
      resolve(value || null);
    };
    at("token-form").addEventListener("submit", done);
    dialog.addEventListener("cancel", done);
    at("token-cancel").addEventListener("click", done);
  });
}

function trouble(error) {
  at("trouble").hidden = error === null;
  at("trouble").textContent = error === null ? "" : sentenceOf(error);
}

function sentenceOf(error) {
  if (!(error instanceof api.CallFailed)) return error.message;
  return error.status ? `${error.status}: ${error.message}` : error.message;
}

/** A section that opens and closes, with a heading. */
const section = (title, ...children) =>
  element("section", {}, element("h3", {}, title), ...children);

function codeBlock(title, text) {
  const copied = element("span", { role: "status", class: "note" });
  const copy = element("button", { type: "button", click: async () => {
    try {
      await navigator.clipboard.writeText(text);
      copied.textContent = "copied";
    } catch {
      copied.textContent = "the browser does not allow copying from here: select the text";
    }
  } }, `Copy ${title}`);
  return element("div", {}, element("h4", {}, title),
    element("pre", { class: "code", tabindex: 0 }, text), copy, " ", copied);
}

/** The form, the answer and the code of one model. */
function trial(entry, metadata, refresh) {
  const { name, version = "" } = entry;
  const labels = labelsOf(metadata);
  const form = formOf(metadata);
  const status = element("p", { role: "status", class: "status" });
  const answer = element("div");
  const code = element("div");
  const send = element("button", { type: "submit", class: "primary" }, "Send");
  const cancel = element("button", { type: "button", hidden: true }, "Cancel");
  const pieces = element("input", { type: "checkbox", id: freshId("pieces") });
  let running = null;
  cancel.addEventListener("click", () => running?.abort());

  async function run() {
    node.querySelectorAll("[aria-invalid]").forEach((field) => field.removeAttribute("aria-invalid"));
    answer.replaceChildren();
    forgetFiles();
    status.className = "status";
    status.textContent = "";
    const streamed = pieces.checked;
    const parts = await form.collect();
    code.replaceChildren(codeBlock("curl", curlCode(name, version, parts, streamed)),
      codeBlock("Python", pythonCode(name, version, parts, streamed)));
    status.textContent = "waiting for the answer";
    const started = performance.now();
    const response = await api.call(`${api.modelPath(name, version)}/infer`, {
      method: "POST", signal: running.signal, ...requestOf(parts, streamed),
    });
    if (response.headers.get("Content-Type")?.startsWith("text/event-stream")) {
      let told = "";
      await showPieces(response, answer, (count) => {
        if (count === 1) told = `the first piece came after ${(performance.now() - started).toFixed(1)} ms`;
        status.textContent = told;
      });
      status.textContent = `answered in ${(performance.now() - started).toFixed(1)} ms; ${told}`;
      return;
    }
    const buffer = await response.arrayBuffer();
    const total = performance.now() - started;
    const read = readAnswer(buffer, response.headers.get("Inference-Header-Content-Length"));
    const pictures = parts.find((part) => part.pictures)?.pictures ?? [];
    answer.append(form.isTable && rowsTable(read)
      || results(read, labels, pictures.map((item) => (item.bitmap ? item : { ...item, image: null }))));
    answer.append(section("Time", timing(api.stagesOf(response.headers.get("Server-Timing")), total)));
    status.textContent = `answered in ${total.toFixed(1)} ms`;
  }

  const node = element("form", {}, form.node,
    element("p", { class: "check", hidden: metadata.properties?.streams !== "true" }, pieces,
      element("label", { for: pieces.id }, "show the pieces of the answer as they come")),
    element("p", { class: "buttons" }, send, cancel),
    keepForm(hashOf(name, version), form), status, answer, code);
  node.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (running !== null) return;
    running = new AbortController();
    cancel.hidden = false;
    send.setAttribute("aria-disabled", "true");
    try {
      await run();
    } catch (error) {
      status.className = error.name === "AbortError" ? "status" : "status trouble";
      status.textContent = error.name === "AbortError" ? "cancelled" : sentenceOf(error);
      if (error instanceof FieldError) {
        error.field?.setAttribute("aria-invalid", "true");
        error.field?.focus();
      }
    } finally {
      running = null;
      cancel.hidden = true;
      send.removeAttribute("aria-disabled");
      refresh();
    }
  });
  // A chosen picture is sent at once: that is what it was chosen for.
  form.node.addEventListener("filled", () => {
    if (metadata.inputs.length === 1) node.requestSubmit();
  });
  return { node, take: form.take };
}

function labelsOf(metadata) {
  try {
    const labels = JSON.parse(metadata.properties?.labels ?? "null");
    return Array.isArray(labels) ? labels : null;
  } catch {
    return null;
  }
}

/** The head is made anew only if it says something else: a button in it may have the focus. */
function showHead(entry) {
  const said = JSON.stringify([entry.state, entry.reason]);
  if (said === shown.said) return;
  shown.said = said;
  shown.head.replaceChildren(modelHead(entry, async () => {
    try {
      await api.load(entry.name);
      return "loaded";
    } catch (error) {
      return sentenceOf(error);
    } finally {
      refresh();
    }
  }));
}

/** Show a model, with what the index says of it. */
async function showModel(entry) {
  const { name, version = "" } = entry;
  const place = at("model");
  document.title = `${name} · ksrv`;
  const head = element("div");
  shown = { state: entry.state, head, said: "", take: () => {}, refresh: async () => {} };
  showHead(entry);
  const mine = shown;
  place.replaceChildren(head);
  if (entry.state !== "READY") return;
  let metadata;
  try {
    metadata = await api.metadata(name, version);
  } catch (error) {
    if (mine === shown) place.append(element("p", { class: "trouble" }, sentenceOf(error)));
    return;
  }
  if (mine !== shown) return; // the user went on to another model meanwhile
  const statistics = element("div");
  mine.refresh = async () => {
    const found = await api.statistics(name, version).catch(() => null);
    statistics.replaceChildren(statisticsList(found));
  };
  const { node, take } = trial(entry, metadata, refresh);
  mine.take = take;
  place.append(section("Try it", node), section("Inputs and outputs", tensorsTable(metadata)),
    section("Statistics", statistics));
  await mine.refresh();
}

/** Ask the server for its models, and show what changed. */
async function refresh() {
  try {
    entries = (await api.index()).sort((one, other) => one.name.localeCompare(other.name));
    trouble(null);
  } catch (error) {
    trouble(error.status === 0
      ? new Error(`No connection to ${api.base.host}. The page tries again every ${REFRESH_MS / 1000} seconds.`)
      : error);
    if (error.status !== 0) return;
    entries = entries.map((entry) => ({ ...entry, state: "UNREACHABLE", reason: "" }));
    listModels(at("models"), entries, open);
    const entry = find();
    if (entry !== undefined && shown !== null) showHead(entry);
    return;
  }
  at("forget-token").hidden = !api.hasToken();
  listModels(at("models"), entries, open);
  const entry = find();
  if (entry === undefined) return;
  if (shown === null || shown.state !== entry.state) await showModel(entry);
  else {
    showHead(entry);
    await shown.refresh();
  }
}

const find = () =>
  open === null ? undefined
    : entries.find((entry) => entry.name === open.name && (entry.version ?? "") === open.version);

async function route() {
  const asked = fromHash(location.hash);
  if (asked === null && location.hash !== "" && open !== null) return; // the skip link
  const first = entries.find((entry) => entry.state === "READY") ?? entries[0];
  open = asked ?? (first ? { name: first.name, version: first.version ?? "" } : null);
  shown = null;
  listModels(at("models"), entries, open);
  const entry = find();
  if (entry !== undefined) await showModel(entry);
  else at("model").replaceChildren(element("p", {}, open === null
    ? "The server has no models." : `The server has no model ${open.name}.`));
  if (asked !== null) at("model").focus({ preventScroll: true });
}

async function start() {
  api.onTokenNeeded(askToken);
  at("forget-token").addEventListener("click", () => {
    api.keepToken(null);
    location.reload();
  });
  addEventListener("hashchange", route);
  // A link sends no token: where one is needed, the page asks with it and shows the answer.
  for (const link of document.querySelectorAll(".links a:not(#docs-link)")) {
    link.addEventListener("click", async (event) => {
      if (!api.hasToken()) return;
      event.preventDefault();
      try {
        const text = await (await api.call(link.getAttribute("href"))).text();
        open = null;
        at("model").replaceChildren(element("h2", {}, link.textContent), element("pre", { class: "text", tabindex: 0 }, text));
      } catch (error) {
        trouble(error);
      }
    });
  }
  addEventListener("paste", (event) => {
    const files = event.clipboardData?.files ?? [];
    if (files.length && shown) {
      event.preventDefault();
      shown.take(files);
    }
  });
  for (const type of ["dragover", "drop"]) {
    addEventListener(type, (event) => {
      event.preventDefault(); // else the browser leaves the page for the file
      if (type === "drop" && shown && event.dataTransfer.files.length) shown.take(event.dataTransfer.files);
    });
  }
  await refresh();
  api.server().then(({ version }) => { at("version").textContent = version; }, trouble);
  await route();
  setInterval(() => {
    if (document.visibilityState === "visible" && !at("token-dialog").open) refresh();
  }, REFRESH_MS);
}

start();

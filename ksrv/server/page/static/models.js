// The server's models: the list with states, and a model's inputs, outputs and statistics.

import { element, table } from "./dom.js";
import { imageOf } from "./geometry.js";

const STATES = {
  READY: "ready", LOADING: "loading", UNLOADING: "unloading", UNAVAILABLE: "not available",
  UNREACHABLE: "no connection",
};

/** A model's address on this page. */
export const hashOf = (name, version) =>
  `#/${encodeURIComponent(name)}${version ? `/${encodeURIComponent(version)}` : ""}`;

/** Name and version of an address, or null. */
export function fromHash(hash) {
  const match = /^#\/([^/]+)(?:\/([^/]+))?$/.exec(hash);
  try {
    return match && { name: decodeURIComponent(match[1]), version: decodeURIComponent(match[2] ?? "") };
  } catch {
    return null; // invalid escapes
  }
}

const badge = (state) => element("span", { class: `state state-${state}` }, STATES[state] ?? state);

/** Show the models as links; the open model is marked. */
export function listModels(list, entries, open) {
  const focused = document.activeElement?.closest("#models a")?.getAttribute("href");
  const scrolled = list.scrollLeft; // on narrow screens
  list.replaceChildren(...entries.map(({ name, version = "", state }) => {
    const here = open !== null && open.name === name && open.version === version;
    return element("li", {}, element("a", { href: hashOf(name, version), "aria-current": here ? "page" : null },
      element("span", { class: "name" }, name, version ? element("small", {}, ` version ${version}`) : ""),
      " ", badge(state)));
  }));
  if (!entries.length) list.append(element("li", { class: "note" }, "no models"));
  // The list is drawn again while a user reads it: keep its scroll position and the keyboard focus.
  list.scrollLeft = scrolled;
  if (focused) [...list.querySelectorAll("a")].find((link) => link.getAttribute("href") === focused)?.focus();
}

function imageText(image) {
  const size = image.size === "anyxany" ? "keeps its size" : `becomes ${image.size.replace("x", " x ")}`;
  const parts = [image.formats.replaceAll(",", ", "), image.color, `${image.channels} channels`, size];
  if (image.shorter_side) parts.push(`shorter side ${image.shorter_side}, middle kept`);
  parts.push(`resize ${image.resize}`);
  return parts.join("; ");
}

/** Inputs and outputs as a table. */
export function tensorsTable(metadata) {
  const rows = [
    ...metadata.inputs.map((tensor) => ["input", tensor]),
    ...metadata.outputs.map((tensor) => ["output", tensor]),
  ].map(([kind, tensor]) => {
    return [tensor.name, kind, tensor.datatype, `[${tensor.shape.join(",\u00a0")}]`];
  });
  const pictured = metadata.inputs.map(({ name }) => [name, imageOf(metadata.properties, name)])
    .filter(([, image]) => image !== null);
  return element("div", {}, table("Inputs and outputs", ["name", "kind", "datatype", "shape"], rows),
    ...pictured.map(([name, image]) =>
      element("p", { class: "note" }, `Pictures for ${name}: ${imageText(image)}.`)));
}

const mean = ({ count, ns }) => (count ? `${(ns / count / 1e6).toFixed(2)} ms` : "–");

/** A model's statistics since it was loaded. */
export function statisticsList(found) {
  if (found === null) return element("p", { class: "note" }, "no statistics yet");
  const stats = found.inference_stats;
  const entries = [
    ["requests answered", stats.success.count],
    ["requests failed", stats.fail.count],
    ["rows", found.inference_count],
    ["batches", found.execution_count],
    ["rows in a batch", found.execution_count ? (found.inference_count / found.execution_count).toFixed(2) : "–"],
    ["mean time of a request", mean(stats.success)],
    ["in the queue", mean(stats.queue)],
    ["before the model", mean(stats.compute_input)],
    ["in the model", mean(stats.compute_infer)],
    ["after the model", mean(stats.compute_output)],
  ];
  return element("dl", { class: "statistics" }, ...entries.map(([name, value]) =>
    element("div", {}, element("dt", {}, name), element("dd", {}, String(value)))));
}

/** The head of a model's part of the page; `reload` loads a model again that cannot be called. */
export function modelHead(entry, reload) {
  const { name, version = "", state, reason } = entry;
  const said = element("span", { role: "status", class: "note" });
  const again = element("button", { type: "button", click: async () => {
    if (again.hasAttribute("aria-disabled")) return;
    again.setAttribute("aria-disabled", "true");
    said.textContent = "loading";
    said.textContent = await reload();
    again.removeAttribute("aria-disabled");
  } }, "Load it again");
  return element("div", {},
    element("h2", {}, name, version ? element("small", {}, ` version ${version}`) : "", " ", badge(state)),
    ...(reason ? [element("p", { class: state === "READY" ? "note" : "trouble" }, reason)] : []),
    ...(state === "UNAVAILABLE" ? [
      element("p", { class: "note" }, "The server's log has the whole error. Mend the model's files, and then:"),
      element("p", { class: "buttons" }, again, said),
    ] : []));
}

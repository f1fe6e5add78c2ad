// Calls of the v2 routes, beside the page: its URLs are relative, so a proxy's path stays in front.

const STORED = "ksrv.token";

/** The URL below which the server's routes lie. */
export const base = new URL("./", document.baseURI);

/** An answer that says no, or none at all (status 0). */
export class CallFailed extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

let token = readStored();
let asking = null;
let ask = async () => null;

function readStored() {
  try {
    return sessionStorage.getItem(STORED);
  } catch {
    return null; // storage is switched off: the token lives as long as the page
  }
}

/** Keep the token for this tab, or forget it (null). */
export function keepToken(value) {
  token = value;
  try {
    if (value === null) sessionStorage.removeItem(STORED);
    else sessionStorage.setItem(STORED, value);
  } catch {
    // As above.
  }
}

export const hasToken = () => token !== null;

/** Set the function that asks the user for a token: it is given the server's sentence. */
export function onTokenNeeded(callback) {
  ask = callback;
}

/** Ask once, however many calls need the answer. */
function askOnce(sentence) {
  asking ??= ask(sentence).finally(() => { asking = null; });
  return asking;
}

/**
 * @param {string} path - relative, such as "v2/models"
 * @returns {Promise<Response>} an answer with a status below 400
 */
export async function call(path, { method = "GET", headers = {}, body, signal } = {}) {
  for (;;) {
    const sent = token;
    const all = sent === null ? headers : { ...headers, Authorization: `Bearer ${sent}` };
    let response;
    try {
      response = await fetch(new URL(path, base), { method, headers: all, body, signal });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new CallFailed(0, "the server does not answer");
    }
    if (response.ok) return response;
    const sentence = await errorOf(response);
    if (response.status !== 401) throw new CallFailed(response.status, sentence);
    // A call that was under way while the user typed takes the new token without asking again.
    if (token === sent && (await askOnce(sent === null ? "" : sentence)) === null) {
      throw new CallFailed(401, sentence);
    }
  }
}

async function errorOf(response) {
  const text = await response.text();
  try {
    const { error } = JSON.parse(text);
    if (typeof error === "string") return error;
  } catch {
    // A proxy's page, perhaps: its text says more than nothing.
  }
  return text.slice(0, 300) || response.statusText || "no reason was given";
}

const json = async (path, options) => (await call(path, options)).json();

export const server = () => json("v2");

export const index = () =>
  json("v2/repository/index", {
    method: "POST", body: "{}", headers: { "Content-Type": "application/json" },
  });

/** The path of a model's routes. */
export function modelPath(name, version) {
  const path = `v2/models/${encodeURIComponent(name)}`;
  return version ? `${path}/versions/${encodeURIComponent(version)}` : path;
}

export const metadata = (name, version) => json(modelPath(name, version));

/** Load a model again from its files. */
export const load = (name) =>
  call(`v2/repository/models/${encodeURIComponent(name)}/load`, { method: "POST" });

export async function statistics(name, version) {
  const { model_stats: found } = await json(`${modelPath(name, version)}/stats`);
  return found.find((entry) => !version || entry.version === version) ?? null;
}

/** The stages of a `Server-Timing` header, in milliseconds. */
export function stagesOf(header) {
  const stages = [];
  for (const entry of (header ?? "").split(",")) {
    const match = /^\s*([\w-]+)\s*;\s*dur=([0-9.]+)/.exec(entry);
    if (match) stages.push({ name: match[1], milliseconds: Number(match[2]) });
  }
  return stages;
}

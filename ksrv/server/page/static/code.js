// A request as a shell command and as Python, as a person would write it by hand.

import { base, hasToken, modelPath } from "./api.js";

/** A word for a shell, quoted if it needs quotes. */
export function shellWord(text) {
  return /^[\w./:=@%+-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

/** A file's name as a word that no command takes for an option. */
export const shellFile = (name) => shellWord(name.startsWith("-") ? `./${name}` : name);

/** A string literal of Python: JSON's strings are such. */
export const pythonText = (text) => JSON.stringify(text);

const inferUrl = (name, version) => new URL(`${modelPath(name, version)}/infer`, base).href;

/** JSON in ASCII, whose characters are its bytes. */
const ascii = (text) => text.replace(/[\u007f-\uffff]/g, (unit) =>
  `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`);

/** The JSON part of a request, without braces; `sizeOf` gives the text of a file's size. */
function header(parts, sizeOf) {
  const sized = parts.filter((part) => part.blobs);
  const inputs = parts.map((part) => {
    const fields = [
      `"name":${JSON.stringify(part.name)}`, `"shape":${JSON.stringify(part.shape)}`,
      `"datatype":${JSON.stringify(part.datatype)}`,
    ];
    if (part.data !== undefined) fields.push(`"data":${part.data}`);
    // A lone picture needs no size: it is all that follows.
    else if (part.sizes && !(part.pictured && sized.length === 1 && part.sizes.length === 1)) {
      fields.push(`"parameters":{"binary_data_size":"${part.sizes.map(sizeOf).join(",")}"}`);
    }
    return `{${fields.join(",")}}`;
  });
  return ascii(`"inputs":[${inputs.join(",")}]`);
}

const EVENTS = "text/event-stream";

/**
 * @param {Object[]} parts - of the form
 * @param {boolean} streamed - whether the answer shall come piece by piece
 * @returns {{body: Blob|string, headers: Object}} the request as the page sends it: answers are binary
 */
export function requestOf(parts, streamed) {
  const inputs = header(parts, (size) => size.bytes);
  const text = streamed ? `{${inputs}}` : `{${inputs},"parameters":{"binary_data_output":true}}`;
  const accepted = streamed ? { Accept: EVENTS } : {};
  const blobs = parts.flatMap((part) => part.blobs ?? []);
  if (!blobs.length) return { body: text, headers: { ...accepted, "Content-Type": "application/json" } };
  const json = new TextEncoder().encode(text);
  return {
    body: new Blob([json, ...blobs]),
    headers: {
      ...accepted,
      "Content-Type": "application/octet-stream",
      "Inference-Header-Content-Length": String(json.length),
    },
  };
}

/** A field of a form that holds a file. */
function formField(name, file) {
  const field = /^[\w.-]+$/.test(name) ? name : "image";
  const path = /^[\w.-]+$/.test(file) ? file : `"${file.replace(/["\\]/g, "\\$&")}"`;
  return `-F ${shellWord(`${field}=@${path}`)}`;
}

/** A shell command that sends the request, and prints the answer as JSON. */
export function curlCode(name, version, parts, streamed) {
  const options = [shellWord(inferUrl(name, version))];
  if (streamed) options.push(`-N -H 'Accept: ${EVENTS}'`);
  if (hasToken()) options.push('-H "Authorization: Bearer $KSRV_TOKEN"');
  if (parts.length === 1 && parts[0].pictured) {
    const fields = parts[0].blobs.map((file) => formField(parts[0].name, file.name));
    return ["curl -s", ...options, ...fields].join(" ");
  }
  const commands = parts.flatMap((part) => part.commands ?? []);
  if (!commands.length) {
    const body = `{${header(parts, () => "")}}`;
    return `curl -s ${options.join(" ")} -d ${shellWord(body)}`;
  }
  // The shell's quotes are closed around the sizes, which it asks of the files.
  const sizes = [];
  const marked = header(parts, (size) => `\u0000${sizes.push(size.shell) - 1}\u0000`);
  const text = shellWord(`{${marked}}`).replace(/\0(\d+)\0/g, (_, place) => `'"${sizes[place]}"'`);
  return [
    `H=${text}`,
    `(printf %s "$H"; ${commands.join("; ")}) |`,
    `  curl -s ${options.join(" ")} -H "Inference-Header-Content-Length: \${#H}" --data-binary @-`,
  ].join("\n");
}

/** Python that sends the request by ksrv.client, and prints each piece of a streamed answer when it arrives. */
export function pythonCode(name, version, parts, streamed) {
  const imports = new Set(parts.flatMap((part) => part.imports ?? []));
  const standard = [...imports].filter((line) => line.startsWith("from pathlib"));
  const others = [...imports].filter((line) => !line.startsWith("from pathlib"));
  if (hasToken()) standard.unshift("import os");
  const url = base.href.replace(/\/$/, "");
  const token = hasToken() ? ', token=os.environ["KSRV_TOKEN"]' : "";
  const asked = version ? `, version=${pythonText(version)}` : "";
  const values = parts.map((part) => `${pythonText(part.name)}: ${part.python}`).join(", ");
  const called = `${pythonText(name)}, {${values}}${asked}`;
  const call = streamed
    ? [`    for part in client.stream(${called}):`, "        print(dict(part), flush=True)"]
    : [`    answer = client.infer(${called})`, "for name, value in answer.items():", "    print(name, value.shape, value)"];
  return [
    ...standard, ...(standard.length ? [""] : []), ...others, ...(others.length ? [""] : []),
    "from ksrv.client import Client", "",
    `with Client(${pythonText(url)}${token}) as client:`, ...call,
  ].join("\n");
}

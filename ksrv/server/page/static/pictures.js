// Choosing files: by the system's dialog, by dropping, by pasting; and drawing pictures.

import { element, freshId } from "./dom.js";

/**
 * @param {File} file
 * @param {?Object} image - what the model's metadata says of the input's images
 * @returns {Promise<ImageBitmap>} the picture, turned as the model sees it
 */
export function readPicture(file, image) {
  const turned = image === null || image.exif === "apply";
  return createImageBitmap(file, { imageOrientation: turned ? "from-image" : "none" });
}

/**
 * The file itself if the server reads its format, else the same picture as a PNG or JPEG. `image` is not null. Fails if
 * the browser cannot read or write the picture.
 */
export async function readable(file, image) {
  const formats = (image.formats ?? "jpeg,png").split(",").map((name) => `image/${name}`);
  if (formats.includes(file.type) || !file.type.startsWith("image/")) return file;
  // The PNG has no orientation: the picture is turned here if the model would turn the file.
  const bitmap = await readPicture(file, image);
  const canvas = new OffscreenCanvas(bitmap.width, bitmap.height);
  canvas.getContext("2d").drawImage(bitmap, 0, 0);
  bitmap.close();
  const type = formats.includes("image/png") ? "image/png" : "image/jpeg";
  const blob = await canvas.convertToBlob({ type });
  return new File([blob], `${file.name.replace(/\.\w*$/, "")}.${type.slice(6)}`, { type });
}

/** Draws a picture on a canvas that is not larger than the page needs: `{ canvas, context, scale }`. */
export function canvasOf(bitmap, most = 900) {
  const scale = Math.min(1, most / Math.max(bitmap.width, bitmap.height));
  const canvas = element("canvas");
  canvas.width = Math.max(1, Math.round(bitmap.width * scale));
  canvas.height = Math.max(1, Math.round(bitmap.height * scale));
  const context = canvas.getContext("2d");
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  return { canvas, context, scale };
}

/**
 * A field to which files are dropped, pasted or chosen.
 *
 * @param {string} text - what to choose
 * @param {Object} options - `accept` and `multiple` of the file dialog; `changed` is given the files
 * @returns {HTMLElement} with a method `take(files)`
 */
export function filePlace(text, { accept = "", multiple = false, changed }) {
  const id = freshId("file");
  const input = element("input", { id, type: "file", accept, multiple, class: "unseen" });
  const chosen = element("span", { class: "chosen" });
  const place = element("div", { class: "place" }, input,
    element("label", { for: id }, text, element("br"), chosen));
  place.take = (files) => {
    const taken = multiple ? [...files] : [...files].slice(0, 1);
    if (!taken.length) return;
    chosen.textContent = taken.map((file) => file.name).join(", ");
    changed(taken);
  };
  input.addEventListener("change", () => {
    place.take(input.files);
    input.value = ""; // so that the same file can be chosen again
  });
  place.addEventListener("dragover", (event) => {
    event.preventDefault();
    place.classList.add("over");
  });
  place.addEventListener("dragleave", () => place.classList.remove("over"));
  place.addEventListener("drop", (event) => {
    event.preventDefault();
    event.stopPropagation();
    place.classList.remove("over");
    place.take(event.dataTransfer.files);
  });
  return place;
}

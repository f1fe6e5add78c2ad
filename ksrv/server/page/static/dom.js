// Elements made of attributes and text. Text becomes text nodes, never markup.

/**
 * @param {string} name - of the element
 * @param {Object} attributes - functions are event listeners; false, null and undefined are left out
 * @param {...(Node|string)} children
 * @returns {HTMLElement}
 */
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(key, value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

/** A table with a caption for screen readers. Columns are texts, cells are texts or nodes; the first heads its row. */
export function table(caption, columns, rows) {
  const head = element("tr", {}, ...columns.map((name) => element("th", { scope: "col" }, name)));
  const body = rows.map((cells) =>
    element("tr", {}, ...cells.map((cell, index) => index === 0
      ? element("th", { scope: "row" }, cell) : element("td", {}, cell))));
  return element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    element("table", {},
      element("caption", { class: "unseen" }, caption),
      element("thead", {}, head), element("tbody", {}, ...body)));
}

let lastId = 0;

/** An id that no other element of the page has. */
export function freshId(prefix) {
  lastId += 1;
  return `${prefix}-${lastId}`;
}

// Elements, made and kept up to date without losing focus.

/** Makes an element: h("a", { class: "link", href: "#/", onclick: f }, "text", child). */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else element.setAttribute(name, value);
  }
  element.append(...present(children));
  return element;
}

/** Replaces what an element has. */
export function fill(element, ...children) {
  element.replaceChildren(...present(children));
}

const present = (children) =>
  children.flat().filter((child) => child !== undefined && child !== null && child !== false);

/** Sets a text, if it is another one: what is selected or focused stays so. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** A table cell. */
export const td = (properties, ...children) => h("td", properties, ...children);

/** A table with these columns, in a box of its own that scrolls. Returns the box and the body of the table. */
export function table(caption, columns) {
  const body = h("tbody");
  const heads = columns.map((column) => {
    const { name, number } = typeof column === "string" ? { name: column } : column;
    return h("th", { scope: "col", class: number && "number" }, name);
  });
  const head = h("thead", {}, h("tr", {}, ...heads));
  const whole = h("table", {}, h("caption", { class: "hidden" }, caption), head, body);
  return { box: h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, whole), body };
}

/**
 * Rows that follow a list. An item keeps its row, and so the focus in it, for as long as it has the same key.
 * `create(item)` returns `{ element, update(item) }`.
 */
export class Rows {
  constructor(parent, keyOf, create, whenEmpty = "") {
    Object.assign(this, { parent, keyOf, create, whenEmpty });
    this.rows = new Map();
  }

  show(items) {
    const before = this.rows;
    this.rows = new Map();
    for (const item of items) {
      const key = this.keyOf(item);
      const row = before.get(key) ?? this.create(item);
      row.update?.(item);
      this.rows.set(key, row);
    }
    const wanted = [...this.rows.values()].map((row) => row.element);
    if (wanted.length === 0 && this.whenEmpty) wanted.push(this.emptyRow());
    place(this.parent, wanted);
  }

  emptyRow() {
    const isTable = this.parent.tagName === "TBODY";
    this.empty ??= isTable
      ? h("tr", { class: "empty" }, td({ colspan: "99" }, this.whenEmpty))
      : h("li", { class: "empty" }, this.whenEmpty);
    return this.empty;
  }
}

/** Makes `wanted` the children of an element, and moves only those that are elsewhere. */
function place(parent, wanted) {
  const keep = new Set(wanted);
  for (const child of [...parent.children]) if (!keep.has(child)) child.remove();
  wanted.forEach((element, at) => {
    if (parent.children[at] !== element) parent.insertBefore(element, parent.children[at] ?? null);
  });
}

/** A list of names with values that change. Setting a value to undefined hides it. */
export class Facts {
  constructor(...names) {
    this.element = h("dl", { class: "facts" });
    this.values = new Map();
    for (const name of names) {
      const value = h("dd");
      const pair = h("div", { hidden: true }, h("dt", {}, name), value);
      this.values.set(name, { pair, value });
      this.element.append(pair);
    }
  }

  set(name, content) {
    const { pair, value } = this.values.get(name);
    pair.hidden = content === undefined || content === null || content === "";
    if (pair.hidden) return;
    if (content instanceof Node) value.replaceChildren(content);
    else setText(value, String(content));
  }
}

/** A panel with a heading. */
export function panel(title, properties, ...children) {
  return h(
    "section",
    { ...properties, class: `panel ${properties.class ?? ""}` },
    h("h2", {}, title),
    ...children,
  );
}

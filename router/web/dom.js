// Makes and updates elements. No inline styles or scripts: the page's Content-Security-Policy forbids both.

const SVG = "http://www.w3.org/2000/svg";

/** Return a new element. Attributes: `class`, `text`, `on: {click: fn}`, `data: {…}`, `vars: {"--x": "1"}` (set through the
 *  CSSOM), booleans (true = present, false/null = absent), everything else by name. Children: nodes, texts, lists, null. */
export function el(tag, attrs = {}, ...children) {
  return fill(document.createElement(tag), attrs, children);
}

/** The same for SVG. */
export function svg(tag, attrs = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attrs, children);
}

function fill(node, attrs, children) {
  for (const [name, value] of Object.entries(attrs ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") node.textContent = value;
    else if (name === "on") for (const [event, fn] of Object.entries(value)) node.addEventListener(event, fn);
    else if (name === "data") Object.assign(node.dataset, value);
    else if (name === "vars") for (const [prop, one] of Object.entries(value)) node.style.setProperty(prop, one);
    else node.setAttribute(name, value === true ? "" : value);
  }
  append(node, children);
  return node;
}

function append(node, children) {
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) node.append(child);
  }
}

/** Set a node's text if it differs. An unknown value ("–") says so on hover and to screen readers. */
export function setText(node, text, title) {
  const wanted = String(text);
  if (node.textContent !== wanted) node.textContent = wanted;
  const hint = wanted === "–" ? "unknown" : title;
  if (hint) setAttr(node, "title", hint);
  else if (node.hasAttribute("title")) node.removeAttribute("title");
  if (wanted === "–") setAttr(node, "aria-label", "unknown");
  else if (node.getAttribute("aria-label") === "unknown") node.removeAttribute("aria-label");
}

/** The nodes of a sentence in which `code` stands between backticks, as the server writes it. */
export function words(text) {
  return String(text).split(/`([^`\n]+)`/).map((part, at) => (at % 2 ? el("code", { text: part }) : part)).filter((part) => part !== "");
}

/** Set a node's sentence if it differs: `setText` for what may have `code` in it. */
export function setWords(node, text) {
  const nodes = words(text);
  const plain = nodes.map((one) => one.textContent ?? one).join("");
  const codes = nodes.filter((one) => one instanceof Element).length;
  if (node.textContent === plain && node.querySelectorAll("code").length === codes) return;
  node.replaceChildren(...nodes);
  if (node.getAttribute("aria-label") === "unknown") node.removeAttribute("aria-label");
}

/** Set, change or (null, undefined, false) remove an attribute, if it differs. */
export function setAttr(node, name, value) {
  if (value === null || value === undefined || value === false) {
    if (node.hasAttribute(name)) node.removeAttribute(name);
    return;
  }
  const wanted = value === true ? "" : String(value);
  if (node.getAttribute(name) !== wanted) node.setAttribute(name, wanted);
}

export function setHidden(node, isHidden) {
  if (node.hidden !== isHidden) node.hidden = isHidden;
}

export function setVar(node, name, value) {
  if (node.style.getPropertyValue(name) !== value) node.style.setProperty(name, value);
}

/** Replace all children. */
export function replace(node, ...children) {
  node.replaceChildren();
  append(node, children);
}

/** Make `parent`'s children the nodes for `items`, in their order, keeping the nodes of items that stay.
 *  `make(item)` returns `{node, update(item)}`; `kept` is a Map that the caller holds between calls. */
export function keyed(parent, kept, items, keyOf, make) {
  const wanted = new Set(items.map(keyOf));
  // First what goes: else every row behind it would be moved, and lose the focus.
  for (const [key, row] of kept) {
    if (!wanted.has(key)) {
      row.node.remove();
      kept.delete(key);
    }
  }
  let place = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    let row = kept.get(key);
    if (!row) {
      row = make(item);
      kept.set(key, row);
    }
    row.update(item);
    if (row.node === place) place = place.nextElementSibling;
    else parent.insertBefore(row.node, place);
  }
}

let lastId = 0;

/** Return an id that no other element has. */
export function newId(prefix = "n") {
  lastId += 1;
  return `${prefix}-${lastId}`;
}

/** Copy a text; return whether that worked (pages without HTTPS may have no clipboard but the old way). */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = el("textarea", { class: "visually-hidden", readonly: true });
    area.value = text;
    (document.querySelector("dialog[open]") ?? document.body).append(area);
    area.select();
    const isCopied = document.execCommand("copy");
    area.remove();
    return isCopied;
  }
}

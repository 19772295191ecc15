// A text area for code: line numbers, marks for lines with mistakes, and a Tab key that does not hold anybody fast.

import { el, newId, setAttr } from "../dom.js";

/** `root`; `text()`, `set(text)`, `goTo(line, column)`, `mark(lines)` (a Set), `setReadOnly(value)`.
 *  `onInput()` is called when a person has changed the text. */
export function codeEditor({ label, onInput }) {
  const hint = el(
    "p",
    { class: "hint", id: newId("editor-hint") },
    "Tab indents. To leave the editor with the keyboard press Escape, then Tab.",
  );
  const numbers = el("div", { class: "editor-numbers", "aria-hidden": "true" });
  const area = el("textarea", {
    class: "editor-text",
    "aria-label": label,
    "aria-describedby": hint.id,
    spellcheck: "false",
    autocapitalize: "off",
    autocomplete: "off",
    wrap: "off",
    on: { input: () => (count(), onInput()), keydown: onKey, scroll: follow, blur: () => (leaves = false) },
  });
  const root = el("div", { class: "editor" }, el("div", { class: "editor-frame" }, numbers, area), hint);
  let leaves = false;
  let num = 0;
  let marked = new Set();

  function count() {
    const wanted = area.value.split("\n").length;
    while (num < wanted) {
      num += 1;
      numbers.append(el("span", { class: marked.has(num) ? "has-problem" : "" }, String(num)));
    }
    while (num > wanted) {
      numbers.lastElementChild.remove();
      num -= 1;
    }
    follow();
  }

  function follow() {
    numbers.scrollTop = area.scrollTop;
  }

  function onKey(event) {
    if (event.key === "Escape") {
      leaves = true;
      return;
    }
    if (
      event.key === "Tab" &&
      !event.shiftKey &&
      !event.ctrlKey &&
      !event.altKey &&
      !event.metaKey &&
      !leaves &&
      !area.readOnly
    ) {
      event.preventDefault();
      indent();
    }
    if (event.key !== "Shift") leaves = false;
  }

  /** With lines selected all of them are indented, else two spaces are written; both can be undone. */
  function indent() {
    const { selectionStart: from, selectionEnd: to, value } = area;
    const start = value.lastIndexOf("\n", from - 1) + 1;
    const selected = value.slice(start, to);
    if (from === to || !selected.includes("\n")) {
      write("  ");
      return;
    }
    area.setSelectionRange(start, to);
    const indented = selected.replace(/^(?=.)/gm, "  ");
    write(indented);
    area.setSelectionRange(start, start + indented.length);
  }

  function write(text) {
    if (!document.execCommand("insertText", false, text))
      area.setRangeText(text, area.selectionStart, area.selectionEnd, "end");
    count();
    onInput();
  }

  function lineHeight() {
    return numbers.firstElementChild?.getBoundingClientRect().height || 20;
  }

  return {
    root,
    focus: () => area.focus(),
    text: () => area.value,
    set(text) {
      area.value = text;
      count();
    },
    setReadOnly(value) {
      area.readOnly = value;
      setAttr(hint, "hidden", value);
    },
    goTo(line, column = 1) {
      const lines = area.value.split("\n");
      const at = Math.min(Math.max(1, line), lines.length);
      const start = lines.slice(0, at - 1).reduce((sum, one) => sum + one.length + 1, 0);
      const from = start + Math.min(Math.max(0, (column ?? 1) - 1), lines[at - 1].length);
      area.focus({ preventScroll: true });
      area.setSelectionRange(from, start + lines[at - 1].length);
      area.scrollTop = Math.max(0, (at - 1) * lineHeight() - area.clientHeight / 3);
      area.scrollLeft = 0;
      root.scrollIntoView({ block: "nearest" });
      follow();
    },
    mark(next) {
      marked = next;
      for (const [at, node] of [...numbers.children].entries())
        node.classList.toggle("has-problem", marked.has(at + 1));
    },
  };
}

// Markdown as DOM nodes, while it is still being written.
//
// Owns the part of Markdown that models write: headings, lists, quotes, tables, code, emphasis and links. Must not make
// nodes out of HTML: a tag in an answer is text, and only links to web pages and mail addresses can be followed.

import { el } from "../dom.js";
import { copyButton } from "./copy_button.js";

const MAX_DEPTH = 8;
const MAX_TABLE_WIDTH = 1000;
const FENCE = /^ {0,3}(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*)$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])(\s+|$)/;
const DASHES = /^\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$/;

/** Which marks begin what, in the order in which they are tried. Lengths are bounded so that no text takes long. */
const INLINE = new RegExp(
  [
    "(?<!`)(?<ticks>`+)(?<code>[^`](?:[\\s\\S]{0,2000}?[^`])?)\\k<ticks>(?!`)",
    "\\\\(?<escaped>[!-/:-@[-`{-~])",
    '!?\\[(?<label>[^\\]\\n]{1,500})\\]\\((?<address>[^\\s()]{1,2000}(?:\\([^\\s()]{0,500}\\))?)(?:\\s+"[^"\\n]{0,300}")?\\)',
    "\\*\\*(?=\\S)(?<strong>[\\s\\S]{0,2000}?\\S)\\*\\*(?!\\*)",
    "(?<!\\w)__(?=\\S)(?<strong2>[\\s\\S]{0,2000}?\\S)__(?!\\w)",
    "(?<![\\w*])\\*(?=[^\\s*])(?<soft>[^*]{0,1000}?[^\\s*])\\*(?!\\*)",
    "(?<!\\w)_(?=[^\\s_])(?<soft2>[^_]{0,1000}?[^\\s_])_(?!\\w)",
    "~~(?=\\S)(?<gone>[\\s\\S]{0,1000}?\\S)~~",
    "(?<bare>https?://[^\\s<>()\"'`]{1,2000}[^\\s<>()\"'`.,;:!?*_])",
  ].join("|"),
  "g",
);

/** An element that shows Markdown. `update(text)` may come as often as the text grows: what stays is not made anew. */
export function markdownView(className = "prose") {
  const root = el("div", { class: className });
  let shown = [];
  return {
    root,
    update(text) {
      const parts = blocks(text.replaceAll("\r\n", "\n").split("\n"), 0);
      let same = 0;
      while (same < shown.length && same < parts.length && shown[same].source === parts[same].source) same += 1;
      for (const { node } of shown.splice(same)) node.remove();
      for (const { source, make } of parts.slice(same)) {
        const node = make();
        root.append(node);
        shown.push({ source, node });
      }
    },
  };
}

/** Code in a box of its own, with its language and a button that copies it. */
export function codeBox(text, language = "") {
  const head = el("div", { class: "code-head" }, el("span", { class: "code-language" }, language || "code"));
  head.append(copyButton(() => text, { title: "Copy this code" }));
  return el("div", { class: "code-box" }, head, el("pre", { tabindex: "0" }, el("code", {}, text)));
}

// --- blocks ------------------------------------------------------------------------------------------------

/** The blocks of these lines: each with its source, which tells whether it has changed, and how it is made. */
function blocks(lines, depth) {
  const found = [];
  let at = 0;
  while (at < lines.length) {
    if (!lines[at].trim()) {
      at += 1;
      continue;
    }
    const [end, make] = depth < MAX_DEPTH ? block(lines, at, depth) : paragraph(lines, at);
    found.push({ source: lines.slice(at, end).join("\n"), make });
    at = end;
  }
  return found;
}

function nodes(lines, depth) {
  return blocks(lines, depth).map(({ make }) => make());
}

/** Where the block that begins at `at` ends, and what makes it. */
function block(lines, at, depth) {
  const line = lines[at];
  let found = FENCE.exec(line);
  if (found) return fence(lines, at, found);
  found = HEADING.exec(line);
  if (found)
    return [
      at + 1,
      () => el(`h${Math.min(6, found[1].length + 2)}`, {}, ...inline(found[2].trim().replace(/\s#+$/, ""), 0)),
    ];
  if (RULE.test(line)) return [at + 1, () => el("hr", {})];
  if (QUOTE.test(line)) return quote(lines, at, depth);
  if (ITEM.test(line)) return list(lines, at, depth);
  if (isTable(lines, at)) return table(lines, at);
  return paragraph(lines, at);
}

function begins(lines, at) {
  const line = lines[at];
  return (
    FENCE.test(line) ||
    HEADING.test(line) ||
    RULE.test(line) ||
    QUOTE.test(line) ||
    ITEM.test(line) ||
    isTable(lines, at)
  );
}

function paragraph(lines, at) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim() && !begins(lines, end)) end += 1;
  const text = lines.slice(at, end).map((line) => line.trim());
  return [end, () => el("p", {}, ...withBreaks(text))];
}

function withBreaks(lines) {
  return lines.flatMap((line, number) => (number ? [el("br", {}), ...inline(line, 0)] : inline(line, 0)));
}

/** A fence that is not closed yet goes on to the end. */
function fence(lines, at, [, marks, language]) {
  const isEnd = (line) => line.trim().startsWith(marks) && !line.trim().replaceAll(marks[0], "");
  let end = at + 1;
  while (end < lines.length && !isEnd(lines[end])) end += 1;
  const text = lines.slice(at + 1, end).join("\n");
  return [Math.min(end + 1, lines.length), () => codeBox(text, language.trim().split(/\s/)[0])];
}

function quote(lines, at, depth) {
  let end = at;
  while (end < lines.length && QUOTE.test(lines[end])) end += 1;
  const inner = lines.slice(at, end).map((line) => line.replace(QUOTE, ""));
  return [end, () => el("blockquote", {}, ...nodes(inner, depth + 1))];
}

function list(lines, at, depth) {
  const first = ITEM.exec(lines[at]);
  const [indent, isOrdered] = [first[1].length, /\d/.test(first[2])];
  const items = [];
  let end = at;
  while (end < lines.length) {
    const found = ITEM.exec(lines[end]);
    if (!found || found[1].length > indent + 1 || found[1].length < indent || /\d/.test(found[2]) !== isOrdered) break;
    const [next, body] = item(lines, end, found);
    items.push(body);
    end = next;
  }
  const attrs = isOrdered ? { start: String(parseInt(first[2], 10)) } : {};
  return [
    end,
    () => el(isOrdered ? "ol" : "ul", attrs, ...items.map((body) => el("li", {}, ...itemNodes(body, depth + 1)))),
  ];
}

/** The line behind an item, and the item's own lines without their indentation. */
function item(lines, at, [mark, outer]) {
  const least = outer.length + 2;
  const body = [lines[at].slice(mark.length)];
  let end = at + 1;
  while (end < lines.length) {
    const line = lines[end];
    if (!line.trim()) {
      let next = end + 1;
      while (next < lines.length && !lines[next].trim()) next += 1;
      if (next === lines.length) break;
      const isNext = ITEM.test(lines[next]) && indentOf(lines[next]) === outer.length;
      if (!isNext && indentOf(lines[next]) < least) break;
      if (!isNext) body.push("");
      end += 1;
    } else if (indentOf(line) >= least) {
      body.push(line.slice(Math.min(mark.length, indentOf(line))));
      end += 1;
    } else if (begins(lines, end)) {
      break;
    } else if (lines[end - 1].trim()) {
      body.push(line.trim());
      end += 1;
    } else {
      break;
    }
  }
  return [end, body];
}

/** An item of one paragraph has no paragraph around it, so that short lists stay tight. */
function itemNodes(body, depth) {
  const made = nodes(body, depth);
  return made.flatMap((node) =>
    node.tagName === "P" ? [...node.childNodes, made.length > 1 ? el("br", {}) : ""] : [node],
  );
}

function indentOf(line) {
  return line.length - line.trimStart().length;
}

function isTable(lines, at) {
  const below = lines[at + 1];
  if (
    below === undefined ||
    below.length > MAX_TABLE_WIDTH ||
    !lines[at].includes("|") ||
    !below.includes("-") ||
    !DASHES.test(below)
  )
    return false;
  return cells(lines[at]).length === cells(below).length;
}

function table(lines, at) {
  let end = at + 2;
  while (end < lines.length && lines[end].trim() && lines[end].includes("|")) end += 1;
  const sides = cells(lines[at + 1]).map((dashes) => (/-:$/.test(dashes) ? "right" : ""));
  const row = (line, tag) => el("tr", {}, ...sides.map((side, number) => cell(tag, side, cells(line)[number] ?? "")));
  const make = () => {
    const body = lines.slice(at + 2, end).map((line) => row(line, "td"));
    const whole = el("table", {}, el("thead", {}, row(lines[at], "th")), el("tbody", {}, ...body));
    return el("div", { class: "table-box" }, whole);
  };
  return [end, make];
}

function cell(tag, side, text) {
  return el(tag, side ? { class: side } : {}, ...inline(text, 0));
}

function cells(line) {
  const inner = line
    .trim()
    .replace(/^\|/, "")
    .replace(/(?<!\\)\|$/, "");
  return inner.split(/(?<!\\)\|/).map((one) => one.trim().replaceAll("\\|", "|"));
}

// --- within a line -------------------------------------------------------------------------------------------

function inline(text, depth) {
  if (depth > MAX_DEPTH) return [text];
  const made = [];
  let from = 0;
  for (const found of text.matchAll(INLINE)) {
    if (found.index > from) made.push(text.slice(from, found.index));
    made.push(marked(found, depth + 1));
    from = found.index + found[0].length;
  }
  if (from < text.length) made.push(text.slice(from));
  return made;
}

function marked(found, depth) {
  const { code, escaped, label, address, strong, strong2, soft, soft2, gone, bare } = found.groups;
  if (code !== undefined) return el("code", {}, code.trim() || code);
  if (escaped !== undefined) return escaped;
  if (label !== undefined) return link(address, inline(label, depth), found[0]);
  if (bare !== undefined) return link(bare, [bare], bare);
  if (strong ?? strong2) return el("strong", {}, ...inline(strong ?? strong2, depth));
  if (soft ?? soft2) return el("em", {}, ...inline(soft ?? soft2, depth));
  return el("del", {}, ...inline(gone, depth));
}

/** What leads elsewhere than to a web page or a mail address is shown as it was written. */
function link(address, label, written) {
  if (!/^(https?:\/\/|mailto:)/i.test(address)) return written;
  return el("a", { href: address, target: "_blank", rel: "noopener noreferrer" }, ...label);
}

// Lines of a log as rows of the page, and as a file.

import { el } from "../dom.js";

/** A row for a line as `readLine` gives it, which the row holds as `.line`. */
export function logRow(line) {
  const attrs = { class: line.isNote ? "log-line log-note" : "log-line", data: { level: line.level ?? "" } };
  const node = el(
    "div",
    attrs,
    line.time && el("span", { class: "log-time" }, line.time, " "),
    line.time && el("span", { class: "log-level" }, line.level, " "),
    line.message,
    line.fields.map(([name, value]) => [
      " ",
      el("span", { class: "log-field" }, el("span", { class: "log-name" }, `${name}=`), value),
    ]),
  );
  node.line = line;
  return node;
}

/** The browser saves the text as a file that is named after the log's source and the time. */
export function saveText(text, source) {
  const address = URL.createObjectURL(new Blob([text], { type: "text/plain" }));
  const time = new Date().toISOString().slice(0, 19).replace(/[:T]/g, "-");
  const link = el("a", { href: address, download: `corral-${source.replace(/[^\w.-]+/g, "_")}-${time}.log` });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

// One request that has ended: a line, and what else is known of it when the line is opened.

import { copy, el, newId, setAttr, setText } from "../dom.js";
import { chevronIcon, copyIcon } from "../icons.js";

const GOOD = new Set(["ok"]);
const MILD = new Set(["client_gone", "rejected"]);

/** Return `{node, details, remove()}`; `details` is null until the row has been opened. */
export function createRequestRow(record, columns, { formats, notify, store }) {
  const detailsId = newId("request");
  const open = el("button", { type: "button", class: "request-open", "aria-expanded": "false", "aria-controls": detailsId,
    "aria-label": `${formats.time(record.at)}, details`, on: { click: toggle } }, chevronIcon(), el("span", { text: formats.time(record.at), title: formats.dateTime(record.at) }));
  const kind = GOOD.has(record.outcome) ? "good" : MILD.has(record.outcome) ? "mild" : "bad";
  const why = [record.status >= 400 ? record.status : null, record.code].filter(Boolean).join(" ");
  const outcome = el("span", { class: `outcome ${kind}` }, el("span", { class: "outcome-word", text: (record.outcome ?? formats.UNKNOWN).replaceAll("_", " ") }),
    why && el("span", { class: "muted outcome-code", text: why, title: why }));
  const values = [
    null,
    formats.text(record.model),
    formats.text(record.route),
    null,
    formats.seconds(record.queue_s),
    formats.seconds(record.load_s),
    formats.seconds(record.ttft_s),
    formats.count(record.prompt_tokens),
    formats.count(record.cached_tokens),
    formats.count(record.completion_tokens),
    formats.rate(record.tokens_per_second),
    formats.seconds(record.total_s),
  ];
  const node = el("tr", { class: "request", on: { click: (event) => event.target.closest("button") || isSelecting() || toggle() } },
    columns.map(([label, className], at) => {
      if (at === 0) return el("th", { scope: "row", class: "request-time" }, open);
      const cell = el("td", { class: className, data: { label } });
      if (at === 3) cell.append(outcome);
      else setText(cell, values[at], at <= 2 ? values[at] : undefined);
      return cell;
    }));
  const row = { node, details: null, remove };

  function isSelecting() {
    return String(getSelection()) !== "";
  }

  function toggle() {
    const isOpen = open.getAttribute("aria-expanded") === "true";
    setAttr(open, "aria-expanded", isOpen ? "false" : "true");
    if (isOpen) {
      row.details.remove();
      row.details = null;
      return;
    }
    row.details = el("tr", { class: "request-details", id: detailsId }, el("td", { colspan: columns.length }, facts()));
    node.after(row.details);
  }

  function facts() {
    const id = record.request_id;
    const item = (label, value) => {
      const dd = el("dd", {});
      setText(dd, value);
      return el("div", {}, el("dt", { text: label }), dd);
    };
    const copyButton = el("button", { type: "button", class: "button small", on: { click: async () => {
      const isCopied = await copy(id);
      notify(isCopied ? "ok" : "error", isCopied ? "The request id is copied." : "The browser did not allow to copy.");
    } } }, copyIcon(), "Copy");
    return el("dl", { class: "facts" },
      el("div", { class: "facts-wide" }, el("dt", { text: "Request id" }), el("dd", { class: "request-id" }, el("code", { text: formats.text(id) }), id && copyButton)),
      item("Ended", formats.dateTime(record.at)),
      item("Asked for", formats.text(record.alias ?? record.model)),
      item("Answered by", formats.text(record.model)),
      item("Route", formats.text(record.route)),
      item("Key", record.key ?? (store.state.server?.is_open ? "none is needed" : formats.UNKNOWN)),
      item("Streamed", record.stream === null || record.stream === undefined ? formats.UNKNOWN : record.stream ? "yes" : "no"),
      item("Status", formats.text(record.status)),
      item("Outcome", formats.text(record.outcome?.replaceAll("_", " "))),
      item("Error code", record.code ?? (GOOD.has(record.outcome) ? "none" : formats.UNKNOWN)),
      item("Ended with", formats.text(record.finish)),
      item("Waited", formats.seconds(record.queue_s)),
      item("Loading", formats.seconds(record.load_s)),
      item("First token after", formats.seconds(record.ttft_s)),
      item("Whole request", formats.seconds(record.total_s)),
      item("Prompt tokens", formats.count(record.prompt_tokens)),
      item("Of these from the cache", formats.count(record.cached_tokens)),
      item("Answer tokens", formats.count(record.completion_tokens)),
      item("Speed", formats.rateWithUnit(record.tokens_per_second)));
  }

  function remove() {
    node.remove();
    row.details?.remove();
  }
  return row;
}

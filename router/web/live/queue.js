// Who waits for what, and for how long.

import { el, keyed, setAttr, setHidden, setText, setWords } from "../dom.js";

export function createQueue(root, { store, formats }) {
  const counts = el("span", { class: "muted" });
  const body = el("tbody", {});
  const table = el("table", { class: "card-table queue-table" },
    el("caption", { class: "visually-hidden", text: "Requests that wait for a place" }),
    el("thead", {}, el("tr", {},
      [["Model", ""], ["Waits for", ""], ["Since", "num"], ["Priority", "num"], ["Key", ""]].map(([text, kind]) =>
        el("th", { scope: "col", class: kind, text })))), body);
  const empty = el("p", { class: "empty", text: "Nobody waits." });
  const more = el("p", { class: "panel-foot muted", hidden: true });
  root.append(el("section", { class: "panel live queue", "aria-label": "Queue" },
    el("header", { class: "panel-head" }, el("h2", { text: "Queue" }), counts), el("div", { class: "scroll-x" }, table), empty, more));
  const kept = new Map();

  function update() {
    const { queue } = store.state;
    const waiting = queue?.requests ?? [];
    const rows = waiting.map((one, at) => ({ ...one, isLikeAbove: at > 0 && isSame(one, waiting[at - 1]) }));
    keyed(body, kept, rows, (one) => one.request_id, () => createRow(store, formats));
    setText(counts, queue?.length ? formats.plural(queue.length, "request") : "");
    setHidden(table, waiting.length === 0);
    setHidden(empty, waiting.length > 0);
    setText(empty, queue ? "Nobody waits." : "Not known yet.");
    const left = (queue?.length ?? 0) - waiting.length;
    setHidden(more, left <= 0);
    setText(more, `and ${formats.count(left)} more behind them`);
  }
  return { update };
}

/** Whether two requests wait for the same thing. */
function isSame(one, other) {
  return one.model === other.model && Boolean(one.waiting_for) && one.waiting_for === other.waiting_for;
}

function createRow(store, formats) {
  const cell = (label, kind = "") => el("td", { class: kind, data: { label } });
  const model = el("th", { scope: "row" });
  const why = el("span", { class: "queue-why" });
  const request = el("span", { class: "muted mono queue-request" });
  const reason = cell("Waits for", "queue-reason");
  reason.append(el("div", {}, why, request));
  const wait = cell("Since", "num");
  const priority = cell("Priority", "num");
  const key = cell("Key");
  const node = el("tr", {}, model, reason, wait, priority, key);

  function update(one) {
    setText(model, one.model);
    if (one.isLikeAbove) setText(why, "the same");
    else if (one.waiting_for) setWords(why, one.waiting_for);
    else setText(why, formats.UNKNOWN);
    if (one.waiting_for) setAttr(why, "title", one.waiting_for);
    why.classList.toggle("muted", one.isLikeAbove);
    const waits = typeof one.waits_s === "number" ? one.waits_s + store.since(store.state.stamps.queue) : null;
    setText(wait, formats.wholeSeconds(waits));
    setText(priority, formats.count(one.priority));
    setText(key, formats.text(one.key), one.key);
    setText(request, formats.text(one.request_id?.slice(0, 10)), one.request_id);
  }
  return { node, update };
}

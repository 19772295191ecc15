// The last requests that ended: how long they waited, how fast they were, how they ended. Never a word of their text.

import { createRequestRow } from "../live/request_row.js";
import { el, setAttr, setHidden, setText, setWords } from "../dom.js";

export const id = "requests";
export const title = "Requests";

const SHOWN = 200;
export const COLUMNS = [["Time", ""], ["Model", ""], ["Route", ""], ["Outcome", ""], ["Queue", "num"], ["Load", "num"], ["First token", "num"],
  ["Prompt", "num"], ["Cached", "num"], ["Answer", "num"], ["Tok/s", "num"], ["Total", "num"]];

export function create(root, context) {
  const { store, formats } = context;
  const modelChoice = el("select", { "aria-label": "Filter by model", on: { change: redraw } });
  const outcomeChoice = el("select", { "aria-label": "Filter by outcome", on: { change: redraw } });
  const freeze = el("button", { type: "button", class: "button", "aria-pressed": "false", text: "Hold still", on: { click: toggleFreeze } });
  const counts = el("span", { class: "muted" });
  const held = el("span", { class: "muted", role: "status" });
  const body = el("tbody", {});
  const table = el("table", { class: "card-table requests-table" },
    el("caption", { class: "visually-hidden", text: "Recent requests, newest first" }),
    el("thead", {}, el("tr", {}, COLUMNS.map(([text, kind]) => el("th", { scope: "col", class: kind, text })))), body);
  const empty = el("p", { class: "empty" });
  root.append(el("h1", { class: "visually-hidden", text: "Requests" }),
    el("section", { class: "panel live requests", "aria-label": "Recent requests" },
      el("header", { class: "panel-head" }, el("h2", { text: "Recent requests" }), counts, el("span", { class: "spacer" }),
        held, freeze, modelChoice, outcomeChoice),
      el("div", { class: "scroll-x" }, table), empty));

  const rows = new Map();
  let isShown = false;
  let frozen = null;

  const records = () => frozen ?? store.state.requests ?? [];
  const idOf = (record) => `${record.request_id}\n${record.at}`;

  function toggleFreeze() {
    frozen = frozen ? null : (store.state.requests ?? []).slice();
    setAttr(freeze, "aria-pressed", frozen ? "true" : "false");
    redraw();
  }

  function matches(record) {
    return (!modelChoice.value || (record.model ?? "") === modelChoice.value.slice(1)) && (!outcomeChoice.value || record.outcome === outcomeChoice.value);
  }

  function options(choice, all, values, label, prefix = "") {
    const wanted = [["", all], ...[...values].sort().map((value) => [prefix + value, label(value)])];
    const key = JSON.stringify(wanted);
    if (choice.dataset.options === key) return;
    const chosen = choice.value;
    choice.dataset.options = key;
    choice.replaceChildren(...wanted.map(([value, text]) => el("option", { value, text })));
    choice.value = wanted.some(([value]) => value === chosen) ? chosen : "";
  }

  function redraw() {
    const all = records();
    options(modelChoice, "All models", new Set(all.map((one) => one.model ?? "")), (name) => name || "no model", "=");
    options(outcomeChoice, "All outcomes", new Set(all.map((one) => one.outcome)), (name) => name.replaceAll("_", " "));
    const shown = all.filter(matches);
    const drawn = shown.slice(0, SHOWN);
    const wanted = new Set(drawn.map(idOf));
    for (const [key, row] of rows) {
      if (!wanted.has(key)) {
        row.remove();
        rows.delete(key);
      }
    }
    let place = body.firstElementChild;
    for (const record of drawn) {
      let row = rows.get(idOf(record));
      if (!row) {
        row = createRequestRow(record, COLUMNS, context);
        rows.set(idOf(record), row);
      }
      if (row.node === place) place = row.details?.isConnected ? row.details.nextElementSibling : row.node.nextElementSibling;
      else {
        body.insertBefore(row.node, place);
        if (row.details) body.insertBefore(row.details, place);
      }
    }
    setText(counts, all.length ? (shown.length === all.length ? formats.plural(all.length, "request") : `${formats.count(shown.length)} of ${formats.count(all.length)}`) : "");
    setHidden(table, drawn.length === 0);
    setHidden(empty, drawn.length > 0);
    setWords(empty, emptyText(all));
    for (const control of [freeze, modelChoice, outcomeChoice]) setHidden(control, !store.state.may.requests);
    const news = frozen ? (store.state.requests ?? []).findIndex((one) => frozen[0] && idOf(one) === idOf(frozen[0])) : 0;
    setText(held, frozen && news > 0 ? `${formats.count(news)} newer` : "");
  }

  function emptyText(all) {
    if (!store.state.may.requests) return "This key may not see the requests: that needs the scope `metrics`. The button with the key changes it.";
    if (all.length) return "No request matches.";
    return store.state.requests ? "No request has ended yet." : "Not known yet.";
  }

  for (const topic of ["requests", "may"]) store.subscribe(topic, () => isShown && redraw());

  return {
    show(args = {}) {
      isShown = true;
      redraw();
      if (args.model && [...modelChoice.options].some(({ value }) => value === `=${args.model}`)) {
        modelChoice.value = `=${args.model}`;
        redraw();
      }
    },
    hide() {
      isShown = false;
    },
  };
}

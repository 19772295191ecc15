// All models: filter, and rows that change one by one, so that a thousand of them stay quick.

import { el, setHidden, setText } from "../dom.js";
import { COLUMNS, createRow } from "./model_row.js";

const MANY = 60;
const RESTING = new Set(["unloaded", "remote", "unavailable", "failed", "backoff"]);
const TOLD = { ready: "is loaded", failed: "has failed", backoff: "could not be loaded", unavailable: "cannot be used", unloaded: "is unloaded" };

export function createModels(root, context) {
  const { store, formats, announce } = context;
  const filter = el("input", { type: "search", placeholder: "Filter by name", "aria-label": "Filter models by name or alias", on: { input: applyFilter } });
  const loadedOnly = el("input", { type: "checkbox", on: { change: applyFilter } });
  const counts = el("span", { class: "muted" });
  const list = el("div", { class: "model-list", role: "rowgroup" });
  const empty = el("p", { class: "empty", text: "Not known yet." });
  const table = el("div", { class: "model-table", role: "table", "aria-label": "Models" },
    el("div", { role: "rowgroup" }, el("div", { class: "model-row model-heads", role: "row" },
      COLUMNS.map((label) => el("div", { class: `model-cell model-${short(label)}`, role: "columnheader" },
        el("span", { class: label === "Actions" ? "visually-hidden" : "", text: label }))))), list);
  root.append(el("section", { class: "panel live models", "aria-label": "Models" },
    el("header", { class: "panel-head" }, el("h2", { text: "Models" }), counts, el("span", { class: "spacer" }),
      filter, el("label", { class: "check" }, loadedOnly, "Loaded only")),
    table, empty));
  const rows = new Map();
  const states = new Map();

  function short(label) {
    return { "Tokens/s": "speed", "Idle unload": "idle", Model: "name" }[label] ?? label.toLowerCase();
  }

  function matches(model) {
    if (loadedOnly.checked && RESTING.has(model.state)) return false;
    const wanted = filter.value.trim().toLowerCase();
    return !wanted || [model.id, ...(model.aliases ?? []), ...(model.alias_patterns ?? [])].some((name) => name.toLowerCase().includes(wanted));
  }

  function applyFilter() {
    for (const [name, row] of rows) setHidden(row.node, !matches(store.state.models.get(name)));
    count();
  }

  function count() {
    const all = rows.size;
    let shown = 0;
    for (const { node } of rows.values()) if (!node.hidden) shown += 1;
    setText(counts, !all ? "" : shown === all ? formats.count(all) : `${formats.count(shown)} of ${formats.count(all)}`);
    table.classList.toggle("many", all > MANY);
    setHidden(table, shown === 0);
    setHidden(empty, shown > 0);
    if (shown === 0) {
      const why = all ? "No model matches." : "The configuration has no models.";
      setText(empty, store.state.server || all ? why : "Not known yet.");
    }
  }

  /** Bring the rows of `names` up to date, or all of them. */
  function update(names = new Set([...store.state.models.keys(), ...rows.keys()])) {
    const fresh = document.createDocumentFragment();
    for (const name of names) {
      const model = store.state.models.get(name);
      let row = rows.get(name);
      if (!model) {
        row?.node.remove();
        rows.delete(name);
        states.delete(name);
        continue;
      }
      if (!row) {
        row = createRow(context);
        rows.set(name, row);
        fresh.append(row.node);
      }
      row.update(model);
      setHidden(row.node, !matches(model));
      tellState(model);
    }
    list.append(fresh);
    count();
  }

  function tellState(model) {
    const before = states.get(model.id);
    states.set(model.id, model.state);
    if (before && before !== model.state && TOLD[model.state]) announce(`${model.id} ${TOLD[model.state]}`);
  }

  /** Bring what depends on the slots up to date. */
  function updateBusy() {
    for (const [name, row] of rows) if (row.isLive()) row.update(store.state.models.get(name));
  }

  function tick() {
    for (const row of rows.values()) if (row.isLive() || row.node.dataset.state === "backoff") row.tick();
  }

  function sample() {
    for (const row of rows.values()) if (row.isLive()) row.sample();
  }
  return { update, updateBusy, tick, sample };
}

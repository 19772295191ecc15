// What a model's line has no room for, shown when it is opened.

import { el, replace } from "../dom.js";

/** Return the list of a model's further facts. */
export function detailsOf(model, { formats, navigate }) {
  const rows = [];
  const add = (label, value, title) => {
    if (value !== undefined) rows.push(el("div", {}, el("dt", { text: label }), el("dd", { text: formats.text(value), title: value === null ? "unknown" : title })));
  };
  const names = [...(model.aliases ?? []), ...(model.alias_patterns ?? [])];
  add("Description", model.description || undefined);
  add("Aliases", names.length ? names.join(", ") : undefined);
  add("Tags", model.tags?.length ? model.tags.join(", ") : undefined);
  add("Can do", model.capabilities?.join(", "));
  add("Tokens of all slots", model.kv_tokens === undefined ? undefined : formats.count(model.kv_tokens));
  add("File", model.size_bytes === undefined ? undefined : formats.bytes(model.size_bytes));
  add("Parameters", model.num_params === undefined ? undefined : millions(model.num_params, formats));
  add("Layers on GPUs", model.total_layers === undefined ? undefined : `${formats.count(model.gpu_layers)} of ${formats.count(model.total_layers)}`);
  if (model.memory) {
    add("Needs", formats.bytes(model.memory.needed_bytes));
    add("Known from", { header: "the file's header", probe: "a trial without memory", measured: "a measurement" }[model.memory.source] ?? null);
  }
  add("Priority", model.priority === undefined ? undefined : formats.count(model.priority));
  add("Loaded at the start", model.preload === undefined ? undefined : model.preload ? "yes" : "no");
  add("Times started", model.num_starts === undefined ? undefined : formats.count(model.num_starts));
  if (model.replicas > 1) add("Workers at most", formats.count(model.replicas));
  for (const worker of model.workers ?? []) {
    const facts = [worker.state, `${formats.plural(worker.running_requests, "request")}`, formats.bytes(worker.used_bytes),
      worker.devices?.join(", "), worker.is_outdated ? "runs with an older configuration" : ""];
    add(`Worker ${worker.replica}`, facts.filter(Boolean).join(" · "));
  }
  if (model.last_exit) {
    const { reason, detail, at, signal, code } = model.last_exit;
    add("Last exit", [formats.dateTime(at), reason, detail, signal || (code ? `code ${code}` : "")].filter(Boolean).join(" · "));
  }
  const link = (label, view) => el("button", { type: "button", class: "button small", text: label, on: { click: () => navigate(view, { model: model.id }) } });
  return el("div", { class: "details-body" }, el("dl", { class: "facts" }, rows),
    el("div", { class: "toolbar" }, model.remote ? null : link("Show its log", "logs"), link("Open the playground", "playground")));
}

/** Put `next` in place of what `box` shows, but leave the focus where it is. */
export function refresh(box, next) {
  const focused = document.activeElement?.closest(".details-body") && box.contains(document.activeElement)
    ? document.activeElement.textContent : null;
  replace(box, next);
  if (focused !== null) [...box.querySelectorAll("button")].find((button) => button.textContent === focused)?.focus();
}

function millions(value, formats) {
  if (formats.isUnknown(value)) return null;
  return value >= 1e9 ? `${(value / 1e9).toFixed(2)} billion` : `${Math.round(value / 1e6)} million`;
}

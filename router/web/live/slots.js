// Every slot of every loaded model, as it works.

import { el, keyed, setAttr, setHidden, setText, setVar } from "../dom.js";

const WORDS = {
  IDLE: "idle",
  STARTED: "starts",
  PROCESSING_PROMPT: "reads prompt",
  DONE_PROMPT: "prompt read",
  GENERATING: "writes",
};
const MANY = 32;

export function createSlots(root, { store, formats }) {
  const box = el("input", { type: "checkbox" });
  const counts = el("span", { class: "muted" });
  const body = el("tbody", {});
  const table = el("table", { class: "card-table slots-table" },
    el("caption", { class: "visually-hidden", text: "Slots of the loaded models" }),
    el("thead", {}, el("tr", {},
      [["Slot", ""], ["State", ""], ["Prompt", ""], ["From cache", "num"], ["Written", "num"], ["Tok/s", "num"], ["Age", "num"]].map(([text, kind]) =>
        el("th", { scope: "col", class: kind, text })))), body);
  const empty = el("p", { class: "empty" });
  root.append(el("section", { class: "panel live slots", "aria-label": "Slots" },
    el("header", { class: "panel-head" }, el("h2", { text: "Slots" }), counts, el("span", { class: "spacer" }),
      el("label", { class: "check" }, box, "Busy only")),
    el("div", { class: "scroll-x" }, table), empty));
  const kept = new Map();
  let isChosen = false;
  box.addEventListener("change", () => {
    isChosen = true;
    update();
  });

  function update() {
    const slots = store.state.slots ?? [];
    if (!isChosen) box.checked = slots.length > MANY;
    const shown = box.checked ? slots.filter((slot) => slot.is_processing) : slots;
    keyed(body, kept, shown, (slot) => `${slot.model}\n${slot.replica}\n${slot.id}`, (slot) => createSlot(slot, store, formats));
    const busy = slots.filter((slot) => slot.is_processing).length;
    setText(counts, slots.length ? `${formats.count(busy)} of ${formats.count(slots.length)} busy` : "");
    setHidden(table, shown.length === 0);
    setHidden(empty, shown.length > 0);
    const why = slots.length ? "No slot is busy." : "No model is loaded.";
    setText(empty, store.state.slots ? why : "Not known yet.");
  }
  return { update };
}

function createSlot(first, store, formats) {
  const name = first.replica ? `${first.model} [${first.replica}]` : first.model;
  const cell = (label, kind, ...children) => el("td", { class: kind, data: { label } }, ...children);
  const state = el("span", { class: "slot-state" });
  const request = el("span", { class: "muted mono slot-request" });
  const bar = el("div", { class: "bar", role: "progressbar", "aria-label": "Prompt read", "aria-valuemin": "0", "aria-valuemax": "100" },
    el("span", { class: "bar-cached" }), el("span", { class: "bar-fill" }));
  const prompt = el("span", { class: "num slot-prompt" });
  const cached = cell("From cache", "num");
  const generated = cell("Written", "num");
  const speed = cell("Tok/s", "num");
  const age = cell("Age", "num");
  const node = el("tr", {},
    el("th", { scope: "row", class: "slot-name" }, el("span", { class: "slot-model", text: name }), el("span", { class: "muted", text: ` #${first.id}` })),
    cell("State", "", el("div", { class: "slot-doing" }, state, request)), cell("Prompt", "", el("div", { class: "slot-progress" }, bar, prompt)), cached, generated, speed, age);

  function update(slot) {
    setAttr(node, "data-state", slot.state);
    setText(state, WORDS[slot.state] ?? formats.text(slot.state).toLowerCase());
    setText(request, slot.is_processing && slot.request_id ? slot.request_id.slice(0, 10) : "", slot.request_id);
    const { prompt_total: total, prompt_processed: read, prompt_cached: hit } = slot;
    const isKnown = slot.is_processing && total > 0;
    setVar(bar, "--fraction", isKnown ? Math.min(1, (Math.max(read, hit) || 0) / total).toFixed(4) : "0");
    setVar(bar, "--cached", isKnown ? Math.min(1, (hit || 0) / total).toFixed(4) : "0");
    setAttr(bar, "aria-valuenow", isKnown ? Math.round((100 * (read || 0)) / total) : null);
    setHidden(bar, !slot.is_processing);
    const none = slot.is_processing ? formats.UNKNOWN : "";
    setText(prompt, isKnown ? `${formats.count(formats.isUnknown(read) ? null : Math.min(read, total))} / ${formats.count(total)}` : none);
    setText(cached, isKnown ? formats.percent(formats.isUnknown(hit) ? null : hit / total) : none);
    setText(generated, slot.is_processing ? formats.count(slot.generated) : "");
    setText(speed, slot.is_processing ? formats.rate(slot.tokens_per_second) : "");
    const seconds = slot.age_s === null || slot.age_s === undefined ? null : slot.age_s + store.since(store.state.stamps.slots);
    setText(age, slot.is_processing ? formats.wholeSeconds(seconds) : "");
  }
  return { node, update };
}

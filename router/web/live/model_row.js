// One model in the list: a row on a wide page, a card on a narrow one.

import { el, newId, replace, setAttr, setHidden, setText, setVar, setWords } from "../dom.js";
import { chevronIcon, closeIcon, pinIcon, stateIcon } from "../icons.js";
import { createActions } from "./model_actions.js";
import { detailsOf, refresh } from "./model_details.js";
import { createSparkline } from "./sparkline.js";

const PHASES = {
  downloading: "downloading", joining: "joining the parts", verifying: "checking the file",
  starting: "starting", loading: "loading", warming: "warming up",
};

export const COLUMNS = ["Model", "State", "Device", "Context", "Slots", "Tokens/s", "Memory", "Idle unload", "Actions"];

/** Return `{node, update(model), tick(), sample(), isLive()}`. */
export function createRow(context) {
  const { formats, store } = context;
  const cell = (name, label, ...children) =>
    el("div", { class: `model-cell model-${name}`, role: "cell" }, label && el("span", { class: "cell-label", text: label }), ...children);

  const nameText = el("span", { class: "model-title" });
  const pinMark = el("span", { class: "model-pinned", title: "pinned", role: "img", "aria-label": "pinned", hidden: true }, pinIcon());
  const detailsId = newId("details");
  const open = el("button", { type: "button", class: "model-open", "aria-expanded": "false", "aria-controls": detailsId, on: { click: toggle } },
    chevronIcon(), nameText);
  const aliases = el("div", { class: "model-aliases muted ellipsis" });
  const state = el("span", { class: "state" });
  const stateWord = el("span", {});
  const stateMore = el("div", { class: "model-more muted" });
  const progress = el("div", { class: "bar", role: "progressbar", "aria-valuemin": "0", "aria-valuemax": "100", hidden: true }, el("span", { class: "bar-fill" }));
  const device = el("span", {});
  const layers = el("div", { class: "model-more muted" });
  const ctx = el("span", {});
  const slots = el("span", {});
  const waiting = el("div", { class: "model-more" });
  const speed = el("span", { class: "model-rate" });
  const spark = createSparkline();
  const memory = el("span", {});
  const memoryMore = el("div", { class: "model-more muted" });
  const idle = el("span", {});
  const reason = el("p", { class: "problem", hidden: true });
  const pinText = el("span", {});
  const pinNote = el("p", { class: "muted", hidden: true }, pinText, " ",
    el("button", { type: "button", class: "link-button", text: "Do as the configuration says", on: { click: () => actions.unsetPin() } }));
  const errorText = el("span", {});
  const error = el("p", { class: "model-error", role: "alert", hidden: true }, errorText,
    el("button", { type: "button", class: "button quiet icon-button", "aria-label": "Close this message", on: { click: () => tell(null) } }, closeIcon()));
  const details = el("div", { id: detailsId, hidden: true });
  const note = el("div", { class: "model-note", role: "cell" }, reason, error, pinNote, details);
  const actions = createActions(context, tell);
  const cells = {
    device: cell("device", "Device", el("div", {}, device, layers)),
    context: cell("context", "Context", ctx),
    slots: cell("slots", "Slots", el("div", {}, slots, waiting)),
    speed: cell("speed", "Tokens/s", el("div", { class: "model-flow" }, speed, spark.node)),
    memory: cell("memory", "Memory", el("div", {}, memory, memoryMore)),
    idle: cell("idle", "Idle unload", idle),
  };
  const node = el("div", { class: "model-row", role: "row" },
    cell("name", null, el("div", { class: "model-line" }, open, pinMark), aliases),
    cell("state", null, state, stateMore, progress),
    ...Object.values(cells), cell("actions", null, actions.node), note);
  let model = null;
  let stateShown = null;

  function tell(text) {
    setWords(errorText, text ?? "");
    setHidden(error, text === null);
    drawNote();
  }

  function drawNote() {
    setHidden(note, [...note.children].every((child) => child.hidden));
  }

  function toggle() {
    const isOpen = open.getAttribute("aria-expanded") === "true";
    setAttr(open, "aria-expanded", isOpen ? "false" : "true");
    setHidden(details, isOpen);
    if (!isOpen) replace(details, detailsOf(model, context));
    drawNote();
  }

  function update(next) {
    model = next;
    setAttr(node, "data-model", model.id);
    setAttr(node, "data-state", model.state);
    setText(nameText, model.id, model.id);
    setHidden(pinMark, model.is_pinned !== true);
    const names = [...(model.aliases ?? []), ...(model.alias_patterns ?? [])];
    setText(aliases, names.join(", "), names.join(", "));
    setHidden(aliases, names.length === 0);
    if (stateShown !== model.state) {
      stateShown = model.state;
      setText(stateWord, model.state);
      replace(state, stateIcon(model.state), stateWord);
      setAttr(state, "data-state", model.state);
    }
    drawProgress();
    const isHere = !model.remote;
    const isLoaded = ["ready", "draining"].includes(model.state);
    setText(device, isHere ? (model.devices?.length ? model.devices.join(", ") : isLoaded ? formats.UNKNOWN : "") : "elsewhere");
    setText(layers, model.total_layers > 0 && model.gpu_layers > 0 ? `${model.gpu_layers} of ${model.total_layers} layers` : "");
    setText(ctx, formats.count(model.context_length));
    const used = store.state.slots?.filter((slot) => slot.model === model.id && slot.is_processing).length;
    setText(slots, isHere ? (isLoaded ? `${formats.count(used)} / ${formats.count(slotCount())}` : formats.count(model.slots)) : "");
    setText(waiting, model.queue_length > 0 ? `${formats.count(model.queue_length)} waiting` : "", model.waiting_for ?? undefined);
    drawSpeed();
    const bytes = model.memory?.used_bytes ?? null;
    setText(memory, isHere ? (isLoaded || bytes !== null ? formats.bytes(bytes) : "") : "");
    setText(memoryMore, isHere ? (model.memory?.needed_bytes ? `needs ${formats.bytes(model.memory.needed_bytes)}` : "need unknown") : "");
    setWords(reason, model.reason ? withRetry() : "");
    setHidden(reason, !model.reason);
    setText(pinText, `${model.is_pinned ? "Pinned" : "Unpinned"} by hand, until the server stops.`);
    setHidden(pinNote, model.pin_source !== "request" || !store.state.may.admin);
    actions.update(model);
    tick();
    const texts = { device, context: ctx, slots, speed, memory: memory.textContent ? memory : memoryMore, idle };
    for (const [name, { textContent }] of Object.entries(texts)) setAttr(cells[name], "data-empty", textContent === "");
    if (!details.hidden) refresh(details, detailsOf(model, context));
    drawNote();
  }

  function slotCount() {
    const reported = store.state.slots?.filter((slot) => slot.model === model.id).length;
    return reported || model.slots;
  }

  function withRetry() {
    if (typeof model.retry_in_s !== "number") return model.reason;
    const left = Math.max(0, model.retry_in_s - store.since(model.received_ms));
    const when = left > 0.5 ? `after ${formats.wholeSeconds(left)}` : "now";
    return `${model.reason}. The next request tries again ${when}; Load does so at once.`;
  }

  function drawProgress() {
    const { progress: now, last_exit: exit } = model;
    setHidden(progress, !now);
    if (now) {
      const hasFraction = typeof now.fraction === "number";
      progress.classList.toggle("unknown", !hasFraction);
      setVar(progress, "--fraction", hasFraction ? String(now.fraction) : "0");
      setAttr(progress, "aria-valuenow", hasFraction ? Math.round(now.fraction * 100) : null);
      setAttr(progress, "aria-label", `${model.id}: ${PHASES[now.phase] ?? now.phase}`);
      const size = typeof now.done_bytes === "number" ? `${formats.bytes(now.done_bytes)} of ${formats.bytes(now.total_bytes)}` : "";
      const share = hasFraction ? formats.percent(now.fraction) : "";
      const phase = PHASES[now.phase] ?? now.phase;
      setText(stateMore, [phase === model.state ? "" : phase, share, size].filter(Boolean).join(" · "), now.detail || undefined);
      return;
    }
    const isGone = exit && !["ready", "draining", "stopping", "remote", "unavailable"].includes(model.state);
    setText(stateMore, isGone ? exitText(exit) : "", isGone ? (exit.detail ?? undefined) : undefined);
  }

  function exitText(exit) {
    const causes = { idle: "for being idle", keep_alive: "its time was over", room: "to make room", limits: "over the limits",
      configuration: "its options changed", replicas: "fewer workers", removed: "was removed", request: "was told to unload", shutdown: "server stopped" };
    return exit.reason === "stopped" ? (causes[exit.cause] ?? "stopped") : exit.reason.replaceAll("_", " ");
  }

  function drawSpeed() {
    const rates = model.tokens_per_second;
    const isLoaded = ["ready", "draining"].includes(model.state);
    setText(speed, isLoaded ? formats.rate(rates?.generated) : "", rates?.prompt > 0 ? `reads ${formats.rateWithUnit(rates.prompt)}` : undefined);
    spark.node.classList.toggle("off", !isLoaded);
  }

  function tick() {
    if (model.reason && typeof model.retry_in_s === "number") setWords(reason, withRetry());
    setText(idle, model.remote ? "" : idleText());
  }

  function idleText() {
    if (model.is_pinned && model.state === "ready") return "pinned";
    if (model.state !== "ready") return "";
    if (typeof model.idle_unload_in_s !== "number") return model.running_requests > 0 ? "in use" : "never";
    return `in ${formats.wholeSeconds(model.idle_unload_in_s - store.since(model.received_ms))}`;
  }

  function isLive() {
    return !["unloaded", "remote", "unavailable"].includes(model.state) || !spark.isQuiet() || actions.node.querySelector("[aria-busy]") !== null;
  }

  function sample() {
    const value = model.tokens_per_second?.generated;
    spark.push(typeof value === "number" && !store.isStale() ? value : null);
  }
  return { node, update, tick, sample, isLive };
}

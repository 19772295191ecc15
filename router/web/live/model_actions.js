// The buttons of a model: load or unload, pin. Owns what they send, their pending state and their errors.
//
// A button that cannot work stays where it is, can be reached by the keyboard, and tells why when it is pressed.

import { el, setAttr, setText } from "../dom.js";
import { pinIcon } from "../icons.js";

const RUNNING = new Set(["starting", "downloading", "loading", "ready"]);
const SETTLE_MS = 4_000;

/** Return `{node, update(model)}`. `tell(text)` shows an error at the model; null takes it away. */
export function createActions({ api, store, announce }, tell) {
  const load = el("button", { type: "button", class: "button small model-load", on: { click: () => press("load") } });
  const pinWord = el("span", {});
  const pin = el("button", { type: "button", class: "button small model-pin", on: { click: () => press("pin") } }, pinIcon(), pinWord);
  const node = el("div", { class: "model-buttons" }, load, pin);
  const pending = { load: null, pin: null };
  let model = null;

  function isRunning() {
    return RUNNING.has(model.state);
  }

  /** Why the button cannot be used now; null = it can. */
  function obstacle(name) {
    if (store.isStale()) return "The server cannot be reached now.";
    if (model.remote) return "Another server answers for this model: nothing is loaded or pinned here.";
    if (name === "load" && !isRunning() && model.state === "unavailable") return `Loading cannot help: ${model.reason ?? "this model cannot be started"}.`;
    return null;
  }

  /** What differs once an order has had its effect. */
  function stampOf(name) {
    return name === "pin" ? `${model.is_pinned}` : `${model.state} ${model.num_starts} ${model.last_exit?.at}`;
  }

  async function press(name) {
    const why = obstacle(name);
    if (why !== null) {
      tell(why);
      return;
    }
    if (pending[name]) return;
    const order = name === "load" ? (isRunning() ? "unload" : "load") : "pin";
    const token = {};
    pending[name] = { token, was: stampOf(name) };
    tell(null);
    draw();
    try {
      const body = { model: model.id };
      if (order === "pin") body.pin = !model.is_pinned;
      await api.send("POST", order === "pin" ? "/admin/pin" : `/models/${order}`, body);
      // The change itself comes by the stream; should it stay away, the button must not hang.
      setTimeout(() => release(name, token), SETTLE_MS);
    } catch (error) {
      release(name, token);
      if (error.name === "AbortError") return;
      tell(`${order === "load" ? "Not loaded" : order === "unload" ? "Not unloaded" : "Not changed"}: ${error.message}`);
      announce(error.message);
    }
  }

  /** Give the pin back to what the configuration says. */
  async function unsetPin() {
    tell(null);
    try {
      await api.send("POST", "/admin/pin", { model: model.id, pin: null });
    } catch (error) {
      tell(`Not changed: ${error.message}`);
    }
  }

  function release(name, token) {
    if (pending[name]?.token !== token) return;
    pending[name] = null;
    draw();
  }

  function draw() {
    const word = isRunning() ? "Unload" : "Load";
    setText(load, pending.load ? `${word}ing …` : word);
    load.classList.toggle("accent", word === "Load" && !pending.load && obstacle("load") === null);
    const pinned = model.is_pinned ? "Unpin" : "Pin";
    setText(pinWord, pinned);
    pin.classList.toggle("on", model.is_pinned === true);
    for (const [name, button, label] of [["load", load, `${word} ${model.id}`], ["pin", pin, `${pinned} ${model.id}`]]) {
      const why = obstacle(name);
      setAttr(button, "aria-label", label);
      setAttr(button, "aria-busy", pending[name] ? "true" : null);
      setAttr(button, "aria-disabled", why === null ? null : "true");
      setAttr(button, "title", why ?? (name === "pin"
        ? "A pinned model is not unloaded by idleness and not for another model" : null));
    }
  }

  function update(next) {
    model = next;
    for (const name of ["load", "pin"]) if (pending[name] && pending[name].was !== stampOf(name)) pending[name] = null;
    node.hidden = !store.state.may.admin;
    draw();
  }
  return { node, update, unsetPin };
}

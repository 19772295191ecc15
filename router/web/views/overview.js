// Everything at a glance: the server, devices, models, slots and the queue.

import { createDevices } from "../live/devices.js";
import { createModels } from "../live/models.js";
import { createQueue } from "../live/queue.js";
import { createSlots } from "../live/slots.js";
import { createSummary } from "../live/summary.js";
import { el } from "../dom.js";

export const id = "overview";
export const title = "Overview";

export function create(root, context) {
  const { store } = context;
  root.append(el("h1", { class: "visually-hidden", text: "Overview" }));
  const summary = createSummary(root, context);
  const devices = createDevices(root, context);
  const models = createModels(root, context);
  const pair = el("div", { class: "overview-pair" });
  root.append(pair);
  const slots = createSlots(pair, context);
  const queue = createQueue(pair, context);
  let isShown = false;
  let timer = null;

  const whenShown = (fn) => (note) => isShown && fn(note);
  store.subscribe("server", whenShown(() => summary.update()));
  store.subscribe("devices", whenShown(() => devices.update()));
  store.subscribe("queue", whenShown(() => (queue.update(), summary.update())));
  store.subscribe("slots", whenShown(() => (slots.update(), models.updateBusy(), summary.update())));
  store.subscribe("models", whenShown((names) => (models.update(names), summary.update())));
  store.subscribe("may", whenShown(() => models.update()));
  let wasStale = store.isStale();
  store.subscribe("connection", whenShown(() => {
    if (wasStale !== store.isStale()) models.update(); // the buttons
    wasStale = store.isStale();
  }));

  function everySecond() {
    models.sample();
    if (store.isStale()) return;
    summary.update();
    models.tick();
    slots.update();
    queue.update();
  }

  return {
    show() {
      isShown = true;
      for (const part of [summary, devices, models, slots, queue]) part.update();
      timer ??= setInterval(everySecond, 1000);
    },
    hide() {
      isShown = false;
      clearInterval(timer);
      timer = null;
    },
  };
}

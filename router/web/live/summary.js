// The server in one line: version, status, uptime, what is loaded, what waits, how fast tokens flow.

import { el, setAttr, setText } from "../dom.js";

export function createSummary(root, { store, formats }) {
  const cells = {};
  const list = el("dl", { class: "panel summary live", "aria-label": "Server" });
  for (const [name, label] of [
    ["status", "Server"],
    ["loaded", "Models loaded"],
    ["busy", "Slots busy"],
    ["queue", "Waiting"],
    ["speed", "Tokens per second"],
    ["uptime", "Up for"],
  ]) {
    const value = el("span", { class: "summary-value" });
    const more = el("span", { class: "summary-more muted" });
    cells[name] = { value, more };
    list.append(el("div", { class: `summary-cell summary-${name}` }, el("dt", { text: label }), el("dd", {}, value, more)));
  }
  root.append(list);
  const set = (name, value, more = "") => {
    setText(cells[name].value, value);
    setText(cells[name].more, more);
  };

  function server() {
    const { server: now, slots, queue } = store.state;
    if (!now) {
      for (const name of Object.keys(cells)) set(name, formats.UNKNOWN);
      return;
    }
    set("status", now.status === "draining" ? "Stopping" : "Running", now.version ? `version ${now.version}` : "");
    setAttr(cells.status.value, "data-status", now.status);
    set("loaded", formats.count(now.loaded), `of ${formats.count(now.models)}`);
    const busy = slots?.filter((slot) => slot.is_processing).length;
    set("busy", formats.count(busy), slots ? `of ${formats.count(slots.length)}` : "");
    const oldest = queue?.requests?.reduce((most, one) => Math.max(most, one.waits_s ?? 0), 0);
    set("queue", formats.count(queue?.length ?? now.queue_length),
      queue?.length ? `longest ${formats.wholeSeconds(oldest + store.since(store.state.stamps.queue))}` : "");
    const speed = totalSpeed(store.state.models);
    set("speed", formats.rate(speed.generated), speed.prompt > 0 ? `reading ${formats.rate(speed.prompt)}` : "");
    const elapsed = now.started_at ? Date.now() / 1000 - now.started_at : null;
    set("uptime", formats.wholeSeconds(elapsed));
    setAttr(cells.uptime.value, "title", now.started_at ? `since ${formats.dateTime(now.started_at)}` : "unknown");
  }
  return { update: server };
}

/** Sum what the models tell; null = no model has told anything. */
function totalSpeed(models) {
  const total = { generated: null, prompt: null };
  for (const { tokens_per_second: speed } of models.values()) {
    for (const name of ["generated", "prompt"]) {
      if (typeof speed?.[name] === "number") total[name] = (total[name] ?? 0) + speed[name];
    }
  }
  return total;
}

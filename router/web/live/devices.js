// Devices with what their memory is used for: a bar to see, the same numbers as text to read.

import { el, keyed, newId, replace, setAttr, setHidden, setText, setVar } from "../dom.js";

const KINDS = [
  ["weights", "Weights"],
  ["kv", "KV cache"],
  ["compute", "Compute"],
  ["rest", "Other of the workers"],
  ["reserved", "Reserved, unused"],
  ["others", "Other programs"],
  ["free", "Free"],
  ["kept", "Kept free"],
];
const OWN = ["weights", "kv", "compute", "rest", "reserved"];

export function createDevices(root, { store, formats }) {
  const grid = el("div", { class: "devices" });
  const empty = el("p", { class: "panel empty", text: "No devices are known yet." });
  root.append(el("section", { class: "live", "aria-label": "Devices" }, el("h2", { class: "visually-hidden", text: "Devices" }), grid, empty));
  const kept = new Map();

  function update() {
    const devices = store.state.devices ?? [];
    keyed(grid, kept, devices, (device) => device.id, () => createDevice(formats));
    setHidden(empty, devices.length > 0);
  }
  return { update };
}

/** Return what a device's bytes are used for, each null where it is unknown; `used` is of workers and others together.
 *  What is known adds up to the total: `kept` is what models may not use, for the headroom or a budget, though nobody does. */
export function shares(device) {
  const sum = (field) => {
    const known = device.workers.map((worker) => worker[field]).filter((value) => typeof value === "number");
    return known.length ? known.reduce((total, value) => total + value, 0) : device.workers.length ? null : 0;
  };
  const weights = sum("weights_bytes");
  const kv = sum("kv_bytes");
  const compute = sum("compute_bytes");
  const rest = sum("other_bytes");
  const known = (weights ?? 0) + (kv ?? 0) + (compute ?? 0) + (rest ?? 0);
  const reserved = device.reserved_bytes ?? null;
  const own = Math.max(reserved ?? 0, known);
  const total = device.total_bytes ?? null;
  const others = device.used_by_others_bytes ?? null;
  const used = others === null || reserved === null ? null : own + others;
  const left = used === null || total === null ? null : Math.max(0, total - used);
  const free = left === null || typeof device.free_bytes !== "number" ? null : Math.min(left, device.free_bytes);
  return {
    weights, kv, compute, rest,
    reserved: reserved === null ? null : own - known,
    others, free, used,
    kept: free === null ? null : left - free,
  };
}

function createDevice(formats) {
  const id = newId("device");
  const title = el("h3", { id });
  const description = el("span", { class: "muted ellipsis device-description" });
  const used = el("span", { class: "num" });
  const bar = el("div", { class: "memory-bar", role: "img" });
  const segments = new Map(KINDS.map(([kind]) => [kind, el("span", { class: `memory-part ${kind}` })]));
  const budget = el("span", { class: "memory-budget", "aria-hidden": "true" });
  bar.append(...segments.values(), budget);
  const values = new Map();
  const legend = el("dl", { class: "legend" });
  for (const [kind, label] of KINDS) {
    const value = el("dd", { class: "num" });
    values.set(kind, value);
    legend.append(el("div", { class: "legend-item" }, el("dt", {}, el("span", { class: `swatch ${kind}`, "aria-hidden": "true" }), label), value));
  }
  const body = el("tbody", {});
  const summary = el("summary", {});
  const workers = el("details", { class: "device-workers" }, summary,
    el("div", { class: "scroll-x" }, el("table", { class: "plain-table" },
      el("thead", {}, el("tr", {}, ["Model", "Weights", "KV cache", "Compute", "Other", "Reserved"].map((text, at) =>
        el("th", { scope: "col", class: at ? "num" : "", text })))), body)));
  const node = el("article", { class: "panel device", "aria-labelledby": id },
    el("header", { class: "device-head" }, el("div", { class: "device-name" }, title, description), used), bar, legend, workers);

  function update(device) {
    const parts = shares(device);
    setText(title, device.id);
    setText(description, device.description ?? device.kind ?? "", device.description);
    const total = device.total_bytes;
    const ofModels = parts.reserved === null ? null : OWN.reduce((sum, kind) => sum + (parts[kind] ?? 0), 0);
    setText(used, parts.used === null ? `${formats.bytes(total)} in all` : `${formats.bytes(parts.used)} of ${formats.bytes(total)} used`,
      `Models ${formats.bytes(ofModels)}, others ${formats.bytes(parts.others)}`);
    let at = 0;
    for (const [kind, segment] of segments) {
      const share = total ? Math.min(1 - at, Math.max(0, (parts[kind] ?? 0) / total)) : 0;
      setVar(segment, "--share", share.toFixed(5));
      setVar(segment, "--at", at.toFixed(5));
      setAttr(segment, "title", `${KINDS.find(([name]) => name === kind)[1]}: ${formats.bytes(parts[kind])}`);
      at += share;
    }
    for (const [kind, value] of values) setText(value, formats.bytes(parts[kind]));
    const isBounded = parts.kept > 0 && total > 0;
    setHidden(budget, !isBounded);
    if (isBounded) setVar(budget, "--at", (1 - parts.kept / total).toFixed(5));
    setAttr(values.get("kept").parentNode, "title", keptWords(device, formats));
    setAttr(bar, "aria-label", `Memory of ${device.id}: ${formats.bytes(total)} in all, `
      + KINDS.map(([kind, label]) => `${label.toLowerCase()} ${formats.bytes(parts[kind]).replace("–", "unknown")}`).join(", "));
    setHidden(workers, device.workers.length === 0);
    setText(summary, formats.plural(device.workers.length, "worker"));
    replace(body, device.workers.map((worker) => el("tr", {},
      el("th", { scope: "row", text: worker.replica ? `${worker.model} [${worker.replica}]` : worker.model }),
      ["weights_bytes", "kv_bytes", "compute_bytes", "other_bytes", "reserved_bytes"].map((field) => {
        const cell = el("td", { class: "num" });
        setText(cell, formats.bytes(worker[field]));
        return cell;
      }))));
  }
  return { node, update };
}

/** Why models may not use the memory that is kept free. */
function keptWords(device, formats) {
  const why = [["headroom", device.headroom_bytes], ["budget", device.budget_bytes]].filter(([, bytes]) => bytes > 0)
    .map(([name, bytes]) => `${name} ${formats.bytes(bytes)}`);
  return ["Models may not use it", why.join(", ")].filter(Boolean).join(": ");
}

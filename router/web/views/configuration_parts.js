// Lists about a configuration: what is wrong with it, what it changes, and when that takes effect.

import { el, words } from "../dom.js";

/** A list of the changes in a verdict of the server (`added`, `removed`, `changed`, `restarted_when_idle`, `settings`). */
export function changeList(diff, formats) {
  const groups = [
    ["Models added", "at once; each is loaded by its first request", diff.added ?? []],
    [
      "Models removed",
      "at once for new requests; running answers end first, then they are unloaded",
      diff.removed ?? [],
    ],
    ["Models changed", "at once", withKeys(diff.changed)],
    [
      "Models with a new worker",
      "when the present worker is idle; until then it serves on as it is",
      withKeys(diff.restarted_when_idle),
    ],
    ["For all models", "at once", diff.settings ?? []],
  ].filter(([, , names]) => names.length > 0);
  if (groups.length === 0)
    return el("p", { class: "muted" }, "Nothing that the server looks at: comments or layout, at most.");
  return el(
    "dl",
    { class: "changes" },
    groups.map(([heading, when, names]) => [
      el("dt", {}, heading, el("span", { class: "muted" }, ` · ${when}`)),
      names.map((name) => el("dd", { class: "mono" }, name)),
    ]),
    el("dt", { class: "muted" }, `${formats.plural(diff.unchanged ?? null, "model")} unchanged`),
  );
}

function withKeys(changed) {
  return Object.entries(changed ?? {}).map(([name, keys]) => `${name}: ${keys.join(", ")}`);
}

/** The content of a panel that lists problems under `heading`; `goTo(line, column)` leads to the place of one. */
export function problemList(found, heading, goTo) {
  return [
    el("div", { class: "panel-head" }, el("h2", {}, heading)),
    el(
      "ol",
      { class: "config-problems" },
      found.map((one) => el("li", {}, problemRow(one, goTo))),
    ),
  ];
}

function problemRow({ where, message, line, column }, goTo) {
  const place = line ? `Line ${line}${column ? `, column ${column}` : ""}` : "";
  const go = { click: () => goTo(line, column) };
  return [
    el(
      "div",
      {},
      place && el("button", { type: "button", class: "link-button", on: go }, place),
      place && where ? " · " : "",
      where && el("span", { class: "mono muted" }, where),
    ),
    el("div", {}, words(message)),
  ];
}

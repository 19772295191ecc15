// The log of the router or of one model's workers, followed live. Keeps the last lines only, in memory and on the page.

import { copy, el, replace, setAttr, setHidden, setText, setWords, words } from "../dom.js";
import { logRow, saveText } from "./logs_rows.js";
import { LEVELS, newOf, noteLine, passes, readLine } from "../lib/log_lines.js";

export const id = "logs";
export const title = "Logs";

const MAX_LINES = 2000;
const RETRY_MS = [500, 1000, 2000, 5000];
const SETTLE_MS = 300; // without another line: those that there are have come
const SETTLED_BY_MS = 2000; // however many still come
const NEAR_PX = 32;
const ROUTER = "";

export function create(root, { api, store, formats, notify, changeKey }) {
  let source = ROUTER;
  let lines = []; // read ones, the last MAX_LINES
  let numDropped = 0;
  let numPaused = 0;
  let isPaused = false;
  let isShown = false;
  let isAtEnd = true;
  let following = null; // AbortController
  let isAsked = false; // to try although the key lacks the scope

  const select = el("select", { "aria-label": "Whose log", on: { change: () => open(select.value) } });
  const filter = el("input", {
    type: "search",
    placeholder: "Only lines with …",
    "aria-label": "Only lines with this text",
    on: { input: redraw },
  });
  const level = el(
    "select",
    { "aria-label": "Least level", on: { change: redraw } },
    el("option", { value: "" }, "All levels"),
    LEVELS.slice(1).map((one) =>
      el("option", { value: one }, one === "error" ? "Errors" : `${one[0].toUpperCase()}${one.slice(1)} and worse`),
    ),
  );
  const wrap = el("input", {
    type: "checkbox",
    checked: true,
    on: { change: () => box.classList.toggle("no-wrap", !wrap.checked) },
  });
  const pause = el(
    "button",
    { type: "button", class: "button small", "aria-pressed": "false", on: { click: togglePause } },
    "Pause",
  );
  const copyIt = el("button", { type: "button", class: "button small", on: { click: copyShown } }, "Copy");
  const save = el("button", { type: "button", class: "button small", on: { click: download } }, "Download");
  const status = el("span", { class: "log-status muted", role: "status" });
  const again = el(
    "button",
    { type: "button", class: "button small", hidden: true, on: { click: () => ((isAsked = true), follow()) } },
    "Try again",
  );
  const otherKey = el("button", { type: "button", class: "button small", hidden: true, on: { click: changeKey } }, "Use another key");
  const left = el("p", { class: "log-left muted", hidden: true });
  const box = el("div", {
    class: "log-lines mono",
    tabindex: "0",
    role: "log",
    "aria-live": "off",
    "aria-label": "Lines of the log",
    on: { scroll: onScroll },
  });
  const toEnd = el(
    "button",
    { type: "button", class: "button small to-end", hidden: true, on: { click: scrollToEnd } },
    "To the end",
  );
  const empty = el("div", { class: "empty", hidden: true });
  const head = el(
    "div",
    { class: "panel-head log-head" },
    select,
    filter,
    level,
    el("label", { class: "check" }, wrap, "Wrap"),
    el("span", { class: "spacer" }),
    pause,
    copyIt,
    save,
  );
  const frame = el("div", { class: "log-frame" }, left, box, empty, toEnd);
  root.append(
    el(
      "section",
      { class: "panel", "aria-label": "Log" },
      head,
      el("div", { class: "log-bar" }, status, otherKey, again),
      frame,
    ),
  );

  store.subscribe("models", (names) => {
    if (!isShown) return; // `show` does it
    fillSelect();
    if (names?.has(source) && !empty.hidden) showEmpty();
  });
  store.subscribe("may", () => isShown && store.state.may.admin !== (following !== null) && follow());
  fillSelect();
  document.addEventListener("visibilitychange", () => {
    if (document.hidden)
      end(); // nothing is followed while nobody looks
    else if (isShown && !following) follow({ keepLines: true });
  });

  return {
    show(args = {}) {
      isShown = true;
      isAsked = false;
      fillSelect();
      if (args.model !== undefined && args.model !== source) open(args.model);
      else if (!following) follow({ keepLines: true });
      scrollToEndIfWanted();
    },
    hide() {
      isShown = false;
      end();
    },
  };

  // --- following ----------------------------------------------------------------------------------------------------

  function open(name) {
    source = name;
    fillSelect();
    follow();
  }

  function end() {
    following?.abort();
    following = null;
  }

  async function follow({ keepLines = false } = {}) {
    end();
    if (!store.state.may.admin && !isAsked) {
      refuse({ status: 403, message: "" });
      return;
    }
    const own = new AbortController();
    following = own;
    offer(true);
    if (!keepLines) forgetLines();
    setHidden(again, true);
    setPaused(false);
    for (let tries = 0; !own.signal.aborted; tries += 1) {
      tell("Connecting …", "busy");
      try {
        await readOnce(own.signal, () => (tries = 0));
        tell("The server has ended the log; connecting again …", "bad");
      } catch (error) {
        if (own.signal.aborted) return;
        if (error.status && error.status < 500) {
          refuse(error);
          return;
        }
        tell("The connection is lost; connecting again …", "bad");
      }
      await api.pause(RETRY_MS[Math.min(tries, RETRY_MS.length - 1)], own.signal);
    }
  }

  async function readOnce(signal, onOpen) {
    const query = new URLSearchParams({ follow: "true" });
    if (source !== ROUTER) query.set("model", source);
    const known = lines.filter((line) => !line.isNote).map((line) => line.raw);
    let first = known.length ? [] : null; // comes in pieces, and only as a whole tells what of it is new
    let settling = 0;
    let latest = null;
    const settle = () => {
      clearTimeout(settling);
      if (first === null || signal.aborted) return;
      const news = newOf(known, first);
      if (news === null && first.length)
        addAll([noteLine("[this page was away for a while: lines may be missing here]")]);
      add(news ?? first);
      first = null;
    };
    const take = (fresh) => {
      if (signal.aborted) return;
      if (first === null) {
        add(fresh);
        return;
      }
      first.push(...fresh);
      latest ??= performance.now() + SETTLED_BY_MS;
      clearTimeout(settling);
      settling = setTimeout(settle, Math.min(SETTLE_MS, latest - performance.now()));
    };
    try {
      await api.lines(`/admin/logs?${query}`, {
        signal,
        onOpen: () => {
          onOpen();
          showFollowing();
        },
        onLines: take,
      });
    } finally {
      settle();
    }
  }

  function showFollowing() {
    tell("Following", "good");
    setTimeout(showEmpty, 300); // the lines that there are come right behind the head
  }

  function refuse(error) {
    following = null;
    offer(![401, 403].includes(error.status));
    tell(refusal(error), "bad");
    setHidden(again, false);
    showEmpty();
  }

  /** What the key may not do is not offered. */
  function offer(isAllowed) {
    for (const part of [head, frame]) setHidden(part, !isAllowed);
    setHidden(otherKey, isAllowed);
    if (!isAllowed) forgetLines();
  }

  function refusal({ status: code, message }) {
    if (code === 403) return "This key may not read logs: that needs the scope `admin`.";
    if (code === 401) return "Logs need a key of the scope `admin`.";
    if (code === 404) return message;
    return `The log could not be read: ${message}`;
  }

  function tell(text, kind) {
    setWords(status, text);
    setAttr(status, "data-kind", kind);
  }

  // --- lines --------------------------------------------------------------------------------------------------------

  function add(fresh) {
    const read = [];
    for (const raw of fresh) read.push(readLine(raw, read.at(-1) ?? lines.at(-1)));
    addAll(read);
  }

  function addAll(read) {
    lines.push(...read);
    const surplus = Math.max(0, lines.length - MAX_LINES);
    if (surplus) {
      lines = lines.slice(surplus);
      numDropped += surplus;
    }
    if (isPaused) {
      numPaused += read.length;
      showPause();
      return;
    }
    const wanted = read.slice(-MAX_LINES).filter((line) => passes(line, wish()));
    box.append(...wanted.map(logRow));
    while (box.childElementCount > MAX_LINES) box.firstElementChild.remove();
    if (surplus) dropOldRows();
    shown();
  }

  /** Rows of lines that are no longer kept go. */
  function dropOldRows() {
    const first = lines[0];
    const kept = new Set(lines);
    for (
      let node = box.firstElementChild;
      node && node.line !== first && !kept.has(node.line);
      node = box.firstElementChild
    )
      node.remove();
  }

  function redraw() {
    replace(box, lines.filter((line) => passes(line, wish())).map(logRow));
    shown();
  }

  function shown() {
    setText(
      left,
      `${formats.plural(numDropped, "earlier line")} left out: the page keeps the last ${formats.count(MAX_LINES)}.`,
    );
    setHidden(left, numDropped === 0);
    showEmpty();
    scrollToEndIfWanted();
  }

  function showEmpty() {
    const isEmpty = box.childElementCount === 0;
    setHidden(empty, !isEmpty);
    setHidden(box, isEmpty);
    copyIt.disabled = save.disabled = isEmpty;
    if (!isEmpty) return;
    const isFiltered = lines.length > 0;
    if (isFiltered)
      replace(
        empty,
        el("p", {}, `None of the ${formats.plural(lines.length, "line")} fits the filter.`),
        el("button", { type: "button", class: "button small", on: { click: clearFilter } }, "Show all lines"),
      );
    else replace(empty, el("p", {}, words(nothingWords())));
  }

  function nothingWords() {
    if (!following) return "No lines.";
    if (source === ROUTER) return "The router has logged nothing yet.";
    const model = store.state.models.get(source);
    if (model?.reason) return `No worker of ${source} has printed anything. It cannot be used now: ${model.reason}`;
    if (model?.state === "ready") return `The worker of ${source} has printed nothing.`;
    return `No worker of ${source} has printed anything since the server started: it was never loaded, perhaps. New lines appear here by themselves.`;
  }

  function forgetLines() {
    lines = [];
    numDropped = 0;
    isAtEnd = true;
    redraw();
    setHidden(empty, true);
  }

  function clearFilter() {
    filter.value = "";
    level.value = "";
    redraw();
    filter.focus();
  }

  function wish() {
    return { text: filter.value.trim(), level: level.value };
  }

  // --- pause, copy, download ----------------------------------------------------------------------------------------

  function togglePause() {
    setPaused(!isPaused);
    if (!isPaused) {
      isAtEnd = true;
      redraw();
    }
  }

  function setPaused(value) {
    isPaused = value;
    numPaused = 0;
    showPause();
    if (following)
      tell(isPaused ? "Paused: new lines are kept until you go on" : "Following", isPaused ? "busy" : "good");
  }

  function showPause() {
    setAttr(pause, "aria-pressed", String(isPaused));
    setText(pause, isPaused ? (numPaused ? `Go on (${formats.count(numPaused)} new)` : "Go on") : "Pause");
  }

  function shownText() {
    return [...box.children].map((node) => `${node.line.raw}\n`).join("");
  }

  async function copyShown() {
    const isCopied = await copy(shownText());
    if (isCopied) notify("ok", `${formats.plural(box.childElementCount, "line")} copied.`);
    else notify("error", "The browser does not allow to copy. Download the lines, or select them.");
  }

  function download() {
    saveText(shownText(), source || "router");
  }

  // --- on the page --------------------------------------------------------------------------------------------------

  function fillSelect() {
    const names = [...store.state.models.values()]
      .filter((one) => !one.remote)
      .map((one) => one.id)
      .sort();
    if (source !== ROUTER && !names.includes(source)) names.push(source);
    const wanted = ["", ...names];
    const has = [...select.options].map((one) => one.value);
    if (JSON.stringify(has) !== JSON.stringify(wanted)) {
      replace(
        select,
        el("option", { value: ROUTER }, "The router"),
        names.length > 0 &&
          el(
            "optgroup",
            { label: "Workers of" },
            names.map((name) => el("option", { value: name }, name)),
          ),
      );
    }
    select.value = source;
  }

  function onScroll() {
    isAtEnd = box.scrollHeight - box.clientHeight - box.scrollTop < NEAR_PX;
    setHidden(toEnd, isAtEnd);
  }

  function scrollToEnd() {
    isAtEnd = true;
    scrollToEndIfWanted();
    box.focus({ preventScroll: true });
  }

  function scrollToEndIfWanted() {
    if (!isShown || !isAtEnd) return;
    box.scrollTop = box.scrollHeight;
    setHidden(toEnd, true);
  }
}

// The playground: a conversation with any model that can hold one. It lives in this tab alone (sessionStorage), and goes
// nowhere but to the server, as the requests that any client would send.

import { el, newId, replace, setAttr, setHidden, setText, setWords, words } from "../dom.js";
import {
  Status,
  addEvent,
  answerTurn,
  canGoOn,
  chatBody,
  endAnswer,
  goOn,
  openCalls,
  rawBody,
  revived,
  toldError,
  userTurn,
} from "../lib/conversation.js";
import { copyButton } from "../lib/copy_button.js";
import { pageFollower } from "../lib/page_follower.js";
import { modelPicker } from "./playground_models.js";
import { optionsPanel } from "./playground_options.js";
import { answerView, userView } from "./playground_turns.js";

export const id = "playground";
export const title = "Playground";

const KEPT = "corral.playground";
const KEEP_AFTER_MS = 400;
const WIDE = "(min-width: 1100px)";

export function create(root, { api, store, announce, changeKey }) {
  let turns = [];
  let running = null; // {answer, controller}
  let cleared = null;
  let keeping = 0;
  let drawing = 0;
  const views = new Map();

  // --- what is on the page ------------------------------------------------------------------------------------------

  const options = optionsPanel(() => {
    draw();
    keepSoon();
  });
  const picker = modelPicker(api, store, () => {
    showModel();
    keepSoon();
  });
  const clear = el("button", { type: "button", class: "button small", on: { click: clearAll } }, "Clear");
  const copyAll = copyButton(() => asText(turns), { label: "Copy all", className: "button small" });
  const list = el("div", { class: "turns", role: "log", "aria-label": "Conversation", "aria-live": "off" });
  const empty = el("div", { class: "empty" });
  const undo = el(
    "div",
    { class: "toolbar undo", hidden: true },
    el("span", {}, "The conversation is cleared."),
    el("button", { type: "button", class: "button small", on: { click: restoreCleared } }, "Bring it back"),
  );
  const input = el("textarea", {
    id: newId("message"),
    rows: "2",
    "aria-label": "Message",
    on: { keydown: onKey, input: grow },
  });
  const send = el("button", { type: "submit", class: "button primary" }, "Send");
  const stop = el(
    "button",
    { type: "button", class: "button danger", hidden: true, on: { click: () => running?.controller.abort() } },
    "Stop",
  );
  const toEnd = el(
    "button",
    { type: "button", class: "button small to-end", hidden: true, on: { click: () => follower.follow() } },
    "To the end",
  );
  const problem = el("p", { class: "problem", role: "alert", hidden: true });
  const keys = el(
    "span",
    { class: "hint keys" },
    "Enter sends, Shift+Enter begins a new line, Escape stops the answer",
  );
  const composer = el(
    "form",
    { class: "composer panel", on: { submit: onSubmit } },
    toEnd,
    problem,
    input,
    el("div", { class: "toolbar" }, keys, el("span", { class: "spacer" }), stop, send),
  );
  const talk = el(
    "section",
    { class: "panel talk", "aria-label": "Playground" },
    el("div", { class: "panel-head" }, picker.root, el("span", { class: "spacer" }), copyAll, clear),
    picker.note,
    undo,
    empty,
    list,
  );
  const refused = el(
    "section",
    { class: "banner danger", "aria-label": "Playground", hidden: true },
    el(
      "div",
      { class: "banner-body" },
      el("span", {}, words("This key may not talk to models: that needs the scope `inference`.")),
      el("button", { type: "button", class: "button small", on: { click: changeKey } }, "Use another key"),
    ),
  );
  const follower = pageFollower((isFollowing) => setHidden(toEnd, isFollowing || !running));
  const all = el("div", { class: "playground" }, el("div", { class: "playground-main" }, talk, composer), options.root);
  root.append(refused, all);
  options.root.open = matchMedia(WIDE).matches;

  restore();
  picker.start();
  store.subscribe("models", () => draw());
  store.subscribe("may", showMay);
  showMay();
  for (const topic of ["queue", "slots"]) store.subscribe(topic, () => running && draw());
  store.subscribe("requests", takeRecords);
  addEventListener("pagehide", keep);
  showModel();
  draw();

  return {
    show(args = {}) {
      if (args.model) picker.pick(args.model);
      follower.start();
      draw();
      if (turns.length) keepEndInSight();
      if (matchMedia(WIDE).matches) input.focus({ preventScroll: true });
    },
    hide: () => follower.stop(),
  };

  /** What the key may not do is not offered. */
  function showMay() {
    setHidden(refused, store.state.may.ask);
    setHidden(all, !store.state.may.ask);
  }

  // --- asking -------------------------------------------------------------------------------------------------------

  function onSubmit(event) {
    event.preventDefault();
    if (running) return;
    const text = input.value;
    const goesOn = picker.mode() === "raw" && turns.length > 0;
    if (!text.trim() && !goesOn) {
      input.focus();
      return;
    }
    if (ask(text.trim() ? [...turns, userTurn(text)] : turns)) {
      input.value = "";
      grow();
    }
  }

  /** Ask for the turn after `before`; return false, with the reason on the page, if that cannot be asked. */
  function ask(before) {
    const picked = picker.picked();
    const body = picked ? bodyFor(before, picked, picker.mode()) : null;
    if (!picked) tell("There is no model to ask.");
    if (!body) return false;
    const answer = answerTurn(picked.name, picker.mode(), performance.now());
    turns = [...before, answer];
    cleared = null;
    run(answer, body);
    return true;
  }

  /** The request, or null with the reason on the page. */
  function bodyFor(before, { name, model }, mode) {
    tell("");
    const read = options.read();
    if (read.problems.length) {
      tell("Not sent: an option is wrong. What is wrong stands there.");
      follower.leave();
      options.goToProblem();
      return null;
    }
    return (mode === "raw" ? rawBody : chatBody)(name, before, read, { isOwn: !model?.remote });
  }

  async function run(answer, body) {
    const controller = new AbortController();
    running = { answer, controller };
    follower.follow();
    draw();
    keepSoon();
    try {
      const { isDone } = await api.stream(answer.mode === "raw" ? "/v1/completions" : "/v1/chat/completions", body, {
        signal: controller.signal,
        onOpen: (reply) => (answer.requestId = reply.headers.get("X-Request-Id")),
        onData: (event) => (addEvent(answer, event, performance.now()), drawSoon()),
      });
      if (!isDone && !answer.error) answer.error = toldError({ message: "The stream ended before the answer did." });
      endAnswer(answer, isDone && !answer.error ? Status.DONE : failed(answer), performance.now());
    } catch (error) {
      const isOurs = error.name === "AbortError";
      if (!isOurs) answer.error = toldError(error.body?.error ?? error, error.status);
      endAnswer(answer, isOurs ? Status.STOPPED : failed(answer), performance.now());
    }
    running = null;
    takeRecords();
    draw();
    keepEndInSight();
    if (answer.error) showRefusal(answer.error);
    announce(
      answer.status === Status.DONE ? "The answer is complete." : "The answer has ended before it was complete.",
    );
    keepSoon();
  }

  function failed(answer) {
    return answer.text || answer.thoughts || answer.calls.length ? Status.BROKEN : Status.REFUSED;
  }

  function showRefusal({ param, message }) {
    if (!options.isOf(param)) return;
    tell("The server refuses an option: its message stands there too.");
    follower.leave();
    options.showRefusal(param, message);
  }

  function takeRecords() {
    const waits = turns.filter(
      (turn) => turn.role === "assistant" && turn.requestId && !turn.record && turn.status !== Status.RUNNING,
    );
    let isFound = false;
    for (const turn of waits) {
      turn.record = (store.state.requests ?? []).find((one) => one.request_id === turn.requestId) ?? null;
      isFound ||= turn.record !== null;
    }
    if (isFound) {
      draw();
      keepSoon();
    }
  }

  // --- what buttons do ----------------------------------------------------------------------------------------------

  function actionsOf(turn) {
    const before = () => turns.slice(0, turns.indexOf(turn));
    return {
      resend: (text) => !running && ask([...before(), userTurn(text)]),
      retry: () => !running && ask(before()),
      goOn() {
        const body = running ? null : bodyFor(turns, { name: turn.model, model: picker.find(turn.model) }, turn.mode);
        if (!body) return;
        goOn(turn, performance.now());
        run(turn, body);
      },
      answerCalls(results) {
        if (running || openCalls(turns).length === 0) return;
        turn.results = results;
        if (!ask(turns)) turn.results = null;
        draw();
      },
    };
  }

  function clearAll() {
    running?.controller.abort();
    cleared = turns;
    turns = [];
    tell("");
    options.clearProblems();
    draw();
    keepSoon();
    input.focus();
  }

  function restoreCleared() {
    turns = cleared ?? turns;
    cleared = null;
    draw();
    keepSoon();
    input.focus();
  }

  function onKey(event) {
    if (event.key === "Escape" && running) {
      event.preventDefault();
      running.controller.abort();
    } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing && event.keyCode !== 229) {
      event.preventDefault();
      composer.requestSubmit();
    }
  }

  function grow() {
    input.rows = Math.min(10, Math.max(2, input.value.split("\n").length));
  }

  // --- drawing ------------------------------------------------------------------------------------------------------

  function drawSoon() {
    drawing ||= requestAnimationFrame(() => {
      drawing = 0;
      draw();
    });
  }

  function draw() {
    const shown = new Set(turns);
    for (const [turn, view] of views) {
      if (shown.has(turn)) continue;
      view.root.remove();
      views.delete(turn);
    }
    for (const turn of turns) {
      if (!views.has(turn)) {
        const view =
          turn.role === "user" ? userView(turn, picker.mode(), actionsOf(turn)) : answerView(turn, actionsOf(turn));
        views.set(turn, view);
        list.append(view.root);
      }
      const model = turn.role === "assistant" ? picker.find(turn.model) : null;
      views.get(turn).update({
        isRunning: running !== null,
        isLast: turn === turns.at(-1),
        model,
        live: store.state,
        isPlain: options.isPlain(),
      });
    }
    setHidden(undo, !cleared?.length || turns.length > 0);
    setHidden(empty, turns.length > 0);
    setHidden(stop, running === null);
    send.disabled = running !== null;
    clear.disabled = turns.length === 0;
    copyAll.disabled = turns.length === 0;
    if (running) keepEndInSight();
  }

  /** Unless somebody is busy with the options, which may stand above the conversation. */
  function keepEndInSight() {
    if (!options.root.contains(document.activeElement)) follower.grown();
  }

  function showModel() {
    const isRaw = picker.mode() === "raw";
    options.setFacts({ isRaw, ...picker.facts() });
    setAttr(input, "placeholder", isRaw ? "Text to continue" : "Message");
    setText(send, isRaw ? "Continue" : "Send");
    replace(
      empty,
      el(
        "p",
        {},
        isRaw
          ? "Write the beginning of a text; the model continues it."
          : "Ask something. The first message loads the model if it is not loaded.",
      ),
      el("p", { class: "hint" }, "The conversation stays in this tab. The server keeps no prompt and no answer of it."),
    );
    draw();
  }

  function tell(text) {
    setWords(problem, text);
    setHidden(problem, !text);
  }

  // --- kept over a reload of the page -------------------------------------------------------------------------------

  function keepSoon() {
    keeping ||= setTimeout(keep, KEEP_AFTER_MS);
  }

  function keep() {
    clearTimeout(keeping);
    keeping = 0;
    try {
      sessionStorage.setItem(
        KEPT,
        JSON.stringify({ turns, options: options.values(), model: picker.value(), mode: picker.wish() }),
      );
    } catch {
      forget(); // too long for the tab's storage: it lasts as long as the page
    }
  }

  function forget() {
    try {
      sessionStorage.removeItem(KEPT);
    } catch {
      // storage is off: there is nothing to forget
    }
  }

  function restore() {
    let kept = null;
    try {
      kept = JSON.parse(sessionStorage.getItem(KEPT));
    } catch {
      return;
    }
    if (!kept) return;
    turns = revived(kept.turns ?? []);
    options.restore(kept.options);
    picker.restore(kept.model, kept.mode);
  }
}

function asText(turns) {
  const told = turns.map((turn) => {
    if (turn.role === "user") return `## User\n\n${turn.text}`;
    const calls = turn.calls.map(
      ({ name, arguments: given }, at) => `Call of ${name}: ${given}\nResult: ${turn.results?.[at] ?? "none given"}`,
    );
    return [`## ${turn.model}`, turn.text, ...calls].filter(Boolean).join("\n\n");
  });
  return `${told.join("\n\n")}\n`;
}

// How one turn of the playground's conversation looks, kept current while its answer is written.
// Must not change the conversation: what buttons are for is told to `actions`.

import { el, setAttr, setHidden, setText, setVar, setWords } from "../dom.js";
import * as formats from "../formats.js";
import { numGenerated, speed, ending, thoughtWords, timingLine, timingRows, waiting } from "../lib/answer_words.js";
import { Status, canGoOn } from "../lib/conversation.js";
import { copyButton } from "../lib/copy_button.js";
import { prettyJson } from "../lib/json_place.js";
import { codeBox, markdownView } from "../lib/markdown.js";

/** A turn of the user: `{root, update({isRunning})}`. `actions.resend(text)` asks again from here. */
export function userView(turn, mode, actions) {
  const body = el("div", { class: "turn-text" }, turn.text);
  const edit = el("button", { type: "button", class: "button quiet small", on: { click: open } }, "Edit");
  const head = el(
    "header",
    { class: "turn-head" },
    el("h3", {}, mode === "raw" ? "Text" : "You"),
    el("span", { class: "spacer" }),
    edit,
    copyButton(() => turn.text, { className: "button quiet small" }),
  );
  const root = el("article", { class: "turn user" }, head, body);
  const area = el("textarea", { class: "turn-edit", "aria-label": "Edit the message", on: { keydown: onKey } });
  const send = el("button", { type: "button", class: "button primary small", on: { click: resend } }, "Send again");
  const cancel = el("button", { type: "button", class: "button small", on: { click: close } }, "Cancel");
  const note = el("span", { class: "hint" }, "What stands below is asked anew.");
  const form = el("div", { class: "turn-form" }, area, el("div", { class: "toolbar" }, send, cancel, note));

  function open() {
    area.value = turn.text;
    area.rows = Math.min(14, turn.text.split("\n").length + 1);
    body.replaceWith(form);
    area.focus();
  }
  function close() {
    form.replaceWith(body);
    edit.focus();
  }
  function resend() {
    if (area.value.trim() && actions.resend(area.value)) close();
    else area.focus();
  }
  function onKey(event) {
    if (event.key === "Escape") close();
    else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      resend();
    }
  }
  function update({ isRunning }) {
    setHidden(edit, isRunning);
    send.disabled = isRunning;
  }
  return { root, update };
}

/** An answer: `{root, update({isRunning, isLast, model, live, isPlain})}`; `live` = `{queue, slots}`.
 *  `actions.retry()` asks again, `goOn()` has the answer continued, `answerCalls([result, …])` the conversation. */
export function answerView(turn, actions) {
  const retry = el(
    "button",
    { type: "button", class: "button quiet small", on: { click: () => actions.retry() } },
    "Ask again",
  );
  const more = el(
    "button",
    { type: "button", class: "button quiet small", on: { click: () => actions.goOn() } },
    "Go on",
  );
  setAttr(more, "title", "Have the model continue this answer");
  const copyIt = copyButton(() => turn.text, { className: "button quiet small" });
  const head = el(
    "header",
    { class: "turn-head" },
    el("h3", { class: "mono" }, turn.model),
    el("span", { class: "spacer" }),
    more,
    retry,
    copyIt,
  );
  const wait = waitLine();
  const thoughts = thoughtsView(turn);
  const prose = markdownView();
  const plain = el("div", { class: "turn-text", hidden: true });
  const text = el("div", { class: "answer-text", "aria-live": "polite" }, prose.root, plain);
  const calls = callsView(turn, actions);
  const end = el("p", { class: "ending", hidden: true });
  const timing = timingView(turn);
  const root = el(
    "article",
    { class: "turn answer" },
    head,
    thoughts.root,
    text,
    calls.root,
    wait.root,
    end,
    timing.root,
  );
  let shownText = null;

  return {
    root,
    update({ isRunning, isLast, model, live, ...wishes }) {
      const isPlain = wishes.isPlain || turn.mode === "raw";
      const isOpen = turn.status === Status.RUNNING;
      setAttr(root, "data-status", turn.status);
      setAttr(text, "aria-busy", isOpen ? "true" : null); // told as a whole once it is whole
      setHidden(retry, !isLast || isRunning);
      setHidden(more, !isLast || isRunning || !canGoOn(turn) || model?.remote === true);
      setHidden(copyIt, !turn.text);
      setHidden(prose.root, isPlain);
      setHidden(plain, !isPlain);
      setHidden(text, !turn.text);
      const key = `${isPlain}${turn.text}`;
      if (shownText !== key) {
        if (isPlain) plain.textContent = turn.text;
        else prose.update(turn.text);
        shownText = key;
      }
      wait.update(isOpen, turn, model, live);
      thoughts.update();
      calls.update(isLast && !isRunning);
      const told = ending(turn);
      setHidden(end, told === null);
      setAttr(end, "data-kind", told?.kind);
      setWords(end, told?.text ?? "");
      timing.update();
    },
  };
}

function waitLine() {
  const word = el("span", {});
  const fill = el("div", { class: "bar-fill" });
  const bar = el(
    "div",
    { class: "bar", role: "progressbar", "aria-label": "Progress", "aria-valuemin": "0", "aria-valuemax": "100" },
    fill,
  );
  const root = el("div", { class: "wait" }, word, bar);
  return {
    root,
    update(isOpen, turn, model, live) {
      setHidden(root, !isOpen);
      if (!isOpen) return;
      const hasBegun = turn.firstAtMs !== null;
      const tokens = numGenerated(turn);
      const told = hasBegun
        ? {
            text:
              tokens === null
                ? "Answering …"
                : `Answering: ${formats.plural(tokens, "token")}, ${formats.rateWithUnit(speed(turn))}`,
            fraction: null,
          }
        : waiting(turn, model, live, formats);
      setText(word, told.text);
      setHidden(bar, hasBegun);
      bar.classList.toggle("unknown", told.fraction === null);
      setVar(fill, "--fraction", String(told.fraction ?? 0));
      setAttr(bar, "aria-valuenow", told.fraction === null ? null : Math.round(told.fraction * 100));
    },
  };
}

function thoughtsView(turn) {
  const summary = el("summary", {});
  const body = markdownView("prose thought");
  const root = el("details", { class: "fold thoughts", hidden: true }, summary, body.root);
  let wasThinking = false;
  let isTouched = false;
  summary.addEventListener("click", () => (isTouched = true));
  return {
    root,
    update() {
      setHidden(root, !turn.thoughts);
      if (!turn.thoughts) return;
      const isThinking = turn.status === Status.RUNNING && turn.thoughtUntilMs === null;
      if (!isTouched && isThinking !== wasThinking) root.open = isThinking; // open while it thinks, unless somebody chose
      wasThinking = isThinking;
      setText(summary, thoughtWords(turn, formats));
      body.update(turn.thoughts);
    },
  };
}

function callsView(turn, actions) {
  const root = el("div", { class: "calls" });
  const cards = [];
  const send = el(
    "button",
    { type: "button", class: "button primary small", on: { click: submit } },
    "Send the results",
  );
  const note = el(
    "span",
    { class: "hint" },
    "Run the call yourself and write down what it gave; empty is a result too. If you write a message instead, the model is not told of the call.",
  );
  const form = el("div", { class: "toolbar", hidden: true }, send, note);

  function submit() {
    actions.answerCalls(cards.map(({ input }) => input.value));
  }
  return {
    root,
    update(isAsking) {
      setHidden(root, turn.calls.length === 0);
      for (const [at, call] of turn.calls.entries()) {
        if (!call) continue;
        if (!cards[at]) {
          cards[at] = callCard();
          root.append(cards[at].root);
        }
        cards[at].update(call, turn, at, isAsking);
      }
      const isOpen = isAsking && turn.status === Status.DONE && turn.results === null && turn.calls.length > 0;
      setHidden(form, !isOpen);
      if (turn.calls.length && root.lastChild !== form) root.append(form);
    },
  };
}

function callCard() {
  const name = el("strong", { class: "mono" });
  const args = el("div", {});
  const input = el("textarea", { rows: "2", class: "mono", placeholder: '{"temperature": 21}', spellcheck: "false" });
  const label = el("label", { class: "field" }, el("span", {}, "Its result"), input);
  const result = el("div", {});
  const root = el("div", { class: "call" }, el("div", {}, "Call of ", name), args, label, result);
  let shown = null;
  let shownResult = null;
  return {
    root,
    input,
    update(call, turn, at, isAsking) {
      setText(name, call.name || "…");
      const isOver = turn.status !== Status.RUNNING;
      const text = isOver ? prettyJson(call.arguments) : call.arguments;
      if (shown !== text) {
        shown = text;
        args.replaceChildren(codeBox(text, "arguments"));
      }
      setHidden(label, !(isAsking && turn.status === Status.DONE && turn.results === null));
      const given = turn.results?.[at] ?? null;
      if (given !== shownResult) {
        shownResult = given;
        result.replaceChildren(...(given === null ? [] : [codeBox(prettyJson(given), "result")]));
      }
    },
  };
}

function timingView(turn) {
  const summary = el("summary", {});
  const list = el("dl", { class: "timing" });
  const root = el("details", { class: "fold timing-fold", hidden: true }, summary, list);
  let shown = null;
  return {
    root,
    update() {
      const isOver = turn.status !== Status.RUNNING && turn.status !== Status.REFUSED;
      setHidden(root, !isOver);
      if (!isOver) return;
      setText(summary, timingLine(turn, formats));
      const rows = timingRows(turn, formats);
      const key = JSON.stringify(rows);
      if (shown === key) return;
      shown = key;
      list.replaceChildren();
      for (const [label, value, hint] of rows) {
        const told = el("dd", {});
        setText(told, value);
        list.append(el("div", { title: hint }, el("dt", {}, label), told));
      }
    },
  };
}

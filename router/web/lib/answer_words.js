// What is told of an answer: how it ended, what it waits for, how long each part took. Words only; unknown stays unknown.

import { Status } from "./conversation.js";

const UNTIL_LOADED = {
  unloaded: "not loaded yet",
  starting: "its process is being started",
  downloading: "its file is being downloaded",
  loading: "it is being loaded",
  draining: "its worker ends its last answers, and is loaded again then",
  stopping: "its worker is being stopped, and is loaded again then",
};

/** How the answer ended, as `{kind, text}`; kind is `fine`, `note` or `bad`. Null while it runs. */
export function ending(answer) {
  if (answer.status === Status.RUNNING) return null;
  if (answer.status === Status.STOPPED) return { kind: "note", text: stoppedWords(answer) };
  if (answer.status === Status.REFUSED) return { kind: "bad", text: `No answer: ${sentence(answer.error)}` };
  if (answer.status === Status.BROKEN)
    return {
      kind: "bad",
      text: `The answer broke off: ${sentence(answer.error)} What stands here is only its beginning.`,
    };
  return finished(answer);
}

function stoppedWords({ firstAtMs }) {
  if (firstAtMs === null) return "Stopped by you before the answer began.";
  return "Stopped by you: the server has stopped generating.";
}

function finished({ finish, calls, text, thoughts, format }) {
  if (format && format.is_valid === false)
    return { kind: "bad", text: `The answer does not have the wanted form: ${format.problem ?? "no reason given"}` };
  switch (finish) {
    case "length":
      return {
        kind: "note",
        text: "Cut off at the limit: the longest answer was reached, or the model's context is full.",
      };
    case "tool_calls":
    case "function_call":
      return {
        kind: "fine",
        text: calls.length === 1 ? "Asks for one call of a tool." : `Asks for ${calls.length} calls of tools.`,
      };
    case "content_filter":
      return { kind: "note", text: "Cut off by the other server's content filter." };
    case "stop":
      if (!text && !calls.length)
        return {
          kind: "note",
          text: thoughts ? "Ended after its thoughts, without an answer." : "Ended at once, without a word.",
        };
      return { kind: "fine", text: "Ended by itself, or at a text to stop before." };
    default:
      return { kind: "note", text: finish ? `Ended: ${finish}.` : "Ended; the server did not say why." };
  }
}

function sentence(error) {
  const text = error?.message ?? "the server gave no reason";
  return /[.!?]$/.test(text) ? text : `${text}.`;
}

/** What an answer without a word waits for, as `{text, fraction}`; fraction is null where there is none to show.
 *  `queue` and `slots` as the server tells them, null where they are not known. */
export function waiting(answer, model, { queue, slots }, formats) {
  const read = answer.prompt;
  if (read?.total && read.processed < read.total) {
    const cached = read.cache ? `, ${formats.count(read.cache)} of them known already` : "";
    return {
      text: `Reading the prompt: ${formats.count(read.processed)} of ${formats.count(read.total)} tokens${cached}`,
      fraction: read.processed / read.total,
    };
  }
  if (!model) return { text: "Waiting for the server", fraction: null };
  const { state, progress, reason, waiting_for: waitingFor } = model;
  if (progress) return { text: phaseWords(progress, formats), fraction: progress.fraction ?? null };
  if (UNTIL_LOADED[state]) {
    const why = waitingFor ?? reason;
    return { text: `Waiting for the model: ${UNTIL_LOADED[state]}${why ? ` (${why})` : ""}`, fraction: null };
  }
  const at = (queue?.requests ?? []).findIndex((one) => one.request_id === answer.requestId);
  if (at >= 0)
    return { text: `Waiting in line: ${queue.requests[at].waiting_for ?? "for a free slot"}`, fraction: null };
  if (waitingFor && model.queue_length > 0) return { text: `Waiting: ${waitingFor}`, fraction: null };
  const own = (slots ?? []).filter((slot) => slot.model === model.id);
  const hasSlot = own.some((slot) => slot.request_id === answer.requestId && answer.requestId !== null);
  if (own.length && !hasSlot && own.every((slot) => slot.is_processing))
    return { text: "Waiting: every slot of the model is at work", fraction: null };
  return { text: "Waiting for the first token", fraction: null };
}

function phaseWords({ phase, fraction, done_bytes: done, total_bytes: total, detail }, formats) {
  const words = {
    downloading: "Downloading the model",
    joining: "Joining the parts of its file",
    verifying: "Checking its file",
    starting: "Starting its process",
    loading: "Loading the model",
    warming: "Warming it up",
  };
  const share = fraction === null || fraction === undefined ? "" : `: ${formats.percent(fraction)}`;
  const bytes = total ? `, ${formats.bytes(done)} of ${formats.bytes(total)}` : "";
  return `${words[phase] ?? phase}${share}${bytes}${detail && phase === "downloading" ? ` (${detail})` : ""}`;
}

/** The parts of an answer's time and tokens, as rows of `[label, value, hint]`. */
export function timingRows(answer, formats) {
  const { record, timings, usage } = answer;
  const { count, seconds, rateWithUnit, percent } = formats;
  const cached = usage?.prompt_tokens_details?.cached_tokens ?? record?.cached_tokens ?? timings?.cache_n ?? null;
  const prompt = usage?.prompt_tokens ?? record?.prompt_tokens ?? sum(timings?.prompt_n, timings?.cache_n);
  const share = cached !== null && prompt ? ` (${percent(cached / prompt)} cached)` : "";
  const thought = usage?.completion_tokens_details?.reasoning_tokens ?? 0;
  const generated = numGenerated(answer);
  const rows = [
    ["in the queue", seconds(record?.queue_s), "waiting for a place on a worker, as the server measured it"],
    ["for the load", seconds(record?.load_s), "waiting until the model was loaded, as the server measured it"],
    [
      "to the first token",
      seconds(firstToken(answer)),
      record?.ttft_s ? "since the request came, as the server measured it" : "since it was sent, as this page saw it",
    ],
    ["whole answer", seconds(record?.total_s ?? elapsed(answer.sentAtMs, answer.endedAtMs)), null],
    [
      "prompt",
      prompt === null ? count(null) : `${count(prompt)} tokens${share}`,
      "cached: computed for an earlier request",
    ],
    ["prompt read at", rateWithUnit(rate(timings?.prompt_n, timings?.prompt_ms)), "tokens that were not cached"],
    [
      "generated",
      generated === null
        ? count(null)
        : `${count(generated)} tokens${thought ? `, ${count(thought)} of them thoughts` : ""}`,
      null,
    ],
    ["generated at", rateWithUnit(speed(answer)), null],
  ];
  if (timings?.draft_n)
    rows.push([
      "guessed ahead",
      `${count(timings.draft_n_accepted)} of ${count(timings.draft_n)} right`,
      "tokens that were drafted and then verified",
    ]);
  rows.push(["seed", formats.text(answer.seed), "with this seed the same random numbers are drawn again"]);
  rows.push(["request", formats.text(answer.requestId), "as in the server's log"]);
  return rows;
}

/** The same in one line. */
export function timingLine(answer, formats) {
  const generated = numGenerated(answer);
  const parts = [];
  if (generated !== null) parts.push(formats.plural(generated, "token"));
  const tokensPerS = speed(answer);
  if (tokensPerS !== null) parts.push(formats.rateWithUnit(tokensPerS));
  const first = firstToken(answer);
  if (first !== null) parts.push(`first after ${formats.seconds(first)}`);
  const whole = answer.record?.total_s ?? elapsed(answer.sentAtMs, answer.endedAtMs);
  if (whole !== null) parts.push(`${formats.seconds(whole)} in all`);
  return parts.join(" · ") || "nothing is known of its time";
}

export function numGenerated({ usage, record, timings }) {
  return usage?.completion_tokens ?? record?.completion_tokens ?? timings?.predicted_n ?? null;
}

export function speed({ timings, record }) {
  return record?.tokens_per_second ?? rate(timings?.predicted_n, timings?.predicted_ms);
}

function firstToken({ record, sentAtMs, firstAtMs }) {
  return record?.ttft_s ?? elapsed(sentAtMs, firstAtMs);
}

function rate(tokens, ms) {
  return tokens && ms ? (tokens * 1000) / ms : null;
}

function sum(one, other) {
  return one === undefined || one === null ? null : one + (other ?? 0);
}

function elapsed(fromMs, toMs) {
  return fromMs === null || toMs === null ? null : (toMs - fromMs) / 1000;
}

/** How long a thought took, as a heading. */
export function thoughtWords(answer, formats) {
  if (answer.status === Status.RUNNING && answer.thoughtUntilMs === null) return "Thinking …";
  const tokens = answer.usage?.completion_tokens_details?.reasoning_tokens;
  const told = tokens ? `, ${formats.plural(tokens, "token")}` : "";
  const took = elapsed(answer.firstAtMs, answer.thoughtUntilMs);
  return took === null ? `Thoughts${told}` : `Thought for ${formats.seconds(took)}${told}`;
}

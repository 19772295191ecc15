// A conversation as plain data: its turns, the request that asks for the next one, and what the pieces of a stream add.
// Must not touch the page, the network or a clock: times are passed in.

/** How an answer may stand. `broken` = the stream ended before the answer did; `refused` = no answer ever began. */
export const Status = Object.freeze({
  RUNNING: "running",
  DONE: "done",
  STOPPED: "stopped",
  BROKEN: "broken",
  REFUSED: "refused",
});

export function userTurn(text) {
  return { role: "user", text };
}

export function answerTurn(model, mode, atMs) {
  return {
    role: "assistant",
    model,
    mode,
    status: Status.RUNNING,
    text: "",
    thoughts: "",
    calls: [],
    results: null, // of the calls, by place, once they were sent
    finish: null,
    format: null,
    error: null, // {code, message, param, status}
    usage: null,
    timings: null,
    seed: null,
    prompt: null, // progress of reading it
    requestId: null,
    record: null, // the server's own account of the request
    sentAtMs: atMs,
    firstAtMs: null,
    thoughtUntilMs: null,
    endedAtMs: null,
  };
}

/** Whether an answer without its end can be gone on with: this server continues a last message that is the model's. */
export function canGoOn({ mode, status, text, thoughts, calls, finish }) {
  const isCut = status === Status.STOPPED || status === Status.BROKEN || finish === "length";
  return mode === "chat" && isCut && status !== Status.RUNNING && text !== "" && thoughts === "" && calls.length === 0;
}

/** The answer runs again, behind what it has already. */
export function goOn(answer, atMs) {
  const { text } = answer;
  Object.assign(answer, answerTurn(answer.model, answer.mode, atMs), { text });
}

/** Add what one event of the stream tells. */
export function addEvent(answer, event, nowMs) {
  if (event.error) {
    answer.error = toldError(event.error);
    return;
  }
  answer.usage = event.usage ?? answer.usage;
  answer.timings = event.timings ?? answer.timings;
  answer.seed = event.seed ?? answer.seed;
  answer.prompt = event.prompt_progress ?? answer.prompt;
  for (const choice of event.choices ?? []) {
    if ((choice.index ?? 0) === 0) addChoice(answer, choice, nowMs);
  }
}

function addChoice(answer, choice, nowMs) {
  const delta = choice.delta ?? {};
  const thought = delta.reasoning_content ?? delta.reasoning ?? "";
  const text = delta.content ?? choice.text ?? "";
  if (answer.firstAtMs === null && (thought || text || delta.tool_calls?.length)) answer.firstAtMs = nowMs;
  answer.thoughts += thought;
  if (answer.thoughts && answer.thoughtUntilMs === null && (text || delta.tool_calls?.length))
    answer.thoughtUntilMs = nowMs;
  answer.text += text;
  for (const piece of delta.tool_calls ?? []) addCall(answer.calls, piece);
  answer.finish = choice.finish_reason ?? answer.finish;
  answer.format = choice.corral_format ?? answer.format;
}

function addCall(calls, piece) {
  const at = piece.index ?? calls.length;
  calls[at] ??= { id: "", name: "", arguments: "" };
  calls[at].id = piece.id ?? calls[at].id;
  calls[at].name += piece.function?.name ?? "";
  calls[at].arguments += piece.function?.arguments ?? "";
}

/** The answer has ended: how, and when. */
export function endAnswer(answer, status, nowMs) {
  answer.status = status;
  answer.endedAtMs = nowMs;
  if (answer.thoughts) answer.thoughtUntilMs ??= nowMs;
}

/** An error as the server tells it, whatever is missing of it. */
export function toldError(error, status = null) {
  const told = typeof error === "string" ? { message: error } : (error ?? {});
  return {
    status,
    code: told.code === undefined || told.code === null ? "" : String(told.code),
    message: told.message || "The server gave no reason.",
    param: told.param ?? null,
  };
}

/** The calls of the last answer that wait for results; empty if it made none, or has them. */
export function openCalls(turns) {
  const last = turns.at(-1);
  const waits =
    last?.role === "assistant" && last.status === Status.DONE && last.calls.length > 0 && last.results === null;
  return waits ? last.calls : [];
}

/** The body of a chat request for the next turn. `isOwn` = answered by this server, which knows fields of its own. */
export function chatBody(model, turns, options, { isOwn }) {
  const messages = options.system ? [{ role: "system", content: options.system }] : [];
  for (const turn of turns) messages.push(...turnMessages(turn, isOwn));
  return streamed({ model, messages }, options.fields, isOwn);
}

/** The body of a request that has all text so far continued. */
export function rawBody(model, turns, options, { isOwn }) {
  const prompt = turns.map((turn) => turn.text).join("");
  return streamed({ model, prompt }, options.fields, isOwn);
}

function streamed(start, fields, isOwn) {
  const own = isOwn ? { timings_per_token: true, return_progress: true } : {};
  return { ...start, ...fields, stream: true, stream_options: { include_usage: true }, ...own };
}

function turnMessages(turn, isOwn) {
  if (turn.role === "user") return [{ role: "user", content: turn.text }];
  const calls = turn.results === null ? [] : turn.calls;
  if (!turn.text && calls.length === 0) return []; // nothing came, or only calls that nobody answered
  const message = { role: "assistant", content: turn.text || null };
  if (turn.thoughts && isOwn) message.reasoning_content = turn.thoughts;
  if (calls.length === 0) return [message];
  message.tool_calls = calls.map(({ id, name, arguments: given }) => ({
    id,
    type: "function",
    function: { name, arguments: given },
  }));
  return [message, ...calls.map(({ id }, at) => ({ role: "tool", tool_call_id: id, content: turn.results[at] ?? "" }))];
}

/** Turns as they may be kept: what was running when the page went is an answer that broke off. */
export function revived(turns) {
  for (const turn of turns) {
    if (turn.role !== "assistant" || turn.status !== Status.RUNNING) continue;
    turn.status = turn.text || turn.thoughts ? Status.BROKEN : Status.REFUSED;
    turn.error = toldError({ message: "The page was left or loaded again before the answer had ended." });
    turn.endedAtMs = null;
  }
  return turns;
}

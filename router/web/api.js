// Talks to the server: requests, event streams and the API key.
// Owns: the key (in sessionStorage only), errors in the server's words, reconnecting. Must not touch the page.

const KEY_NAME = "corral.key";
const MIN_RETRY_MS = 500;
const MAX_RETRY_MS = 10_000;
const SILENCE_MS = 30_000;
const PROBE_MS = 5_000;

/** What the server refused, or why it could not be reached (`status` 0). `message` is for people. */
export class ApiError extends Error {
  constructor(status, code, message, body = null, { param = null, retry_after_s = null } = {}) {
    super(message);
    this.name = "ApiError";
    this.status = status;
    this.code = code;
    this.body = body;
    this.param = param;
    this.retry_after_s = retry_after_s;
  }
}

let askForKey = null;
let asking = null;
const forbiddenListeners = new Set();

let keyOfPage = ""; // where the browser lets the page store nothing

/** The key that is sent with every request; "" = none. */
export function key() {
  try {
    return sessionStorage.getItem(KEY_NAME) ?? keyOfPage;
  } catch {
    return keyOfPage;
  }
}

export function setKey(value) {
  keyOfPage = value;
  try {
    if (value) sessionStorage.setItem(KEY_NAME, value);
    else sessionStorage.removeItem(KEY_NAME);
  } catch {
    // it lasts as long as the page
  }
}

/** Whether a text can be a key: a header takes nothing but visible ASCII. */
export function canBeKey(text) {
  return /^[!-~]+$/.test(text);
}

/** `ask(message)` is called when the server wants a key; its promise gives the key, or null if the person gives up. */
export function onKeyWanted(ask) {
  askForKey = ask;
}

/** `listener(error)` is told of every 403. */
export function onForbidden(listener) {
  forbiddenListeners.add(listener);
}

function headers(extra = {}) {
  const all = { ...extra };
  if (key()) all.Authorization = `Bearer ${key()}`;
  return all;
}

async function newKey(refused, error) {
  if (!askForKey) throw error;
  if (key() !== refused) return; // another request has asked meanwhile
  asking ??= askForKey(refused ? "The server does not accept this key." : "").finally(() => {
    asking = null;
  });
  const given = await asking;
  if (given === null) throw error;
  setKey(given);
}

async function failure(reply) {
  let body = null;
  let text = "";
  try {
    text = await reply.text();
    body = JSON.parse(text);
  } catch {
    // not JSON: a proxy's page, perhaps
  }
  const told = body?.error ?? body?.detail;
  const message = typeof told === "string" ? told : told?.message;
  return new ApiError(
    reply.status,
    (typeof told === "object" && told?.code) || body?.code || "",
    message || `The server answered ${reply.status} ${reply.statusText}`.trim() + ".",
    body,
    { param: told?.param ?? null, retry_after_s: Number(reply.headers.get("Retry-After")) || null },
  );
}

/** Return the reply once its status is fine, after asking for a key if one is wanted. Throws ApiError. */
async function open(path, options = {}) {
  for (;;) {
    const used = key();
    let reply;
    try {
      reply = await fetch(path, {
        cache: "no-store",
        credentials: "same-origin",
        ...options,
        headers: headers(options.headers),
      });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError(0, "unreachable", "The server cannot be reached. Is it running?");
    }
    if (reply.ok) return reply;
    const error = await failure(reply);
    if (reply.status === 401 || error.code === "too_many_wrong_keys") {
      await newKey(used, error);
      continue;
    }
    if (reply.status === 403) for (const listener of forbiddenListeners) listener(error);
    throw error;
  }
}

function json(method, body, signal) {
  const options = { method, signal };
  if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers = { "Content-Type": "application/json" };
  }
  return options;
}

async function parsed(reply) {
  const text = await reply.text();
  if (!text) return null;
  try {
    return JSON.parse(text);
  } catch {
    throw new ApiError(reply.status, "not_json", "The server's answer is not JSON.");
  }
}

/** Return the parsed answer to a GET. */
export async function get(path, { signal } = {}) {
  return parsed(await open(path, { signal }));
}

/** Return the answer to a GET as text. */
export async function text(path, { signal } = {}) {
  return (await open(path, { signal })).text();
}

/** Return the parsed answer to `method path` with a JSON body; without `body` none is sent. */
export async function send(method, path, body, { signal } = {}) {
  return parsed(await open(path, json(method, body, signal)));
}

async function* chunks(reply) {
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      yield value;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** Split a stream of text into server-sent events: `{event, data}`; comments are `{comment}`. */
class EventParser {
  #rest = "";
  #event = "message";
  #data = [];

  *feed(chunk) {
    const lines = (this.#rest + chunk).split(/\r?\n/);
    this.#rest = lines.pop();
    for (const line of lines) {
      if (line === "") {
        if (this.#data.length) yield { event: this.#event, data: this.#data.join("\n") };
        this.#event = "message";
        this.#data = [];
      } else if (!line.startsWith(":")) {
        const [, field, value] = /^([^:]*):? ?(.*)$/s.exec(line);
        if (field === "event") this.#event = value;
        else if (field === "data") this.#data.push(value);
      }
    }
  }
}

/** POST `body` and call `onData(object, event)` for each event of the answer; `[DONE]` ends it.
 *  Return `{isDone}`: false if the stream ended without `[DONE]`. Throws ApiError, or AbortError when `signal` says so. */
export async function stream(path, body, { signal, onData, onOpen }) {
  const reply = await open(path, json("POST", body, signal));
  onOpen?.(reply);
  const parser = new EventParser();
  try {
    for await (const chunk of chunks(reply)) {
      for (const { event, data } of parser.feed(chunk)) {
        if (data === "[DONE]") return { isDone: true };
        onData(JSON.parse(data), event);
      }
    }
  } catch (error) {
    throw broken(error);
  }
  return { isDone: false };
}

/** Call `onLines([line, …])` for what a GET answers, as it comes. Resolves at its end. */
export async function lines(path, { signal, onLines, onOpen }) {
  const reply = await open(path, { signal });
  onOpen?.(reply);
  let rest = "";
  try {
    for await (const chunk of chunks(reply)) {
      const parts = (rest + chunk).split("\n");
      rest = parts.pop();
      if (parts.length) onLines(parts);
    }
  } catch (error) {
    throw broken(error);
  }
  if (rest) onLines([rest]);
}

function broken(error) {
  if (error.name === "AbortError" || error instanceof ApiError || error instanceof SyntaxError) return error;
  if (!(error instanceof TypeError)) return error;
  return new ApiError(0, "connection_lost", "The connection broke off.");
}

/** Resolves after `ms`, or as soon as `signal` aborts. */
export function pause(ms, signal) {
  return new Promise((resolve) => {
    const end = () => {
      clearTimeout(timer);
      signal.removeEventListener("abort", end);
      resolve();
    };
    const timer = setTimeout(end, ms);
    signal.addEventListener("abort", end, { once: true });
  });
}

/** Follow the event stream at `path` (a text, or a function that returns one) until `signal` aborts.
 *
 *  `onEvent(event, data)` gets each event. `onState({status, error, retry_in_s, headers})` is told `connecting`, `open`,
 *  `lost` (another try follows after `retry_in_s`) and `refused` (only a person can help: a wrong key, a missing scope).
 *  `onRefused(error)` may return true to try again at once, for example with another path.
 */
export async function events(path, { signal, onEvent, onState = () => {}, onRefused = () => false }) {
  let retry = MIN_RETRY_MS;
  while (!signal.aborted) {
    let error;
    onState({ status: "connecting" });
    try {
      await follow(typeof path === "function" ? path() : path, signal, onEvent, (reply) => {
        retry = MIN_RETRY_MS;
        onState({ status: "open", headers: reply.headers });
      });
      error = new ApiError(0, "connection_lost", "The server closed the connection.");
    } catch (caught) {
      if (signal.aborted) return;
      error = caught;
    }
    if (error instanceof ApiError && [400, 401, 403, 404].includes(error.status)) {
      if (onRefused(error)) continue;
      onState({ status: "refused", error });
      return;
    }
    const wait = retry * (0.8 + 0.4 * Math.random());
    onState({ status: "lost", error, retry_in_s: wait / 1000 });
    await pause(wait, signal);
    retry = Math.min(MAX_RETRY_MS, retry * 2);
  }
}

async function follow(path, signal, onEvent, onOpen) {
  const own = new AbortController();
  const stop = () => own.abort();
  signal.addEventListener("abort", stop, { once: true });
  let lastSign = performance.now();
  const watch = setInterval(async () => {
    if (performance.now() - lastSign < SILENCE_MS) return;
    lastSign = performance.now();
    if (!(await isAlive())) own.abort();
  }, PROBE_MS);
  try {
    const reply = await open(path, { signal: own.signal, headers: { Accept: "text/event-stream" } });
    onOpen(reply);
    const parser = new EventParser();
    for await (const chunk of chunks(reply)) {
      lastSign = performance.now();
      for (const { event, data } of parser.feed(chunk)) onEvent(event, JSON.parse(data));
    }
  } catch (error) {
    if (error.name === "AbortError" && !signal.aborted) {
      throw new ApiError(0, "connection_lost", "The server has gone silent.");
    }
    throw broken(error);
  } finally {
    clearInterval(watch);
    signal.removeEventListener("abort", stop);
  }
}

/** Return whether the server still answers: a silent stream may belong to a machine that is gone. */
async function isAlive() {
  const timeout = new AbortController();
  const timer = setTimeout(() => timeout.abort(), PROBE_MS);
  try {
    await fetch("/health", { cache: "no-store", signal: timeout.signal });
    return true;
  } catch {
    return false;
  } finally {
    clearTimeout(timer);
  }
}

// What the page knows of the server, kept current by one event stream, which is closed while nobody looks.
// Owns: the state and who is told of changes. Must not touch the page.

import * as api from "./api.js";

const ALL = "all";
const WITHOUT_REQUESTS = "server,models,slots,devices,queue";
const KEPT_REQUESTS = 500;
const CONFIRM_MS = 3_000;

/** `connection.status`: `connecting`, `open`, `lost`, `refused`, `paused` (the page is hidden).
 *  `server`, `devices`, `slots`, `queue`, `requests` are null until known; `requests` is newest first.
 *  `may` is what the key may do as far as is known, `scopes` the names of its scopes (null = not told yet).
 *  `stamps[topic]` and each model's `received_ms` tell (performance.now()) when the values came. */
export const state = {
  server: null,
  models: new Map(),
  devices: null,
  slots: null,
  queue: null,
  requests: null,
  connection: { status: "connecting", error: null, retry_at_ms: null, lost_at_ms: null },
  stamps: {},
  may: { admin: true, requests: true, ask: true },
  scopes: null,
};

const listeners = new Map();
const pending = new Map();
let isFlushing = false;

/** Call `fn` after `topic` has changed, at most once a frame: `server`, `models` (with a Set of names), `devices`, `slots`,
 *  `queue`, `requests` (with the new records, or null = all are new), `connection`, `may`. Return a function that ends it. */
export function subscribe(topic, fn) {
  if (!listeners.has(topic)) listeners.set(topic, new Set());
  listeners.get(topic).add(fn);
  return () => listeners.get(topic).delete(fn);
}

function changed(topic, note = null) {
  if (topic === "models") {
    const names = pending.get(topic) ?? new Set();
    names.add(note);
    pending.set(topic, names);
  } else if (topic === "requests") {
    const before = pending.has(topic) ? pending.get(topic) : [];
    pending.set(topic, note === null || before === null ? null : [...before, note]);
  } else {
    pending.set(topic, null);
  }
  if (isFlushing) return;
  isFlushing = true;
  setTimeout(flush, 0);
}

function flush() {
  isFlushing = false;
  const told = [...pending];
  pending.clear();
  for (const [topic, note] of told) for (const fn of listeners.get(topic) ?? []) fn(note);
}

function setConnection(next) {
  const before = state.connection;
  const isGone = next.status === "lost" || (next.status === "connecting" && before.lost_at_ms !== null);
  state.connection = {
    status: next.status,
    error: next.error ?? (next.status === "connecting" ? before.error : null),
    retry_at_ms: next.retry_in_s === undefined ? null : performance.now() + next.retry_in_s * 1000,
    lost_at_ms: isGone ? (before.lost_at_ms ?? performance.now()) : null,
  };
  changed("connection");
}

/** True once the server has said that it stops, until one answers again. */
export function isStopping() {
  return state.server?.status === "draining" || state.connection.error?.code === "shutting_down";
}

/** True while the values on the page may be old. */
export function isStale() {
  return ["lost", "refused"].includes(state.connection.status) || state.connection.lost_at_ms !== null;
}

/** Seconds since the value that came with `stamp` (performance.now()). While the connection is away time stands still. */
export function since(stamp) {
  if (stamp === undefined || stamp === null) return 0;
  const end = state.connection.lost_at_ms ?? performance.now();
  return Math.max(0, (end - stamp) / 1000);
}

/** Remember that the key lacks a right, so that the page hides what needs it. */
export function forbid(what) {
  if (!state.may[what]) return;
  state.may[what] = false;
  changed("may");
}

const handlers = {
  server(server) {
    state.server = server;
    changed("server");
  },
  model(model) {
    model.received_ms = performance.now();
    state.models.set(model.id, model);
    unconfirmed.delete(model.id);
    changed("models", model.id);
  },
  model_removed({ model }) {
    state.models.delete(model);
    unconfirmed.delete(model);
    changed("models", model);
  },
  slots: (slots) => put("slots", slots),
  devices: (devices) => put("devices", devices),
  queue: (queue) => put("queue", queue),
  requests(records) {
    state.requests = records.slice().reverse();
    changed("requests");
  },
  request(record) {
    state.requests = [record, ...(state.requests ?? [])].slice(0, KEPT_REQUESTS);
    changed("requests", record);
  },
};

/** Take over what the key may do, if the server tells. */
function setScopes(text) {
  if (!text) return;
  const scopes = text.split(",").map((scope) => scope.trim());
  const isAdmin = scopes.includes("admin");
  state.scopes = scopes;
  state.may = { admin: isAdmin, requests: isAdmin || scopes.includes("metrics"), ask: isAdmin || scopes.includes("inference") };
  changed("may");
}

function put(topic, value) {
  state[topic] = value;
  changed(topic);
}

const stampOf = { server: "server", slots: "slots", devices: "devices", queue: "queue" };

function onEvent(event, value) {
  if (stampOf[event]) state.stamps[stampOf[event]] = performance.now();
  handlers[event]?.(value);
}

// Models that were known before the stream was opened anew: those that it does not name again are gone.
let unconfirmed = new Set();
let confirming = null;

function startConfirming() {
  unconfirmed = new Set(state.models.keys());
  clearTimeout(confirming);
  confirming = setTimeout(() => {
    for (const name of unconfirmed) handlers.model_removed({ model: name });
  }, CONFIRM_MS);
}

let current = null;
let topics = ALL;

/** Open the stream, and close it whenever the page is hidden. */
export function start() {
  document.addEventListener("visibilitychange", () => (document.hidden ? pause() : reconnect()));
  if (document.hidden) pause();
  else reconnect();
}

function pause() {
  current?.abort();
  current = null;
  setConnection({ status: "paused" });
}

/** Open the stream anew: with another key, or because a person does not want to wait. */
export function reconnect({ withNewKey = false } = {}) {
  current?.abort();
  if (withNewKey) {
    topics = ALL;
    state.may = { admin: true, requests: true, ask: true };
    state.scopes = null;
    changed("may");
  }
  current = new AbortController();
  const { signal } = current;
  api.events(() => `/events?topics=${topics}`, {
    signal,
    onEvent: (event, value) => !signal.aborted && onEvent(event, value),
    onState(next) {
      if (signal.aborted) return;
      if (next.status === "open") {
        setScopes(next.headers.get("X-Corral-Scopes"));
        startConfirming();
      } else clearTimeout(confirming);
      setConnection(next);
    },
    onRefused(error) {
      if (error.status !== 403 || topics !== ALL) return false;
      topics = WITHOUT_REQUESTS;
      forbid("requests");
      return true;
    },
  });
}

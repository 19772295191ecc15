// The shell: tabs, banners, notices, the key form and the theme. Owns what all views share; what they show is theirs.

import * as api from "./api.js";
import * as formats from "./formats.js";
import * as store from "./store.js";
import { el, replace, setAttr, setHidden, setText, setWords, words } from "./dom.js";
import { closeIcon, keyIcon, themeIcons, warnIcon } from "./icons.js";

// A view is a module views/NAME.js that exports {id, title, create(root, context)}; `create` returns {show(args), hide()}.
const VIEWS = [
  ["overview", "Overview"],
  ["requests", "Requests"],
  ["playground", "Playground"],
  ["logs", "Logs"],
  ["configuration", "Configuration"],
];
const TOAST_MS = 6_000;

const byId = (id) => document.getElementById(id);

// --- views and tabs ---------------------------------------------------------------------------------------------------

const views = new Map();
let shown = null;

/** Go to a view: `navigate("logs", {model: "smollm2"})`. */
function navigate(id, args = {}) {
  const query = new URLSearchParams(Object.entries(args).filter(([, value]) => value !== null && value !== undefined));
  const hash = `#${id}${query.size ? `?${query}` : ""}`;
  if (location.hash === hash) route();
  else location.hash = hash;
}

const context = { api, store, formats, notify, navigate, announce, changeKey: () => changeKey() };
let changeKey = () => {};

function makeTabs() {
  for (const [id, title] of VIEWS) {
    const tab = el("button", {
      type: "button", class: "tab", role: "tab", id: `tab-${id}`, "aria-controls": `view-${id}`, tabindex: "-1",
      "aria-selected": "false", text: title, on: { click: () => navigate(id) },
    });
    const panel = el("section", { class: `view view-${id}`, role: "tabpanel", id: `view-${id}`, "aria-labelledby": tab.id, hidden: true });
    byId("tabs").append(tab);
    byId("main").append(panel);
    views.set(id, { id, title, tab, panel, view: null });
  }
  byId("tabs").addEventListener("keydown", onTabKey);
}

function onTabKey(event) {
  const ids = [...views.keys()];
  const at = ids.indexOf(event.target.id.replace("tab-", ""));
  const steps = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: ids.length - 1 };
  if (!(event.key in steps) || at < 0) return;
  event.preventDefault();
  const id = ids[(steps[event.key] + ids.length) % ids.length];
  views.get(id).tab.focus();
  navigate(id);
}

async function route() {
  const [id, query = ""] = location.hash.slice(1).split("?");
  if (id === "main") return; // the skip link
  const next = views.get(id) ?? views.get("overview");
  const args = Object.fromEntries(new URLSearchParams(query));
  if (shown && shown !== next) {
    shown.view?.hide();
    setHidden(shown.panel, true);
    setAttr(shown.tab, "aria-selected", "false");
    setAttr(shown.tab, "tabindex", "-1");
  }
  shown = next;
  setHidden(next.panel, false);
  setAttr(next.tab, "aria-selected", "true");
  setAttr(next.tab, "tabindex", "0");
  const strip = byId("tabs"); // scrollIntoView would move the page too
  strip.scrollLeft = next.tab.offsetLeft - strip.offsetLeft - (strip.clientWidth - next.tab.offsetWidth) / 2;
  document.title = `${next.title} – Corral`;
  if (!(await load(next)) || shown !== next) return;
  next.view.show(args);
}

async function load(entry) {
  if (entry.view) return true;
  try {
    entry.loading ??= import(`./views/${entry.id}.js`);
    const module = await entry.loading;
    entry.view ??= module.create(entry.panel, context);
    return true;
  } catch (error) {
    entry.loading = null;
    console.error(error);
    replace(entry.panel, el("div", { class: "empty" },
      el("p", { text: `The view could not be loaded: ${error.message}` }),
      el("button", { type: "button", class: "button", text: "Try again", on: { click: () => (replace(entry.panel), route()) } })));
    return false;
  }
}

// --- notices ----------------------------------------------------------------------------------------------------------

/** Show a notice: `kind` is `info`, `ok` or `error`. Errors stay until they are closed. */
function notify(kind, text) {
  const toast = el("div", { class: `toast ${kind}`, role: kind === "error" ? "alert" : "status" },
    el("span", { class: "toast-text" }, words(text)),
    el("button", { type: "button", class: "button quiet icon-button", "aria-label": "Close this notice", on: { click: close } }, closeIcon()));
  function close() {
    toast.remove();
  }
  const toasts = byId("toasts");
  while (toasts.childElementCount >= 4) toasts.firstElementChild.remove();
  toasts.append(toast);
  if (kind !== "error") setTimeout(close, TOAST_MS);
}

/** Tell screen readers, without showing anything. */
function announce(text) {
  setText(byId("announcer"), text);
}

// --- connection and banners --------------------------------------------------------------------------------------------

const WORDS = { connecting: "Connecting", open: "Live", lost: "Disconnected", refused: "Refused", paused: "Paused" };

function makeBanner(kind, ...children) {
  return el("div", { class: `banner ${kind}`, hidden: true }, warnIcon(), el("div", { class: "banner-body" }, ...children));
}

function makeConnection() {
  const badge = byId("connection");
  const dot = el("span", { class: "connection-dot", "aria-hidden": "true" });
  const word = el("span", {});
  badge.append(dot, word);
  const title = el("strong", { role: "alert" }); // the countdown beside it must not be read out each second
  const detail = el("span", {});
  const retry = el("button", { type: "button", class: "button small", text: "Try now", on: { click: () => store.reconnect() } });
  const enter = el("button", { type: "button", class: "button small", text: "Enter key", on: { click: () => changeKey() } });
  const banner = makeBanner("danger", title, detail, retry, enter);
  byId("banners").append(banner);

  function update() {
    const { status, error, retry_at_ms } = store.state.connection;
    const isAway = store.isStale();
    const isStopping = store.isStopping();
    const isLive = status === "open" && !isStopping;
    setAttr(badge, "data-status", isAway && status === "connecting" ? "lost" : status);
    setAttr(badge, "data-stopping", status === "open" && isStopping);
    setText(word, isAway && status === "connecting" ? "Reconnecting" : status === "open" && !isLive ? "Stopping" : WORDS[status]);
    document.body.classList.toggle("stale", isAway);
    setHidden(banner, !isAway);
    if (!isAway) {
      setText(title, "");
      return;
    }
    const isOld = store.state.server !== null;
    const wantsKey = status === "refused" && error.status === 401;
    setHidden(enter, !wantsKey);
    setHidden(retry, wantsKey);
    if (wantsKey) {
      setText(title, "No valid key.");
      setText(detail, `This server shows nothing without an API key.${isOld ? " What you see is old." : ""}`);
    } else if (status === "refused") {
      setText(title, "The server refuses the live view.");
      setWords(detail, error.message);
    } else {
      const wait = retry_at_ms === null ? 0 : Math.max(0, Math.ceil((retry_at_ms - performance.now()) / 1000));
      setText(title, isStopping ? "The server is stopping or restarting." : "The server cannot be reached.");
      setText(detail, `${isOld ? "What you see is old. " : ""}${wait ? `Trying again in ${wait} s.` : "Trying again …"}`);
    }
  }
  store.subscribe("connection", update);
  store.subscribe("server", update);
  setInterval(() => store.state.connection.status === "lost" && update(), 1000);
  update();
}

function makeServerBanners() {
  const draining = makeBanner("warning",
    el("strong", { text: "The server is stopping." }),
    el("span", { text: "Running answers end first; new requests are refused." }));
  const what = el("strong", { text: "The configuration on the disk is invalid." });
  const where = el("span", {});
  const problems = el("ul", { class: "problems" });
  const go = el("button", { type: "button", class: "button small", text: "Open the configuration", on: { click: () => navigate("configuration") } });
  const invalid = makeBanner("danger", what, where, problems, go);
  setAttr(invalid, "role", "status");
  setAttr(draining, "role", "status");
  byId("banners").append(draining, invalid);

  // Once the stream is gone the banner of the connection says it.
  const showDraining = () => setHidden(draining, store.state.server?.status !== "draining" || store.isStale());
  store.subscribe("connection", showDraining);
  store.subscribe("server", () => {
    showDraining();
    const { configuration } = store.state.server;
    const isInvalid = configuration?.status === "invalid";
    setHidden(invalid, !isInvalid);
    if (!isInvalid) return;
    const since = configuration.since ? ` since ${formats.time(configuration.since)}` : "";
    setText(where, `${configuration.path}${since}. The last valid configuration stays in use.`);
    const list = configuration.problems?.length ? configuration.problems : [{ message: configuration.error }];
    replace(problems, list.slice(0, 5).map((one) => el("li", {}, words(problemText(one)))),
      list.length > 5 && el("li", { text: `and ${list.length - 5} more` }));
  });
}

/** One problem of the configuration as a line: "line 4, models.a.slotz: unknown key". */
function problemText({ where, message, line }) {
  return [line ? `line ${line}` : "", where ?? ""].filter(Boolean).join(", ") + (line || where ? ": " : "") + (message ?? "");
}

// --- keys ------------------------------------------------------------------------------------------------------------

function makeKeyForm() {
  const dialog = byId("key-dialog");
  const input = byId("key-input");
  let answer = null;

  /** Ask for a key because the server wants one, or (`isOwnWish`) because the person wants to change it. */
  function ask(problem, { isOwnWish = false } = {}) {
    const isChange = isOwnWish && api.key() !== "";
    setText(byId("key-title"), isChange ? "The key of this tab" : isOwnWish ? "Enter a key" : "This server wants a key");
    setHidden(byId("key-present"), !isChange);
    setHidden(byId("key-forget"), !isChange);
    const { scopes } = store.state;
    replace(byId("key-present"), scopes
      ? ["The present key has the ", scopes.length === 1 ? "scope " : "scopes ", scopes.map((scope, at) => [at ? ", " : "", el("code", { text: scope })]), "."]
      : "What the present key may do is not known.");
    setText(byId("key-problem"), problem);
    setHidden(byId("key-problem"), !problem);
    input.value = "";
    if (!dialog.open) dialog.showModal();
    input.focus();
    return new Promise((resolve) => {
      answer = resolve;
    });
  }

  function finish(value) {
    if (dialog.open) dialog.close();
    answer?.(value);
    answer = null;
  }

  byId("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const given = input.value.trim();
    if (given && !api.canBeKey(given)) {
      setText(byId("key-problem"), "This cannot be a key: it has blanks or characters in it that no key has.");
      setHidden(byId("key-problem"), false);
      input.focus();
    } else finish(given || null);
  });
  byId("key-cancel").addEventListener("click", () => finish(null));
  byId("key-forget").addEventListener("click", () => {
    api.setKey("");
    location.reload(); // what the key has shown goes too
  });
  dialog.addEventListener("cancel", () => finish(null));

  api.onKeyWanted(async (problem) => {
    const given = await ask(problem);
    if (given !== null) queueMicrotask(showKeyButton);
    return given;
  });

  const button = byId("key-button");
  button.append(keyIcon());
  changeKey = async () => {
    const given = await ask("", { isOwnWish: true });
    if (given === null) return;
    api.setKey(given);
    store.reconnect({ withNewKey: true });
    showKeyButton();
  };
  button.addEventListener("click", () => changeKey());

  function showKeyButton() {
    const isOpen = store.state.server?.is_open ?? !api.key();
    setHidden(button, isOpen && !api.key() && store.state.connection.status !== "refused");
    const label = api.key() ? "The key: see, change or forget it" : "Enter a key";
    setAttr(button, "aria-label", label);
    setAttr(button, "title", label);
  }
  store.subscribe("server", showKeyButton);
  store.subscribe("connection", showKeyButton);
  showKeyButton();

  api.onForbidden((error) => {
    if (/`admin`/.test(error.message)) store.forbid("admin");
    else if (/`metrics`/.test(error.message) && !/`inference`/.test(error.message)) store.forbid("requests");
    else if (/`inference`/.test(error.message) && !/`metrics`/.test(error.message)) store.forbid("ask");
  });
}

// --- theme -----------------------------------------------------------------------------------------------------------

const THEMES = ["auto", "light", "dark"];
const THEME_WORDS = { auto: "as the system has it", light: "light", dark: "dark" };

function makeThemeSwitch() {
  const button = byId("theme-button");
  let theme = document.documentElement.dataset.theme ?? "auto";

  function update() {
    replace(button, themeIcons[theme]());
    const next = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    const label = `Theme: ${THEME_WORDS[theme]}. Change to: ${THEME_WORDS[next]}`;
    setAttr(button, "aria-label", label);
    setAttr(button, "title", label);
  }
  button.addEventListener("click", () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    try {
      if (theme === "auto") localStorage.removeItem("corral.theme");
      else localStorage.setItem("corral.theme", theme);
    } catch {
      // storage is off: the choice lasts as long as the page
    }
    update();
  });
  update();
}

makeTabs();
makeThemeSwitch();
makeConnection();
makeServerBanners();
makeKeyForm();
addEventListener("hashchange", route);
route();
store.start();

// The configuration: the file as it is on the disk, what is wrong with it, and an editor that saves only what is valid.
// Must not save anything by itself: what is typed goes to the server for a check, and is written when somebody says so.

import { el, replace, setAttr, setHidden, setText, setWords, words } from "../dom.js";
import { codeEditor } from "../lib/code_editor.js";
import { changeList, problemList } from "./configuration_parts.js";

export const id = "configuration";
export const title = "Configuration";

const CHECK_AFTER_MS = 400;

export function create(root, { api, store, formats, notify, changeKey }) {
  let loaded = null; // what GET /admin/config said last
  let kept = null; // a text that was put aside for the one on the disk
  let checked = null; // the last verdict on a text in the editor
  let isOld = false; // that text was another one
  let timer = 0;
  let checking = null; // AbortController
  let isBusy = false;
  let isShown = false;

  const path = el("span", { class: "mono ellipsis" });
  const verdict = el("span", { class: "verdict", role: "status" });
  const dirty = el("span", { class: "tag", hidden: true }, "not saved");
  const save = el("button", { type: "button", class: "button primary", disabled: true, on: { click: onSave } }, "Save");
  const discard = el(
    "button",
    { type: "button", class: "button", disabled: true, on: { click: onDiscard } },
    "Discard",
  );
  const reload = el("button", { type: "button", class: "button", on: { click: onReload } }, "Reload");
  setAttr(reload, "title", "Have the server read all of its configuration from the disk again");
  const editor = codeEditor({ label: "The configuration", onInput: onEdit });
  const notes = el("div", { class: "config-notes" });
  const conflict = el("div", { class: "banner warning", role: "alert", hidden: true });
  const aside = el("div", { class: "banner info", hidden: true });
  const failure = el("div", { class: "banner danger", role: "alert", hidden: true });
  const readOnly = el("p", { class: "hint", hidden: true });
  const problems = el("section", { class: "panel", "aria-label": "Problems", hidden: true });
  const warnings = el("section", { class: "panel", "aria-label": "Warnings", hidden: true });
  const unusable = el("section", { class: "panel", "aria-label": "Models that cannot be used", hidden: true });
  const changes = el("section", { class: "panel", "aria-label": "What would change", hidden: true });
  const about = el("section", { class: "panel", "aria-label": "In use" });
  const result = el("section", { class: "panel", "aria-label": "What has changed", role: "status", hidden: true });
  notes.append(failure, conflict, aside);
  const all = el(
    "div",
    { class: "config", hidden: true },
    el(
      "section",
      { class: "panel", "aria-label": "The file" },
      el("div", { class: "panel-head" }, path, dirty, el("span", { class: "spacer" }), verdict),
      el(
        "div",
        { class: "panel-body" },
        readOnly,
        editor.root,
        el("div", { class: "toolbar config-buttons" }, save, discard, el("span", { class: "spacer" }), reload),
      ),
    ),
    el("div", { class: "config-side" }, result, problems, unusable, warnings, changes, about),
  );
  root.append(notes, all);

  addEventListener("beforeunload", (event) => isDirty() && event.preventDefault());
  store.subscribe("server", onServer);
  store.subscribe("models", () => isShown && loaded && !isDirty() && !isOld && showVerdict());
  store.subscribe("may", onMay);

  return {
    async show(args = {}) {
      isShown = true;
      if (!store.state.may.admin) refuse();
      else if (!loaded || all.hidden) await load({ isQuiet: loaded !== null });
      else if (!isDirty()) await load({ isQuiet: true });
      if (args.line) editor.goTo(Number(args.line), Number(args.column) || 1);
    },
    hide: () => (isShown = false),
  };

  // --- from the disk ------------------------------------------------------------------------------------------------

  async function load({ isQuiet = false } = {}) {
    try {
      const told = await api.get("/admin/config");
      setHidden(failure, true);
      setHidden(all, false);
      if (isDirty() && isQuiet) {
        showVerdict();
        return;
      }
      const isSame = loaded?.sha256 === told.sha256;
      loaded = told;
      if (!isSame || !isQuiet) editor.set(told.text ?? "");
      adopt(told);
    } catch (error) {
      if (error.status === 403) refuse();
      else fail(`The configuration could not be read: ${error.message}`, () => load({ isQuiet }));
    }
  }

  /** Nothing is offered to a key that may not do it; what has been typed is still there for one that may. */
  function refuse() {
    setHidden(all, true);
    for (const note of [conflict, aside]) setHidden(note, true);
    fail("This key may not read the configuration: that needs the scope `admin`.", () => load({ isQuiet: loaded !== null }), true);
  }

  function onMay() {
    if (!isShown) return;
    if (!store.state.may.admin) refuse();
    else if (all.hidden) load({ isQuiet: loaded !== null });
  }

  function adopt(told) {
    setText(path, told.path);
    setWords(readOnly, told.is_editable ? "" : `${told.text === null ? "Not shown" : "Only to read"} here: ${told.why_not}.`);
    setHidden(readOnly, told.is_editable);
    editor.setReadOnly(!told.is_editable);
    setHidden(editor.root, told.text === null);
    setHidden(save, !told.is_editable);
    setHidden(discard, !told.is_editable);
    checked = { ok: told.status === "valid", problems: told.problems ?? [], changes: null };
    isOld = false;
    showVerdict();
    showAbout();
  }

  /** The server has read the files again, or refuses what is on the disk now. */
  async function onServer() {
    if (!isShown || !loaded || isBusy) return;
    const told = store.state.server?.configuration;
    if (!told || (told.loaded_at === loaded.loaded_at && told.status === loaded.status)) return;
    if (!isDirty()) {
      await load({ isQuiet: true });
      return;
    }
    const fresh = await api.get("/admin/config").catch(() => null);
    if (fresh && fresh.sha256 !== loaded.sha256 && isDirty())
      showConflict("That was while you were editing it. Your text is not saved, and stays in the editor.");
  }

  // --- editing ------------------------------------------------------------------------------------------------------

  function isDirty() {
    return loaded !== null && loaded.is_editable && editor.text() !== withLf(loaded.text);
  }

  function onEdit() {
    setHidden(result, true);
    isOld = true;
    showVerdict();
    clearTimeout(timer);
    checking?.abort();
    timer = setTimeout(check, CHECK_AFTER_MS);
  }

  async function check() {
    if (!isDirty()) {
      adopt(loaded);
      return;
    }
    const own = new AbortController();
    checking = own;
    try {
      checked = await api.send("POST", "/admin/config/check", { text: editor.text() }, { signal: own.signal });
    } catch (error) {
      if (own.signal.aborted) return;
      checked = { ok: false, problems: [], changes: null, failure: error.message };
    }
    if (own.signal.aborted) return;
    isOld = false;
    showVerdict();
  }

  function showVerdict() {
    const isEdited = isDirty();
    setHidden(dirty, !isEdited);
    const found = checked?.problems ?? [];
    const useless = isEdited || isOld ? [] : uselessModels();
    const told = isOld ? { text: "Checking …", kind: "busy" } : verdictWords(checked, isEdited, useless.length);
    setText(verdict, told.text);
    setAttr(verdict, "data-kind", told.kind);
    save.disabled = isBusy || isOld || !isEdited || !checked?.ok;
    discard.disabled = isBusy || !isEdited;
    editor.mark(new Set(found.map((one) => one.line).filter(Boolean)));
    showList(problems, found, "problem");
    showList(warnings, checked?.warnings ?? [], "warning");
    showUseless(useless);
    setHidden(changes, !isEdited || !checked?.ok || !checked.changes);
    if (checked?.changes)
      replace(
        changes,
        el("div", { class: "panel-head" }, el("h2", {}, "Saving would change")),
        el("div", { class: "panel-body" }, changeList(checked.changes, formats)),
      );
  }

  /** Models that the file has, but that cannot be started: their files are missing, perhaps. */
  function uselessModels() {
    return [...store.state.models.values()].filter((one) => one.state === "unavailable");
  }

  function showUseless(models) {
    setHidden(unusable, models.length === 0);
    const heading = `${formats.plural(models.length, "model")} cannot be used`;
    const found = models.map(({ id: name, reason }) => ({ where: `models.${name}`, message: reason ?? "no reason is known" }));
    if (models.length) replace(unusable, problemList(found, heading, editor.goTo));
  }

  function verdictWords(told, isEdited, numUseless) {
    if (told === null) return { text: "", kind: null };
    if (told.failure) return { text: `Not checked: ${told.failure}`, kind: "bad" };
    if (told.ok && numUseless)
      return { text: `Valid; ${formats.plural(numUseless, "model")} cannot be used`, kind: "note" };
    if (told.ok) return { text: isEdited ? "Valid" : "Valid, and in use", kind: "good" };
    const count = formats.plural(told.problems.length, "problem");
    return { text: isEdited ? `Invalid: ${count}` : `Invalid: ${count}; the last valid one stays in use`, kind: "bad" };
  }

  function showAbout() {
    replace(
      about,
      el("div", { class: "panel-head" }, el("h2", {}, "In use")),
      el(
        "div",
        { class: "panel-body" },
        el(
          "dl",
          { class: "about" },
          el("dt", {}, "read at"),
          el("dd", {}, formats.dateTime(loaded.loaded_at)),
          el("dt", {}, "models"),
          el("dd", {}, formats.count(store.state.server?.models ?? null)),
        ),
        el(
          "p",
          { class: "hint" },
          "An edit of the file takes effect within two seconds, by whatever means it is made. One with a mistake changes nothing.",
        ),
      ),
    );
  }

  function showList(panel, found, word) {
    setHidden(panel, found.length === 0);
    replace(panel, problemList(found, formats.plural(found.length, word), editor.goTo));
  }

  // --- buttons ------------------------------------------------------------------------------------------------------

  async function busily(button, act) {
    if (isBusy) return;
    isBusy = true;
    setAttr(button, "aria-busy", "true");
    showVerdict();
    reload.disabled = true;
    setHidden(failure, true);
    try {
      await act();
    } finally {
      isBusy = false;
      setAttr(button, "aria-busy", null);
      reload.disabled = false;
      showVerdict();
    }
  }

  function onSave() {
    return busily(save, async () => {
      const text = editor.text();
      clearTimeout(timer);
      try {
        const written = loaded.text.includes("\r\n") ? text.replaceAll("\n", "\r\n") : text; // as the file has its lines
        const diff = await api.send("PUT", "/admin/config", { text: written, sha256: loaded.sha256 });
        kept = null;
        setHidden(aside, true);
        setHidden(conflict, true);
        await refresh(text);
        showResult("Saved", diff);
      } catch (error) {
        saveFailed(error);
      }
    });
  }

  /** After a save: what is on the disk now, without touching what was typed meanwhile. */
  async function refresh(text) {
    loaded = await api.get("/admin/config");
    if (editor.text() === text) editor.set(loaded.text ?? "");
    if (isDirty()) onEdit();
    else adopt(loaded);
  }

  function saveFailed(error) {
    if (error.status === 409) showConflict("Nothing was saved. Your text is still in the editor.");
    else if (error.status === 422) {
      checked = { ok: false, problems: error.body?.errors ?? error.body?.problems ?? [], changes: null };
      isOld = false;
      fail(`Not saved: ${error.message}`);
    } else if (error.status === 403) fail(`Not saved; the server does not allow it: ${error.message}`);
    else fail(`Not saved: ${error.message}`, onSave);
  }

  function showConflict(message) {
    replace(
      conflict,
      el(
        "div",
        { class: "banner-body" },
        el("strong", {}, "The file has changed on the disk."),
        el("span", {}, message),
        el(
          "button",
          { type: "button", class: "button small", on: { click: takeFromDisk } },
          "Show the file on the disk",
        ),
        el("span", { class: "hint" }, "Your text is kept aside then."),
      ),
    );
    setHidden(conflict, false);
    conflict.scrollIntoView({ block: "nearest" });
  }

  async function takeFromDisk() {
    const own = editor.text();
    await load();
    if (!failure.hidden) return;
    setHidden(conflict, true);
    kept = own;
    replace(
      aside,
      el(
        "div",
        { class: "banner-body" },
        el("span", {}, "This is the file on the disk. Your own text is kept aside."),
        el("button", { type: "button", class: "button small", on: { click: bringBack } }, "Bring my text back"),
        el("button", { type: "button", class: "button small quiet", on: { click: forgetKept } }, "Forget it"),
      ),
    );
    setHidden(aside, false);
  }

  function bringBack() {
    editor.set(kept);
    forgetKept();
    onEdit();
    editor.focus();
  }

  function forgetKept() {
    kept = null;
    setHidden(aside, true);
  }

  function onDiscard() {
    editor.set(loaded.text);
    setHidden(conflict, true);
    onEdit();
  }

  function onReload() {
    return busily(reload, async () => {
      try {
        const diff = await api.send("POST", "/admin/reload");
        if (isDirty()) notify("info", "Reloaded. What you have typed is not saved and was not touched.");
        else await load({ isQuiet: true });
        showResult("Reloaded", diff);
      } catch (error) {
        const found = error.body?.errors;
        if (found && !isDirty()) await load({ isQuiet: true });
        fail(
          error.status === 403
            ? `Not reloaded; this key lacks the scope \`admin\`: ${error.message}`
            : `Not reloaded: ${error.message}`,
          onReload,
        );
      }
    });
  }

  function showResult(heading, diff) {
    replace(
      result,
      el("div", { class: "panel-head" }, el("h2", {}, heading)),
      el("div", { class: "panel-body" }, changeList(diff, formats)),
    );
    setHidden(result, false);
    result.scrollIntoView({ block: "nearest" });
  }

  function fail(text, again = null, isOfKey = false) {
    replace(
      failure,
      el(
        "div",
        { class: "banner-body" },
        el("span", {}, words(text)),
        isOfKey && el("button", { type: "button", class: "button small", on: { click: changeKey } }, "Use another key"),
        again &&
          el(
            "button",
            { type: "button", class: "button small", on: { click: () => (setHidden(failure, true), again()) } },
            "Try again",
          ),
      ),
    );
    setHidden(failure, false);
    failure.scrollIntoView({ block: "nearest" });
  }
}

/** As a text area has it. */
function withLf(text) {
  return text.replaceAll("\r\n", "\n");
}

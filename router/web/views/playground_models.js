// Which model the playground asks, and how: chat, or raw text for models that cannot chat.

import { el, replace, setAttr, setHidden, setWords } from "../dom.js";
import { stateIcon } from "../icons.js";

const SPEAKS = new Set(["chat", "completion"]);

/** `root` and `note` for the page; `picked()` → `{name, model}` or null; `mode()` → "chat" or "raw"; `facts()` →
 *  `{thinks, callsTools}` (null = unknown). `onChange()` is called when any of these has changed, after `start()`. */
export function modelPicker(api, store, onChange) {
  const select = el("select", { id: "playground-model", "aria-label": "Model", on: { change: onPick } });
  const how = el(
    "select",
    { "aria-label": "How it is asked", on: { change: onPick } },
    el("option", { value: "chat" }, "Chat"),
    el("option", { value: "raw" }, "Raw text"),
  );
  const state = el("span", { class: "state" });
  const root = el("div", { class: "toolbar picker" }, select, how, state);
  const note = el("p", { class: "picker-note", hidden: true });
  const facts = new Map();
  const asked = new Set(); // for facts: once, and once more when the model's file is there for sure
  let wanted = "";
  let shownNames = "";
  let shownState = "";

  return {
    root,
    note,
    mode,
    find,
    value: () => wanted || select.value,
    wish: () => how.value,
    /** To be called once, when all that `onChange` does is there: a first model that cannot chat is a change. */
    start() {
      store.subscribe("models", update);
      update();
    },
    facts: () => facts.get(owner(select.value)?.id) ?? { thinks: null, callsTools: null },
    picked: () => (select.value ? { name: select.value, model: find(select.value) } : null),
    pick(name) {
      wanted = name;
      shownNames = "";
      update();
      onChange();
    },
    restore(name, howAsked) {
      wanted = name ?? "";
      if (howAsked) how.value = howAsked;
    },
  };

  function onPick() {
    wanted = select.value;
    update();
    onChange();
  }

  /** The model that a name or an alias stands for. */
  function find(name) {
    return owner(name);
  }

  function owner(name) {
    const { models } = store.state;
    return models.get(name) ?? [...models.values()].find((one) => one.aliases?.includes(name)) ?? null;
  }

  function mode() {
    return canChat(owner(select.value)) ? how.value : "raw";
  }

  function update() {
    const models = [...store.state.models.values()].filter(speaks).sort((one, other) => one.id.localeCompare(other.id));
    const names = JSON.stringify(models.map(({ id, aliases }) => [id, aliases]));
    const before = mode();
    if (names !== shownNames) {
      shownNames = names;
      fillIn(models);
    }
    const model = owner(select.value);
    how.disabled = !canChat(model);
    const words = model?.state ?? "";
    if (words !== shownState) {
      shownState = words;
      setAttr(state, "data-state", words);
      replace(state, words && stateIcon(words), words);
    }
    tellOf(model);
    askFacts(model);
    if (mode() !== before) onChange();
  }

  function fillIn(models) {
    const keep = wanted || select.value;
    const aliases = models.flatMap(({ id, aliases: names = [] }) => names.map((name) => [name, `${name} → ${id}`]));
    replace(
      select,
      models.map(({ id }) => el("option", { value: id }, id)),
      aliases.length > 0 &&
        el(
          "optgroup",
          { label: "Aliases" },
          aliases.map(([value, label]) => el("option", { value }, label)),
        ),
    );
    const preset = store.state.server?.default_model;
    const first = owner(preset) ?? models.find((one) => one.state === "ready") ?? models[0];
    select.value = keep;
    if (select.selectedIndex < 0) select.value = first?.id ?? "";
    setHidden(select, models.length === 0);
    setHidden(how, models.length === 0);
  }

  function tellOf(model) {
    let text = "";
    if (!model)
      text = store.state.server ? "No model is configured that writes text. Add one under Configuration." : "";
    else if (model.reason) text = `${model.id} cannot be used now: ${model.reason}`;
    else if (!canChat(model))
      text =
        "This model has no chat template: it continues raw text, and what you send is joined to what stands above.";
    setWords(note, text);
    setHidden(note, !text);
    setAttr(note, "data-kind", model?.reason ? "bad" : null);
  }

  async function askFacts(model) {
    const question = `${model?.state === "ready"} ${model?.id}`;
    if (!model || model.remote || facts.has(model.id) || asked.has(question) || !store.state.may.ask) return;
    asked.add(question);
    try {
      const { capabilities } = await api.send("POST", "/api/show", { model: model.id });
      if (!Array.isArray(capabilities)) return;
      facts.set(model.id, { thinks: capabilities.includes("thinking"), callsTools: capabilities.includes("tools") });
      onChange();
    } catch {
      // nothing more is known of it; what is asked of it in vain the server refuses by itself
    }
  }
}

/** Models of which nothing is known yet are offered: they may be able to. */
function speaks(model) {
  return !model.capabilities || model.capabilities.some((one) => SPEAKS.has(one));
}

function canChat(model) {
  return !model?.capabilities || model.capabilities.includes("chat");
}

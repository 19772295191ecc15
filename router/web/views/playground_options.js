// The playground's panel of options: what is typed there, as fields of a request, and mistakes shown where they are.
// Must not send anything: the view asks for the fields, and hands back what the server said of them.

import { el, newId, setAttr, setHidden, setText, setWords } from "../dom.js";
import { readJson } from "../lib/json_place.js";

const NUMBERS = [
  {
    id: "max_tokens",
    label: "Longest answer",
    params: ["max_tokens", "max_completion_tokens", "n_predict"],
    hint: "tokens; no limit",
  },
  { id: "temperature", label: "Temperature", hint: "the model's" },
  { id: "top_p", label: "Top-p", hint: "the model's" },
  { id: "top_k", label: "Top-k", hint: "the model's" },
  { id: "min_p", label: "Min-p", hint: "the model's" },
  { id: "seed", label: "Seed", hint: "picked anew" },
];
const THINKING = [
  ["", "default"],
  ["on", "on"],
  ["off", "off"],
];
const TOOL_CHOICE = [
  ["", "as the model likes"],
  ["required", "a call is required"],
  ["none", "no calls"],
];
const TOOLS_HINT =
  '[{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]';
const SCHEMA_HINT =
  '{"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"], "additionalProperties": false}';
const FURTHER_HINT = '{"logit_bias": {"Paris": -100}, "repeat_penalty": 1.1}';

/** Return the panel: `root`, `read()` → `{system, fields, problems}`, `isOf(param)`, `showRefusal(param, message)` for such
 *  a field, `goToProblem()`, `clearProblems()`, `values()` and `restore(values)`, `isPlain()`,
 *  `setFacts({isRaw, thinks, callsTools})` (null = unknown). */
export function optionsPanel(onChange) {
  const fields = makeFields(() => {
    countSet();
    onChange();
  });
  const byId = new Map(fields.map((field) => [field.id, field]));
  const of = (id) => byId.get(id).root;
  const thinkingNote = el("p", { class: "hint", hidden: true }, "This model's chat template knows no thoughts.");
  const toolsNote = el(
    "p",
    { class: "hint", hidden: true },
    "This model's chat template does not show tools: it has not learnt to call any.",
  );
  const rawNote = el(
    "p",
    { class: "hint", hidden: true },
    "Not for raw text: there is no chat template that could show it to the model.",
  );
  const plain = el("input", { type: "checkbox", on: { change: onChange } });
  const rootName = el("summary", {});
  const advancedName = el("summary", {});
  const advanced = el(
    "details",
    { class: "fold" },
    advancedName,
    of("tools"),
    toolsNote,
    of("tool_choice"),
    of("response_format"),
    of("further"),
  );
  const root = el(
    "details",
    { class: "fold panel options" },
    rootName,
    of("system"),
    rawNote,
    el("div", { class: "option-grid" }, ...NUMBERS.map(({ id }) => of(id))),
    of("stop"),
    el("div", { class: "option-grid" }, of("thinking"), of("thinking_budget_tokens")),
    thinkingNote,
    advanced,
    el("label", { class: "check" }, plain, "Show answers as plain text"),
  );
  /** What is set shows in folded panels too. */
  function countSet() {
    const set = fields.filter(({ input }) => input.value.trim() && !input.disabled);
    const inner = set.filter((field) => advanced.contains(field.root)).length;
    setText(rootName, `Options${set.length ? ` (${set.length} set)` : ""}`);
    setText(advancedName, `Tools, form of the answer, further fields${inner ? ` (${inner} set)` : ""}`);
  }
  countSet();
  const reveal = (field) => {
    root.open = true;
    if (advanced.contains(field.root)) advanced.open = true;
  };
  const mark = (field, message) => {
    field.show(message);
    reveal(field);
  };
  return {
    root,
    clearProblems: () => fields.forEach((field) => field.show("")),
    isPlain: () => plain.checked,
    values: () => ({
      ...Object.fromEntries(fields.map((field) => [field.id, field.input.value])),
      isPlain: plain.checked,
    }),
    restore(values) {
      plain.checked = values?.isPlain === true;
      for (const field of fields) if (typeof values?.[field.id] === "string") field.input.value = values[field.id];
      countSet();
    },
    setFacts({ isRaw, thinks, callsTools }) {
      setHidden(rawNote, !isRaw);
      setHidden(thinkingNote, isRaw || thinks !== false);
      setHidden(toolsNote, isRaw || callsTools !== false);
      for (const id of ["system", "thinking", "thinking_budget_tokens", "tools", "tool_choice"])
        byId.get(id).input.disabled = isRaw;
      countSet();
    },
    read() {
      const read = { system: "", fields: {}, problems: [] };
      for (const field of fields) {
        field.show("");
        if (field.input.disabled || !field.input.value.trim()) continue;
        const { value, problem } = field.parse(field.input.value);
        if (problem) {
          mark(field, problem);
          read.problems.push(field);
        } else field.put(read, value);
      }
      return read;
    },
    isOf: (param) => fieldOf(fields, param) !== null,
    showRefusal(param, message) {
      const field = fieldOf(fields, param);
      mark(field, message);
      goTo(field);
    },
    goToProblem: () => goTo(fields.find((field) => field.input.hasAttribute("aria-invalid"))),
  };
}

function goTo(field) {
  field.input.focus({ preventScroll: true });
  field.root.scrollIntoView({ block: "center" });
}

function fieldOf(fields, param) {
  const head = /^[\w.]*\w/.exec(param ?? "")?.[0].split(".")[0];
  if (!head) return null;
  const further = fields.find((field) => field.id === "further");
  const hasHead = further.input.value.includes(`"${head}"`);
  return fields.find((field) => field.params.includes(head) && field.input.value.trim()) ?? (hasHead ? further : null);
}

// --- fields --------------------------------------------------------------------------------------------------

function makeFields(onChange) {
  const put = (name) => (read, value) => {
    read.fields[name] = value;
  };
  const numbers = NUMBERS.map(({ id, label, hint, params }) => {
    const input = el("input", {
      type: "text",
      inputmode: "decimal",
      autocomplete: "off",
      spellcheck: "false",
      placeholder: hint,
    });
    return makeField({ id, label, input, params, parse: readNumber, put: put(id), onChange });
  });
  const budget = el("input", {
    type: "text",
    inputmode: "numeric",
    autocomplete: "off",
    placeholder: "tokens; no limit",
  });
  return [
    makeField({
      id: "system",
      label: "System prompt",
      input: area(3, "Who the model is, and how it should answer"),
      params: [],
      onChange,
      put: (read, value) => (read.system = value),
    }),
    ...numbers,
    makeField({
      id: "stop",
      label: "Stop before (one text a line)",
      input: area(1, "nothing"),
      onChange,
      parse: (text) => ({ value: text.split("\n").filter(Boolean) }),
      put: put("stop"),
    }),
    makeField({
      id: "thinking",
      label: "Thinking",
      input: select(THINKING),
      params: ["enable_thinking", "reasoning_effort"],
      onChange,
      put: (read, value) => (read.fields.enable_thinking = value === "on"),
    }),
    makeField({
      id: "thinking_budget_tokens",
      label: "Longest thought",
      input: budget,
      params: ["thinking_budget_tokens", "reasoning_budget_tokens"],
      parse: readNumber,
      put: put("thinking_budget_tokens"),
      onChange,
    }),
    makeField({
      id: "tools",
      label: "Tools (JSON)",
      input: code(6, TOOLS_HINT),
      parse: readJson,
      put: put("tools"),
      onChange,
    }),
    makeField({ id: "tool_choice", label: "Calls", input: select(TOOL_CHOICE), put: put("tool_choice"), onChange }),
    makeField({
      id: "response_format",
      label: "Form of the answer (JSON schema)",
      input: code(6, SCHEMA_HINT),
      onChange,
      params: ["response_format", "json_schema"],
      parse: readJson,
      put: (read, schema) =>
        (read.fields.response_format = { type: "json_schema", json_schema: { name: "answer", schema } }),
    }),
    makeField({
      id: "further",
      label: "Further fields of the request (JSON)",
      input: code(3, FURTHER_HINT),
      params: [],
      parse: readObject,
      onChange,
      put: (read, value) => Object.assign(read.fields, value),
    }),
  ];
}

function makeField({ id, label, input, params = [id], parse = (value) => ({ value }), put, onChange }) {
  input.id = newId(`option-${id}`);
  input.name = id;
  const problem = el("p", { class: "field-problem", id: newId("problem"), role: "alert", hidden: true });
  const show = (message) => {
    setWords(problem, message);
    setHidden(problem, !message);
    setAttr(input, "aria-invalid", message ? "true" : null);
    setAttr(input, "aria-describedby", message ? problem.id : null);
  };
  input.addEventListener("input", () => {
    show("");
    onChange();
  });
  const root = el("div", { class: "field" }, el("label", { for: input.id }, label), input, problem);
  return { id, root, input, params, parse, put, show };
}

function area(rows, placeholder) {
  return el("textarea", { rows, placeholder, spellcheck: "false" });
}

function code(rows, placeholder) {
  return el("textarea", {
    rows,
    placeholder,
    spellcheck: "false",
    autocapitalize: "off",
    autocomplete: "off",
    class: "mono",
  });
}

function select(choices) {
  return el("select", {}, ...choices.map(([value, label]) => el("option", { value }, label)));
}

/** Whether a number is in range is for the server to say. */
function readNumber(text) {
  const value = Number(text.trim().replace(",", "."));
  return Number.isFinite(value) ? { value } : { problem: "This must be a number; leave it empty for the default." };
}

function readObject(text) {
  const read = readJson(text);
  if (read.problem) return read;
  const isObject = read.value !== null && typeof read.value === "object" && !Array.isArray(read.value);
  return isObject ? read : { problem: 'This must be a JSON object, such as {"repeat_penalty": 1.1}.' };
}

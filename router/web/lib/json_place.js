// JSON that people type: parsed, or the place of the first mistake in words.

const NUMBER = /-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?/y;
const STRING = /"(?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"/y;
const WORD = /true|false|null/y;
const SPACE = /[ \t\r\n]*/y;

/** Return `{value}` or `{problem}`. */
export function readJson(text) {
  try {
    return { value: JSON.parse(text) };
  } catch {
    const { at, message } = mistake(text);
    const before = text.slice(0, at).split("\n");
    return { problem: `This is not JSON: line ${before.length}, column ${before.at(-1).length + 1}: ${message}.` };
  }
}

/** JSON laid out over several lines; what is no JSON (an argument that is still being written) stays as it is. */
export function prettyJson(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

class Mistake extends Error {
  constructor(at, message) {
    super(message);
    this.at = at;
  }
}

/** Browsers do not agree on whether they tell where a mistake is, so the text is read once more. */
function mistake(text) {
  try {
    const end = skip(text, readValue(text, skip(text, 0)));
    return { at: end, message: "nothing may stand behind the end" };
  } catch (error) {
    if (!(error instanceof Mistake)) return { at: 0, message: "it is nested too deeply" };
    return error;
  }
}

function match(pattern, text, at) {
  pattern.lastIndex = at;
  const found = pattern.exec(text);
  return found ? at + found[0].length : -1;
}

function skip(text, at) {
  return match(SPACE, text, at);
}

function readValue(text, at) {
  if (at >= text.length) throw new Mistake(at, "the text ends too early");
  if (text[at] === "{") return readAll(text, at, "}", readPair);
  if (text[at] === "[") return readAll(text, at, "]", readValue);
  const end = Math.max(match(STRING, text, at), match(NUMBER, text, at), match(WORD, text, at));
  if (end >= 0) return end;
  if (text[at] === '"') throw new Mistake(at, "this text is not closed, or has something in it that must be escaped");
  throw new Mistake(at, "a value is expected here");
}

function readPair(text, at) {
  if (text[at] !== '"') throw new Mistake(at, 'a name in "…" is expected here');
  const end = match(STRING, text, at);
  if (end < 0) throw new Mistake(at, "this name is not closed");
  const colon = skip(text, end);
  if (text[colon] !== ":") throw new Mistake(colon, "a colon is expected here");
  return readValue(text, skip(text, colon + 1));
}

function readAll(text, at, last, readOne) {
  let next = skip(text, at + 1);
  if (text[next] === last) return next + 1;
  for (;;) {
    next = skip(text, readOne(text, next));
    if (text[next] === last) return next + 1;
    if (text[next] !== ",")
      throw new Mistake(
        next,
        next < text.length ? `a comma or ${last} is expected here` : `${last} is missing at the end`,
      );
    next = skip(text, next + 1);
  }
}

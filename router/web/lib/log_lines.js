// Lines of logs as data: time, level, message and named fields.
// Must not touch the page. What cannot be read so is shown as it is.

export const LEVELS = ["debug", "info", "warning", "error"];

const HEAD = /^(\d\d:\d\d:\d\d) (DEBUG|INFO|WARNING|ERROR|CRITICAL)\s+(.*)$/s; // as the router writes its own
// as workers write theirs
const WORKER_HEAD = /^(\[\d+\] )?\d{4}-\d\d-\d\d (\d\d:\d\d:\d\d),\d+ (DEBUG|INFO|WARNING|ERROR|CRITICAL) (.*)$/s;
const FIELDS = /(?: [A-Za-z_][\w.]*=(?:"(?:[^"\\]|\\.)*"|[^\s"]*))+$/;
const FIELD = / ([A-Za-z_][\w.]*)=("(?:[^"\\]|\\.)*"|[^\s"]*)/g;
const WORD = /\b(critical|fatal|error|warning|warn|debug)\b/i;
const NAMES = { critical: "error", fatal: "error", warn: "warning" };
const WORD_WITHIN = 160;
const PREFIX = /^\[(\d+)\] /; // of a model with several workers
const LEFT_OUT = /^\[\d[\d,]* lines? (?:are|is) left out here/;
const OVERLAP = 5;

/** Return `{raw, level, time, message, fields}` of a line that follows `before` (or null).
 *  `level` is null where none is told; a line without a head goes on with what the router wrote before. */
export function readLine(raw, before = null) {
  if (LEFT_OUT.test(raw)) return noteLine(raw);
  const worker = WORKER_HEAD.exec(raw);
  if (worker) {
    const [, number = "", time, level, message] = worker;
    return { raw, level: levelOf(level), time, message: number + message, fields: [] };
  }
  const found = HEAD.exec(raw);
  if (!found) {
    const goesOn = Boolean(before?.hasHead || before?.goesOn);
    return { raw, level: goesOn ? before.level : levelIn(raw), time: "", message: raw, fields: [], goesOn };
  }
  const [, time, level, rest] = found;
  const told = FIELDS.exec(rest)?.[0] ?? "";
  const fields = [...told.matchAll(FIELD)].map(([, name, value]) => [name, value]);
  return { raw, level: levelOf(level), time, message: rest.slice(0, rest.length - told.length), fields, hasHead: true };
}

/** A line about the log itself, which passes every filter. */
export function noteLine(raw) {
  return { raw, level: null, time: "", message: raw, fields: [], isNote: true };
}

function levelOf(word) {
  const lower = word.toLowerCase();
  return NAMES[lower] ?? lower;
}

/** What a worker prints has no levels; a word for one near the beginning counts. */
function levelIn(raw) {
  const found = WORD.exec(raw.replace(PREFIX, "").slice(0, WORD_WITHIN));
  return found ? levelOf(found[1]) : null;
}

/** Whether a line is shown: it has the text, and at least the level. */
export function passes(line, { text, level }) {
  if (line.isNote) return true;
  if (level && LEVELS.indexOf(line.level ?? "") < LEVELS.indexOf(level)) return false;
  return !text || line.raw.toLowerCase().includes(text.toLowerCase());
}

/** The lines of `fresh` behind the last ones of `known`: those that came while the connection was lost.
 *  Null where none of these is found: nobody knows how many there were in between. */
export function newOf(known, fresh) {
  for (let length = Math.min(OVERLAP, known.length); length > 0; length -= 1) {
    const tail = known.slice(-length);
    for (let at = fresh.length - length; at >= 0; at -= 1) {
      if (tail.every((line, number) => fresh[at + number] === line)) return fresh.slice(at + length);
    }
  }
  return known.length ? null : fresh;
}

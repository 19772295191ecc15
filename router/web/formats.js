// Numbers, sizes, durations and times as texts. What is not known is "–", never 0.

export const UNKNOWN = "–";

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const one = new Intl.NumberFormat("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 });
const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });
const full = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "medium" });

export function isUnknown(value) {
  return value === null || value === undefined || Number.isNaN(value);
}

/** 1536 → "1,536". */
export function count(value) {
  return isUnknown(value) ? UNKNOWN : whole.format(value);
}

/** Bytes in decimal units, as everywhere in Corral: "98 MB", "1.3 GB". */
export function bytes(value) {
  if (isUnknown(value)) return UNKNOWN;
  const amount = Math.abs(value);
  if (amount >= 1e9) return `${one.format(value / 1e9)} GB`;
  if (amount >= 1e6 || amount === 0) return `${whole.format(value / 1e6)} MB`;
  return `${whole.format(value / 1e3)} kB`;
}

/** Seconds at the precision that people need: "84 ms", "3.2 s", "2 min 5 s", "3 h 12 min", "2 d 4 h". */
export function seconds(value) {
  if (isUnknown(value)) return UNKNOWN;
  const s = Math.max(0, value);
  if (s === 0) return "0 s";
  if (s < 1) return `${Math.max(1, Math.round(s * 1000))} ms`;
  if (s < 10) return `${one.format(s)} s`;
  return wholeSeconds(s);
}

/** The same in whole seconds, for what counts on: ages, waits, uptimes. */
export function wholeSeconds(value) {
  if (isUnknown(value)) return UNKNOWN;
  const s = Math.max(0, Math.round(value));
  if (s < 60) return `${s} s`;
  const min = Math.floor(s / 60);
  if (min < 60) return `${min} min ${s % 60} s`;
  const h = Math.floor(min / 60);
  if (h < 48) return `${h} h ${min % 60} min`;
  return `${Math.floor(h / 24)} d ${h % 24} h`;
}

/** Tokens per second: "87.4", "1,204". The unit stands in the heading, or use `rateWithUnit`. */
export function rate(value) {
  if (isUnknown(value)) return UNKNOWN;
  return value >= 1000 ? whole.format(value) : one.format(value);
}

export function rateWithUnit(value) {
  return isUnknown(value) ? UNKNOWN : `${rate(value)} tok/s`;
}

/** A fraction from 0 to 1 as "42 %". */
export function percent(fraction) {
  return isUnknown(fraction) ? UNKNOWN : `${Math.round(fraction * 100)} %`;
}

/** A Unix time: the time of day, with the day if it was not today. */
export function time(unix_s) {
  if (isUnknown(unix_s)) return UNKNOWN;
  const at = new Date(unix_s * 1000);
  const isToday = at.toDateString() === new Date().toDateString();
  return isToday ? clock.format(at) : `${day.format(at)} ${clock.format(at)}`;
}

/** A Unix time with its date. */
export function dateTime(unix_s) {
  return isUnknown(unix_s) ? UNKNOWN : full.format(new Date(unix_s * 1000));
}

/** "1 model", "2 models". */
export function plural(value, word, words = `${word}s`) {
  return isUnknown(value) ? UNKNOWN : `${count(value)} ${value === 1 ? word : words}`;
}

/** A plain text, or unknown. */
export function text(value) {
  return isUnknown(value) || value === "" ? UNKNOWN : String(value);
}

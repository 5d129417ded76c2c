// Money, counts and times as people read them. Law: money is counted in whole nUSD (BigInt), never in fractions, and an
// amount that is not nothing never looks like nothing; a time is local, and its title says it in UTC.

import { el } from "./dom.js";

const NUSD = 1_000_000_000n;
const COUNT = new Intl.NumberFormat("en");
/** @type {Intl.DateTimeFormatOptions} */
const MOMENT_PARTS = { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit" };
const MOMENT = new Intl.DateTimeFormat("en-GB", MOMENT_PARTS);
const FAR_MOMENT = new Intl.DateTimeFormat("en-GB", { year: "numeric", ...MOMENT_PARTS });
const UTC_DAY = new Intl.DateTimeFormat("en-GB", { timeZone: "UTC", weekday: "short", day: "numeric", month: "short" });
const SHORT_DAY = new Intl.DateTimeFormat("en-GB", { timeZone: "UTC", day: "numeric", month: "short" });

/** A decimal number of USD, as text or as JSON's number → nUSD, BigInt. Null stays null. */
export function nusd(usd) {
  if (usd === null || usd === undefined) return null;
  const [, sign, whole, part = "", power = "0"] = /^(-?)(\d+)(?:\.(\d+))?(?:[eE]([+-]?\d+))?$/.exec(String(usd));
  const shift = 9 + Number(power) - part.length;
  const digits = BigInt(whole + part);
  const found = shift >= 0 ? digits * 10n ** BigInt(shift) : digits / 10n ** BigInt(-shift);
  return sign ? -found : found;
}

/** All of its digits. */
export function exact(amount) {
  const size = amount < 0n ? -amount : amount;
  const part = String(size % NUSD).padStart(9, "0").replace(/0+$/, "");
  return `${amount < 0n ? "−" : ""}$${COUNT.format(size / NUSD)}${part && `.${part.padEnd(2, "0")}`}`;
}

/** Four decimals from a dollar up; below, three digits that say something. */
export function brief(amount) {
  const size = amount < 0n ? -amount : amount;
  const kept = size >= NUSD ? 5 : Math.max(0, String(size).length - 3);
  const unit = 10n ** BigInt(kept);
  const rounded = ((size + unit / 2n) / unit) * unit;
  return exact(amount < 0n ? -rounded : rounded);
}

/** nUSD, text or number of USD → an element, its title all digits. Null: a dash, which is not zero. */
export function money(usd) {
  const amount = typeof usd === "bigint" ? usd : nusd(usd);
  if (amount === null) return el("span", { class: "quiet", title: "not known" }, "–");
  return el("span", { class: "figure", title: `${exact(amount)} USD` }, brief(amount));
}

export const count = (number) => (number === null || number === undefined ? "–" : COUNT.format(number));

/** `1 stream`, `2 streams`. */
export const many = (number, one, more = `${one}s`) => `${count(number)} ${number === 1 ? one : more}`;

export const percent = (part) => `${COUNT.format(Number((part * 100).toFixed(part < 0.1 ? 2 : 1)))} %`;

/** Milliseconds. */
export function span(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1000) return `${Math.round(ms * 10) / 10} ms`;
  const seconds = ms / 1000;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

const utc = (at) => `${at.toISOString().replace("T", " ").replace("Z", "")} UTC`;

/** An ISO time, with its year if it may be far away; null: a dash. */
export function moment(iso, far = false) {
  if (!iso) return "–";
  const at = new Date(iso);
  return el("time", { datetime: iso, title: utc(at) }, (far ? FAR_MOMENT : MOMENT).format(at));
}

/** A date that may be far away, with its year. */
export function date(iso) {
  const at = new Date(iso);
  return el("time", { datetime: iso, title: utc(at) },
    at.toLocaleDateString("en-GB", { day: "numeric", month: "short", year: "numeric" }));
}

/** Unix seconds → the day in UTC. */
export const day = (seconds) => UTC_DAY.format(new Date(seconds * 1000));
export const shortDay = (seconds) => SHORT_DAY.format(new Date(seconds * 1000));

export const OUTCOMES = {
  served: ["served", "It ran to its end."],
  client_left: ["client left", "The client left before its end."],
  upstream_failed: ["provider failed", "The provider broke off before its end."],
  upstream_stalled: ["provider stalled", "The provider fell silent, and was not waited for any longer."],
  budget_cut: ["budget cut", "It was cut where its budget ended."],
  shut_down: ["shut down", "The proxy was shut down while it ran."],
  crashed: ["crashed", "The proxy died while it ran: what counts is what was recorded before."],
  refused_upstream: ["refused", "The provider refused it."],
};

export const SOURCES = {
  reported: ["reported", "The provider reported the counts itself."],
  estimated: ["estimated", "The provider never said what it used: the counts are estimated."],
  none: ["none", "There is no usage: nobody reported any, and there was nothing to estimate from."],
};

export const RESULTS = {
  done: ["done", "It was done."],
  refused: ["refused", "It could not be done, and nothing has changed."],
  failed: ["failed", "It broke off: whether it was done, the thing itself says."],
  begun: ["not known", "It was begun, and nobody put down what became of it: the thing itself says."],
};

/** A small mark: how an exchange ended, where its usage is from, or what became of an act. */
export function mark(table, name) {
  const [label, words] = table[name] ?? [name, ""];
  const good = ["served", "reported", "done"].includes(name);
  return el("span", { class: `mark ${good ? "good" : "careful"}`, title: words }, label);
}

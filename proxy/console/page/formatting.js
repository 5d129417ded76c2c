// Formats money, counts and times. Invariants: money is whole nUSD (BigInt), never a float; an amount above zero is never
// shown as zero; a time is local, with UTC in its title.

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

/** All digits. */
export function exact(amount) {
  const size = amount < 0n ? -amount : amount;
  const part = String(size % NUSD).padStart(9, "0").replace(/0+$/, "");
  return `${amount < 0n ? "−" : ""}$${COUNT.format(size / NUSD)}${part && `.${part.padEnd(2, "0")}`}`;
}

/** Four decimals from one dollar up, three significant digits below. */
export function brief(amount) {
  const size = amount < 0n ? -amount : amount;
  const kept = size >= NUSD ? 5 : Math.max(0, String(size).length - 3);
  const unit = 10n ** BigInt(kept);
  const rounded = ((size + unit / 2n) / unit) * unit;
  return exact(amount < 0n ? -rounded : rounded);
}

/** nUSD, text or number of USD → an element with all digits in its title. Null becomes `none`, not zero. */
export function money(usd, none = "–") {
  const amount = typeof usd === "bigint" ? usd : nusd(usd);
  if (amount === null) return el("span", { class: "quiet", title: "unknown" }, none);
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

/** An ISO time; `far` adds the year. Null becomes a dash. */
export function moment(iso, far = false) {
  if (!iso) return "–";
  const at = new Date(iso);
  return el("time", { datetime: iso, title: utc(at) }, (far ? FAR_MOMENT : MOMENT).format(at));
}

/** A date with its year. */
export function date(iso) {
  const at = new Date(iso);
  return el("time", { datetime: iso, title: utc(at) },
    at.toLocaleDateString("en-GB", { day: "numeric", month: "short", year: "numeric" }));
}

/** Unix seconds → the day in UTC. */
export const day = (seconds) => UTC_DAY.format(new Date(seconds * 1000));
export const shortDay = (seconds) => SHORT_DAY.format(new Date(seconds * 1000));

export const OUTCOMES = {
  served: ["completed", "The exchange completed."],
  client_left: ["client left", "The client disconnected before the end."],
  upstream_failed: ["provider failed", "The provider failed before the end."],
  upstream_stalled: ["provider stalled", "The provider sent nothing for too long, so the proxy ended the exchange."],
  budget_cut: ["budget cut", "The proxy stopped the exchange because its budget was exhausted."],
  shut_down: ["shut down", "The proxy was shut down during the exchange."],
  crashed: ["crashed", "The proxy crashed during the exchange. The usage was recorded before the crash."],
  refused_upstream: ["rejected by provider", "The provider rejected the request."],
};

export const SOURCES = {
  reported: ["from provider", "The provider reported the usage."],
  estimated: ["estimated", "The provider did not report the usage. The counts are estimated."],
  provider_later: ["from provider, later", "The provider reported the usage when it was asked afterwards."],
  none: ["none", "No usage: the provider reported none, and there was nothing to estimate."],
};

export const RESULTS = {
  done: ["done", "The change was made."],
  refused: ["refused", "The change was refused. Nothing changed."],
  failed: ["failed", "The change failed with an error. Check whether it took effect."],
  begun: ["unconfirmed", "The change was started, but its result was not recorded. Check whether it took effect."],
};

/** A badge: outcome of an exchange, source of its usage, or result of a change. */
export function mark(table, name) {
  const [label, words] = table[name] ?? [name, ""];
  const good = ["served", "reported", "provider_later", "done"].includes(name);
  return el("span", { class: `mark ${good ? "good" : "careful"}`, title: words }, label);
}

// Formats money, counts and times as text. Invariants: money is whole nUSD (BigInt), never a float; an amount above zero
// is never shown as zero; a time is in the zone that is given.

const NUSD = 1_000_000_000n;
const PLACES_MAX = 6;
const COUNT = new Intl.NumberFormat("en");

const sizeOf = (amount) => (amount < 0n ? -amount : amount);

/** A decimal number of USD, as text or as JSON's number → nUSD, BigInt. Null stays null. */
export function nusd(usd) {
  if (usd === null || usd === undefined) return null;
  const [, sign, whole, part = "", power = "0"] = /^(-?)(\d+)(?:\.(\d+))?(?:[eE]([+-]?\d+))?$/.exec(String(usd));
  const shift = 9 + Number(power) - part.length;
  const digits = BigInt(whole + part);
  const found = shift >= 0 ? digits * 10n ** BigInt(shift) : digits / 10n ** BigInt(-shift);
  return sign ? -found : found;
}

const dollars = (amount, digits) => `${amount < 0n ? "−" : ""}$${COUNT.format(sizeOf(amount) / NUSD)}${digits && `.${digits}`}`;

/** All digits, at least two decimals. */
export function exact(amount) {
  const digits = String(sizeOf(amount) % NUSD).padStart(9, "0").replace(/0+$/, "");
  return dollars(amount, amount === 0n ? "" : digits.padEnd(2, "0"));
}

/** Rounded to a number of decimals; a smaller amount is `<$0.01`. */
export function fixed(amount, places) {
  const unit = 10n ** BigInt(9 - places);
  const size = sizeOf(amount);
  if (size === 0n) return "$0";
  if (size && size < unit / 2n) return `<${fixed(unit, places)}`;
  const rounded = ((size + unit / 2n) / unit) * unit;
  const digits = String(rounded % NUSD).padStart(9, "0").slice(0, places);
  return dollars(amount < 0n ? -rounded : rounded, digits);
}

/** The decimals of all amounts of a column: two from one dollar up; else enough for two digits of the smallest amount, at most six. */
export function placesOf(amounts) {
  const sizes = amounts.filter((one) => one).map(sizeOf);
  if (!sizes.length || sizes.some((one) => one >= NUSD)) return 2;
  const least = sizes.reduce((one, other) => (other < one ? other : one));
  return Math.min(PLACES_MAX, Math.max(2, 11 - String(least).length));
}

/** Cents from one dollar up, three significant digits below. */
export function brief(amount) {
  const size = sizeOf(amount);
  if (size >= NUSD || size === 0n) return fixed(amount, 2);
  const unit = 10n ** BigInt(Math.max(0, String(size).length - 3));
  const rounded = ((size + unit / 2n) / unit) * unit;
  return exact(amount < 0n ? -rounded : rounded);
}

export const count = (number) => (number === null || number === undefined ? "–" : COUNT.format(number));

/** A count that fits a tile: `39.2 M`. */
export const roughly = (number) => (number < 10_000_000 ? count(number) : `${COUNT.format(Number((number / 1e6).toPrecision(number < 1e9 ? 3 : 4)))} M`);

/** `1 stream`, `2 streams`. */
export const many = (number, one, more = `${one}s`) => `${count(number)} ${number === 1 ? one : more}`;

export const percent = (part) => `${COUNT.format(Number((part * 100).toFixed(Math.abs(part) < 0.1 ? 1 : 0)))} %`;

/** Milliseconds. */
export function span(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  return minutes < 2880 ? `${Math.floor(minutes / 60)} h ${minutes % 60} min` : `${Math.floor(minutes / 1440)} days`;
}

const formats = new Map();

function format(at, timeZone, parts) {
  const name = `${timeZone} ${Object.keys(parts)}`;
  if (!formats.has(name)) formats.set(name, new Intl.DateTimeFormat("en-GB", { timeZone, hourCycle: "h23", ...parts }));
  return formats.get(name).format(at);
}

const DAY = { day: "numeric", month: "short" };
const CLOCK = { hour: "2-digit", minute: "2-digit", second: "2-digit" };

/** `26 Nov, 14:03:11`; the year if it is another one. */
export const moment = (at, zone) => format(at, zone, { ...(dateIn(at, zone).slice(0, 4) === dateIn(new Date(), zone).slice(0, 4) ? {} : { year: "numeric" }),
  ...DAY, ...CLOCK });
export const date = (at, zone) => format(at, zone, { ...DAY, year: "numeric" });
export const shortDay = (at, zone) => format(at, zone, DAY);
export const day = (at, zone) => format(at, zone, { weekday: "short", ...DAY });
/** `October 2026` for `2026-10`. */
export const monthName = (month) => format(new Date(`${month}-01T00:00:00Z`), "UTC", { month: "long", year: "numeric" });
export const utc = (at) => `${at.toISOString().replace("T", " ").replace("Z", "")} UTC`;

/** The calendar date, `2026-11-26`. */
export const dateIn = (at, zone) => format(at, zone, { year: "numeric", month: "2-digit", day: "2-digit" }).split("/").reverse().join("-");

/** The first second of a calendar date, in Unix seconds. */
export function startOf(text, zone) {
  const wall = Date.parse(`${text}T00:00:00Z`);
  const shown = (ms) => Date.parse(`${dateIn(ms, zone)}T${format(ms, zone, CLOCK)}Z`);
  const guess = wall - (shown(wall) - wall);
  return (guess - (shown(guess) - wall)) / 1000;
}

/** A calendar date, some days later. */
export const plusDays = (text, days) => new Date(Date.parse(`${text}T00:00:00Z`) + days * 86_400_000).toISOString().slice(0, 10);

export const plain = (name) => name.replaceAll("_", " ");

export const OUTCOMES = {
  served: ["Completed", ""],
  client_left: ["Client left", "The client disconnected before the end."],
  upstream_failed: ["Provider failed", "The provider failed before the end."],
  upstream_stalled: ["Provider stalled", "The provider sent nothing for too long, so the proxy ended the request."],
  stopped_by_operator: ["Stopped by an operator", "An operator stopped the stream. What was used up to then is billed."],
  budget_cut: ["Budget exhausted", "The proxy stopped the request because its budget was exhausted."],
  shut_down: ["Proxy shut down", "The proxy was shut down during the request."],
  crashed: ["Proxy crashed", "The proxy crashed during the request. The usage was recorded before the crash."],
  refused_upstream: ["Rejected by provider", "The provider rejected the request."],
};

/** The name of a request's outcome in OUTCOMES. The API has no outcome of its own for a stream that an operator stopped. */
export const outcomeOf = (one) => (one.stopped_by_operator ? "stopped_by_operator" : one.outcome);

export const SOURCES = {
  reported: ["From provider", "The provider reported the usage."],
  estimated: ["Estimated", "The provider did not report the usage. The counts are estimated."],
  provider_later: ["From provider, later", "The provider reported the usage when it was asked afterwards."],
  none: ["None", "No usage: the provider reported none, and there was nothing to estimate."],
};

export const RESULTS = {
  done: ["Done", "The change was made."],
  refused: ["Refused", "The change was refused. Nothing changed."],
  failed: ["Failed", "The change failed with an error. Check whether it took effect."],
  begun: ["Unconfirmed", "The change was started, but its result was not recorded. Check whether it took effect."],
};

// The place in the console. Invariants: the URL holds all state (page, filters, period, zone), so that a link shows what
// its sender saw; a value that the page does not know is reported, never replaced in silence; each entry of the browser's
// history keeps its rows and its scroll position.

import { dateIn, plusDays, startOf } from "./formatting.js";

export const PERIODS = {
  today: "Today", "7d": "Last 7 days", "30d": "Last 30 days", "90d": "Last 90 days", month: "This month", last_month: "Last month", custom: "Custom",
};
export const LOCAL_ZONE = Intl.DateTimeFormat().resolvedOptions().timeZone;

const DATE = /^\d{4}-\d\d-\d\d$/;
const isDate = (text) => DATE.test(text) && !Number.isNaN(Date.parse(text)) && plusDays(text, 0) === text;

function isZone(name) {
  try {
    return Boolean(new Intl.DateTimeFormat("en", { timeZone: name }));
  } catch {
    return false;
  }
}

/** The parameters that every page has. */
const SHARED = { period: Object.keys(PERIODS), from: isDate, to: isDate, tz: isZone, compare: ["1"] };

const entries = new Map();
/** @type {{path: string[], query: Record<string, string>, ignored: string[], entry: any, url: string}} */
let place = { path: [], query: {}, ignored: [], entry: null, url: "" };

export const here = () => place;
export const zone = () => place.query.tz ?? "UTC";

function entryOf() {
  const id = history.state?.id ?? crypto.randomUUID();
  if (history.state?.id !== id) history.replaceState({ id }, "");
  if (!entries.has(id)) entries.set(id, { scroll: 0, kept: new Map() });
  return entries.get(id);
}

const isValid = (check, value) => (Array.isArray(check) ? check.includes(value) : check === true || check(value));

/** Reads the URL. `accepts`: path → the parameters of its page, or null if there is no such page. */
export function arrive(accepts) {
  if (place.entry) place.entry.scroll = scrollY;
  const [path, search = ""] = location.hash.replace(/^#\/?/, "").split("?");
  let parts;
  try {
    parts = path.split("/").filter(Boolean).map(decodeURIComponent);
  } catch {
    parts = ["?"];
  }
  const known = { ...SHARED, ...accepts(parts) };
  /** @type {Record<string, string>} */
  const query = {};
  const ignored = [];
  for (const [name, value] of new URLSearchParams(search)) {
    if (value === "") continue;
    if (name in known && isValid(known[name], value) && !(name in query)) query[name] = value;
    else ignored.push(`${name}=${value}`);
  }
  const from = place.entry && { path: place.path, url: place.url };
  const entry = entryOf();
  if (from && from.path.join("/") !== parts.join("/")) entry.from ??= from;
  place = { path: parts, query, ignored, entry, url: location.hash };
  return place;
}

/**
 * A link to a page of the console. The period and the zone stay unless `query` has others.
 * @param {string | string[]} path
 * @param {Record<string, any>} [query]
 */
export function to(path, query = {}) {
  const { period, from, to: until, tz, compare } = place.query;
  const all = Object.entries({ period, from, to: until, tz, compare, ...query });
  const given = all.filter(([, value]) => value !== undefined && value !== null && value !== "").map(([name, value]) => [name, String(value)]);
  const parameters = new URLSearchParams(given);
  return `#/${[path].flat().map(encodeURIComponent).join("/")}${parameters.size ? `?${parameters}` : ""}`;
}

/** The same page with other parameters; null removes one. */
export const withQuery = (changes) => to(place.path, { ...place.query, ...changes });

export const go = (url) => { location.hash = url; };

/** Replaces the URL without a new entry in the history. */
export function replace(url) {
  history.replaceState(history.state, "", url);
  dispatchEvent(new HashChangeEvent("hashchange"));
}

const monthOf = (text) => `${text.slice(0, 8)}01`;

/**
 * The dates of the period; the end is exclusive.
 * @param {Record<string, string>} query
 */
function dates(name, today, query) {
  const { from, to: until } = query;
  const tomorrow = plusDays(today, 1);
  if (name === "month") return [monthOf(today), tomorrow];
  if (name === "last_month") return [monthOf(plusDays(monthOf(today), -1)), monthOf(today)];
  if (name === "custom") {
    const [first, last] = [from ?? plusDays(until ?? today, -29), until ?? today].sort();
    return [first, plusDays(last, 1)];
  }
  return [plusDays(tomorrow, -(name === "today" ? 1 : Number.parseInt(name, 10))), tomorrow];
}

const daysBetween = (first, last) => Math.round((Date.parse(last) - Date.parse(first)) / 86_400_000);

/**
 * The chosen period and the one before it: dates (the last one is part of it), and Unix seconds (the end is not). Before whole months are
 * as many months (one), before other days as many days, as the reports compare.
 */
export function period() {
  const { query } = place;
  const name = query.period ?? (query.from || query.to ? "custom" : "30d");
  const [first, end] = dates(name, dateIn(new Date(), zone()), query);
  const days = daysBetween(first, end);
  const before = first.endsWith("-01") && end.endsWith("-01") && days <= 31 ? monthOf(plusDays(first, -1)) : plusDays(first, -days);
  return { name, first, last: plusDays(end, -1), end, days, start_time: startOf(first, zone()), end_time: startOf(end, zone()),
    before: { first: before, last: plusDays(first, -1), end: first } };
}

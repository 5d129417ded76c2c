// Settled exchanges, newest first. Invariant: the URL holds the filters.

import { ask, everyKey } from "./api.js";
import { el, empty, failure, loading, rowOf, say, table } from "./dom.js";
import { count, many, mark, moment, money, OUTCOMES, SOURCES, span } from "./formatting.js";

export const title = "Exchanges";

const FIELDS = ["key_id", "model", "outcome", "usage_source", "from", "to"];

const columns = (me) => [
  { label: "Started", cell: (one) => el("a", { class: "row-link", href: `#/exchanges/${one.id}` }, moment(one.started_at)) },
  { label: "Model", long: true, cell: (one) => one.model },
  { label: "Key", long: true, cell: (one) => one.key_alias, hidden: me.role === "key" },
  { label: "Outcome", cell: (one) => mark(OUTCOMES, one.outcome) },
  { label: "Token count", cell: (one) => mark(SOURCES, one.usage_source) },
  { label: "Prompt", number: true, cell: (one) => count(one.prompt_tokens) },
  { label: "Output", number: true, cell: (one) => count(one.completion_tokens) },
  { label: "Duration", number: true, cell: (one) => span(one.duration_ms) },
  { label: "Charge", number: true, cell: (one) => [money(one.charge_usd, "unpriced"), one.adjustments > 0 && el("span", { class: "mark careful", title: many(one.adjustments, "correction") }, "corrected")] },
  { label: "Cost", number: true, cell: (one) => money(one.cost_usd), hidden: me.role === "key" },
];

function select(name, label, options, chosen) {
  const known = options.some(([value]) => value === chosen) || !chosen ? options : [...options, [chosen, chosen]];
  return el("label", {}, label, el("select", { name }, el("option", { value: "" }, "all"),
    known.map(([value, words]) => el("option", { value, selected: value === chosen }, words))));
}

const named = (table) => Object.entries(table).map(([value, [words]]) => [value, words]);

function form(query, keys, me) {
  const go = (event) => {
    event.preventDefault();
    const given = [...new FormData(made)].filter(([, value]) => value);
    location.hash = given.length ? `#/exchanges?${new URLSearchParams(/** @type {[string, string][]} */ (given))}` : "#/exchanges";
  };
  const time = (name, label) => el("label", {}, label, el("input", { type: "datetime-local", name, value: query.get(name) }));
  const made = el("form", { class: "filters", submit: go },
    me.role === "operator" && select("key_id", "Key", keys.map((key) => [key.token, key.key_alias]), query.get("key_id")),
    el("label", {}, "Model", el("input", { name: "model", value: query.get("model"), maxlength: 256, placeholder: "any model", autocomplete: "off" })),
    select("outcome", "Outcome", named(OUTCOMES), query.get("outcome")),
    select("usage_source", "Token count", named(SOURCES).filter(([value]) => value !== "provider_later"), query.get("usage_source")),
    time("from", "From"), time("to", "Until"),
    el("div", { class: "row" }, el("button", { class: "main" }, "Filter"), el("a", { class: "button", href: "#/exchanges" }, "Clear")));
  return made;
}

/** Local time of a form field → Unix seconds. */
const seconds = (local) => (local ? Math.floor(new Date(local).getTime() / 1000) : "");

function wanted(query, after) {
  const [key_id, model, outcome, usage_source, from, to] = FIELDS.map((name) => query.get(name) ?? "");
  return { key_id, model, outcome, usage_source, start_time: seconds(from), end_time: seconds(to), after };
}

const nothing = (filtered) => filtered
  ? empty("No matching exchanges.", "Change a filter, or ", el("a", { href: "#/exchanges" }, "show all exchanges"), ".")
  : empty("No settled exchanges yet.", "A request appears here about a second after it ends. Running requests are under ", el("a", { href: "#/live" }, "Live"), ".");

/** The list for the filters in the URL. */
export async function show(body, { me, signal, query }) {
  body.replaceChildren(loading());
  const keys = me.role === "operator" ? await everyKey(signal) : [];
  const list = el("div", {}, loading());
  const more = el("div", { class: "row end" });
  body.replaceChildren(form(query, keys, me), list, more);
  const heads = columns(me);
  let lines = null;
  async function add(after) {
    more.replaceChildren();
    try {
      const page = await ask("v1/exchanges", { query: wanted(query, after), signal });
      if (!lines && page.data.length) {
        lines = table({ caption: "Exchanges, newest first", columns: heads, rows: [], opens: true });
        list.replaceChildren(lines);
      }
      lines?.tBodies[0].append(...page.data.map((one) => rowOf(heads, one)));
      if (!lines && !page.has_more) list.replaceChildren(nothing(FIELDS.some((name) => query.get(name))));
      if (!lines && page.has_more) list.replaceChildren(empty("No match among the newest exchanges.", "Older exchanges have not been searched yet."));
      if (page.has_more) more.replaceChildren(el("button", { type: "button", click: () => add(page.next_after) }, "Show older exchanges"));
      if (after) say(`${many(page.data.length, "more exchange")} shown.`);
    } catch (error) {
      if (!signal.aborted) more.replaceChildren(failure(error, () => add(after)));
    }
  }
  await add();
}

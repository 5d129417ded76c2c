// Settled requests, newest first. Invariant: the URL holds the filters.

import { ask } from "./api.js";
import { count, many, OUTCOMES, SOURCES, span } from "./formatting.js";
import { Older, useOlder } from "./older.js";
import { go, here, period, to, withQuery } from "./route.js";
import { Empty, Filters, html, Loaded, Status, Table, Time } from "./ui.js";

export const title = "Requests";
export const hasPeriod = true;

const SOURCE_FILTER = ["reported", "estimated", "none"];
export const accepts = {
  model: true, key_id: true, outcome: Object.keys(OUTCOMES), usage_source: SOURCE_FILTER, end_user: true, session: true, run: true, tag: (value) => value.includes("="),
};

const named = (table, names) => Object.fromEntries(names.map((name) => [name, table[name][0]]));

const fields = (me) => ({
  model: { label: "Model", hint: "Any model" },
  ...(me.role === "operator" ? { key_id: { label: "Key", hint: "Any key (its id)" } } : {}),
  outcome: { label: "Outcome", options: named(OUTCOMES, Object.keys(OUTCOMES)) },
  usage_source: { label: "Token count", options: named(SOURCES, SOURCE_FILTER) },
  end_user: { label: "End user", chip: true }, session: { label: "Session", chip: true }, run: { label: "Run", chip: true }, tag: { label: "Tag", chip: true },
});

const notes = (one) => [one.usage_source === "estimated" && ["estimated", SOURCES.estimated[1]], one.adjustments > 0 && ["corrected", many(one.adjustments, "correction")]].filter(Boolean);

const columns = (me) => [
  { label: "Started", fact: true, cell: (one) => html`<a class="row-link" href=${to(["requests", one.id])}><${Time} at=${one.started_at} /></a>` },
  { label: "Model", lead: true, clip: true, cell: (one) => one.model },
  { label: "Key", fact: true, clip: true, cell: (one) => one.key_alias, hidden: me.role === "key" },
  { label: "Status", fact: true, cell: (one) => html`<${Status} table=${OUTCOMES} name=${one.outcome} />${notes(one).map(([word, why]) => html` <span class="quiet small" title=${why}>${word}</span>`)}` },
  { label: "Input", number: true, cell: (one) => count(one.prompt_tokens) },
  { label: "Output", number: true, cell: (one) => count(one.completion_tokens) },
  { label: "Duration", number: true, fact: true, cell: (one) => span(one.duration_ms) },
  { label: "Charge", usd: (one) => one.charge_usd, none: () => "no price", why: () => "This model has no price. The request was not charged." },
  { label: "Cost", usd: (one) => one.cost_usd, why: () => "The provider's cost is unknown.", hidden: me.role === "key" },
];

export function Page({ me }) {
  const { query } = here();
  const { start, end, days } = period();
  const { model, key_id, outcome, usage_source, end_user, session, run, tag } = query;
  const wanted = { model, key_id, outcome, usage_source, end_user, session, run, tag, start_time: start, end_time: end };
  const older = useOlder("requests", (after, signal) => ask("v1/exchanges", { query: { ...wanted, after }, signal }), [JSON.stringify(wanted)]);
  const isFiltered = Object.keys(accepts).some((name) => query[name]);
  const nothing = older.after
    ? html`<${Empty} title=${`No match among the newest requests of ${many(days, "day")}.`}>Older requests have not been searched yet.<//>`
    : isFiltered ? html`<${Empty} title=${`No match in ${many(days, "day")}.`}>Choose a longer period or <a href=${to("requests")}>remove the filters</a>.<//>`
      : html`<${Empty} title="No requests in this period.">A request appears here about a second after it ends. Running requests are under <a href=${to("live")}>Live</a>.<//>`;
  return html`<${Filters} fields=${fields(me)} values=${query} set=${(changes) => go(withQuery(changes))} />
    <${Loaded} of=${older}>${(rows) => html`${rows.length ? html`<${Table} caption="Requests, newest first" columns=${columns(me)} rows=${rows} open=${(one) => to(["requests", one.id])} />` : nothing}
      <${Older} of=${older} word="requests" />`}<//>`;
}

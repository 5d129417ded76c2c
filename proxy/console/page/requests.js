// Settled requests, newest first. Invariants: the URL holds the search and the filters; a batch is one row.

import { useAccounts } from "./account_choice.js";
import { ask, namesOf } from "./api.js";
import { count, many, nusd, OUTCOMES, outcomeOf, SOURCES, span } from "./formatting.js";
import { Older, useOlder } from "./older.js";
import { Rejected, STATUSES } from "./rejected.js";
import { Panel } from "./request.js";
import { go, here, period, replace, to, withQuery } from "./route.js";
import { Empty, Filters, html, Loaded, Status, Table, Tabs, Time, useData } from "./ui.js";

export const title = "Requests";
export const hasPeriod = true;

// From this width on, a row opens beside the list.
const WIDE = "(min-width: 1121px)";
const SOURCE_FILTER = ["reported", "estimated", "none"];
const OUTCOME_FILTER = Object.keys(OUTCOMES).filter((name) => name !== "stopped_by_operator");
const SORTS = ["started", "charge", "duration", "output"];
const FILTERS = {
  q: true, organization_id: true, project_id: true, key_id: true, model: true, provider: true, outcome: OUTCOME_FILTER, usage_source: SOURCE_FILTER,
    batch_id: true,
  end_user: true, session: true, run: true, tag: (value) => value.includes("="),
};
export const accepts = { ...FILTERS, open: true, sort: SORTS, show: ["rejected"], status: Object.keys(STATUSES) };

const named = (table, names) => Object.fromEntries(names.map((name) => [name, table[name][0]]));

/** The fields, with names for the chips. */
function useFields(query, me) {
  const operator = me.role === "operator";
  const ids = [query.project_id, query.key_id];
  const names = useData(async (signal) => new Map(operator ? await namesOf(ids, signal) : []), ids);
  const customers = useAccounts("organization", query.organization_id, operator);
  const chip = (label, id = undefined) => ({ label, chip: true, shown: names.data?.get(id) });
  return {
    q: { label: "Search", hint: "Id, response id, key or model" },
    outcome: { label: "Status", options: named(OUTCOMES, OUTCOME_FILTER) },
    usage_source: { label: "Token count", options: named(SOURCES, SOURCE_FILTER) },
    ...(operator ? { organization_id: { label: "Customer", ...customers } } : {}),
    project_id: chip("Project", query.project_id), key_id: chip("Key", query.key_id), model: chip("Model"), provider: chip("Provider"),
      batch_id: chip("Batch"),
    end_user: chip("End user"), session: chip("Session"), run: chip("Run"), tag: chip("Tag"),
  };
}

// -- rows

/** A batch and its lines as one row, where the first of them is. */
function grouped(rows) {
  const batches = new Map();
  return rows.flatMap((one) => {
    if (!one.batch_id) return [one];
    const known = batches.get(one.batch_id);
    if (known) return (known.lines.push(one), []);
    const row = { ...one, id: one.batch_id, lines: [one] };
    batches.set(one.batch_id, row);
    return [row];
  });
}

const sumOf = (row, name) => (row.lines ?? [row]).map((one) => one[name]).filter((value) => value !== null && value !== undefined);
const counted = (row, name) => (sumOf(row, name).length ? count(sumOf(row, name).reduce((sum, value) => sum + value, 0)) : "–");
const charged = (row, name) => (sumOf(row, name).length ? sumOf(row, name).reduce((sum, usd) => sum + nusd(usd), 0n) : null);
const linkOf = (row) => (row.lines ? withQuery({ batch_id: row.batch_id, sort: null }) : to(["requests", row.id]));
const linesOf = (row) => row.lines.filter((one) => !one.is_batch).length;
const notes = (one) => [one.usage_source === "estimated" && ["estimated", SOURCES.estimated[1]],
  one.adjustments > 0 && ["corrected", many(one.adjustments, "correction")]].filter(Boolean);

const StatusCell = ({ of: row }) => (row.lines ? html`Batch <span class="quiet small">${many(linesOf(row), "request")} shown</span>`
  : html`<${Status} table=${OUTCOMES} name=${outcomeOf(row)} />${notes(row).map(([word, why]) => html` <span class="quiet small" title=${why}>${word}</span>`)}`);

const columns = (me) => [
  { label: "Started", fact: true, sort: "started", cell: (row) => html`<a class="row-link" href=${linkOf(row)}><${Time} at=${row.started_at} /></a>` },
  { label: "Model", lead: true, clip: true, cell: (row) => row.model },
  { label: "Customer", clip: true, cell: (row) => row.organization ?? "", hidden: me.role === "key" },
  { label: "Key", fact: true, clip: true, cell: (row) => row.key_alias, hidden: me.role === "key" },
  { label: "Status", fact: true, cell: (row) => html`<${StatusCell} of=${row} />` },
  { label: "Input", number: true, cell: (row) => counted(row, "prompt_tokens") },
  { label: "Output", number: true, sort: "output", cell: (row) => counted(row, "completion_tokens") },
  { label: "Duration", number: true, fact: true, sort: "duration", cell: (row) => (row.lines ? "" : span(row.duration_ms)) },
  { label: "Charge", sort: "charge", usd: (row) => charged(row, "charge_usd"), none: () => "no price",
    why: () => "This model has no price. The request was not charged." },
  { label: "Margin", usd: (row) => charged(row, "margin_usd"), why: () => "The provider's cost is unknown, or the model has no price.",
    hidden: me.role === "key" },
];

/** Why there are no rows, and what to do. */
function Nothing({ older, query, days, searchesAll }) {
  const when = searchesAll ? "" : ` in ${many(days, "day")}`;
  if (older.after) return html`<${Empty}
    title=${`No match among the newest requests${when}.`}>Older requests have not been searched yet: “Show older” goes on.<//>`;
  if (!Object.keys(FILTERS).some((name) => query[name])) return html`<${Empty}
    title="No requests in this period.">A request appears here about a second after it ends. Running requests are under <a href=${to("live")}>Live</a>.<//>`;
  return html`<${Empty} title=${`No match${when}.`}>${!searchesAll && query.period !== "90d" && html`<a
    href=${withQuery({ period: "90d", from: null, to: null })}>Search 90 days</a>, or `}<a href=${to("requests")}>remove the filters</a>
    ${query.q && html`, or <a href=${to("requests", { q: query.q, show: "rejected" })}>search the rejected requests</a>`}.<//>`;
}

export function Page({ me }) {
  const isRejected = here().query.show === "rejected";
  const link = (show) => to("requests", { q: here().query.q, key_id: here().query.key_id, show });
  return html`<${Tabs} label="Requests" of=${[["Sent to a provider", link(null), !isRejected], ["Rejected by the proxy", link("rejected"), isRejected]]} />
    ${isRejected ? html`<${Rejected} me=${me} />` : html`<${Settled} me=${me} />`}`;
}

function Settled({ me }) {
  const { query } = here();
  const { start_time, end_time, days } = period();
  // An id is of any time: without a chosen period, a search covers all.
  const searchesAll = Boolean(query.q || query.batch_id) && !query.period && !query.from && !query.to;
  const sort = query.sort ?? "started";
  const wanted = { ...Object.fromEntries(Object.keys(FILTERS).map((name) => [name, query[name]])), sort, ...(searchesAll ? {} : { start_time, end_time }) };
  const older = useOlder("requests", (after, signal) => ask("v1/exchanges", { query: { ...wanted, after }, signal }), [JSON.stringify(wanted)]);
  const order = { by: sort, falling: true, set: (name) => go(withQuery({ sort: name === "started" ? null : name })) };
  const show = (id) => replace(withQuery({ open: id }));
  const visit = (row) => (row.lines || !matchMedia(WIDE).matches ? go(linkOf(row)) : show(row.id));
  const move = (rows, step) => {
    const next = rows[rows.findIndex((row) => row.id === query.open) + step];
    if (next && !next.lines) show(next.id);
  };
  const caption = `${{ started: "Newest first", charge: "Highest charge first", duration: "Longest first",
    output: "Most output tokens first" }[sort]}${searchesAll ? ", all time" : ""}`;
  return html`<${Filters} fields=${useFields(query, me)} values=${query} set=${(changes) => go(withQuery(changes))} />
    <${Loaded} of=${older}>${(found) => {
    const rows = query.batch_id ? found : grouped(found);
    return html`${rows.length ? html`<${Table} caption=${caption} columns=${columns(me)} rows=${rows} open=${linkOf} visit=${visit}
      chosen=${(row) => row.id === query.open} sort=${order} />` : html`<${Nothing} older=${older} query=${query} days=${days} searchesAll=${searchesAll} />`}
      <${Older} of=${older} word="request" />${query.open && html`<${Panel} me=${me} id=${query.open} move=${(step) => move(rows, step)}
        close=${() => show(null)} />`}`;
  }}<//>`;
}

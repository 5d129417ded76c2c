// The audit log. Invariants: read-only and complete; a change without a recorded result is shown as unconfirmed.

import { ask, namesOf } from "./api.js";
import { RESULTS } from "./formatting.js";
import { Older, useOlder } from "./older.js";
import { go, here, to, withQuery } from "./route.js";
import { Code, Empty, Filters, html, Loaded, Status, Table, Time, useData } from "./ui.js";

export const title = "Audit";
export const operator = true;
const ACTIONS = { key: "Keys", account: "Customers and projects", limit: "Limits by rule", credit: "Credit", grant: "Grants", prices: "Prices",
  dimension: "Erasures", adjust: "Adjustments", rerate: "Repricing", exchange: "Stopped streams", periods: "Closed months", statement: "Sent statements" };
export const accepts = { q: true, action: true, result: Object.keys(RESULTS), actor: true, target: true };

const WAYS = { api: "console or API", cli: "command line" };

const text = (value) => (Array.isArray(value) ? value.map(text).join(" ") : value === null ? "none" : typeof value === "object" ? JSON.stringify(value)
  : String(value));

const Details = ({ of }) => Object.entries(of ?? {}).map(([name, value]) => html`<div key=${name}><span class="quiet">${name}:</span> ${text(value)}</div>`);

const columns = (names) => [
  { label: "Action", lead: true, cell: (one) => html`<${Code}>${one.action}<//>` },
  { label: "When", fact: true, cell: (one) => html`<${Time} at=${one.at} />` },
  { label: "Who", fact: true, cell: (one) => html`<a href=${withQuery({ actor: one.actor })}>${one.actor}</a>
    <div class="quiet small">${WAYS[one.via] ?? one.via}${one.origin ? ` from ${one.origin}` : ""}</div>` },
  { label: "Target", fact: true, cell: (one) => html`<span title=${one.target}>${names.get(one.target) ?? one.target ?? "–"}</span>` },
  { label: "Details", fact: true, cell: (one) => html`<${Details} of=${one.details} />` },
  { label: "Result", amount: true, cell: (one) => html`<${Status} table=${RESULTS} name=${one.result} />
    ${one.message && html`<div class="small">${one.message}</div>`}` },
];

export function Page() {
  const { query } = here();
  const { q, action, result, actor, target } = query;
  const wanted = { q, action, result, actor, target };
  const older = useOlder("audit", (after, signal) => ask("v1/audit", { query: { ...wanted, after }, signal }), [JSON.stringify(wanted)]);
  const targets = [target, ...(older.data ?? []).map((one) => one.target)].filter((id) => /^(key|org_|proj_)/.test(id ?? ""));
  const names = useData((signal) => namesOf(targets, signal), [targets.join()]);
  const shown = names.data?.get(target);
  return html`<${Filters} fields=${{ q: { label: "Search", hint: "Operator, action or target" },
    action: { label: "Action", options: action && !(action in ACTIONS) ? { ...ACTIONS, [action]: action } : ACTIONS },
    result: { label: "Result", options: Object.fromEntries(Object.entries(RESULTS).map(([name, [words]]) => [name, words])) },
    actor: { label: "Operator", chip: true }, target: { label: "Target", chip: true, shown } }} values=${query} set=${(changes) => go(withQuery(changes))} />
      <${Loaded} of=${older}>${(rows) => (rows.length
    ? html`<${Table} caption="Changes by operators, newest first" columns=${columns(names.data ?? new Map())} rows=${rows} />
      <${Older} of=${older} word="change" />`
    : Object.keys(query).some((name) => name in accepts) ? html`<${Empty} title="No match."><a href=${to("audit")}>Show all changes</a>.<//>`
      : html`<${Empty} title="No changes yet.">Every change of a key, a customer, a budget, a price or an entry is recorded here, with the operator and the origin.<//>`)}<//>`;
}

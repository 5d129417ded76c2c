// The audit log. Invariants: read-only and complete; a change without a recorded result is shown as unconfirmed.

import { ask, everyAccount, keyNames } from "./api.js";
import { RESULTS } from "./formatting.js";
import { Code, Empty, html, Loaded, Status, Table, Time, useData } from "./ui.js";
import { Older, useOlder } from "./older.js";

export const title = "Audit";
export const operator = true;
export const accepts = {};

const WAYS = { api: "console or API", cli: "command line" };

const text = (value) => (Array.isArray(value) ? value.map(text).join(" ") : value === null ? "none" : typeof value === "object" ? JSON.stringify(value) : String(value));

const Details = ({ of }) => Object.entries(of ?? {}).map(([name, value]) => html`<div key=${name}><span class="quiet">${name}:</span> ${text(value)}</div>`);

const columns = (names) => [
  { label: "Action", lead: true, cell: (one) => html`<${Code}>${one.action}<//>` },
  { label: "When", fact: true, cell: (one) => html`<${Time} at=${one.at} />` },
  { label: "Who", fact: true, cell: (one) => html`${one.actor}<div class="quiet small">${WAYS[one.via] ?? one.via}${one.origin ? ` from ${one.origin}` : ""}</div>` },
  { label: "Target", fact: true, cell: (one) => html`<span title=${one.target}>${names.get(one.target) ?? one.target ?? "–"}</span>` },
  { label: "Details", fact: true, cell: (one) => html`<${Details} of=${one.details} />` },
  { label: "Result", amount: true, cell: (one) => html`<${Status} table=${RESULTS} name=${one.result} />${one.message && html`<div class="small">${one.message}</div>`}` },
];

export function Page() {
  const older = useOlder("audit", (after, signal) => ask("v1/audit", { query: { after }, signal }), []);
  const targets = (older.data ?? []).map((one) => one.target).filter((id) => id?.startsWith("key"));
  const names = useData(async (signal) => new Map([...(await keyNames(targets, signal)), .../** @type {any} */ ((await everyAccount()).map((one) => [one.id, one.name]))]), [targets.join()]);
  return html`<${Loaded} of=${older}>${(rows) => (rows.length
    ? html`<${Table} caption="Changes by operators, newest first" columns=${columns(names.data ?? new Map())} rows=${rows} /><${Older} of=${older} word="changes" />`
    : html`<${Empty} title="No changes yet.">Every change of a key, a customer, a budget, a price or an entry is recorded here, with the operator and the origin.<//>`)}<//>`;
}

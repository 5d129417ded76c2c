// Requests that the proxy itself rejected: they have no entry in the ledger, and cost nothing.

import { ask } from "./api.js";
import { Older, useOlder } from "./older.js";
import { go, here, to, withQuery } from "./route.js";
import { Code, Empty, Filters, html, Loaded, Table, Time } from "./ui.js";

/** HTTP statuses of rejections. */
export const STATUSES = { 400: "400 Bad request", 401: "401 No valid key", 402: "402 Budget exhausted", 403: "403 Not allowed",
  404: "404 Unknown model or path", 409: "409 Conflict", 413: "413 Too large", 429: "429 Limit reached", 503: "503 Unavailable" };

const columns = (me) => [
  { label: "When", fact: true, cell: (one) => html`<${Time} at=${one.at} />` },
  { label: "Reason", lead: true, cell: (one) => html`${one.message}${one.limit && html`<div class="quiet small">Limit: ${one.limit}</div>`}` },
  { label: "Status", amount: true, cell: (one) => html`<span title=${one.type}>${one.status}</span>` },
  { label: "Code", cell: (one) => one.code && html`<${Code}>${one.code}<//>` },
  { label: "Customer", clip: true, cell: (one) => one.organization ?? "", hidden: me.role === "key" },
  { label: "Key", fact: true, cell: (one) => (one.key_id ? html`<a href=${to(["keys", one.key_id])}>${one.key_alias}</a>` : "no valid key"),
    hidden: me.role === "key" },
  { label: "Model", fact: true, clip: true, cell: (one) => one.model ?? "" },
  { label: "Id", cell: (one) => html`<${Code}>${one.id}<//>` },
];

export function Rejected({ me }) {
  const { q, key_id, organization_id, model, status } = here().query;
  const wanted = { q, key_id, organization_id, model, status };
  const older = useOlder("rejected", (after, signal) => ask("v1/refusals", { query: { ...wanted, after }, signal }), [JSON.stringify(wanted)]);
  const chip = (label) => ({ label, chip: true });
  return html`<${Filters} fields=${{ q: { label: "Search", hint: "Request id, key, model or limit" }, status: { label: "Status", options: STATUSES },
    key_id: chip("Key"), organization_id: chip("Customer"), model: chip("Model") }} values=${here().query} set=${(changes) => go(withQuery(changes))} />
    <${Loaded} of=${older}>${(rows) => (rows.length ? html`<${Table} caption="Newest first. The latest 2,000 of this machine, 200 of one key"
      columns=${columns(me)} rows=${rows} /><${Older} of=${older} word="rejected request" />`
    : html`<${Empty} title="No rejected requests.">Requests that the proxy rejects (no budget left, a limit reached, a blocked key, a model without a price) appear here at once. A client gets their id in the header x-request-id.<//>`)}<//>`;
}

// Providers: their errors, their health, and their credentials. Invariant: health is that of this machine's processes.

import { ask } from "./api.js";
import { count, many, percent, plain, span } from "./formatting.js";
import { here, to, withQuery } from "./route.js";
import { Back, Code, Empty, html, Loaded, Pairs, Status, Table, Tabs, Time, useData } from "./ui.js";

export const title = "Providers";
export const operator = true;
const HOURS = { 1: "Last hour", 24: "Last day", 168: "Last 7 days" };
export const accepts = { hours: Object.keys(HOURS) };

const EVERY_S = 15;
const BREAKERS = { closed: ["Healthy", "Requests are sent"], half_open: ["Trying again", "One request is sent to see whether it answers"],
  open: ["Out of service", "It failed repeatedly; requests go to other providers"] };
const FAILING = 0.05;

/** True if a provider needs attention. */
export const isFailing = (one) => one.is_configured && (one.breaker === "open" || one.breaker === "half_open" || one.error_rate >= FAILING || one.credentials_rejected > 0);

const hours = () => here().query.hours ?? "24";
const HoursTabs = () => html`<${Tabs} label="Time span" of=${Object.entries(HOURS).map(([value, words]) => [words,
  withQuery({ hours: value === "24" ? null : value }), value === hours()])} />`;
const useProviders = () => useData(async (signal) => (await ask("v1/providers", { query: { hours: hours() }, signal })).data, [hours()],
  { every: EVERY_S, keep: `providers ${hours()}` });

const Breaker = ({ of: one }) => (!one.is_configured ? html`<span class="quiet">not in the configuration</span>`
  : html`<span class="status" title=${BREAKERS[one.breaker]?.[1]}>
    ${one.breaker !== "closed" && one.breaker && html`<span class=${`dot ${one.breaker === "open" ? "bad" : "careful"}`} aria-hidden="true"
    />`}${BREAKERS[one.breaker]?.[0] ?? "–"}</span>`);
const credentials = (one) => [one.credentials_resting > 0 && `${count(one.credentials_resting)} resting`,
  one.credentials_rejected > 0 && `${count(one.credentials_rejected)} rejected`].filter(Boolean).join(", ");

const columns = [
  { label: "Provider", lead: true, cell: (one) => (one.name ? html`<a href=${to(["providers", one.name])}>${one.name}</a>`
    : html`<span class="quiet">not recorded</span>`) },
  { label: "Health", fact: true, cell: (one) => html`<${Breaker} of=${one} />` },
  { label: "Errors", amount: true, number: true, cell: (one) => (one.error_rate === null ? "–"
    : html`<span class=${one.error_rate >= FAILING ? "bad-text" : ""}>${percent(one.error_rate)}</span>`) },
  { label: "Requests", number: true, fact: true, cell: (one) => count(one.requests) },
  { label: "Failed", number: true, cell: (one) => count(one.failed) },
  { label: "Failovers", number: true, cell: (one) => count(one.failed_attempts) },
  { label: "First token p95", number: true, fact: true, cell: (one) => span(one.first_token_p95_ms) },
  { label: "Credentials", cell: credentials },
  { label: "Last error", cell: (one) => (one.errors.length ? html`<${Time} at=${one.errors[0].at} />` : "none") },
];

export function Page() {
  const data = useProviders();
  return html`<${HoursTabs} /><${Loaded} of=${data}>${(rows) => (rows.length
    ? html`<${Table} caption=${`${many(rows.length, "provider")}, highest error rate first`} columns=${columns} rows=${rows} keyOf=${(one) => one.name}
    open=${(one) => to(one.name ? ["providers", one.name] : "providers")} />`
    : html`<${Empty} title="No providers.">Providers are in the configuration, under providers.<//>`)}<//>`;
}

const errors = (name) => [
  { label: "Error", lead: true, cell: (one) => plain(one.what) }, { label: "When", fact: true, cell: (one) => html`<${Time} at=${one.at} />` },
  { label: "Status", amount: true, cell: (one) => (one.status ? `HTTP ${one.status}` : "no answer") }, { label: "Model", fact: true, cell: (one) => one.model },
  { label: "Then", fact: true, cell: (one) => (one.was_passed_on ? "another attempt followed" : "the client got the error") },
  { label: "Request", cell: (one) => html`<a href=${to(["requests", one.exchange_id])} aria-label=${`Request ${one.exchange_id} of ${name}`}>
    <${Code}>${one.exchange_id}<//></a>` },
];

const processes = [
  { label: "Process", lead: true, cell: (one) => `Process ${one.process}` },
    { label: "Health", fact: true, cell: (one) => html`<${Breaker} of=${{ ...one, is_configured: true }} />` },
  { label: "Failures in a row", number: true, cell: (one) => count(one.failures) },
    { label: "Gets no requests for", number: true, cell: (one) => (one.away_s ? span(one.away_s * 1000) : "–") },
  { label: "Credentials", fact: true, cell: (one) => one.credentials.map((key) => html`<div key=${key.name}>
    ${key.name || "the only one"}: ${key.is_rejected ? html`<${Status} name="rejected" />` : key.rests_s ? `rests for ${span(key.rests_s * 1000)}` : "in use"}
    </div>`) },
];

function One({ id }) {
  const data = useProviders();
  return html`<${Back} page="providers">Providers<//><${HoursTabs} /><${Loaded} of=${data}>${(rows) => {
    const one = rows.find((row) => row.name === id);
    if (!one) return html`<${Empty} title="There is no provider with this name."><a href=${to("providers")}>Show all providers</a>.<//>`;
    return html`<div class="headline"><div class="big">${one.name}</div><${Breaker} of=${one} />
      <div class="row push"><a class="button" href=${to("requests", { provider: one.name })}>Requests</a>
      <a class="button" href=${to("usage", { provider: one.name })}>Usage</a></div></div>
      <section class="card"><${Pairs} of=${[["Address", one.base_url], ["Errors", one.error_rate === null ? "–" : percent(one.error_rate)],
        ["Requests", count(one.requests)], ["Failed", count(one.failed)], ["Failovers to others", count(one.failed_attempts)],
    ["First token p95", span(one.first_token_p95_ms)], ["Models", one.models.join(", ")]]} /></section>
      <h2 class="apart">Latest errors</h2>${one.errors.length ? html`<${Table} columns=${errors(one.name)} rows=${one.errors}
        keyOf=${(row) => `${row.exchange_id} ${row.at}`} />` : html`<p class="quiet">None in this time.</p>`}
      ${one.states.length > 0 && html`<h2 class="apart">Processes of this machine</h2>
        <${Table} columns=${processes} rows=${one.states} keyOf=${(row) => row.process} />`}`;
  }}<//>`;
}
export const one = { title: "Provider", Page: One, accepts };

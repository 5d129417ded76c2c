// What leaves the ledger, and what could not enter it. Invariant: read-only; dead letters are retried by the command.

import { ask } from "./api.js";
import { count, many, span } from "./formatting.js";
import { to } from "./route.js";
import { Code, Empty, html, Loaded, Table, Time, useData } from "./ui.js";

export const title = "Delivery";
export const operator = true;
export const accepts = {};

const EVERY_S = 15;
const STATES = { up_to_date: ["Up to date", ""], never_run: ["Never run", "careful"], behind: ["Behind", "careful"], failing: ["Failing", "bad"] };
const MOST = 1_000;

const sinks = [
  { label: "Sink", lead: true, cell: (one) => html`${one.name} <span class="quiet small">${one.kind}</span>` },
  { label: "State", amount: true, cell: (one) => html`<span class="status">
    ${STATES[one.state][1] && html`<span class=${`dot ${STATES[one.state][1]}`} aria-hidden="true" />`}${STATES[one.state][0]}</span>` },
  { label: "Sent", number: true, fact: true, cell: (one) => count(one.sent) },
  { label: "Waiting", number: true, fact: true, cell: (one) => (one.pending >= MOST ? `${count(MOST)} or more` : count(one.pending)) },
  { label: "Behind by", number: true, cell: (one) => (one.pending ? span(one.lag_s * 1000) : "–") },
  { label: "Last sent", fact: true, cell: (one) => html`<${Time} at=${one.last_sent_at} />` },
  { label: "Last error", cell: (one) => (one.failing_since ? html`${one.last_error}
    <div class="quiet small">${many(one.failures, "failure")} since <${Time} at=${one.failing_since} /></div>` : "none") },
  { label: "Rejected", cell: (one) => (one.rejected_count ? html`<details><summary>${count(one.rejected_count)}</summary>
    ${one.rejected.map((entry) => html`<div class="small" key=${entry.entry_id}><${Code}>${entry.entry_id}<//> ${entry.reason}</div>`)}</details>` : "none") },
];

const letters = [
  { label: "Reason", lead: true, cell: (one) => one.reason },
  { label: "First seen", fact: true, cell: (one) => html`<${Time} at=${one.first_seen} />` },
  { label: "Last seen", cell: (one) => html`<${Time} at=${one.last_seen} />` },
  { label: "Attempts", number: true, amount: true, cell: (one) => count(one.times_seen) },
  { label: "Request", fact: true, cell: (one) => (one.exchange_id ? html`<a href=${to(["requests", one.exchange_id])}><${Code}>${one.exchange_id}<//></a>`
    : "unreadable") },
  { label: "From", cell: (one) => one.node ?? "" },
];

export function Page() {
  const data = useData(async (signal) => {
    const [found, dead] = await Promise.all([ask("v1/sinks", { signal }), ask("v1/dead-letters", { signal })]);
    return { sinks: found.data, dead };
  }, [], { every: EVERY_S, keep: "delivery" });
  return html`<${Loaded} of=${data}>${(found) => html`<h2>Sinks</h2>
    ${found.sinks.length ? html`<${Table} columns=${sinks} rows=${found.sinks} keyOf=${(one) => one.name} />`
    : html`<${Empty} title="No sinks.">A sink sends each entry to a billing system, a data warehouse or a webhook. Sinks are in the configuration, under sinks.<//>`}
    <h2 class="apart">Dead letters</h2>${found.dead.total_count ? html`<p
      class="notice">These records could not be settled, so their requests are not billed. Mend the cause, then run <code>tokenweir dead-letters retry</code>.</p>
      <${Table} caption=${many(found.dead.total_count, "record")} columns=${letters} rows=${found.dead.data} />`
        : html`<p class="quiet">None: every record was settled.</p>`}`}<//>`;
}

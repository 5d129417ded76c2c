// The state of the business at a glance. Invariant: each line that needs attention leads to the list of what it counts.

import { ask } from "./api.js";
import { Bars, Spark } from "./chart.js";
import { brief, count, day, many, moment, nusd, percent, shortDay } from "./formatting.js";
import { isFailing } from "./providers.js";
import { here, period, to, zone } from "./route.js";
import { Empty, html, Loaded, Table, useData } from "./ui.js";
import { Figures, reportQuery } from "./usage.js";

export const title = "Overview";
export const operator = true;
export const hasPeriod = true;
export const accepts = {};

const TOP = 5;
const DAY_S = 86_400;

async function usage(chosen, signal) {
  const query = { ...reportQuery({}, chosen), compare: "previous" };
  const [report, models] = await Promise.all([
    ask("v1/usage", { query: { ...query, group_by: "organization", limit: TOP }, signal }),
    ask("v1/usage", { query: { ...query, bucket: "total", group_by: "model", limit: 200 }, signal }),
  ]);
  return { report, models: models.groups };
}

const counted = async (path, query, signal) => (await ask(path, { query: { ...query, size: 1 }, signal })).total_count;

/** The lines about charges: [how many, words, link]. */
function ofMoney(models) {
  const [unpriced, unknown] = ["unpriced_requests", "unknown_cost_requests"].map((name) => models.filter((one) => one[name] > 0));
  const sum = (list, name) => list.reduce((all, one) => all + one[name], 0);
  return [
    [unpriced.length, `${many(unpriced.length, "model")} without a price: ${many(sum(unpriced, "unpriced_requests"),
      "request")} not charged (${unpriced.map((one) => one.name).slice(0, 3).join(", ")})`, to("models", { show: "unpriced" })],
    [unknown.length, `Cost unknown for ${many(sum(unknown, "unknown_cost_requests"), "request")} of ${many(unknown.length,
      "model")}: the margin leaves them out`, to("models", { show: "unknown" })],
  ];
}

/** The lines about limits. */
async function ofLimits(signal) {
  const since = Math.floor(Date.now() / 1000) - DAY_S;
  const [keys, customers, nearly, expired, rejected] = await Promise.all([counted("key/list", { status: "exhausted" }, signal),
    counted("account/list", { status: "exhausted" }, signal), counted("v1/budgets", { status: "nearly_exhausted" }, signal),
    counted("key/list", { status: "expired" }, signal),
    ask("v1/refusals", { query: { limit: 200, start_time: since }, signal })]);
  return [
    [keys, `${many(keys, "key")} with an exhausted budget: requests are rejected`, to("keys", { status: "exhausted" })],
    [customers, `${many(customers, "customer or project", "customers or projects")} with an exhausted budget`, to("customers", { status: "exhausted" })],
    [nearly, `${many(nearly, "budget")} with 80 % or more spent`, to("budgets", { status: "nearly_exhausted" })],
    [rejected.data.length, `${rejected.has_more ? "More than 200 requests" : many(rejected.data.length, "request")} rejected by the proxy in the last day`,
      to("requests", { show: "rejected" })],
    [expired, `${many(expired, "expired key")}`, to("keys", { status: "expired" })],
  ];
}

/** The lines about providers, delivery and months. */
async function ofOperation(signal) {
  const [providers, sinks, dead, statements] = await Promise.all([ask("v1/providers", { signal }), ask("v1/sinks", { signal }),
    ask("v1/dead-letters", { query: { limit: 1 }, signal }), ask("v1/statements", { query: { size: 1 }, signal })]);
  const failing = providers.data.filter(isFailing);
  const late = sinks.data.filter((one) => one.state === "failing" || one.state === "behind");
  // Months before the first use are empty: only the last one is known to matter.
  const ended = statements.months.slice(1, 2).filter((one) => one.state === "provisional");
  return [
    [failing.length, `${many(failing.length, "provider")} with errors in the last day: ${failing.map((one) => `${one.name} ${one.error_rate === null ? ""
      : percent(one.error_rate)}`).join(", ")}`, to("providers")],
    [dead.total_count, `${many(dead.total_count, "dead letter")}: requests that are not billed`, to("delivery")],
    [late.length, `${many(late.length, "sink")} behind or failing: ${late.map((one) => one.name).join(", ")}`, to("delivery")],
    [ended.length, `${ended[0]?.month} is not closed: its statements are not final`, to("statements", { month: ended[0]?.month })],
  ];
}

const attention = async ({ models }, signal) => [...(await ofOperation(signal)), ...(await ofLimits(signal)),
  ...ofMoney(models)].filter(([number]) => number > 0);

function Attention({ of }) {
  const found = useData((signal) => attention(of, signal), [of]);
  return html`<section class="card explained"><h2>Needs attention</h2><${Loaded} of=${found}>${(lines) => (lines.length
    ? html`<ul class="plain-list attention">${lines.map(([, words, url]) => html`<li key=${words}><span class="dot careful" aria-hidden="true" />
      <a href=${url}>${words}</a></li>`)}</ul>` : html`<p class="quiet">Nothing needs attention.</p>`)}<//></section>`;
}

const top = (word, rows, link) => html`<section class="card"><h2>${word}s by revenue</h2><${Table} rows=${rows.slice(0, TOP)} columns=${[
  { label: word, lead: true, clip: true, cell: (one) => html`<a href=${link(one)}>${one.name ?? one.id}</a>` },
    { label: "Revenue", usd: (one) => one.charge_usd }, { label: "Margin", fact: true,
    usd: (one) => (one.unknown_cost_requests === one.requests ? null : one.margin_usd), why: () => "The cost is unknown" },
    { label: "Requests", number: true, fact: true, cell: (one) => count(one.requests) },
]} /></section>`;

function Board({ report, models }) {
  const series = (name) => report.buckets.map((one) => Math.max(0, Number(name.endsWith("_usd") ? nusd(one[name]) : one[name])));
  const isHour = report.bucket === "hour";
  const bars = report.buckets.map((one) => ({
    label: isHour ? moment(new Date(one.from), zone()) : day(new Date(one.from), zone()), brief: shortDay(new Date(one.from), zone()),
    parts: [{ series: "Cost", value: Math.max(0, Number(nusd(one.cost_usd))) },
      { series: "Margin", value: Math.max(0, Number(nusd(one.charge_usd) - nusd(one.cost_usd))) }],
  }));
  return html`<${Figures} of=${report.total} before=${report.previous.total} operator
    sparks=${{ revenue: html`<${Spark} values=${series("charge_usd")} />`, cost: html`<${Spark} values=${series("cost_usd")} />`,
    margin: html`<${Spark} values=${series("margin_usd")} />`, requests: html`<${Spark} values=${series("requests")} />` }} />
    <${Attention} of=${{ models }} />
    <div class="cards"><figure><figcaption>Revenue (${zone()})</figcaption>
      <${Bars} name="Revenue" bars=${bars} series=${["Cost", "Margin"]} words=${(sum) => brief(BigInt(Math.round(sum)))} />
      <ul class="legend"><li><span class="swatch s0" />Known cost</li><li><span class="swatch s1" />Revenue above it</li></ul></figure>
    <div class="stack">${top("Customer", report.groups, (one) => to(["customers", one.id]))}${top("Model", models, (one) => to("requests", { model: one.id }))}
      </div></div>`;
}

export function Page() {
  const chosen = period();
  const data = useData((signal) => usage(chosen, signal), [chosen.first, chosen.end, here().query.tz], { keep: `overview ${chosen.first} ${chosen.end}` });
  return html`<${Loaded} of=${data}>${(found) => (found.report.total.requests ? html`<${Board} ...${found} />`
    : html`<${Empty} title="No requests in this period.">Choose a longer period. Create a <a
      href=${to("keys")}>key</a> for your first client: in it, use the key's secret as the API key, and the address of this proxy as the base URL.<//>`)}<//>`;
}

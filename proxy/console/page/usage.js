// Revenue, cost and tokens by time and by group. Invariants: days are those of the chosen zone; an unknown cost is not 0; what is
// exported is what is shown.

import { useAccounts } from "./account_choice.js";
import { ask, namesOf } from "./api.js";
import { Bars } from "./chart.js";
import { download } from "./csv.js";
import { Change } from "./change.js";
import { brief, count, day, many, moment, nusd, percent, roughly, shortDay } from "./formatting.js";
import { go, here, period, to, withQuery, zone } from "./route.js";
import { Empty, Filters, html, Loaded, Money, Share, Table, Tabs, Tile, useData, useState } from "./ui.js";

export const title = "Usage";
export const hasPeriod = true;

// More colours are hard to distinguish.
const SERIES_MAX = 6;
const GROUPS_MAX = 200;
const REST = "Other";
/** Group → [words, page of its link, parameter of the link]. */
const GROUPS = {
  model: ["Model", "requests", "model"], organization: ["Customer", "customers"], project: ["Project", "customers"], key: ["Key", "keys"],
    provider: ["Provider", "requests", "provider"],
  end_user: ["End user", "requests", "end_user"], session: ["Session", "requests", "session"], run: ["Run", "requests", "run"],
};
const OF_OPERATOR = ["cost", "margin", "organization", "project", "key", "provider"];
const TAG = /^tag:[a-z][a-z0-9_.-]{0,31}$/;
const BASES = { usage: "By usage date", booking: "As billed" };

const amount = (name) => (sum) => nusd(sum[`${name}_usd`]);
/** Metric → [words, value of a sum, text of a value]. */
const METRICS = {
  revenue: ["Revenue", amount("charge"), brief], cost: ["Cost", amount("cost"), brief], margin: ["Margin", amount("margin"), brief],
  requests: ["Requests", (sum) => sum.requests, count], input: ["Input tokens", (sum) => sum.input_tokens, count],
    output: ["Output tokens", (sum) => sum.output_tokens, count],
};
const FILTERS = ["organization_id", "project_id", "key_id", "model", "provider", "end_user", "session", "run", "tag"];

export const accepts = {
  ...Object.fromEntries(FILTERS.map((name) => [name, name === "tag" ? (value) => value.includes("=") : true])),
    by: (value) => value in GROUPS || TAG.test(value), metric: Object.keys(METRICS), basis: Object.keys(BASES),
};

const wordsOf = (by) => GROUPS[by]?.[0] ?? `Tag ${by.slice(4)}`;

/** The parameters of the reports for the filters of the URL and of the page. */
export function reportQuery(filters, { first, end }) {
  return { ...Object.fromEntries(FILTERS.map((name) => [name, filters[name]])), from: first, to: end, time_zone: zone(), basis: filters.basis };
}

/** The report of the period; with `compare`, of the one before, too. */
async function load(chosen, by, compare, filters, signal) {
  const bucket = chosen.days <= 2 ? "hour" : "day";
  const query = reportQuery(filters, chosen);
  const [report, before] = await Promise.all([
    ask("v1/usage", { query: { ...query, bucket, group_by: by, limit: GROUPS_MAX, compare: compare ? "previous" : undefined }, signal }),
    compare ? ask("v1/usage", { query: { ...reportQuery(filters, chosen.before), bucket }, signal }) : null,
  ]);
  const without = by.startsWith("tag:") ? "No tag" : `No ${wordsOf(by).toLowerCase()}`;
  const named = report.groups.map((one) => ({ ...one, name: one.name ?? (one.id === null ? without : one.id) }));
  return { ...report, by, rows: report.other ? [...named, { ...report.other, id: "", name: REST, isRest: true }] : named, earlier: before?.buckets };
}

// -- figures

/** The relative change; null: there was nothing before. */
function ratioOf(metric, now, before) {
  const [value, earlier] = [now, before ?? now].map((sum) => Number(METRICS[metric][1](sum)));
  return before && earlier ? (value - earlier) / Math.abs(earlier) : null;
}

function deltaOf(metric, now, before) {
  const ratio = ratioOf(metric, now, before);
  if (ratio === null) return before && Number(METRICS[metric][1](now)) ? "new" : "";
  return `${ratio >= 0 ? "+" : "−"}${percent(Math.abs(ratio))}`;
}

export const Delta = ({ of, before, metric }) => (before && deltaOf(metric, of, before)
  ? html`<span class="delta" title=${`${METRICS[metric][2](METRICS[metric][1](before))} in the period before`}>${deltaOf(metric, of, before)}</span> ` : null);

const lackingOf = (sum) => sum.unknown_cost_requests > 0 && `unknown for ${many(sum.unknown_cost_requests,
  "request")} (${brief(nusd(sum.unknown_cost_charge_usd))} charged)`;
const noCost = (sum) => lackingOf(sum) && !nusd(sum.cost_usd);

/**
 * The figures of a sum as tiles. `before`: the sum of the period before; `sparks`: metric → its course.
 * @param {{of: any, before?: any, operator: boolean, sparks?: Record<string, any>}} options
 */
export function Figures({ of, before, operator, sparks = {} }) {
  const known = nusd(of.charge_usd) - nusd(of.unknown_cost_charge_usd ?? 0);
  const lacking = lackingOf(of);
  const more = (metric, words) => html`<${Delta} of=${of} before=${before} metric=${metric} />${words}`;
  const tokens = of.input_tokens + of.output_tokens;
  return html`<div class="tiles"><${Tile} label=${operator ? "Revenue" : "Charged"} more=${more("revenue", "incl. adjustments")}>
    <${Money} usd=${of.charge_usd} />${sparks.revenue}<//>
    ${operator && html`<${Tile} label="Provider cost" more=${more("cost", lacking)}>
      <${Money} usd=${noCost(of) ? null : of.cost_usd} least=${Boolean(lacking)} why=${lacking} />${sparks.cost}<//>
    <${Tile} label="Margin" more=${more("margin", `${known > 0n ? percent(Number(nusd(of.margin_usd)) / Number(known)) : "–"} of the charge${lacking
      ? " with a known cost" : ""}`)}><${Money} usd=${lacking && !known ? null : of.margin_usd} />${sparks.margin}<//>`}
    ${of.unpriced_requests > 0 && html`<${Tile} label="Unpriced" more="requests without a price, not charged">${count(of.unpriced_requests)}<//>`}
    <${Tile} label="Requests" more=${more("requests", "")}>${count(of.requests)}${sparks.requests}<//>
      <${Tile} label="Tokens" more="input and output"><span title=${count(tokens)}>${roughly(tokens)}</span><//></div>`;
}

const nameOf = (metric, operator) => (metric === "revenue" && !operator ? "Charge" : METRICS[metric][0]);
const tabsOf = (metric, operator) => Object.entries(METRICS).filter(([name]) => operator || !OF_OPERATOR.includes(name)).map(([name]) => [nameOf(name,
  operator), withQuery({ metric: name === "revenue" ? null : name }), name === metric]);

const labelOf = (bucket, at) => (bucket === "hour" ? moment(at, zone()).slice(0, -3) : day(at, zone()));

function Chart({ report, rows, metric, name }) {
  const [, valueOf, words] = METRICS[metric];
  const value = (sum) => Math.max(0, Number(valueOf(sum)));
  const shown = rows.filter((one) => !one.isRest).slice(0, rows.length > SERIES_MAX ? SERIES_MAX - 1 : SERIES_MAX);
  const series = [...shown.map((one) => one.name), ...(rows.length > shown.length ? [REST] : [])];
  const bars = report.buckets.map((bucket, number) => {
    const parts = shown.map((one) => ({ series: one.name, value: value(bucket.groups.find((group) => group.id === one.id) ?? { charge_usd: 0, cost_usd: 0,
      margin_usd: 0, requests: 0, input_tokens: 0, output_tokens: 0 }) }));
    const rest = Math.max(0, value(bucket) - parts.reduce((sum, part) => sum + part.value, 0));
    const at = new Date(bucket.from);
    return {
      label: labelOf(report.bucket, at), brief: report.bucket === "hour" ? moment(at, zone()).slice(-8, -3) : shortDay(at, zone()),
      parts: series.includes(REST) ? [...parts, { series: REST, value: rest }] : parts,
        ...(report.earlier ? { before: value(report.earlier[number] ?? { ...bucket, charge_usd: 0, cost_usd: 0, margin_usd: 0, requests: 0, input_tokens: 0,
        output_tokens: 0 }) } : {}),
    };
  });
  const text = (sum) => (words === brief ? brief(BigInt(Math.round(sum))) : words(Math.round(sum)));
  return html`<figure><figcaption>${name} by ${report.basis === "booking" ? "booking" : "usage"} date (${zone()})</figcaption>
    <${Bars} name=${name} bars=${bars} series=${series} words=${text} />
    <ul class="legend">${series.map((one, number) => html`<li key=${one}><span class=${`swatch s${number}`} />${one}</li>`)}${report.earlier && html`<li>
      <span class="swatch line" />Period before</li>`}</ul></figure>`;
}

// -- tables

function linkOf(by, one) {
  if (one.id === null || one.isRest) return one.name;
  const [, page, field] = GROUPS[by] ?? ["", "requests", "tag"];
  if (page !== "requests") return html`<a href=${to([page, one.id])}>${one.name}</a>`;
  return html`<a href=${to(page, { [field]: by.startsWith("tag:") ? `${by.slice(4)}=${one.name}` : one.name })}>${one.name}</a>`;
}

const perMillion = (sum) => (sum.input_tokens + sum.output_tokens && !sum.unpriced_requests
  ? (nusd(sum.charge_usd) * 1_000_000n) / BigInt(sum.input_tokens + sum.output_tokens) : null);
const shareOf = (metric, total, one) => (Number(METRICS[metric][1](total)) ? Number(METRICS[metric][1](one)) / Number(METRICS[metric][1](total)) : 0);

const columns = ({ by, total }, metric, operator, compare) => [
  { label: wordsOf(by), lead: true, cell: (one) => linkOf(by, one), text: (one) => one.name },
  { label: operator ? "Revenue" : "Charge", usd: (one) => one.charge_usd },
  { label: "Unpriced", number: true, cell: (one) => (one.unpriced_requests ? count(one.unpriced_requests) : ""), text: (one) => one.unpriced_requests,
    hidden: !total.unpriced_requests },
  { label: "Change", number: true, fact: true, cell: (one) => deltaOf(metric, one, one.previous),
    text: (one) => ratioOf(metric, one, one.previous)?.toFixed(4) ?? "", hidden: !compare },
  { label: "Share", number: true, cell: (one) => html`<${Share} part=${shareOf(metric, total, one)} />`,
    text: (one) => shareOf(metric, total, one).toFixed(4) },
  { label: "Cost", usd: (one) => (noCost(one) ? null : one.cost_usd), why: lackingOf, least: (one) => one.unknown_cost_requests > 0, hidden: !operator },
  { label: "Cost unknown", number: true, cell: (one) => (one.unknown_cost_requests
    ? html`<span title=${lackingOf(one)}>${count(one.unknown_cost_requests)}</span>` : ""), text: (one) => one.unknown_cost_requests,
    hidden: !total.unknown_cost_requests },
  { label: "Requests", number: true, fact: true, cell: (one) => count(one.requests), text: (one) => one.requests },
  { label: "Input", number: true, fact: true, cell: (one) => count(one.input_tokens), text: (one) => one.input_tokens },
  { label: "Output", number: true, fact: true, cell: (one) => count(one.output_tokens), text: (one) => one.output_tokens },
  { label: "Per M tokens", usd: perMillion, places: 2 },
];

/** The chart as a table, with its series. */
function Days({ report, rows, metric }) {
  const [, valueOf, words] = METRICS[metric];
  const column = (label, sumOf) => ({ label, ...(words === brief ? { usd: (one) => { const sum = sumOf(one); return sum ? valueOf(sum) : 0n; } }
    : { number: true, cell: (one) => { const sum = sumOf(one); return count(sum ? valueOf(sum) : 0); } }) });
  return html`<details><summary>Show as table</summary><div class="scroll" tabindex="0" role="region" aria-label="By day">
    <${Table} keyOf=${(one) => one.from} rows=${[...report.buckets].reverse()} columns=${[
    { label: `Date (${zone()})`, lead: true, cell: (one) => labelOf(report.bucket, new Date(one.from)) }, column("Total", (one) => one),
    ...rows.filter((one) => !one.isRest).slice(0, SERIES_MAX).map((row) => ({ ...column(row.name, (one) => one.groups.find((group) => group.id === row.id)),
      fact: true })),
  ]} /></div></details>`;
}

function Report({ report, metric, operator, chosen, filters }) {
  const { by } = report;
  const [explained, explain] = useState(false);
  const valueOf = METRICS[metric][1];
  const rows = [...report.rows].sort((one,
    other) => Number(Boolean(one.isRest)) - Number(Boolean(other.isRest)) || Number(valueOf(other)) - Number(valueOf(one)));
  const shown = columns(report, metric, operator, Boolean(report.earlier)).filter((one) => !one.hidden);
  return html`<${Figures} of=${report.total} before=${report.previous.total} operator=${operator} />
    <${Tabs} label="Metric" of=${tabsOf(metric, operator)}><button type="button" class="push" aria-expanded=${String(explained)}
      onClick=${() => explain(!explained)}>Explain change</button><//>
    ${explained && html`<${Change} query=${reportQuery(filters, chosen)} chosen=${chosen} />`}
    <${Chart} report=${report} rows=${rows} metric=${metric} name=${nameOf(metric, operator)} /><${Days} report=${report} rows=${rows} metric=${metric} />
    <div class="row spread"><h2>By ${wordsOf(by).toLowerCase()}</h2>
      <button type="button" onClick=${() => download(shown, rows,
      `tokenweir-usage-${by.replace(":", "-")}-${chosen.first}-${chosen.last}.csv`)}>Download CSV</button></div>
    <${Table} columns=${shown} rows=${rows} keyOf=${(one) => String(one.id)} />
    <p class="quiet small">${report.basis === "booking" ? "As billed: a correction counts when it was booked, as on statements."
      : "By usage date: a correction counts on the day of its request. Statements are as billed: they list it in the month of its booking."}</p>`;
}

// -- the page

/** The fields of the filters, with names for the chips. */
function useFilterFields(query, me) {
  const operator = me.role === "operator";
  const key = useData(async (signal) => (operator && query.key_id ? (await namesOf([query.key_id], signal)).get(query.key_id) : undefined), [query.key_id]);
  const [customers, projects] = [useAccounts("organization", query.organization_id, operator), useAccounts("project", query.project_id, operator)];
  const chip = (label, shown = undefined) => ({ label, chip: true, shown });
  const ofAccounts = operator ? { organization_id: { label: "Customer", ...customers }, project_id: { label: "Project", ...projects } } : {};
  return { ...ofAccounts, key_id: chip("Key", key.data), model: chip("Model"), provider: chip("Provider"), end_user: chip("End user"), session: chip("Session"),
    run: chip("Run"), tag: chip("Tag") };
}

/** What a report can be grouped by: not by what its page fixes. */
function groupsOf(me, fixed, by) {
  const hidden = fixed.model ? ["model"] : fixed.key_id ? ["organization", "project", "key"] : fixed.project_id ? ["organization", "project"]
    : fixed.organization_id ? ["organization"] : [];
  const shown = Object.entries(GROUPS).filter(([name]) => !hidden.includes(name) && (me.role === "operator" || !OF_OPERATOR.includes(name))).map(([name,
    [words]]) => [name, words]);
  return { ...Object.fromEntries(shown), [by]: wordsOf(by) };
}

/**
 * The report with its controls. `fixed`: the filters that the page sets.
 * @param {{me: any, fixed?: Record<string, any>}} options
 */
export function Usage({ me, fixed = {} }) {
  const { query } = here();
  const first = fixed.model ? (me.role === "operator" ? "organization" : "end_user") : "model";
  const [by, metric, compare, chosen] = [query.by ?? first, query.metric ?? "revenue", query.compare === "1", period()];
  /** @type {Record<string, any>} */
  const filters = { ...query, ...fixed };
  const data = useData((signal) => load(chosen, by, compare, filters, signal), [JSON.stringify(filters), chosen.first, chosen.end],
    { keep: `usage ${JSON.stringify(filters)}` });
  const fields = Object.entries(useFilterFields(query, me)).filter(([name]) => !Object.keys(fixed).length || !["organization_id", "project_id",
    "key_id"].includes(name));
  const choice = (label, options) => ({ label, options, required: true });
  return html`<${Filters} fields=${{ by: choice("Group by", groupsOf(me, fixed, by)), ...Object.fromEntries(fields), basis: choice("Corrections", BASES) }}
    values=${{ ...query, by, basis: query.basis ?? "usage" }}
      set=${(changes) => go(withQuery({ ...changes, ...(changes.by === first ? { by: null } : {}), ...(changes.basis === "usage" ? { basis: null } : {}) }))}>
      <label class="check"><input type="checkbox" name="compare" checked=${compare}
        onChange=${(event) => go(withQuery({ compare: event.currentTarget.checked ? "1" : null }))} />Compare with ${shortDay(Date.parse(chosen.before.first),
        "UTC")} – ${shortDay(Date.parse(chosen.before.last), "UTC")}</label><//>
    <${Loaded} of=${data}>${(report) => (report.rows.length ? html`<${Report} report=${report} metric=${metric} operator=${me.role === "operator"}
      chosen=${chosen} filters=${filters} />`
    : html`<${Empty} title=${`No usage in ${many(chosen.days,
      "day")}.`}>Choose a longer period. A request appears here when it is settled, about a second after its end.<//>`)}<//>`;
}

export const Page = Usage;

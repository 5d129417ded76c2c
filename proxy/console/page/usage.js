// Revenue, cost and tokens by day and by group. Invariants: days are those of the chosen zone; sums are whole nUSD; an unknown
// cost is not 0; what is exported is what is shown.

import { buckets, everyAccount, keyNames, projectName } from "./api.js";
import { Bars } from "./chart.js";
import { brief, count, day, exact, many, nusd, percent, shortDay } from "./formatting.js";
import { go, here, period, to, withQuery, zone } from "./route.js";
import { Bar, Empty, Filters, html, Loaded, Money, Table, Tile, useData } from "./ui.js";

export const title = "Usage";
export const hasPeriod = true;

// More colours are hard to distinguish.
const SERIES_MAX = 6;
const REST = "Other";
const GROUPS = { model: "Model", key: "Key", project: "Project", user_id: "End user", session: "Session", run: "Run" };
const TAG = /^tag:[a-z][a-z0-9_.-]{0,31}$/;
/** Metric → [words, value of a sum, text of a value]. */
const METRICS = {
  revenue: ["Revenue", (sum) => sum.charge, brief], cost: ["Cost", (sum) => sum.cost, brief], margin: ["Margin", (sum) => sum.charge - sum.unknownCharge - sum.cost, brief],
  requests: ["Requests", (sum) => sum.requests, count], input: ["Input tokens", (sum) => sum.input, count], output: ["Output tokens", (sum) => sum.output, count],
};
const OF_OPERATOR = ["cost", "margin"];

/** Parameter of the URL → that of the reports. */
const FILTERS = { key_id: "api_key_ids", project: "project_ids", projects: "project_ids", end_user: "user_ids", session: "sessions", run: "runs", tag: "tags" };

export const accepts = { ...Object.fromEntries(Object.keys(FILTERS).filter((name) => name !== "projects").map((name) => [name, true])), by: (value) => value in GROUPS || TAG.test(value), metric: Object.keys(METRICS) };

/** @type {Record<string, any>} */
const NOTHING = { charge: 0n, cost: 0n, unknownCharge: 0n, unpriced: 0, unknown: 0, requests: 0, input: 0, output: 0 };

/** Adds up sums. */
const added = (sums) => sums.reduce((all, one) => Object.fromEntries(Object.keys(NOTHING).map((name) => [name, all[name] + one[name]])), NOTHING);

const ofCosts = (one) => ({
  ...NOTHING, charge: nusd(one.amount.value), unpriced: one.unpriced_requests,
  ...(one.provider_amount ? { cost: nusd(one.provider_amount.value), unknown: one.unknown_cost_requests, unknownCharge: nusd(one.unknown_cost_amount.value) } : {}),
});
const ofUsage = (one) => ({ ...NOTHING, requests: one.num_model_requests, input: one.input_tokens, output: one.output_tokens });

/** The value of a group in a line of a report: its id, or null. */
function groupOf(by, one) {
  if (by === "model") return one.line_item ?? one.model;
  if (by === "key") return one.api_key_id;
  if (by === "project") return one.project_id;
  const found = Object.values(one.dimensions ?? {})[0];
  return found ? found.value ?? `erased ${found.value_id}` : null;
}

const between = ({ first, last }) => `${shortDay(Date.parse(first), "UTC")} – ${shortDay(Date.parse(last), "UTC")}`;

const API_GROUP = { key: "api_key_id", project: "project_id" };

/** Both reports of a time: [{start, groups: id → sum}]. */
async function read({ start, end }, by, filters, signal) {
  const wanted = Object.fromEntries(Object.entries(FILTERS).filter(([name]) => filters[name]).map(([name, parameter]) => [parameter, filters[name]]));
  const query = { ...wanted, start_time: start, end_time: end, time_zone: zone() === "UTC" ? undefined : zone() };
  const [costs, usage] = await Promise.all([
    buckets("v1/organization/costs", { ...query, limit: 180, group_by: by === "model" ? "line_item" : API_GROUP[by] ?? by }, signal),
    buckets("v1/organization/usage/completions", { ...query, limit: 31, group_by: API_GROUP[by] ?? by }, signal),
  ]);
  const found = new Map(costs.map((bucket) => [bucket.start_time, new Map()]));
  const add = (/** @type {any[]} */ list, sumOf) => list.forEach((bucket) => bucket.results.forEach((one) => {
    const [groups, id] = [found.get(bucket.start_time), groupOf(by, one)];
    groups?.set(id, added([groups.get(id) ?? NOTHING, sumOf(one)]));
  }));
  add(costs, ofCosts);
  add(usage, ofUsage);
  return [...found].map(([at, groups]) => ({ start: at, groups }));
}

async function names(by, ids, me, signal) {
  if (me.role === "key") return new Map([[me.key_id, me.key_alias]]);
  if (by === "key") return keyNames(ids, signal);
  if (by !== "project") return new Map();
  const accounts = await everyAccount();
  return new Map(accounts.map((one) => [one.id, projectName(one, accounts)]));
}

/** The report of the period, and of the one before if it is compared. */
async function load(chosen, by, compare, filters, me, signal) {
  const [days, before] = await Promise.all([read(chosen, by, filters, signal), compare ? read(chosen.previous, by, filters, signal) : null]);
  const grouped = (list) => {
    const found = new Map();
    for (const { groups } of list) for (const [id, sum] of groups) found.set(id, added([found.get(id) ?? NOTHING, sum]));
    return found;
  };
  const [all, allBefore] = [grouped(days), before && grouped(before)];
  const known = await names(by, [...all.keys()], me, signal);
  const without = { user_id: "No end user", session: "No session", run: "No run" }[by] ?? (by.startsWith("tag:") ? "No tag" : "Unnamed");
  const rows = [...all].map(([id, sum]) => ({ id, name: id === null ? without : known.get(id) ?? id, sum, before: allBefore?.get(id) ?? (allBefore && NOTHING) }));
  return { by, days, before, rows, total: added([...all.values()]), totalBefore: allBefore && added([...allBefore.values()]) };
}

// -- figures

const change = (now, before) => (Number(before) === 0 ? "new" : `${now >= before ? "+" : "−"}${percent(Math.abs(Number(now) - Number(before)) / Math.abs(Number(before)))}`);
const Delta = ({ of, before, metric }) => before && html`<span class="delta" title=${`${METRICS[metric][2](METRICS[metric][1](before))} in the period before`}>${change(METRICS[metric][1](of), METRICS[metric][1](before))}</span>`;

function Head({ total, totalBefore, operator }) {
  const known = total.charge - total.unknownCharge;
  const margin = known - total.cost;
  const lacking = total.unknown > 0 && `unknown for ${many(total.unknown, "request")} (${brief(total.unknownCharge)} charged)`;
  const delta = (metric) => html` <${Delta} of=${total} before=${totalBefore} metric=${metric} />`;
  return html`<div class="tiles"><${Tile} label=${operator ? "Revenue" : "Charged"} more="incl. adjustments"><${Money} usd=${total.charge} />${delta("revenue")}<//>
    ${operator && html`<${Tile} label="Provider cost" more=${lacking}><${Money} usd=${lacking && total.cost === 0n ? null : total.cost} least=${Boolean(lacking)} why=${lacking} />${delta("cost")}<//>
    <${Tile} label="Margin" more=${`${known > 0n ? percent(Number(margin) / Number(known)) : "–"} of the charge${lacking ? " with a known cost" : ""}`}><${Money} usd=${lacking && !known && !total.cost ? null : margin} />${delta("margin")}<//>`}
    ${total.unpriced > 0 && html`<${Tile} label="Unpriced" more="requests without a price, not charged">${count(total.unpriced)}<//>`}
    <${Tile} label="Requests">${count(total.requests)}${delta("requests")}<//><${Tile} label="Tokens" more="input and output">${count(total.input + total.output)}<//></div>`;
}

function Tabs({ metric, operator }) {
  const shown = Object.entries(METRICS).filter(([name]) => operator || !OF_OPERATOR.includes(name));
  return html`<div class="tabs" role="group" aria-label="Metric">${shown.map(([name, [words]]) => html`<button type="button" key=${name} aria-pressed=${String(name === metric)} onClick=${() => go(withQuery({ metric: name === "revenue" ? null : name }))}>${words}</button>`)}</div>`;
}

function Chart({ report, rows, metric }) {
  const [title, valueOf, words] = METRICS[metric];
  const value = (sum) => Math.max(0, Number(valueOf(sum)));
  const shown = rows.slice(0, rows.length > SERIES_MAX ? SERIES_MAX - 1 : SERIES_MAX);
  const series = [...shown.map((one) => one.name), ...(rows.length > shown.length ? [REST] : [])];
  const place = new Map(shown.map((one) => [one.id, one.name]));
  const bars = report.days.map(({ start, groups }, number) => {
    const values = new Map(series.map((name) => [name, 0]));
    for (const [id, sum] of groups) values.set(place.get(id) ?? REST, (values.get(place.get(id) ?? REST) ?? 0) + value(sum));
    const before = report.before && { before: value(added([...(report.before[number]?.groups.values() ?? [])])) };
    return { label: day(start * 1000, zone()), brief: shortDay(start * 1000, zone()), parts: series.map((name) => ({ series: name, value: values.get(name) })), ...before };
  });
  const text = (amount) => (words === brief ? brief(BigInt(Math.round(amount))) : words(Math.round(amount)));
  return html`<figure><figcaption>${title} by usage date (${zone()})</figcaption><${Bars} name=${title} bars=${bars} series=${series} words=${text} />
    <ul class="legend">${series.map((name, number) => html`<li key=${name}><span class=${`swatch s${number}`} />${name}</li>`)}${report.before && html`<li><span class="swatch line" />Period before</li>`}</ul></figure>`;
}

// -- tables and files

const LINK = { key: ["requests", "key_id"], model: ["requests", "model"], project: ["usage", "project"], user_id: ["requests", "end_user"], session: ["requests", "session"], run: ["requests", "run"] };

function linkOf(by, one) {
  if (one.id === null || String(one.id).startsWith("erased ")) return one.name;
  const [page, field] = LINK[by] ?? ["requests", "tag"];
  return html`<a href=${to(page, { [field]: by.startsWith("tag:") ? `${by.slice(4)}=${one.id}` : one.id })}>${one.name}</a>`;
}

const perMillion = ({ charge, unpriced, input, output }) => (input + output && !unpriced ? (charge * 1_000_000n) / BigInt(input + output) : null);
const lackingOf = ({ unknown, unknownCharge }) => `Unknown for ${many(unknown, "request")} (${brief(unknownCharge)} charged)`;

const columns = (by, total, metric, operator, compare) => [
  { label: GROUPS[by] ?? `Tag ${by.slice(4)}`, lead: true, cell: (one) => linkOf(by, one), text: (one) => one.name },
  { label: operator ? "Revenue" : "Charge", usd: (one) => (one.sum.charge === 0n && one.sum.unpriced > 0 && one.sum.unpriced === one.sum.requests ? null : one.sum.charge), none: () => "no price" },
  { label: "Unpriced", number: true, cell: (one) => (one.sum.unpriced ? count(one.sum.unpriced) : ""), text: (one) => one.sum.unpriced, hidden: total.unpriced === 0 },
  { label: "Change", number: true, fact: true, cell: (one) => html`<${Delta} of=${one.sum} before=${one.before} metric=${metric} />`, text: (one) => change(METRICS[metric][1](one.sum), METRICS[metric][1](one.before)), hidden: !compare },
  { label: "Share", number: true, cell: (one) => { const part = Number(METRICS[metric][1](total)) ? Number(METRICS[metric][1](one.sum)) / Number(METRICS[metric][1](total)) : 0; return html`<span class="share"><${Bar} part=${part} />${percent(part)}</span>`; }, text: (one) => (Number(METRICS[metric][1](total)) ? Number(METRICS[metric][1](one.sum)) / Number(METRICS[metric][1](total)) : 0).toFixed(4) },
  { label: "Cost", usd: (one) => (one.sum.unknown && one.sum.cost === 0n ? null : one.sum.cost), why: (one) => lackingOf(one.sum), least: (one) => one.sum.unknown > 0, hidden: !operator },
  { label: "Cost unknown", number: true, cell: (one) => (one.sum.unknown ? html`<span title=${lackingOf(one.sum)}>${count(one.sum.unknown)}</span>` : ""), text: (one) => one.sum.unknown, hidden: !operator || total.unknown === 0 },
  { label: "Requests", number: true, fact: true, cell: (one) => count(one.sum.requests), text: (one) => one.sum.requests },
  { label: "Input", number: true, fact: true, cell: (one) => count(one.sum.input), text: (one) => one.sum.input },
  { label: "Output", number: true, fact: true, cell: (one) => count(one.sum.output), text: (one) => one.sum.output },
  { label: "Per M tokens", usd: (one) => perMillion(one.sum), places: 2 },
];

/** A cell of a CSV file. A text that a spreadsheet would calculate is prefixed. */
function cell(value) {
  const text = String(value ?? "");
  const safe = /^[=+\-@\t\r]/.test(text) && Number.isNaN(Number(text)) ? `'${text}` : text;
  return /[",\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

function download(shown, rows, name) {
  const plainUsd = (amount) => (amount === null ? "" : exact(amount).replace(/[$,]/g, "").replace("−", "-"));
  const heads = shown.map((one) => (one.usd ? `${one.label} (USD)` : one.label));
  const lines = [heads, ...rows.map((row) => shown.map((one) => (one.usd ? plainUsd(one.usd(row)) : one.text(row))))];
  const url = URL.createObjectURL(new Blob([lines.map((line) => line.map(cell).join(",")).join("\r\n")], { type: "text/csv" }));
  const link = Object.assign(document.createElement("a"), { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** The chart as a table, with its series. */
function Days({ report, rows, metric }) {
  const [, valueOf, words] = METRICS[metric];
  const shown = rows.slice(0, SERIES_MAX);
  const value = (sum) => (words === brief ? { usd: valueOf(sum) } : { number: valueOf(sum) });
  const column = (label, sumOf) => ({ label, ...(words === brief ? { usd: (one) => value(sumOf(one)).usd } : { number: true, cell: (one) => count(value(sumOf(one)).number) }) });
  return html`<details><summary>Show as table</summary><div class="scroll" tabindex="0" role="region" aria-label="By day"><${Table} keyOf=${(one) => one.start} rows=${[...report.days].reverse()} columns=${[
    { label: `Usage date (${zone()})`, lead: true, cell: (one) => day(one.start * 1000, zone()) }, column("Total", (one) => added([...one.groups.values()])),
    ...shown.map((row) => ({ ...column(row.name, (one) => one.groups.get(row.id) ?? NOTHING), fact: true })),
  ]} /></div></details>`;
}

function Report({ report, metric, operator, chosen }) {
  const { by } = report;
  const valueOf = METRICS[metric][1];
  const rows = [...report.rows].sort((one, other) => Number(valueOf(other.sum)) - Number(valueOf(one.sum)));
  const shown = columns(by, report.total, metric, operator, Boolean(report.before)).filter((one) => !one.hidden);
  const file = `tokenweir-usage-${by.replace(":", "-")}-${chosen.first}-${chosen.last}.csv`;
  return html`<${Head} ...${report} operator=${operator} /><${Tabs} metric=${metric} operator=${operator} /><${Chart} report=${report} rows=${rows} metric=${metric} /><${Days} report=${report} rows=${rows} metric=${metric} />
    <div class="row spread"><h2>By ${(GROUPS[by] ?? `tag ${by.slice(4)}`).toLowerCase()}</h2><button type="button" onClick=${() => download(shown, rows, file)}>Download CSV</button></div>
    <${Table} columns=${shown} rows=${rows} keyOf=${(one) => String(one.id)} />
    <p class="quiet small">By usage date: a correction counts on the day of its request. Statements are as billed: they list it in the month of its booking.</p>`;
}

/** The filters that the URL has, as chips with names. */
function useFilterFields(query, me) {
  const found = useData(async (signal) => (me.role === "key" ? {} : {
    project: Object.fromEntries((await everyAccount()).filter((one) => one.kind === "project").map((one, _, all) => [one.id, projectName(one, all)])),
    key: query.key_id && (await keyNames([query.key_id], signal)).get(query.key_id),
  }), [query.key_id]);
  const { project = {}, key } = found.data ?? {};
  const chip = (label, shown) => ({ label, chip: true, shown });
  return { ...(me.role === "operator" ? { project: { label: "Project", options: project } } : {}), key_id: chip("Key", key), end_user: chip("End user"), session: chip("Session"), run: chip("Run"), tag: chip("Tag") };
}

/**
 * The report with its controls. `fixed`: the filters that the page sets.
 * @param {{me: any, fixed?: Record<string, any>}} options
 */
export function Usage({ me, fixed = {} }) {
  const { query } = here();
  const operator = me.role === "operator";
  const all = operator ? GROUPS : Object.fromEntries(Object.entries(GROUPS).filter(([name]) => name !== "key" && name !== "project"));
  const groups = Object.fromEntries(Object.entries(all).filter(([name]) => !((name === "key" || name === "project") && fixed.key_id)));
  const [by, metric, compare] = [query.by ?? "model", query.metric ?? "revenue", query.compare === "1"];
  const chosen = period();
  const filters = { ...query, ...fixed };
  const data = useData((signal) => load(chosen, by, compare, filters, me, signal), [JSON.stringify(filters), chosen.start, chosen.end], { keep: `usage ${JSON.stringify(filters)}` });
  const fields = Object.entries(useFilterFields(query, me)).filter(([name]) => !(name in fixed) && !(name === "project" && (fixed.key_id || fixed.projects)));
  return html`<${Filters} fields=${{ by: { label: "Group by", options: by in groups ? groups : { ...groups, [by]: GROUPS[by] ?? `Tag ${by.slice(4)}` }, required: true }, ...Object.fromEntries(fields) }} values=${{ ...query, by }}
      set=${(changes) => go(withQuery("by" in changes ? { by: changes.by === "model" ? null : changes.by } : changes))}>
      <label class="check"><input type="checkbox" name="compare" checked=${compare} onChange=${(event) => go(withQuery({ compare: event.currentTarget.checked ? "1" : null }))} />Compare with ${between(chosen.previous)}</label><//>
    <${Loaded} of=${data}>${(report) => (report.rows.length ? html`<${Report} report=${report} metric=${metric} operator=${operator} chosen=${chosen} />`
    : html`<${Empty} title=${`No usage in ${many(chosen.days, "day")}.`}>Choose a longer period. A request appears here when it is settled, about a second after its end.<//>`)}<//>`;
}

export const Page = Usage;

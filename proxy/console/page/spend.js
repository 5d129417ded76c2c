// Spend by day, and by model, key or project. Invariants: days are in UTC, as in the ledger; sums are whole nUSD.

import { buckets, everyAccount, everyKey, projectName } from "./api.js";
import { bars } from "./chart.js";
import { el, empty, failure, loading, table, tile } from "./dom.js";
import { brief, count, day, many, money, nusd, percent, shortDay } from "./formatting.js";

export const title = "Spend";

const DAY_S = 86_400;
// More colours are hard to distinguish.
const SERIES_MAX = 6;
const REST = "other";
const BASIS = "By usage date: a correction counts on the day of its exchange. Statements are as billed: they list it in the month of its booking.";
const BY = { model: ["line_item", "model", "Model"], key: ["api_key_id", "api_key_id", "Key"], project: ["project_id", "project_id", "Project"] };

function choices(name, label, options, chosen, change) {
  return el("label", {}, label, el("select", { name, change }, Object.entries(options).map(([value, words]) =>
    el("option", { value, selected: value === chosen }, words))));
}

/** Reads both reports and the names of keys or projects. */
async function read(days, by, { me, signal }) {
  const start_time = (Math.floor(Date.now() / 1000 / DAY_S) - days + 1) * DAY_S;
  const [item, group] = BY[by];
  const operator = me.role === "operator";
  const [costs, usage, keys, accounts] = await Promise.all([
    buckets("v1/organization/costs", { start_time, limit: 180, group_by: item }, signal),
    buckets("v1/organization/usage/completions", { start_time, limit: 31, group_by: group }, signal),
    by === "key" && operator ? everyKey(signal) : [],
    by === "project" && operator ? everyAccount(signal) : [],
  ]);
  /** @type {any} */
  const named = [
    ...keys.map((key) => [key.token, key.key_alias]), ...accounts.map((one) => [one.id, projectName(one, accounts)]),
  ];
  const aliases = new Map(named);
  const name = (id) => aliases.get(id) ?? (id === me.key_id ? me.key_alias : id) ?? "unnamed";
  return { costs, usage, name, item, group };
}

/** Group → {name, charge, cost, unpriced, unknown, unknownCharge, requests, input, output}, highest charge first. */
function summed({ costs, usage, name, item, group }) {
  const groups = new Map();
  const of = (id) => {
    const known = groups.get(id) ?? { id, name: name(id), charge: 0n, cost: 0n, unpriced: 0, unknown: 0, unknownCharge: 0n, requests: 0, input: 0, output: 0 };
    groups.set(id, known);
    return known;
  };
  for (const one of costs.flatMap((bucket) => bucket.results)) {
    const sum = of(one[item]);
    sum.charge += nusd(one.amount.value);
    sum.unpriced += one.unpriced_requests;
    if (!one.provider_amount) continue;
    sum.cost += nusd(one.provider_amount.value);
    sum.unknown += one.unknown_cost_requests;
    sum.unknownCharge += nusd(one.unknown_cost_amount.value);
  }
  for (const one of usage.flatMap((bucket) => bucket.results)) {
    const sum = of(one[group]);
    sum.requests += one.num_model_requests;
    sum.input += one.input_tokens;
    sum.output += one.output_tokens;
  }
  return [...groups.values()].sort((one, other) => (other.charge > one.charge ? 1 : other.charge < one.charge ? -1 : 0));
}

const sum = (groups, name) => groups.reduce((total, one) => total + one[name], 0n);
const quantity = (groups, name) => groups.reduce((total, one) => total + one[name], 0);

/** A charge, and the number of requests without a price, which are not $0. */
function charged({ charge, unpriced }) {
  const lacking = unpriced > 0 && `${count(unpriced)} unpriced`;
  return charge === 0n && lacking ? lacking : [money(charge), lacking && `, ${lacking}`];
}

/** A cost as far as it is known: "≥ $0.0002, unknown for 462 ($0.318 charged)". */
function costOf({ cost, unknown, unknownCharge }) {
  if (!unknown) return money(cost);
  return [cost > 0n && ["≥ ", money(cost), ", "], `unknown for ${count(unknown)}`, unknownCharge > 0n && [" (", money(unknownCharge), " charged)"]];
}

function headline(groups, operator) {
  const all = Object.fromEntries(["charge", "cost", "unknownCharge"].map((name) => [name, sum(groups, name)]));
  const [unpriced, unknown, requests] = ["unpriced", "unknown", "requests"].map((name) => quantity(groups, name));
  const known = all.charge - all.unknownCharge;
  const margin = known > 0n ? percent(Number(known - all.cost) / Number(known)) : "–";
  return el("div", { class: "tiles" },
    tile(operator ? "Revenue" : "Charged", money(all.charge), "by usage date, corrections included"),
    operator && tile("Provider cost", [unknown > 0 && "≥ ", money(all.cost)], unknown > 0 && `unknown for ${many(unknown, "request")} (${brief(all.unknownCharge)} charged)`),
    operator && tile("Margin", money(unknown > 0 && !known && !all.cost ? null : known - all.cost), `${margin} of the charge${unknown > 0 ? " with a known cost" : ""}`),
    unpriced > 0 && tile("Unpriced", count(unpriced), "requests without a price, not charged"),
    tile("Requests", count(requests)), tile("Tokens", count(quantity(groups, "input") + quantity(groups, "output")), "prompt and output"));
}

/** Charges by day. A negative day (corrections only) has no bar. */
function chart({ costs, item }, groups, signal) {
  const shown = groups.slice(0, groups.length > SERIES_MAX ? SERIES_MAX - 1 : SERIES_MAX);
  const place = new Map(shown.map((one) => [one.id, one.name]));
  const series = [...place.values(), ...(groups.length > shown.length ? [REST] : [])];
  const columns = costs.map((bucket) => {
    const values = new Map(series.map((one) => [one, 0]));
    for (const one of bucket.results) {
      const name = place.get(one[item]) ?? REST;
      values.set(name, values.get(name) + Math.max(0, Number(nusd(one.amount.value))));
    }
    const parts = series.map((one) => ({ series: one, value: values.get(one) }));
    return { label: day(bucket.start_time), brief: shortDay(bucket.start_time), parts };
  });
  const words = (value) => brief(BigInt(Math.round(value)));
  return bars({ name: "Charge by usage date (UTC)", bars: columns, series, words, signal });
}

function share(one, all) {
  const bar = el("span", { class: "share", "aria-hidden": "true" }, el("span", {}));
  const part = all > 0n ? Number(one.charge) / Number(all) : 0;
  bar.firstChild.style.width = `${Math.max(0, Math.min(1, part)) * 100}%`;
  return [bar, el("span", { class: "figure" }, percent(part))];
}

function ranking(groups, by, operator) {
  const all = sum(groups, "charge");
  const [view, field] = { key: ["exchanges", "key_id"], model: ["exchanges", "model"], project: ["keys", "project"] }[by];
  const link = (one) => (one.id === null ? one.name : el("a", { href: `#/${view}?${new URLSearchParams({ [field]: one.id })}` }, one.name));
  return table({ caption: `By ${BY[by][2].toLowerCase()}`, rows: groups, columns: [
    { label: BY[by][2], long: true, cell: link },
    { label: "Charge", number: true, cell: charged },
    { label: "Share", number: true, cell: (one) => share(one, all) },
    { label: "Cost", number: true, hidden: !operator, cell: costOf },
    { label: "Requests", number: true, cell: (one) => count(one.requests) },
    { label: "Prompt tokens", number: true, cell: (one) => count(one.input) },
    { label: "Output tokens", number: true, cell: (one) => count(one.output) },
  ] });
}

/** The chart as a table. */
function days({ costs }) {
  const rows = [...costs].reverse();
  const sums = (bucket) => ({ charge: bucket.results.reduce((total, one) => total + nusd(one.amount.value), 0n), unpriced: quantity(bucket.results, "unpriced_requests") });
  return el("details", {}, el("summary", {}, "Show as table"), table({ caption: "By day", rows, columns: [
    { label: "Usage date (UTC)", cell: (bucket) => day(bucket.start_time) },
    { label: "Charge", number: true, cell: (bucket) => charged(sums(bucket)) },
  ] }));
}

/** The URL holds days and grouping, so that the view can be bookmarked. */
export async function show(body, { me, signal, query }) {
  const chosen = { days: query.get("days") ?? "30", by: query.get("by") in BY ? query.get("by") : "model" };
  const change = (event) => {
    chosen[event.target.name] = event.target.value;
    history.replaceState(null, "", `#/spend?${new URLSearchParams(chosen)}`);
    fill();
  };
  const found = el("div", {}, loading());
  body.replaceChildren(el("form", { class: "filters" },
    choices("days", "Period", { 7: "7 days", 30: "30 days", 90: "90 days" }, chosen.days, change),
    me.role === "operator" && choices("by", "Group by", { model: "model", key: "key", project: "project" }, chosen.by, change)), found);
  let asked = 0;
  async function fill() {
    const mine = (asked += 1);
    try {
      const report = await read(Number(chosen.days) || 30, chosen.by, { me, signal });
      if (mine !== asked || signal.aborted) return;
      const groups = summed(report);
      if (!groups.length) {
        found.replaceChildren(empty(`No spend in the last ${many(report.costs.length, "day")}.`, "An exchange appears here when it is settled, about a second after its end."));
        return;
      }
      const operator = me.role === "operator";
      found.replaceChildren(headline(groups, operator), el("p", { class: "quiet small" }, BASIS), chart(report, groups, signal), days(report), ranking(groups, chosen.by, operator));
    } catch (error) {
      if (!signal.aborted) found.replaceChildren(failure(error, fill));
    }
  }
  await fill();
}

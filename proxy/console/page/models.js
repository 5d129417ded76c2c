// Models with their prices, costs and margins. Invariant: an unknown price or cost is no $0.

import { ask } from "./api.js";
import { count, exact, many, nusd, percent, plain } from "./formatting.js";
import { reprice } from "./reprice.js";
import { here, to, withQuery } from "./route.js";
import { Back, Empty, html, Loaded, Money, Pairs, Status, Table, Tabs, Time, useData } from "./ui.js";
import { accepts as usageAccepts, Usage } from "./usage.js";

export const title = "Models & prices";
export const operator = true;
const SHOWN = { all: "All", unpriced: "Unpriced", unknown: "Cost unknown" };
export const accepts = { show: Object.keys(SHOWN) };

const HIDDEN = new Set(["version", "multipliers", "stated", "from", "until"]);
const SOURCES = { configuration: "configuration", price_book: "built-in price book" };
const isIn = { all: () => true, unpriced: (one) => one.is_unpriced || one.unpriced_requests > 0,
  unknown: (one) => one.is_cost_unknown || one.unknown_cost_requests > 0 };

const useModels = () => useData(async (signal) => (await ask("v1/models", { signal })).data, [], { keep: "models" });
const isRate = ([name, value]) => !HIDDEN.has(name) && (typeof value === "string" || typeof value === "number") && !Number.isNaN(Number(value));
const rate = (prices, unit) => (prices?.[unit] === undefined ? null : nusd(prices[unit]));
const best = (one) => one.targets[0];

function Margin({ of: one }) {
  const parts = ["input", "output"].map((unit) => best(one)?.margins[unit]).filter((part) => part !== undefined).map(Number);
  if (!parts.length) return html`<span class="quiet" title="The price or the cost is unknown">—</span>`;
  const least = Math.min(...parts);
  return html`<span class=${least < 0 ? "bad-text" : ""} title=${`Input ${percent(parts[0])}${parts.length > 1 ? `, output ${percent(parts[1])}` : ""}`}>
    ${percent(least)}</span>`;
}

const State = ({ of: one }) => (!one.is_configured ? html`<${Status} name="not_configured" />` : one.is_unpriced ? html`<${Status} name="no_price" />`
  : one.is_cost_unknown ? html`<${Status} name="cost_unknown" />` : one.is_pattern ? "Pattern" : "");
/** A price with all its digits. */
const Rate = ({ prices, unit, why }) => (rate(prices, unit) === null ? html`<span class="quiet" title=${why}>—</span>`
  : html`<span class="figure">${exact(rate(prices, unit))}</span>`);
const price = (unit) => ({ number: true, cell: (one) => html`<${Rate} prices=${one.price} unit=${unit} why="No price" />` });
const cost = (unit, costsOf = (one) => best(one)?.cost) => ({ number: true,
  cell: (one) => html`<${Rate} prices=${costsOf(one)} unit=${unit} why="The cost is unknown" />` });

const columns = [
  { label: "Model", lead: true, cell: (one) => html`<a href=${to(["models", one.model])}>${one.model}</a>` },
  { label: "Price in", ...price("input") }, { label: "Price out", fact: true, ...price("output") },
  { label: "Cost in", ...cost("input") }, { label: "Cost out", ...cost("output") },
  { label: "Margin", number: true, fact: true, cell: (one) => html`<${Margin} of=${one} />` },
  { label: "State", fact: true, cell: (one) => html`<${State} of=${one} />` },
  { label: "Next change", cell: (one) => (one.next_change ? html`<${Time} at=${one.next_change.at} dateOnly />` : "") },
  { label: "Requests, 30 days", number: true, cell: (one) => count(one.requests) },
  { label: "Revenue, 30 days", usd: (one) => one.charge_usd },
];

const repriceable = (every) => every.filter((one) => !one.is_pattern).map((one) => one.model);

export function Page({ me }) {
  const show = here().query.show ?? "all";
  const data = useModels();
  return html`<${Tabs} label="Models" of=${Object.entries(SHOWN).map(([name, words]) => [words, withQuery({ show: name === "all" ? null : name }),
    name === show])}><button type="button" class="push" disabled=${!data.data} onClick=${() => reprice(repriceable(data.data), [], me, data.again)}>
    Reprice past requests</button><//>
    <${Loaded} of=${data}>${(every) => {
    const rows = every.filter(isIn[show]);
    return rows.length ? html`<${Table} caption=${`${many(rows.length,
      "model")}. Prices and costs in USD per million tokens; the cost is that of the first provider`} columns=${columns} rows=${rows}
      keyOf=${(one) => one.model} open=${(one) => to(["models", one.model])} />
      <p class="quiet small">Prices are in the configuration.</p>`
        : html`<${Empty} title=${show === "all" ? "No models." : "None: all is known."}>Models are in the configuration, under models.<//>`;
  }}<//>`;
}

// -- one model

const Prices = ({ of, none }) => (of ? html`<${Pairs} of=${Object.entries(of).filter(isRate).map(([name, value]) => [plain(name), exact(nusd(value))])} />`
  : html`<p class="quiet">${none}</p>`);

const targets = [
  { label: "Provider", lead: true, cell: (one) => html`<a href=${to(["providers", one.provider])}>${one.provider}</a>` },
    { label: "Provider model", fact: true, cell: (one) => one.upstream_model },
  ...["input", "cached_input", "output"].map((unit) => ({ label: `Cost ${plain(unit)}`, ...cost(unit, (one) => one.cost) })),
  ...["input", "output"].map((unit) => ({ label: `Margin ${unit}`, number: true, fact: true,
    cell: (one) => (one.margins[unit] === undefined ? "—" : percent(Number(one.margins[unit]))) })),
  { label: "From", cell: (one) => SOURCES[one.cost_source] },
];

const changes = [
  { label: "From", lead: true, cell: (one) => html`<${Time} at=${one.at} />` },
    { label: "Of", fact: true, cell: (one) => (one.of === "price" ? "Price" : `Cost of ${one.provider}`) },
  { label: "Prices, USD", fact: true, cell: (one) => Object.entries(one.prices).filter(isRate).map(([name, value]) => `${plain(name)} ${value}`).join(", ") },
];

function One({ me, id }) {
  const data = useModels();
  return html`<${Back} page="models">Models & prices<//><${Loaded} of=${data}>${(every) => {
    const one = every.find((row) => row.model === id);
    if (!one) return html`<${Empty} title="There is no model with this name."><a href=${to("models")}>Show all models</a>.<//>`;
    return html`<div class="headline"><div class="big">${one.model}</div><${State} of=${one} />
      <div class="row push"><a class="button" href=${to("requests", { model: one.model })}>Requests</a>
        ${!one.is_pattern && html`<button type="button" onClick=${() => reprice(repriceable(every), [id], me, data.again)}>Reprice past requests</button>`}</div></div>
      <div class="cards"><section class="card"><h2>Price, USD</h2><${Prices} of=${one.price} none="No price: requests are not charged." />
        <p class="quiet small">
        ${one.price && `From the ${SOURCES[one.price_source]}. Tokens are per million.`}${one.pattern && ` Configured as ${one.pattern}.`}${one.has_rules && " Price rules change it for some customers."}</p></section>
      <section class="card"><h2>Last 30 days</h2><${Pairs} of=${[["Revenue", html`<${Money} usd=${one.charge_usd} />`],
        ["Provider cost", html`<${Money} usd=${one.unknown_cost_requests && !nusd(one.cost_usd) ? null : one.cost_usd} least=${one.unknown_cost_requests > 0}
        />`], ["Requests", count(one.requests)], ["Not charged", one.unpriced_requests > 0 && count(one.unpriced_requests)],
        ["Cost unknown for", one.unknown_cost_requests > 0 && many(one.unknown_cost_requests, "request")]]} /></section></div>
      ${one.targets.length > 0 && html`<h2 class="apart">Providers</h2>
        <${Table} columns=${targets} rows=${one.targets} keyOf=${(row) => `${row.provider} ${row.upstream_model}`} />`}
      ${one.changes.length > 0 && html`<h2 class="apart">Price changes to come</h2>
        <${Table} columns=${changes} rows=${one.changes} keyOf=${(row) => `${row.at} ${row.of} ${row.provider}`} />`}
      ${!one.is_pattern && html`<h2 class="apart">Usage</h2><${Usage} me=${me} fixed=${{ model: one.model }} />`}`;
  }}<//>`;
}
export const one = { title: "Model", Page: One, hasPeriod: true, accepts: usageAccepts };

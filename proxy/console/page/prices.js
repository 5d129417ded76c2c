// The prices that the key of the session pays. Invariant: what is shown is in the key's own answer; no provider, no cost.

import { ask } from "./api.js";
import { count, exact, many, nusd, plain } from "./formatting.js";
import { go, here, to, withQuery } from "./route.js";
import { Empty, Filters, html, Loaded, Pages, Table, useData } from "./ui.js";

export const title = "Prices";
export const ofKeys = true;
export const accepts = { q: true, page: (value) => /^[1-9]\d{0,4}$/.test(value) };

const PAGE = 50;
const TOKENS = ["input", "cached_input", "output"];

const text = (usd) => exact(nusd(usd));
const listed = (usd, without = {}) => Object.entries(usd).filter(([unit, value]) => without[unit] !== value).map(([unit,
  value]) => `${plain(unit)} ${text(value)}`).join(", ");
const others = (one) => Object.fromEntries(Object.entries(one.usd ?? {}).filter(([unit]) => !TOKENS.includes(unit)));

/** What can make the price another one. */
const terms = (one) => [
  one.is_stated && "the provider states the price of each answer",
  ...one.long_prompts.map((each) => `above ${count(each.above_prompt_tokens)} prompt tokens: ${listed(each.usd, one.usd)}`),
  ...Object.entries(one.served_as).map(([fact, usd]) => `${fact.replace(":", " ")}: ${listed(usd, one.usd)}`),
  ...one.other_usd.map((usd) => `if another provider answers: ${listed(usd, one.usd ?? {})}`),
].filter(Boolean);

const token = (unit) => ({ number: true, cell: (one) => (one.usd?.[unit] === undefined ? html`<span class="quiet" title="No price">—</span>`
  : html`<span class="figure">${text(one.usd[unit])}</span>`) });

const columns = (rows) => [
  { label: "Model", lead: true, cell: (one) => one.model },
  { label: "Input", fact: true, ...token("input") }, { label: "Cached input", fact: true, ...token("cached_input") }, { label: "Output", fact: true, ...token("output") },
  { label: "Other units", fact: true, cell: (one) => listed(others(one)), hidden: !rows.some((one) => listed(others(one))) },
  { label: "Other terms", fact: true, hidden: !rows.some((one) => terms(one).length), cell: (one) => html`<div class="limits">${terms(one).map((each) => html`<div key=${each}>${each}</div>`)}</div>` },
];

export function Page() {
  const { q = "", page = "1" } = here().query;
  const data = useData(async (signal) => (await ask("v1/me/prices", { signal })).data, [], { keep: "prices" });
  return html`<${Filters} fields=${{ q: { label: "Search", hint: "Search by model" } }} values=${{ q }}
    set=${(changes) => go(withQuery({ page: null, ...changes }))} />
    <${Loaded} of=${data}>${(every) => {
    const rows = every.filter((one) => one.model.toLowerCase().includes(q.toLowerCase()));
    const [at, pages] = [Number(page), Math.ceil(rows.length / PAGE)];
    const shown = rows.slice((at - 1) * PAGE, at * PAGE);
    return rows.length ? html`<${Table} caption=${`${many(rows.length, "model")}. USD per million tokens`} columns=${columns(shown)}
      rows=${shown} keyOf=${(one) => one.model} />
      <${Pages} page=${at} pages=${pages} total=${rows.length} word="models" set=${(next) => go(withQuery({ page: next }))} />
      <p class="quiet small">These are the prices of requests that begin now. The price of a past request is in its receipt.</p>`
      : html`<${Empty} title=${every.length ? "No match." : "No models."}><a href=${to("prices")}>Show all models</a>.<//>`;
  }}<//>`;
}

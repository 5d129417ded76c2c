// Spent and reserved amounts of budgets. Invariant: reservations of running requests are shown apart from spend.

import { ask } from "./api.js";
import { count, many, nusd, percent } from "./formatting.js";
import { Grants } from "./grants.js";
import { canRaise, RaiseForm } from "./limit_forms.js";
import { RuleLimits } from "./limits.js";
import { go, here, to, withQuery } from "./route.js";
import { Empty, Filters, html, Loaded, Menu, openDialog, Share, Status, Table, Tabs, Time, toast, useData } from "./ui.js";

export const title = "Budgets";
export const accepts = { q: true, show: ["rules", "grants"] };

const EVERY_S = 10;
const WINDOWS = { none: "No reset", credit: "Prepaid balance", calendar_hour: "Hour", calendar_day: "Day", calendar_week: "Week", calendar_month: "Month" };
const KINDS = { organization: "Customer", project: "Project", key: "Key", limit: "Limit" };

const ratio = (part, whole) => (whole <= 0n ? 1 : Number(part) / Number(whole));
const amount = (one, name) => nusd(one[`${name}_usd`]);
const left = (one) => amount(one, "budget") - amount(one, "spent") - amount(one, "held");
const spent = (one) => ratio(amount(one, "spent"), amount(one, "budget"));
const valuesOf = (one) => Object.values(one.dimensions).map((each) => each.value ?? each.value_id).join(", ");
const nameOf = (one) => `${one.name}${valuesOf(one) && `: ${valuesOf(one)}`}`;
const linkOf = (one) => ({ key: to(["keys", one.scope_id]), project: to(["customers", one.scope_id]),
  organization: to(["customers", one.scope_id]) }[one.scope_kind]);

function Used({ of: one }) {
  const part = spent(one);
  const held = ratio(amount(one, "held"), amount(one, "budget"));
  return html`<${Share} part=${part} held=${held} label=${`Budget of ${nameOf(one)}: ${percent(part)} spent${amount(one, "held") > 0n
    ? `, ${percent(held)} reserved` : ""}`} />`;
}

/** A window that has ended and was not used again has no next reset. */
const Resets = ({ of: one }) => (one.isUnused ? html`<span class="quiet">not used yet</span>` : !one.window_end ? WINDOWS[one.window] ?? one.window
  : new Date(one.window_end) < new Date() ? "at the next request" : html`<${Time} at=${one.window_end} />`);

const raise = (one, again) => openDialog(html`<${RaiseForm} kind=${one.scope_kind} id=${one.scope_id} name=${one.name}
  done=${() => (toast(`The budget of ${one.name} is raised.`), again())} />`);

const columns = (me, again) => [
  { label: "Budget of", lead: true, cell: (one) => html`${me.role === "operator" && linkOf(one) ? html`<a href=${linkOf(one)}>${nameOf(one)}</a>`
    : nameOf(one)}` },
  { label: "Kind", fact: true, cell: (one) => `${KINDS[one.scope_kind] ?? "Limit"}${one.window === "credit" ? ", prepaid" : ""}` },
  { label: "Used", amount: true, number: true, cell: (one) => html`<${Used} of=${one} />` },
  { label: "Spent", usd: (one) => one.spent_usd },
  { label: "Reserved", usd: (one) => one.held_usd },
  { label: "Left", usd: (one) => (left(one) > 0n ? left(one) : 0n), fact: true },
  { label: "Budget", usd: (one) => one.budget_usd },
  { label: "Resets", fact: true, cell: (one) => html`<${Resets} of=${one} />` },
  { label: "Status", fact: true, cell: (one) => (spent(one) >= 1 ? html`<span title=${one.window === "credit" ? "Requests are rejected until credit is added."
    : "Requests are rejected until the budget resets or is raised."}><${Status} name="exhausted" /></span>` : spent(one) >= 0.8
    ? html`<${Status} name="above_80_%" />` : "") },
  { label: "Running", number: true, cell: (one) => (one.running ? count(one.running) : "") },
  { label: "Actions", menu: true, hidden: me.role === "key" || me.may === "read",
    cell: (one) => canRaise(one.scope_kind) && html`<${Menu} label=${`Actions for the budget of ${nameOf(one)}`} of=${[
    one.window !== "credit" && { label: "Raise for a time", act: () => raise(one, again) }, { label: "Limits and usage", href: linkOf(one) }]} />` },
];

const UNUSED_PAGES_MAX = 5;

/** Budgets of keys and accounts that no request has used yet look like those that are used. */
async function everyLimit(signal) {
  const found = [];
  for (let page = 1, total = 1; page <= UNUSED_PAGES_MAX && (page - 1) * 100 < total; page += 1) {
    const answer = await ask("limit/list", { query: { all: true, page, size: 100 }, signal });
    total = answer.total_count;
    found.push(...answer.limits);
  }
  return found.filter((one) => one.kind !== "rule" && one.max_budget_usd !== null)
    .map((one) => ({ scope_id: one.scope_id, scope_kind: one.kind, name: one.name, dimensions: {}, window: one.budget_duration ?? "none", window_end: null,
      budget_usd: one.max_budget_usd, spent_usd: "0", held_usd: "0", used_ratio: 0, running: 0, isUnused: true }));
}

/** Fullest budgets first; refreshed until the page is left. */
function Budgets({ me }) {
  const { query } = here();
  const data = useData(async (signal) => (await ask("v1/budgets", { signal })).data.sort((one, other) => other.used_ratio - one.used_ratio), [],
    { every: EVERY_S, keep: "budgets" });
  const limits = useData((signal) => (me.role === "operator" ? everyLimit(signal) : Promise.resolve([])), []);
  return html`${(data.data?.length ?? 0) > 5 && html`<${Filters} fields=${{ q: { label: "Name", hint: "Search by name" } }} values=${query}
    set=${(changes) => go(withQuery(changes))} />`}
    <${Loaded} of=${data}>${(used) => {
    const known = new Set(used.filter((one) => one.window !== "credit").map((one) => one.scope_id));
    const every = [...used, ...(limits.data ?? []).filter((one) => !known.has(one.scope_id))];
    const rows = every.filter((one) => !query.q || nameOf(one).toLowerCase().includes(query.q.toLowerCase()));
    if (!every.length) return html`<${Empty} title="No budgets yet.">
      ${me.role === "operator" ? html`Set a budget under <a href=${to("keys")}>Keys</a>.` : "Your key has no budget, or has not been used yet."}<//>`;
    return html`<${Table} caption=${`${many(rows.length, "budget")}, fullest first`} columns=${columns(me, () => (data.again(), limits.again()))} rows=${rows}
      keyOf=${(one) => `${one.scope_id} ${one.window} ${valuesOf(one)}`} />
      <p class="quiet small">Spend is by usage date, corrections included. Alerts are sent at 50, 80 and 100 %${every.some((one) => one.window === "credit")
        ? ", but not for prepaid credit" : ""}. Updated every ${count(EVERY_S)} seconds.</p>`;
  }}<//>`;
}

const VIEWS = { rules: RuleLimits, grants: Grants };

export function Page({ me }) {
  const { show } = here().query;
  const View = VIEWS[show] ?? Budgets;
  const tab = (words, name) => [words, to("budgets", { show: name }), (show ?? null) === name];
  return html`${me.role === "operator" && html`<${Tabs} label="Limits" of=${[tab("Budgets", null), tab("Limits by rule", "rules"), tab("Grants", "grants")]}
    />`}<${View} me=${me} />`;
}

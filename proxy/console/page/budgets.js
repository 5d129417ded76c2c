// Spent and reserved amounts of budgets. Invariants: reservations of running requests are shown apart from spend; the server
// searches, orders and pages.

import { ask } from "./api.js";
import { count, many, nusd, percent } from "./formatting.js";
import { Grants } from "./grants.js";
import { canRaise, RaiseForm } from "./limit_forms.js";
import { RuleLimits } from "./limits.js";
import { go, here, to, withQuery } from "./route.js";
import { Empty, Filters, html, Loaded, Menu, openDialog, Pages, Share, Status, Table, Tabs, Time, toast, useData } from "./ui.js";

export const title = "Budgets";
const STATUSES = { exhausted: "Exhausted", nearly_exhausted: "80 % or more spent", active: "Active" };
export const accepts = { q: true, show: ["rules", "grants"], kind: ["organization", "project", "key", "rule"], status: Object.keys(STATUSES),
  sort: ["budget", "spend", "name"], order: ["asc", "desc"], page: (value) => /^[1-9]\d{0,4}$/.test(value) };

const EVERY_S = 10;
const PAGE = 50;
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
const Resets = ({ of: one }) => (!one.window_end ? WINDOWS[one.window] ?? one.window
  : new Date(one.window_end) < new Date() ? "at the next request" : html`<${Time} at=${one.window_end} />`);

const raise = (one, again) => openDialog(html`<${RaiseForm} kind=${one.scope_kind} id=${one.scope_id} name=${one.name}
  done=${() => (toast(`The budget of ${one.name} is raised.`), again())} />`);

const columns = (me, again) => [
  { label: "Budget of", lead: true, sort: "name", cell: (one) => html`${me.role === "operator" && linkOf(one) ? html`<a href=${linkOf(one)}>${nameOf(one)}</a>`
    : nameOf(one)}` },
  { label: "Kind", fact: true, cell: (one) => `${KINDS[one.scope_kind] ?? "Limit"}${one.window === "credit" ? ", prepaid" : ""}` },
  { label: "Used", amount: true, number: true, sort: "budget", cell: (one) => html`<${Used} of=${one} />` },
  { label: "Spent", sort: "spend", usd: (one) => one.spent_usd },
  { label: "Reserved", usd: (one) => one.held_usd },
  { label: "Left", usd: (one) => (left(one) > 0n ? left(one) : 0n), fact: true },
  { label: "Budget", usd: (one) => one.budget_usd },
  { label: "Resets", fact: true, cell: (one) => html`<${Resets} of=${one} />` },
  { label: "Status", fact: true, cell: (one) => (one.status === "exhausted" ? html`<span title=${one.window === "credit" ? "Requests are rejected until credit is added."
    : "Requests are rejected until the budget resets or is raised."}><${Status} name="exhausted" /></span>` : one.status === "nearly_exhausted"
    ? html`<${Status} name="above_80_%" />` : "") },
  { label: "Running", number: true, cell: (one) => (one.running ? count(one.running) : "") },
  { label: "Actions", menu: true, hidden: me.role === "key" || me.may === "read",
    cell: (one) => canRaise(one.scope_kind) && html`<${Menu} label=${`Actions for the budget of ${nameOf(one)}`} of=${[
    one.window !== "credit" && { label: "Raise for a time", act: () => raise(one, again) }, { label: "Limits and usage", href: linkOf(one) }]} />` },
];

/** The page of the list, in the wanted order; refreshed until the page is left. */
function Budgets({ me }) {
  const { query } = here();
  const { q, kind, status, sort, order, page } = query;
  const wanted = { q, kind, status, sort, order, page, size: PAGE };
  const data = useData((signal) => ask("v1/budgets", { query: wanted, signal }), [JSON.stringify(wanted)],
    { every: EVERY_S, keep: `budgets ${JSON.stringify(wanted)}` });
  const set = (changes) => go(withQuery({ page: null, ...changes }));
  const order_ = { by: sort ?? "budget", falling: (order ?? (sort === "name" ? "asc" : "desc")) === "desc",
    set: (name, falling) => set({ sort: name, order: falling ? "desc" : "asc" }) };
  const isFiltered = q || kind || status;
  return html`${me.role === "operator" && html`<${Filters} values=${query} set=${set} fields=${{ q: { label: "Search", hint: "Name, id or end user" },
    kind: { label: "Kind", options: { organization: "Customers", project: "Projects", key: "Keys", rule: "Limits by rule" } },
    status: { label: "Status", options: STATUSES } }} />`}
    <${Loaded} of=${data}>${({ data: rows, total_count: total, total_pages: pages, current_page: at }) => (rows.length
    ? html`<${Table} caption=${many(total, "budget")} columns=${columns(me, data.again)} rows=${rows} sort=${order_}
      keyOf=${(one) => `${one.scope_id} ${one.window} ${valuesOf(one)}`} />
      <${Pages} page=${at} pages=${pages} total=${total} word="budgets" set=${(next) => go(withQuery({ page: next }))} />
      <p class="quiet small">Spend is by usage date, corrections included. Alerts are sent at 50, 80 and 100 %${rows.some((one) => one.window === "credit")
        ? ", but not for prepaid credit" : ""}. Updated every ${count(EVERY_S)} seconds.</p>`
    : isFiltered ? html`<${Empty} title="No match."><a href=${to("budgets")}>Show all budgets</a>.<//>` : html`<${Empty} title="No budgets yet.">
      ${me.role === "operator" ? html`Set a budget under <a href=${to("keys")}>Keys</a>.` : "Your key has no budget."}<//>`)}<//>`;
}

const VIEWS = { rules: RuleLimits, grants: Grants };

export function Page({ me }) {
  const { show } = here().query;
  const View = VIEWS[show] ?? Budgets;
  const tab = (words, name) => [words, to("budgets", { show: name }), (show ?? null) === name];
  return html`${me.role === "operator" && html`<${Tabs} label="Limits" of=${[tab("Budgets", null), tab("Limits by rule", "rules"), tab("Grants", "grants")]}
    />`}<${View} me=${me} />`;
}

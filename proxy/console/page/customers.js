// Customers (organizations) and their projects. Invariant: usage of a project counts for its customer, too.

import { accountOf, ask, changed, post } from "./api.js";
import { count, many, nusd } from "./formatting.js";
import { BudgetUse } from "./keys.js";
import { GrantForm } from "./grants.js";
import { AccountForm, KINDS, Limits, limitTexts, takesCredit, topUp } from "./limit_forms.js";
import { go, here, to, withQuery } from "./route.js";
import { Back, Confirm, Empty, Filters, html, Loaded, Menu, Money, openDialog, Pages, Pairs, Status, Table, Time, toast, useData } from "./ui.js";
import { accepts as usageAccepts, Usage } from "./usage.js";

export const title = "Customers";
export const operator = true;

const STATUSES = { active: "Active", exhausted: "Exhausted", blocked: "Blocked" };
const PAGE = 50;
export const accepts = { q: true, status: Object.keys(STATUSES), sort: ["created", "name", "spend", "budget"], order: ["asc", "desc"],
  page: (value) => /^[1-9]\d{0,4}$/.test(value) };


function block(one, again) {
  const act = async () => {
    await post(one.blocked ? "account/unblock" : "account/block", { account: one.id });
    toast(`${one.name} is ${one.blocked ? "unblocked" : "blocked"}.`);
    again();
  };
  const words = one.blocked ? "Requests of its keys are accepted again at once, unless the key, its project or its customer is still blocked."
    : `Requests of every key of this ${KINDS[one.kind]} are rejected until you unblock it. Running requests continue.`;
  openDialog(html`<${Confirm} title=${`${one.blocked ? "Unblock" : "Block"} ${one.name}?`} label=${one.blocked ? "Unblock" : "Block"} act=${act}>${words}<//>`);
}

function Actions({ of: one, me, again }) {
  return html`<${Menu} label=${`Actions for ${KINDS[one.kind]} ${one.name}`} of=${[
    { label: "Edit", act: () => openDialog(html`<${AccountForm} one=${one} kind=${one.kind} done=${() => (toast(`${one.name} is changed.`), again())} />`) },
    me.may === "admin" && takesCredit(one) && { label: "Top up", act: () => topUp(one.name, one, { account: one.id },
      (paid) => (toast(`$${paid.usd} credit added for ${one.name}.`), again())) },
    me.may === "admin" && { label: "Grant credit", act: () => openDialog(html`<${GrantForm} named=${{ account: one.id }} name=${one.name}
      done=${(grant) => (toast(`${grant.name} is granted.`), again())} />`) },
    { label: one.blocked ? "Unblock" : "Block", danger: !one.blocked, act: () => block(one, again) },
  ]} />`;
}

const columns = (me, again, word) => [
  { label: word, lead: true, sort: "name", cell: (one) => html`<a href=${to(["customers", one.id])}>${one.name}</a>` },
  { label: "Status", fact: true, cell: (one) => html`<${Status} name=${one.status} />` },
  { label: "Keys", number: true, cell: (one) => count(one.keys) },
  { label: "Budget used", fact: true, sort: "budget", cell: (one) => html`<${BudgetUse} of=${one.budget_use} label=${one.name} />` },
  { label: "Spend, all time", sort: "spend", usd: (one) => one.spend_usd },
  { label: "Limits", fact: true, cell: (one) => html`<${Limits} of=${one} />` },
  { label: "Actions", menu: true, cell: (one) => html`<${Actions} of=${one} me=${me} again=${again} />`, hidden: me.may === "read" },
];

const create = (kind, organizations, again) => openDialog(html`<${AccountForm} kind=${kind} organizations=${organizations}
  done=${(one) => (toast(`${one.name} is created.`), again())} />`);

/** The charge of the whole month, if it goes on as until now. */
function forecast({ from, to: until, total }) {
  const [begin, now] = [new Date(from), new Date(until)];
  const end = Date.UTC(begin.getUTCFullYear(), begin.getUTCMonth() + 1);
  return (nusd(total.charge_usd) * BigInt(end - Number(begin))) / BigInt(Math.max(1, Number(now) - Number(begin)));
}

function One({ me, id }) {
  const { page } = here().query;
  const data = useData(async (signal) => {
    const account = await accountOf(id, signal);
    if (!account) throw new Error("There is no customer or project with this id.");
    const below = account.kind === "organization" ? await ask("account/list", { query: { organization_id: id, kind: "project", page, size: PAGE }, signal })
      : { accounts: [], total_pages: 0 };
    const month = await ask("v1/usage", { query: { [account.kind === "organization" ? "organization_id" : "project_id"]: id, bucket: "total" }, signal });
    return { account, below, month };
  }, [id, page]);
  return html`<${Back} page="customers">Customers<//><${Loaded} of=${data}>${({ account, below, month }) => {
    const isCustomer = account.kind === "organization";
    return html`<div class="headline"><div class="big">${account.name}</div>
      <div class="quiet">${isCustomer ? "Customer" : html`Project of <a href=${to(["customers", account.organization_id])}>${account.organization}</a>`}</div>
      <div class="row push"><a class="button" href=${to("audit", { target: id })}>Changes</a>
        <a class="button" href=${to("statements", { kind: account.kind, q: account.name })}>Statements</a>
        <a class="button" href=${to("keys", { [isCustomer ? "customer" : "project"]: id })}>Keys</a>
        ${isCustomer && me.may !== "read" && html`<button type="button"
        onClick=${() => create("project", { [id]: account.name }, data.again)}>New project</button>`}
      ${me.may !== "read" && html`<${Actions} of=${account} me=${me} again=${data.again} />`}</div></div>
    <section class="card"><${Pairs} of=${[["Status", html`<${Status} name=${account.status} />`],
      ["This month (UTC)", html`<${Money} usd=${month.total.charge_usd} />`], ["Forecast for the month", html`≈ <${Money} usd=${forecast(month)} />`],
      ["Spend, all time", html`<${Money} usd=${account.spend_usd} />`], ["Credit", takesCredit(account) && html`<${Money} usd=${account.credit_usd} />`],
    ["Budget used", account.budget_use && html`<${BudgetUse} of=${account.budget_use} label=${account.name} />`],
      ["Limits", limitTexts(account).length ? html`<${Limits} of=${account} />` : "none"], ["Keys", count(account.keys)],
      ["Created", html`<${Time} at=${account.created_at} dateOnly />`]]} /></section>
    ${below.accounts.length > 0 && html`<h2 class="apart">Projects</h2><${Table} columns=${columns(me, data.again, "Project")} rows=${below.accounts}
      open=${(one) => to(["customers", one.id])} />
      <${Pages} page=${below.current_page} pages=${below.total_pages} total=${below.total_count} word="projects"
        set=${(next) => go(withQuery({ page: next }))} />`}
    <h2 class="apart">Usage</h2><${Usage} me=${me} fixed=${isCustomer ? { organization_id: id } : { project_id: id }} />`;
  }}<//>`;
}
export const one = { title: "Customer", Page: One, hasPeriod: true, accepts: { ...usageAccepts, page: accepts.page } };

/** The customers; each opens its projects. */
export function Page({ me }) {
  const { query } = here();
  const { q, status, sort, order, page } = query;
  const wanted = { q, status, sort, order, page, kind: q ? undefined : "organization", size: PAGE };
  const data = useData((signal) => ask("account/list", { query: wanted, signal }), [JSON.stringify(wanted)], { keep: `customers ${JSON.stringify(wanted)}` });
  const again = () => (changed(), data.again());
  const set = (changes) => go(withQuery({ page: null, ...changes }));
  const order_ = { by: sort ?? "created", falling: (order ?? (sort === "spend" || sort === "budget" ? "desc" : "asc")) === "desc",
    set: (name, falling) => set({ sort: name, order: falling ? "desc" : "asc" }) };
  return html`<${Filters} fields=${{ q: { label: "Search", hint: "Customer or project" }, status: { label: "Status", options: STATUSES } }} values=${query}
    set=${set}>
    ${me.may !== "read" && html`<button type="button" class="main push" onClick=${() => create("organization", {}, again)}>New customer</button>`}<//>
    <${Loaded} of=${data}>${({ accounts, total_count: total, total_pages: pages, current_page: at }) => (accounts.length
    ? html`<${Table} caption=${q ? many(total, "match", "matches") : many(total, "customer")} columns=${columns(me, again, "Name")} rows=${accounts}
      sort=${order_} open=${(one) => to(["customers", one.id])} />
      <${Pages} page=${at} pages=${pages} total=${total} word="customers" set=${(next) => go(withQuery({ page: next }))} />`
    : html`<${Empty} title="No match."><a href=${to("customers")}>Show all customers</a>.<//>`)}<//>`;
}

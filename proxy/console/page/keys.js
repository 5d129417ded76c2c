// Keys. Invariants: a secret is shown once and stored nowhere; an action that cannot be undone needs a confirmation; the server
// searches and pages, so every key can be found.

import { useAccounts } from "./account_choice.js";
import { ask, keyOf, post, remember } from "./api.js";
import { GrantForm } from "./grants.js";
import { KeyForm, Limits, limitTexts, takesCredit, topUp } from "./limit_forms.js";
import { brief, many, nusd, percent, shortDay } from "./formatting.js";
import { go, here, to, withQuery } from "./route.js";
import { Back, closeDialog, Confirm, Copy, Dialog, Empty, Filters, html, Loaded, Menu, Money, openDialog, Pages, Pairs, Share, Status, Table, Time, toast,
  useData, useState } from "./ui.js";
import { accepts as usageAccepts, Usage } from "./usage.js";

export const title = "Keys";
export const hasPeriod = false;

const PAGE = 50;
const STATUSES = { active: "Active", exhausted: "Exhausted", blocked: "Blocked", expired: "Expired", revoked: "Revoked", unused: "Unused for 30 days" };
const SORTS = ["created", "alias", "spend", "last_used", "budget"];
export const accepts = { q: true, project: true, customer: true, status: Object.keys(STATUSES), sort: SORTS, order: ["asc", "desc"],
  page: (value) => /^[1-9]\d{0,4}$/.test(value) };

const stateOf = (key) => (key.revoked ? "revoked" : key.blocked ? "blocked" : key.expires && new Date(key.expires) < new Date() ? "expired" : "active");

// -- actions

/** Closes the dialog of a button, as Escape does. */
const shut = (event) => event.currentTarget.closest("dialog").close();

/** Shows a new secret, once. */
const Secret = ({ key_alias, secret, done }) => html`<${Dialog} title=${`Secret of ${key_alias}`} done=${done}>
  <p>This secret is shown only once. Copy it now and store it safely.</p><label for="secret">Secret</label>
  <div class="row"><input id="secret" readonly value=${secret} spellcheck="false" autocomplete="off" onFocus=${(event) => event.currentTarget.select()} />
    <${Copy} text=${secret} /></div>
  <div class="row end"><button type="button" class="main" onClick=${shut}>Done</button></div><//>`;

const secretOf = (answer, again) => html`<${Secret} key_alias=${answer.key_alias} secret=${answer.key} done=${again} />`;

function rotate(key, again) {
  let grace = "24h";
  openDialog(html`<${Confirm} title=${`New secret for ${key.key_alias}`} label="Create secret"
    act=${async () => secretOf(await post(`key/${encodeURIComponent(key.token)}/regenerate`, { grace_period: grace }), again)}>
    <label for="grace">The key gets a new secret. The old secret expires </label>
      <select id="grace" onChange=${(event) => { grace = event.currentTarget.value; }}><option value="24h">in 24 hours</option>
      <option value="1h">in 1 hour</option><option value="now">now</option></select>.<//>`);
}

function revoke(key, again) {
  openDialog(html`<${Confirm} title=${`Revoke ${key.key_alias}?`} label=${`Revoke ${key.key_alias} permanently`}
    act=${async () => { await post("key/delete", { keys: [key.token] }); toast(`${key.key_alias} is revoked.`); again(); }}>
    This cannot be undone. The usage of the key stays in the ledger. To disable the key for some time, block it instead.<//>`);
}

async function setBlocked(key, blocked, again) {
  try {
    await post(blocked ? "key/block" : "key/unblock", { key: key.token });
    toast(`${key.key_alias} is ${blocked ? "blocked: its requests are rejected. Running requests continue." : "unblocked."}`,
      { label: "Undo", act: () => setBlocked(key, !blocked, again) });
    again();
  } catch (error) {
    toast(error.message);
  }
}

const CHUNK = 100;

/** Changes many keys, 100 with each request. Returns the ids of those that are changed, and for the others the reason. */
async function inBulk(path, ids) {
  const result = { done: [], failed: [] };
  for (let at = 0; at < ids.length; at += CHUNK) {
    try {
      const { done, failed } = await post(path, { keys: ids.slice(at, at + CHUNK) });
      result.done.push(...done);
      result.failed.push(...failed);
    } catch (error) {
      result.failed.push(...ids.slice(at).map((key) => ({ key, message: error.message })));
      break;
    }
  }
  return result;
}

const NAMED_MAX = 5;
const listed = (names) => names.slice(0, NAMED_MAX).join(", ") + (names.length > NAMED_MAX ? ` and ${many(names.length - NAMED_MAX, "other")}` : "");

/** Blocks the keys after one confirmation. `again`: called when some are blocked or unblocked. */
function blockMany(chosen, again) {
  const keys = chosen.filter((key) => !key.blocked && !key.revoked);
  const names = new Map(keys.map((key) => [key.token, key.key_alias]));
  const rest = chosen.length - keys.length;
  const change = async (path, ids, word) => {
    const { done, failed } = await inBulk(path, ids);
    const undo = { label: "Undo", act: () => change("key/bulk_unblock", done, "unblocked") };
    if (done.length) toast(`${many(done.length, "key")} ${word}.`, word === "blocked" ? undo : undefined);
    again();
    const next = failed.length && html`<${Dialog} title=${`${many(failed.length, "key")} not ${word}`}><ul>
      ${failed.map((one) => html`<li key=${one.key}>${names.get(one.key)}: ${one.message}</li>`)}</ul>
      <div class="row end"><button type="button" class="main" onClick=${closeDialog}>Close</button></div><//>`;
    if (next && word !== "blocked") openDialog(next);
    return next;
  };
  if (!keys.length) return toast("These keys are blocked already.");
  return openDialog(html`<${Confirm} title=${`Block ${many(keys.length, "key")}?`} label=${`Block ${many(keys.length, "key")}`}
    act=${() => change("key/bulk_block", [...names.keys()], "blocked")}>
    ${listed([...names.values()])}. Their requests are rejected; running requests continue.
    ${rest > 0 && ` ${many(rest, "other key is", "other keys are")} blocked or revoked already.`}<//>`);
}

/** All keys of a search, of every page. */
async function everyKey(query) {
  const found = [];
  for (let page = 1, pages = 1; page <= pages; page += 1) {
    const answer = await ask("key/list", { query: { ...query, sort: "created", order: "asc", page, size: CHUNK } });
    pages = answer.total_pages;
    found.push(...answer.keys);
  }
  return found;
}

/** What is selected, and what can be done with it. `selection`: {chosen: id → key, all: the whole search, set}. */
function Bulk({ keys, total, wanted, selection: { chosen, all, set }, again }) {
  const usable = keys.filter((key) => !key.revoked);
  const isWhole = usable.length > 0 && usable.every((key) => chosen.has(key.token));
  const clear = () => set({ chosen: new Map(), all: false });
  const onPage = (event) => (event.currentTarget.checked ? set({ chosen: new Map([...chosen, ...usable.map((key) => [key.token, key])]), all: false }) : clear());
  const block = async () => {
    try {
      blockMany(all ? await everyKey(wanted) : [...chosen.values()], () => (clear(), again()));
    } catch (error) {
      toast(error.message);
    }
  };
  return html`<div class="row filters"><label class="check"><input type="checkbox" checked=${all || isWhole} onChange=${onPage} /> Select this page</label>
    ${isWhole && total > keys.length && !all && html`<button type="button" class="small" onClick=${() => set({ chosen, all: true })}>
      ${`Select all ${many(total, "key")}`}</button>`}
    ${(all || chosen.size > 0) && html`<button type="button" class="small danger" onClick=${block}>Block ${many(all ? total : chosen.size, "key")}</button>`}</div>`;
}

function Actions({ of: key, me, again }) {
  const saved = (one) => (toast(`${one.key_alias} is changed.`), again());
  return html`<${Menu} label=${`Actions for ${key.key_alias}`} of=${[
    { label: "Edit", act: () => openDialog(html`<${KeyForm} one=${key} done=${saved} />`) },
    me.may === "admin" && takesCredit(key) && { label: "Top up", act: () => topUp(key.key_alias, key, { key: key.token },
      (paid) => (toast(`$${paid.usd} credit added for ${key.key_alias}.`), again())) },
    me.may === "admin" && { label: "Grant credit", act: () => openDialog(html`<${GrantForm} named=${{ key: key.token }} name=${key.key_alias}
      done=${(one) => (toast(`${one.name} is granted.`), again())} />`) },
    { label: "Rotate", act: () => rotate(key, again) },
    { label: key.blocked ? "Unblock" : "Block", act: () => setBlocked(key, !key.blocked, again) },
    { label: "Revoke", danger: true, act: () => revoke(key, again) },
  ]} />`;
}

// -- pages

/** The use of the fullest budget: spent, limit, and a bar. */
export const BudgetUse = ({ of: one, label }) => (one ? html`<${Share} part=${one.used_ratio} held=${held(one)}
  label=${`Budget of ${label}: ${percent(one.used_ratio)} spent`}>
  <span class="quiet small">${brief(nusd(one.spent_usd))} of ${brief(nusd(one.budget_usd))}${one.window === "credit" ? " credit" : ""}</span><//>` : null);
const held = (one) => (nusd(one.budget_usd) > 0n ? Number(nusd(one.held_usd)) / Number(nusd(one.budget_usd)) : 0);

function toggled(chosen, key) {
  const next = new Map(chosen);
  if (!next.delete(key.token)) next.set(key.token, key);
  return { chosen: next, all: false };
}

const columns = (me, again, { chosen, all, set }) => [
  { label: "Select", pick: true, hidden: me.may === "read", cell: (key) => !key.revoked && html`<input type="checkbox"
    aria-label=${`Select ${key.key_alias}`} checked=${all || chosen.has(key.token)} onChange=${() => set(toggled(chosen, key))} />` },
  { label: "Name", lead: true, sort: "alias", cell: (key) => html`<a href=${to(["keys", key.token])}>${key.key_alias}
    </a> <span class="quiet small">${key.key_name}</span>` },
  { label: "Customer", clip: true, cell: (key) => (key.organization_id === "org_default" ? "" : key.organization) },
  { label: "Project", fact: true, clip: true, cell: (key) => key.project },
  { label: "Status", fact: true, cell: (key) => html`<${Status} name=${key.status} />` },
  { label: "This month", usd: (key) => key.month_usd },
  { label: "Budget used", fact: true, sort: "budget", cell: (key) => html`<${BudgetUse} of=${key.budget_use} label=${key.key_alias} />` },
  { label: "All time", sort: "spend", usd: (key) => key.spend_usd },
  { label: "Last used", sort: "last_used", cell: (key) => (key.last_used ? shortDay(Date.parse(key.last_used), "UTC") : "never") },
  { label: "Expires", cell: (key) => (key.expires ? html`<${Time} at=${key.expires} dateOnly />` : "never") },
  { label: "Actions", menu: true, cell: (key) => !key.revoked && html`<${Actions} of=${key} me=${me} again=${again} />`, hidden: me.may === "read" },
];

const Facts = ({ of: key, children }) => html`<section class="card"><${Pairs} of=${[
  ["Secret", key.key_name],
  ["Old secret valid until", new Date(key.old_secret_valid_until ?? 0) > new Date() && html`<${Time} at=${key.old_secret_valid_until} />`], ["Status", html`<${Status} name=${key.status ?? stateOf(key)} />`],
    ["Budget used", key.budget_use && html`<${BudgetUse} of=${key.budget_use} label=${key.key_alias} />`],
    ["This month", key.month_usd && html`<${Money} usd=${key.month_usd} />`], ["Spend, all time", html`<${Money} usd=${key.spend_usd} />`],
  ["Credit", takesCredit(key) && html`<${Money} usd=${key.credit_usd} />`], ["Limits", limitTexts(key).length ? html`<${Limits} of=${key} />` : "none"],
  ["Created", html`<${Time} at=${key.created_at} dateOnly />`], ["Expires", key.expires ? html`<${Time} at=${key.expires} dateOnly />` : "never"],
    ["Tags", key.tags.join(", ")],
]} />${children}</section>`;

/** The holder's own rotation. The tab goes on with the new secret. */
function rotateOwn(key, again) {
  const act = async () => {
    const { key: secret } = await post("v1/me/rotate", {});
    remember(secret);
    return html`<${Secret} key_alias=${key.key_alias} secret=${secret} done=${again} />`;
  };
  openDialog(html`<${Confirm} title=${`New secret for ${key.key_alias}`} label="Create secret" act=${act}>
    The key gets a new secret. The old one stays valid for 24 hours; the secret cannot be changed again before that.<//>`);
}

function Own({ me }) {
  const data = useData((signal) => ask("key/info", { signal }), []);
  return html`<${Loaded} of=${data}>${({ info: key }) => html`<h2>${key.key_alias}</h2>
    <${Facts} of=${key}>${me.may_rotate ? html`<div class="row"><button type="button" onClick=${() => rotateOwn(key, data.again)}>Rotate the secret</button></div>`
      : null}<p class="quiet small">${me.may_rotate ? "All other changes are made by the operator." : "Only the operator can change this key."}</p><//>`}<//>`;
}

/** One key: its limits, its usage, its requests. */
function One({ me, id }) {
  const data = useData(async (signal) => {
    const key = await keyOf(id, signal);
    if (!key) throw new Error("There is no key with this id.");
    return key;
  }, [id]);
  return html`<${Back} page="keys">Keys<//><${Loaded} of=${data}>${(key) => html`
    <div class="headline"><div class="big">${key.key_alias}</div><div class="quiet">Key of <a href=${to(["customers", key.team_id])}>${key.project}</a></div>
      <div class="row push"><a class="button" href=${to("requests", { key_id: key.token })}>Requests</a>
      <a class="button" href=${to("audit", { target: key.token })}>Changes</a>
      ${me.may !== "read" && !key.revoked && html`<${Actions} of=${key} me=${me} again=${data.again} />`}</div></div>
    <${Facts} of=${key} /><h2 class="apart">Usage</h2><${Usage} me=${me} fixed=${{ key_id: key.token }} />`}<//>`;
}
export const one = { title: "Key", Page: One, hasPeriod: true, accepts: usageAccepts };

function All({ me }) {
  const { query } = here();
  const { q, project: project_id, customer: organization_id, status, sort, order, page } = query;
  const filter = { q, project_id, organization_id, status };
  const wanted = { ...filter, sort, order, page, size: PAGE };
  const [state, setState] = useState({ chosen: new Map(), all: false, of: "" });
  const of = JSON.stringify(filter);
  const selection = { ...(state.of === of ? state : { chosen: new Map(), all: false }), set: (next) => setState({ ...next, of }) };
  const data = useData((signal) => ask("key/list", { query: wanted, signal }), [JSON.stringify(wanted)], { keep: `keys ${JSON.stringify(wanted)}` });
  const customers = useAccounts("organization", organization_id);
  const projects = useAccounts("project", project_id);
  const set = (changes) => go(withQuery({ page: null, ...changes }));
  const made = (key) => (data.again(), secretOf(key, () => null));
  const create = html`<button type="button" class="main push" onClick=${() => openDialog(html`<${KeyForm} projects=${projects} done=${made}
    />`)}>New key</button>`;
  const order_ = { by: sort ?? "created", falling: (order ?? (sort === "alias" ? "asc" : "desc")) === "desc",
    set: (name, falling) => set({ sort: name, order: falling ? "desc" : "asc" }) };
  const isFiltered = q || project_id || organization_id || status;
  return html`<${Filters} fields=${{ q: { label: "Search", hint: "Name, id, project or customer" },
    customer: { label: "Customer", ...customers }, project: { label: "Project", ...projects },
    status: { label: "Status", options: STATUSES } }} values=${query} set=${set}>
    ${me.may !== "read" && create}<//>
    <${Loaded} of=${data}>${({ keys, total_count: total, total_pages: pages, current_page: at }) => (keys.length
    ? html`${me.may !== "read" && html`<${Bulk} keys=${keys} total=${total} wanted=${filter} selection=${selection} again=${data.again} />`}
      <${Table} caption=${many(total, "key")} columns=${columns(me, data.again, selection)} rows=${keys} keyOf=${(key) => key.token} sort=${order_}
      open=${(key) => to(["keys", key.token])} chosen=${(key) => selection.all || selection.chosen.has(key.token)} />
      <${Pages} page=${at} pages=${pages} total=${total} word="keys" set=${(next) => go(withQuery({ page: next }))} />`
    : isFiltered ? html`<${Empty} title="No match."><a href=${to("keys")}>Show all keys</a>.<//>`
      : html`<${Empty} title="No keys yet.">Create a key. In your client, use its secret as the API key and the address of this proxy as the base URL.<//>`)}
        <//>`;
}

export const Page = ({ me }) => (me.role === "key" ? html`<${Own} me=${me} />` : html`<${All} me=${me} />`);

// Credit that expires or recurs. Invariant: a grant is used before it expires, the rest is taken back.

import { ask, post } from "./api.js";
import { Form } from "./form.js";
import { number, same } from "./limit_forms.js";
import { nusd } from "./formatting.js";
import { to } from "./route.js";
import { Confirm, Empty, html, Loaded, Menu, openDialog, Share, Status, Table, Time, toast, useData } from "./ui.js";

const RECURS = { "": "once", calendar_day: "each day", calendar_week: "each week", calendar_month: "each month" };

/** `named`: {key} or {account}; null: the form asks. */
export const GrantForm = ({ named, name, done }) => Form({
  title: name ? `Grant credit to ${name}` : "New grant", label: "Grant credit", fresh: true, done,
  fields: {
    name: { label: "Name", required: true, hint: "shown on statements; each key or customer has a name once", from: () => "", to: same },
    usd: { label: "Amount, USD", required: true, type: "number", step: "any", min: 0, from: () => "", to: number },
    ...(named ? {} : { account: { label: "Customer or project", hint: "name or id", from: () => "", to: same },
      key: { label: "Or key", hint: "name or id", from: () => "", to: same } }),
    expires: { label: "Expires", hint: "a date such as 2027-01-31, or 14d; empty: never", from: () => "", to: same },
    recurs: { label: "Granted", options: RECURS, from: () => "", to: same },
    begins: { more: true, label: "Begins", hint: "a date, or 7d; empty: now", from: () => "", to: same },
    lasts: { more: true, label: "Each lasts", hint: "14d; if it recurs", from: () => "", to: same },
    time_zone: { more: true, label: "Time zone of the recurrence", hint: "Europe/Berlin; empty: UTC", from: () => "", to: same },
    priority: { more: true, label: "Priority", hint: "the lowest number is used first", type: "number", min: 0, from: () => "", to: number },
  },
  send: (body) => post("grant/add", { ...named, ...body }),
});

function stateOf(one, now) {
  if (one.revoked_at) return "revoked";
  if (new Date(one.begins_at) > now) return "begins_later";
  if (one.expires_at && new Date(one.expires_at) < now) return "expired";
  return nusd(one.left) === 0n ? "used_up" : "active";
}

function revoke(one, again) {
  openDialog(html`<${Confirm} title=${`Revoke ${one.name}?`} label="Revoke"
    act=${async () => { await post("grant/revoke",
    { grant: one.id }); toast(`${one.name} is revoked.`); again(); }}>The rest of the grant is taken back at once, and it does not recur.<//>`);
}

const columns = (me, again) => [
  { label: "Name", lead: true, cell: (one) => one.name },
  { label: "Of", fact: true, cell: (one) => html`<a href=${to([one.scope_id.startsWith("key") ? "keys" : "customers", one.scope_id])}>${one.scope_name}</a>` },
  { label: "Status", fact: true, cell: (one) => html`<${Status} name=${stateOf(one, new Date())} />` },
  { label: "Amount", usd: (one) => one.usd },
  { label: "Used", number: true, fact: true, cell: (one) => html`<${Share} part=${nusd(one.granted) > 0n ? Number(nusd(one.burned)) / Number(nusd(one.granted))
    : 0} />` },
  { label: "Left", usd: (one) => one.left },
  { label: "Begins", cell: (one) => html`<${Time} at=${one.begins_at} dateOnly />` },
  { label: "Expires", fact: true, cell: (one) => (one.expires_at ? html`<${Time} at=${one.expires_at} dateOnly />` : "never") },
  { label: "Granted", cell: (one) => RECURS[one.recurs ?? ""] },
  { label: "Actions", menu: true, hidden: me.may !== "admin", cell: (one) => !one.revoked_at && html`<${Menu} label=${`Actions for ${one.name}`}
    of=${[{ label: "Revoke", danger: true, act: () => revoke(one, again) }]} />` },
];

export function Grants({ me }) {
  const data = useData(async (signal) => (await ask("grant/list", { signal })).grants.reverse(), [], { keep: "grants" });
  const create = () => openDialog(html`<${GrantForm} done=${(one) => (toast(`${one.name} is granted.`), data.again())} />`);
  return html`${me.may === "admin" && html`<div class="row filters"><button type="button" class="main push" onClick=${create}>New grant</button></div>`}
    <${Loaded} of=${data}>${(grants) => (grants.length ? html`<${Table} columns=${columns(me, data.again)} rows=${grants} />`
    : html`<${Empty} title="No grants yet.">A grant is credit that expires or recurs, such as a trial, or an amount that is included each month.<//>`)}<//>`;
}

// Limits by rule: for each end user, session, run or tag, or for a part of the requests. Invariant: the API checks the rules.

import { ask, namesOf, post } from "./api.js";
import { Form } from "./form.js";
import { BOUNDS, limitTexts, list, number, same } from "./limit_forms.js";
import { count, plain } from "./formatting.js";
import { to } from "./route.js";
import { Confirm, Empty, html, Loaded, Menu, openDialog, Table, toast, useData } from "./ui.js";

const EACH = { end_user: "each end user", session: "each session", run: "each run" };
const QUOTAS = { requests: "Requests", input_tokens: "Input tokens", output_tokens: "Output tokens", tokens: "Tokens" };
const NO = { false: "no", true: "yes" };

const eachOf = (name) => EACH[name] ?? `each value of ${name.replace(":", " ")}`;
const yes = (text) => text === "true";

/** A limit keeps the quotas that it was made with; their amounts may change. */
const quotaFields = (limit) => Object.fromEntries(Object.entries(QUOTAS).filter(([name]) => !limit || name in limit.quotas).map(([name,
  words]) => [`quota_${name}`, { more: true, label: `${words} in each period`, hint: "empty: no limit", type: "number", min: 1,
  from: (one) => one.quotas[name] ?? "", to: number }]));

const fields = (limit) => ({
  name: { label: "Name", required: true, hint: "shown in refusals and in alerts", from: (one) => one.name, to: same },
  ...(limit ? {} : {
    split_by: { label: "For each", hint: "end_user, session, run or tag:NAME; several with commas; empty: all requests together", from: () => "end_user",
      to: list },
    account: { label: "Of the customer or project", hint: "name or id; empty: all", from: () => "", to: same },
      key: { label: "Of the key", hint: "name or id; empty: all", from: () => "", to: same },
  }),
  ...BOUNDS, ...quotaFields(limit),
  models: { more: true, label: "Models", hint: "separated by commas, gpt-4* for a beginning; empty: all", from: (one) => one.models.join(", "), to: list },
  fallback_model: { more: true, label: "Fallback model", hint: "answers instead of a rejection", from: (one) => one.fallback_model ?? "",
    to: (text) => same(text) || null },
  required: { more: true, label: "Reject requests without these values", options: NO, from: (one) => one.required, to: yes },
  alert_only: { more: true, label: "Alerts only", hint: "the budget rejects no request", options: NO, from: (one) => one.alert_only, to: yes },
});
const NEW = { name: "", quotas: {}, models: [], required: false, alert_only: false, max_budget: null, budget_duration: "30d", time_zone: null, rpm_limit: null,
  tpm_limit: null, max_parallel_requests: null };

/** The fields `quota_NAME` → one field `quotas`, with the unchanged ones of `limit`. */
function withQuotas(body, limit) {
  const given = Object.entries(body).filter(([name]) => name.startsWith("quota_"));
  const rest = Object.fromEntries(Object.entries(body).filter(([name]) => !name.startsWith("quota_")));
  if (!given.length) return rest;
  const all = { ...limit?.quotas, ...Object.fromEntries(given.map(([name, value]) => [name.slice(6), value])) };
  return { ...rest, quotas: Object.fromEntries(Object.entries(all).filter(([, value]) => value !== null)) };
}

const LimitForm = ({ one: limit, done }) => Form({
  title: limit ? `Edit ${limit.name}` : "New limit", label: limit ? "Save" : "Create limit", fields: fields(limit), one: limit ?? NEW, fresh: !limit, done,
  send: (body) => post(limit ? "limit/update" : "limit/new", { ...(limit ? { limit: limit.id } : {}), ...withQuotas(body, limit) }),
});

function remove(limit, again) {
  openDialog(html`<${Confirm} title=${`Delete ${limit.name}?`} label="Delete"
    act=${async () => { await post("limit/delete",
    { limit: limit.id }); toast(`${limit.name} is deleted.`); again(); }}>It no longer limits new requests.<//>`);
}

function Owner({ of: one, names }) {
  if (!one.scope_id) return "all requests";
  return html`<a href=${to([one.scope_id.startsWith("key") ? "keys" : "customers", one.scope_id])}>${names.get(one.scope_id) ?? one.scope_id}</a>`;
}

const texts = (one) => [...limitTexts(one).filter((text) => !text.startsWith("only ")),
  ...Object.entries(one.quotas).map(([name, most]) => `${count(most)} ${plain(name)} in each period`)];

const columns = (me, names, again) => [
  { label: "Name", lead: true, cell: (one) => one.name },
  { label: "For", fact: true, cell: (one) => one.split_by.map(eachOf).join(" and ") || "all together" },
  { label: "Of", fact: true, cell: (one) => html`<${Owner} of=${one} names=${names} />` },
  { label: "Only", cell: (one) => [...Object.entries(one.only).map(([name, value]) => `${name}=${value}`), ...one.models, ...one.providers].join(", ") },
  { label: "Limits", fact: true, cell: (one) => html`<div class="limits">${texts(one).map((text) => html`<div key=${text}>${text}</div>`)}</div>` },
  { label: "If reached", cell: (one) => (one.alert_only ? "alert only" : one.fallback_model ? `answered by ${one.fallback_model}` : "rejected") },
  { label: "Actions", menu: true, hidden: me.may === "read", cell: (one) => html`<${Menu} label=${`Actions for ${one.name}`} of=${[
    { label: "Edit", act: () => openDialog(html`<${LimitForm} one=${one} done=${() => (toast(`${one.name} is changed.`), again())} />`) },
      { label: "Delete", danger: true, act: () => remove(one, again) }]} />` },
];

export function RuleLimits({ me }) {
  const data = useData(async (signal) => {
    const { limits } = await ask("limit/list", { signal });
    return { limits, names: await namesOf(limits.map((one) => one.scope_id), signal) };
  }, [], { keep: "limits" });
  const create = () => openDialog(html`<${LimitForm} done=${(one) => (toast(`${one.name} is created.`), data.again())} />`);
  return html`${me.may !== "read" && html`<div class="row filters"><button type="button" class="main push" onClick=${create}>New limit</button></div>`}
    <${Loaded} of=${data}>${({ limits, names }) => (limits.length ? html`<${Table} columns=${columns(me, names, data.again)} rows=${limits} />`
    : html`<${Empty} title="No limits by rule yet.">A rule limits each end user, session, run or tag, or the requests for some models. The limits of keys, projects and customers are on their pages.<//>`)}<//>`;
}

// Limits and credit of keys, projects and organizations, and the forms that change them.

import { post } from "./api.js";
import { Form } from "./form.js";
import { brief, count, exact, nusd, shortDay } from "./formatting.js";
import { html, Money, openDialog } from "./ui.js";

const WINDOWS = { "": "no reset", "1d": "1 day", "7d": "7 days", "30d": "30 days", calendar_hour: "calendar hour", calendar_day: "calendar day",
  calendar_week: "calendar week", calendar_month: "calendar month" };
const PER = { "1d": "day", "7d": "7 days", "30d": "30 days", calendar_hour: "hour", calendar_day: "day", calendar_week: "week", calendar_month: "month" };
export const KINDS = { organization: "customer", project: "project" };
const LIFETIMES = { "30d": "in 30 days", "90d": "in 90 days", "365d": "in one year", never: "never" };
const PREPAID = { false: "monthly", true: "prepaid" };
const COSTS = { false: "on request", true: "always" };
const ENDS = { finish: "finish the stream", cut: "stop the stream" };
const ON_OUTAGE = { "": "default (reject)", fail_closed: "reject requests", fail_open: "accept requests" };

export const list = (text) => text.split(",").map((one) => one.trim()).filter(Boolean);
export const number = (text) => (text.trim() === "" ? null : Number(text));
export const same = (text) => text.trim();

/** Limits of keys, accounts and rules. The API returns no period without a budget, so a new budget always sends its period. */
export const BOUNDS = {
  max_budget: { label: "Budget, USD", hint: "empty: no limit", type: "number", step: "any", min: 0, with: "budget_duration",
    from: (one) => one.max_budget ?? "", to: number },
  budget_duration: { label: "Budget period", options: WINDOWS, from: (one) => one.budget_duration ?? "", to: (text) => text || null },
  time_zone: { more: true, label: "Time zone of calendar periods", hint: "a name such as Europe/Berlin; empty: UTC", with: "budget_duration",
    from: (one) => one.time_zone ?? "", to: (text) => same(text) || null },
  rpm_limit: { more: true, label: "Requests per minute", hint: "empty: no limit", type: "number", min: 1, from: (one) => one.rpm_limit ?? "", to: number },
  tpm_limit: { more: true, label: "Tokens per minute", hint: "empty: no limit", type: "number", min: 1, from: (one) => one.tpm_limit ?? "", to: number },
  max_parallel_requests: { more: true, label: "Parallel requests", hint: "empty: no limit", type: "number", min: 1,
    from: (one) => one.max_parallel_requests ?? "", to: number },
};
/** Of keys and accounts only. */
const LIMITS = {
  ...BOUNDS,
  prepaid: { more: true, label: "Billing", hint: "prepaid: spend is limited to the credit added with “Top up”", options: PREPAID, from: (one) => one.prepaid,
    to: (text) => text === "true" },
  cost_in_answers: { more: true, label: "Return cost in responses", hint: "in the usage of each response", options: COSTS, from: (one) => one.cost_in_answers,
    to: (text) => text === "true" },
};
const NONE = { max_budget: null, budget_duration: "30d", time_zone: null, prepaid: false, cost_in_answers: false, rpm_limit: null, tpm_limit: null,
  max_parallel_requests: null };

const keyFields = (key, projects) => ({
  key_alias: { label: "Name", hint: "shown in lists and on statements", required: true, from: (one) => one.key_alias, to: same },
  ...(key ? {} : { team_id: { label: "Project", ...projects, hint: projects.find ? "name or id; cannot be changed later" : "cannot be changed later", from: (one) => one.team_id, to: same } }),
  models: { more: true, label: "Models", hint: "separated by commas; empty: all models", from: (one) => one.models.join(", "), to: list },
  ...LIMITS,
  duration: { more: true, label: "Expires", options: key ? { "": "unchanged", ...LIFETIMES } : LIFETIMES, from: () => (key ? "" : "90d"), to: same },
  on_exhausted: { more: true, label: "If the budget ends during a stream", options: ENDS, from: (one) => one.on_exhausted, to: same },
  on_store_outage: { more: true, label: "If budgets cannot be checked", options: ON_OUTAGE, from: (one) => one.on_store_outage ?? "",
    to: (text) => text || null },
  tags: { more: true, label: "Tags", hint: "separated by commas", from: (one) => one.tags.join(", "), to: list },
});
const NEW_KEY = { key_alias: "", team_id: "proj_default", models: [], ...NONE, on_exhausted: "finish", on_store_outage: null, tags: [] };

/** `key` null: a new key in one of `projects` (see `useAccounts`). `done` gets the answer. */
export const KeyForm = ({ one: key, projects = {}, done }) => Form({
  title: key ? `Edit ${key.key_alias}` : "New key", label: key ? "Save" : "Create key",
  fields: keyFields(key, projects), one: key ?? NEW_KEY, fresh: !key, done,
  send: (body) => post(key ? "key/update" : "key/generate", key ? { key: key.token, ...body } : body),
});

/** `one` null: a new account of this kind; a project belongs to one of `organizations` (id → name). */
export function AccountForm({ one: account, kind, organizations = {}, done }) {
  const above = { organization_id: { label: "Customer", hint: "cannot be changed later", options: organizations, from: () => Object.keys(organizations)[0],
    to: same } };
  return Form({
    title: account ? `Edit ${account.name}` : `New ${KINDS[kind]}`, label: account ? "Save" : `Create ${KINDS[kind]}`,
    fields: {
      name: { label: "Name", hint: "shown in lists and on statements", required: true, from: (one) => one.name, to: same },
      ...(!account && kind === "project" ? above : {}), ...LIMITS,
    },
    one: account ?? { name: "", ...NONE }, fresh: !account, done,
    send: (body) => (account ? post("account/update", { account: account.id, ...body }) : post("account/new", { kind, ...body })),
  });
}

const UPDATES = { key: ["key/update", "key"], project: ["account/update", "account"], organization: ["account/update", "account"] };

/** More budget until a time, for a key or an account. */
export const RaiseForm = ({ kind, id, name, done }) => Form({
  title: `Raise the budget of ${name}`, label: "Raise", fresh: true, done,
  fields: {
    usd: { label: "By, USD", hint: "added to the budget of each period", type: "number", step: "any", min: 0, required: true, from: () => "", to: Number },
    until: { label: "Until", hint: "a duration such as 3d, or a date such as 2027-01-31 (UTC)", required: true, from: () => "7d", to: same },
  },
  send: (budget_raise) => post(UPDATES[kind][0], { [UPDATES[kind][1]]: id, budget_raise }),
});

/** True if the budget of such an owner can be raised for a time. */
export const canRaise = (kind) => kind in UPDATES;

/** A new UUIDv7: its first 48 bits are the time. */
function newId() {
  const noise = [...crypto.getRandomValues(new Uint8Array(10))];
  const bytes = [(noise[0] & 0x0f) | 0x70, noise[1], (noise[2] & 0x3f) | 0x80, ...noise.slice(3)];
  const digits = Date.now().toString(16).padStart(12, "0") + bytes.map((one) => one.toString(16).padStart(2, "0")).join("");
  return [digits.slice(0, 8), digits.slice(8, 12), digits.slice(12, 16), digits.slice(16, 20), digits.slice(20, 32)].join("-");
}

const left = (one) => nusd(one.credit_usd) - nusd(one.spend_usd);
const ids = new WeakMap();

/** `named`: {key} or {account}. The id makes a repeated submit idempotent: it stays while the form is open. */
export function CreditForm({ name, one, named, done }) {
  if (!ids.has(named)) ids.set(named, newId());
  return Form({
    title: `Top up ${name}`, label: "Add credit",
    words: html`Credit so far <${Money} usd=${one.credit_usd} />, spent <${Money} usd=${one.spend_usd} />, left <${Money} usd=${left(one)} />.`,
    fields: {
      usd: { label: "Amount, USD", hint: "a negative amount is a refund", type: "number", step: "any", required: true, from: () => "", to: Number },
      reason: { label: "Reason", hint: "shown in the ledger and on statements, for example an invoice number", required: true, from: () => "", to: same },
    },
    fresh: true, send: (body) => post("credit/add", { ...named, id: ids.get(named), ...body }), done,
  });
}

export const topUp = (name, one, named, done) => openDialog(html`<${CreditForm} name=${name} one=${one} named=${named} done=${done} />`);

/** True if credit applies: prepaid, or with credit booked. */
export const takesCredit = (one) => one.prepaid || nusd(one.credit_usd) !== 0n;

/** `$0.15 / day`. */
export const budgetText = (one) => (one.max_budget === null ? "" : `${exact(nusd(one.max_budget_usd))}${one.budget_duration
  ? ` / ${PER[one.budget_duration] ?? one.budget_duration}` : ", no reset"}${one.time_zone ? ` (${one.time_zone})` : ""}`);

/** The limits as short texts. */
export const limitTexts = (one) => [
  budgetText(one),
  one.budget_raise && `raised by ${exact(nusd(one.budget_raise.usd))} until ${shortDay(new Date(one.budget_raise.until), "UTC")}`,
  one.prepaid && `prepaid, ${brief(left(one))} left`,
  one.on_exhausted === "cut" && "stops streams when spent",
  one.on_store_outage && `${one.on_store_outage === "fail_open" ? "accepts" : "rejects"} requests if budgets cannot be checked`,
  one.rpm_limit && `${count(one.rpm_limit)} requests / min`,
  one.tpm_limit && `${count(one.tpm_limit)} tokens / min`,
  one.max_parallel_requests && `${count(one.max_parallel_requests)} parallel`,
  one.cost_in_answers && "responses contain their cost",
  one.models?.length > 0 && `only ${one.models.join(", ")}`,
].filter(Boolean);

export const Limits = ({ of }) => html`<div class="limits">${limitTexts(of).map((text) => html`<div key=${text}>${text}</div>`)}</div>`;

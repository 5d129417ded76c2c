// What keys, projects and organizations have in common: limits, what was paid in, and the forms in which both are changed.

import { post } from "./api.js";
import { el } from "./dom.js";
import { openForm } from "./form.js";
import { count, money, nusd } from "./words.js";

const WINDOWS = { "": "its whole life", "1d": "each day (rolling)", "7d": "each 7 days", "30d": "each 30 days", calendar_month: "each calendar month (UTC)" };
const LIFETIMES = { "30d": "30 days", "90d": "90 days", "365d": "a year", never: "for ever" };
const PREPAID = { false: "no, billed afterwards", true: "yes" };
const ENDS = { finish: "let it finish", cut: "cut it" };
const ON_OUTAGE = { "": "as the settings say", fail_closed: "refuse its requests", fail_open: "let them through" };

const list = (text) => text.split(",").map((one) => one.trim()).filter(Boolean);
const number = (text) => (text.trim() === "" ? null : Number(text));
const same = (text) => text.trim();

/** Of every level. A level without a budget does not tell for how long one would be: a new budget says so itself. */
const LIMITS = {
  max_budget: { label: "Budget, USD", hint: "empty: no limit", type: "number", step: "any", min: 0, with: "budget_duration", from: (one) => one.max_budget ?? "", to: number },
  budget_duration: { label: "The budget is for", options: WINDOWS, from: (one) => one.budget_duration ?? "", to: (text) => text || null },
  prepaid: { label: "Prepaid", hint: "yes: it may use what was paid in with “Top up”, and no more", options: PREPAID, from: (one) => one.prepaid, to: (text) => text === "true" },
  rpm_limit: { label: "Requests a minute", hint: "empty: no limit", type: "number", min: 1, from: (one) => one.rpm_limit ?? "", to: number },
  tpm_limit: { label: "Tokens a minute", hint: "empty: no limit", type: "number", min: 1, from: (one) => one.tpm_limit ?? "", to: number },
  max_parallel_requests: { label: "At once", hint: "requests that may run; empty: no limit", type: "number", min: 1, from: (one) => one.max_parallel_requests ?? "", to: number },
};
const NONE = { max_budget: null, budget_duration: "30d", prepaid: false, rpm_limit: null, tpm_limit: null, max_parallel_requests: null };

const keyFields = (key, projects) => ({
  key_alias: { label: "Name", hint: "how bills and lists call it", required: true, from: (one) => one.key_alias, to: same },
  ...(key ? {} : { team_id: { label: "Project", hint: "what the key uses, it uses, too; never changes", options: projects, from: (one) => one.team_id, to: same } }),
  models: { label: "Models", hint: "separated by commas; empty: all", from: (one) => one.models.join(", "), to: list },
  ...LIMITS,
  duration: { label: "The key lives", options: key ? { "": "as long as now", ...LIFETIMES } : LIFETIMES, from: () => (key ? "" : "90d"), to: same },
  on_exhausted: { label: "When the money ends in mid-stream", options: ENDS, from: (one) => one.on_exhausted, to: same },
  on_store_outage: { label: "While nobody can say what is left", hint: "the settings' own default: refuse them where money is limited", options: ON_OUTAGE, from: (one) => one.on_store_outage ?? "", to: (text) => text || null },
  tags: { label: "Tags", hint: "separated by commas", from: (one) => one.tags.join(", "), to: list },
});
const NEW_KEY = { key_alias: "", team_id: "proj_default", models: [], ...NONE, on_exhausted: "finish", on_store_outage: null, tags: [] };

/** `key` null: a new one, of one of these projects (id → name). `done` gets the answer. */
export const keyForm = (key, projects, done) => openForm({
  title: key ? `Limits of ${key.key_alias}` : "A new key", label: key ? "Save" : "Make the key",
  fields: keyFields(key, projects), one: key ?? NEW_KEY, fresh: !key, done,
  send: (body) => post(key ? "key/update" : "key/generate", key ? { key: key.token, ...body } : body),
});

/** `account` null: a new one of this kind; a project is of one of these organizations (id → name). */
export function accountForm(account, kind, organizations, done) {
  const above = { organization: { label: "Organization", hint: "what the project uses, it uses, too; never changes", options: organizations, from: () => Object.keys(organizations)[0], to: same } };
  openForm({
    title: account ? `Limits of ${account.name}` : `A new ${kind}`, label: account ? "Save" : `Make the ${kind}`,
    fields: {
      name: { label: "Name", hint: "how bills and lists call it", required: true, from: (one) => one.name, to: same },
      ...(!account && kind === "project" ? above : {}), ...LIMITS,
    },
    one: account ?? { name: "", ...NONE }, fresh: !account, done,
    send: (body) => (account ? post("account/update", { account: account.id, ...body }) : post("account/new", { kind, ...body })),
  });
}

/** A new UUIDv7: its first 48 bits are the time. */
function newId() {
  const noise = [...crypto.getRandomValues(new Uint8Array(10))];
  const bytes = [(noise[0] & 0x0f) | 0x70, noise[1], (noise[2] & 0x3f) | 0x80, ...noise.slice(3)];
  const digits = Date.now().toString(16).padStart(12, "0") + bytes.map((one) => one.toString(16).padStart(2, "0")).join("");
  return [digits.slice(0, 8), digits.slice(8, 12), digits.slice(12, 16), digits.slice(16, 20), digits.slice(20, 32)].join("-");
}

const left = (one) => nusd(one.credit) - nusd(one.spend);

/** `named`: {key} or {account}. Whoever presses twice, or loses the answer and presses again, pays in once. */
export function creditForm(name, one, named, done) {
  const id = newId();
  openForm({
    title: `Top up ${name}`, label: "Pay in",
    words: ["Paid in until now: ", money(one.credit), ". Used: ", money(one.spend), ". Left: ", money(left(one)), "."],
    fields: {
      usd: { label: "Amount, USD", hint: "below 0: it is paid out again", type: "number", step: "any", required: true, from: () => "", to: Number },
      reason: { label: "Reason", hint: "for whoever reads the ledger: an invoice, a transfer", required: true, from: () => "", to: same },
    },
    fresh: true, send: (body) => post("credit/add", { ...named, id, ...body }), done,
  });
}

/** True if it makes sense to pay something in. */
export const takesCredit = (one) => one.prepaid || nusd(one.credit) !== 0n;

const lines = (found) => found.flatMap((one, place) => (place ? [el("br"), one] : [one]));

/** All that it may use, in words. */
export function limits(one) {
  const found = [
    one.max_budget !== null && ["$", String(one.max_budget), one.budget_duration ? ` per ${one.budget_duration.replaceAll("_", " ")}` : " in all"],
    one.prepaid && ["prepaid, ", money(left(one)), " left"],
    one.on_exhausted === "cut" && "cut when the money ends",
    one.on_store_outage && `${one.on_store_outage === "fail_open" ? "goes on" : "refused"} while nobody can say what is left`,
    one.rpm_limit && `${count(one.rpm_limit)} requests a minute`,
    one.tpm_limit && `${count(one.tpm_limit)} tokens a minute`,
    one.max_parallel_requests && `${count(one.max_parallel_requests)} at once`,
    one.models?.length > 0 && `only ${one.models.join(", ")}`,
  ].filter(Boolean);
  return found.length ? lines(found) : "none";
}

// The form in which a key is made or changed. Law: only what was changed is sent, and a refusal stands beside the field it is about.

import { post } from "./api.js";
import { el, failure, overlay } from "./dom.js";

const WINDOWS = { "": "its whole life", "1d": "each day (rolling)", "7d": "each 7 days", "30d": "each 30 days", calendar_month: "each calendar month (UTC)" };
const LIFETIMES = { "30d": "30 days", "90d": "90 days", "365d": "a year", never: "for ever" };

const list = (text) => text.split(",").map((one) => one.trim()).filter(Boolean);
const number = (text) => (text.trim() === "" ? null : Number(text));

/** name → {label, hint, value of a key, what is sent for a text} */
const FIELDS = {
  key_alias: { label: "Name", hint: "how bills and lists call it", required: true, from: (key) => key.key_alias, to: (text) => text.trim() },
  team_id: { label: "Project", hint: "its id or name; empty: the default one", made: true, from: () => "", to: (text) => text.trim() },
  models: { label: "Models", hint: "separated by commas; empty: all", from: (key) => key.models.join(", "), to: list },
  max_budget: { label: "Budget, USD", hint: "empty: no limit", type: "number", step: "any", min: 0, from: (key) => key.max_budget ?? "", to: number },
  budget_duration: { label: "The budget is for", options: WINDOWS, from: (key) => key.budget_duration ?? "", to: (text) => text || null },
  duration: { label: "The key lives", options: LIFETIMES, from: () => "90d", to: (text) => text, keep: true },
  rpm_limit: { label: "Requests a minute", hint: "empty: no limit", type: "number", min: 1, from: (key) => key.rpm_limit ?? "", to: number },
  tpm_limit: { label: "Tokens a minute", hint: "empty: no limit", type: "number", min: 1, from: (key) => key.tpm_limit ?? "", to: number },
  max_parallel_requests: { label: "At once", hint: "requests that may run; empty: no limit", type: "number", min: 1, from: (key) => key.max_parallel_requests ?? "", to: number },
  on_exhausted: { label: "When the budget ends in mid-stream", options: { finish: "let it finish", cut: "cut it" }, from: (key) => key.on_exhausted, to: (text) => text },
  tags: { label: "Tags", hint: "separated by commas", from: (key) => key.tags.join(", "), to: list },
};

const NEW = { key_alias: "", models: [], max_budget: null, budget_duration: "30d", rpm_limit: null, tpm_limit: null, max_parallel_requests: null, on_exhausted: "finish", tags: [] };

function control(name, field, value) {
  const shared = { name, id: `field-${name}`, "aria-describedby": `about-${name}` };
  if (!field.options) {
    return el("input", { ...shared, type: field.type ?? "text", min: field.min, step: field.step, required: field.required, maxlength: field.type ? null : 2000, autocomplete: "off", value });
  }
  const known = value in field.options ? field.options : { ...field.options, [value]: value };
  return el("select", shared, Object.entries(known).map(([one, words]) => el("option", { value: one, selected: one === value }, words)));
}

const line = (name, field, value) => el("div", { class: "field-line" },
  el("label", { for: `field-${name}` }, field.label), control(name, field, value),
  el("div", { class: "quiet small", id: `about-${name}` }, field.hint ?? ""));

/** Beside its field, or below all of them. */
function refused(form, error, trouble) {
  form.querySelectorAll("[aria-invalid]").forEach((one) => one.removeAttribute("aria-invalid"));
  const field = error.param && form.elements[error.param];
  trouble.replaceChildren(failure(error));
  if (!field) return;
  field.setAttribute("aria-invalid", "true");
  field.focus();
}

/** Opens it; `key` null: a new one. `done` gets the answer. */
export function keyForm(key, done) {
  const asked = key ?? NEW;
  const fields = Object.entries(FIELDS).filter(([, field]) => !(key && field.made))
    .map(([name, field]) => [name, key && field.keep ? { ...field, options: { "": "as long as now", ...field.options } } : field]);
  const first = Object.fromEntries(fields.map(([name, field]) => [name, key && field.keep ? "" : String(field.from(asked))]));
  const trouble = el("div", {});
  const button = el("button", { class: "main" }, key ? "Save" : "Make the key");
  const submit = async (event) => {
    event.preventDefault();
    const given = new FormData(form);
    // A key without a budget does not tell for how long one would be: a new budget says so itself.
    const differs = (name) => given.get(name) !== first[name] || (name === "budget_duration" && differs("max_budget"));
    const changed = fields.filter(([name]) => (key ? differs(name) : given.get(name) !== ""));
    const body = Object.fromEntries(changed.map(([name, field]) => [name, field.to(given.get(name))]));
    button.disabled = true;
    try {
      const answer = await post(key ? "key/update" : "key/generate", key ? { key: key.token, ...body } : body);
      box.close();
      done(answer);
    } catch (error) {
      refused(form, error, trouble);
      button.disabled = false;
    }
  };
  const form = el("form", { submit }, el("div", { class: "fields" }, fields.map(([name, field]) => line(name, field, first[name]))),
    trouble, el("div", { class: "row end" }, el("button", { type: "button", click: () => box.close() }, "Cancel"), button));
  const box = overlay(key ? `Limits of ${key.key_alias}` : "A new key", form);
  form.elements.key_alias.focus();
}

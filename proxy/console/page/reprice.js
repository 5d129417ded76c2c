// Other prices for past requests. Invariant: an operator sees what each customer's charge becomes before anything is changed.

import { ask, post, Refused } from "./api.js";
import { Form } from "./form.js";
import { count, date, exact, many, nusd, plusDays } from "./formatting.js";
import { list, same } from "./limit_forms.js";
import { to } from "./route.js";
import { closeDialog, Confirm, Dialog, html, Money, openDialog, OPTIONS_MAX, Pairs, Table, toast } from "./ui.js";

const PRICES = { input: "Input", output: "Output", cached_input: "Cached input" };
const price = (label, more) => ({ label: `${label}, USD per million`, type: "number", step: "any", min: 0, from: () => "", to: same, ...more });

/** Names of models: a choice of those that are configured or were used lately, and a text for others. */
const modelFields = (names, chosen) => ({
  ...(names.length > 0 && names.length <= OPTIONS_MAX && { models: { label: "Models", many: true, hint: "several: with Ctrl or ⌘",
    options: Object.fromEntries(names.map((one) => [one, one])), from: () => chosen.join("\n"), to: (text) => text.split("\n") } }),
  others: { label: names.length > 0 && names.length <= OPTIONS_MAX ? "Other models" : "Models", hint: "names, separated by commas",
    from: () => (names.length > OPTIONS_MAX ? chosen.join(", ") : ""), to: list },
});

/** Asks for models, days and prices; `names`: of all models, `chosen`: those selected at first. `done`: called when requests were corrected. */
export const reprice = (names, chosen, me, done) => openDialog(html`<${Form} title="Reprice past requests" label="Preview" fresh
  words="Without prices here, those of the configuration apply, to charges and costs. Nothing is changed before you have seen a preview."
  fields=${{
    ...modelFields(names, chosen),
    since: { label: "First day (UTC)", type: "date", required: true, from: () => `${new Date().toISOString().slice(0, 7)}-01`, to: same },
    until: { label: "Last day (UTC)", type: "date", hint: "empty: until now", from: () => "", to: (text) => plusDays(text, 1) },
    input: price(PRICES.input, { hint: "empty: the configured prices" }), output: price(PRICES.output),
    cached_input: price(PRICES.cached_input, { hint: "empty: as input" }),
  }}
  send=${async ({ models = [], others = [], input, output, cached_input, ...body }) => {
    if (!models.length && !others.length) throw new Refused(400, { message: "Choose at least one model." });
    const given = Object.entries({ input, output, cached_input }).filter(([, value]) => value !== undefined);
    const lacking = given.length > 0 && Object.entries({ input, output }).find(([, value]) => value === undefined);
    if (lacking) throw new Refused(400, { message: "A new price needs input and output.", param: lacking[0] });
    return preview({ ...body, models: [...models, ...others], price: given.length ? Object.fromEntries(given) : null }, me, done);
  }} done=${(dialog) => dialog} />`);

/** The dialog with the preview of these prices. */
async function preview(job, me, done) {
  const found = await ask("v1/rerate/preview", { method: "POST", body: job });
  return html`<${Preview} job=${{ ...job, since: found.since, until: found.until }} found=${found} me=${me} done=${done} key=${found.total.charge_usd} />`;
}

const columns = [
  { label: "Customer", lead: true, cell: (one) => (one.organization_id ? html`<a href=${to(["customers", one.organization_id])}>${one.name}</a>` : one.name) },
  { label: "Requests", number: true, fact: true, cell: (one) => count(one.requests) },
  { label: "Charge now", number: true, fact: true, usd: (one) => one.charge_usd }, { label: "New charge", fact: true, usd: (one) => one.new_charge_usd },
  { label: "Difference", amount: true, signed: true, usd: (one) => one.difference_usd },
];
const isSame = (one) => nusd(one.difference_usd) === 0n && one.cost_usd === one.new_cost_usd;
const last = (until) => date(new Date(until).getTime() - 1, "UTC");

function Preview({ job, found, me, done }) {
  const { total, customers } = found;
  const title = `Reprice ${job.models.length > 1 ? many(job.models.length, "model") : job.models[0]}`;
  const given = job.price && Object.entries(job.price).map(([name, usd]) => `${PRICES[name].toLowerCase()} ${exact(nusd(usd))}`).join(", ");
  const words = html`<${Pairs} of=${[["Requests that began", `${date(new Date(job.since), "UTC")} – ${last(job.until)} (UTC)`],
    ["New price", given ? `${given} per million` : "of the configuration"], ["Charge now", html`<${Money} usd=${total.charge_usd} />`],
    ["New charge", html`<${Money} usd=${total.new_charge_usd} />`], ["Difference", html`<strong><${Money} usd=${total.difference_usd} signed /></strong>`],
    ["Cost", total.cost_usd !== total.new_cost_usd && html`<${Money} usd=${total.cost_usd} /> → <${Money} usd=${total.new_cost_usd} />`],
    ["Set by operators, not changed", found.manually_corrected > 0 && many(found.manually_corrected, "request")],
    ["Without a new price", found.without_price > 0 && many(found.without_price, "request")],
    ["Unreadable, not changed", found.unreadable > 0 && many(found.unreadable, "request")]]} />
    ${customers.length > 0 && html`<${Table} caption=${`${many(customers.length, "customer")}, ${many(total.requests, "request")}`} columns=${columns} rows=${customers}
      keyOf=${(one) => one.organization_id ?? one.name} />`}`;
  if (me.may !== "admin" || customers.every(isSame)) {
    return html`<${Dialog} title=${title}>${words}<p class="apart">${customers.every(isSame) && "Nothing would change."}</p>
      <div class="row end"><button type="button" autofocus onClick=${closeDialog}>Close</button></div><//>`;
  }
  const act = async () => {
    const answer = await post("v1/rerate", { ...job, difference_usd: total.difference_usd });
    done();
    toast(`${many(answer.adjusted, "request")} corrected: ${exact(nusd(answer.difference_usd))}.${answer.is_complete ? "" : " More are left: apply again."}`);
    return answer.is_complete ? null : preview(job, me, done);
  };
  return html`<${Confirm} title=${title} label="Apply" act=${act}>${words}
    <p class="apart">Each request gets an adjustment, on the statement of this month; statements of closed months stay. An adjustment cannot be deleted, only followed by another.</p><//>`;
}

// Why charges changed between two periods. Invariant: the reasons add up to the difference.

import { ask } from "./api.js";
import { count, date } from "./formatting.js";
import { html, Loaded, Money, Table, useData } from "./ui.js";

const REASONS = { volume: ["Volume", "More or fewer requests"], mix: ["Mix", "Other models, or more or fewer tokens for each request"],
  price: ["Price", "Other prices of the same units"], adjustments: ["Adjustments", "More or fewer corrections"] };

const days = ({ first, last }) => `${date(Date.parse(first), "UTC")} – ${date(Date.parse(last), "UTC")}`;

/** `query`: of the report; `chosen`: its period, with the one before. */
export function Change({ query, chosen }) {
  const data = useData((signal) => ask("v1/usage/change", { query: { ...query, previous_from: chosen.before.first, previous_to: chosen.before.end }, signal }),
    [JSON.stringify(query), chosen.before.first]);
  const column = (name) => ({ label: REASONS[name][0], signed: true, usd: (one) => one[`${name}_usd`] });
  return html`<section class="card explained"><h2>Why the charge changed</h2><${Loaded} of=${data}>${(change) => html`
    <table class="sum"><tbody><tr><th scope="row">${days(chosen.before)}</th><td class="number"><${Money} usd=${change.previous_charge_usd} places=${4} /></td>
      <td /></tr>
      ${Object.entries(REASONS).map(([name, [words, why]]) => html`<tr key=${name}><th scope="row">${words}</th>
        <td class="number"><${Money} usd=${change.total[`${name}_usd`]} places=${4} signed /></td><td class="quiet">${why}</td></tr>`)}
      <tr class="total"><th scope="row">${days(chosen)}</th><td class="number"><strong><${Money} usd=${change.charge_usd} places=${4} /></strong></td>
        <td><${Money} usd=${change.total.difference_usd} signed /></td></tr></tbody></table>
    ${change.models.length > 1 && html`<details><summary>By model</summary><${Table} keyOf=${(one) => one.model} rows=${change.models} columns=${[
    { label: "Model", lead: true, cell: (one) => one.model }, { label: "Difference", signed: true, usd: (one) => one.difference_usd },
      ...Object.keys(REASONS).map(column),
    { label: "Requests", number: true, fact: true, cell: (one) => `${count(one.previous_requests)} → ${count(one.requests)}` },
  ]} /></details>`}`}<//></section>`;
}

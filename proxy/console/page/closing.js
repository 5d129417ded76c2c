// Closing a month. Invariant: an operator sees what is wrong with a month before it is closed, which cannot be undone.

import { ask, post } from "./api.js";
import { count, many, monthName } from "./formatting.js";
import { to } from "./route.js";
import { closeDialog, Confirm, Dialog, html, openDialog, toast } from "./ui.js";

const PLACES = { journal: "a journal of this machine", lease: "requests that still run, or whose proxy is lost", queue: "the queue",
  "dead letter": "dead letters" };
const LINKS = { "dead letter": () => to("delivery"), unpriced: () => to("models", { show: "unpriced" }),
  unknown_cost: () => to("models", { show: "unknown" }) };
const TONES = { review: "careful", not_checked: "careful", unsettled: "bad" };
const SAID = { ok: "All right", review: "To review", not_checked: "Not checked", unsettled: "To settle" };

const Line = ({ state, link, children }) => html`<li><span class="status"><span class=${`dot ${TONES[state] ?? ""}`} aria-hidden="true" />
  <span class="unseen">${SAID[state]}: </span></span><span>${children}${link && html` <a href=${link}>Show</a>`}</span></li>`;

const Checks = ({ of: { unsettled, checks } }) => html`<ul class="plain-list attention">
  ${unsettled.length === 0 && html`<${Line} state="ok">Every request of the month is settled.<//>`}
  ${unsettled.map((one) => html`<${Line} key=${one.what} state="unsettled" link=${LINKS[one.what]?.()}>
    ${many(one.count, "record")} not settled yet, in ${PLACES[one.what]}${one.examples.length > 0 && html`: <code>${one.examples[0]}</code>${one.count > 1 && ", …"}`}<//>`)}
  ${checks.map((one) => html`<${Line} key=${one.name} state=${one.state} link=${one.count > 0 && LINKS[one.name]?.()}>${one.words}<//>`)}</ul>`;

/** Shows the checks of a month to the operator `me`, who may then close it. `done`: called when it is closed. */
export async function closeMonth(month, me, done) {
  const found = await ask(`v1/periods/${month}`).catch((error) => toast(error.message));
  if (!found) return;
  if (!found.closes.length) {
    toast(`${monthName(month)} has nothing to close.`);
    done();
    return;
  }
  const left = found.unsettled.length > 0;
  const others = found.closes.filter((one) => one !== month);
  const act = async () => {
    const { closed } = await post("v1/periods/close", { month, leave: left });
    toast(closed.length ? `Closed: ${closed.map(monthName).join(", ")}.` : `${monthName(month)} was closed already.`);
    done();
  };
  if (me.may !== "admin") {
    openDialog(html`<${Dialog} title=${`Checks of ${monthName(month)}`}><${Checks} of=${found} />
      <div class="row end"><button type="button" autofocus onClick=${closeDialog}>Close</button></div><//>`);
    return;
  }
  openDialog(html`<${Confirm} title=${`Close ${monthName(month)}?`} label=${left ? "Close without them" : `Close ${monthName(month)}`} act=${act}>
    <${Checks} of=${found} /><p>${others.length > 0 && `${others.length > 3 ? `${count(others.length)} earlier months are` : `${others.map(monthName).join(", ")} ${
    others.length > 1 ? "are" : "is"}`} closed with it. `}${left && "What is not settled goes on a later statement. "}
      The statements never change after that. This cannot be undone.</p><//>`);
}

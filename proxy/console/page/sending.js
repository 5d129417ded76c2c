// A statement by e-mail. Invariant: an operator sees the address and the amount before it is sent, and whether it was sent before.

import { ask, post } from "./api.js";
import { Form } from "./form.js";
import { same } from "./limit_forms.js";
import { html, Money, openDialog, Pairs, Time, toast } from "./ui.js";

const Before = ({ of }) => html`<p class="notice">${of.is_certain ? "Sent" : "Perhaps sent"} to ${of.to}, <${Time} at=${of.at} />, by ${of.by}.</p>`;

/** Another operator has sent it since the dialog was opened, which is shown again with that. */
const sentMeanwhile = (error) => {
  if (error.code !== "already_sent") throw error;
  return { sent: null };
};

/** Asks where to send the final statement `one`, a row of the list, and sends it. `done`: called when it is sent. */
export async function sendStatement(one, month, done) {
  const named = { scope_id: one.scope_id, month };
  const mail = await ask("v1/statements/mail", { query: named }).catch((error) => toast(error.message));
  if (!mail) return;
  openDialog(html`<${Form} title=${`Send the statement of ${one.name}`} label=${mail.sent ? "Send again" : "Send"} fresh
    words=${html`${mail.sent && html`<${Before} of=${mail.sent} />`}<${Pairs} of=${[["Subject", mail.subject],
    ["Amount due", html`<strong><${Money} usd=${mail.amount_due_usd} places=${2} /></strong>`], ["Attached", mail.attachment]]} />
      <details><summary>Text</summary><pre tabindex="0">${mail.text}</pre></details>`}
    fields=${{ to: { label: "To", type: "email", required: true, hint: mail.to ? "" : "the customer has no address in statement.customers",
    from: () => mail.to ?? "", to: same } }}
    send=${(body) => post("v1/statements/send", { ...named, ...body, again: Boolean(mail.sent) }).catch(sentMeanwhile)}
    done=${({ sent }) => (sent ? (toast(`Sent to ${sent.to}.`), done()) : sendStatement(one, month, done))} />`);
}

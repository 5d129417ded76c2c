// Keys. Invariants: a secret is shown once and stored nowhere; an action that cannot be undone needs a confirmation.

import { ask, everyAccount, everyKey, post, projectName } from "./api.js";
import { confirmed, el, empty, loading, overlay, pairs, say, table } from "./dom.js";
import { creditForm, keyForm, limits, takesCredit } from "./limit_forms.js";
import { count, date, many, money } from "./formatting.js";

export const title = "Keys";

function state(key, blocked) {
  const [label, good] = key.revoked ? ["revoked", false] : key.blocked ? ["blocked", false]
    : key.expires && new Date(key.expires) < new Date() ? ["expired", false]
    : blocked?.has(key.team_id) ? ["project blocked", false] : ["active", true];
  return el("span", { class: `mark ${good ? "good" : "careful"}` }, label);
}

async function copied(field, button) {
  field.select();
  try {
    await navigator.clipboard.writeText(field.value);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Copy it manually";  // browsers allow the clipboard only over HTTPS or on localhost
  }
}

/** Shows a new secret, once. */
function secretShown(key, done) {
  const field = el("input", { id: "secret", readonly: true, value: key.key, spellcheck: "false", autocomplete: "off" });
  const button = el("button", { type: "button", class: "main", click: () => copied(field, button) }, "Copy");
  const box = overlay(`Secret of ${key.key_alias}`,
    el("p", {}, "This secret is shown only once. Copy it now and store it safely."),
    el("label", { for: "secret" }, "Secret"), el("div", { class: "row" }, field, button),
    el("div", { class: "row end" }, el("button", { type: "button", click: () => box.close() }, "Done")));
  box.addEventListener("close", () => (field.value = "", done()));
  field.select();
}

function renew(key, done) {
  const at = el("select", { id: "grace" }, el("option", { value: "24h" }, "in 24 hours"), el("option", { value: "1h" }, "in 1 hour"), el("option", { value: "now" }, "now"));
  const words = el("span", {}, el("label", { for: "grace" }, "The key gets a new secret. The old secret expires "), at, ".");
  confirmed(`New secret for ${key.key_alias}`, words, "Create secret", async () => {
    const answer = await post(`key/${encodeURIComponent(key.token)}/regenerate`, { grace_period: at.value });
    secretShown(answer, done);
  });
}

function revoke(key, done) {
  confirmed(`Revoke ${key.key_alias}?`, "This cannot be undone. The usage of the key stays in the ledger. To disable the key for some time, block it instead.", `Revoke ${key.key_alias} permanently`, async () => {
    await post("key/delete", { keys: [key.token] });
    done(`${key.key_alias} is revoked.`);
  });
}

function block(key, done) {
  if (key.blocked) {
    const act = async () => (await post("key/unblock", { key: key.token }), done(`${key.key_alias} is unblocked.`));
    return confirmed(`Unblock ${key.key_alias}?`, "Its requests are accepted again at once.", "Unblock", act);
  }
  return confirmed(`Block ${key.key_alias}?`, "Its requests are refused until you unblock it. Running requests continue.", "Block", async () => {
    await post("key/block", { key: key.token });
    done(`${key.key_alias} is blocked.`);
  });
}

function actions(key, again, me) {
  if (key.revoked) return "–";
  const button = (words, act) => el("button", { type: "button", class: "small", "aria-label": `${words}: ${key.key_alias}`, click: () => act(key, again) }, words);
  const change = (one, done) => keyForm(one, {}, () => done(`${one.key_alias} is changed.`));
  const pay = (one, done) => creditForm(one.key_alias, one, { key: one.token }, (paid) => done(`$${paid.usd} credit added for ${one.key_alias}.`));
  return el("div", { class: "row" }, button("Limits", change), me.may === "admin" && takesCredit(key) && button("Top up", pay),
    button("Rotate", renew), button(key.blocked ? "Unblock" : "Block", block), button("Revoke", revoke));
}

const columns = (again, projects, blocked, me) => [
  { label: "Name", long: true, cell: (key) => [el("a", { href: `#/exchanges?${new URLSearchParams({ key_id: key.token })}` }, key.key_alias), el("div", { class: "quiet small" }, key.key_name)] },
  { label: "Project", long: true, cell: (key) => projects[key.team_id] ?? key.team_id },
  { label: "Status", cell: (key) => state(key, blocked) },
  { label: "Spend, all time", number: true, cell: (key) => money(key.spend) },
  { label: "Limits", long: true, cell: limits },
  { label: "Expires", cell: (key) => (key.expires ? date(key.expires) : "never") },
  { label: "Actions", cell: (key) => actions(key, again, me), hidden: me.may === "read" },
];

async function own(body, signal) {
  const { info: key } = await ask("key/info", { signal });
  body.replaceChildren(el("section", { class: "card" }, el("h2", {}, key.key_alias), pairs([
    ["Secret", key.key_name], ["Status", state(key)], ["Spend, all time", money(key.spend)],
    ["Credit", takesCredit(key) ? money(key.credit) : null], ["Limits", el("span", {}, limits(key))],
    ["Project", key.team_id], ["Created", date(key.created_at)], ["Expires", key.expires ? date(key.expires) : "never"], ["Tags", key.tags.join(", ")],
  ]), el("p", { class: "quiet small" }, "Only the operator can change this key.")));
}

/** Project id → name, and the ids of projects that are blocked themselves or by their organization. */
function projectsOf(accounts) {
  const projects = accounts.filter((one) => one.kind === "project");
  const refused = new Set(accounts.filter((one) => one.blocked).map((one) => one.id));
  return {
    names: Object.fromEntries(projects.map((one) => [one.id, projectName(one, accounts)])),
    blocked: new Set(projects.filter((one) => refused.has(one.id) || refused.has(one.organization_id)).map((one) => one.id)),
  };
}

/** All keys, or the keys of the project in the URL; for a signed-in key, its own details. */
export async function show(body, { me, signal, query }) {
  body.replaceChildren(loading());
  if (me.role === "key") return own(body, signal);
  const only = query.get("project");
  const place = el("div", {}, loading());
  const revoked = el("input", { type: "checkbox", change: () => fill() });
  let names = {};
  const made = () => keyForm(null, names, (key) => secretShown(key, fill));
  const make = el("button", { type: "button", class: "main", click: made }, "New key");
  body.replaceChildren(el("div", { class: "row spread" }, me.may === "read" ? el("span") : make, el("label", { class: "check" }, revoked, "Show revoked keys")), place);
  async function fill(words) {
    const [every, accounts] = await Promise.all([everyKey(signal), everyAccount(signal)]);
    const found = every.filter((key) => !only || key.team_id === only);
    const keys = found.filter((key) => revoked.checked || !key.revoked);
    const hidden = found.length - keys.length;
    const projects = projectsOf(accounts);
    names = projects.names;
    const caption = `${many(keys.length, "key")}${only ? ` of ${names[only] ?? only}` : ""}${hidden ? `, ${count(hidden)} revoked hidden` : ""}, newest first`;
    const lines = table({ caption, columns: columns(fill, names, projects.blocked, me), rows: keys });
    const focused = place.contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") : false;
    place.replaceChildren(only ? el("p", { class: "small" }, el("a", { href: "#/keys" }, "Show the keys of all projects")) : "",
      keys.length ? lines : empty("No keys yet.", "Create a key. In your client, use its secret as the API key and the address of this proxy as the base URL."));
    if (focused !== false) ([...place.querySelectorAll("button")].find((one) => one.getAttribute("aria-label") === focused) ?? make).focus();
    if (typeof words === "string") say(words);
  }
  return fill();
}

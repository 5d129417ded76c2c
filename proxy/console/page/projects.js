// Organizations and projects. Invariant: usage of a project counts for its organization, too.

import { everyAccount, post } from "./api.js";
import { confirmed, el, loading, say, table } from "./dom.js";
import { accountForm, creditForm, limits, takesCredit } from "./limit_forms.js";
import { many, money } from "./formatting.js";

export const title = "Projects";
export const operator = true;

function block(one, done) {
  const path = one.blocked ? "account/unblock" : "account/block";
  const act = async () => (await post(path, { account: one.id }), done(`${one.name} is ${one.blocked ? "unblocked" : "blocked"}.`));
  if (one.blocked) return confirmed(`Unblock ${one.name}?`, "Requests of its keys are accepted again at once, unless the key, its project or its organization is still blocked.", "Unblock", act);
  return confirmed(`Block ${one.name}?`, `Requests of every key of this ${one.kind} are refused until you unblock it. Running requests continue.`, "Block", act);
}

function actions(one, again, me) {
  const button = (words, act) => el("button", { type: "button", class: "small", "aria-label": `${words}: ${one.kind} ${one.name}`, click: act }, words);
  const pay = () => creditForm(one.name, one, { account: one.id }, (paid) => again(`$${paid.usd} credit added for ${one.name}.`));
  return el("div", { class: "row" },
    button("Limits", () => accountForm(one, one.kind, {}, () => again(`${one.name} is changed.`))),
    me.may === "admin" && takesCredit(one) && button("Top up", pay), button(one.blocked ? "Unblock" : "Block", () => block(one, again)));
}

function name(one) {
  if (one.kind === "organization") return [one.name, el("div", { class: "quiet small" }, "organization")];
  return el("div", { class: "below" }, el("a", { href: `#/keys?${new URLSearchParams({ project: one.id })}` }, one.name), el("div", { class: "quiet small" }, "project"));
}

const state = (one, above) => {
  const label = one.blocked ? "blocked" : above?.blocked ? "organization blocked" : "active";
  return el("span", { class: `mark ${label === "active" ? "good" : "careful"}` }, label);
};

const columns = (again, byId, me) => [
  { label: "Name", long: true, cell: name },
  { label: "Status", cell: (one) => state(one, byId.get(one.organization_id)) },
  { label: "Spend, all time", number: true, cell: (one) => money(one.spend) },
  { label: "Limits", long: true, cell: limits },
  { label: "Actions", cell: (one) => actions(one, again, me), hidden: me.may === "read" },
];

/** All organizations, each followed by its projects. */
export async function show(body, { me, signal }) {
  body.replaceChildren(loading());
  let organizations = [];
  const place = el("div", {}, loading());
  const above = () => Object.fromEntries(organizations.map((one) => [one.id, one.name]));
  const make = (kind) => el("button", { type: "button", class: kind === "project" && "main", click: () =>
    accountForm(null, kind, above(), (one) => fill(`${one.name} is created.`)) }, `New ${kind}`);
  const first = make("project");
  body.replaceChildren(me.may === "read" ? "" : el("div", { class: "row spread" }, el("div", { class: "row" }, first, make("organization"))), place,
    el("p", { class: "quiet small" }, "A request must be within the limits of its key, its project and its organization. Spend by project is under ", el("a", { href: "#/spend?by=project" }, "Spend"), "."));
  async function fill(words) {
    const every = await everyAccount(signal);
    organizations = every.filter((one) => one.kind === "organization");
    const rows = organizations.flatMap((one) => [one, ...every.filter((below) => below.organization_id === one.id)]);
    const byId = new Map(every.map((one) => [one.id, one]));
    const caption = `${many(organizations.length, "organization")}, ${many(rows.length - organizations.length, "project")}`;
    const focused = place.contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") : false;
    place.replaceChildren(table({ caption, columns: columns(fill, byId, me), rows }));
    if (focused !== false) ([...place.querySelectorAll("button")].find((one) => one.getAttribute("aria-label") === focused) ?? first).focus();
    if (words) say(words);
  }
  return fill();
}

// Spent and reserved amounts of budgets. Invariant: reservations of running exchanges are shown apart from spend.

import { ask, pause } from "./api.js";
import { el, empty, failure, loading } from "./dom.js";
import { count, many, moment, money, nusd, percent } from "./formatting.js";

export const title = "Budgets";

const EVERY_S = 10;
const MARKS = [0.5, 0.8, 1];
const WINDOWS = { none: "lifetime", calendar_hour: "per hour", calendar_day: "per day", calendar_week: "per week", calendar_month: "per calendar month", credit: "credit" };

const ratio = (part, whole) => (whole <= 0n ? 1 : Number(part) / Number(whole));
const level = (used) => (used >= 1 ? "full" : used >= 0.8 ? "high" : used >= 0.5 ? "half" : "low");

function bar(one) {
  const spent = ratio(nusd(one.spent_usd), nusd(one.budget_usd));
  const held = nusd(one.held_usd) > 0n ? ratio(nusd(one.held_usd), nusd(one.budget_usd)) : 0;
  // Space to the right of the last mark, to show when it is exceeded.
  const scale = Math.max(1.04, spent + held);
  const words = `${percent(spent)} spent${held > 0 ? `, ${percent(held)} reserved` : ""}`;
  const part = (name, width) => {
    const made = el("span", { class: name });
    made.style.width = `${(Math.max(0, width) / scale) * 100}%`;
    return made;
  };
  const marks = MARKS.map((at) => {
    const made = el("span", { class: "limit", "aria-hidden": "true" }, el("span", {}, `${at * 100}`));
    made.style.left = `${(at / scale) * 100}%`;
    return made;
  });
  return el("div", { class: "fill-frame" }, el("div", {
    class: `fill ${level(spent)}`, role: "meter", "aria-label": `Budget of ${one.name}`, "aria-valuemin": 0, "aria-valuemax": 100,
    "aria-valuenow": Math.min(100, spent * 100).toFixed(2), "aria-valuetext": words,
  }, part("spent", spent), part("held", held)), marks);
}

function state(spent, prepaid) {
  if (spent >= 1) return `Exhausted: requests are rejected until ${prepaid ? "credit is added" : "the next period begins or the budget is raised"}.`;
  if (spent >= 0.8) return "Above 80 %.";
  return spent >= 0.5 ? "Above 50 %." : "";
}

function card(one) {
  const spent = ratio(nusd(one.spent_usd), nusd(one.budget_usd));
  const left = nusd(one.budget_usd) - nusd(one.spent_usd) - nusd(one.held_usd);
  return el("section", { class: "card budget" },
    el("h2", {}, one.name, Object.values(one.dimensions).length > 0 && `: ${Object.values(one.dimensions).map((each) => each.value ?? each.value_id).join(", ")}`, " ", el("span", { class: "quiet small" }, one.scope_kind)),
    el("p", {}, money(one.spent_usd), " of ", money(one.budget_usd), ` ${WINDOWS[one.window] ?? `per ${one.window}`} · ${percent(spent)}`),
    bar(one),
    el("p", { class: "small" }, state(spent, one.window === "credit"), " Left: ", money(left > 0n ? left : 0n), ". Reserved: ", money(one.held_usd), one.running > 0 && ` (${many(one.running, "stream")})`, "."),
    el("p", { class: "quiet small" }, one.window_end ? ["Resets: ", moment(one.window_end), "."] : { none: "No reset.", credit: "Prepaid balance." }[one.window] ?? ""));
}

/** Fullest budgets first; refreshed until the view is left. */
export async function show(body, { me, signal }) {
  body.replaceChildren(loading());
  while (!signal.aborted) {
    try {
      const every = (await ask("v1/budgets", { signal })).data.sort((one, other) => other.used_ratio - one.used_ratio);
      const none = empty("No budget is in use yet.", me.role === "operator"
        ? ["A budget appears here after its first request. Set a budget under ", el("a", { href: "#/keys" }, "Keys"), "."]
        : "Your key has no budget, or has not been used yet.");
      if (signal.aborted) return;
      body.replaceChildren(every.length ? el("div", { class: "cards" }, every.map(card)) : none,
        el("p", { class: "quiet small" }, every.length ? `${many(every.length, "budget")}, fullest first. Spend is by usage date, corrections included. Alerts are sent at 50, 80 and 100 %${every.some((one) => one.window === "credit") ? ", but not for prepaid credit" : ""}. Updated every ${count(EVERY_S)} seconds.` : ""));
    } catch (error) {
      if (signal.aborted || error.status === 401) return;
      body.replaceChildren(failure(error));
    }
    await pause(EVERY_S, signal);
  }
}

// What operators have done. Law: nothing is left out and nothing can be changed here; an act whose end nobody put down says so.

import { ask, everyAccount, everyKey } from "./api.js";
import { el, empty, failure, loading, rowOf, say, table } from "./dom.js";
import { many, mark, moment, RESULTS } from "./words.js";

export const title = "Audit";
export const operator = true;

const WAYS = { api: "in the console", cli: "by command" };

const text = (value) => (Array.isArray(value) ? value.map(text).join(" ") : value === null ? "none" : typeof value === "object" ? JSON.stringify(value) : String(value));

function details(one) {
  const given = Object.entries(one.details ?? {});
  return given.length ? given.map(([name, value]) => el("div", { class: "small" }, el("span", { class: "quiet" }, `${name}: `), text(value))) : "–";
}

const columns = (names) => [
  { label: "When", cell: (one) => moment(one.at, true) },
  { label: "Who", long: true, cell: (one) => [one.actor, el("div", { class: "quiet small" }, `${WAYS[one.via] ?? one.via}${one.origin ? `, from ${one.origin}` : ""}`)] },
  { label: "What", cell: (one) => el("code", {}, one.action) },
  { label: "On", long: true, cell: (one) => (names.has(one.target) ? [names.get(one.target), el("div", { class: "quiet small" }, one.target)] : one.target ?? "–") },
  { label: "Details", long: true, cell: details },
  { label: "Result", long: true, cell: (one) => [mark(RESULTS, one.result), one.message && el("div", { class: "small" }, one.message)] },
];

/** The newest; older ones when they are asked for. */
export async function show(body, { signal }) {
  body.replaceChildren(loading());
  const [keys, accounts] = await Promise.all([everyKey(signal), everyAccount(signal)]);
  /** @type {any} */
  const named = [...keys.map((one) => [one.token, one.key_alias]), ...accounts.map((one) => [one.id, one.name])];
  const names = new Map(named);
  const heads = columns(names);
  const more = el("div", { class: "row end" });
  let lines = null;
  async function add(after) {
    more.replaceChildren();
    try {
      const page = await ask("v1/audit", { query: { after }, signal });
      if (!lines) {
        lines = table({ caption: "What operators have done here or by command, newest first", columns: heads, rows: [] });
        body.replaceChildren(page.data.length ? lines : empty("Nothing was done yet.", "Every change of a key, a project, a budget, a price or an entry is put down here, with who made it and from where."), more);
      }
      lines.tBodies[0].append(...page.data.map((one) => rowOf(heads, one)));
      if (page.has_more) more.replaceChildren(el("button", { type: "button", click: () => add(page.next_after) }, "Show older ones"));
      if (after) say(`${many(page.data.length, "more act")} shown.`);
    } catch (error) {
      if (signal.aborted) return;
      if (!lines) throw error;
      more.replaceChildren(failure(error, () => add(after)));
    }
  }
  await add();
}

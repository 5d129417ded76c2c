// The audit log. Invariants: read-only and complete; a change without a recorded result is shown as unknown.

import { ask, everyAccount, everyKey } from "./api.js";
import { el, empty, failure, loading, rowOf, say, table } from "./dom.js";
import { many, mark, moment, RESULTS } from "./formatting.js";

export const title = "Audit";
export const operator = true;

const WAYS = { api: "console or API", cli: "command line" };

const text = (value) => (Array.isArray(value) ? value.map(text).join(" ") : value === null ? "none" : typeof value === "object" ? JSON.stringify(value) : String(value));

function details(one) {
  const given = Object.entries(one.details ?? {});
  return given.length ? given.map(([name, value]) => el("div", { class: "small" }, el("span", { class: "quiet" }, `${name}: `), text(value))) : "–";
}

const columns = (names) => [
  { label: "When", cell: (one) => moment(one.at, true) },
  { label: "Who", long: true, cell: (one) => [one.actor, el("div", { class: "quiet small" }, `${WAYS[one.via] ?? one.via}${one.origin ? ` from ${one.origin}` : ""}`)] },
  { label: "Action", cell: (one) => el("code", {}, one.action) },
  { label: "Target", long: true, cell: (one) => (names.has(one.target) ? [names.get(one.target), el("div", { class: "quiet small" }, one.target)] : one.target ?? "–") },
  { label: "Details", long: true, cell: details },
  { label: "Result", long: true, cell: (one) => [mark(RESULTS, one.result), one.message && el("div", { class: "small" }, one.message)] },
];

/** The newest entries; a button loads older ones. */
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
        lines = table({ caption: "Changes by operators, newest first", columns: heads, rows: [] });
        body.replaceChildren(page.data.length ? lines : empty("No changes yet.", "Every change of a key, a project, a budget, a price or an entry is recorded here, with the operator and the origin."), more);
      }
      lines.tBodies[0].append(...page.data.map((one) => rowOf(heads, one)));
      if (page.has_more) more.replaceChildren(el("button", { type: "button", click: () => add(page.next_after) }, "Show older entries"));
      if (after) say(`${many(page.data.length, "more entry", "more entries")} shown.`);
    } catch (error) {
      if (signal.aborted) return;
      if (!lines) throw error;
      more.replaceChildren(failure(error, () => add(after)));
    }
  }
  await add();
}

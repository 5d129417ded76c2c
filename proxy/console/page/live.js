// What runs now. Law: a stream's line stays where it is while its numbers grow, so that it can be read and clicked.

import { events, pause } from "./api.js";
import { el, empty, failure, loading, pairs, rowOf, table, tile } from "./dom.js";
import { count, many, mark, moment, money, span, SOURCES } from "./words.js";

export const title = "Live";

const RETRY_S = 3;
const ENDED_MAX = 8;
const STATES = { waiting: "waiting for the provider", streaming: "streaming", draining: "client gone, read to its end" };

// A proxy that says nothing for so long may be dead.
const SILENT_S = 10;

/** How much is known of other machines, where it is less than all. */
const COVERAGE = {
  partial: "Other machines run more than can be shown here; each shows its own at its own console, and all is in the ledger once it ends.",
  unknown: "What other machines run cannot be asked now: the queue does not answer. It is in the ledger once it ends.",
};

function where(one) {
  if (one.node === null) return "this machine";
  const age = one.heartbeat_age_s > SILENT_S
    ? el("span", { class: "mark careful", title: "It has not said anything for so long. If it is dead, its streams are settled from what was known." }, `silent for ${span(one.heartbeat_age_s * 1000)}`)
    : el("span", { class: "quiet small" }, "a few seconds old");
  return [el("div", { title: `proxy ${one.node}` }, one.node.slice(0, 8)), age];
}

const COLUMNS = (me, alone) => [
  { label: "Model", long: true, cell: (one) => el("a", { class: "row-link", href: `#/exchanges/${one.id}` }, one.model) },
  { label: "Key", long: true, cell: (one) => one.key_alias, hidden: me.role === "key" },
  { label: "State", cell: (one) => STATES[one.state] },
  { label: "Prompt", number: true, cell: (one) => count(one.prompt_tokens) },
  { label: "Output", number: true, cell: (one) => el("span", { class: "growing" }, count(one.completion_tokens)) },
  { label: "Counted", cell: (one) => mark(SOURCES, one.usage_source) },
  { label: "Charge", number: true, cell: (one) => money(one.charge_usd) },
  { label: "Cost", number: true, cell: (one) => money(one.cost_usd), hidden: me.role === "key" },
  { label: "Age", number: true, cell: (one) => span(one.age_s * 1000) },
  { label: "Runs on", cell: where, hidden: alone },
];

class Board {
  constructor(body, me, alone) {
    this.columns = COLUMNS(me, alone);
    this.lines = new Map();
    this.ended = [];
    this.tiles = el("div", { class: "tiles" });
    this.running = table({ caption: "Streams that run", columns: this.columns, rows: [], opens: true });
    this.none = empty("Nothing runs at this moment.", "A request appears here when it is sent on to its provider, and leaves when it ends: send one, or look at what ended under ", el("a", { href: "#/exchanges" }, "Exchanges"), ".");
    this.past = el("section", { hidden: true });
    this.trouble = el("div", {});
    body.replaceChildren(this.trouble, this.tiles, this.running, this.none, this.past);
  }

  draw(seen) {
    const less = COVERAGE[seen.remote_coverage];
    this.trouble.replaceChildren(less ? el("p", { class: "notice small" }, less) : "");
    this.tiles.replaceChildren(
      tile("Running", count(seen.running), seen.remote_nodes ? `on this machine and by ${many(seen.remote_nodes, "other proxy", "other proxies")}`
        : seen.processes > 1 ? `in ${many(seen.processes, "process", "processes")}` : "on this machine"),
      tile("Output tokens so far", count(seen.completion_tokens)),
      tile("Charge so far", money(seen.charge_usd), "if all ended now"));
    const present = new Set(seen.data.map((one) => one.id));
    for (const [id, line] of this.lines) if (!present.has(id)) this.leave(id, line, seen.remote_coverage);
    for (const one of [...seen.data].reverse()) this.put(one);
    this.running.hidden = present.size === 0;
    this.none.hidden = present.size > 0;
    const more = seen.running - seen.data.length;
    this.running.caption.textContent = more > 0 ? `The ${count(seen.data.length)} newest streams of ${count(seen.running)}` : "Streams that run";
  }

  put(one) {
    const fresh = rowOf(this.columns, one);
    const line = this.lines.get(one.id);
    this.lines.set(one.id, { one, row: line?.row ?? fresh });
    if (!line) return this.running.tBodies[0].prepend(fresh);
    // The first cell has the link, and perhaps the focus: it never changes.
    [...fresh.cells].forEach((cell, number) => number && line.row.cells[number].replaceChildren(...cell.childNodes));
    return undefined;
  }

  leave(id, { one, row }, coverage) {
    if (row.contains(document.activeElement)) document.getElementById("main").focus();
    row.remove();
    this.lines.delete(id);
    if (one.node !== null && coverage !== "complete") return;  // it may only be out of sight
    this.ended = [one, ...this.ended].slice(0, ENDED_MAX);
    this.past.hidden = false;
    this.past.replaceChildren(el("h2", {}, "Ended while you looked"), el("ul", { class: "plain-list" }, this.ended.map((gone) =>
      el("li", {}, el("a", { href: `#/exchanges/${gone.id}` }, gone.model), ` · ${gone.key_alias} · began `, moment(gone.started_at)))));
  }

  lost(error, again) {
    this.trouble.replaceChildren(failure(new Error(`${error.message} What is shown is no longer live; trying again.`), again));
  }
}

/** Until it is left. */
export async function show(body, { me, signal }) {
  body.replaceChildren(loading());
  let board = null;
  while (!signal.aborted) {
    try {
      for await (const seen of events("v1/live", signal)) {
        board ??= new Board(body, me, seen.remote_coverage === "none");
        board.draw(seen);
      }
    } catch (error) {
      if (signal.aborted || error.status === 401) return;
      if (board) board.lost(error);
      else body.replaceChildren(failure(error));
    }
    await pause(RETRY_S, signal);
  }
}

/** One that runs, on its own page: what is known of it yet. */
export const standing = (one) => pairs([
  ["Model", one.model], ["Key", one.key_alias], ["State", STATES[one.state]], ["Began", moment(one.started_at)],
  ["Prompt tokens", count(one.prompt_tokens)], ["Output tokens so far", count(one.completion_tokens)],
  ["Charge so far", money(one.charge_usd)], ["Runs on", one.node === null ? null : el("span", {}, where(one))],
]);

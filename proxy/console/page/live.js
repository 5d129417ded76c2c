// Running streams. Invariant: a row keeps its place while its numbers change, so that it can be read and clicked.

import { events, pause } from "./api.js";
import { el, empty, failure, loading, pairs, rowOf, table, tile } from "./dom.js";
import { count, many, mark, moment, money, span, SOURCES } from "./formatting.js";

export const title = "Live";

const RETRY_S = 3;
const ENDED_MAX = 8;
const STATES = { waiting: "waiting for the provider", streaming: "streaming", draining: "client left, still reading", background: "background" };

// Without a heartbeat for this time, a proxy may have crashed.
const SILENT_S = 10;

/** Notices for incomplete coverage of other machines. */
const COVERAGE = {
  partial: "Other machines run more streams than this page can show. Their own consoles show them. All of them are in the ledger after they end.",
  unknown: "Streams of other machines cannot be shown: the queue does not answer. They are in the ledger after they end.",
};

function where(one) {
  if (one.node === null) return "this machine";
  const age = one.heartbeat_age_s > SILENT_S
    ? el("span", { class: "mark careful", title: "This proxy has sent no heartbeat for this time. If it has crashed, its streams are settled from their last recorded progress." }, `no heartbeat for ${span(one.heartbeat_age_s * 1000)}`)
    : el("span", { class: "quiet small" }, "updated a few seconds ago");
  return [el("div", { title: `proxy ${one.node}` }, one.node.slice(0, 8)), age];
}

const COLUMNS = (me, alone) => [
  { label: "Model", long: true, cell: (one) => el("a", { class: "row-link", href: `#/exchanges/${one.id}` }, one.model) },
  { label: "Key", long: true, cell: (one) => one.key_alias, hidden: me.role === "key" },
  { label: "State", cell: (one) => STATES[one.state] },
  { label: "Prompt", number: true, cell: (one) => count(one.prompt_tokens) },
  { label: "Output", number: true, cell: (one) => el("span", { class: "growing" }, count(one.completion_tokens)) },
  { label: "Usage", cell: (one) => mark(SOURCES, one.usage_source) },
  { label: "Charge", number: true, cell: (one) => money(one.charge_usd, "unpriced") },
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
    this.running = table({ caption: "Running streams", columns: this.columns, rows: [], opens: true });
    this.none = empty("No running streams.", "A request appears here when it is sent to its provider, and disappears when it ends. Ended requests are under ", el("a", { href: "#/exchanges" }, "Exchanges"), ".");
    this.past = el("section", { hidden: true });
    this.trouble = el("div", {});
    body.replaceChildren(this.trouble, this.tiles, this.running, this.none, this.past);
  }

  draw(seen) {
    const less = COVERAGE[seen.remote_coverage];
    this.trouble.replaceChildren(less ? el("p", { class: "notice small" }, less) : "");
    this.tiles.replaceChildren(
      tile("Running", count(seen.running), seen.remote_nodes ? `on this machine and ${many(seen.remote_nodes, "other proxy", "other proxies")}`
        : seen.processes > 1 ? `in ${many(seen.processes, "process", "processes")}` : "on this machine"),
      tile("Output tokens so far", count(seen.completion_tokens)),
      tile("Accrued charge", money(seen.charge_usd), seen.unpriced > 0 && `${count(seen.unpriced)} unpriced`));
    const present = new Set(seen.data.map((one) => one.id));
    for (const [id, line] of this.lines) if (!present.has(id)) this.leave(id, line, seen.remote_coverage);
    for (const one of [...seen.data].reverse()) this.put(one);
    this.running.hidden = present.size === 0;
    this.none.hidden = present.size > 0;
    const more = seen.running - seen.data.length;
    this.running.caption.textContent = more > 0 ? `The newest ${count(seen.data.length)} of ${count(seen.running)} streams` : "Running streams";
  }

  put(one) {
    const fresh = rowOf(this.columns, one);
    const line = this.lines.get(one.id);
    this.lines.set(one.id, { one, row: line?.row ?? fresh });
    if (!line) return this.running.tBodies[0].prepend(fresh);
    // The first cell holds the link and may have the focus: keep it.
    [...fresh.cells].forEach((cell, number) => number && line.row.cells[number].replaceChildren(...cell.childNodes));
    return undefined;
  }

  leave(id, { one, row }, coverage) {
    if (row.contains(document.activeElement)) document.getElementById("main").focus();
    row.remove();
    this.lines.delete(id);
    if (one.node !== null && coverage !== "complete") return;  // it may still run, but not be listed
    this.ended = [one, ...this.ended].slice(0, ENDED_MAX);
    this.past.hidden = false;
    this.past.replaceChildren(el("h2", {}, "Recently finished"), el("ul", { class: "plain-list" }, this.ended.map((gone) =>
      el("li", {}, el("a", { href: `#/exchanges/${gone.id}` }, gone.model), ` · ${gone.key_alias} · started `, moment(gone.started_at)))));
  }

  lost(error, again) {
    this.trouble.replaceChildren(failure(new Error(`${error.message} The data below is not live any more; reconnecting.`), again));
  }
}

/** Updates until the view is left. */
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

/** The details of a running exchange, for its own page. */
export const runningDetails = (one) => pairs([
  ["Model", one.model], ["Key", one.key_alias], ["State", STATES[one.state]], ["Started", moment(one.started_at)],
  ["Prompt tokens", count(one.prompt_tokens)], ["Output tokens so far", count(one.completion_tokens)],
  ["Accrued charge", money(one.charge_usd, "unpriced")], ["Runs on", one.node === null ? null : el("span", {}, where(one))],
]);

// Running streams. Invariant: a row keeps its place while its numbers change, so that it can be read and clicked.

import { events, pause, post } from "./api.js";
import { count, many, SOURCES, span } from "./formatting.js";
import { to } from "./route.js";
import { Confirm, Empty, Failure, html, Loaded, Menu, Money, openDialog, Pairs, Status, Table, Tile, Time, toast, useEffect, useState } from "./ui.js";

export const title = "Live";
export const accepts = {};

const RETRY_S = 3;
const ENDED_MAX = 8;
const STATES = { waiting: ["Waiting for the provider"], streaming: ["Streaming"], draining: ["Client left, still reading"], background: ["Background"] };

// Without a heartbeat for this time, a proxy may have crashed.
const SILENT_S = 10;

/** Notices for incomplete coverage of other machines. */
const COVERAGE = {
  partial: "Other machines run more streams than this page can show. Their own consoles show them. All of them are in the ledger after they end.",
  unknown: "Streams of other machines cannot be shown: the queue does not answer. They are in the ledger after they end.",
};

const Node = ({ of }) => (of.node === null ? "this machine" : html`<span title=${`proxy ${of.node}`}>${of.node.slice(0, 8)}
  </span> ${of.heartbeat_age_s > SILENT_S
  ? html`<span class="status small"
    title="This proxy has sent no heartbeat for this time. If it has crashed, its streams are settled from their last recorded progress.">
    <span class="dot careful" aria-hidden="true" />no heartbeat for ${span(of.heartbeat_age_s * 1000)}</span>`
  : html`<span class="quiet small">updated a few seconds ago</span>`}`);

const mayStop = (me) => me.role === "operator" && me.may !== "read";
const isStoppable = (one) => one.streamed && one.state !== "background";

const stop = (one) => openDialog(html`<${Confirm} title="Stop this stream?" label="Stop the stream" act=${async () => {
  const { status } = await post(`v1/exchanges/${encodeURIComponent(one.id)}/stop`, {});
  toast(status === "requested" ? "The other machine stops the stream within seconds." : "The stream is stopped.");
}}>${one.model}, key ${one.key_alias}. The client gets an error. What was used up to then is billed.<//>`);

const columns = (me, alone) => [
  { label: "Model", lead: true, cell: (one) => html`<a class="row-link" href=${to(["requests", one.id])}>${one.model}</a>` },
  { label: "Key", fact: true, clip: true, cell: (one) => one.key_alias, hidden: me.role === "key" },
  { label: "State", fact: true, cell: (one) => html`<${Status} table=${STATES} name=${one.state} />` },
  { label: "Input", number: true, cell: (one) => count(one.prompt_tokens) },
  { label: "Output", number: true, fact: true, cell: (one) => html`<span class="growing">${count(one.completion_tokens)}</span>` },
  { label: "Token count", cell: (one) => html`<${Status} table=${SOURCES} name=${one.usage_source} />` },
  { label: "Charge", usd: (one) => one.charge_usd, none: () => "no price" },
  { label: "Cost", usd: (one) => one.cost_usd, hidden: me.role === "key" },
  { label: "Age", number: true, cell: (one) => span(one.age_s * 1000) },
  { label: "Runs on", fact: true, cell: (one) => html`<${Node} of=${one} />`, hidden: alone },
  { label: "Actions", menu: true, hidden: !mayStop(me), cell: (one) => isStoppable(one) && html`<${Menu} label=${`Actions for ${one.model}, ${one.key_alias}`}
    of=${[{ label: "Stop", danger: true, act: () => stop(one) }]} />` },
];

const isIn = (list, id) => list.some((one) => one.id === id);

/** The next state of the board: streams keep their place, new ones come first, ended ones are listed apart. */
function next(before, seen) {
  const fresh = new Map(seen.data.map((one) => [one.id, one]));
  const stayed = before.rows.filter((one) => fresh.has(one.id)).map((one) => fresh.get(one.id));
  // A stream of another machine may still run, but not be listed.
  const gone = before.rows.filter((one) => !fresh.has(one.id) && (one.node === null || seen.remote_coverage === "complete"));
  return { seen, rows: [...seen.data.filter((one) => !isIn(before.rows, one.id)), ...stayed], ended: [...gone, ...before.ended].slice(0, ENDED_MAX) };
}

/** The streams, once a second. */
function useStreams() {
  const [state, set] = useState({ data: undefined, error: null });
  useEffect(() => {
    const stop = new AbortController();
    (async () => {
      while (!stop.signal.aborted) {
        try {
          for await (const seen of events("v1/live", stop.signal)) set((before) => ({ data: next(before.data ?? { rows: [], ended: [] }, seen), error: null }));
        } catch (error) {
          if (stop.signal.aborted || error.status === 401) return;
          set((before) => ({ ...before, error }));
        }
        await pause(RETRY_S, stop.signal);
      }
    })();
    return () => stop.abort();
  }, []);
  return state;
}

const where = (seen) => (seen.remote_nodes ? `on this machine and ${many(seen.remote_nodes, "other proxy", "other proxies")}` : seen.processes > 1
  ? `in ${many(seen.processes, "process", "processes")}` : "on this machine");

function Board({ me, seen, rows, ended }) {
  const more = seen.running - seen.data.length;
  return html`${COVERAGE[seen.remote_coverage] && html`<p class="notice small">${COVERAGE[seen.remote_coverage]}</p>`}
    <div class="tiles"><${Tile} label="Running" more=${where(seen)}>${count(seen.running)}<//>
      <${Tile} label="Output tokens so far">${count(seen.completion_tokens)}<//>
    <${Tile} label="Accrued charge" more=${seen.unpriced > 0 && `${count(seen.unpriced)} without a price`}><${Money} usd=${seen.charge_usd} /><//></div>
    ${rows.length ? html`<${Table} caption=${more > 0 ? `The newest ${count(seen.data.length)} of ${count(seen.running)} streams` : "Running streams"}
      columns=${columns(me, seen.remote_coverage === "none")} rows=${rows} open=${(one) => to(["requests", one.id])} />`
      : html`<${Empty} title="No running streams.">A request appears here when it is sent to its provider. Ended requests are under <a
        href=${to("requests")}>Requests</a>.<//>`}
    ${ended.length > 0 && html`<section><h2>Recently finished</h2>
      <ul class="plain-list">${ended.map((one) => html`<li key=${one.id}><a href=${to(["requests", one.id])}>${one.model}
      </a> · ${one.key_alias} · <${Time} at=${one.started_at} /></li>`)}</ul></section>`}`;
}

/** Updates until the page is left. */
export function Page({ me }) {
  const state = useStreams();
  const lost = state.error && state.data && html`<${Failure} error=${{ message: `${state.error.message} The data below is not live any more; reconnecting.` }}
    />`;
  return html`${lost}<${Loaded} of=${{ ...state, error: state.data ? null : state.error }}>${(data) => html`<${Board} me=${me} ...${data} />`}<//>`;
}

/** The details of a running request, for its own page. */
export const Running = ({ of, me }) => html`${mayStop(me) && isStoppable(of) && html`<div class="row"><button type="button" class="danger"
  onClick=${() => stop(of)}>Stop the stream</button></div>`}<${Pairs} of=${[
  ["Model", of.model], ["Key", of.key_alias], ["State", STATES[of.state][0]], ["Started", html`<${Time} at=${of.started_at} />`],
    ["Age", span(of.age_s * 1000)],
  ["Input tokens", count(of.prompt_tokens)], ["Output tokens so far", html`<span class="growing">${count(of.completion_tokens)}</span>`],
    ["Output tokens per second", of.age_s > 0 && count(Math.round(of.completion_tokens / of.age_s))],
  ["Accrued charge", html`<${Money} usd=${of.charge_usd} none="no price" />`], ["Runs on", of.node === null ? null : html`<${Node} of=${of} />`],
]} />`;

// One request as a receipt. Invariant: all amounts come from the ledger; nothing is computed here.

import { ask, askUnfinished, pause, post, save } from "./api.js";
import { Form } from "./form.js";
import { count, exact, many, nusd, OUTCOMES, outcomeOf, plain, SOURCES, span } from "./formatting.js";
import { number, same } from "./limit_forms.js";
import { Running } from "./live.js";
import { here, to } from "./route.js";
import { Back, Code, Confirm, Copy, Empty, Failure, html, Money, openDialog, Pairs, Status, Table, Time, toast, useEffect, useRef,
  useState } from "./ui.js";

export const title = "Request";
export const accepts = {};

const BILLED = { "prompt+output": "Input and output", prompt: "Input only", output: "Output only", nothing: "Nothing" };
const NAMES = { prompt: "Input", input: "Input", cached: "Cached input", completion: "Output", output: "Output", reasoning: "Reasoning",
  total: "Total tokens" };
const POLICIES = { drain: "kept reading", cancel: "cancelled at the provider", resume: "kept for resuming", background: "continued in the background" };

const itemName = (name) => NAMES[name] ?? plain(name).replace(/^./, (first) => first.toUpperCase());
const countName = (name) => itemName(name.replace("_tokens", ""));
const text = (value) => (typeof value === "object" && value !== null ? JSON.stringify(value) : typeof value === "number" ? count(value) : String(value));
/** `tier:batch` → `batch tier`. */
const unitName = (unit) => plain(unit.split(":").reverse().join(" "));
const rate = (usd) => (usd === null ? "no price" : exact(nusd(usd)));
const total = (usd) => (usd === null ? "Not charged" : exact(nusd(usd)));
const signed = (usd) => (usd === null ? "–" : `${nusd(usd) < 0n ? "" : "+"}${exact(nusd(usd))}`);

const pathOf = (one) => `v1/exchanges/${encodeURIComponent(one.id)}`;

// -- actions

const MONEY = { charge_usd: "Charge", cost_usd: "Provider cost" };
const HINTS = { prompt_tokens: "tokens, with the cached ones", completion_tokens: "tokens, with the reasoning", cached_tokens: "a part of the input",
  reasoning_tokens: "a part of the output" };
const shown = (name, value) => (value === null ? "unknown" : name in MONEY ? exact(nusd(value)) : count(value));

/** Asks for new totals, shows what they change, and writes the adjustment after a confirmation. */
function adjust(one, again) {
  const names = new Set(["prompt_tokens", "completion_tokens", ...Object.keys(one.usage.counts)]);
  names.delete("total_tokens");
  const send = (body) => post(`${pathOf(one)}/adjust`, body);
  const Preview = ({ body, changed, replaced }) => html`<${Confirm} title="Adjust this request?" label="Adjust"
    act=${async () => { await send({ ...body, replace: Object.keys(replaced).length > 0 }); toast("The request is adjusted."); again(); }}>
    ${Object.entries(changed).map(([name, { old, new: next }]) => html`<span key=${name}>${MONEY[name] ?? countName(name)}: from <strong>${shown(name,
      old)}</strong> to <strong>${shown(name, next)}</strong><br /></span>`)}
    ${Object.entries(replaced).map(([name, usd]) => html`<span key=${name}>${MONEY[name]}: an operator has set ${shown(name, usd)}. It is calculated anew.
      <br /></span>`)}
    <span class="quiet">The adjustment is on the statement of this month.</span><//>`;
  const usd = ([name, label]) => [name, { label: `${label}, USD`, hint: "if you do not change it, it is calculated from the tokens", from: () => one[name] ?? "", to: same }];
  openDialog(html`<${Form} title="Adjust this request" label="Preview" one=${one} fields=${Object.fromEntries([...Object.entries(MONEY).map(usd),
    ...[...names].map((name) => [name, { label: countName(name), hint: HINTS[name], type: "number", min: 0, from: () => one.usage.counts[name] ?? "", to: number }]),
    ["reason", { label: "Reason", hint: "the customer sees it", required: true, from: () => "", to: same }]])}
    send=${async (body) => ({ body, ...await send({ ...body, dry_run: true }) })} done=${(found) => html`<${Preview} ...${found} />`} />`);
}

const saveReceipt = (one) => save(`${pathOf(one)}/receipt`, {}, `receipt-${one.id}.json`).catch((error) => toast(error.message));

// -- the receipt

const Change = ({ of }) => {
  const counts = Object.entries(of.counts).filter(([, number]) => number).map(([name, number]) => `${plain(name)} ${number > 0 ? "+"
    : "−"}${count(Math.abs(number))}`);
  const prices = of.prices.map(({ price, old_usd, new_usd, per }) => `${itemName(price)} ${rate(old_usd)} → ${rate(new_usd)} ${per}`);
  return html`${of.reason === "rerated" ? "Repriced" : of.reason || "Correction"}${[html`${of.actor && `by ${of.actor}, `}<${Time} at=${of.settled_at} />`,
    ...counts, ...prices, of.prices.length > 0 && of.price_version && `Price list ${of.price_version}`].filter(Boolean)
    .map((line) => html`<div class="quiet small">${line}</div>`)}`;
};

/** The parts of the charge, its changes, and their sum, which is the charge at the head of the page. */
function Receipt({ one }) {
  const { charge, adjustments } = one;
  const rows = charge.addends.map((part, number) => ({ id: number, item: itemName(part.price) + (part.model ? ` (${part.model})` : ""),
    units: count(part.units), price: `${rate(part.rate_usd)} ${part.per}`, amount: `$${part.amount_usd}` }));
  if (adjustments.length) rows.push({ id: "ended", item: "Charge when it ended", amount: total(charge.usd) },
    ...adjustments.map((change) => ({ id: change.entry_id, item: html`<${Change} of=${change} />`, amount: signed(change.charge_usd) })));
  const nothing = charge.usd === null ? "No price for this model. Not charged." : charge.billed === "nothing" ? "Nothing is billed."
    : "No tokens were counted.";
  const foot = html`<tr role="row"><th scope="row" role="rowheader" colspan="3">Total</th>
    <td role="cell" class="number"><strong class="figure">${total(one.charge_usd)}</strong></td></tr>`;
  const prices = charge.price && Object.entries(charge.price).filter(([name]) => !["version", "multipliers",
    "stated"].includes(name)).map(([name, value]) => [itemName(name), text(value)]);
  return html`<section class="card receipt"><h2>Receipt</h2>
    ${rows.length > 0 ? html`<${Table} rows=${rows} foot=${foot} columns=${[
    { label: "Item", lead: true, cell: (row) => row.item }, { label: "Units", number: true, fact: true, cell: (row) => row.units },
      { label: "Price (USD)", number: true, fact: true, cell: (row) => row.price },
    { label: "Amount", number: true, amount: true, cell: (row) => html`<span class="figure">${row.amount}</span>` },
  ]} />` : html`<p>${nothing}</p>`}
    <${Pairs} of=${[["Billed", BILLED[charge.billed]], ["Price list", one.price_version],
      ...Object.entries(charge.price?.multipliers ?? {}).map(([reason, by]) => ["Multiplier", `× ${by} for ${reason}`]),
    ["No price for", one.details.unpriced_units?.map(unitName).join(", ")], ["Reserved", one.held_usd && html`<${Money} usd=${one.held_usd} />`]]} />
    ${one.cost && html`<${Pairs} of=${[["Provider cost", html`<${Money} usd=${one.cost_usd} none="Unknown" />`],
      ["Cost when it ended", one.cost.usd !== one.cost_usd && html`<${Money} usd=${one.cost.usd} none="Unknown" />`],
    ["Cost price list", one.cost.price?.version], ["No cost for", one.details.cost_unpriced_units?.map(unitName).join(", ")]]} />`}
    ${prices && html`<details><summary>All prices of this list</summary><${Pairs} of=${prices} /></details>`}</section>`;
}

// -- delivery

/** Where the time went, and how far the client got. `read_on_ms`: how long the answer was read after the client had left. */
function Delivery({ one }) {
  const { timeline: line, details, usage } = one;
  const whole = line.duration_ms;
  const first = Math.min(whole, line.first_token_ms ?? whole);
  const after = Math.min(whole - first, Number(details.read_on_ms ?? 0));
  /** @type {[string, number, string][]} */
  const all = [["waiting", first, line.first_token_ms === null ? "waiting, no token came" : "waiting"],
    ["streaming", whole - first - after, "received by the client"], ["after", after, "read after the client left"]];
  const parts = all.filter(([, ms]) => ms > 0);
  const output = usage.counts.completion_tokens;
  const left = one.outcome === "client_left" || after > 0;
  const settled = Math.max(0, Number(new Date(line.settled_at)) - Number(new Date(line.ended_at)));
  return html`<section class="card"><h2>Delivery</h2>
    ${whole > 0 && html`<div class="delivery" role="img" aria-label=${parts.map(([, ms, what]) => `${span(ms)} ${what}`).join(", ")}>
      ${parts.map(([name, ms]) => html`<span key=${name} class=${`time-${name}`} style=${{ flexGrow: ms }} />`)}</div>
    <ul class="legend">${parts.map(([name, ms, what]) => html`<li key=${name}><span class=${`swatch time-${name}`} />${span(ms)} ${what}</li>`)}</ul>`}
    ${left && html`<p class="notice small">The client received ${many(one.events, "event")}${output ? ` of an answer with ${many(output, "output token")}`
      : ""}, then left${after > 0 ? html`. The proxy ${POLICIES[details.policy] ?? "kept reading"} for ${span(after)}` : ""}.
      ${output !== undefined && usage.source !== "estimated" && html` <strong>The provider bills all ${count(output)}.</strong>`}</p>`}
    <${Pairs} of=${[["Started", html`<${Time} at=${line.started_at} />`], ["First token", line.first_token_at && html`<${Time} at=${line.first_token_at} />`],
      ["Ended", html`<${Time} at=${line.ended_at} />`], ["Recorded", `after ${span(settled)}`],
      ["Answer", one.streamed ? `streamed, ${many(one.events, "event")}` : "not streamed"], ["Sent to the client", many(one.bytes, "byte")],
    ["On disconnect", details.policy && `${POLICIES[details.policy] ?? details.policy}${details.read_on_ms ? ` ${span(details.read_on_ms)}` : ""}`],
    ...Object.entries(line.provider_timings).map(([name, value]) => [`Provider: ${plain(name)}`, text(value)])]} /></section>`;
}

// -- tokens, attempts, everything else

function Tokens({ usage: used, details }) {
  const error = used.expected_error === null ? "" : ` ± ${Math.max(1, Math.round(used.expected_error * 100))} %`;
  return html`<section class="card"><h2>Tokens</h2><p><${Status} table=${SOURCES} name=${used.source} />${error}</p>
    <${Pairs} of=${Object.entries(used.counts).map(([name, number]) => [countName(name), count(number)])} />
    ${used.evidence && html`<details open><summary>How it was estimated</summary>
      <${Pairs} of=${[["Estimator", used.estimator], ...Object.entries(used.evidence).map(([name, value]) => [EVIDENCE[name] ?? itemName(name), text(value)])]}
      /></details>`}
    <${Pairs} of=${[["Not read", details.unread?.join(", ")], ["Flags", used.flags.map(plain).join(", ")]]} />
    ${used.reported && html`<details><summary>Raw usage from provider</summary><pre tabindex="0">${JSON.stringify(used.reported, null, 2)}</pre></details>`}
      </section>`;
}
const EVIDENCE = { text_events: "Text events", chars_latin: "Latin characters", blanks: "Spaces", marks: "Punctuation", tokens_counted: "Tokens" };

const Attempts = ({ of }) => (of.length ? html`<section class="card wide"><h2>Earlier attempts</h2>
  <${Table} rows=${of} keyOf=${(one) => one.started_at} columns=${[
  { label: "Provider", lead: true, cell: (one) => one.provider }, { label: "Provider model", fact: true, cell: (one) => one.upstream_model },
  { label: "Failure", fact: true, cell: (one) => (one.status ? `HTTP ${one.status}` : one.failed) },
    { label: "When", fact: true, cell: (one) => html`<${Time} at=${one.started_at * 1000} />` },
    { label: "Duration", number: true, amount: true, cell: (one) => span(one.duration_ms) },
]} /></section>` : null);

const HIDDEN = new Set(["unpriced_units", "cost_unpriced_units", "unread", "policy", "read_on_ms"]);
const dimensionName = (name) => (name.startsWith("tag:") ? `Tag ${name.slice(4)}` : itemName(name));

function Details({ one, me }) {
  const rest = Object.entries(one.details).filter(([name]) => !HIDDEN.has(name)).map(([name, value]) => [itemName(name), text(value)]);
  return html`<section class="card wide"><h2>Details</h2><${Pairs} of=${[
    ["Key", me.role === "operator" ? html`<a href=${to(["keys", one.key_id])}>${one.key_alias}</a>` : one.key_alias],
      ["Model", me.role === "operator" ? html`<a href=${to(["models", one.model])}>${one.model}</a>` : one.model],
    ["Provider", me.role === "operator" && one.provider ? html`<a href=${to(["providers", one.provider])}>${one.provider}</a>` : one.provider],
      ["Provider model", one.upstream_model !== one.model && one.upstream_model], ["Endpoint", html`<${Code}>${one.endpoint}<//>`],
    ...Object.entries(one.dimensions).map(([name, value]) => [dimensionName(name), value.value ?? value.value_id]),
    ["Response id", one.provider_response_id && html`<${Code}>${one.provider_response_id}<//>`], ["Entry", html`<${Code}>${one.entry_id}<//>`],
      ["Finish reason", one.finish_reason], ["Billing rule", one.situation && plain(one.situation)], ...rest,
  ]} /></section>`;
}

function ticket(one) {
  return [`Request ${one.id}`, `${one.timeline.started_at}, key ${one.key_alias}, model ${one.model}`, `Outcome: ${OUTCOMES[outcomeOf(one)]?.[0] ?? one.outcome}`,
    ...Object.entries(one.usage.counts).map(([name, number]) => `${plain(name)}: ${number}`), `Charge: ${total(one.charge_usd)}`, location.href].join("\n");
}

function Settled({ one, me, again }) {
  const [, why] = OUTCOMES[outcomeOf(one)] ?? ["", ""];
  return html`<div class="headline"><div class="big">${total(one.charge_usd)}</div>
    <div><${Status} table=${OUTCOMES} name=${outcomeOf(one)} />${one.adjustments.length > 0 && html` <span
    class="quiet">· ${many(one.adjustments.length, "change")}</span>`}
      ${why && html`<div class="quiet small">${why}</div>`}</div>
    <div class="row push"><${Code}>${one.id}<//><${Copy} text=${one.id} label="Copy id" /><${Copy} text=${ticket(one)} label="Copy for ticket" />
      <button type="button" class="small" title="This request on its closed statement, with the proof; check it by tokenweir verify"
        onClick=${() => saveReceipt(one)}>Receipt with proof</button>
      ${me.may === "admin" && html`<button type="button" class="small" onClick=${() => adjust(one, again)}>Adjust</button>`}</div></div>
    <div class="cards"><div class="stack"><${Receipt} one=${one} /><${Tokens} ...${one} /></div><${Delivery} one=${one} /><${Attempts} of=${one.attempts} />
      <${Details} one=${one} me=${me} /></div>`;
}

/** Reads the request; while it runs, reads it again until it has ended. */
function useRequest(id) {
  const [state, set] = useState({});
  const [turn, again] = useState(0);
  useEffect(() => {
    const stop = new AbortController();
    (async () => {
      try {
        for (;;) {
          const [one, wait] = await askUnfinished(pathOf({ id }), { signal: stop.signal });
          if (wait === null) return set({ one });
          set({ unsettled: true, running: (await ask("v1/live", { signal: stop.signal })).data.find((stream) => stream.id === id) });
          await pause(wait, stop.signal);
          if (stop.signal.aborted) return undefined;
        }
      } catch (error) {
        return stop.signal.aborted ? undefined : set({ error });
      }
    })();
    return () => stop.abort();
  }, [id, turn]);
  return { ...state, again: () => again(turn + 1) };
}

/** The request, or why it cannot be shown. */
function Shown({ me, id }) {
  const { one, error, running, unsettled, again } = useRequest(id);
  useEffect(() => { if (one && here().path[1] === id) document.title = `Request: ${one.model} · Tokenweir`; }, [one]);
  if (one) return html`<${Settled} one=${one} me=${me} again=${again} />`;
  if (error?.status === 404) return html`<${Empty}
    title="There is no request with this id.">Check the id: it is the header x-tokenweir-exchange of the answer. Or <a
    href=${to("requests", { q: id })}>search for it</a>: it may be another id.<//>`;
  if (error) return html`<${Failure} error=${error} />`;
  if (!unsettled) return html`<div class="loading" />`;
  return html`<p class="notice" role="status">${running ? "In progress. Updates automatically." : "Being recorded… Updates automatically."}</p>
    ${running && html`<${Running} of=${running} me=${me} />`}`;
}

/** The request beside its list. `move`: to the next (1) or previous (-1) row. */
export function Panel({ me, id, move, close }) {
  const box = useRef(null);
  useEffect(() => {
    const key = (event) => {
      if (event.target.closest("input, select, textarea, dialog, [role=menu]") || event.ctrlKey || event.metaKey || event.altKey) return;
      const act = { j: () => move(1), k: () => move(-1), Escape: close }[event.key];
      if (act) act();
    };
    addEventListener("keydown", key);
    return () => removeEventListener("keydown", key);
  });
  useEffect(() => { box.current.scrollTop = 0; }, [id]);
  return html`<aside class="panel" ref=${box} aria-label="Request" tabindex="0">
    <div class="row"><button type="button" aria-keyshortcuts="k" onClick=${() => move(-1)}>Previous <kbd>k</kbd></button>
    <button type="button" aria-keyshortcuts="j" onClick=${() => move(1)}>Next <kbd>j</kbd></button>
    <a class="button push" href=${to(["requests", id])}>Open as a page</a><button type="button" class="plain" aria-label="Close" onClick=${close}>×</button>
      </div><${Shown} key=${id} me=${me} id=${id} /></aside>`;
}

export const Page = ({ me, id }) => html`<${Back} page="requests">Requests<//><${Shown} me=${me} id=${id} />`;

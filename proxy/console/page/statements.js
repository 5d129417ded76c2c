// Statements: the bills of each month. Invariant: a final statement never changes.

import { ask, save } from "./api.js";
import { closeMonth } from "./closing.js";
import { count, date, many, monthName } from "./formatting.js";
import { go, here, to, withQuery } from "./route.js";
import { sendStatement } from "./sending.js";
import { Empty, Filters, html, Loaded, Menu, Pages, Table, Time, toast, useData, useEffect } from "./ui.js";

export const title = "Statements";
const MONTH = /^\d{4}-(0[1-9]|1[0-2])$/;
const KINDS = { organization: "Customers", project: "Projects" };
export const accepts = { month: (value) => MONTH.test(value), kind: Object.keys(KINDS), q: true, page: (value) => /^[1-9]\d{0,4}$/.test(value) };

const PAGE = 50;
const STATES = { open: ["Open", "The month has not ended"], provisional: ["Not closed", "The month has ended; its statements may change until it is closed"],
  closing: ["Closing", "The month is closed: its statements are being made final"],
  final: ["Final", "The month is closed: its statements never change"], sent: ["Sent", "It is final, and was sent by e-mail"] };
const FILES = { pdf: "PDF", csv: "CSV", json: "JSON" };

const State = ({ of: { state, sent_at, sent_to } }) => html`<span class="status" title=${sent_to ? `Sent to ${sent_to}` : STATES[state][1]}>
  ${state === "provisional" && html`<span class="dot careful" aria-hidden="true" />`}${STATES[state][0]}${sent_at && html` <${Time} at=${sent_at} dateOnly />`}
    </span>`;

const path = (id, month, format) => [`v1/statements/${encodeURIComponent(id)}`, { month, format }];
const download = (id, month, format) => save(...path(id, month, format), `statement-${month}-${id}.${format}`).catch((error) => toast(error.message));
/** The session of an operator is a cookie, so that a link opens the page of a statement. */
const pageOf = (id, month) => `v1/statements/${encodeURIComponent(id)}?${new URLSearchParams({ month, format: "html" })}`;

const columns = (month, me, again) => [
  { label: "Customer", lead: true, cell: (one) => html`<a href=${pageOf(one.scope_id, month)} target="_blank">${one.name}</a>` },
  { label: "State", fact: true, cell: (one) => html`<${State} of=${one} />` },
  { label: "Usage and adjustments", usd: (one) => one.charge_usd },
  { label: "Amount due", fact: true, usd: (one) => one.amount_due_usd, places: 2, why: () => "Known when the month is closed" },
  { label: "Number", fact: true, cell: (one) => one.short_number ?? "" },
  { label: "Due on", cell: (one) => (one.due_on ? date(Date.parse(one.due_on), "UTC") : "") },
  { label: "Actions", menu: true, cell: (one) => html`<${Menu} label=${`Statement of ${one.name}`}
    of=${[{ label: "Open", href: pageOf(one.scope_id, month) }, ...Object.entries(FILES).map(([format, words]) => ({ label: `Download ${words}`,
    act: () => download(one.scope_id, month, format) })), me.may === "admin" && ["final", "sent"].includes(one.state)
    && { label: "Send by e-mail", act: () => sendStatement(one, month, again) }, { label: "Usage of the month", act: () => go(usageOf(one, month)) }]} />` },
];

/** The usage that a statement bills, by booking date. */
function usageOf(one, month) {
  const last = new Date(Date.UTC(Number(month.slice(0, 4)), Number(month.slice(5)), 0)).toISOString().slice(0, 10);
  return to(["customers", one.scope_id], { period: null, from: `${month}-01`, to: last, tz: null, basis: "booking" });
}

/** What is left to do for a month that has ended. */
const Ended = ({ of: { state, month }, me, again }) => html`${state === "closing" && html`<p class="notice" role="status">
  ${monthName(month)} is closed, and its statements are being made final.</p>`}
  ${state === "provisional" && html`<div class="notice"><p>${monthName(month)} is not closed: its statements may still change.</p><div class="row">
    <button type="button" onClick=${() => closeMonth(month, me, again)}>${me.may === "admin" ? "Check and close" : "Check"} ${monthName(month)}</button></div>
    </div>`}`;

const CLOSING_S = 3;

function All({ me }) {
  const { query } = here();
  const { month, kind, q, page } = query;
  const wanted = { month, kind, q, page, size: PAGE };
  const data = useData((signal) => ask("v1/statements", { query: wanted, signal }), [JSON.stringify(wanted)], { keep: `statements ${JSON.stringify(wanted)}` });
  useEffect(() => {
    if (data.data?.state !== "closing") return undefined;
    const timer = setTimeout(data.again, CLOSING_S * 1000);
    return () => clearTimeout(timer);
  }, [data.data]);
  const months = Object.fromEntries((data.data?.months ?? []).map((one) => [one.month, `${monthName(one.month)}, ${STATES[one.state][0].toLowerCase()}`]));
  const set = (changes) => go(withQuery({ page: null, ...changes }));
  return html`<${Filters} fields=${{ month: { label: "Month", options: months, required: true }, kind: { label: "Of", options: KINDS, required: true },
    q: { label: "Search", hint: "Search by name" } }} values=${{ kind: "organization", month: data.data?.month, ...query }} set=${set} />
    <${Loaded} of=${data}>${(found) => html`<${Ended} of=${found} me=${me} again=${data.again} />
      ${found.data.length ? html`<${Table} caption=${`${monthName(found.month)} (UTC), ${many(found.total_count, "statement")}`} columns=${columns(found.month, me, data.again)}
        rows=${found.data} keyOf=${(one) => one.scope_id} /><${Pages} page=${found.current_page} pages=${found.total_pages} total=${found.total_count}
        word="statements" set=${(next) => go(withQuery({ page: next }))} />`
    : html`<${Empty} title="No match."><a href=${to("statements")}>Show all ${count(found.total_count) === "0" ? "" : "statements"}</a>.<//>`}`}<//>`;
}

const MONTHS = 12;

/** A key's own statements. */
function Own({ me }) {
  const now = new Date();
  const key = useData((signal) => ask("key/info", { signal }), []);
  const first = key.data?.info.created_at.slice(0, 7) ?? "";
  const months = Array.from({ length: MONTHS }, (_, back) => new Date(Date.UTC(now.getUTCFullYear(), now.getUTCMonth() - back, 1)).toISOString().slice(0,
    7)).filter((month) => month >= first);
  return html`<${Table} caption="Your statements (UTC months)" rows=${months.map((month) => ({ id: month }))} columns=${[
    { label: "Month", lead: true, cell: (one) => monthName(one.id) },
    { label: "Download", amount: true, cell: (one) => html`<span class="row">
      ${Object.entries({ html: "Page", ...FILES }).map(([format, words]) => html`<button type="button" class="small" key=${format}
      aria-label=${`${words} of ${monthName(one.id)}`} onClick=${() => download(me.key_id, one.id, format)}>${words}</button>`)}</span>` },
  ]} />`;
}

export const Page = ({ me }) => (me.role === "key" ? html`<${Own} me=${me} />` : html`<${All} me=${me} />`);

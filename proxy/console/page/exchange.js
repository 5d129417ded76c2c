// One exchange and the explanation of its charge. Invariant: all values come from the ledger; nothing is computed here.

import { ask, askUnfinished, pause } from "./api.js";
import { el, loading, pairs, svg, table } from "./dom.js";
import { runningDetails } from "./live.js";
import { count, exact, many, mark, moment, money, nusd, OUTCOMES, percent, SOURCES, span } from "./formatting.js";

export const title = "Exchange";

const BILLED = {
  "prompt+output": "The prompt and the output are billed.",
  prompt: "Only the prompt is billed.",
  output: "Only the output is billed.",
  nothing: "Nothing is billed.",
};

const plain = (name) => name.replaceAll("_", " ");
const text = (value) => (typeof value === "object" && value !== null ? JSON.stringify(value) : typeof value === "number" ? count(value) : String(value));
const section = (name, ...children) => el("section", { class: "card" }, el("h2", {}, name), ...children);
const wide = (made) => (made.classList.add("wide"), made);

// -- summary text

function counted({ usage, details }) {
  const words = [(SOURCES[usage.source] ?? [null, `The counts are ${usage.source}.`])[1]];
  if (usage.source === "estimated" && usage.estimator) words.push(`Estimator: ${usage.estimator}. See “How it was estimated”.`);
  if (usage.expected_error !== null) words.push(`Typical error: ± ${percent(usage.expected_error)}.`);
  const { prompt_tokens: prompt, completion_tokens: output } = usage.counts;
  if (prompt !== undefined || output !== undefined) {
    words.push(`Counts: ${many(prompt ?? 0, "prompt token")} and ${many(output ?? 0, "output token")}.`);
  }
  if (details.unread) words.push(`Reported by the provider, but not read: ${details.unread.join(", ")}.`);
  return words.join(" ");
}

function priced({ charge, adjustments, charge_usd, details }) {
  const words = [];
  if (charge.usd === null) words.push(adjustments.length ? "The model had no price when the exchange ended." : "No charge: the model had no price.");
  else words.push(BILLED[charge.billed] ?? "", `Charge${charge.price?.version ? ` at price list ${charge.price.version}` : ""}: ${exact(nusd(charge.usd))}.`);
  for (const [reason, by] of Object.entries(charge.price?.multipliers ?? {})) words.push(`Token prices × ${by} for ${reason}.`);
  if (details.unpriced_units) words.push(`No price for: ${details.unpriced_units.map(plain).join(", ")}.`);
  if (adjustments.length) words.push(`Charge after ${many(adjustments.length, "correction")}: ${total(charge_usd)}.`);
  return words.join(" ").trim();
}

function story(one) {
  const end = (OUTCOMES[one.outcome] ?? [null, `Outcome: ${one.outcome}.`])[1];
  const request = `Key ${one.key_alias} requested ${one.model} from ${one.provider}${one.upstream_model === one.model ? "" : ` (provider model: ${one.upstream_model})`}`;
  const tried = one.attempts.length ? ` ${many(one.attempts.length, "earlier attempt")} failed.` : "";
  const answered = one.streamed ? " The answer was streamed" : " The answer was not streamed";
  return el("div", { class: "story" },
    el("p", {}, `${request}.${tried}${answered}: ${many(one.events, "event")}, ${many(one.bytes, "byte")}, ${span(one.timeline.duration_ms)}. `, end),
    el("p", {}, counted(one)), el("p", {}, priced(one)));
}

// -- timeline

function timeline({ timeline: line }) {
  const settled = Math.max(0, Number(new Date(line.settled_at)) - Number(new Date(line.ended_at)));
  const first = line.first_token_ms ?? line.duration_ms;
  const parts = [["waiting", first, line.first_token_ms === null ? "without a token" : "until the first token"], ["streaming", line.duration_ms - first, "of output"]]
    .filter(([, ms]) => ms > 0);
  const whole = parts.reduce((sum, [, ms]) => sum + ms, 0) || 1;
  let at = 0;
  const bar = parts.map(([name, ms]) => {
    const width = (ms / whole) * 1000;
    at += width;
    return svg("rect", { class: `time-${name}`, x: at - width, y: 0, width, height: 18 }, svg("title", {}, `${name}: ${span(ms)}`));
  });
  const words = parts.map(([, ms, what]) => `${span(ms)} ${what}`).join(", ");
  return section("Timeline",
    svg("svg", { class: "timeline", viewBox: "0 0 1000 18", preserveAspectRatio: "none", role: "img", "aria-label": words }, bar),
    el("ul", { class: "legend" }, parts.map(([name, ms, what]) => el("li", {}, el("span", { class: `swatch time-${name}` }), `${span(ms)} ${what}`))),
    el("p", { class: "small" }, `Recorded in the ledger ${span(settled)} after the end.`),
    pairs([["Started", moment(line.started_at)], ["First token", line.first_token_at && moment(line.first_token_at)],
      ["Ended", moment(line.ended_at)], ["Settled", moment(line.settled_at)],
      ...Object.entries(line.provider_timings).map(([name, value]) => [`Provider's ${plain(name)}`, text(value)])]));
}

// -- usage

function usage({ usage: used }) {
  return section("Usage", el("p", {}, mark(SOURCES, used.source)),
    pairs(Object.entries(used.counts).map(([name, number]) => [plain(name), count(number)])),
    used.estimator && pairs([["Estimator", used.estimator], ["Expected error", used.expected_error === null ? "unknown" : `± ${percent(used.expected_error)}`]]),
    used.evidence && [el("h3", {}, "How it was estimated"), pairs(Object.entries(used.evidence).map(([name, value]) => [plain(name), text(value)]))],
    used.flags.length > 0 && pairs([["Flags", used.flags.map(plain).join(", ")]]),
    used.reported && el("details", {}, el("summary", {}, "Raw usage from provider"), el("pre", { tabindex: 0 }, JSON.stringify(used.reported, null, 2))));
}

// -- charge

const rate = (usd) => (usd === null ? "no price" : exact(nusd(usd)));
const total = (usd) => (usd === null ? "unpriced" : exact(nusd(usd)));

/** A row of the sum: what changed the charge, who, when, and the prices before and after. */
function correction(one) {
  const counts = Object.entries(one.counts).filter(([, number]) => number).map(([name, number]) => `${plain(name)} ${number > 0 ? "+" : "−"}${count(Math.abs(number))}`);
  const prices = one.prices.map(({ price, old_usd, new_usd, per }) => `${plain(price)} ${rate(old_usd)} → ${rate(new_usd)} ${per}`);
  const version = one.prices.length && one.price_version ? [`Price list ${one.price_version}`] : [];
  return {
    item: [one.reason || "correction", one.actor && ` by ${one.actor}`, [moment(one.settled_at, true), ...counts, ...prices, ...version].map((line) => el("div", { class: "quiet small" }, line))],
    amount: one.charge_usd === null ? "–" : `${nusd(one.charge_usd) < 0n ? "" : "+"}${exact(nusd(one.charge_usd))}`,
  };
}

/** The parts of the charge, its corrections, and their sum: the charge at the head of the page. */
function sums(one) {
  const { charge, adjustments } = one;
  const rows = charge.addends.map((part) => ({
    item: plain(part.price) + (part.model ? ` (${part.model})` : ""), units: count(part.units), price: `${rate(part.rate_usd)} ${part.per}`, amount: `$${part.amount_usd}`,
  }));
  if (adjustments.length) rows.push({ item: "Charge when it ended", amount: total(charge.usd) }, ...adjustments.map(correction));
  const lines = table({ caption: "Calculation of the charge", rows, columns: [
    { label: "Item", long: true, cell: (row) => row.item }, { label: "Units", number: true, cell: (row) => row.units },
    { label: "Price (USD)", number: true, cell: (row) => row.price }, { label: "Amount", number: true, cell: (row) => el("span", { class: "figure" }, row.amount) },
  ] });
  lines.append(el("tfoot", { role: "rowgroup" }, el("tr", { role: "row" },
    el("th", { scope: "row", role: "rowheader", colspan: 3 }, "Charge"), el("td", { role: "cell", class: "number" }, el("strong", { class: "figure" }, total(one.charge_usd))))));
  const rates = charge.price && Object.entries(charge.price).filter(([name]) => !["version", "multipliers", "stated"].includes(name)).map(([name, value]) => [plain(name), text(value)]);
  return section("Charge", rows.length ? lines : el("p", {}, charge.usd === null ? "No price: not charged." : ["No items: ", one.explanation, "."]),
    pairs([["Price list", one.price_version], ["Reserved", one.held_usd && money(one.held_usd)],
      ["Provider cost", one.cost && money(one.cost_usd)], ["Cost when it ended", one.cost && one.cost.usd !== one.cost_usd ? money(one.cost.usd) : null], ["Cost price list", one.cost?.price?.version]]),
    rates && el("details", {}, el("summary", {}, "All prices of this list"), pairs(rates)));
}

function attempts({ attempts: made }) {
  if (!made.length) return null;
  return wide(section("Failed attempts", table({ caption: "Earlier attempts", rows: made, columns: [
    { label: "Provider", long: true, cell: (one) => one.provider }, { label: "Provider model", long: true, cell: (one) => one.upstream_model },
    { label: "Failure", long: true, cell: (one) => one.failed }, { label: "Status", number: true, cell: (one) => one.status ?? "no response" },
    { label: "When", cell: (one) => moment(new Date(one.started_at * 1000).toISOString()) }, { label: "Duration", number: true, cell: (one) => span(one.duration_ms) },
  ] })));
}

const rest = (one) => wide(section("Other details", pairs([
  ["Exchange", el("code", {}, one.id)], ["Entry", el("code", {}, one.entry_id)], ["Provider's response id", one.provider_response_id && el("code", {}, one.provider_response_id)],
  ["Endpoint", el("code", {}, one.endpoint)], ["Finish reason", one.finish_reason], ["Billing rule", one.situation && plain(one.situation)],
  ...Object.entries(one.details).map(([name, value]) => [plain(name), text(value)])])));

function draw(body, one) {
  document.title = `Exchange: ${one.model} · Tokenweir`;
  body.replaceChildren(
    el("div", { class: "headline" }, el("div", {}, el("div", { class: "big" }, one.charge_usd === null ? "Not charged" : exact(nusd(one.charge_usd))), el("div", { class: "quiet" }, one.charge_usd === null ? "no price" : "charged")),
      el("div", { class: "row" }, mark(OUTCOMES, one.outcome), mark(SOURCES, one.usage.source))),
    story(one),
    el("div", { class: "cards" }, [sums(one), el("div", { class: "stack" }, usage(one), timeline(one)), attempts(one), rest(one)].filter(Boolean)));
}

/** Shows the exchange; while it runs, shows its progress and waits for its end. */
export async function show(body, { id, signal }) {
  const back = el("p", {}, el("a", { href: "#/exchanges" }, "← Exchanges"));
  const found = el("div", {}, loading());
  body.replaceChildren(back, found);
  while (!signal.aborted) {
    const [one, wait] = await askUnfinished(`v1/exchanges/${encodeURIComponent(id)}`, { signal });
    if (wait === null) return draw(found, one);
    const running = (await ask("v1/live", { signal })).data.find((stream) => stream.id === id);
    found.replaceChildren(el("p", { class: "notice", role: "status" }, running ? "In progress. This page updates automatically." : "Not in the ledger yet: the exchange has just ended, or runs on a machine that this page cannot query. This page updates automatically."), running ? runningDetails(running) : "");
    await pause(wait, signal);
  }
  return undefined;
}

// One exchange, and why its number is what it is. Law: everything here is what the ledger says; nothing is worked out anew.

import { ask, askUnfinished, pause } from "./api.js";
import { el, loading, pairs, svg, table } from "./dom.js";
import { standing } from "./live.js";
import { count, exact, many, mark, moment, money, nusd, OUTCOMES, percent, SOURCES, span } from "./words.js";

export const title = "Exchange";

const BILLED = {
  "prompt+output": "The prompt and the output are billed.",
  prompt: "Only the prompt is billed.",
  output: "Only the output is billed.",
  nothing: "Nothing of it is billed.",
};
const PER = { audio_hour: "an hour", searches: "a thousand", image: "each", request: "each" };

const plain = (name) => name.replaceAll("_", " ");
const text = (value) => (typeof value === "object" && value !== null ? JSON.stringify(value) : typeof value === "number" ? count(value) : String(value));
const section = (name, ...children) => el("section", { class: "card" }, el("h2", {}, name), ...children);
const wide = (made) => (made.classList.add("wide"), made);

// -- in words

function counted({ usage }) {
  const words = [(SOURCES[usage.source] ?? [null, `The counts are ${usage.source}.`])[1]];
  if (usage.source === "estimated" && usage.estimator) words.push(`By the estimator ${usage.estimator}, from the evidence below.`);
  if (usage.expected_error !== null) words.push(`It is typically right within ${percent(usage.expected_error)}.`);
  const { prompt_tokens: prompt, completion_tokens: output } = usage.counts;
  if (prompt !== undefined || output !== undefined) {
    words.push(`That is ${many(prompt ?? 0, "prompt token")} and ${many(output ?? 0, "output token")}.`);
  }
  return words.join(" ");
}

function priced({ charge, adjustments, charge_usd }) {
  if (charge.usd === null) return "It has no charge: its price is not known.";
  const words = [BILLED[charge.billed] ?? ""];
  if (charge.price?.version) words.push(`At the price version ${charge.price.version}, which held when it began, it came to ${exact(nusd(charge.usd))}.`);
  else words.push(`It came to ${exact(nusd(charge.usd))}.`);
  if (adjustments.length) words.push(`After ${many(adjustments.length, "correction")} it is ${charge_usd === null ? "not known" : exact(nusd(charge_usd))}.`);
  return words.join(" ").trim();
}

function story(one) {
  const end = (OUTCOMES[one.outcome] ?? [null, `It ended as ${one.outcome}.`])[1];
  const asked = `The key ${one.key_alias} asked ${one.provider} for ${one.model}${one.upstream_model === one.model ? "" : ` (there: ${one.upstream_model})`}`;
  const tried = one.attempts.length ? ` ${many(one.attempts.length, "provider")} had been asked in vain before.` : "";
  const answered = one.streamed ? " It was a stream" : " It was answered in one piece";
  return el("div", { class: "story" },
    el("p", {}, `${asked}.${tried}${answered} of ${many(one.events, "event")} and ${many(one.bytes, "byte")}, and took ${span(one.timeline.duration_ms)}. `, end),
    el("p", {}, counted(one)), el("p", {}, priced(one)));
}

// -- its time

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
    el("p", { class: "small" }, `It stood in the ledger ${span(settled)} after it had ended.`),
    pairs([["Began", moment(line.started_at)], ["First token", line.first_token_at && moment(line.first_token_at)],
      ["Ended", moment(line.ended_at)], ["Settled", moment(line.settled_at)],
      ...Object.entries(line.provider_timings).map(([name, value]) => [`Provider's ${plain(name)}`, text(value)])]));
}

// -- its counts

function usage({ usage: used }) {
  return section("Where the counts come from", el("p", {}, mark(SOURCES, used.source)),
    pairs(Object.entries(used.counts).map(([name, number]) => [plain(name), count(number)])),
    used.estimator && pairs([["Estimator", used.estimator], ["Expected error", used.expected_error === null ? "not known yet" : `± ${percent(used.expected_error)}`]]),
    used.evidence && [el("h3", {}, "Evidence"), pairs(Object.entries(used.evidence).map(([name, value]) => [plain(name), text(value)]))],
    used.flags.length > 0 && pairs([["Noticed", used.flags.map(plain).join(", ")]]),
    used.reported && el("details", {}, el("summary", {}, "As the provider wrote it"), el("pre", { tabindex: 0 }, JSON.stringify(used.reported, null, 2))));
}

// -- its money

const per = (part) => `${exact(nusd(part.rate_usd))} ${PER[part.price] ?? "a million"}`;

function sums(one) {
  const { charge } = one;
  const lines = table({ caption: "What the charge is the sum of", rows: charge.addends, columns: [
    { label: "What", cell: (part) => plain(part.price) },
    { label: "Units", number: true, cell: (part) => count(part.units) },
    { label: "Price (USD)", number: true, cell: per },
    { label: "Amount", number: true, cell: (part) => el("span", { class: "figure" }, `$${part.amount_usd}`) },
  ] });
  if (charge.usd !== null) lines.append(el("tfoot", { role: "rowgroup" }, el("tr", { role: "row" },
    el("th", { scope: "row", role: "rowheader", colspan: 3 }, "Charge"), el("td", { role: "cell", class: "number" }, el("strong", { class: "figure" }, exact(nusd(charge.usd)))))));
  const rates = charge.price && Object.entries(charge.price).filter(([name]) => name !== "version").map(([name, value]) => [plain(name), text(value)]);
  return section("Charge", charge.addends.length ? lines : el("p", {}, "There is nothing to add up: ", one.explanation, "."),
    pairs([["Price version", one.price_version], ["Held while it ran", one.held_usd && money(one.held_usd)],
      ["Cost to us", one.cost && money(one.cost.usd)], ["Cost's price version", one.cost?.price?.version]]),
    rates && el("details", {}, el("summary", {}, "All prices of this version, USD a million"), pairs(rates)));
}

function attempts({ attempts: made }) {
  if (!made.length) return null;
  return wide(section("Asked in vain before", table({ caption: "Providers that gave nothing", rows: made, columns: [
    { label: "Provider", long: true, cell: (one) => one.provider }, { label: "Its model", long: true, cell: (one) => one.upstream_model },
    { label: "What happened", long: true, cell: (one) => one.failed }, { label: "Status", number: true, cell: (one) => one.status ?? "not reached" },
    { label: "When", cell: (one) => moment(new Date(one.started_at * 1000).toISOString()) }, { label: "Took", number: true, cell: (one) => span(one.duration_ms) },
  ] })));
}

function corrections({ adjustments, charge_usd }) {
  if (!adjustments.length) return null;
  const counts = (one) => Object.entries(one.counts).filter(([, number]) => number).map(([name, number]) => `${plain(name)} ${number > 0 ? "+" : "−"}${count(Math.abs(number))}`).join(", ") || "–";
  return wide(section("Corrections", table({ caption: "Later entries; every number is a difference", rows: adjustments, columns: [
    { label: "When", cell: (one) => moment(one.settled_at) }, { label: "Why", long: true, cell: (one) => one.reason || "–" }, { label: "By", long: true, cell: (one) => one.actor ?? "–" },
    { label: "Counts", cell: counts }, { label: "Charge", number: true, cell: (one) => money(one.charge_usd) },
  ] }), el("p", {}, "Together with these it comes to ", money(charge_usd), ".")));
}

const rest = (one) => wide(section("All else", pairs([
  ["Exchange", el("code", {}, one.id)], ["Entry", el("code", {}, one.entry_id)], ["Provider's answer", one.provider_response_id && el("code", {}, one.provider_response_id)],
  ["Endpoint", el("code", {}, one.endpoint)], ["Finish reason", one.finish_reason], ["Situation", one.situation && plain(one.situation)],
  ...Object.entries(one.details).map(([name, value]) => [plain(name), text(value)])])));

function draw(body, one) {
  document.title = `${one.model}, an exchange · Tokenweir`;
  body.replaceChildren(
    el("div", { class: "headline" }, el("div", {}, el("div", { class: "big" }, one.charge_usd === null ? "no charge" : exact(nusd(one.charge_usd))), el("div", { class: "quiet" }, "charged")),
      el("div", { class: "row" }, mark(OUTCOMES, one.outcome), mark(SOURCES, one.usage.source))),
    story(one),
    el("div", { class: "cards" }, [sums(one), el("div", { class: "stack" }, usage(one), timeline(one)), attempts(one), corrections(one), rest(one)].filter(Boolean)));
}

/** Waits for one that runs, showing what is known of it. */
export async function show(body, { id, signal }) {
  const back = el("p", {}, el("a", { href: "#/exchanges" }, "← Exchanges"));
  const found = el("div", {}, loading());
  body.replaceChildren(back, found);
  while (!signal.aborted) {
    const [one, wait] = await askUnfinished(`v1/exchanges/${encodeURIComponent(id)}`, { signal });
    if (wait === null) return draw(found, one);
    const running = (await ask("v1/live", { signal })).data.find((stream) => stream.id === id);
    found.replaceChildren(el("p", { class: "notice", role: "status" }, running ? "It still runs. This page explains it as soon as it has ended." : "It has ended, or runs where it cannot be seen from here, and is not in the ledger yet. This page waits for it."), running ? standing(running) : "");
    await pause(wait, signal);
  }
  return undefined;
}

// Stacked bars in SVG. Invariant: all values are accessible by keyboard and screen reader (arrow keys, and a table).

import { el, say, svg } from "./dom.js";

const HEIGHT = 240;
const EDGE = { top: 12, right: 4, bottom: 26, left: 68 };
const LABEL_PX = 58;

/** Round steps of whole units up to `top`: at most five lines. */
function ticks(top) {
  if (top <= 0) return [0];
  const rough = top / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max(1, [1, 2, 2.5, 5, 10].map((one) => one * power).find((one) => one >= rough * 0.999));
  const lines = Math.ceil((top / step) * 0.999);
  return Array.from({ length: lines + 1 }, (_, number) => Number((number * step).toPrecision(12)));
}

const total = (bar) => bar.parts.reduce((sum, part) => sum + part.value, 0);

/**
 * `bars`: {label, brief, parts: [{series, value}]}, values are numbers ≥ 0; `series`: names, the first at the bottom.
 * `words`: value → text. Redraws on resize until `signal` aborts.
 */
export function bars({ name, bars: columns, series, words, axis = words, signal }) {
  const tooltip = el("div", { class: "tooltip", "aria-hidden": "true" });
  const place = el("div", { class: "plot" });
  const state = { at: columns.length - 1, place, tooltip, columns, series, words, axis, name };
  const watcher = new ResizeObserver(() => draw(state));
  watcher.observe(place);
  signal.addEventListener("abort", () => watcher.disconnect(), { once: true });
  const hint = "Arrow keys move from day to day.";
  const frame = el("div", {
    class: "chart", tabindex: 0, role: "group", "aria-label": `${name}. ${hint}`, "aria-roledescription": "chart",
    keydown: (event) => move(state, event), focus: () => point(state, state.at),
    blur: () => point(state, null), pointerleave: () => point(state, null),
  }, place, tooltip);
  return el("figure", {}, el("figcaption", {}, name), frame, legend(series));
}

const legend = (series) => el("ul", { class: "legend" }, series.map((one, number) =>
  el("li", {}, el("span", { class: `swatch s${number}` }), one)));

function move(state, event) {
  const steps = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };
  if (!(event.key in steps)) return;
  event.preventDefault();
  state.at = Math.min(state.columns.length - 1, Math.max(0, state.at + steps[event.key]));
  point(state, state.at);
  say(sentence(state, state.columns[state.at]));
}

function sentence({ words }, bar) {
  const parts = bar.parts.filter((part) => part.value > 0).map((part) => `${part.series} ${words(part.value)}`);
  return `${bar.label}: ${words(total(bar))}${parts.length > 1 ? ` (${parts.join(", ")})` : ""}`;
}

/** Shows the tooltip of a column; null hides it. */
function point(state, number) {
  const { place, tooltip, columns, series, words } = state;
  place.querySelectorAll(".column").forEach((one, index) => one.classList.toggle("pointed", index === number));
  tooltip.hidden = number === null;
  if (number === null) return;
  const bar = columns[number];
  const parts = bar.parts.filter((part) => part.value > 0);
  tooltip.replaceChildren(el("strong", {}, bar.label, ": ", words(total(bar))), ...parts.map((part) =>
    el("div", {}, el("span", { class: `swatch s${series.indexOf(part.series)}` }), `${part.series} `, words(part.value))));
  const wanted = state.left + (number + 0.5) * state.step - tooltip.offsetWidth / 2;
  tooltip.style.left = `${Math.max(0, Math.min(place.clientWidth - tooltip.offsetWidth, wanted))}px`;
}

function draw(state) {
  const { place, columns, axis } = state;
  const width = place.clientWidth;
  if (!width) return;
  const lines = ticks(Math.max(...columns.map(total)));
  const top = lines.at(-1) || 1;
  const inner = HEIGHT - EDGE.top - EDGE.bottom;
  const y = (value) => EDGE.top + inner * (1 - value / top);
  state.left = EDGE.left;
  state.step = (width - EDGE.left - EDGE.right) / columns.length;
  const grid = lines.map((value) => [
    svg("line", { class: "grid", x1: EDGE.left, x2: width - EDGE.right, y1: y(value), y2: y(value) }),
    svg("text", { class: "axis", x: EDGE.left - 6, y: y(value) + 4, "text-anchor": "end" }, axis(value)),
  ]);
  place.replaceChildren(svg("svg", { width, height: HEIGHT, "aria-hidden": "true" },
    grid, columns.map((bar, number) => column(state, bar, number, y)), labels(state)));
}

/** The labels that fit. */
function labels({ columns, left, step }) {
  const every = Math.max(1, Math.ceil(LABEL_PX / step));
  return columns.map((bar, number) => (columns.length - 1 - number) % every === 0 && svg("text", {
    class: "axis", x: left + (number + 0.5) * step, y: HEIGHT - 8,
    "text-anchor": number === columns.length - 1 && step < LABEL_PX ? "end" : "middle",
    dx: number === columns.length - 1 && step < LABEL_PX ? step / 2 : 0,
  }, bar.brief));
}

function column(state, bar, number, y) {
  const { left, step, series } = state;
  const gap = Math.min(8, step * 0.2);
  const width = Math.min(64, step - gap);
  const x = left + number * step + (step - width) / 2;
  let below = 0;
  const parts = bar.parts.filter((part) => part.value > 0).map((part) => {
    const from = y(below);
    below += part.value;
    const height = Math.max(1, from - y(below));
    return svg("rect", { class: `s${series.indexOf(part.series)}`, x, y: from - height, width, height });
  });
  const field = svg("rect", {
    class: "field", x: left + number * step, y: EDGE.top, width: step, height: HEIGHT - EDGE.top - EDGE.bottom,
    pointerenter: () => point(state, number), click: () => point(state, number),
  });
  return svg("g", { class: "column" }, parts, field);
}

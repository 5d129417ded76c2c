// Stacked bars in SVG. Invariant: all values are accessible by keyboard and screen reader (arrow keys, and a table).

import { html, say, useLayoutEffect, useRef, useState } from "./ui.js";

const HEIGHT = 240;
const EDGE = { top: 12, right: 8, bottom: 26, left: 72 };
const LABEL_PX = 58;
const INNER = HEIGHT - EDGE.top - EDGE.bottom;

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
const positive = (bar) => bar.parts.filter((part) => part.value > 0);

function sentence(bar, words) {
  const parts = positive(bar).map((part) => `${part.series} ${words(part.value)}`);
  const before = bar.before === undefined ? "" : `; ${words(bar.before)} in the period before`;
  return `${bar.label}: ${words(total(bar))}${parts.length > 1 ? ` (${parts.join(", ")})` : ""}${before}`;
}

/** The width of an element, as it changes. */
function useWidth(place) {
  const [width, set] = useState(0);
  useLayoutEffect(() => {
    const watcher = new ResizeObserver(() => set(place.current?.clientWidth ?? 0));
    watcher.observe(place.current);
    set(place.current.clientWidth);
    return () => watcher.disconnect();
  }, []);
  return width;
}

function Column({ bar, x, step, y, series, pointed, point }) {
  const width = Math.min(64, step - Math.min(8, step * 0.2));
  let below = 0;
  const parts = positive(bar).map((part) => {
    const from = y(below);
    below += part.value;
    const height = Math.max(1, from - y(below));
    return html`<rect key=${part.series} class=${`s${series.indexOf(part.series)}`} x=${x + (step - width) / 2} y=${from - height} width=${width}
      height=${height} />`;
  });
  return html`<g class=${pointed ? "column pointed" : "column"}>${parts}
    <rect class="field" x=${x} y=${EDGE.top} width=${step} height=${INNER} onPointerEnter=${point} onClick=${point} /></g>`;
}

/** The values of a column, beside it: on the side with more space, so that the column stays visible. */
function Tooltip({ bar, series, words, left, right }) {
  return html`<div class="tooltip" aria-hidden="true" style=${left < right ? { right: "auto", left: `${left}px` } : { left: "auto", right: `${right}px` }}>
    <strong>${bar.label}: ${words(total(bar))}</strong>${[...positive(bar)].reverse().map((part) => html`<div key=${part.series}>
      <span class=${`swatch s${series.indexOf(part.series)}`} />${part.series} ${words(part.value)}</div>`)}
    ${bar.before !== undefined && html`<div><span class="swatch line" />before ${words(bar.before)}</div>`}</div>`;
}

/**
 * `bars`: {label, brief, parts: [{series, value}], before?: the value of the period before}; values are numbers ≥ 0; `series`: names, the
 * first at the bottom. `words`: value → text.
 */
export function Bars({ name, bars, series, words }) {
  const place = useRef(null);
  const width = useWidth(place);
  const [at, setAt] = useState(null);
  const last = useRef(bars.length - 1);
  const lines = ticks(Math.max(0, ...bars.map((bar) => Math.max(total(bar), bar.before ?? 0))));
  const y = (value) => EDGE.top + INNER * (1 - value / (lines.at(-1) || 1));
  const step = (width - EDGE.left - EDGE.right) / bars.length;
  const x = (number) => EDGE.left + number * step;
  const every = Math.max(1, Math.ceil(LABEL_PX / step));
  const point = (number) => { last.current = Math.min(bars.length - 1, number); setAt(last.current); };
  const key = (event) => {
    const steps = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };
    if (!(event.key in steps)) return;
    event.preventDefault();
    point(Math.min(bars.length - 1, Math.max(0, last.current + steps[event.key])));
    say(sentence(bars[last.current], words));
  };
  const before = bars.some((bar) => bar.before !== undefined) && bars.map((bar, number) => `${x(number + 0.5)},${y(bar.before ?? 0)}`).join(" ");
  return html`<div class="chart" tabindex="0" role="group" aria-roledescription="chart" aria-label=${`${name}. Arrow keys move from bar to bar.`}
      onKeyDown=${key} onFocus=${() => point(last.current)} onBlur=${() => setAt(null)} onPointerLeave=${() => setAt(null)}>
    <div class="plot" ref=${place}>${width > 0 && html`<svg width=${width} height=${HEIGHT} aria-hidden="true">
      ${lines.map((value) => html`<g key=${value}><line class="grid" x1=${EDGE.left} x2=${width - EDGE.right} y1=${y(value)} y2=${y(value)} />
        <text class="axis" x=${EDGE.left - 6} y=${y(value) + 4} text-anchor="end">${words(value)}</text></g>`)}
      ${bars.map((bar, number) => html`<${Column} key=${number} bar=${bar} x=${x(number)} step=${step} y=${y} series=${series} pointed=${at === number}
        point=${() => point(number)} />`)}
      ${before && html`<polyline class="before" points=${before} />`}
      ${bars.map((bar, number) => (bars.length - 1 - number) % every === 0 && x(number + 0.5) - LABEL_PX / 2 > EDGE.left - LABEL_PX / 2 && html`<text
        key=${`label ${number}`} class="axis" x=${Math.min(x(number + 0.5), width - LABEL_PX / 2 + 8)} y=${HEIGHT - 8} text-anchor="middle">${bar.brief}
        </text>`)}
    </svg>`}</div>
    ${at !== null && bars[at] && html`<${Tooltip} bar=${bars[at]} series=${series} words=${words} left=${x(at + 1) + 6} right=${width - x(at) + 6} />`}</div>`;
}

/** The course of a figure, as a small line. */
export function Spark({ values }) {
  const top = Math.max(...values, 1);
  const points = values.map((value, number) => `${(number / Math.max(1, values.length - 1)) * 100},${22 - (value / top) * 20}`).join(" ");
  return html`<svg class="spark" viewBox="0 0 100 24" preserveAspectRatio="none" aria-hidden="true"><polyline points=${points} /></svg>`;
}

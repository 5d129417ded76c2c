// The parts that the pages are made of. Invariant: data from the network becomes text nodes, never markup.

import { brief, count, date, exact, fixed, moment, nusd, percent, placesOf, utc } from "./formatting.js";
import { go, here, to, zone } from "./route.js";
import htm from "./vendor/htm.js";
import { useEffect, useLayoutEffect, useRef, useState } from "./vendor/hooks.js";
import { h } from "./vendor/preact.js";

export const html = htm.bind(h);
export { useEffect, useLayoutEffect, useRef, useState };

// -- values

/** An amount of USD (text, number, or nUSD as BigInt) with all digits in its title. Null becomes `none` with the reason, never 0. `least`: a part of it is unknown; `signed`: with a plus. */
export function Money({ usd, places, none = "—", why = "Unknown", least = false, signed = false }) {
  const amount = typeof usd === "bigint" ? usd : nusd(usd);
  if (amount === null) return html`<span class="quiet" title=${why}>${none}</span>`;
  return html`<span class="figure" title=${`${least ? "At least " : ""}${exact(amount)}`} data-exact=${exact(amount)}>
    ${least ? "≥ " : signed && amount > 0n ? "+" : ""}${places === undefined ? brief(amount) : fixed(amount, places)}</span>`;
}

/** An ISO time in the chosen zone. Null becomes a dash. */
export function Time({ at, dateOnly = false }) {
  if (!at) return "–";
  const when = new Date(at);
  return html`<time datetime=${when.toISOString()} title=${utc(when)}>${(dateOnly ? date : moment)(when, zone())}</time>`;
}

const CALM = new Set(["served", "reported", "provider_later", "done", "active", "healthy", "waiting", "streaming", "background", "estimated"]);
const BAD = new Set(["upstream_failed", "upstream_stalled", "crashed", "failed", "exhausted", "blocked", "revoked", "open"]);

/** A state: words for the normal case, with a coloured dot for the others. `table`: name → [words, explanation]. */
export function Status({ name, table = {} }) {
  const [words, why] = table[name] ?? [name.charAt(0).toUpperCase() + name.slice(1).replaceAll("_", " "), ""];
  const tone = CALM.has(name) ? "" : BAD.has(name) ? "bad" : "careful";
  return html`<span class="status" title=${why || null}>${tone && html`<span class=${`dot ${tone}`} aria-hidden="true" />`}${words}</span>`;
}

/** Names and values; empty values are left out. */
export const Pairs = ({ of }) => html`<dl class="pairs">${of.filter(([, value]) => value !== null && value !== undefined && value !== "" && value !== false)
  .map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;

/** A key figure with its label. */
export const Tile = ({ label, more, href, children }) => html`<div class="tile"><div class="tile-label">${href ? html`<a href=${href}>${label}</a>` : label}
  </div>
  <div class="tile-value">${children}</div>${more && html`<div class="quiet small">${more}</div>`}</div>`;

/** A part of a whole, 0 to 1 or more, as a thin bar. */
export function Bar({ part, held = 0, label }) {
  const width = (value) => ({ width: `${Math.max(0, Math.min(1, value)) * 100}%` });
  const level = !label ? "" : part >= 1 ? "full" : part >= 0.8 ? "high" : "";
  return html`<span class=${`bar ${level}`} role=${label ? "meter" : null} aria-hidden=${label ? null : "true"} aria-label=${label} aria-valuemin=${label && 0}
    aria-valuemax=${label && 100}
    aria-valuenow=${label && Math.min(100, Math.round(part * 100))}><span class="spent" style=${width(part)} />
      <span class="held" style=${width(Math.min(held, 1 - part))} /></span>`;
}

/** A share as a bar and a number; the bars of a column begin at one place. */
export const Share = ({ part, held, label, children }) => html`<span class="share"><${Bar} part=${part} held=${held} label=${label} />
  <span class="part">${percent(part)}</span>${children}</span>`;

/** Copies a text. */
export function Copy({ text, label = "Copy" }) {
  const [done, setDone] = useState("");
  const copy = () => navigator.clipboard.writeText(text).then(() => setDone("Copied"),
    () => setDone("Copy it manually"));  // allowed only over HTTPS or on localhost
  return html`<button type="button" class="small" onClick=${copy}>${done || label}</button>`;
}

/** The way back to a list: with its filters, rows and place, if one came from it. */
export function Back({ page, children }) {
  const { from } = here().entry;
  const cameFrom = from?.path.length === 1 && from.path[0] === page;
  return html`<p><a href=${cameFrom ? from.url : to(page)} onClick=${(event) => cameFrom && !event.ctrlKey && !event.metaKey && (event.preventDefault(),
    history.back())}>← ${children}</a></p>`;
}

export const Code = ({ children }) => html`<code>${children}</code>`;

// -- places without data

export const Empty = ({ title, children }) => html`<div class="empty"><p class="empty-title">${title}</p><p class="quiet">${children}</p></div>`;

/** An error where the data would be, with what to do. */
export const Failure = ({ error, again }) => html`<div class="notice bad" role="alert"><p>${error.message}</p>
  ${again && html`<button type="button" onClick=${again}>Try again</button>`}</div>`;

const Skeleton = () => html`<div class="loading" role="status"><span class="unseen">Loading</span>
  ${[90, 70, 80, 60, 75].map((width) => html`<span style=${{ width: `${width}%` }} />`)}</div>`;

/** The data of `useData`, or the placeholder or error that stands for them. `children`: data → nodes. */
export function Loaded({ of, children }) {
  if (of.data === undefined) return of.error ? html`<${Failure} error=${of.error} again=${of.again} />` : html`<${Skeleton} />`;
  return html`${of.error && html`<${Failure} error=${of.error} again=${of.again} />`}<div class=${of.busy ? "busy" : ""}>${children(of.data)}</div>`;
}

// -- data

/**
 * Data of the API. `load`: signal → data; it runs again when `deps` change, every `every` seconds, and on `again()`.
 * Data of before stay visible until then. `keep`: a name; after “back” the data are there at once. `once`: they are not loaded again.
 */
export function useData(load, deps, { every = 0, keep = null, once = false } = {}) {
  const { kept } = here().entry;
  const [state, set] = useState({ data: keep ? kept.get(keep) : undefined, error: null, of: null });
  const [turn, setTurn] = useState(0);
  const lastTurn = useRef(0);
  const now = `${turn} ${deps.map(String).join(" ")}`;
  useEffect(() => {
    const found = keep && turn === lastTurn.current ? kept.get(keep) : undefined;
    lastTurn.current = turn;
    if (found !== undefined) set({ data: found, error: null, of: now });
    if (found !== undefined && once) return undefined;
    const stop = new AbortController();
    let timer;
    const run = async () => {
      try {
        const data = await load(stop.signal);
        if (stop.signal.aborted) return;
        if (keep) kept.set(keep, data);
        set({ data, error: null, of: now });
      } catch (error) {
        if (stop.signal.aborted) return;
        set((before) => ({ ...before, error, of: now }));
      }
      if (every) timer = setTimeout(run, every * 1000);
    };
    run();
    return () => (stop.abort(), clearTimeout(timer));
  }, [...deps, turn]);
  return { ...state, busy: state.of !== now, again: () => setTurn((before) => before + 1),
    set: (data) => (keep && kept.set(keep, data), set({ data, error: null, of: now })) };
}

// -- tables

const cellOf = (column, row, places) => (column.usd ? html`<${Money} usd=${column.usd(row)} places=${places} why=${column.why?.(row)} none=${column.none?.(row)}
  least=${column.least?.(row)} signed=${column.signed} />` : column.cell(row));
const placesIn = (column, rows) => column.places ?? placesOf(rows.map(column.usd).map((one) => (typeof one === "bigint" ? one : nusd(one))));

/**
 * `columns`: {label, cell: row → node (clip: a text that may be cut), or usd: row → amount; number?, lead?: the row's name, pick?: a check box, fact?: shown on a phone, hidden?, sort?: its
 * name in `sort`}. `open`: row → URL; `visit`: what a click does, by default it goes there. `sort`: {by, falling, set}. On a phone each row is a card: name and first amount, then the facts.
 */
export function Table({ caption, columns, rows, keyOf = (row) => row.id, open, visit = (row) => go(open(row)), sort, foot, chosen }) {
  const shown = columns.filter((one) => !one.hidden);
  const places = new Map(shown.filter((one) => one.usd).map((one) => [one, placesIn(one, rows)]));
  const amount = shown.find((one) => one.amount) ?? shown.find((one) => one.usd);
  const kind = (one) => [(one.usd || one.number) && "number", one.lead && "lead", one.fact && "fact", one === amount && "amount",
    !one.lead && one !== amount && !one.fact && !one.pick && "extra", one.menu && "menu-cell", one.pick && "pick", one.clip && "clip"].filter(Boolean).join(" ");
  const clicked = (row) => (event) => {
    if (event.target.closest("a, button, input, select, summary, [role=menu]") || String(getSelection())) return;
    if (event.ctrlKey || event.metaKey) window.open(open(row)); else visit(row);
  };
  return html`<table role="table" class=${open ? "opens" : ""}>
    ${caption && html`<caption>${caption}</caption>`}
    <thead role="rowgroup"><tr role="row">${shown.map((one) => html`<th scope="col" role="columnheader" key=${one.label} class=${kind(one)}
      aria-sort=${sort && one.sort === sort.by ? (sort.falling ? "descending" : "ascending") : null}>${one.sort && sort
        ? html`<button type="button" class="sort" onClick=${() => sort.set(one.sort, sort.by === one.sort ? !sort.falling : true)}>${one.label}
          <span aria-hidden="true">${one.sort === sort.by ? (sort.falling ? " ↓" : " ↑") : ""}</span></button>`
        : one.menu || one.pick ? html`<span class="unseen">${one.label}</span>` : one.label}</th>`)}</tr></thead>
    <tbody role="rowgroup">${rows.map((row) => html`<tr role="row" key=${keyOf(row)} class=${chosen?.(row) ? "chosen" : ""} onClick=${open && clicked(row)}>
      ${shown.map((one) =>
      html`<td role="cell" key=${one.label} class=${kind(one)} data-label=${one.label} title=${one.clip ? one.cell(row) : null}>
        ${cellOf(one, row, places.get(one))}</td>`)}</tr>`)}</tbody>
    ${foot && html`<tfoot role="rowgroup">${foot}</tfoot>`}
  </table>`;
}

// More options than people can choose from.
export const OPTIONS_MAX = 200;
const WAIT_MS = 150;

/** A text field that offers values as one types. `find`: (text, signal) → [value, words]s; `set`: gets the value that was chosen or named. */
export function Suggest({ name, find, set, ...shared }) {
  const [found, setFound] = useState([]);
  const [text, setText] = useState("");
  useEffect(() => {
    const stop = new AbortController();
    const timer = setTimeout(() => find(text, stop.signal).then(setFound, () => null), text ? WAIT_MS : 0);
    return () => (stop.abort(), clearTimeout(timer));
  }, [text]);
  const choose = async (event) => {
    const given = event.currentTarget.value.trim();
    const all = given && !found.some(([value]) => value === given) ? await find(given).catch(() => []) : found;
    const same = all.filter(([value, words]) => value === given || words === given);
    const [only] = same.length === 1 ? same : all.length === 1 ? all : [];
    if (!given || only) set(only?.[0] ?? null);
    else toast(all.length ? `Several match “${given}”: choose one of them.` : `Nothing matches “${given}”.`);
  };
  return html`<input ...${shared} name=${name} list=${`found-${name}`} autocomplete="off" maxlength="128"
    onInput=${(event) => setText(event.currentTarget.value.trim())} onChange=${set && choose} />
    <datalist id=${`found-${name}`}>${found.map(([value, words]) => html`<option key=${value} value=${value}>${words}</option>`)}</datalist>`;
}

const isChip = (field, value) => field.chip || (field.find && value);

/**
 * Fields and buttons above a table. `fields`: {name: {label, options}, {label, find: see `Suggest`, shown: words of the value} or
 * {label, hint}; chip: shown only if it has a value}; a change calls `set({name: value})`.
 */
export function Filters({ fields, values, set, children }) {
  const control = ([name, field]) => html`<label key=${name}><span class="unseen">${field.label}</span>${field.options
    ? html`<select name=${name} value=${values[name] ?? ""} onChange=${(event) => set({ [name]: event.currentTarget.value || null })}>
      ${!field.required && html`<option value="">${field.label}: all</option>`}
        ${Object.entries(field.options).map(([value, words]) => html`<option key=${value} value=${value}>${field.required ? `${field.label}: ` : ""}${words}
          </option>`)}</select>`
    : field.find ? html`<${Suggest} name=${name} type="search" placeholder=${`${field.label}: all`} find=${field.find} set=${(value) => set({ [name]: value })} />`
    : html`<input name=${name} type="search" placeholder=${field.hint ?? field.label} value=${values[name] ?? ""} maxlength="256" autocomplete="off"
      onChange=${(event) => set({ [name]: event.currentTarget.value.trim() || null })} />`}</label>`;
  const active = Object.entries(fields).filter(([name, field]) => values[name] && isChip(field, values[name]));
  return html`<form class="filters" role="search" onSubmit=${(event) => event.preventDefault()}>
    ${Object.entries(fields).filter(([name, field]) => !isChip(field, values[name])).map(control)}${children}</form>
    ${active.length > 0 && html`<div class="row chips">${active.map(([name,
      field]) => html`<button type="button" key=${name} class="chip" onClick=${() => set({ [name]: null })}><span class="unseen">Remove the filter </span>
      ${field.label}: ${field.shown ?? field.options?.[values[name]] ?? values[name]} <span aria-hidden="true">×</span></button>`)}</div>`}`;
}

/** Buttons that show one of several views: [words, URL, is it chosen]. */
export const Tabs = ({ label, of, children }) => html`<div class="row">
  <div class="tabs" role="group" aria-label=${label}>${of.map(([words, url,
  isChosen]) => html`<button type="button" key=${words} aria-pressed=${String(isChosen)} onClick=${() => go(url)}>${words}</button>`)}</div>${children}</div>`;

/** Buttons for pages of 50 with the count. */
export function Pages({ page, pages, total, word, set }) {
  if (pages <= 1) return null;
  return html`<div class="row end" role="group" aria-label="Pages"><span class="quiet small">Page ${count(page)} of ${count(pages)}, ${count(total)} ${word}
    </span>
    <button type="button" disabled=${page <= 1} onClick=${() => set(page - 1)}>Previous</button>
      <button type="button" disabled=${page >= pages} onClick=${() => set(page + 1)}>Next</button></div>`;
}

// -- layers: menus, dialogs, toasts

/** A button that opens a list of actions: {label, act, danger?} or {label, href}; false ones are left out. */
export function Menu({ label, words, of, align = "right" }) {
  const [at, setAt] = useState(null);
  const [button, list] = [useRef(null), useRef(null)];
  const close = (focus) => (setAt(null), focus && button.current.focus());
  const open = () => {
    const box = button.current.getBoundingClientRect();
    setAt({ top: `${Math.min(box.bottom + 4, innerHeight - 40 * of.length)}px`,
      ...(align === "right" ? { right: `${document.documentElement.clientWidth - box.right}px` } : { left: `${box.left}px` }) });
  };
  useLayoutEffect(() => {
    if (!at) return undefined;
    list.current.querySelector("[role^=menuitem]")?.focus();
    const away = (event) => list.current?.contains(event.target) || button.current.contains(event.target) || setAt(null);
    const { top } = button.current.getBoundingClientRect();
    // The event of an earlier scroll, as of one that made the button visible, may come after the menu has opened.
    const moved = () => Math.abs(button.current.getBoundingClientRect().top - top) > 4 && setAt(null);
    document.addEventListener("pointerdown", away);
    addEventListener("scroll", moved, { passive: true });
    return () => (document.removeEventListener("pointerdown", away), removeEventListener("scroll", moved));
  }, [at]);
  const key = (event) => {
    const items = [...list.current.querySelectorAll("[role^=menuitem]")];
    const number = items.indexOf(document.activeElement);
    const next = { ArrowDown: number + 1, ArrowUp: number - 1, Home: 0, End: -1 }[event.key];
    if (event.key === "Escape" || event.key === "Tab") close(true);
    if (next !== undefined) items.at(next % items.length).focus();
    if (next !== undefined || event.key === "Escape") event.preventDefault();
  };
  const item = (one) => (one.href
    ? html`<a role="menuitem" tabindex="-1" href=${one.href} onClick=${() => setAt(null)}>${one.label}</a>`
    : html`<button type="button" tabindex="-1" role=${one.checked === undefined ? "menuitem" : "menuitemradio"} aria-checked=${one.checked === undefined ? null
      : String(one.checked)} class=${one.danger ? "danger-text" : ""} onClick=${() => (close(true), one.act())}>${one.label}</button>`);
  return html`<span class="menu"><button type="button" ref=${button} class="plain" aria-haspopup="menu" aria-expanded=${String(Boolean(at))} aria-label=${label}
    title=${label} onClick=${() => (at ? close() : open())}>${words ?? "⋯"}</button>
    ${at && html`<div role="menu" ref=${list} class="menu-list" style=${at} aria-label=${label} onKeyDown=${key}>
      ${of.filter(Boolean).map((one) => html`<div role="none" key=${one.label}>${item(one)}</div>`)}</div>`}</span>`;
}

let drawLayers = () => undefined;
let dialog = null;
let toasts = [];

/** Shows a dialog, in place of the one that is open; null closes it. */
export const openDialog = (node) => { dialog = node; drawLayers(); };
export const closeDialog = () => openDialog(null);

const TOAST_MS = 6_000;

/** Shows a short message. `undo`: {label, act}, a button in it. */
export function toast(words, undo) {
  const one = { words, undo, id: crypto.randomUUID() };
  toasts = [...toasts.slice(-2), one];
  drawLayers();
  setTimeout(() => { toasts = toasts.filter((other) => other !== one); drawLayers(); }, undo ? 2 * TOAST_MS : TOAST_MS);
}

/** Announces a text to screen readers. */
export const say = (words) => { document.getElementById("status").textContent = words; };

export function Layers() {
  const [, again] = useState(0);
  drawLayers = () => again((before) => before + 1);
  return html`${dialog}<div class="toasts" role="status" aria-live="polite">${toasts.map((one) => html`<div class="toast" key=${one.id}>${one.words}
    ${one.undo && html`<button type="button" class="small" onClick=${() => { toasts = toasts.filter((other) => other !== one); drawLayers(); one.undo.act(); }}>
      ${one.undo.label}</button>`}</div>`)}</div>`;
}

/** A modal dialog. It takes the focus and returns it on close. `done`: called when it has closed. */
export function Dialog({ title, children, done }) {
  const box = useRef(null);
  useLayoutEffect(() => {
    const from = /** @type {HTMLElement | null} */ (document.activeElement);
    box.current.showModal();
    box.current.querySelector("[autofocus], input, select")?.focus();
    return () => setTimeout(() => (from?.isConnected ? from : document.getElementById("main"))?.focus());
  }, []);
  return html`<dialog ref=${box} aria-label=${title} onClose=${() => (closeDialog(), done?.())}><h2>${title}</h2>${children}</dialog>`;
}

/** A confirmation. `act` runs on confirmation; its error is shown in the dialog. */
export function Confirm({ title, label, act, children }) {
  const [state, set] = useState({ busy: false, error: null });
  const run = async () => {
    set({ busy: true, error: null });
    try {
      const next = await act();
      if (next) openDialog(next); else closeDialog();
    } catch (error) {
      set({ busy: false, error });
    }
  };
  return html`<${Dialog} title=${title}><div class="words">${children}</div>${state.error && html`<${Failure} error=${state.error} />`}
    <div class="row end"><button type="button" autofocus onClick=${closeDialog}>Cancel</button>
      <button type="button" class="danger" disabled=${state.busy} onClick=${run}>${label}</button></div><//>`;
}

// The frame: sign-in, navigation, search, period, zone, theme. Invariant: one page at a time; leaving a page aborts its
// requests and timers.

import { ask, hasKey, signedIn, signedOut } from "./api.js";
import * as audit from "./audit.js";
import * as budgets from "./budgets.js";
import * as customers from "./customers.js";
import * as delivery from "./delivery.js";
import * as keys from "./keys.js";
import * as live from "./live.js";
import * as models from "./models.js";
import * as overview from "./overview.js";
import * as prices from "./prices.js";
import * as providers from "./providers.js";
import * as request from "./request.js";
import * as requests from "./requests.js";
import { arrive, go, here, LOCAL_ZONE, period, PERIODS, replace, to, withQuery, zone } from "./route.js";
import { Search } from "./search.js";
import * as statements from "./statements.js";
import { Empty, Failure, html, Layers, Menu, openDialog, useEffect, useLayoutEffect, useState } from "./ui.js";
import * as usage from "./usage.js";
import { render } from "./vendor/preact.js";

/** Path → page: {title, Page, accepts: parameter → valid values, operator?: not for keys, ofKeys?: for keys only, hasPeriod?, one: the page of one object}. */
const PAGES = { overview, usage, requests: { ...requests, one: request }, live, customers, keys, budgets, models, prices, providers, statements, delivery, audit };
const GROUPS = [["overview", "usage", "requests", "live"], ["customers", "keys", "budgets"], ["models", "prices", "providers"], ["statements", "delivery", "audit"]];
const THEMES = { auto: "System", light: "Light", dark: "Dark" };

const firstOf = (me) => (me.role === "operator" ? "overview" : "usage");
const mayView = (name, me) => (me.role === "operator" ? !PAGES[name].ofKeys : !PAGES[name].operator);
const titleOf = (name, me) => (name === "keys" && me.role === "key" ? "My key" : PAGES[name].title);

/** The page of a path; null: there is none. */
function pageOf(path, me) {
  const [name = firstOf(me), id, ...rest] = path;
  if (!Object.hasOwn(PAGES, name) || rest.length || !mayView(name, me)) return null;
  return id === undefined ? PAGES[name] : PAGES[name].one ?? null;
}

function theme(name) {
  document.documentElement.dataset.theme = name;
  if (name === "auto") localStorage.removeItem("tokenweir.theme");
  else localStorage.setItem("tokenweir.theme", name);
}

// -- the frame

function Rail({ me, current, open, close }) {
  const link = (name) => html`<a key=${name} href=${to(name)} aria-current=${name === current ? "page" : null} onClick=${close}>${titleOf(name, me)}</a>`;
  return html`<nav class=${open ? "rail open" : "rail"} id="rail" aria-label="Pages">
    <a class="brand" href=${to(firstOf(me))}><img src="page/icon.svg" alt="" width="24" height="24" />Tokenweir</a>
    ${GROUPS.map((names) => names.filter((name) => mayView(name, me))).filter((names) => names.length).map((names) => html`<div key=${names[0]}>
      ${names.map(link)}</div>`)}</nav>`;
}

function PeriodChoice() {
  const chosen = period();
  const set = (changes) => go(withQuery(changes));
  const choose = (event) => {
    const name = event.currentTarget.value;
    set(name === "custom" ? { period: null, from: chosen.first, to: chosen.last } : { period: name === "30d" ? null : name, from: null, to: null });
  };
  const day = (name, label, value) => html`<label><span class="unseen">${label}</span>
    <input type="date" name=${name} value=${value} onChange=${(event) => event.currentTarget.value && set({ period: null, from: chosen.first, to: chosen.last,
    [name]: event.currentTarget.value })} /></label>`;
  return html`<div class="row"><label><span class="unseen">Period</span>
    <select name="period" value=${chosen.name} onChange=${choose}>
    ${Object.entries(PERIODS).map(([name, words]) => html`<option key=${name} value=${name}>${words}</option>`)}</select></label>
    ${chosen.name === "custom" && html`${day("from", "From", chosen.first)} – ${day("to", "Until", chosen.last)}`}</div>`;
}

function ZoneChoice() {
  const zones = [...new Set(["UTC", LOCAL_ZONE, zone()])];
  return html`<label><span class="unseen">Time zone</span><select name="tz" value=${zone()}
    onChange=${(event) => go(withQuery({ tz: event.currentTarget.value === "UTC" ? null : event.currentTarget.value }))}>
    ${zones.map((name) => html`<option key=${name} value=${name}>${name === LOCAL_ZONE && name !== "UTC" ? `Local: ${name}` : name}</option>`)}</select>
      </label>`;
}

function ThemeMenu() {
  const [name, set] = useState(document.documentElement.dataset.theme);
  return html`<${Menu} label=${`Theme: ${THEMES[name]}`} words=${html`<span aria-hidden="true" class="moon" />`}
    of=${Object.entries(THEMES).map(([one, label]) => ({ label, checked: one === name, act: () => (theme(one), set(one)) }))} />`;
}

function Top({ me, page, openRail, railOpen, signOut }) {
  const who = me.role === "operator" ? `${me.name} (${me.may})` : me.key_alias;
  return html`<header id="top"><button type="button" class="plain burger" aria-label="Pages" aria-expanded=${String(railOpen)} aria-controls="rail"
    onClick=${openRail}>☰</button>
    <button type="button" class="search-button" aria-keyshortcuts="Control+K" onClick=${() => openSearch(me)}><span>Search</span><kbd>Ctrl K</kbd></button>
    <div class="tools">${page?.hasPeriod && html`<${PeriodChoice} />`}<${ZoneChoice} /><${ThemeMenu} />
    <${Menu} label=${`Signed in as ${who}`} words=${html`<span class="who">${who}</span>`} of=${[{ label: "Sign out", act: signOut }]} /></div></header>`;
}

const openSearch = (me) => openDialog(html`<${Search} me=${me} pages=${Object.keys(PAGES).filter((name) => mayView(name, me)).map((name) => [titleOf(name, me),
  to(name)])} />`);

function Ignored() {
  const { ignored } = here();
  if (!ignored.length) return null;
  return html`<div class="row chips">${ignored.map((one) => html`<span class="chip warn" role="status" key=${one}>Ignored: ${one}</span>`)}
    <button type="button" class="small" onClick=${() => replace(withQuery({}))}>Remove</button></div>`;
}

function View({ page, me, place }) {
  const [name = firstOf(me), id] = place.path;
  const title = page ? (id === undefined ? titleOf(name, me) : page.title) : "Page not found";
  useLayoutEffect(() => {
    document.title = `${title} · Tokenweir`;
    scrollTo(0, place.entry.scroll);
  }, [place.entry]);
  if (!page) return html`<h1 tabindex="-1">${title}</h1><${Empty}
    title="There is no such page.">The link may be mistyped, or the page is not for you. <a href=${to(firstOf(me))}>Go to ${titleOf(firstOf(me), me)}</a>.<//>`;
  return html`<h1 tabindex="-1">${title}</h1><${Ignored} /><div class="view"><${page.Page} key=${place.path.join("/")} me=${me} id=${id} /></div>`;
}

/** The whole console of a signed-in caller. */
function Frame({ me, signOut }) {
  const read = () => arrive((parts) => pageOf(parts, me)?.accepts ?? {});
  const [place, set] = useState(read);
  const [railOpen, setRail] = useState(false);
  useEffect(() => {
    const moved = () => location.hash !== "#main" && set((before) => {
      const after = read();
      if (after.path.join("/") !== before.path.join("/")) openDialog(null);
      return after;
    });
    const key = (event) => {
      if (event.key === "Escape") setRail(false);
      if (event.key !== "k" || !(event.ctrlKey || event.metaKey)) return;
      event.preventDefault();
      if (!document.querySelector("dialog")) openSearch(me);
    };
    addEventListener("hashchange", moved);
    addEventListener("keydown", key);
    return () => (removeEventListener("hashchange", moved), removeEventListener("keydown", key));
  }, []);
  const path = place.path.join("/");
  const [shown, setShown] = useState(path);
  useEffect(() => {
    if (path === shown) return;
    setShown(path);
    document.querySelector("h1")?.focus({ preventScroll: true });
  }, [path]);
  const page = pageOf(place.path, me);
  return html`<${Rail} me=${me} current=${place.path[0] ?? firstOf(me)} open=${railOpen} close=${() => setRail(false)} />
    ${railOpen && html`<div class="shade" onClick=${() => setRail(false)} />`}
    <div class="page"><${Top} me=${me} page=${page} railOpen=${railOpen} openRail=${() => setRail(!railOpen)} signOut=${signOut} />
    <main id="main" tabindex="-1"><${View} page=${page} me=${me} place=${place} /></main></div>`;
}

// -- signing in and out

function SignIn({ words, enter }) {
  const [state, set] = useState({ error: words ? { message: words } : null, busy: false, oidc: null });
  useEffect(() => {
    document.title = "Sign in · Tokenweir";
    document.getElementById("credential").focus();
    ask("v1/session", { quiet: true }).then(({ oidc }) => set((before) => ({ ...before, oidc })), () => null);
  }, []);
  const submit = async (event) => {
    event.preventDefault();
    const field = event.currentTarget.elements.credential;
    set((before) => ({ ...before, busy: true }));
    try {
      const text = field.value.trim();
      if (!/^[\x21-\x7e]+$/.test(text)) throw new Error("A secret or a key contains only ASCII characters and no spaces.");
      enter(await signedIn(text));
    } catch (error) {
      const shown = error.status === 401 ? new Error("This is neither an operator's secret nor an active key.") : error;
      set((before) => ({ ...before, busy: false, error: shown }));
      field.select();
    }
  };
  return html`<main id="main" tabindex="-1"><form class="card sign-in" onSubmit=${submit}><h1>Sign in</h1>
    <label for="credential">Operator's secret or key</label><input type="password" id="credential" required autocomplete="off" spellcheck="false"
      autocapitalize="off" aria-describedby="what trouble" />
    <p class="quiet small"
      id="what">An operator sees all data, in every tab of this browser, for 8 hours after the last use. A key (tw-…) shows only its own data, in this tab.</p>
    <div id="trouble">${state.error && html`<${Failure} error=${state.error} />`}</div><button class="main" disabled=${state.busy}>Sign in</button>
    ${state.oidc && html`<a class="button" href=${state.oidc.url}>Sign in with ${state.oidc.label}</a>`}</form></main>`;
}

function App() {
  const [state, set] = useState({ me: undefined, words: null, error: null });
  const begin = () => ask("v1/me", { quiet: !hasKey() }).then((me) => set({ me }),
    (error) => set(error.status === 401 ? (before) => ({ me: null, words: before.words }) : { error }));
  const signOut = async (words) => (await signedOut(), set({ me: null, words }));
  useEffect(() => {
    addEventListener("signed-out", (/** @type {CustomEvent} */ event) => signOut(event.detail));
    begin();
  }, []);
  if (state.error) return html`<main id="main" tabindex="-1"><${Failure} error=${state.error} again=${begin} /></main>`;
  if (state.me === undefined) return html`<main id="main" tabindex="-1" />`;
  return html`${state.me ? html`<${Frame} me=${state.me} signOut=${() => signOut()} />` : html`<${SignIn} words=${state.words} enter=${(me) => set({ me })} />`}
    <${Layers} />`;
}

/** Copying one amount copies all its digits. */
function copyExact(event) {
  const at = /** @type {HTMLElement} */ (getSelection().anchorNode?.parentElement?.closest("[data-exact]"));
  if (!at || !at.contains(getSelection().focusNode) || String(getSelection()).trim() !== at.textContent) return;
  event.clipboardData.setData("text/plain", at.dataset.exact);
  event.preventDefault();
}

history.scrollRestoration = "manual";
theme(localStorage.getItem("tokenweir.theme") ?? "auto");
document.getElementById("skip").addEventListener("click", (event) => (event.preventDefault(), document.getElementById("main").focus()));
document.addEventListener("copy", copyExact);
render(html`<${App} />`, document.getElementById("app"));

// The page: sign-in, navigation, theme. Invariant: one view at a time; leaving a view aborts its requests and timers.

import { ask, hasKey, signedIn, signedOut } from "./api.js";
import { el, failure, say } from "./dom.js";
import * as audit from "./audit.js";
import * as budgets from "./budgets.js";
import * as exchange from "./exchange.js";
import * as exchanges from "./exchanges.js";
import * as keys from "./keys.js";
import * as live from "./live.js";
import * as projects from "./projects.js";
import * as spend from "./spend.js";

const VIEWS = { live, spend, exchanges, keys, projects, budgets, audit };
const THEMES = { auto: "system", light: "light", dark: "dark" };
const main = document.getElementById("main");
const header = document.getElementById("top");

let me = null;
let shown = new AbortController();

// -- light and dark

function theme(name) {
  document.documentElement.dataset.theme = name;
  if (name === "auto") localStorage.removeItem("tokenweir.theme");
  else localStorage.setItem("tokenweir.theme", name);
}

function themeButton() {
  const words = () => `Theme: ${THEMES[document.documentElement.dataset.theme]}`;
  const button = el("button", { type: "button", class: "plain", click: () => {
    const names = Object.keys(THEMES);
    theme(names[(names.indexOf(document.documentElement.dataset.theme) + 1) % names.length]);
    label();
    say(words());
  } }, el("span", { "aria-hidden": "true", class: "moon" }));
  const label = () => {
    button.setAttribute("aria-label", `${words()}. Change.`);
    button.title = words();
  };
  label();
  return button;
}

// -- header and navigation

function titleOf(name) {
  return name === "keys" && me.role === "key" ? "My key" : VIEWS[name].title;
}

const mayView = (name) => me.role === "operator" || !VIEWS[name].operator;

function drawHeader(current) {
  const links = me && Object.keys(VIEWS).filter(mayView).map((name) =>
    el("a", { href: `#/${name}`, "aria-current": name === current && "page" }, titleOf(name)));
  const who = me && el("span", { class: "who" }, me.role === "operator" ? `${me.name} (${me.may})` : me.key_alias);
  header.replaceChildren(...[
    el("div", { class: "brand" }, el("img", { src: "page/icon.svg", alt: "", width: 24, height: 24 }), "Tokenweir"),
    links && el("nav", { "aria-label": "Views" }, links),
    el("div", { class: "tools" }, who, themeButton(),
      me && el("button", { type: "button", class: "plain", click: () => signOut() }, "Sign out")),
  ].filter(Boolean));
}

function place() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, id] = path.split("/").map(decodeURIComponent);
  return { name: name in VIEWS && mayView(name) ? name : "live", id, query: new URLSearchParams(query) };
}

async function show(moved) {
  shown.abort();
  shown = new AbortController();
  const { signal } = shown;
  const { name, id, query } = place();
  const view = name === "exchanges" && id ? exchange : VIEWS[name];
  drawHeader(name);
  const title = view === exchange ? exchange.title : titleOf(name);
  document.title = `${title} · Tokenweir`;
  const body = el("div", { class: "view" });
  main.replaceChildren(el("h1", { tabindex: -1 }, title), body);
  if (moved) /** @type {HTMLElement} */ (main.firstChild).focus();
  try {
    await view.show(body, { signal, me, id, query });
  } catch (error) {
    if (!signal.aborted) body.replaceChildren(failure(error, () => show()));
  }
}

// -- signing in and out

async function signOut(words) {
  await signedOut();
  me = null;
  shown.abort();
  signIn(words);
}

function signIn(words) {
  drawHeader();
  document.title = "Sign in · Tokenweir";
  const trouble = el("div", { id: "trouble" }, words && el("p", { class: "notice bad", role: "alert" }, words));
  const field = el("input", {
    type: "password", id: "credential", required: true, autocomplete: "off", spellcheck: "false",
    autocapitalize: "off", "aria-describedby": "what trouble",
  });
  const button = el("button", { class: "main" }, "Sign in");
  const submit = async (event) => {
    event.preventDefault();
    button.disabled = true;
    try {
      await enter(field.value.trim());
    } catch (error) {
      const shownError = error.status === 401 ? new Error("This is neither an operator's secret nor an active key.") : error;
      trouble.replaceChildren(failure(shownError));
      button.disabled = false;
      field.select();
    }
  };
  main.replaceChildren(el("form", { class: "card sign-in", submit },
    el("h1", {}, "Sign in"),
    el("label", { for: "credential" }, "Operator's secret or key"), field,
    el("p", { class: "quiet small", id: "what" }, "An operator sees all data, in every tab of this browser, for 8 hours after the last use. A key (tw-…) shows only its own data, in this tab."),
    trouble, button, identityLink()));
  field.focus();
}

/** The way to the identity provider, empty where none is configured. */
function identityLink() {
  const place = el("div", {});
  ask("v1/session", { quiet: true }).then(({ oidc }) => {
    if (oidc) place.replaceChildren(el("a", { class: "button", href: oidc.url }, `Sign in with ${oidc.label}`));
  }, () => null);
  return place;
}

async function enter(text) {
  if (!/^[\x21-\x7e]+$/.test(text)) throw new Error("A secret or a key contains only ASCII characters and no spaces.");
  me = await signedIn(text);
  await show(true);
}

async function begin() {
  theme(localStorage.getItem("tokenweir.theme") ?? "auto");
  addEventListener("hashchange", () => me && location.hash !== "#main" && show(true));
  addEventListener("signed-out", (/** @type {CustomEvent} */ event) => signOut(event.detail));
  document.getElementById("skip").addEventListener("click", (event) => (event.preventDefault(), main.focus()));
  try {
    me = await ask("v1/me", { quiet: !hasKey() });
  } catch (error) {
    if (error.status === 401 && !hasKey()) return signIn();
    drawHeader();
    if (error.status !== 401) main.replaceChildren(failure(error, begin));
    return undefined;
  }
  return show();
}

begin();

// The search of the whole console: pages, customers, and requests and keys by their ids or names.

import { accountName, ask, findAccounts } from "./api.js";
import { go, to } from "./route.js";
import { closeDialog, Dialog, html, useEffect, useState } from "./ui.js";

const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i;
const SHOWN_MAX = 8;
const WAIT_MS = 150;

const has = (text, part) => text.toLowerCase().includes(part.toLowerCase());

/** Places for a text: [kind, name, URL]. */
async function found(text, pages, me, signal) {
  if (!text) return pages.map(([name, url]) => ["Page", name, url]);
  const places = pages.filter(([name]) => has(name, text)).map(([name, url]) => ["Page", name, url]);
  if (UUID.test(text)) places.unshift(["Request", text, to(["requests", text.toLowerCase()])]);
  if (me.role === "operator") {
    const [accounts, { keys }] = await Promise.all([findAccounts(undefined, text, signal),
      ask("key/list", { query: { q: text.slice(0, 128), size: SHOWN_MAX }, signal })]);
    const ofName = accounts.filter((one) => has(one.name, text) || one.id === text).slice(0, SHOWN_MAX);
    places.push(...ofName.map((one) => [one.kind === "project" ? "Project" : "Customer", accountName(one), to(["customers", one.id])]));
    places.push(...keys.map((key) => ["Key", key.key_alias, to(["keys", key.token])]));
  }
  places.push(["Requests", `with “${text}”: id, response id, key or model`, to("requests", { q: text })]);
  places.push(["Rejected requests", `with “${text}”: id, key, model or limit`, to("requests", { q: text, show: "rejected" })]);
  return places;
}

/** `pages`: [title, URL]. */
export function Search({ me, pages }) {
  const [text, setText] = useState("");
  const [places, setPlaces] = useState([]);
  const [at, setAt] = useState(0);
  useEffect(() => {
    const stop = new AbortController();
    const timer = setTimeout(() => found(text.trim(), pages, me, stop.signal).then((all) => (setPlaces(all.slice(0, 2 * SHOWN_MAX)), setAt(0)), () => null),
      text ? WAIT_MS : 0);
    return () => (stop.abort(), clearTimeout(timer));
  }, [text]);
  const open = (place) => place && (closeDialog(), go(place[2]));
  const key = (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step || event.key === "Enter") event.preventDefault();
    if (step) setAt((at + step + places.length) % places.length);
    if (event.key === "Enter") open(places[at]);
  };
  return html`<${Dialog} title="Search"><input type="search" role="combobox" aria-label="Search" aria-expanded="true" aria-controls="places"
    aria-activedescendant=${places.length ? `place-${at}` : null} autocomplete="off" spellcheck="false"
      placeholder="Page, customer, key, model, or a request's id" value=${text} onInput=${(event) => setText(event.currentTarget.value)} onKeyDown=${key} />
    <ul id="places" role="listbox" aria-label="Results">${places.map((place,
      number) => html`<li key=${place[2]} id=${`place-${number}`} role="option" aria-selected=${String(number === at)} onClick=${() => open(place)}>
      <span class="quiet small">${place[0]}</span> ${place[1]}</li>`)}</ul><//>`;
}

// Requests to the proxy. Invariants: an operator's secret is exchanged for a cookie that no script can read, and kept
// nowhere; a key is in this tab's session storage and in one request header; every failure is an error with a readable
// message.

const KEPT = "tokenweir.credential";

const credential = () => sessionStorage.getItem(KEPT);
/** Keeps a key for this tab. */
export const remember = (text) => sessionStorage.setItem(KEPT, text);
const forget = () => sessionStorage.removeItem(KEPT);

/** True if this tab has a key. */
export const hasKey = () => Boolean(credential());

/** A message without the API's name of the field: the page shows the field's own label. */
const worded = (text) => text.replace(/^'[a-z_.]+': /, "").replace(" or null", " or empty");

/** A failed request. `status` 0: no answer; `param`: the field that caused it. */
export class Refused extends Error {
  constructor(status, problem = {}) {
    super(problem.message ? worded(problem.message) : `The proxy answered with status ${status} and no message.`);
    Object.assign(this, { status, param: problem.param ?? null, code: problem.code ?? null });
  }
}

function address(path, query) {
  const named = Object.entries(query ?? {}).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const parameters = new URLSearchParams(named.flatMap(([name, value]) => [value].flat().map((one) => [name, one])));
  return parameters.size ? `${path}?${parameters}` : path;
}

/**
 * @param {string} path
 * @param {{method?: string, query?: object, body?: any, signal?: AbortSignal, accept?: string, as?: string, quiet?: boolean}} [options]
 */
async function sent(path, { method = "GET", query, body, signal, accept, as = credential(), quiet = false } = {}) {
  const headers = { Accept: accept ?? "application/json" };
  if (as) headers.Authorization = `Bearer ${as}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(address(path, query), {
      method, headers, signal, body: body && JSON.stringify(body), cache: "no-store", credentials: "same-origin",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, { message: "The proxy does not answer. It may be stopped, or the network is down." });
  }
  if (response.ok) return response;
  const refusal = new Refused(response.status, (await response.json().catch(() => ({}))).error);
  if (response.status === 401 && as === credential() && !quiet) {
    forget();
    dispatchEvent(new CustomEvent("signed-out", { detail: "You were signed out: your credential is no longer valid." }));
  }
  throw refusal;
}

/** The body of an answer. Raises Refused. */
export const ask = async (path, options) => (await sent(path, options)).json();

/** Offers the body of an answer as a file. Raises Refused. */
export async function save(path, query, name) {
  const url = URL.createObjectURL(await (await sent(path, { query, accept: "*/*" })).blob());
  Object.assign(document.createElement("a"), { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** Signs in with an operator's secret or a key. Returns the caller. Raises Refused. */
export async function signedIn(text) {
  try {
    const me = await ask("v1/session", { method: "POST", as: text });
    forget();
    return me;
  } catch (error) {
    if (error.code !== "operator_only") throw error;
    const me = await ask("v1/me", { as: text });
    remember(text);
    return me;
  }
}

/** Ends the session of the operator, or forgets the key. */
export async function signedOut() {
  if (!credential()) await sent("v1/session", { method: "DELETE" }).catch(() => null);
  forget();
}

/** The body, and the seconds to wait before the next request (status 202: not finished), or null if finished. */
export async function askUnfinished(path, options) {
  const response = await sent(path, options);
  const wait = response.status === 202 ? Number(response.headers.get("Retry-After") ?? 1) : null;
  return [await response.json(), wait];
}

/** The bodies of server-sent events until the stream ends. */
export async function* events(path, signal) {
  const response = await sent(path, { signal, accept: "text/event-stream" });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let kept = ""; ;) {
    const { value, done } = await reader.read();
    if (done) return;
    kept += value;
    for (let end = kept.indexOf("\n\n"); end >= 0; end = kept.indexOf("\n\n")) {
      const line = kept.slice(0, end).split("\n").find((one) => one.startsWith("data: "));
      kept = kept.slice(end + 2);
      if (line) yield JSON.parse(line.slice(6));
    }
  }
}

// A choice among more accounts is a search.
const CHOICES_MAX = 100;
const FOUND_MAX = 20;
const firstPages = new Map();
const names = new Map();

/** The first organizations or projects by name, and how many there are; read once until `changed()`. */
export function firstAccounts(kind) {
  if (!firstPages.has(kind)) {
    const asked = ask("account/list", { query: { kind, sort: "name", size: CHOICES_MAX } });
    firstPages.set(kind, asked);
    asked.catch(() => firstPages.delete(kind));
  }
  return firstPages.get(kind);
}

/** The organizations or projects (`kind` undefined: both) with a text in their names. */
export const findAccounts = async (kind, text, signal) => (await ask("account/list",
  { query: { kind, q: text.slice(0, 128), sort: "name", size: FOUND_MAX }, signal })).accounts;

/** A name; that of a project is followed by its organization unless that is the default one. */
export const accountName = (one) => (one.kind === "project" && one.organization_id !== "org_default" ? `${one.name} (${one.organization})` : one.name);

/** A key by its id, revoked or not; undefined: there is none. */
export async function keyOf(id, signal) {
  const { keys } = await ask("key/list", { query: { q: id, include_revoked: true }, signal });
  return keys.find((one) => one.token === id);
}

/** An organization or a project by its id; undefined: there is none. */
export async function accountOf(id, signal) {
  const { accounts } = await ask("account/list", { query: { q: id, size: CHOICES_MAX }, signal });
  return accounts.find((one) => one.id === id);
}

async function nameOf(id, signal) {
  const account = /^(org|proj)_/.test(id) ? await accountOf(id, signal) : null;
  return account ? accountName(account) : (await keyOf(id, signal))?.key_alias ?? id;
}

/** The names of keys, organizations and projects, by their ids. One that is unknown keeps its id. */
export async function namesOf(ids, signal) {
  const missing = [...new Set(ids)].filter((id) => id && !names.has(id)).slice(0, 200);
  for (let at = 0; at < missing.length; at += 8) {
    await Promise.all(missing.slice(at, at + 8).map(async (id) => { names.set(id, await nameOf(id, signal)); }));
  }
  return names;
}

/** Forgets what was read before: an operation changed keys or accounts. */
export const changed = () => { firstPages.clear(); names.clear(); };

export async function post(path, body) {
  const answer = await ask(path, { method: "POST", body });
  changed();
  return answer;
}

/** Resolves after `seconds`, or at once when `signal` aborts. */
export const pause = (seconds, signal) => new Promise((resolve) => {
  const timer = setTimeout(resolve, seconds * 1000);
  signal.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
});

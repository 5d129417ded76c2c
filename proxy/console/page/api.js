// Requests to the proxy. Invariants: an operator's secret is exchanged for a cookie that no script can read, and kept
// nowhere; a key is in this tab's session storage and in one request header; every failure is an error with a readable
// message.

const KEPT = "tokenweir.credential";

const credential = () => sessionStorage.getItem(KEPT);
const remember = (text) => sessionStorage.setItem(KEPT, text);
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

const PAGES_MAX = 10;
let accountsRead = null;

/** All organizations and projects, oldest first; read once until `changed()`. */
export function everyAccount() {
  accountsRead ??= (async () => {
    const found = [];
    for (let page = 1, pages = 1; page <= Math.min(pages, PAGES_MAX); page += 1) {
      const answer = await ask("account/list", { query: { page, size: 100 } });
      pages = answer.total_pages;
      found.push(...answer.accounts);
    }
    return found;
  })();
  accountsRead.catch(() => { accountsRead = null; });
  return accountsRead;
}

/** A project's name, followed by its organization unless that is the default one. */
export function projectName(project, accounts) {
  const above = accounts.find((one) => one.id === project.organization_id);
  return above && above.id !== "org_default" ? `${project.name} (${above.name})` : project.name;
}

/** A key by its id, revoked or not; undefined: there is none. */
export async function keyOf(id, signal) {
  const { keys } = await ask("key/list", { query: { q: id, include_revoked: true }, signal });
  return keys.find((one) => one.token === id);
}

const aliases = new Map();

/** The names of keys, by their ids. A key that is unknown keeps its id. */
export async function keyNames(ids, signal) {
  const missing = [...new Set(ids)].filter((id) => id && !aliases.has(id)).slice(0, 200);
  for (let at = 0; at < missing.length; at += 8) {
    await Promise.all(missing.slice(at, at + 8).map(async (id) => {
      aliases.set(id, (await keyOf(id, signal))?.key_alias ?? id);
    }));
  }
  return aliases;
}

/** Forgets what was read before: an operation changed keys or accounts. */
export const changed = () => { accountsRead = null; aliases.clear(); };

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

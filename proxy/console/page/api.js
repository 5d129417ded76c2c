// Requests to the proxy. Invariants: an operator's secret is exchanged for a cookie that no script can read, and kept
// nowhere; a key is in this tab's session storage and in one request header; every failure is an error with a readable
// message.

const KEPT = "tokenweir.credential";

const credential = () => sessionStorage.getItem(KEPT);
const remember = (text) => sessionStorage.setItem(KEPT, text);
const forget = () => sessionStorage.removeItem(KEPT);

/** True if this tab has a key. */
export const hasKey = () => Boolean(credential());

/** A failed request. `status` 0: no answer; `param`: the field that caused it. */
export class Refused extends Error {
  constructor(status, problem = {}) {
    super(problem.message ?? `The proxy answered with status ${status} and no message.`);
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

export const post = (path, body) => ask(path, { method: "POST", body });

/** The body, and the seconds to wait before the next request (status 202: not finished), or null if finished. */
export async function askUnfinished(path, options) {
  const response = await sent(path, options);
  const wait = response.status === 202 ? Number(response.headers.get("Retry-After") ?? 1) : null;
  return [await response.json(), wait];
}

/** All buckets of a paged report. */
export async function buckets(path, query, signal) {
  const found = [];
  let page;
  do {
    const answer = await ask(path, { query: { ...query, page }, signal });
    found.push(...answer.data);
    page = answer.next_page;
  } while (page);
  return found;
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

/** All pages, up to 1,000 objects. */
async function everyOne(path, name, query, signal) {
  const found = [];
  for (let page = 1, pages = 1; page <= Math.min(pages, 10); page += 1) {
    const answer = await ask(path, { query: { page, size: 100, ...query }, signal });
    pages = answer.total_pages;
    found.push(...answer[name]);
  }
  return found;
}

/** All keys, revoked ones too, newest first. */
export const everyKey = (signal) => everyOne("key/list", "keys", { include_revoked: true }, signal);

/** All organizations and projects, oldest first. */
export const everyAccount = (signal) => everyOne("account/list", "accounts", {}, signal);

/** A project's name, followed by its organization unless that is the default one. */
export function projectName(project, accounts) {
  const above = accounts.find((one) => one.id === project.organization_id);
  return above && above.id !== "org_default" ? `${project.name} (${above.name})` : project.name;
}

/** Resolves after `seconds`, or at once when `signal` aborts. */
export const pause = (seconds, signal) => new Promise((resolve) => {
  const timer = setTimeout(resolve, seconds * 1000);
  signal.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
});

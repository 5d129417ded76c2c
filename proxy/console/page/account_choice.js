// The choice of a customer or a project. Invariant: of many, the server finds those that a text names; never are all read.

import { accountName, findAccounts, firstAccounts, namesOf } from "./api.js";
import { useData } from "./ui.js";

/**
 * The part of a field that chooses an organization or a project: `options` (id → name) if one page has all of them, or else `find`.
 * `chosen`: its id; `active`: false: nothing is read.
 */
export function useAccounts(kind, chosen = undefined, active = true) {
  const found = useData(async (signal) => {
    if (!active) return null;
    const { accounts, total_count: total } = await firstAccounts(kind);
    return { accounts, total, shown: chosen && (await namesOf([chosen], signal)).get(chosen) };
  }, [kind, chosen]);
  const { accounts = [], total = 0, shown = undefined } = found.data ?? {};
  if (total <= accounts.length) return { options: Object.fromEntries(accounts.map((one) => [one.id, accountName(one)])), shown };
  return { find: async (text, signal) => (await findAccounts(kind, text, signal)).map((one) => [one.id, accountName(one)]), shown };
}

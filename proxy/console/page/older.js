// Lists that are read with a cursor, newest first. Invariant: the rows that were read are there again after “back”.

import { count, many } from "./formatting.js";
import { Failure, html, say, useData, useState } from "./ui.js";

/** `load`: (cursor, signal) → a page {data, has_more, next_after}. Returns the data of `useData` with the cursor. */
export function useOlder(name, load, deps) {
  const first = useData(async (signal) => {
    const page = await load(undefined, signal);
    return { rows: page.data, after: page.has_more ? page.next_after : null };
  }, deps, { keep: `${name} ${deps.join()}`, once: true });
  const [state, set] = useState({ busy: false, error: null });
  const older = async () => {
    set({ busy: true, error: null });
    try {
      const page = await load(first.data.after, undefined);
      first.set({ rows: [...first.data.rows, ...page.data], after: page.has_more ? page.next_after : null });
      say(`${count(page.data.length)} more shown.`);
      set({ busy: false, error: null });
    } catch (error) {
      set({ busy: false, error });
    }
  };
  return { ...first, data: first.data?.rows, after: first.data?.after, older, olderState: state };
}

/** The button that reads the next rows. */
export function Older({ of, word }) {
  if (of.olderState.error) return html`<${Failure} error=${of.olderState.error} again=${of.older} />`;
  if (!of.data.length && !of.after) return null;
  return html`<div class="row end"><span class="quiet small">${many(of.data.length, word)} shown${of.after ? "" : ", that is all"}</span>
    ${of.after && html`<button type="button" disabled=${of.olderState.busy} onClick=${of.older}>Show older</button>`}</div>`;
}

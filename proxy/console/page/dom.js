// DOM elements. Invariant: data from the network becomes text nodes, never markup; no string contains HTML.

const SVG = "http://www.w3.org/2000/svg";

function filled(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") made.addEventListener(name, value);
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...children.flat(Infinity).filter((one) => one !== null && one !== undefined && one !== false));
  return made;
}

/** An HTML element. An attribute with a function as its value becomes an event listener. */
export const el = (name, attributes = {}, ...children) => filled(document.createElement(name), attributes, children);

/** An SVG element. */
export const svg = (name, attributes = {}, ...children) =>
  filled(document.createElementNS(SVG, name), attributes, children);

/** Announces a text to screen readers. */
export function say(words) {
  document.getElementById("status").textContent = words;
}

/** The placeholder while data loads. */
export const loading = () => el("p", { class: "quiet loading", role: "status" }, "Loading …");

/** The placeholder for an empty list, with the reason. */
export const empty = (title, ...words) =>
  el("div", { class: "empty" }, el("p", { class: "empty-title" }, title), el("p", { class: "quiet" }, ...words));

/** An error, with a retry button if `again` is given. */
export const failure = (error, again) =>
  el("div", { class: "notice bad", role: "alert" },
    el("p", {}, error.message),
    again && el("button", { type: "button", click: again }, "Try again"));

/**
 * `columns`: {label, cell: row → node or text, number?, long?, hidden?}. On a phone, every row becomes a card.
 * @param {{caption?: string, columns: any[], rows: any[], opens?: any}} options
 */
export function table({ caption, columns, rows, opens }) {
  const shown = columns.filter((one) => !one.hidden);
  const heads = shown.map((one) =>
    el("th", { scope: "col", role: "columnheader", class: one.number && "number" }, one.label));
  return el("table", { role: "table", class: opens && "opens" },
    caption && el("caption", {}, caption),
    el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, heads)),
    el("tbody", { role: "rowgroup" }, rows.map((row) => rowOf(shown, row))));
}

/** One row of a table. */
export const rowOf = (columns, row) =>
  el("tr", { role: "row" }, columns.filter((one) => !one.hidden).map((one) =>
    el("td", { role: "cell", class: one.number ? "number" : one.long && "long", "data-label": one.label }, one.cell(row))));

/** A list of names and values; empty values are left out. */
export const pairs = (lines) =>
  el("dl", { class: "pairs" }, lines.filter(([, value]) => value !== null && value !== undefined && value !== "")
    .map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));

/** A key figure with its label. */
export const tile = (label, value, more) =>
  el("div", { class: "tile" }, el("div", { class: "tile-label" }, label), el("div", { class: "tile-value" }, value),
    more && el("div", { class: "quiet small" }, more));

/** A modal dialog. It takes the focus and returns it on close. */
export function overlay(title, ...children) {
  const from = /** @type {HTMLElement | null} */ (document.activeElement);
  const back = () => (from?.isConnected ? from : document.getElementById("main")).focus();
  const box = el("dialog", { "aria-label": title, close: () => (box.remove(), back()) },
    el("h2", {}, title), ...children);
  document.body.append(box);
  box.showModal();
  return box;
}

/** A confirmation dialog. `act` runs on confirmation; its error is shown in the dialog. */
export function confirmed(title, words, label, act) {
  const trouble = el("div", {});
  const yes = el("button", { type: "button", class: "danger", click: async () => {
    yes.disabled = true;
    try {
      await act();
      box.close();
    } catch (error) {
      trouble.replaceChildren(failure(error));
      yes.disabled = false;
    }
  } }, label);
  const box = overlay(title, el("p", {}, words), trouble,
    el("div", { class: "row end" }, el("button", { type: "button", autofocus: true, click: () => box.close() }, "Cancel"), yes));
  return box;
}

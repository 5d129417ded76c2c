// Tables as CSV files. Invariant: a file has the rows, the columns and the order that are shown, and all digits of amounts.

import { exact, nusd } from "./formatting.js";

/** A cell. A text that a spreadsheet would calculate is prefixed. */
function cell(value) {
  const text = String(value ?? "");
  const safe = /^[=+\-@\t\r\n]/.test(text) && Number.isNaN(Number(text)) ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

function amount(usd) {
  const found = typeof usd === "bigint" ? usd : nusd(usd);
  return found === null ? "" : exact(found).replace(/[$,]/g, "").replace("−", "-");
}

/** Downloads rows. `columns`: those of a table, each with `usd`, or with `text`: row → value. */
export function download(columns, rows, name) {
  const lines = [columns.map((one) => (one.usd ? `${one.label} (USD)` : one.label)),
    ...rows.map((row) => columns.map((one) => (one.usd ? amount(one.usd(row)) : one.text(row))))];
  const url = URL.createObjectURL(new Blob([lines.map((line) => line.map(cell).join(",")).join("\r\n")], { type: "text/csv" }));
  Object.assign(document.createElement("a"), { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

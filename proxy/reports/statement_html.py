"""Statements as HTML.

Invariants: one self-contained file without scripts or external requests, ready to print; no column is cut at any width:
on a narrow screen the cells of a row stand below each other, with the titles of their columns.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from html import escape

from proxy.reports.statement import Statement
from proxy.reports.statement_document import Document, Row, Section, TableColumn, document
from proxy.reports.statement_logo import logo_of

_STYLE = """
:root { color-scheme: light; --ink: #1b2127; --quiet: #56616c; --line: #dde2e7; --strong: #8d98a3; }
* { box-sizing: border-box; }
body { font: 14px/1.5 system-ui, "Segoe UI", Roboto, Helvetica, Arial, sans-serif; color: var(--ink); background: #fff;
       max-width: 60rem; margin: 0 auto; padding: 3rem 2rem; overflow-wrap: anywhere; }
h1 { font-size: 1.1rem; font-weight: 600; margin: 0 0 2rem; color: var(--quiet); }
h2 { font-size: 1rem; margin: 2.5rem 0 .5rem; }
h2.annex { border-top: 2px solid var(--ink); padding-top: 1.5rem; margin-top: 3.5rem; font-size: 1.15rem; }
h3 { font-size: 1rem; margin: 2rem 0 .5rem; }
p { margin: .25rem 0; }
.quiet { color: var(--quiet); font-size: .9rem; }
header, .parties { display: flex; flex-wrap: wrap; gap: 1.5rem 3rem; justify-content: space-between; }
header { margin-bottom: 2.5rem; }
header img { display: block; max-height: 3.5rem; max-width: 14rem; margin-bottom: .75rem; }
.block p { margin: 0; }
.block p:first-of-type { font-weight: 600; }
.block h2 { margin: 0 0 .2rem; font-size: .8rem; font-weight: 400; color: var(--quiet); }
dl { display: grid; grid-template-columns: auto auto; gap: .15rem 1.25rem; margin: 0; align-content: start; }
dt { color: var(--quiet); }
dd { margin: 0; }
.due { border: 1px solid var(--strong); border-radius: 6px; padding: 1rem 1.5rem; margin: 2.5rem 0 0; }
.due .title { color: var(--quiet); }
.due .amount { font-size: 2.4rem; line-height: 1.2; font-weight: 650; font-variant-numeric: tabular-nums; margin: 0; }
.due .amount small { font-size: 1rem; font-weight: 400; color: var(--quiet); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .75rem .3rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
th { border-bottom-color: var(--strong); font-weight: 400; color: var(--quiet); vertical-align: bottom; }
th:last-child, td:last-child { padding-right: 0; }
.number { text-align: right; white-space: nowrap; }
.text { white-space: nowrap; }
.long { min-width: 5rem; }
tr.group td { font-weight: 600; padding-top: .8rem; }
tr.total td { font-weight: 650; border-top: 1px solid var(--ink); border-bottom: 0; }
table.wide { font-size: .93em; }
tr.line.under td:first-child { padding-left: 1rem; }
.notes { margin-top: 2rem; }
footer { margin-top: 3rem; }
@media screen and (max-width: 900px) {
  table.wide { font-size: .82em; }
  table.wide :is(th, td):not(:last-child) { padding-right: .5rem; }
  table.wide td { white-space: normal; }
}
@media screen and (max-width: 640px) {
  body { padding: 1.5rem 1rem; }
  .due .amount { font-size: 2rem; }
}
@page { size: A4; margin: 16mm 14mm 18mm; }
@media print {
  body { margin: 0; padding: 0; max-width: none; font-size: 9.5pt; }
  h2, h3 { break-after: avoid; }
  h2.annex { margin-top: 2rem; }
  thead { display: table-header-group; }
  tr, .due, header { break-inside: avoid; }
  tr.group { break-after: avoid; }
  th, td { padding-right: .5rem; }
  table.wide { font-size: 8pt; }
}
"""
_CARD_STYLE = """
@media screen and (max-width: %(width)s) {
  table.%(name)s thead { display: none; }
  table.%(name)s, table.%(name)s tbody, table.%(name)s tr, table.%(name)s td { display: block; }
  table.%(name)s tr { border-bottom: 1px solid var(--line); padding: .5rem 0; }
  table.%(name)s tr.total { border-top: 1px solid var(--ink); border-bottom: 0; }
  table.%(name)s tr td, table.%(name)s tr.total td, table.%(name)s tr.group td {
    border: 0; padding: .1rem 0; text-align: left; white-space: normal; }
  table.%(name)s td:not(:first-child) { display: flex; justify-content: space-between; gap: 1rem; }
  table.%(name)s td:not(:first-child)::before {
    content: attr(data-title); color: var(--quiet); font-weight: 400; white-space: nowrap; }
  table.%(name)s td:first-child { font-weight: 600; }
  table.%(name)s td:empty { display: none !important; }
}
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
# Rows of tables with more columns than the key are cards on screens up to the value; the widest first.
_CARDS = {4: ("wide", "700px"), 2: ("middling", "640px")}


def statement_html(statement: Statement) -> str:
    """The statement as an HTML document. Raises ValueError for a logo that cannot be read."""
    found = document(statement)
    cards = (_CARD_STYLE % {"name": name, "width": width} for name, width in _CARDS.values())
    return "\n".join([
        "<!doctype html>",
        '<html lang="en">',
        '<head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(found.title)}</title><style>{_STYLE}{''.join(cards)}</style></head>",
        "<body>",
        *_head(found, statement),
        "<main>",
        *(line for section in found.sections for line in _section(section, "h2")),
        '<div class="notes">',
        *(f'<p class="quiet">{escape(note)}</p>' for note in found.notes),
        "</div>",
        *(['<h2 class="annex">Annex</h2>'] if found.annex else []),
        *(line for section in found.annex for line in _section(section, "h3")),
        "</main>",
        *_proof(found.proof),
        "</body></html>",
        "",
    ])  # fmt: skip


def _head(found: Document, statement: Statement) -> Iterator[str]:
    yield "<header>"
    logo = logo_of(statement.letterhead)
    yield '<div class="block">'
    if logo is not None:
        yield f'<img alt="" src="data:{logo.media_type};base64,{base64.b64encode(logo.content).decode()}">'
    yield from _lines(found.seller)
    yield "</div>"
    yield "<dl>"
    yield from (f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in found.facts)
    yield "</dl></header>"
    yield f"<h1>{escape(found.title)}</h1>"
    yield '<div class="block"><h2>Bill to</h2>'
    yield from _lines(found.customer)
    yield "</div>"
    yield f'<div class="due"><p class="title">{escape(found.due_title)}</p>'
    yield f'<p class="amount">{escape(found.due)} <small>USD</small></p>'
    yield from _lines(found.due_notes)
    yield "</div>"


def _lines(texts: Sequence[str]) -> Iterator[str]:
    return (f"<p>{escape(text)}</p>" for text in texts)


def _proof(lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield "<footer><h3>Proof</h3>"
        yield from (f'<p class="quiet">{escape(line)}</p>' for line in lines)
        yield "</footer>"


def _section(section: Section, heading: str) -> Iterator[str]:
    yield f"<{heading}>{escape(section.title)}</{heading}>"
    names = (name for columns, (name, _) in _CARDS.items() if len(section.columns) > columns)
    yield f'<table class="{next(names, "narrow")}">'
    heads = (f'<th scope="col"{_class(column)}>{escape(column.title)}</th>' for column in section.columns)
    yield f"<thead><tr>{''.join(heads)}</tr></thead>"
    yield "<tbody>"
    is_grouped = False
    for row in section.rows:
        is_grouped = is_grouped or row.kind.value == "group"
        yield _row(section.columns, row, is_grouped=is_grouped)
    yield "</tbody></table>"
    if section.note:
        yield f'<p class="quiet">{escape(section.note)}</p>'


def _row(columns: Sequence[TableColumn], row: Row, *, is_grouped: bool) -> str:
    cells = (
        f'<td{_class(column)} data-title="{escape(column.title)}">{escape(cell)}</td>'
        for column, cell in zip(columns, row.cells, strict=True)
    )
    under = " under" if is_grouped else ""
    return f'<tr class="{row.kind.value}{under}">{"".join(cells)}</tr>'


def _class(column: TableColumn) -> str:
    return ' class="number"' if column.is_number else ' class="long"' if column.is_long else ' class="text"'

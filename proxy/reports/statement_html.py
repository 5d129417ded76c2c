"""Statements as HTML.

Invariant: one self-contained file without scripts or external requests, ready to print.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from proxy.reports.statement import Statement
from proxy.reports.statement_text import Section, TableColumn, notes, sections, status_lines, title

_STYLE = """
:root { color-scheme: light; }
body { font: 14px/1.45 system-ui, sans-serif; color: #1d2329; background: #fff; max-width: 72rem; margin: 2rem auto;
       padding: 0 1rem; }
h1 { font-size: 1.4rem; margin: 0 0 .2rem; overflow-wrap: anywhere; }
h2 { font-size: 1.05rem; margin: 1.8rem 0 .4rem; }
p { margin: .2rem 0; color: #4a5560; overflow-wrap: anywhere; }
.wide { overflow-x: auto; }
table { border-collapse: separate; border-spacing: 0; width: 100%; font-variant-numeric: tabular-nums; }
table.summary { width: auto; min-width: min(24rem, 100%); }
caption { text-align: left; font-weight: 600; padding-bottom: .3rem; }
th, td { padding: .28rem .4rem; text-align: left; vertical-align: top; border-bottom: 1px solid #dfe4e8; }
th { border-bottom: 1px solid #8a96a1; font-weight: 600; }
td.number, th.number { text-align: right; white-space: nowrap; }
td.text { white-space: nowrap; }
td.long { overflow-wrap: anywhere; min-width: 6rem; }
th:last-child, td:last-child { position: sticky; right: 0; background: #fff; } /* the amount: seen at any width */
tfoot td { font-weight: 600; border-top: 2px solid #8a96a1; border-bottom: 0; }
footer { margin-top: 2rem; font-size: .85rem; }
@page { size: A4 landscape; margin: 14mm; }
@media print { body { margin: 0; max-width: none; font-size: 9.5px; } .wide { overflow: visible; }
               th:last-child, td:last-child { position: static; }
               thead { display: table-header-group; } tr { break-inside: avoid; } }
"""


def statement_html(statement: Statement) -> str:
    """The statement as an HTML document."""
    heading = escape(title(statement))
    return "\n".join([
        "<!doctype html>",
        '<html lang="en">',
        '<head><meta charset="utf-8">',
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{heading}</title><style>{_STYLE}</style></head>",
        "<body>",
        f"<h1>{heading}</h1>",
        f"<p>{escape(statement.owner.scope_id)}</p>",
        *(f"<p>{escape(line)}</p>" for line in status_lines(statement)),
        *(line for section in sections(statement) for line in _section(section)),
        "<footer>",
        *(f"<p>{escape(note)}</p>" for note in notes(statement)),
        "</footer>",
        "</body></html>",
        "",
    ])  # fmt: skip


def _section(section: Section) -> Iterator[str]:
    yield f"<h2>{escape(section.title)}</h2>"
    yield f'<div class="wide"><table class="{section.title.lower().replace(" ", "-")}">'
    heads = (f'<th scope="col"{_class(column)}>{escape(column.title)}</th>' for column in section.columns)
    yield f"<thead><tr>{''.join(heads)}</tr></thead>"
    yield "<tbody>"
    yield from (_row(section.columns, row) for row in section.rows)
    yield "</tbody>"
    if section.foot is not None:
        yield f"<tfoot>{_row(section.columns, section.foot)}</tfoot>"
    yield "</table></div>"


def _row(columns: Sequence[TableColumn], cells: Sequence[str]) -> str:
    pairs = zip(columns, cells, strict=True)
    return f"<tr>{''.join(f'<td{_class(column)}>{escape(cell)}</td>' for column, cell in pairs)}</tr>"


def _class(column: TableColumn) -> str:
    return ' class="number"' if column.is_number else ' class="long"' if column.is_long else ' class="text"'

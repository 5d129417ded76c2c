"""Statements as PDF; needs the extra `tokenweir[pdf]`.

Invariant: the PDF has the same tables and texts as the HTML page.

The font covers European languages. A character without a glyph is printed as `?`; other formats keep it.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any
from xml.sax.saxutils import escape

from proxy.reports.statement import Statement
from proxy.reports.statement_text import Section, notes, sections, status_lines, title

_REGULAR, _BOLD = "Vera", "VeraBd"
_MARGIN_PT, _GAP_PT = 40, 8
_SIZES_PT = (7.5, 7, 6.5, 6, 5.5, 5, 4.5, 4)
"""font sizes to try, until all columns of a table fit"""
_LONG_PT_MIN = 70
_INK, _GREY = "#1d2329", "#4a5560"


class PdfMissing(ValueError):  # noqa: N818  a missing extra, no bug
    """The package reportlab is not installed."""


def statement_pdf(statement: Statement) -> bytes:
    """The statement as a PDF document, A4 landscape. Raises PdfMissing."""
    try:
        from reportlab.lib.pagesizes import A4, landscape
        from reportlab.platypus import SimpleDocTemplate
    except ImportError:
        raise PdfMissing("format pdf: the package reportlab is missing (pip install 'tokenweir[pdf]')") from None
    pdf = io.BytesIO()
    page = landscape(A4)
    heading = title(statement)
    document = SimpleDocTemplate(
        pdf, pagesize=page, title=heading, author="Tokenweir", invariant=1,
        **dict.fromkeys(("leftMargin", "rightMargin", "topMargin", "bottomMargin"), _MARGIN_PT),
    )  # fmt: skip
    printer = _Printer(page[0] - 2 * _MARGIN_PT)
    numbered = partial(_page_number, heading=printer.printable(heading))
    document.build(list(printer.story(statement, heading)), onFirstPage=numbered, onLaterPages=numbered)
    return pdf.getvalue()


class _Printer:
    """Builds the document's paragraphs and tables with the loaded fonts."""

    def __init__(self, width_pt: float) -> None:
        from reportlab.pdfbase import pdfmetrics
        from reportlab.pdfbase.ttfonts import TTFont

        for name in (_REGULAR, _BOLD):
            pdfmetrics.registerFont(TTFont(name, f"{name}.ttf"))
        self._glyphs = pdfmetrics.getFont(_REGULAR).face.charToGlyph
        self._width: Callable[[str, str, float], float] = pdfmetrics.stringWidth
        self._width_pt = width_pt

    def printable(self, text: str) -> str:
        """Replaces characters without a glyph with a question mark."""
        return "".join(one if ord(one) in self._glyphs else "?" for one in text)

    def story(self, statement: Statement, heading: str) -> Iterator[Any]:
        """The document's parts from top to bottom."""
        yield self._text(heading, 15, bold=True)
        yield self._text(statement.owner.scope_id, 8, colour=_GREY)
        for line in status_lines(statement):
            yield self._text(line, 8, colour=_GREY)
        for section in sections(statement):
            yield self._text(section.title, 10, bold=True, before=10)
            yield self._table(section)
        for note in notes(statement):
            yield self._text(note, 7, colour=_GREY, before=4)

    def _text(self, text: str, size_pt: float, *, bold: bool = False, colour: str = _INK, before: float = 0) -> Any:
        from reportlab.lib.styles import ParagraphStyle
        from reportlab.platypus import Paragraph

        style = ParagraphStyle(
            "text", fontName=_BOLD if bold else _REGULAR, fontSize=size_pt, leading=size_pt * 1.35, textColor=colour,
            spaceBefore=before, spaceAfter=2, splitLongWords=1,
        )  # fmt: skip
        return Paragraph(escape(self.printable(text)), style)

    def _table(self, section: Section) -> Any:
        from reportlab.lib.colors import HexColor
        from reportlab.platypus import LongTable

        size_pt, widths = self._layout(section)
        foot = [] if section.foot is None else [self._cells(section, section.foot, size_pt, bold=True)]
        head = [column.title for column in section.columns]
        rows = [head, *(self._cells(section, row, size_pt) for row in section.rows), *foot]
        style = [
            ("FONT", (0, 0), (-1, -1), _REGULAR, size_pt, size_pt * 1.25),
            ("FONT", (0, 0), (-1, 0), _BOLD, size_pt),
            ("VALIGN", (0, 0), (-1, -1), "TOP"),
            ("LINEBELOW", (0, 0), (-1, -1), 0.25, HexColor("#dfe4e8")),
            ("LINEBELOW", (0, 0), (-1, 0), 0.75, HexColor("#8a96a1")),
            ("TOPPADDING", (0, 0), (-1, -1), 2),
            ("BOTTOMPADDING", (0, 0), (-1, -1), 2),
            ("LEFTPADDING", (0, 0), (-1, -1), _GAP_PT / 2),
            ("RIGHTPADDING", (0, 0), (-1, -1), _GAP_PT / 2),
            *(("ALIGN", (at, 0), (at, -1), "RIGHT") for at, column in enumerate(section.columns) if column.is_number),
        ]
        if foot:
            style += [
                ("FONT", (0, -1), (-1, -1), _BOLD, size_pt),
                ("LINEABOVE", (0, -1), (-1, -1), 0.75, HexColor(_INK)),
            ]
        return LongTable(rows, widths, style=style, repeatRows=1, hAlign="LEFT")

    def _cells(self, section: Section, row: Sequence[str], size_pt: float, *, bold: bool = False) -> list[Any]:
        """A long column holds paragraphs, which wrap."""
        pairs = zip(section.columns, row, strict=True)
        return [
            self._text(cell, size_pt, bold=bold) if column.is_long else self.printable(cell) for column, cell in pairs
        ]  # fmt: skip

    def _layout(self, section: Section) -> tuple[float, list[float]]:
        """The font size, and the column widths at this size; points."""
        size_pt, widths = 0.0, [0.0]
        for size_pt in _SIZES_PT:
            widths = self._widths(section, size_pt)
            if sum(widths) <= self._width_pt:
                break
        return size_pt, widths

    def _widths(self, section: Section, size_pt: float) -> list[float]:
        rows = [[column.title for column in section.columns], *section.rows, *([section.foot] if section.foot else [])]
        widths = [
            max(self._width(self.printable(row[at]), _BOLD, size_pt) for row in rows) + _GAP_PT
            for at in range(len(section.columns))
        ]
        narrow = sum(width for width, column in zip(widths, section.columns, strict=True) if not column.is_long)
        long = sum(column.is_long for column in section.columns)
        long_pt = max(_LONG_PT_MIN, (self._width_pt - narrow) / max(1, long))
        return [
            min(width, long_pt) if column.is_long else width
            for width, column in zip(widths, section.columns, strict=True)
        ]  # fmt: skip


def _page_number(canvas: Any, document: Any, heading: str) -> None:
    canvas.setFont(_REGULAR, 7)
    canvas.setFillColor(_GREY)
    canvas.drawString(_MARGIN_PT, _MARGIN_PT / 2, heading[:120])
    canvas.drawRightString(document.pagesize[0] - _MARGIN_PT, _MARGIN_PT / 2, f"Page {document.page}")

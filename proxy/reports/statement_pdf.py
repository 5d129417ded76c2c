"""Statements as PDF, A4 portrait; needs the extra `tokenweir[pdf]`.

Invariants: the PDF has the same tables and texts as the HTML page. The same statement gives the same bytes: it is
dated by the closing of the month, or by the ledger's clock.

The font covers European languages. A character without a glyph is printed as `?`; other formats keep it.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any
from xml.sax.saxutils import escape

from proxy.reports.statement import Statement
from proxy.reports.statement_document import Document, Row, RowKind, Section, document
from proxy.reports.statement_logo import Logo, logo_of

_REGULAR, _BOLD = "Vera", "VeraBd"
_MARGIN_PT, _FOOT_PT, _GAP_PT, _INDENT_PT = 48, 56, 10, 8
_FRAME_PT = 6
"""padding of reportlab's frames"""
_SIZES_PT = (8, 7.5, 7, 6.5, 6, 5.5, 5, 4.5, 4)
"""font sizes to try, until all columns of a table fit"""
_LONG_PT_MIN = 110
_SECTION_PT_MIN, _ANNEX_PT_MIN = 90, 200
"""room that a title needs below it on its page"""
_LOGO_PT = (140, 40)
_INK, _QUIET, _LINE, _STRONG = "#1b2127", "#56616c", "#dde2e7", "#8d98a3"


# The time of a PDF grows with the square of the rows: two seconds for 1,000, twenty for 5,000.
PDF_ROWS_MAX = 3_000
"""the rows of a PDF that a console makes, or a mail has"""


class PdfMissing(ValueError):  # noqa: N818  a missing extra, no bug
    """The package reportlab is not installed."""


def has_pdf() -> bool:
    """Whether the extra is installed."""
    return find_spec("reportlab") is not None


def rows_of(statement: Statement) -> int:
    """The rows of the long tables."""
    bookings = statement.adjustments, statement.credits
    return sum(map(len, (statement.projects, statement.keys, statement.prices, statement.lines, *bookings)))


def statement_pdf(statement: Statement) -> bytes:
    """The statement as a PDF document. Raises PdfMissing; ValueError for a logo that cannot be read."""
    try:
        from reportlab.lib.pagesizes import A4
        from reportlab.platypus import SimpleDocTemplate
    except ImportError:
        raise PdfMissing("format pdf: the package reportlab is missing (pip install 'tokenweir[pdf]')") from None
    found, logo = document(statement), logo_of(statement.letterhead)
    pdf = io.BytesIO()
    template = SimpleDocTemplate(
        pdf, pagesize=A4, title=found.title, author=found.seller[0] if found.seller else "Tokenweir", lang="en",
        invariant=1, topMargin=_MARGIN_PT, bottomMargin=_FOOT_PT,
        leftMargin=_MARGIN_PT - _FRAME_PT, rightMargin=_MARGIN_PT - _FRAME_PT,
    )  # fmt: skip
    printer = _Printer(A4[0] - 2 * _MARGIN_PT)
    foot = printer.printable(found.title)
    template.build(list(printer.story(found, logo)), canvasmaker=_numbered(foot, statement.as_of))
    return pdf.getvalue()


def _numbered(foot: str, made_at: float) -> Any:
    """A canvas that is dated `made_at` (Unix seconds), and writes `foot` and the page of how many on each page."""
    from reportlab.pdfgen.canvas import Canvas

    class Numbered(Canvas):  # type: ignore[misc]  # reportlab has no types
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.setDateFormatter(lambda *_: time.strftime("D:%Y%m%d%H%M%S+00'00'", time.gmtime(made_at)))
            self._pages: list[dict[str, Any]] = []

        def showPage(self) -> None:  # noqa: N802  reportlab's name
            self._pages.append(dict(self.__dict__))
            self._startPage()

        def save(self) -> None:
            for number, page in enumerate(self._pages, 1):
                self.__dict__.update(page)
                self.setFont(_REGULAR, 7)
                self.setFillColor(_QUIET)
                self.drawString(_MARGIN_PT, _FOOT_PT / 2, foot[:110])
                right = self._pagesize[0] - _MARGIN_PT
                self.drawRightString(right, _FOOT_PT / 2, f"Page {number} of {len(self._pages)}")
                super().showPage()
            super().save()

    return Numbered


class _Printer:
    """Builds the document's paragraphs and tables with the loaded fonts."""

    def __init__(self, width_pt: float) -> None:
        from reportlab.pdfbase import pdfmetrics
        from reportlab.pdfbase.ttfonts import TTFont

        for name in (_REGULAR, _BOLD):
            pdfmetrics.registerFont(TTFont(name, f"{name}.ttf"))
        self._glyphs = pdfmetrics.getFont(_REGULAR).face.charToGlyph
        self._text_width: Callable[[str, str, float], float] = pdfmetrics.stringWidth
        self._width_pt = width_pt

    def printable(self, text: str) -> str:
        """Replaces characters without a glyph with a question mark."""
        return "".join(one if ord(one) in self._glyphs else "?" for one in text)

    def story(self, found: Document, logo: Logo | None) -> Iterator[Any]:
        """The document's parts from top to bottom."""
        from reportlab.platypus import CondPageBreak

        yield self._head(found, logo)
        yield self._text(found.title, 9, colour=_QUIET, before=22, after=14)
        yield self._text("Bill to", 7.5, colour=_QUIET)
        yield from self._block(found.customer)
        yield self._due(found)
        for section in found.sections:
            yield from self._section(section)
        for at, note in enumerate(found.notes):
            yield self._text(note, 7, colour=_QUIET, before=0 if at else 14)
        if found.annex:
            yield CondPageBreak(_ANNEX_PT_MIN)
            yield self._text("Annex", 13, bold=True, before=22)
        for section in found.annex:
            yield from self._section(section)
        if found.proof:
            yield self._text("Proof", 9.5, bold=True, before=16)
        for line in found.proof:
            yield self._text(line, 7, colour=_QUIET)

    def _text(
        self, text: str, size_pt: float, *, bold: bool = False, colour: str = _INK, before: float = 0, after: float = 2,
        indent: float = 0,
    ) -> Any:  # fmt: skip
        from reportlab.lib.styles import ParagraphStyle
        from reportlab.platypus import Paragraph

        style = ParagraphStyle(
            "text", fontName=_BOLD if bold else _REGULAR, fontSize=size_pt, leading=size_pt * 1.35, textColor=colour,
            spaceBefore=before, spaceAfter=after, splitLongWords=1, leftIndent=indent,
        )  # fmt: skip
        return Paragraph(escape(self.printable(text)), style)

    def _block(self, lines: Sequence[str]) -> Iterator[Any]:
        return (self._text(line, 9, bold=not at, after=0) for at, line in enumerate(lines))

    def _head(self, found: Document, logo: Logo | None) -> Any:
        from reportlab.platypus import Image, Table

        left: list[Any] = list(self._block(found.seller))
        if logo is not None:
            image = Image(io.BytesIO(logo.content), hAlign="LEFT")
            shrink = min(_LOGO_PT[0] / image.drawWidth, _LOGO_PT[1] / image.drawHeight, 1)
            image.drawWidth, image.drawHeight, image.spaceAfter = image.drawWidth * shrink, image.drawHeight * shrink, 6
            left.insert(0, image)
        facts = [[self._text(name, 8, colour=_QUIET), self._text(value, 8)] for name, value in found.facts]
        flush = [("LEFTPADDING", (0, 0), (-1, -1), 0), ("RIGHTPADDING", (0, 0), (-1, -1), 0)]
        flush += [("TOPPADDING", (0, 0), (-1, -1), 0), ("BOTTOMPADDING", (0, 0), (-1, -1), 1)]
        at_top = [*flush, ("VALIGN", (0, 0), (-1, -1), "TOP")]
        right = Table(facts, [90, 150], style=at_top, hAlign="RIGHT")
        return Table([[left or "", right]], [self._width_pt - 240, 240], style=at_top)

    def _due(self, found: Document) -> Any:
        from reportlab.lib.colors import HexColor
        from reportlab.platypus import Table

        amount = self._text(f"{found.due} USD", 22, bold=True, after=4)
        inside = [self._text(found.due_title, 8.5, colour=_QUIET), amount]
        inside += [self._text(note, 8.5, after=0) for note in found.due_notes]
        style = [("BOX", (0, 0), (-1, -1), 0.75, HexColor(_STRONG)), ("ROUNDEDCORNERS", [4] * 4)]
        style += [(f"{side}PADDING", (0, 0), (-1, -1), 12) for side in ("LEFT", "RIGHT", "TOP", "BOTTOM")]
        return Table([[inside]], [self._width_pt], style=style, spaceBefore=16, spaceAfter=4)

    def _section(self, section: Section) -> Iterator[Any]:
        from reportlab.platypus import CondPageBreak

        yield CondPageBreak(_SECTION_PT_MIN)
        yield self._text(section.title, 10, bold=True, before=16, after=4)
        yield self._table(section)
        if section.note:
            yield self._text(section.note, 7, colour=_QUIET, before=3)

    def _table(self, section: Section) -> Any:
        from reportlab.lib.colors import HexColor, white
        from reportlab.platypus import LongTable

        size_pt, widths = self._layout(section)
        head = [self._text(column.title, size_pt, colour=_QUIET) if column.is_long else column.title
                for column in section.columns]  # fmt: skip
        is_grouped = any(row.kind is RowKind.GROUP for row in section.rows)
        rows = [head, *(self._cells(section, row, size_pt, is_grouped=is_grouped) for row in section.rows)]
        style: list[tuple[Any, ...]] = [
            ("FONT", (0, 0), (-1, -1), _REGULAR, size_pt, size_pt * 1.25),
            ("TEXTCOLOR", (0, 0), (-1, -1), HexColor(_INK)),
            ("TEXTCOLOR", (0, 0), (-1, 0), HexColor(_QUIET)),
            ("VALIGN", (0, 0), (-1, -1), "TOP"),
            ("VALIGN", (0, 0), (-1, 0), "BOTTOM"),
            ("LINEBELOW", (0, 0), (-1, -1), 0.25, HexColor(_LINE)),
            ("LINEBELOW", (0, 0), (-1, 0), 0.6, HexColor(_STRONG)),
            ("TOPPADDING", (0, 0), (-1, -1), 2.5),
            ("BOTTOMPADDING", (0, 0), (-1, -1), 2.5),
            ("LEFTPADDING", (0, 0), (-1, -1), 0),
            ("RIGHTPADDING", (0, 0), (-2, -1), _GAP_PT),
            ("RIGHTPADDING", (-1, 0), (-1, -1), 0),
            *(("ALIGN", (at, 0), (at, -1), "RIGHT") for at, column in enumerate(section.columns) if column.is_number),
        ]
        for at, row in enumerate(section.rows, 1):
            if row.kind is not RowKind.LINE:
                style.append(("FONT", (0, at), (-1, at), _BOLD, size_pt))
            if row.kind is RowKind.TOTAL:
                style += [
                    ("LINEABOVE", (0, at), (-1, at), 0.6, HexColor(_INK)),
                    ("LINEBELOW", (0, at), (-1, at), 0.25, white),
                ]
            if row.kind is RowKind.GROUP:
                style += [("TOPPADDING", (0, at), (-1, at), 7), ("NOSPLIT", (0, at), (-1, at + 1))]
        return LongTable(rows, widths, style=style, repeatRows=1, hAlign="LEFT")

    def _cells(self, section: Section, row: Row, size_pt: float, *, is_grouped: bool) -> list[Any]:
        """A long column holds paragraphs, which wrap."""
        bold = row.kind is not RowKind.LINE
        indent = _INDENT_PT if is_grouped and not bold else 0
        return [
            self._text(cell, size_pt, bold=bold, indent=0 if at else indent, after=0)
            if column.is_long
            else self.printable(cell)
            for at, (column, cell) in enumerate(zip(section.columns, row.cells, strict=True))
        ]

    def _layout(self, section: Section) -> tuple[float, list[float]]:
        """The font size, and the column widths at this size; points."""
        size_pt, widths = 0.0, [0.0]
        for size_pt in _SIZES_PT:
            widths = self._widths(section, size_pt)
            if sum(widths) <= self._width_pt + 0.01:
                break
        return size_pt, widths

    def _widths(self, section: Section, size_pt: float) -> list[float]:
        """Long columns share what the others leave, in proportion to their texts; the table fills the page."""
        rows = [[column.title for column in section.columns], *(row.cells for row in section.rows)]
        widths = [
            max(self._text_width(self.printable(row[at]), _BOLD, size_pt) for row in rows) + _GAP_PT
            for at in range(len(section.columns))
        ]
        is_long = [column.is_long for column in section.columns]
        least = [
            min(width, _LONG_PT_MIN) if long else width for width, long in zip(widths, is_long, strict=True)
        ]  # fmt: skip
        room = max(0.0, self._width_pt - sum(least))
        wanted = sum(width for width, long in zip(widths, is_long, strict=True) if long)
        return [
            low + (width / wanted * room if long else 0)
            for low, width, long in zip(least, widths, is_long, strict=True)
        ]  # fmt: skip

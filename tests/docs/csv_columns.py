"""The columns of a statement's CSV file in docs/how-to/statements.md: made from CSV_COLUMNS, between two marks.

python -m tests.docs.csv_columns      writes them anew, after a column has come, gone or changed
"""

from __future__ import annotations

from pathlib import Path

from proxy.reports.statement_text import CSV_COLUMNS

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "statements.md"
BEGIN, END = "<!-- csv columns -->\n", "<!-- /csv columns -->\n"


def written(text: str) -> str:
    """The page with today's table."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    rows = "".join(f"| `{name}` | {meaning} |\n" for name, meaning in CSV_COLUMNS.items())
    return f"{before}{BEGIN}| column | content |\n|---|---|\n{rows}{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))

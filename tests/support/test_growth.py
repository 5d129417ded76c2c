"""The size of a folder, and how it is compared."""

from __future__ import annotations

from pathlib import Path

from tests.support.growth import Size, compared, size_of

MODULE = """
class Plain: ...
class Port(Protocol): ...
class Typed(Protocol[T]):
    class Inner: ...
"""


def test_lines_classes_and_protocols_of_all_files_are_counted(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "one.py").write_text(MODULE)
    (tmp_path / "below" / "two.py").write_text("x = 1\n")
    (tmp_path / "data.txt").write_text("class No: ...\n")
    assert size_of(tmp_path) == Size(files=2, lines=6, classes=4, protocols=2)


def test_a_difference_has_its_sign() -> None:
    assert compared(Size(561, 71_000, 900, 67), Size(560, 70_853, 972, 67)) == (
        "561 files (+1), 71,000 lines (+147), 900 classes (-72), 67 protocols (+0)"
    )

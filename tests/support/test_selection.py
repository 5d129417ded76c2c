"""What `-m` selects is collected, and no module whose marks leave it out is imported."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.selection import Selection


@pytest.mark.parametrize(
    ("expression", "marks", "may"),
    [
        ("not io and not slow", [], True),
        ("not io and not slow", ["parametrize"], True),
        ("not io and not slow", ["io"], False),
        ("not io and not slow", ["waits", "slow"], False),
        ("thorough and not slow", ["io"], True),  # a test in it may be `thorough`
        ("thorough and not slow", ["io", "slow"], False),
        ("io or slow", [], True),
    ],
)
def test_marks_that_a_test_has_besides_may_select_it(expression: str, marks: list[str], may: bool) -> None:
    assert Selection(expression).may_select(marks) is may


@pytest.mark.parametrize(
    ("text", "ignored"),
    [
        ("pytestmark = pytest.mark.io\n", True),
        ("pytestmark = [pytest.mark.waits, pytest.mark.io]\n", True),
        ("pytestmark = pytest.mark.waits\n", None),
        ("@pytest.mark.io\ndef test_it() -> None: ...\n", None),
    ],
)
def test_a_module_is_left_out_by_its_marks(tmp_path: Path, text: str, ignored: bool | None) -> None:
    file = tmp_path / "test_it.py"
    file.write_text(text)
    assert Selection("not io").pytest_ignore_collect(file) is ignored

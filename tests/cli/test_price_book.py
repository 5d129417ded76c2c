"""`tokenweir prices diff` and `update`: newer lists than the installed package has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from proxy.runtime.machine.price_file import PriceFileError, book_from, path_in, price_book
from tests.cli.commands import Commands
from tests.support.http_server import answering

pytestmark = pytest.mark.io

CONFIG: dict[str, Any] = {
    "providers": {"openai": {"base_url": "https://api.openai.com/v1"}},
    "models": {"gpt-5.1": {"provider": "openai"}, "*": {"provider": "openai"}},
}


def book(*models: tuple[str, dict[str, Any]]) -> bytes:
    """In the package's format."""
    listed = [{"id": name, "match": {"equals": name}, "prices": prices} for name, prices in models]
    provider = {"id": "openai", "name": "OpenAI", "api_pattern": r"https://api\.openai\.com", "models": listed}
    return json.dumps([provider]).encode()


FIRST = book(("gpt-5.1", {"input_mtok": 1.25, "output_mtok": 10}), ("gpt-6", {"input_mtok": 2, "output_mtok": 8}))
DEARER = book(("gpt-5.1", {"input_mtok": 1.5, "output_mtok": 10}), ("gpt-6", {"input_mtok": 2, "output_mtok": 8}))
ABSURD = book(("gpt-5.1", {"input_mtok": 1250, "output_mtok": 10}))


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Commands:
    for name, content in (("first", FIRST), ("dearer", DEARER), ("absurd", ABSURD)):
        (tmp_path / name).write_bytes(content)
    return Commands(tmp_path, capsys, CONFIG)


def input_price(run: Commands) -> tuple[str, str]:
    charge, _ = run("prices", "why", "gpt-5.1", "--json")
    return charge["price"]["input"], charge["price"]["version"]


def test_another_book_is_compared_used_and_given_up(run: Commands, tmp_path: Path) -> None:
    installed = input_price(run)
    run("prices", "update", str(tmp_path / "first"), "--confirm")
    assert run.out.endswith("restart the proxies\n")
    first = input_price(run)
    assert first == ("1.25", f"{book_from(FIRST, '').version}+20261125")
    run("prices", "diff", str(tmp_path / "dearer"))
    assert run.out == "openai gpt-5.1 cached_input: 1.25 → 1.5\nopenai gpt-5.1 input: 1.25 → 1.5\n"
    changed = run("prices", "diff", str(tmp_path / "dearer"), "--json")
    assert changed[1] == {
        "provider": "openai", "model": "gpt-5.1", "price": "input", "above_prompt_tokens": 0, "old": "1.25",
        "new": "1.5", "suspicious": False,
    }  # fmt: skip
    assert run("prices", "update", str(tmp_path / "dearer"), "--json") == changed
    assert run.err.startswith("tokenweir: 2 prices changed ")
    assert input_price(run)[0] == "1.5"
    act = run("audit", "--json", "--since", "1h")[0]
    assert act["action"] == "update prices"
    back = run("prices", "update", "package", "--json")
    assert {"1.5"} == {one["old"] for one in back if (one["model"], one["price"]) == ("gpt-5.1", "input")}
    assert input_price(run) == installed


def test_what_vanishes_or_moves_too_far_needs_a_confirmation(run: Commands, tmp_path: Path) -> None:
    run("prices", "update", str(tmp_path / "first"), "--confirm")
    run("prices", "update", str(tmp_path / "absurd"), code=1)
    assert "openai gpt-5.1 input: 1.25 → 1250\n" in run.out
    assert "openai gpt-6 output: 8 → no price\n" in run.out
    assert "5 of 5 changes remove a price or move it by more than a factor of 3" in run.err
    doubtful = run("prices", "update", str(tmp_path / "absurd"), "--json", code=1)
    assert [one["suspicious"] for one in doubtful] == [True] * 5
    assert input_price(run)[0] == "1.25"
    run("prices", "update", str(tmp_path / "absurd"), "--confirm")
    assert input_price(run)[0] == "1250"


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"[1]", b'[{"id": 5}]', b"<html>", b"[" * 10_000])
def test_what_is_no_book_is_refused_and_changes_nothing(run: Commands, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "broken").write_bytes(content)
    before = input_price(run)
    for command in ("diff", "update"):
        run("prices", command, str(tmp_path / "broken"), code=1)
        assert f"{tmp_path / 'broken'}: " in run.err
    assert input_price(run) == before
    path_in(tmp_path / "data").write_bytes(content)
    with pytest.raises(PriceFileError, match=r"price-book\.json: "):
        price_book(tmp_path / "data")


def test_a_book_is_fetched_from_a_url(run: Commands) -> None:
    with answering(lambda path, *_: (200 if path == "/data.json" else 404, FIRST)) as url:
        run("prices", "update", f"{url}/data.json", "--confirm")
        assert input_price(run)[1].startswith("prices-")
        run("prices", "diff", f"{url}/missing", code=1)
    assert f"{url}/missing: " in run.err
    run("prices", "diff", f"{url}/data.json", code=1)
    assert "not connected" in run.err

"""`tokenweir prices why`: the price that applies, and each reason for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import Commands

pytestmark = pytest.mark.io

OWN = {
    "input": 1, "output": 2, "searches": 10, "multipliers": {"speed:fast": 6},
    "tiers": [{"above_prompt_tokens": 200_000, "input": 2, "output": 4}],
    "service_tiers": {"flex": {"input": 0.5, "output": 1}},
    "changes": {"2026-12-01": {"input": 3, "output": 5}},
}  # fmt: skip
PROVIDERS = [
    {"provider": "own", "cost": {"input": 1, "output": 1}},
    {"provider": "own", "upstream_model": "x"},
]
BOTH = "not applied: speed:fast (6), tier:flex (a list of its own)"
CONFIG: dict[str, Any] = {
    "providers": {
        "openai": {"base_url": "https://api.openai.com/v1"},
        "own": {"base_url": "http://127.0.0.1:1/v1"},
    },
    "models": {
        "listed": {"provider": "openai", "upstream_model": "gpt-5.1"},
        "vectors": {"provider": "openai", "upstream_model": "text-embedding-3-small"},
        "mine": {"providers": PROVIDERS, "price": OWN},
        "*": {"provider": "own"},
    },
}


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(tmp_path, capsys, CONFIG)


def test_the_book_s_price_says_its_multiplier(run: Commands) -> None:
    at = ("--at", "2026-11-20T12:00Z")
    charge, cost = run("prices", "why", "listed", "--tier", "priority", "--json", *at)
    assert (charge["price"]["input"], charge["price"]["output"]) == ("2.5", "20")
    assert charge["price"]["multipliers"] == {"tier:priority": "2"}
    assert (charge["not_applied"], charge["without_price"]) == ({"tier:flex": "1/2", "tier:batch": "1/2"}, [])
    assert (charge["price_of"], cost["price_of"], cost["price"]) == ("charge", "cost", charge["price"])
    assert (cost["provider"], cost["upstream_model"]) == ("openai", "gpt-5.1")
    assert cost["at"] == "2026-11-20T12:00:00.000000Z"
    run("prices", "why", "listed", "--tier", "priority", "--speed", "fast", *at)
    first, rates, *more = run.out.splitlines()
    assert first.startswith("charge: by the built-in book (genai-prices-")
    assert first.endswith("for gpt-5.1 at openai")
    assert rates.startswith("  input 2.5, cached_input 0.25, output 20")
    assert more[:3] == [
        "  prices of tokens × 2 for tier:priority, in the prices above",
        "  no price for speed:fast: list prices apply",
        "  not applied: tier:flex (1/2), tier:batch (1/2)",
    ]


def test_what_a_list_of_the_book_lacks_is_said(run: Commands) -> None:
    (one,) = {str(told["lacking"]) for told in run("prices", "why", "vectors", "--json")}
    assert one == "['output']"
    run("prices", "why", "vectors")
    _, rates, lacks, *_ = run.out.splitlines()
    assert rates == "  input 0.02, cached_input 0.02"
    assert lacks.startswith("  no price for output tokens: ")


@pytest.mark.parametrize(
    ("arguments", "rates", "reasons"),
    [
        ([], "input 1, cached_input 1, output 2, searches 10", [BOTH]),
        (["--speed", "fast", "--prompt-tokens", "200001"], "input 12, cached_input 12, output 24, searches 10",
         ["for prompts above 200000 tokens", "prices of tokens × 6 for speed:fast, in the prices above",
          "not applied: tier:flex (a list of its own)"]),
        (["--tier", "flex"], "input 0.5, cached_input 0.5, output 1, searches 10",
         ["the list of service tier flex", "not applied: speed:fast (6)"]),
        (["--tier", "batch"], "input 1, cached_input 1, output 2, searches 10",
         ["no price for tier:batch: list prices apply", BOTH]),
        (["--at", "2026-12-01"], "input 3, cached_input 3, output 5", []),
    ],
)  # fmt: skip
def test_each_reason_of_one_s_own_price_is_told(
    run: Commands, arguments: list[str], rates: str, reasons: list[str]
) -> None:
    run("prices", "why", "mine", *(arguments if "--at" in arguments else [*arguments, "--at", "2026-11-30"]))
    lines = run.out.splitlines()
    version = lines[0].partition("(")[2].partition(")")[0]
    assert lines[0] == f"charge: by the configuration ({version}), for mine at own"
    assert lines[1 : 2 + len(reasons)] == [f"  {rates}", *(f"  {one}" for one in reasons)]
    assert lines[2 + len(reasons)].startswith("cost: by the configuration (config-")
    assert lines[-1] == "cost: unknown: the built-in book has no price for x at own"


def test_what_is_not_served_is_refused_and_what_has_no_price_is_said(run: Commands, tmp_path: Path) -> None:
    run("prices", "why", "anything")
    assert run.out.splitlines() == [
        f"{kind}: unknown: the built-in book has no price for anything at own" for kind in ("charge", "cost")
    ]
    run.configure(CONFIG | {"models": {"mine": CONFIG["models"]["mine"]}})
    run("prices", "why", "anything", code=3)
    assert run.err == "tokenweir: models: 'anything' is not configured\n"
    run("prices", "why", "mine", "--at", "whenever", code=2)
    assert "not a time: 'whenever'" in run.err

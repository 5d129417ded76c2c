"""`tokenweir reconcile --provider`, on a ledger with what a proxy leaves there."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from proxy.billing.settlement import entry
from proxy.cli import main
from proxy.metering.usage import Reading, Usage, UsageSource
from tests.cli.commands import Commands
from tests.ledger.priced_entries import a_real_entry, a_real_record
from tests.reconciliation.provider_bill.bills import MIDNIGHT, completions, costs, openai, page

pytestmark = pytest.mark.io

AT = MIDNIGHT + 3_600.0
GUESS = Reading(Usage(1_000, None, 500, None, 1_500), UsageSource.ESTIMATED, "ridge-1", 0.08)

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(run: Commands, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Two exchanges of one day are settled, one of them estimated; runs the command on an export."""
    export = tmp_path / "usage.json"
    guessed = entry(replace(a_real_record(1, started_at=AT), reading=GUESS))
    run.settle(a_real_entry(0, started_at=AT), guessed)

    def reconcile(document: Any, *options: str) -> tuple[int, str, str]:
        export.write_text(document if isinstance(document, str) else json.dumps(document))
        arguments = ("--provider", "tera", "--file", str(export), *options)
        code = main(["reconcile", "--config", str(run.config), *arguments])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return reconcile


def usage(**differences: Any) -> dict[str, Any]:
    """What the provider says of that day: of the estimated one, forty tokens more."""
    said = {"input_tokens": 1_100, "input_cached_tokens": 33, "output_tokens": 590, "num_model_requests": 2}
    return page(openai(completions("tera-large-0901-2026-09-01", **{**said, **differences})))


def test_a_table_for_people(run: Run) -> None:
    code, out, err = run(usage())
    assert (code, err) == (0, "")
    lines = [line.split() for line in out.splitlines()]
    assert lines[0] == ["DAY", "MODEL", "KIND", "PROVIDER", "LEDGER", "DIFFERENCE", "ESTIMATED", "VERDICT"]
    assert lines[1] == ["2026-11-01", "tera-large-0901", "requests", "2", "2", "0", "1", "equal"]
    assert lines[4] == [
        *("2026-11-01", "tera-large-0901", "completion", "tokens", "590", "550", "40", "500", "estimates")
    ]
    assert [line[:2] for line in lines[5:13]] == [["all", "tera-large-0901"]] * 4 + [["all", "all"]] * 4
    assert out.splitlines()[-1] == "every difference is explained"


def test_what_estimates_do_not_explain_is_exit_code_1(run: Run) -> None:
    code, out, _ = run(usage(output_tokens=671))
    assert code == 1
    assert out.splitlines()[4].endswith("671     550         121        500  differs")
    assert out.splitlines()[-1] == "2 numbers differ"


def test_lines_for_programs(run: Run) -> None:
    document = [usage(), page(openai(costs("0.5", "tera-large-0901, output")))]
    code, out, _ = run(document, "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 1
    assert rows[3] == {
        "day": "2026-11-01", "model": "tera-large-0901", "kind": "completion_tokens",
        "provider": 590, "ledger": 550, "difference": 40, "estimated": 500, "unknown_exchanges": 0,
        "explained_less": 120, "explained_more": 120, "ended_later": 0, "began_earlier": 0, "verdict": "estimates",
    }  # fmt: skip
    money = rows[4]
    assert (money["kind"], money["provider"], money["verdict"]) == ("cost_usd", "0.5", "differs")
    assert [(row["day"], row["model"]) for row in rows[5:]] == [(None, "tera-large-0901")] * 5 + [(None, None)] * 5
    code, out, _ = run(document, "--csv")
    table = list(csv.DictReader(io.StringIO(out)))
    assert code == 1
    assert table == [{name: "" if value is None else str(value) for name, value in row.items()} for row in rows]


def test_what_may_be_on_another_day_is_said(run: Run) -> None:
    """Both were running when the hour was over that the export speaks of."""
    hours = [openai(completions("tera-large-0901", num_model_requests=2), begin=0, end=3_601)]
    _, out, err = run(page(*hours, has_more=True))
    assert out.splitlines()[2].endswith("estimates; 1100 ended later")
    assert out.splitlines()[4].endswith("midnight; 550 ended later")
    assert "the export is incomplete" in err


def test_refusals_are_one_line(run: Run) -> None:
    refusals: list[tuple[Any, list[str], str]] = [
        (usage(input_tokens="7"), [], "usage.json: data[0].results[0].input_tokens: must be a whole number"),
        ("day,tokens", [], "usage.json: is not JSON"),
        (usage(), ["--until", "2026-11-01"], "usage.json: no bucket is within --since and --until"),
        (usage(), ["--since", "2026-11-01T01:00"], "usage.json: no bucket is within --since and --until"),
        (page(*usage()["data"], openai(completions(), end=60)), [], "usage.json: two buckets of usage overlap"),
        (page(openai(day=9)), ["--provider", "terra"], "--provider: no provider of this name is configured"),
        (usage(), ["--file", "nowhere.json"], "nowhere.json"),
    ]
    for document, options, words in refusals:
        code, out, err = run(document, *options)
        assert (code, out, err.count("\n")) == (3 if "no provider of this name" in words else 1, "", 1)
        assert words in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--provider", "tera"], "--provider: needs the provider's export: --file"),
        (["--file", "x.json"], "--csv: need --provider"),
        (["--csv"], "--csv: need --provider"),
        (["--pull"], "--csv: need --provider"),
        (["--save", "x.json"], "--csv: need --provider"),
        (["--provider", "tera", "--file", "x.json", "--save", "y.json"], "--save: needs --pull"),
    ],
)
def test_options_that_go_together(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reconcile", "--config", "none.yaml", *arguments]) == 2
    assert words in capsys.readouterr().err

"""`import`: rows become entries once, at the ledger's prices or the stated cost; a wrong row stops the whole file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from proxy.billing.dimensions import END_USER
from proxy.ledger.dimensions.values import DimensionValues
from proxy.ledger.importing import importer, rows
from tests.cli.commands import CONFIG, Commands

pytestmark = pytest.mark.io

CSV = """\
time,model,id,prompt_tokens,cached_tokens,completion_tokens,cost_usd,end_user
2026-10-01T12:00:00Z,tera-large,req-1,1000,200,100,0.5,alice
2026-10-01T12:00:00Z,tera-large,,1000,,100,,
2026-10-01T12:00:00Z,tera-large,,1000,,100,,
2026-10-02,tera-large,req-2,,,,0.0123456789012,
"""
CHARGES = ("0.0012", "0.0012", "0.0012", "0.012345679")


def attributes(**named: object) -> list[dict[str, Any]]:
    """As OTLP has them: Claude Code's numbers are texts."""
    kinds = {str: "stringValue", float: "doubleValue", int: "intValue"}
    return [
        {"key": name.replace("__", "."), "value": {kinds[type(value)]: str(value) if type(value) is int else value}}
        for name, value in named.items()
    ]


def export(*records: dict[str, Any]) -> str:
    """A line of the collector's file."""
    resource = {"attributes": attributes(service__name="agent")}
    return json.dumps({"resourceLogs": [{"resource": resource, "scopeLogs": [{"logRecords": list(records)}]}]}) + "\n"


CLAUDE = {
    "timeUnixNano": "1790856000123456789",
    "body": {"stringValue": "claude_code.api_request"},
    "attributes": attributes(
        event__name="api_request", model="claude-sonnet-4-5", input_tokens="100", output_tokens="50",
        cache_read_tokens="2000", cache_creation_tokens="300", cost_usd="0.0026", request_id="req_011",
        session__id="s-1", user__email="ann@example.com",
    ),
}  # fmt: skip
CODEX = {
    "timeUnixNano": "0",
    "attributes": attributes(
        event__name="codex.sse_event", event__kind="response.completed", event__timestamp="2026-10-01T12:00:01.5Z",
        model="gpt-5", input_token_count=1000, cached_token_count=600, output_token_count=80, reasoning_token_count=30,
        conversation__id="c-1",
    ),
}  # fmt: skip
OTHERS = [
    {"body": {"stringValue": "claude_code.user_prompt"}, "attributes": attributes(event__name="user_prompt")},
    {"attributes": attributes(event__name="codex.sse_event", event__kind="response.created")},
    {},
]


@pytest.fixture
def run(run: Commands) -> Commands:
    """With a key."""
    run("keys", "create", "--alias", "anna")
    return run


def file(folder: Path, text: str, name: str = "rows.csv") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def test_rows_are_settled_once_at_the_prices_of_the_ledger(
    run: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importer, "BATCH_ROWS", 3)
    path = file(tmp_path, CSV)
    (planned,) = run("import", path, "--key", "anna", "--dry-run")
    assert run("ledger", "--json") == []
    (done,) = run("import", path, "--key", "anna")
    assert done == {
        "rows": 4, "imported": 4, "repeated": 0, "late": 0, "unpriced": 0, "charge_usd": "0.015945679",
        "cost_usd": "0.015645679", "keys": {"anna": {"imported": 4, "charge_usd": "0.015945679"}},
    }  # fmt: skip
    assert planned == {**done, "dry_run": True}
    entries = run("ledger", "--json")
    assert sorted(one["charge_usd"] for one in entries) == sorted(CHARGES)
    (first,) = (one for one in entries if one["details"]["imported"].get("id") == "req-1")
    assert first["details"]["imported"] == {"source": "csv", "id": "req-1"}
    assert (first["endpoint"], first["key_alias"], first["provider"]) == ("import", "anna", "tera")
    assert (first["cached_tokens"], first["total_tokens"], first["started_at"][:19]) == (
        200,
        1100,
        "2026-10-01T12:00:00",
    )
    value_ids = run.ledger(lambda store: DimensionValues(store.engine).find(END_USER, ["alice"]))
    assert first["details"]["dimensions"] == {END_USER: next(iter(value_ids))}
    (again,) = run("import", path, "--key", "anna")
    assert (again["imported"], again["repeated"], again["charge_usd"]) == (0, 4, "0")
    run("reconcile")
    assert [one["action"] for one in run("audit", "--json") if one["action"] == "import"] == ["import"] * 2


def test_the_cost_that_rows_state(run: Commands, tmp_path: Path) -> None:
    path = file(tmp_path, CSV.replace("req-2,,,", "req-2,1,,1").replace("tera-large,req-2", "unknown,req-2"))
    (done,) = run("import", path, "--key", "anna", "--provider", "tera", "--stated-cost")
    assert (done["unpriced"], done["charge_usd"], done["cost_usd"]) == (0, "0.514745679", "0.514545679")
    run("rerate", "--model", "tera-large", "--since", "2026-01-01", "--input", "100", "--output", "100")
    (stated,) = (one for one in run("ledger", "--json") if one["charge_usd"] == "0.5")
    assert stated["kind"] == "usage"
    run("reconcile")


def test_a_key_for_clients_own_credentials_keeps_its_terms(run: Commands, tmp_path: Path) -> None:
    run("keys", "update", "anna", "--byok", "50%")
    (done,) = run("import", file(tmp_path, CSV), "--key", "anna", "--stated-cost")
    assert (done["charge_usd"], done["cost_usd"]) == ("0.25737284", "0")
    entries = run("ledger", "--json")
    assert {one["details"]["byok"]["terms"] for one in entries} == {"50%"}
    run("exchange", next(one["exchange_id"] for one in entries if one["charge_usd"] == "0.25"))
    run("reconcile")


def test_the_logs_of_coding_agents(run: Commands, tmp_path: Path) -> None:
    text = export(*OTHERS, CLAUDE) + "\n" + export(CODEX, *OTHERS)
    (done,) = run("import", file(tmp_path, text, "logs.json"), "--format", "otlp", "--key", "anna")
    assert (done["rows"], done["imported"], done["unpriced"]) == (2, 2, 0)
    claude, codex = sorted(run("ledger", "--json"), key=lambda one: str(one["model"]))
    assert claude["details"]["imported"] == {"source": "claude_code", "id": "req_011"}
    assert (claude["prompt_tokens"], claude["cached_tokens"], claude["completion_tokens"]) == (2400, 2000, 50)
    assert claude["details"]["units"] == {"cache_write_tokens": 300}
    assert (claude["provider"], claude["started_at"]) == ("anthropic", "2026-10-01T12:00:00.123456Z")
    assert set(claude["details"]["dimensions"]) == {"end_user", "session"}
    assert claude["details"]["stated_usd"] == "0.0026"
    assert codex["details"]["imported"] == {"source": "codex"}
    assert (codex["prompt_tokens"], codex["cached_tokens"], codex["reasoning_tokens"]) == (1000, 600, 30)
    assert (codex["provider"], codex["started_at"]) == ("openai", "2026-10-01T12:00:01.500000Z")


ROW = {"time": "2026-10-01T12:00:00Z", "model": "tera-large", "prompt_tokens": 5, "completion_tokens": 2}
WRONG = [
    ({**ROW, "promt_tokens": 1}, "promt_tokens: unknown field"),
    ({**ROW, "prompt_tokens": -1}, "prompt_tokens: must be a whole number"),
    ({**ROW, "prompt_tokens": "1e9"}, "prompt_tokens: must be a whole number"),
    ({**ROW, "prompt_tokens": True}, "prompt_tokens: must be a whole number"),
    ({**ROW, "cached_tokens": 6}, "cached_tokens: is part of prompt_tokens"),
    ({**ROW, "total_tokens": 9}, "total_tokens: is not the sum"),
    ({**ROW, "time": "yesterday"}, "time: must be a date"),
    ({**ROW, "time": "2199-01-01"}, "time: must not be in the future"),
    ({**ROW, "model": " "}, "model: must have"),
    ({**ROW, "model": "unheard-of"}, "provider: is missing"),
    ({**ROW, "key": "nobody"}, "key: no key has the id"),
    ({**ROW, "cost_usd": "nan"}, "cost_usd: must be a number"),
    ({**ROW, "end_user": "\u0007"}, "end_user: must have"),
    ({"time": ROW["time"], "model": "tera-large"}, "prompt_tokens: is missing"),
    ([ROW], "not a JSON object"),
    ({**ROW, "time": float("nan")}, "time: must be"),
    ({**ROW, "time": -1e300}, "time: must be"),
    ({**ROW, "cost_usd": "1e999999"}, "cost_usd: must be a number"),
]


def test_one_wrong_row_stops_the_whole_file(run: Commands, tmp_path: Path) -> None:
    text = "".join(json.dumps(row) + "\n" for row in (ROW, *(row for row, _ in WRONG)))
    run("import", file(tmp_path, text, "rows.jsonl"), "--key", "anna", code=1)
    lines = run.err.splitlines()
    assert len(lines) == len(WRONG) + 1
    for number, ((_, why), line) in enumerate(zip(WRONG, lines, strict=False), 2):
        assert f"line {number}: {why}" in line
    assert lines[-1].endswith("rows.jsonl: nothing was imported")
    assert run("ledger", "--json") == []


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("rows.csv", "time,modell\n", "line 1: modell: unknown column"),
        ("rows.csv", "time,model,time\n", "line 1: two columns have the same name"),
        ("rows.csv", "time,model\n2026-10-01,m,more\n", "line 2: the row has more values"),
        (
            "rows.csv",
            "id,time,model,prompt_tokens\na,2026-10-01,tera-large,1\na,2026-10-01,tera-large,2\n",
            "line 3: id: line 2 has the same id and time",
        ),
        ("rows.otlp", "{}\n", "line 1: resourceLogs: is missing"),
        ("rows.txt", "", "the name does not show the format"),
    ],
)
def test_files_that_are_refused(run: Commands, tmp_path: Path, name: str, text: str, why: str) -> None:
    run("import", file(tmp_path, text, name), "--key", "anna", code=1)
    assert why in run.err
    run("import", file(tmp_path, "time,model,prompt_tokens\n2026-10-01,tera-large,1\n"), code=1)
    assert "line 2: key: is missing" in run.err


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("rows.csv", "2026-10-01,tera-large,1" + " " * 2_000 + "\n"),
        ("rows.csv", '2026-10-01,tera-large,"' + "1\n" * 1_000 + '"\n'),
        ("rows.csv", ('"' + "1\n" * 20 + '",') * 100 + "\n"),
        ("rows.jsonl", "{" + " " * 2_000 + "}\n"),
    ],
)
def test_a_line_has_a_longest_length(
    run: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, line: str
) -> None:
    monkeypatch.setattr(rows, "LINE_CHARS_MAX", 1_000)
    head = "time,model,prompt_tokens\n" if name == "rows.csv" else json.dumps(ROW) + "\n"
    run("import", file(tmp_path, head + line, name), "--key", "anna", code=1)
    assert ": the line is longer than 1000 characters" in run.err
    assert (": line 2:" in run.err) == (line.count("\n") == 1), run.err
    run("import", file(tmp_path, "time,model,prompt_tokens\n" + "2026-10-01,tera-large,1\n" * 100), "--key", "anna")


def test_a_fixed_key_pays_for_all_rows(run: Commands, tmp_path: Path) -> None:
    (bob,) = run("keys", "create", "--alias", "bob")
    text = "time,model,prompt_tokens,key\n2026-10-01,tera-large,1000,bob\n2026-10-01,tera-large,3000,anna\n"
    run("import", file(tmp_path, text), "--key", "bob", code=1)
    assert run.err.splitlines()[0] == (
        "tokenweir: line 3: key: is not that of --key; without --key, each row is billed to the key that it names"
    )
    (planned,) = run("import", file(tmp_path, text), "--dry-run")
    (done,) = run("import", file(tmp_path, text))
    assert planned["keys"] == done["keys"] == {
        "bob": {"imported": 1, "charge_usd": "0.001"}, "anna": {"imported": 1, "charge_usd": "0.003"},
    }  # fmt: skip
    (again,) = run("import", file(tmp_path, text.replace("anna", bob["key_id"])[: text.rindex("2026")]), "--key", "bob")
    assert (again["repeated"], again["keys"]) == (1, {})


def test_notes_name_what_has_no_price_or_another_provider(run: Commands, tmp_path: Path) -> None:
    run.configure({**CONFIG, "providers": {**CONFIG["providers"], "giga": CONFIG["providers"]["tera"]}})
    text = (
        "time,model,provider,prompt_tokens\n2026-10-01,tera-large,giga,1\n2026-10-01,tera-large,giga,2\n"
        "2026-10-01,tera-large,tera,3\n2026-10-01,strange,,4\n"
    )
    for more in (("--dry-run",), ()):
        (done,) = run("import", file(tmp_path, text), "--key", "anna", "--provider", "teraa", *more)
        assert run.err.splitlines() == [
            "tokenweir: the configuration serves tera-large at tera, not at giga: these rows have the prices of giga",
            "tokenweir: the provider teraa is not in the configuration, which has giga, tera",
        ]
        assert (done["unpriced"], done["unpriced_models"]) == (1, ["strange"])


def test_another_row_with_the_id_of_an_imported_one_is_refused(run: Commands, tmp_path: Path) -> None:
    run("import", file(tmp_path, CSV), "--key", "anna")
    changed = file(tmp_path, CSV.replace("req-1,1000", "req-1,1001"))
    for more in ((), ("--dry-run",)):
        run("import", changed, "--key", "anna", *more, code=1)
        assert "line 2: id: a row with this id and time was imported before, for another key" in run.err
    assert len(run("ledger", "--json")) == 4


def test_a_row_that_contradicts_an_earlier_import_stops_the_whole_file(
    run: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importer, "BATCH_ROWS", 2)
    rows = [{**ROW, "id": f"r-{number}"} for number in range(5)]
    text = [json.dumps(row) + "\n" for row in rows]
    run("import", file(tmp_path, text[4], "one.jsonl"), "--key", "anna")
    other = json.dumps({**rows[4], "prompt_tokens": 77}) + "\n"
    run("import", file(tmp_path, "".join((*text[:4], other)), "all.jsonl"), "--key", "anna", code=1)
    assert "line 5: id: a row with this id and time was imported before" in run.err
    assert len(run("ledger", "--json")) == 1


def test_rows_of_a_closed_month_are_late(run: Commands, tmp_path: Path) -> None:
    run("import", file(tmp_path, CSV), "--key", "anna")
    run("periods", "close", "2026-10", "--yes")
    (done,) = run("import", file(tmp_path, CSV.replace("req-1", "req-3")), "--key", "anna")
    assert (done["imported"], done["repeated"], done["late"]) == (1, 3, 1)
    run("reconcile")


def test_a_person_sees_where_an_entry_comes_from_and_who_paid(run: Commands, tmp_path: Path) -> None:
    run("keys", "update", "anna", "--byok", "free")
    row = "time,model,prompt_tokens,images,cost_usd\n2026-10-01,tera-large,1000,,\n2026-10-02,tera-large,,1,0.04\n"
    run("import", file(tmp_path, row), "--key", "anna")
    on = [one["details"]["byok"].get("list_usd") for one in run("ledger", "--json")]
    assert sorted(on) == ["0.001", "0.04"], "images have no price: the stated cost"
    run("ledger", "--columns", "why")
    assert "imported from csv; with the client's own credential, 0.001 USD at list price" in run.out

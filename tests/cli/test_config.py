"""`tokenweir config`: all that is wrong in a file at once, each with its line; what applies; the schema for editors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

from proxy.cli import main
from proxy.settings import SettingsError, load
from proxy.settings.schema import schema
from proxy.sinks.kinds import SINKS

ROOT = Path(__file__).parents[2]
SHIPPED = sorted((*ROOT.glob("examples/**/*.yaml"), ROOT / "deploy" / "tokenweir.yaml"))
WRONG = """\
listen: {host: 0.0.0.0, prot: 80}
exchanges_max: many
providers:
  openai:
    base_url: https://api.openai.com/v1
    api_key: ${NOT_SET}
  other:
    base_url: ftp://x
    timeouts:
      idle_s: -1
    credentials: [{name: a}, {name: b, api_key: "${A}", rpm: 0}]
models:
  "*": {providers: [openai, nobody]}
  gpt-4.1: {provider: openai, price: {input: x}}
"""
FAULTS = """\
1: listen.prot: unknown field; did you mean port?
2: exchanges_max: must be a whole number from 1 to 1048576
6: providers.openai.api_key: the environment variable NOT_SET is not set (nor NOT_SET_FILE)
8: providers.other.base_url: must be a URL, http://host… or https://host…
11: providers.other.credentials[0].api_key: is missing
11: providers.other.credentials[1].rpm: must be a whole number from 1 to 10000000
10: providers.other.timeouts.idle_s: must be seconds, > 0 and ≤ 86400
14: models.gpt-4.1.price.input: must be USD per million tokens, a number from 0 to 10000, no finer than a nano-USD
14: models.gpt-4.1.price.output: is missing
13: models.*.providers[1].provider: unknown provider; must be one of openai, other
"""
RIGHT = """\
allow_literal_secrets: true
providers:
  openai:
    base_url: https://api.openai.com/v1
    api_key: sk-canary-1
    headers: {up: {X-Team: canary-2, X-Org: "${A}"}}
  second: {base_url: "https://b.example/v1", api_key: "${A}", proxy: "http://me:canary-3@p.example:8080"}
queue: redis://:canary-4@h
ledger: postgresql://tw:${A}@h/tw
key_pepper: ${PEPPER}
sinks:
  bills: {kind: webhook, url: "https://hook.example", secret: canary-5-canary-5-canary-5-canary-5}
models:
  "*": {providers: [openai, {provider: second, cost: {input: 1, output: 2}}]}
  gpt-4.1: {provider: openai, price: {input: 1, output: 2}}
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("A", "sk-variable-1")
    monkeypatch.setenv("PEPPER", "5e" * 32)
    return tmp_path / "tokenweir.yaml"


def test_all_faults_are_found_at_once_each_with_its_line(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(WRONG)
    expected = [f"{file}:{line}" for line in FAULTS.splitlines()]
    with pytest.raises(SettingsError) as refused:
        load(file, {"A": "x"}, sinks=SINKS)
    assert str(refused.value).splitlines() == expected
    assert main(["config", "check", "--json", "--config", str(file)]) == 1
    assert [json.loads(line)["message"] for line in capsys.readouterr().out.splitlines()] == expected
    assert main(["config", "check", "--config", str(file)]) == 1
    printed = capsys.readouterr().out
    assert all(line in printed for line in expected)
    assert printed.count("→") == 1
    assert main(["serve", "--config", str(file)]) == 1
    assert capsys.readouterr().err == "".join(f"tokenweir: {line}\n" for line in expected)


def test_names_that_do_not_exist_are_found_together(file: Path) -> None:
    file.write_text(
        'providers:\n  a: {base_url: "http://a.example/v1", tls: {ca_file: x}}\n'
        'models:\n  m: {provider: nobody}\n  n:\n    alias_of: o\n  "*": {provider: a, upstream_model: x}\n'
        "key_pepper:\nledger: postgresql://h/d\n"
    )
    with pytest.raises(SettingsError) as refused:
        load(file, {})
    lines = [line.removeprefix(f"{file}:").split(": ")[0:2] for line in str(refused.value).splitlines()]
    assert lines == [
        ["8", "key_pepper"], ["2", "providers.a.tls"], ["4", "models.m.provider"], ["6", "models.n.alias_of"],
        ["7", "models.*.upstream_model"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: [", ":1: invalid YAML: "),
        ("listen: {}\nlisten: {}\n", ":2: duplicate field 'listen'"),
        ("[]", ": must be a mapping of fields"),
        ("", ": must be a mapping of fields"),
        ("models: {}", ":1: models: must be a mapping with at least one name"),
    ],
)
def test_a_file_that_is_none_is_refused_with_its_place(file: Path, text: str, says: str) -> None:
    file.write_text(text)
    with pytest.raises(SettingsError) as refused:
        load(file, {})
    assert f"{file}{says}" in str(refused.value)


def test_a_right_file_is_checked_offline(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(RIGHT)
    assert main(["config", "check", "--config", str(file)]) == 0
    assert "✓ configuration       is valid: 2 providers, 2 models" in capsys.readouterr().out
    assert list(file.parent.iterdir()) == [file], "nothing is written"


def test_a_model_without_a_price_is_named_with_its_line(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(
        'providers:\n  a: {base_url: "http://a.example/v1", api_key: "${A}"}\n'
        "models:\n  never-heard-of: {provider: a}\n  nor-of-this: {provider: a}\n"
    )
    assert main(["config", "check", "--config", str(file)]) == 1
    printed = capsys.readouterr().out
    assert f"✗ prices              {file}:4: models.never-heard-of.price: is missing" in printed
    assert f"✗ prices              {file}:5: models.nor-of-this.price: is missing" in printed


def test_what_applies_is_shown_without_any_secret(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(RIGHT)
    assert main(["config", "show", "--config", str(file)]) == 0
    printed = capsys.readouterr().out
    lines = printed.splitlines()
    assert "canary" not in printed
    assert "sk-variable-1" not in printed
    for line in (
        "listen.port = 8080  (default)",
        "queue = redis://:***@h",
        "ledger = postgresql://tw:${A}@h/tw",
        "providers.openai.api_key = ***",
        'providers.openai.headers.up = {"X-Team": "***", "X-Org": "${A}"}',
        "providers.second.api_key = ${A}",
        "providers.second.proxy = http://me:***@p.example:8080",
        "providers.second.timeouts.first_event_s = 5  (default)",
        "sinks.bills.secret = ***",
        "models.*.providers[0] = openai",
        "models.*.providers[1].cost.input = 1",
        "models.gpt-4.1.price.input = 1",
    ):
        assert line in lines
    assert main(["config", "show", "--json", "--config", str(file)]) == 0
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {"setting": "providers.openai.api_key", "value": "***", "default": False} in shown
    assert len(shown) == len(lines)


def documents() -> Iterator[Any]:
    for path in SHIPPED:
        yield from (one for one in yaml.safe_load_all(path.read_text()) if one and "providers" in one)
    yield from map(yaml.safe_load, (RIGHT,))


def test_the_schema_takes_what_is_right_and_names_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "schema"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == schema()
    jsonschema_rs.meta.validate(printed)
    validator = jsonschema_rs.Draft202012Validator(printed)
    found = list(documents())
    assert len(found) >= 4
    for document in found:
        assert list(validator.iter_errors(document)) == []
    wrong = yaml.safe_load(WRONG)
    assert {tuple(one.instance_path)[:1] for one in validator.iter_errors(wrong)} == {
        ("listen",), ("exchanges_max",), ("providers",), ("models",)
    }  # fmt: skip


def test_the_schema_knows_every_setting() -> None:
    """An editor shows its meaning."""

    def meanings(node: Any) -> int:
        if isinstance(node, dict):
            return ("description" in node) + sum(map(meanings, node.values()))
        return sum(map(meanings, node)) if isinstance(node, list) else 0

    assert meanings(schema()) > 150

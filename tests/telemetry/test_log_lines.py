"""The log's lines: one for each exchange, one for each kind of refusal in a while, as text and as JSON."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from datetime import datetime
from io import StringIO
from typing import Any

import pytest
from msgspec.structs import replace

from proxy.demo.script import Shape
from proxy.telemetry import log_lines
from proxy.telemetry.log_lines import ExchangeLog, JsonFormatter
from tests.crash.stage import Stage, quick_key, until
from tests.journal.records import opened, record
from tests.support.provider import ScriptedProvider
from tests.support.tokenweir import Tokenweir

SERVED = record(opened(1))


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """What was logged, as JSON."""
    monkeypatch.setattr(log_lines, "REFUSALS_S", 0.05)
    stream = StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger("proxy")
    logger.addHandler(handler)
    level = logger.level
    logger.setLevel(logging.INFO)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    logger.removeHandler(handler)
    logger.setLevel(level)


async def test_each_exchange_has_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_lines, "WRITE_S", 0.01)
    lines: list[str] = []
    log = ExchangeLog(exchanges=True, as_json=True, write=lines.append)
    for _ in range(3):
        log.ended(SERVED)
    await until(lambda: len(lines) == 3)
    first, began = json.loads(lines[0]), SERVED.opened
    assert (first["logger"], first["level"]) == ("proxy.exchanges", "INFO")
    assert (first["exchange"], first["key"], first["model"]) == (began.exchange_id, began.key_id, began.model)
    assert (first["outcome"], first["usage"], first["duration_ms"]) == ("served", "reported", SERVED.duration_ms)
    ended_at = began.started_at + SERVED.duration_ms / 1000
    assert datetime.fromisoformat(first["time"]).timestamp() == pytest.approx(ended_at, abs=0.001)
    log.ended(SERVED)
    log.close()
    assert len(lines) == 4, "what is left is written at the end"


async def test_a_line_of_text_is_that_of_any_other() -> None:
    lines: list[str] = []
    log = ExchangeLog(exchanges=True, as_json=False, write=lines.append)
    log.ended(SERVED)
    log.close()
    began = SERVED.opened
    like_others = logging.Formatter(log_lines.TEXT_FORMAT)
    made = logging.LogRecord("proxy.exchanges", logging.INFO, "", 0, "", (), None)
    made.created = began.started_at + SERVED.duration_ms / 1000
    made.msecs = int(made.created * 1000) % 1000
    assert lines[0].startswith(like_others.format(made))
    assert f"exchange={began.exchange_id} key={began.key_id} model={began.model} " in lines[0]
    assert lines[0].count("\n") == 1


async def test_they_can_be_switched_off() -> None:
    lines: list[str] = []
    log = ExchangeLog(exchanges=False, as_json=False, write=lines.append)
    log.ended(SERVED)
    log.close()
    assert lines == []


@pytest.mark.parametrize("name", ["a b", "a\nINFO all is well", 'x" outcome=served', "a=b", "\u2028", ""])
async def test_a_model_s_name_makes_no_field_and_no_line(name: str) -> None:
    for as_json in (False, True):
        lines: list[str] = []
        log = ExchangeLog(exchanges=True, as_json=as_json, write=lines.append)
        log.ended(replace(SERVED, opened=replace(SERVED.opened, model=name)))
        log.close()
        assert len(lines[0].splitlines()) == 1
        if as_json:
            assert json.loads(lines[0])["model"] == name
        else:
            assert f"model={json.dumps(name)} " in lines[0]


async def test_refusals_of_one_kind_are_two_lines_in_a_while(written: Callable[[], list[dict[str, Any]]]) -> None:
    log = ExchangeLog(exchanges=True, as_json=False)
    for _ in range(1_000):
        log.refused(401, "invalid_api_key")
    log.refused(404, "model_not_found")
    assert [one["message"] for one in written()] == ["refused: 401 invalid_api_key", "refused: 404 model_not_found"]
    await until(lambda: len(written()) == 3)
    assert written()[2]["message"].startswith("refused: 401 invalid_api_key, 1000 times in")
    await asyncio.sleep(0.1)
    log.refused(401, "invalid_api_key")
    assert len(written()) == 4, "in the next while it is told again"
    log.close()


def test_a_traceback_is_a_field_of_its_line() -> None:
    made = logging.getLogger("proxy.x").makeRecord("proxy.x", logging.ERROR, "f", 1, "it broke: %s", ("y",), None)
    made.exc_info = (ValueError, ValueError("x"), None)
    line = json.loads(JsonFormatter().format(made))
    assert (line["message"], line["level"]) == ("it broke: y", "ERROR")
    assert "ValueError: x" in line["exception"]
    assert line["time"].endswith("+00:00")


async def test_a_proxy_logs_json_and_its_exchanges(
    tokenweir: Callable[..., Tokenweir], provider: ScriptedProvider
) -> None:
    running = tokenweir(log={"format": "json"})
    key, name = quick_key(running), provider.script("logged", Shape("openai", tokens=3))
    async with Stage(running, key) as stage:
        exchange_id = (await stage.whole(name)).header("x-tokenweir-exchange")
    async with Stage(running, "tw-nobody") as stage:
        assert (await stage.whole(name)).status == 401
    assert running.stop() == 0
    lines = [json.loads(line) for line in running.log.read_text().splitlines()]
    (line,) = [one for one in lines if one["logger"] == "proxy.exchanges"]
    assert (line["exchange"], line["model"], line["outcome"], line["output_tokens"]) == (exchange_id, name, "served", 3)
    assert [one["message"] for one in lines if one["logger"] == "proxy.refusals"] == ["refused: 401 invalid_api_key"]

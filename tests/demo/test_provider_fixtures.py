"""The fixtures of the four systems agree with their own truth, by the reference parser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import sse

FIXTURES = Path(__file__).parents[1] / "conformance" / "providers"
TRUTHS = sorted(FIXTURES.glob("*/*.json"))
STREAMS = [path for path in TRUTHS if path.with_suffix(".sse").exists()]
WHOLE = [path for path in TRUTHS if path.with_suffix(".body").exists()]
COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")


def name(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


def counted(wire_usage: dict[str, Any] | None) -> dict[str, Any] | None:
    if wire_usage is None:
        return None
    cached = (wire_usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    reasoning = (wire_usage.get("completion_tokens_details") or {}).get("reasoning_tokens")
    counts = {count: wire_usage[count] for count in COUNTS}
    return {**counts, "cached_tokens": cached, "reasoning_tokens": reasoning}


def test_every_truth_has_its_wire_and_every_wire_its_truth() -> None:
    wires = [path for path in FIXTURES.glob("*/*") if path.suffix in {".sse", ".body"}]
    assert sorted(path.with_suffix(".json") for path in wires) == TRUTHS
    assert {path.parent.name for path in TRUTHS} == {"tera", "tensorloop", "siliconstorm", "electron"}


@pytest.mark.parametrize("path", STREAMS, ids=name)
def test_a_stream_is_as_its_truth_says(path: Path) -> None:
    truth, wire = json.loads(path.read_text()), path.with_suffix(".sse").read_bytes()
    cumulative = truth.get("cumulative", False)
    assert len(sse.data_events(wire)) == truth["events"]
    assert counted(sse.usage(wire)) == truth["usage"]
    assert sse.finish_reason(wire) == truth["finish_reason"]
    assert sse.text(wire, cumulative=cumulative) == truth["text"]
    assert sse.text(wire, field="reasoning_content") == truth.get("reasoning", "")
    assert sse.tool_arguments(wire) == truth.get("tool_arguments", "")
    assert (sse.without_usage_event(wire) != wire) == truth["strip_usage_event"]
    assert sse.done(wire) == ("ends" not in truth)


@pytest.mark.parametrize("path", WHOLE, ids=name)
def test_a_whole_answer_is_as_its_truth_says(path: Path) -> None:
    truth, answer = json.loads(path.read_text()), json.loads(path.with_suffix(".body").read_bytes())
    choice = answer["choices"][0]
    calls = choice["message"].get("tool_calls") or []
    assert not truth["streamed"]
    assert counted(answer.get("usage")) == truth["usage"]
    assert choice["finish_reason"] == truth["finish_reason"]
    assert choice["message"]["content"] == truth["text"]
    assert "".join(call["function"]["arguments"] for call in calls) == truth.get("tool_arguments", "")

"""What a provider reports and no dialect reads is named, whatever it is; and nothing that is read or free is."""

from __future__ import annotations

import copy
import json
from collections import Counter
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.billing.pricing.book import PriceBook
from proxy.billing.pricing.prices import applied
from proxy.metering import unknown_fields as fields
from proxy.metering.dialect import Dialect
from proxy.metering.dialects import DIALECTS
from proxy.metering.dialects.anthropic.messages import ANTHROPIC_MESSAGES
from proxy.metering.dialects.gemini.generate import GEMINI_GENERATE, GEMINI_STREAM
from proxy.metering.dialects.openai.chat import OPENAI_CHAT
from proxy.metering.dialects.openai_responses.responses import OPENAI_RESPONSES
from proxy.metering.unknown_fields import NO_UNKNOWN_FIELDS, PATHS_MAX, UnknownFields, members, unknown_fields
from tests.metering.corpus.corpus import NEEDS_CORPUS, all_records
from tests.metering.corpus.dialects import metered, spoken
from tests.metering.fixtures import read_answer, read_events
from tests.metering.said import LASTS

KNOWN = members("id created choices", "usage.prompt_tokens usage.details.cached", "usage.lists.TEXT usage.steps.input")


EVERY_LAST = pytest.mark.parametrize(
    ("dialect", "event", "where"), [row[:3] for row in LASTS], ids=lambda value: getattr(value, "name", None)
)


def found(known_as: Any, **answer: Any) -> tuple[str, ...]:
    return unknown_fields([json.dumps(answer).encode()], known_as).paths


@pytest.mark.parametrize(
    ("usage", "paths"),
    [
        ({"prompt_tokens": 9, "details": {"cached": 3}}, ()),
        ({"other_tokens": 9}, ("usage.other_tokens",)),
        ({"details": {"cached": 1, "written": 2}}, ("usage.details.written",)),
        ({"details": {"deep": {"deeper": [{"deepest": 0.5}]}}}, ("usage.details.deep.deeper.deepest",)),
        ({"other_tokens": 0, "more": 0.0, "less": -0, "none": None, "is_byok": True, "list": [], "empty": {}}, ()),
        ({"other_tokens": -1}, ("usage.other_tokens",)),
        ({"prices": [3, 0, "x"]}, ("usage.prices", "usage.prices=x")),
        ({"lists": [{"modality": "TEXT", "count": 3}]}, ()),
        ({"lists": [{"modality": "IMAGE", "n": 3}, {"modality": "AUDIO", "n": 0}]}, ("usage.lists.IMAGE.n",)),
        ({"steps": [{"input": 3}, {"input": 4, "model": "m"}]}, ("usage.steps.model=m",)),
        ({"speed": "fast", "word": ""}, ("usage.speed=fast",)),
        ({"speed": "a whole sentence of somebody's"}, ("usage.speed=other",)),
        ({"a whole sentence of somebody's": 3}, ("usage.other",)),
        ({"prompt_tokens": {"text": 3}}, ()),
        ({"details": 7}, ("usage.details",)),
        (7, ("usage",)),
    ],
)  # fmt: skip
def test_each_number_and_word_of_a_usage_that_nobody_knows_is_named(usage: Any, paths: tuple[str, ...]) -> None:
    assert found(KNOWN, id="x", created=1, usage=usage) == paths


def test_numbers_beside_the_usage_are_named_and_kept_and_texts_are_not() -> None:
    answer = {
        "created": 1_790_000_000, "choices": [{"index": 7}], "usage": {"ticks": 5},
        "cost": {"usd": 0.25, "note": "a b"},
        "citations": ["a text"], "tool_usage": {"image_gen": {"output_tokens": 7024}}, "tier": "turbo",
    }  # fmt: skip
    assert unknown_fields([json.dumps(answer).encode()], KNOWN) == UnknownFields(
        ("cost.usd", "tool_usage.image_gen.output_tokens", "usage.ticks"),
        {"cost.usd": 0.25, "tool_usage.image_gen.output_tokens": 7024},
    )


@pytest.mark.parametrize(
    "text",
    [b"", b"[DONE]", b"null", b"7", b'"usage"', b"{", b'{"usage":', b"\xff\xfe", b"[" * 5000, b'{"a":' * 5000],
)
def test_what_is_no_json_has_nothing_and_raises_nothing(text: bytes) -> None:
    assert unknown_fields([text], KNOWN) == NO_UNKNOWN_FIELDS


@pytest.mark.parametrize(
    ("odd", "path"),
    [
        (b"NaN", "usage.odd"),
        (b"-Infinity", "usage.odd"),
        (b"9" * 5000, "usage.odd"),
        (b"1e999", "usage.odd"),
        (b'"\xff"', "usage.odd=other"),
        (b"[" * 900 + b"1" + b"]" * 900, "usage.odd" + ".other" * 7),
        (b'{"a":' * 900 + b"1" + b"}" * 900, "usage.odd" + ".a" * 7),
    ],
)
def test_what_a_strict_reader_refuses_is_not_silent(odd: bytes, path: str) -> None:
    """Whatever a meter reads the counts from; and it raises nothing."""
    body = b'{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":1,"ticks":5,"odd":%s}}' % odd
    metered = read_answer(OPENAI_CHAT, body)
    assert metered.usage is not None
    assert metered.usage.prompt_tokens == 9
    assert metered.unknown_usage_fields.paths == tuple(sorted(("usage.ticks", path)))


def test_a_holder_is_looked_into_whatever_else_it_has() -> None:
    """Leniently read, or no object at all."""
    for odd, more in ((b"1", "usage.odd"), (b"NaN", "usage.odd")):
        body = b'{"type":"response.completed","response":{"output":[],"usage":{"input_tokens":9,"odd":%s}}}' % odd
        assert unknown_fields([body], OPENAI_RESPONSES.tally(None).known).paths == (more,)
    assert unknown_fields([b'{"response":7}'], OPENAI_RESPONSES.tally(None).known).paths == ("response",)


_SCALARS = st.none() | st.booleans() | st.integers(-1, 3) | st.sampled_from(["", "x", "low", "LOW", "high"])
_INNER = st.sampled_from(["prompt_tokens", "cached", "TEXT", "input", "details", "lists", "steps", "level", "modality"])
_VALUES = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_INNER, inner, max_size=3), max_leaves=6
)
WORDED = members("id created choices.index", "usage.prompt_tokens usage.details.cached usage.level=low|high")


@given(st.dictionaries(st.sampled_from(["id", "usage", "choices", "response", "odd"]), _VALUES, max_size=3))
def test_a_text_with_known_members_alone_has_no_unknown_field(answer: dict[str, Any]) -> None:
    """Such a text is found at once; a look at each of its members would find the same."""
    text = json.dumps(answer).encode()
    for known in (KNOWN, WORDED):
        with patch.object(fields, "_has_only", lambda *_: False):
            looked = unknown_fields([text], known)
        assert unknown_fields([text], known) == looked


# Dialect → a report as its provider sends it.
ORDINARY = {
    OPENAI_CHAT: b"""
        {"id": "c", "object": "chat.completion", "created": 1790000000, "model": "m", "choices": [{"index": 0,
        "message": {"role": "assistant", "content": "x", "refusal": null}, "logprobs": null, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 7, "total_tokens": 16, "prompt_tokens_details":
        {"cached_tokens": 0, "audio_tokens": 0}, "completion_tokens_details": {"reasoning_tokens": 0}},
        "service_tier": "default", "system_fingerprint": "fp"}""",
    OPENAI_RESPONSES: b"""
        {"type": "response.completed", "sequence_number": 9, "response": {"id": "r", "object": "response",
        "output": [{"id": "m", "type": "message", "status": "completed", "role": "assistant",
        "content": [{"type": "output_text", "text": "x", "annotations": []}]}], "store": true, "background": false,
        "usage": {"input_tokens": 9, "output_tokens": 7, "total_tokens": 16,
        "output_tokens_details": {"reasoning_tokens": 0}}}}""",
    ANTHROPIC_MESSAGES: b"""
        {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": null}, "usage":
        {"input_tokens": 9, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 7}}""",
    GEMINI_GENERATE: b"""
        {"candidates": [{"content": {"parts": [{"text": "x"}], "role": "model"}, "finishReason": "STOP"}],
        "usageMetadata": {"promptTokenCount": 9, "candidatesTokenCount": 7, "totalTokenCount": 16,
        "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 9}]}, "modelVersion": "m", "responseId": "r"}""",
}


@pytest.mark.parametrize(("dialect", "text"), ORDINARY.items(), ids=lambda one: getattr(one, "name", ""))
def test_an_ordinary_report_is_found_at_once(dialect: Dialect, text: bytes) -> None:
    with patch.object(fields, "_look_into_members") as looked:
        assert unknown_fields([text], dialect.tally(None).known) == NO_UNKNOWN_FIELDS
    assert not looked.called


def test_what_is_found_is_bounded_however_much_there_is() -> None:
    wide = found(KNOWN, usage={f"count_{number}": 1 for number in range(10_000)})
    assert len(wide) == PATHS_MAX
    assert wide[-1] == "..."
    (huge,) = unknown_fields([b'{"usage":{"ticks":%s}}' % (b"9" * 5000)], KNOWN).paths
    assert huge == "usage.ticks"


def test_what_is_too_deep_to_look_into_is_not_silent() -> None:
    deep: Any = 1
    for _ in range(100):
        deep = {"a": deep}
    assert found(KNOWN, usage=deep) == ("usage" + ".a" * 8,)


@EVERY_LAST
def test_an_ordinary_end_has_nothing_unread(dialect: Dialect, event: dict[str, Any], where: str) -> None:
    assert read_events(dialect, event).unknown_usage_fields == NO_UNKNOWN_FIELDS


_NAMES = st.from_regex(r"zz_[a-z_]{1,20}", fullmatch=True)
_NUMBERS = st.integers(1, 2**60) | st.floats(1e-9, 1e9)


@pytest.mark.hypothesis
@EVERY_LAST
@given(data=st.data(), path=st.lists(_NAMES, min_size=1, max_size=3), number=_NUMBERS, inside=st.booleans())
def test_no_number_that_a_wire_does_not_know_is_silent(
    dialect: Dialect, event: dict[str, Any], where: str, data: st.DataObject, path: list[str], number: float,
    inside: bool,
) -> None:  # fmt: skip
    changed = copy.deepcopy(event)
    at: Any = changed
    holders = where.split(".") if where else []
    for name in holders if inside else holders[:-1]:
        at = at[name]
    if data.draw(st.booleans(), label="in an object of the usage"):
        objects = (name for name, one in at.items() if isinstance(one, dict) and name != "message")
        at = at.setdefault(next(objects, path[0]), {})
    for name in path[:-1]:
        at = at.setdefault(name, {})
    at[path[-1]] = number
    assert any(one.endswith(path[-1]) for one in read_events(dialect, changed).unknown_usage_fields.paths)


SPOKEN = {
    "cohere.rerank": "openai.rerank", "other.rerank": "openai.rerank", "google.generate": "gemini.generate",
    "mistral.chat": "openai.chat", "mistral.embeddings": "openai.embeddings", "openai.audio": "openai.transcriptions",
}  # fmt: skip
# All that is unread in the recorded answers of real providers: each of these may cost something.
UNREAD = {
    ("anthropic.messages", "content.fallback"): 1,
    ("openai.chat", "usage.search_context_size=low"): 8,  # Perplexity's fee depends on it
    **{
        ("openai.chat", f"usage_breakdown.models.usage.{name}"): 1
        for name in (
            "completion_time", "completion_tokens", "prompt_time", "prompt_tokens", "queue_time", "total_time",
            "total_tokens",
        )
    },
    ("openai.responses", "output.code_interpreter_call"): 5,
    ("openai.responses", "output.program"): 2,
    ("openai.responses", "output.shell_call"): 4,
    ("openai.responses", "output.x_search_call"): 1,
    ("openai.responses", "usage.num_server_side_tools_used"): 4,
}  # fmt: skip


@pytest.mark.real
@NEEDS_CORPUS
def test_of_recorded_answers_only_what_may_cost_something_is_unread() -> None:
    """And only two of them were served at another price than the usual one; the book has it."""
    book = PriceBook()
    multiplied: dict[str, dict[str, str]] = {}
    by_name = {dialect.name: dialect for dialect in DIALECTS}
    found: Counter[tuple[str, str]] = Counter()
    for record in all_records():
        dialect = by_name.get(SPOKEN.get(record["dialect"], record["dialect"]))
        if dialect is None or not spoken(record):
            continue
        dialect = GEMINI_STREAM if record["streamed"] and dialect is GEMINI_GENERATE else dialect
        result = metered(dialect, record, [record["body"].encode()])
        found.update((dialect.name, path) for path in result.unknown_usage_fields.paths)
        model, base_url = str((record["request_json"] or {}).get("model")), f"https://{record['provider_host']}/"
        model = record["path"].rpartition("/")[2].partition(":")[0] if dialect is GEMINI_STREAM else model
        price = book.price(provider="recorded", base_url=base_url, model=model, at=1_790_000_000.0)
        if price is not None and (by := applied(price, result.served_as)):
            multiplied[model] = by
    assert dict(found) == UNREAD
    assert multiplied == {
        "gpt-5.4": {"tier:priority": "2"}, "gemini-3-flash-preview": {"tier:flex": "1/2"}
    }  # fmt: skip

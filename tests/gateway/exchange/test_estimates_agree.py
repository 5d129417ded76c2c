"""The same evidence gives the same number, however an exchange ends: closed by its outcome, or recovered or swept from
the progress that a killed process left.

Equal evidence: what a kill leaves is the note, which has counters. A process that ends an exchange itself may also have
its text, which is more evidence and may give a better number; so no text is held here, and the last test says what
holding it changes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.billing.record import Attempt, Opened, Outcome
from proxy.gateway.exchange.relay import Relay
from proxy.journal.progress import Progress, ProgressTable, Slot, decoded
from proxy.journal.recovery import recover, sweep
from proxy.metering.dialect import Dialect
from proxy.metering.dialects.anthropic.messages import ANTHROPIC_MESSAGES
from proxy.metering.dialects.bedrock.converse import BEDROCK_CONVERSE_STREAM
from proxy.metering.dialects.cohere.chat import COHERE_CHAT
from proxy.metering.dialects.gemini.generate import GEMINI_STREAM
from proxy.metering.dialects.ollama.chat import OLLAMA_CHAT
from proxy.metering.dialects.openai.chat import OPENAI_CHAT
from proxy.metering.dialects.openai_responses.responses import OPENAI_RESPONSES
from proxy.metering.estimator.estimate import Estimator
from proxy.metering.held_text import AnswerText, TextRoom
from proxy.metering.usage import Evidence, Reading, Silence, Usage
from tests.gateway.exchange.alone import Ended, exchange_alone
from tests.journal.records import opened
from tests.metering.dialects.bedrock import delta, event
from tests.metering.fixtures import call, chunk, usage

ENDS = (Outcome.SERVED, Outcome.CLIENT_LEFT, Outcome.UPSTREAM_FAILED, Outcome.BUDGET_CUT, Outcome.SHUT_DOWN)


def taught() -> Estimator:
    """By a model that hides most of what it generates."""
    estimator = Estimator()
    seen = Evidence(text_events=20, chars_latin=90)
    for _ in range(30):
        estimator.learn("electron/electron-2", evidence=seen, prompt=None, usage=Usage(1, None, 220, 200))
    return estimator


ESTIMATORS = {"cold": Estimator(), "taught": taught()}


def said(event: dict[str, Any]) -> bytes:
    return b"data: %s\n\n" % json.dumps(event).encode()


def anthropic(text: str, counted: int | None) -> bytes:
    more = {} if counted is None else {"usage": {"output_tokens": counted}}
    kind = "content_block_delta" if counted is None else "message_delta"
    return said({"type": kind, "index": 0, "delta": {"type": "text_delta", "text": text}, **more})


def gemini(text: str, counted: int | None) -> bytes:
    used = {"promptTokenCount": 9, "candidatesTokenCount": counted, "thoughtsTokenCount": 40}
    candidate = {"index": 0, "content": {"parts": [{"text": text}]}}
    return said({"candidates": [candidate], **({} if counted is None else {"usageMetadata": used})})


def responses(text: str, counted: int | None) -> bytes:
    used = {} if counted is None else {"response": {"usage": {"input_tokens": 9, "output_tokens": counted}}}
    return said({"type": "response.output_text.delta", "output_index": 0, "delta": text, **used})


def cohere(text: str, counted: int | None) -> bytes:
    used = {} if counted is None else {"usage": {"tokens": {"input_tokens": 9, "output_tokens": counted}}}
    return said({"type": "content-delta", "index": 0, "delta": {"message": {"content": {"text": text}}, **used}})


def ollama(text: str, counted: int | None) -> bytes:
    used = {} if counted is None else {"prompt_eval_count": 9, "eval_count": counted, "done": True}
    return json.dumps({"message": {"content": text}, **used}).encode() + b"\n"


def bedrock(text: str, counted: int | None) -> bytes:
    used = {"inputTokens": 9, "outputTokens": counted, "totalTokens": 9 + (counted or 0)}
    return delta(text) + (b"" if counted is None else event("metadata", {"usage": used}))


def chat(text: str, counted: int | None) -> bytes:
    return said(chunk({"content": text}, **({} if counted is None else {"usage": usage(9, counted, 9 + counted)})))


Say = Callable[[str, int | None], bytes]
DIALECTS: dict[str, tuple[Dialect, Say]] = {
    "chat": (OPENAI_CHAT, chat),
    "anthropic": (ANTHROPIC_MESSAGES, anthropic),
    "gemini": (GEMINI_STREAM, gemini),
    "responses": (OPENAI_RESPONSES, responses),
    "cohere": (COHERE_CHAT, cohere),
    "ollama": (OLLAMA_CHAT, ollama),
    "bedrock": (BEDROCK_CONVERSE_STREAM, bedrock),
}
CHAT_ONLY = [
    said(chunk({"role": "assistant", "content": ""})),
    said(chunk({"reasoning_content": "hm"})),
    said(chunk(call(0, '{"river":', name="gauge", id="c1"))),
    said(chunk({"content": "a"}, index=1)),
    said(chunk(usage=usage(9, 0, 9))),
    said(chunk(finish="stop")),
    b": beat\n\n",
]
UNREAD = said(chunk({"content": "a", "musing": "the water is high"}))
TEXTS = st.sampled_from(["\n", " word", "a", "ab", "abc", "abcd", "abcde", " the river", "水", " " * 40, ""])
EVENTS = st.lists(st.tuples(TEXTS, st.none() | st.none() | st.integers(0, 90)), max_size=40)


class Client:
    """Takes everything."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...
    def write(self, data: bytes) -> None: ...


@contextmanager
def slots(folder: Path) -> Iterator[Slot]:
    table = ProgressTable.open(folder / "progress.table", 1, unix_time=lambda: 1_790_000_001.0)
    table.clear()
    with closing(table):
        yield table.claim(opened(1).exchange_id)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("paths")


def relay_of(dialect: Dialect, slot: Slot) -> Relay:
    framing = dialect.framings[0]
    made = Relay(
        meter=dialect.stream_meter(framing), editor=None, slot=slot, framing=framing, ends=dialect.ends,
        gaps=SimpleNamespace(observe=lambda _s: None), listener=None,  # type: ignore[arg-type]
    )  # fmt: skip
    made.attach(Client(), chunked=True)  # type: ignore[arg-type]
    return made


def killed(slot: Slot, of: Opened, estimator: Estimator) -> Reading:
    """What is read after `kill -9`, on this machine or, by its lease, on another."""
    table = slot._table
    [record] = recover([of], table, estimator)
    assert sweep(of, decoded(table.raw(of.slot)), estimator).reading == record.reading
    return record.reading


def closed(relay: Relay, of: Opened, estimator: Estimator, outcome: Outcome) -> Reading:
    """What is read if the exchange ends so."""
    ended = Ended()
    made = exchange_alone(of, ended, Untaught(estimator))
    made.silent_s = 0.75  # from the admission to the note
    relay.settle_counts()
    metered = relay.meter.close()
    made.close(outcome, now=1.0, metered=metered, events=relay.events, size=relay.bytes, read=relay.meter.bytes_seen)
    return ended.records[0].reading


class Untaught:
    """An estimator that learns nothing from what is closed."""

    def __init__(self, estimator: Estimator) -> None:
        self.completion, self.prompt_error = estimator.completion, estimator.prompt_error
        self.broken_bound, self.VERSION = estimator.broken_bound, estimator.VERSION

    def learns(self, _model_key: str) -> bool:
        return False


def numbers(found: Reading) -> tuple[object, ...]:
    used = found.usage
    return (
        used.prompt_tokens, used.completion_tokens, used.total_tokens, found.source, found.estimator,
        found.expected_error, found.capped, found.hidden_tokens, found.limit_exceeded, found.hidden_by_time,
    )  # fmt: skip


@pytest.mark.parametrize("name", DIALECTS)
@given(
    events=EVENTS, more=st.lists(st.tuples(st.integers(0, 40), st.sampled_from(CHAT_ONLY)), max_size=6),
    burst=st.integers(1, 5), drained=st.none() | st.integers(1, 40), most=st.none() | st.integers(1, 60),
    estimator=st.sampled_from(sorted(ESTIMATORS)),
)  # fmt: skip
def test_every_end_comes_to_the_same_number(
    name: str, folder: Path, events: list[tuple[str, int | None]], more: list[tuple[int, bytes]], burst: int,
    drained: int | None, most: int | None, estimator: str,
) -> None:  # fmt: skip
    dialect, say = DIALECTS[name]
    pieces = [say(text, counted) for text, counted in events]
    for at, one in more if dialect is OPENAI_CHAT else ():
        pieces.insert(at, one)
    pieces.insert(0, say("x", None))  # what delivered nothing is billed nothing
    guess, of = ESTIMATORS[estimator], opened(1, completion_tokens_max=most)
    with slots(folder) as slot:
        relay = relay_of(dialect, slot)
        for at in range(0, len(pieces), burst):
            if drained is not None and at >= drained:
                relay.detach()
            relay.piece(b"".join(pieces[at : at + burst]))
        relay._fold()  # the kill comes when all is noted
        after = killed(slot, of, guess)
        for outcome in ENDS:
            assert numbers(closed(relay, of, guess, outcome)) == numbers(after), outcome


@pytest.mark.parametrize("text", ["\n", " word", "a", " ", "水", "the same sentence, time and again. "])
@pytest.mark.parametrize("events", [1, 5, 58, 406])
@pytest.mark.parametrize("burst", [1, 7])
def test_a_stream_of_equal_texts_is_no_cheaper_by_a_kill(tmp_path: Path, text: str, events: int, burst: int) -> None:
    """Whenever it comes: what is not noted yet is scaled."""
    with slots(tmp_path) as slot:
        relay = relay_of(OPENAI_CHAT, slot)
        relay.piece(said(chunk({"role": "assistant", "content": ""})))
        for at in range(0, events, burst):
            relay.piece(chat(text, None) * min(burst, events - at))
        after = killed(slot, opened(1), ESTIMATORS["cold"]).usage.completion_tokens
        left = closed(relay, opened(1), ESTIMATORS["cold"], Outcome.CLIENT_LEFT).usage.completion_tokens
    assert left is not None
    assert after == pytest.approx(left, rel=0.03, abs=1)
    assert after >= events * min(1, len(text.encode()))


@pytest.mark.parametrize("billed", [True, False])
@pytest.mark.parametrize("words", [0, 1])
def test_a_silence_is_the_same_at_every_end(tmp_path: Path, billed: bool, words: int) -> None:
    of = opened(1, silence=Silence(1000.0, 4000, billed))
    with slots(tmp_path) as slot:
        relay = relay_of(OPENAI_CHAT, slot)
        relay.piece(said(chunk({"role": "assistant", "content": ""})))
        for _ in range(words):
            relay.piece(chat("a word", None))
        slot.wait()
        after = killed(slot, of, ESTIMATORS["cold"])
        for outcome in (Outcome.CLIENT_LEFT, Outcome.BUDGET_CUT, Outcome.SHUT_DOWN):
            assert numbers(closed(relay, of, ESTIMATORS["cold"], outcome)) == numbers(after)
    assert after.hidden_by_time == (None if words else 750)
    assert (after.usage.completion_tokens == 750) == (billed and not words)


def test_a_silence_begins_with_the_request_to_the_provider_that_answered() -> None:
    """Others had failed before."""
    failed = Attempt("first", "m", "was unreachable", None, 1_790_000_000.5, 2_000.0)
    of = opened(1, silence=Silence(1000.0, 40_000, billed=True), attempts=(failed,))
    progress = Progress(of.exchange_id, 1, 99, 1, 1_790_000_003.0, Evidence(), None, waited_at=1_790_000_010.5)
    [record] = recover([of], SimpleNamespace(read=lambda _: progress), Estimator())  # type: ignore[arg-type]
    assert record.reading.usage.completion_tokens == 8_000
    assert record.duration_ms == 10_250.0


@pytest.mark.parametrize("burst", [1, 4])
def test_comments_of_a_provider_are_no_events(tmp_path: Path, burst: int) -> None:
    """Some send them while they think, or with each event: a kill after them makes no more of what was noted."""
    with slots(tmp_path) as slot:
        relay = relay_of(OPENAI_CHAT, slot)
        for number in range(100):
            pieces = [chat(f" {number}", None), *[b": PROCESSING\n\n"] * 3]
            for at in range(0, 4, burst):
                relay.piece(b"".join(pieces[at : at + burst]))
        relay._fold()
        after = killed(slot, opened(1), ESTIMATORS["cold"]).usage.completion_tokens
        left = closed(relay, opened(1), ESTIMATORS["cold"], Outcome.CLIENT_LEFT).usage.completion_tokens
    assert after == left == 101


def test_what_the_request_tells_is_known_after_a_kill(tmp_path: Path) -> None:
    """Speech has no tokens to see: its characters are those of the request."""
    asked = Usage(characters=4000, completion_tokens=900, audio_completion_tokens=900)
    of = opened(1, asked=asked)
    with slots(tmp_path) as slot:
        slot.note(Evidence(), None, 0)
        slot.deliver(0, 90_000)
        found = killed(slot, of, ESTIMATORS["cold"])
    assert (found.usage.characters, found.usage.audio_completion_tokens) == (4000, 900)
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (17, 900)


def test_an_early_usage_is_no_count_of_what_followed(tmp_path: Path) -> None:
    """Some say at the first event what the prompt has, and 0 tokens of completion."""
    with slots(tmp_path) as slot:
        relay = relay_of(OPENAI_CHAT, slot)
        relay.piece(said(chunk({"role": "assistant", "content": ""}, usage=usage(9, 0, 9))))
        for number in range(400):
            relay.piece(chat(f" {number}", None))
        relay._fold()
        after = killed(slot, opened(1), ESTIMATORS["cold"])
        for outcome in ENDS:
            assert numbers(closed(relay, opened(1), ESTIMATORS["cold"], outcome)) == numbers(after)
    assert after.source == "estimated"
    assert (after.usage.prompt_tokens, after.usage.completion_tokens) == (9, 401)
    assert after.usage.total_tokens == 410


@pytest.mark.parametrize("name", DIALECTS)
@given(events=EVENTS, more=st.lists(st.tuples(st.integers(0, 40), st.sampled_from([*CHAT_ONLY, UNREAD])), max_size=6))
def test_a_text_that_is_held_is_what_the_counters_count(
    name: str, events: list[tuple[str, int | None]], more: list[tuple[int, bytes]]
) -> None:
    """Also that which nobody reads: ends with the text know more of the same answer, not another one."""
    dialect, say = DIALECTS[name]
    pieces = [say(text, counted) for text, counted in events]
    for at, one in more if dialect is OPENAI_CHAT else ():
        pieces.insert(at, one)
    framing = dialect.framings[0]
    held = AnswerText(TextRoom(answer_bytes_max=1 << 20, bytes_max=1 << 20))
    meters = dialect.stream_meter(framing), dialect.stream_meter(framing, held=held)
    for meter in meters:
        for piece in pieces:
            meter.feed(piece)
    alone, beside = (meter.close() for meter in meters)
    assert beside.evidence == alone.evidence
    if beside.held is not None and not held.is_lost:
        text, reasoning, calls = map(len, held.texts())
        seen = beside.evidence
        assert (text + reasoning, calls) == (seen.chars - seen.tool_chars, seen.tool_chars)
        assert reasoning == seen.reasoning_chars

"""Lines of results as they come, what they say, and what lines may cost."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.billing.batch import BatchInput, Share, batch_quote
from proxy.billing.pricing.prices import charge, configured
from proxy.billing.record import BillableParts, Price, Rates
from proxy.foundation import slices
from proxy.gateway.batches import asking
from proxy.gateway.batches.asking import lines_in
from proxy.gateway.batches.lines_in import name_digest
from proxy.gateway.upstream.failures import UpstreamFailedError
from proxy.metering.file_ids import file_ids, may_name_files
from proxy.metering.stored_objects import ANTHROPIC_BATCHES, OPENAI_BATCHES
from proxy.metering.stored_objects.api import ResultLine
from proxy.metering.usage import ServedAs, Usage
from tests.support.turns import measured_turns


class Body:
    """An answer whose body comes in these pieces. `broken`: without its end."""

    coding = ""

    def __init__(self, *pieces: bytes, broken: bool = False) -> None:
        self._pieces = pieces
        self._broken = broken
        self.paused = 0
        self.resumed = asyncio.Event()

    def relay_to(self, sink: Any) -> None:
        async def deliver() -> None:
            for piece in self._pieces:
                self.resumed.clear()
                sink.piece(piece)
                if self.paused:
                    await self.resumed.wait()
                    self.paused = 0
                await asyncio.sleep(0)
            sink.upstream_error() if self._broken else sink.complete()

        self.task = asyncio.get_running_loop().create_task(deliver())

    def pause_reading(self) -> None:
        self.paused += 1

    def resume_reading(self) -> None:
        self.resumed.set()


async def read(body: Body) -> list[tuple[bytes, int]]:
    made: Any = body
    return [one async for one in lines_in(made, idle_s=5.0)]


TEXT = b'{"a":1}\n\n{"b":"' + "é\u2028".encode() + b'"}\r\n{"c":3}'
LINES = [b'{"a":1}', b'{"b":"' + "é\u2028".encode() + b'"}\r', b'{"c":3}']


@pytest.mark.parametrize("at", range(len(TEXT)))
async def test_lines_are_the_same_wherever_they_are_cut(at: int) -> None:
    assert await read(Body(TEXT[:at], TEXT[at:])) == [(line, len(line)) for line in LINES]
    assert await read(Body(*(bytes([byte]) for byte in TEXT))) == [(line, len(line)) for line in LINES]


@pytest.mark.parametrize("line", [b"\n", b"\r\n", b" "])
async def test_blank_lines_are_one_step(line: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[None] = []

    async def step(_: slices.Slice) -> None:
        steps.append(None)

    monkeypatch.setattr(slices.Slice, "give_way", step)
    assert await read(Body(line * 10_000)) == []
    assert len(steps) <= 1


@pytest.mark.usefixtures("each_step_is_a_turn")
@pytest.mark.parametrize("line", [b"7\n", b"7 \n\n"])
async def test_short_lines_give_way(line: bytes) -> None:
    async with measured_turns() as turns:
        assert len(await read(Body(line * 1_000))) == 1_000
    assert turns.count >= 1_000


async def test_a_line_that_is_too_long_is_read_to_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "LINE_BYTES_MAX", 10)
    monkeypatch.setattr(asking, "AHEAD_BYTES_MAX", 8)
    pieces = [b"x" * 7] * 5
    assert await read(Body(b"a\n", *pieces, b"y\nb\n")) == [(b"a", 1), (b"x" * 10, 36), (b"b", 1)]


async def test_a_body_that_breaks_off_has_no_last_line() -> None:
    with pytest.raises(UpstreamFailedError):
        await read(Body(b"a\nb", broken=True))


async def test_a_silent_provider_is_not_waited_for() -> None:
    body: Any = Body(b"a\n")
    body.relay_to = lambda sink: sink.piece(b"a\n")
    with pytest.raises(TimeoutError):
        _ = [one async for one in lines_in(body, idle_s=0.01)]


def openai_line(**members: Any) -> bytes:
    return json.dumps({"id": "batch_req_1", "custom_id": "a", "response": None, "error": None} | members).encode()


@pytest.mark.parametrize(
    ("line", "read"),
    [
        (openai_line(response={"status_code": 200, "body": {"x": 1}}), ResultLine("a", b'{"x": 1}')),
        (openai_line(response={"status_code": 201, "body": {}}), ResultLine("a", b"{}")),
        (openai_line(response={"status_code": 400, "body": {"usage": {}}}), ResultLine("a", None, "http_400")),
        (openai_line(response={"status_code": 200, "body": None}), ResultLine("a", None, "http_200")),
        (openai_line(error={"code": "batch_expired", "message": "m"}), ResultLine("a", None, "batch_expired")),
        (openai_line(), ResultLine("a", None, "no_answer")),
        (openai_line(custom_id="\0"), ResultLine(None, None, "no_answer")),
        (openai_line(custom_id="x" * 300), ResultLine(None, None, "no_answer")),
        (b'{"custom_id": 7}', ResultLine(None, b'{"custom_id": 7}', "unreadable_line")),
        (b"\xff", ResultLine(None, b"\xff", "unreadable_line")),
    ],
)
def test_lines_of_openai(line: bytes, read: ResultLine) -> None:
    assert OPENAI_BATCHES.line(line) == read


@pytest.mark.parametrize(
    ("line", "read"),
    [
        (b'{"custom_id":"a","result":{"type":"succeeded","message":{"x":1}}}', ResultLine("a", b'{"x":1}')),
        (b'{"custom_id":"a","result":{"type":"expired"}}', ResultLine("a", None, "expired")),
        (b'{"custom_id":"a","result":{"type":"errored","error":{}}}', ResultLine("a", None, "errored")),
        (b'{"custom_id":"a"}', ResultLine("a", None, "no_answer")),
        (b"[]", ResultLine(None, b"[]", "unreadable_line")),
    ],
)
def test_lines_of_anthropic(line: bytes, read: ResultLine) -> None:
    assert ANTHROPIC_BATCHES.line(line) == read


def test_every_name_has_a_digest_of_its_own() -> None:
    """Of names in results, too, which a provider may damage."""
    assert len(set(map(name_digest, ("", "a", "ä", "\ud800", "\udfff", "?", "\ufffd")))) == 7


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"id": 7}', b'{"id": "a b", "status": "x", "created_at": 1}'])
def test_what_is_no_batch(body: bytes) -> None:
    assert OPENAI_BATCHES.status(body) is None
    assert ANTHROPIC_BATCHES.status(body) is None


def test_only_the_place_of_the_results_is_changed() -> None:
    body = b'{ "id":"msgbatch_1", "results_url": "https://api.anthropic.com/v1/x" , "more" : 1.0}'
    assert ANTHROPIC_BATCHES.shown(body) == body.replace(
        b"https://api.anthropic.com/v1/x", b"/v1/messages/batches/msgbatch_1/results"
    )
    assert ANTHROPIC_BATCHES.shown(b'{"id":"a","results_url":null}') == b'{"id":"a","results_url":null}'


def said(*parts: Any) -> dict[str, Any]:
    """A request with these parts in its one message."""
    return {"input": [{"content": [*parts]}]}


def using(tool: Any) -> dict[str, Any]:
    """A request with this tool."""
    return {"tools": [tool]}


FILE = {"type": "file", "file_id": "f"}
SCREEN = {"type": "computer_screenshot", "file_id": "f"}
PROPERTIES = {"type": {"type": "string"}, "file_id": {"type": "string"}, "file_ids": {"type": "array"}}
CITED = {"type": "output_text", "annotations": [{"type": "file_citation", "file_id": "f"}]}
NAMED: dict[str, tuple[Any, set[str]]] = {
    "a chat": (said({"type": "file", "file": {"file_id": "f"}}), {"f"}),
    "parts": (said({"type": "input_file", "file_id": "f"}, {"type": "input_image", "file_id": "g"}), {"f", "g"}),
    "a container": (using({"container": {"type": "auto", "file_ids": ["f", "g"]}}), {"f", "g"}),
    "a mask": (using({"type": "image_generation", "input_image_mask": {"file_id": "f"}}), {"f"}),
    "a screen": ({"input": [{"type": "computer_call_output", "output": SCREEN}]}, {"f"}),
    "a document": (said({"type": "document", "source": FILE}), {"f"}),
    "a result": (said({"type": "tool_result", "content": [{"type": "image", "source": FILE}]}), {"f"}),
    "an upload": (said({"type": "container_upload", "file_id": "f"}), {"f"}),
    "a call": (said({"type": "tool_use", "input": FILE}), set()),
    "a schema": (using({"function": {"parameters": {"properties": PROPERTIES}}}), set()),
    "a citation": (said(CITED), set()),
    "an argument": ({"messages": [{"tool_calls": [{"function": {"arguments": '{"file_id":"f"}'}}]}]}, set()),
}


@pytest.mark.parametrize("where", NAMED)
def test_the_files_that_a_request_names(where: str) -> None:
    document, ids = NAMED[where]
    assert file_ids(document) == ids
    assert may_name_files(json.dumps(document).encode())


NAMES = st.sampled_from(["type", "file", "file_id", "file_ids", "input", "input_image_mask", "content"])
ANY = st.recursive(
    st.none() | st.integers() | st.sampled_from(["file", "tool_use", "f"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
)


@given(st.dictionaries(NAMES, ANY))
def test_any_document_can_be_read(document: dict[str, Any]) -> None:
    assert file_ids(document) <= {"file", "tool_use", "f"}


@given(st.sampled_from("file_id"), st.sampled_from(["%04x", "%04X"]))
def test_an_escaped_name_is_a_name(letter: str, form: str) -> None:
    escaped = '{"file_id":"f"}'.replace(letter, "\\u" + form % ord(letter), 1)
    assert json.loads(escaped) == {"file_id": "f"}
    assert may_name_files(escaped.encode())


def test_most_requests_name_none() -> None:
    assert not may_name_files(json.dumps({"messages": [{"content": "über file and id \u2028"}]}).encode())


RATES = st.builds(Rates, *[st.integers(0, 10**7)] * 3, request=st.sampled_from([None, 0, 7]))
PRICES = st.builds(
    lambda first, second, batch, by: configured(
        first,
        Rates(second.input, second.cached_input, second.output, above_prompt_tokens=100),
        service_tiers={"batch": (batch,)} if batch else {},
        multipliers={"tier:batch": by} if by else {},
    ),
    RATES,
    RATES,
    st.none() | RATES,
    st.sampled_from([None, "0.5", "1/3", "2"]),
)


@given(
    PRICES, st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300), st.integers(0, 100)), min_size=1, max_size=5)
)
def test_a_quote_is_never_below_what_lines_cost_within_their_limits(
    price: Price, lines: list[tuple[int, int, int]]
) -> None:
    share = Share(
        "m", "m", len(lines), sum(one[0] for one in lines), sum(one[1] for one in lines), max(one[0] for one in lines)
    )
    charged = sum(
        charge(
            price,
            Usage(prompt_tokens=prompt, cached_tokens=prompt * percent // 100, completion_tokens=completion),
            BillableParts.EVERYTHING,
            ServedAs("batch"),
        )
        for prompt, completion, percent in lines
    )
    assert charged <= batch_quote([(share, price)], nusd_max=1 << 60)


def test_a_quote_is_about_what_lines_cost() -> None:
    price = configured(Rates(2_000_000_000, 1_000_000_000, 8_000_000_000), multipliers={"tier:batch": "0.5"})
    share = Share("m", "m", 1_000, 50_000, 100_000, 50)
    assert batch_quote([(share, price)], nusd_max=1 << 60) == 50_000_000 + 400_000_000 + 1_000
    assert batch_quote([(share, price)], nusd_max=10) == 10_000
    assert batch_quote([(share, None)], nusd_max=10) == 0
    assert BatchInput("/v1/x", (share, share), "").lines == 2_000

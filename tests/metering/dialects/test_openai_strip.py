"""The stripper: takes out the injected usage event, leaves every other byte, holds back no other event."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.metering.dialects.openai.strip import HOLD_BYTES_MAX, UsageStripper, is_usage_event
from proxy.metering.wire.sse import event_of, quiet_events
from tests.metering.fixtures import DONE, USAGE_EVENT, chunk, cut_at, cuts, in_pieces, say, sse, usage
from tests.support.examples import examples
from tests.support.linear import assert_linear

USAGE = json.dumps(USAGE_EVENT)


def stripped(pieces: list[bytes]) -> bytes:
    stripper = UsageStripper()
    return b"".join(stripper.feed(piece) for piece in pieces) + stripper.close()


SAYS = rb'"delta":\{"|"choices":\[\{"text"'


def model(body: bytes) -> bytes:
    """The whole body at once: blocks and the blank lines behind them; usage events are left out."""
    blocks = re.split(rb"((?:\r\n|\n|\r(?!\n)){2,})", body)
    out = b""
    for at in range(0, len(blocks), 2):
        block, blank = blocks[at], blocks[at + 1] if at + 1 < len(blocks) else b""
        lines = block.replace(b"\r\n", b"\n").replace(b"\r", b"\n").strip(b"\n")
        event = event_of(lines)
        if event is not None and event[1] != b"error" and is_usage_event(event[0]) and not re.search(SAYS, block):
            two = re.match(rb"(?:\r\n|\n|\r){0,2}", blank)
            assert two is not None
            out += block[: len(block) - len(block.lstrip(b"\r\n"))] + blank[two.end() :]
        else:
            out += block + blank
    return out


@pytest.mark.parametrize(
    ("text", "is_it"),
    [
        (USAGE, True),
        ('{"usage":{"total_tokens":1},"choices":[]}', True),
        ('{ "choices" : [ ] , "usage" : { } }', True),
        ('{"choices":[],"usage":{"a":{"choices":[1]}},"id":"\\"choices\\":[1]"}', True),
        ('{"choices":[],"usage":null}', False),
        ('{"choices":[],"prompt_filter_results":[{"usage":{}}]}', False),
        ('{"choices":[{"delta":{"content":"x"}}],"usage":{"total_tokens":1}}', False),
        # LiteLLM's, and one that would be read so.
        ('{"choices":[{"index":0,"delta":{}}],"usage":{"total_tokens":1}}', True),
        ('{"choices":[{"index":0,"delta":{}},{"index":1,"delta":{}}],"usage":{"total_tokens":1}}', True),
        ('{"choices": [{"index": 0, "delta": {"content": null}, "finish_reason": null}], "usage": {"a": 1}}', True),
        ('{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"usage":{"total_tokens":1}}', False),
        ('{"choices":[{"index":0,"delta":{}},{"index":1,"delta":{"content":"x"}}],"usage":{"total_tokens":1}}', False),
        ('{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}],"usage":{"total_tokens":1}}', False),
        ('{"choices":[{"text":"x"}],"usage":{"total_tokens":1}}', False),
        ('{"choices":["x"],"usage":{"total_tokens":1}}', False),
        # Servers that send it without choices: openai's SDK cannot read such a chunk.
        ('{"choices":null,"usage":{"total_tokens":1}}', True),
        ('{"usage":{"total_tokens":1}}', True),
        ('{"id":"c","object":"text_completion","created":1,"model":"m","usage":{"total_tokens":1}}', True),
        ('{"id":"c","usage":{"total_tokens":1},"error":null,"citations":[],"x_groq":{"id":"r"}}', True),
        ('{"usage":{"total_tokens":1},"timings":{"predicted_ms":2.5},"provider":"P"}', True),
        # What may be more than that.
        ('{"usage":{"total_tokens":1},"error":{"message":"overloaded"}}', False),
        ('{"choices":null,"usage":{"total_tokens":1},"error":"overloaded"}', False),
        ('{"choices":[],"usage":{"total_tokens":1},"error":{"message":"overloaded"}}', False),
        ('{"usage":{"total_tokens":1},"message":{"content":"x"}}', False),
        ('{"usage":{"total_tokens":1},"new":1}', False),
        ('{"choices":[],"usage":{"total_tokens":1},"citations":["http://x.test/"]}', False),
        ('{"choices":[],"usage":{"total_tokens":1},"type":"chat.completion.chunk"}', True),
        # A number is no output beside a list of choices, which is the documented form.
        ('{"choices":[],"usage":{"total_tokens":1},"seed":17,"is_cached":true,"queue_s":0.25}', True),
        ('{"choices":null,"usage":{"total_tokens":1},"seed":17}', False),
        ('{"usage":{"total_tokens":1},"mess\\u0061ge":"x"}', False),
        ('{"usage":{"total_tokens":1},"choi\\u0063es":[{"message":{"content":"x"}}]}', False),
        ('{"usage":{"total_tokens":1},"model":"m","model":"n","choices":[],"choices":null}', False),
        ('{"choices":{},"usage":{"total_tokens":1}}', False),
        ('{"choices":"","usage":{"total_tokens":1}}', False),
        ('{"usage":null}', False),
        ('{"usage":5}', False),
        ('{"choices":[],"usage":"{}"}', False),
        ('{"choices":[],"usage":[{}]}', False),
        ('[{"choices":[],"usage":{}}]', False),
        ('{"choices":[],"usage":{}', False),
        ('{"choices":[{}],"choices":[],"usage":{}}', False),
        ('{"choices":[],"usage":{},"usage":{}}', False),
        ('{"choices":[],"us\\u0061ge":{}}', False),
        ('"choices":[],"usage":{}', False),
        ("[DONE]", False),
        ("", False),
    ],
)
def test_what_the_usage_event_is(text: str, is_it: bool) -> None:
    assert is_usage_event(text.encode()) is is_it
    body = sse(chunk(), text, DONE)
    for pieces in cuts(body):
        assert (stripped(pieces) != body) is is_it


def test_a_usage_in_an_event_named_error_stays() -> None:
    body = b"event: error\n" + sse('{"usage":{"total_tokens":1}}', DONE)
    for pieces in cuts(body):
        assert stripped(pieces) == body


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize(
    "event", [USAGE, USAGE.replace(" ", "\ndata:  "), '{"choices": null, "usage": {"a": 1}}', '{"usage": {"a": 1}}']
)
def test_only_the_usage_event_goes_for_every_cut(end: str, event: str) -> None:
    before, after = sse(*say("a", "é\u2028"), end=end), sse(DONE, end=end)
    injected = f": note{end}data: {event.replace(chr(10), end)}{end}{end}".encode()
    body = before + injected + after
    for at in range(len(body)):
        assert stripped([body[:at], body[at:]]) == before + after
    assert stripped(in_pieces(body, 1)) == before + after


def test_an_event_with_text_is_not_held_back() -> None:
    stripper = UsageStripper()
    start = b'data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{'
    assert stripper.feed(start) == b""
    assert stripper.feed(b'"') == start + b'"'
    assert not stripper.idle
    assert stripper.feed(b'content":"x"}}]}\n') == b'content":"x"}}]}\n'
    assert stripper.feed(b"\ndata: [") == b"\n"
    assert stripper.feed(b"DONE]\n\n") == b"data: [DONE]\n\n"
    assert stripper.idle
    assert stripper.stripped == 0


@pytest.mark.parametrize("text", ["[DONE]", '{"choices":[],"usage":null}', '{"choices": [ {} ]}', USAGE])
def test_any_other_event_is_held_until_it_is_whole(text: str) -> None:
    stripper = UsageStripper()
    event = sse(text)
    assert b"".join(stripper.feed(event[at : at + 1]) for at in range(len(event) - 1)) == b""
    assert stripper.feed(event[-1:]) == (b"" if text == USAGE else event)
    assert stripper.idle


def test_idle_only_where_a_whole_event_may_pass_by() -> None:
    stripper = UsageStripper()
    assert stripper.idle
    body = sse(USAGE_EVENT, end="\r")
    assert stripper.feed(body) == b""
    assert not stripper.idle  # an LF may still belong to the stripped event
    assert stripper.feed(b"\ndata: x\n\n") == b"data: x\n\n"
    assert stripper.idle
    assert stripper.stripped == 1


def test_an_unterminated_end_is_released_unless_it_is_the_usage_event() -> None:
    assert stripped([b"data: a\n\n", b'data: {"choices":[]']) == b'data: a\n\ndata: {"choices":[]'
    assert stripped([b"data: a\n\ndata: " + USAGE.encode()]) == b"data: a\n\n"


def test_a_long_event_is_let_go_and_never_stripped() -> None:
    padded = USAGE[:-1] + ',"obfuscation":"' + "p" * HOLD_BYTES_MAX + '"}'
    body = sse(padded, DONE)
    for size in (len(body), 1, 4096):
        assert stripped(in_pieces(body, size)) == body
    stripper = UsageStripper()
    held = most = 0
    for at in range(0, len(body), 512):
        held += len(body[at : at + 512]) - len(stripper.feed(body[at : at + 512]))
        most = max(most, held)
    assert most <= HOLD_BYTES_MAX + 512


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("over", [0, 1])
def test_the_longest_event_that_is_stripped_is_so_at_every_cut(end: str, over: int) -> None:
    pad = HOLD_BYTES_MAX + over - len('data: ,"obfuscation":""') - len(USAGE)
    body = sse(USAGE[:-1] + f',"obfuscation":"{"p" * pad}"}}', end=end)
    for at in range(len(body) - 6, len(body) + 1):
        assert stripped([body[:at], body[at:]]) == (body if over else b"")


@pytest.mark.parametrize(
    ("piece", "events"),
    [
        (sse(chunk({"content": "hi"})), 1),
        (sse(chunk({"content": "hi"}, usage=None), chunk({"content": "ho"}, usage=None)), 2),
        (sse('{"usage":null,"choices":[{}]}'), 1),
        (sse('{"x":"\\"usage\\":{","choices":[{}]}'), 1),
        (b"event: a\ndata: b\n\nevent: a\ndata: c\n\n", 2),
        (b"data: b\r\n\r\ndata: c\r\n\r\n", 2),
        (b"data: b\n\nevent: c\r\ndata: c\r\n\r\n", 2),
        (b"data: b\r\n\r\ndata: c\r\n", 0),
        (b'event: a\r\ndata: {"usage":{}}\r\n\r\n', 0),
        (sse(USAGE_EVENT), 0),
        (sse(chunk(usage=usage())), 0),
        (sse(chunk(usage=None), USAGE_EVENT), 0),
        (b'data: {"usage":\ndata: {},"choices":[]}\n\n', 0),
        (b'data: {"usage"\ndata: :{},"choices":[]}\n\n', 0),
        (b"data: a\n", 0),
        (b": c\n\n", 0),
    ],
)
def test_quiet_pieces(piece: bytes, events: int) -> None:
    assert quiet_events(piece) == events
    if events:
        assert stripped([piece]) == piece


PARTS = st.sampled_from(
    [
        USAGE,
        '{"usage":{},"choices":[]}',
        '{"choices":[],"usage":null}',
        '{"usage":{}}',
        '{"choices":null,"usage":{}}',
        '{"usage":{},"error":{"a":1}}',
        '{"choices":[{"delta":{"content":"é\u2028"}}],"usage":null}',
        '{"choices":[],"choices":[{}],"usage":{}}',
        '{"choices":[{"index":0,"delta":{}}],"usage":{}}',
        '{"choices":[{"text":""}],"usage":{}}',
        '{"choices":[{}],"choices":[],"usage":{}}',
        '{"choices":[],"usage":{"a":{"choices":[{}]}}}',
        '{"choices":[],"usage":{}} {',
        "[DONE]",
        '{"a":"\\\\"}',
        '{"choices":[],\ndata: "usage":{}}',
        '{"choices":[],"usa\ndata:ge":{}}',
        '{"\\u0075sage":1,"choices":[],"usage":{}}',
        "{",
        "}",
        '"',
    ]
)
BLOCKS = st.builds(
    lambda before, text, end, ends: (before + "data: " + text + "\n" * ends).replace("\n", end),
    st.sampled_from(["", ": c\n", "event: x\n", "\n", "data\n", ': "delta":{"\n']),
    PARTS,
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.sampled_from([1, 2, 2, 2, 3, 5]),
)


@settings(max_examples=examples(300))
@given(st.lists(BLOCKS, max_size=6), st.lists(st.integers(0, 500), max_size=10))
def test_any_stream_in_any_cut_comes_out_as_the_model_says(blocks: list[str], cut: list[int]) -> None:
    body = "".join(blocks).encode()
    expected = model(body)
    assert stripped([body]) == expected
    assert stripped(cut_at(body, cut)) == expected
    assert stripped(in_pieces(body, 1)) == expected


@given(st.lists(BLOCKS, max_size=6))
def test_no_event_waits_for_the_next_one(blocks: list[str]) -> None:
    body = "".join(blocks).encode()
    stripper, out = UsageStripper(), b""
    for at in range(len(body)):
        out += stripper.feed(body[at : at + 1])
        assert out == model(body[: at + 1]) or not stripper.idle
        whole = [end.end() for end in re.finditer(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r)", body[: at + 1])]
        assert out.startswith(model(body[: whole[-1]]) if whole else b"")


@given(st.binary(max_size=200), st.integers(1, 9))
def test_any_bytes_come_out_as_they_went_in(body: bytes, size: int) -> None:
    assert stripped(in_pieces(body, size)) == body


def test_one_byte_pieces_take_linear_time() -> None:
    def strip(size: int) -> None:
        body = b'data: {"pad":"' + b"z" * size
        stripper = UsageStripper()
        assert b"".join(stripper.feed(body[at : at + 1]) for at in range(len(body))) == b""
        assert stripper.close() == body

    assert_linear(strip, HOLD_BYTES_MAX // 5)

"""The cost in an answer: it stands in the usage object, and no other byte changes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.demo.shapes import LANGUAGES, GeneratedAnswer, whole, words
from proxy.metering.answer_cost.edit import Cost, event_with_cost, with_cost
from proxy.metering.answer_cost.editors import ANSWER_PATH, EventCostEditor, JsonCostEditor
from proxy.metering.dialect import AnswerEditor, Dialect
from proxy.metering.dialects import DIALECTS
from proxy.metering.dialects.anthropic.messages import ANTHROPIC_MESSAGES
from proxy.metering.dialects.openai.chat import OPENAI_CHAT
from proxy.metering.dialects.openai_responses.responses import OPENAI_RESPONSES
from proxy.metering.meter import JSON_BYTES_MAX
from proxy.metering.metered import BodyMeter, Metered
from proxy.metering.request import cost_asked
from proxy.metering.wire.sse import EVENT_BYTES_MAX, quiet_events
from tests.gateway.dialects.languages import MESSAGES, RESPONSES
from tests.gateway.streams import told as events_told
from tests.metering.corpus.corpus import NEEDS_CORPUS, records_in
from tests.metering.fixtures import DONE, USAGE_EVENT, chunk, cuts, in_pieces, say, sse, usage, wrong_field

COST = Cost(b"0.000000012", b'{"told":true}')
TOLD = b'"cost":0.000000012,"cost_details":{"told":true}'
# As `telling` writes it after another member.
ADDED = re.compile(rb',"cost":(\d+),"cost_details":\{"told":true\}')


def known() -> Cost | None:
    return COST


def unknown() -> Cost | None:
    return None


# -- one text ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'{"usage":{"a":1}}', b'{"usage":{"a":1,%b}}'),
        (b'{"usage":{}}', b'{"usage":{%b}}'),
        (b'{"usage":{ }, "a":[{}]}', b'{"usage":{%b }, "a":[{}]}'),
        (
            b' {\n  "usage": {\n    "a": 1\n  },\n  "b": "}"\n}\n',
            b' {\n  "usage": {\n    "a": 1,%b\n  },\n  "b": "}"\n}\n',
        ),
        (
            b'{"a":"\\"usage\\":{}","usage":{"b":{"c":[1,"]}"]}}}',
            b'{"a":"\\"usage\\":{}","usage":{"b":{"c":[1,"]}"]},%b}}',
        ),
        (b'{"a":{"usage":{"b":1}},"usage":{"b":1}}', b'{"a":{"usage":{"b":1}},"usage":{"b":1,%b}}'),
        (b'{"usage":{"a":1},"usage":{"a":2}}', b'{"usage":{"a":1},"usage":{"a":2,%b}}'),
        ('{"é":"\u2028","usage":{"ü":"é"}}'.encode(), '{"é":"\u2028","usage":{"ü":"é",%b}}'.encode()),
    ],
)
def test_the_cost_is_the_last_member_of_the_usage(before: bytes, after: bytes) -> None:
    assert with_cost(before, ANSWER_PATH, known) == after.replace(b"%b", TOLD)
    assert with_cost(before, ANSWER_PATH, unknown) == before


@pytest.mark.parametrize(
    ("before", "told", "not_told"),
    [
        (b'{"cost":9,"a":1}', b'{"cost":0.000000012,"a":1,"cost_details":{"told":true}}', b'{"cost":null,"a":1}'),
        (
            b'{"cost_details":{"x":[1]},"cost": 9 }',
            b'{"cost_details":{"told":true},"cost": 0.000000012 }',
            b'{"cost_details":null,"cost": null }',
        ),
    ],
)
def test_what_a_provider_states_is_replaced(before: bytes, told: bytes, not_told: bytes) -> None:
    assert with_cost(b'{"usage":%b}' % before, ANSWER_PATH, known) == b'{"usage":%b}' % told
    assert with_cost(b'{"usage":%b}' % before, ANSWER_PATH, unknown) == b'{"usage":%b}' % not_told


@pytest.mark.parametrize(
    "text",
    [
        b"", b"usage", b'"usage"', b'{"usage":null}', b'{"usage":[]}', b'{"usage":7}', b'["usage",{}]', b'{"usage":{}',
        b'{"usage":{"a":NaN}}', b'{"usage":{}}}', b'{"usage":{"a":01}}', b'{"other":{"usage":{}}}', b'{"usage" {}}',
        b'{"usage":{},"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", b'{"usage":"{}"}',
    ],
)  # fmt: skip
def test_whatever_is_no_json_or_has_no_usage_object_stays(text: bytes) -> None:
    def never() -> Cost | None:
        raise AssertionError("nothing asks for it")

    assert with_cost(text, ANSWER_PATH, never) == text
    assert event_with_cost(b"data: " + text + b"\n\n", ANSWER_PATH, never) == b"data: " + text + b"\n\n"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=12,
)
NAMES = st.sampled_from(["usage", "cost", "a", 'b"', "\\", "é"])


@given(document=st.dictionaries(NAMES, VALUES), used=st.dictionaries(NAMES, VALUES), data=st.data())
def test_any_document_means_the_same_but_for_its_cost(
    document: dict[str, Any], used: dict[str, Any], data: st.DataObject
) -> None:
    document |= {"usage": used}
    indent = data.draw(st.sampled_from([None, 2]))
    text = json.dumps(document, indent=indent, ensure_ascii=data.draw(st.booleans())).encode("utf-8", "surrogatepass")
    edited = json.loads(with_cost(text, ANSWER_PATH, known))
    expected = document | {"usage": used | {"cost": 0.000000012, "cost_details": {"told": True}}}
    assert edited == expected
    assert list(edited) == list(document)


@pytest.mark.parametrize(
    ("event", "edited"),
    [
        (b'data: {"usage":{"a":1}}\n\n', b'data: {"usage":{"a":1,%b}}\n\n'),
        (b'event: x\r\ndata:{"usage":{"a":1}}\r\n\r\n', b'event: x\r\ndata:{"usage":{"a":1,%b}}\r\n\r\n'),
        (b': "usage"\rdata: {"usage":{}}\rid: 7\r\r', b': "usage"\rdata: {"usage":{%b}}\rid: 7\r\r'),
        (b'data: {"usage":\ndata: {"a":1}}\n\n', b'data: {"usage":\ndata: {"a":1}}\n\n'),
        (b'metadata: {"usage":{}}\n\n', b'metadata: {"usage":{}}\n\n'),
    ],
)
def test_only_the_data_line_of_an_event_changes(event: bytes, edited: bytes) -> None:
    assert event_with_cost(event, ANSWER_PATH, known) == edited.replace(b"%b", TOLD)


# -- a stream ----------------------------------------------------------------------------------------------------


def price(metered: Metered | None) -> int | None:
    if metered is None or metered.usage is None:
        return None
    return 3 * (metered.usage.prompt_tokens or 0) + 5 * (metered.usage.completion_tokens or 0)


def relayed(
    dialect: Dialect, pieces: list[bytes], *, streamed: bool = True, answers: int = 1
) -> tuple[bytes, BodyMeter]:
    """What the client gets; the number is `price` of what was read then."""
    meter: BodyMeter = dialect.stream_meter() if streamed else dialect.plain_meter()

    def cost() -> Cost | None:
        nusd = price(meter.final_so_far(answers))
        return None if nusd is None else Cost(b"%d" % nusd, b'{"told":true}')

    editor: AnswerEditor = EventCostEditor(dialect.cost_path, cost) if streamed else JsonCostEditor(cost)
    out: list[bytes] = []
    for piece in pieces:
        if editor.idle and meter.at_boundary and quiet_events(piece):
            meter.feed(piece)
            out.append(piece)
            continue
        for part in editor.pieces(piece):
            meter.feed(part)
            out.append(editor.feed(part))
        meter.fold()
        assert not meter.at_boundary or editor.idle, "a later event could overtake what is held"
    return b"".join([*out, editor.close()]), meter


def told(out: bytes) -> list[int]:
    return [int(found[1]) for found in _NUMBER.finditer(out)]


_NUMBER = re.compile(rb'"cost":\s*(\d+)[,\s}]')


RUNNING = [
    *say("It", usage=usage(9, 1, 10)), *say(" rains", usage=usage(9, 2, 11)),
    chunk(finish="stop", usage=usage(9, 3, 12)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "numbers"),
    [
        (sse(*say("It", " rains"), chunk(finish="stop"), USAGE_EVENT, DONE), [42]),
        (sse(*say("It", usage=None), chunk(finish="stop", usage=None), USAGE_EVENT, DONE, end="\r\n"), [42]),
        (sse(*say("It"), chunk(finish="stop", usage=usage()), DONE), [42]),
        (sse(*RUNNING, DONE), [42]),
        (sse(*RUNNING, USAGE_EVENT, DONE), [42, 42]),
        (sse(*say("It", usage=usage(9, 1, 10)), DONE), []),
        (sse(*say("It"), chunk(finish="stop"), DONE), []),
        (sse(*say("It"), chunk(finish="stop"), USAGE_EVENT | {"usage": {"prompt_tokens": -7}}, DONE), []),
        (b"\xef\xbb\xbf: hello\n\n" + sse(*say("It"), chunk(finish="stop"), USAGE_EVENT, DONE), [42]),
        (sse(*say("It"), chunk(finish="stop"), USAGE_EVENT).removesuffix(b"\n"), []),
    ],
    ids=[
        "usage event", "CR LF and null", "in the last chunk", "running", "running and usage event", "no end",
        "no usage", "invalid usage", "marks and comments", "unfinished",
    ],
)  # fmt: skip
def test_the_cost_is_told_where_the_count_is_final_at_every_cut(body: bytes, numbers: list[int]) -> None:
    for pieces in cuts(body):
        out, _ = relayed(OPENAI_CHAT, pieces)
        assert told(out) == numbers
        assert ADDED.sub(b"", out) == body


def test_a_running_count_is_not_final_while_other_answers_may_go_on() -> None:
    body = sse(*RUNNING, *say(" there", index=1, usage=usage(9, 4, 13)), USAGE_EVENT | {"usage": usage(9, 5, 14)}, DONE)
    out, _ = relayed(OPENAI_CHAT, [body], answers=2)
    assert told(out) == [52]


def test_an_event_that_is_too_long_is_passed_on_as_it_is() -> None:
    long = sse(*say("x" * EVENT_BYTES_MAX, usage=usage()))
    body = long + sse(chunk(finish="stop"), USAGE_EVENT, DONE)
    for size in (len(body), 100_001):
        out, _ = relayed(OPENAI_CHAT, in_pieces(body, size))
        assert told(out) == [42]
        assert ADDED.sub(b"", out) == body


@pytest.mark.parametrize(
    "body", [b"x" * 300, b'data: {"usage":{"a":1}}\n\n', b'{"a":"' + b"x" * JSON_BYTES_MAX + b'"}']
)
def test_an_answer_that_is_no_document_or_too_long_is_not_held(body: bytes) -> None:
    editor = JsonCostEditor(known)
    assert editor.feed(body[:100]) + editor.feed(body[100:]) == body
    assert editor.close() == b""


# -- whole answers of every family, ours and recorded ------------------------------------------------------------

TELLING = [dialect for dialect in DIALECTS if dialect.cost_path]


def test_the_families_that_tell_costs() -> None:
    assert {dialect.name.partition(".")[0] for dialect in TELLING} == {
        "openai", "azure", "mistral", "anthropic", "vertex",
    }  # fmt: skip
    assert "anthropic.count_tokens" not in {dialect.name for dialect in TELLING}


def ours() -> Iterator[tuple[Dialect, bytes, bool]]:
    """The answers of the scripted provider and of the tests' languages."""
    for name, dialect in ((name, OPENAI_CHAT) for name in LANGUAGES):
        answer = GeneratedAnswer("chatcmpl-w2", 1_790_000_000, "weir-1", 21, words(7))
        yield dialect, b"".join(events_told(name, 7)), True
        yield dialect, whole(LANGUAGES[name], answer), False
    for dialect, language in ((ANTHROPIC_MESSAGES, MESSAGES), (OPENAI_RESPONSES, RESPONSES)):
        yield dialect, b"".join(language.events), True
        yield dialect, json.dumps(language.answer).encode(), False


def recorded() -> Iterator[tuple[Dialect, bytes, bool]]:
    """Every fifth, without the long ones."""
    by_name = {dialect.name: dialect for dialect in TELLING} | {"mistral.chat": OPENAI_CHAT}
    for name, dialect in by_name.items():
        for record in records_in("open.jsonl", name)[::5]:
            if record["status"] < 300 and len(record["body"]) < 60_000:
                yield dialect, record["body"].encode(), record["streamed"]


def check(dialect: Dialect, body: bytes, *, streamed: bool) -> int:
    """How many costs are told."""
    outs = {relayed(dialect, pieces, streamed=streamed)[0] for pieces in ([body], body.splitlines(keepends=True))}
    outs.add(relayed(dialect, [body[at : at + 97] for at in range(0, len(body), 97)], streamed=streamed)[0])
    (out,) = outs
    meter = relayed(dialect, [body], streamed=streamed)[1]
    if b'"cost"' not in body and b'"cost_details"' not in body:
        assert ADDED.sub(b"", out) == body
    assert without_costs(out) == without_costs(body)
    numbers = told(out)
    assert not numbers or numbers[-1] == price(meter.close())
    return len(numbers)


_COSTS = re.compile(rb'(,\s*)?"cost(_details)?":\s*(null|[0-9.e-]+|\{[^{}]*\})')


def without_costs(body: bytes) -> bytes:
    return _COSTS.sub(b"", body).replace(b"{,", b"{")


def test_our_own_answers_of_every_family() -> None:
    counted = [check(dialect, body, streamed=streamed) for dialect, body, streamed in ours()]
    assert sum(counted) >= len(counted) // 2


@pytest.mark.real
@NEEDS_CORPUS
def test_recorded_answers() -> None:
    counted = [check(dialect, body, streamed=streamed) for dialect, body, streamed in recorded()]
    assert sum(count > 0 for count in counted) > 0.9 * len(counted) > 50


# -- the request -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("document", "asked"),
    [({}, False), ({"usage": None}, False), ({"usage": {}}, False), ({"usage": {"include": True}}, True)],
)
def test_who_asks(document: dict[str, Any], asked: bool) -> None:
    assert cost_asked(document) is asked


@pytest.mark.parametrize(("wrong", "field"), [(True, "usage"), ([], "usage"), ({"include": 1}, "usage.include")])
def test_a_wrong_request_is_refused_by_the_name_of_its_field(wrong: object, field: str) -> None:
    assert wrong_field(cost_asked, {"usage": wrong}) == field

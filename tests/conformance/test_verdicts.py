"""The parts of `tokenweir conformance`: its cases, how bills are read, and verdicts on gateways that do wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import toktok
import yaml

from proxy.conformance.answers import CALL_TOKENS, PROMPT, PROMPT_TOKENS, TEXT, TOOL, Names
from proxy.conformance.bills import GatewayBill, UnreadableBill, read_bills, sums
from proxy.conformance.cases import CASES, IMAGE_MODEL, IMAGE_PRICES, MULTIPLIERS, PRICES, Case, selected
from proxy.conformance.client import Received
from proxy.conformance.provider import Served
from proxy.conformance.score import billed, relayed, result_of, truth_of
from proxy.conformance.wires import answer_text, documents
from proxy.demo.provider import LoggedExchange

EXAMPLE = Path(__file__).parents[2] / "examples" / "conformance" / "tokenweir.yaml"
NAMES = Names("id-1", "model-1")


@pytest.fixture(scope="module")
def tokens() -> Callable[[str], list[str]]:
    encoding = toktok._encoding("o200k_base")  # its counts are public; its tokens are "for tests"
    return lambda text: [encoding.decode([token]) for token in encoding.encode(text)]


def case(name: str) -> Case:
    [found] = selected([name])
    return found


def served(one: Case, *, generated: int | None = None, ended: str = "served", asked: bool = True) -> Served:
    """One exchange as the provider logs it; without `generated`, to its end."""
    scripted = one.build(NAMES)
    exchange = LoggedExchange(1, 1, "POST", "/", [], None, 0.0, ended=ended, duration_s=0.0)
    whole = sum(piece.tokens for piece in scripted.pieces)
    exchange.completion_tokens = whole if generated is None else generated
    return Served(exchange, scripted, asked)


# -- the cases ---------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_every_piece_of_text_is_one_token(tokens: Callable[[str], list[str]]) -> None:
    assert tokens("".join(TEXT)) == list(TEXT)
    assert tokens("".join(TOOL.fragments)) == list(TOOL.fragments)
    assert tokens(TOOL.name) == [TOOL.name]
    # What a chat of one message adds: https://github.com/openai/openai-cookbook, how to count tokens.
    assert len(tokens(PROMPT)) + 3 + 1 + 3 == PROMPT_TOKENS


def test_every_case_has_a_model_of_its_own() -> None:
    assert len({one.upstream_model for one in CASES}) == len({one.model for one in CASES}) == len(CASES)


@pytest.mark.thorough
@pytest.mark.parametrize("one", CASES, ids=lambda one: one.upstream_model)
def test_an_answer_reports_what_was_generated_for_it(one: Case, tokens: Callable[[str], list[str]]) -> None:
    scripted = one.build(NAMES)
    if scripted.usage is not None:
        assert sum(piece.tokens for piece in scripted.pieces) == scripted.usage.completion_tokens
        assert scripted.usage.prompt_tokens == PROMPT_TOKENS
    text = answer_text(scripted.body(with_usage=True))
    in_tokens = len(tokens(text))
    hidden = {"chat-reasoning-hidden": 60, "gemini-thoughts": 60}.get(one.upstream_model, 0)
    hidden += CALL_TOKENS + 1 if "tools" in one.name else 0  # its name is not said
    generated = sum(piece.tokens for piece in scripted.pieces)
    exempt = {"chat-cumulative-text", "chat-error-in-stream", "chat-two-choices"}
    assert one.upstream_model in exempt or in_tokens + hidden == generated


def test_the_example_has_the_prices_of_the_suite() -> None:
    models = yaml.safe_load(EXAMPLE.read_text())["models"]
    for name in {f"{one.wire.prefix}/*" for one in CASES}:
        price = dict(models[name]["price"])
        assert {kind: Decimal(str(factor)) for kind, factor in price.pop("multipliers").items()} == MULTIPLIERS
        assert {kind: Decimal(str(usd)) for kind, usd in price.items()} == PRICES
    assert {kind: Decimal(str(usd)) for kind, usd in models[IMAGE_MODEL]["price"].items()} == IMAGE_PRICES


def test_cases_are_selected_by_name() -> None:
    assert selected([]) == list(CASES)
    assert [one.upstream_model for one in selected(["gemini-j*", "chat-stream"])] == ["chat-stream", "gemini-json"]
    with pytest.raises(ValueError, match="no case has the name 'chat-strem'"):
        selected(["chat-strem"])


def test_what_was_said_does_not_depend_on_how_it_is_cut() -> None:
    cut = case("responses-stream").build(NAMES).body(with_usage=True)
    whole = case("responses-json").build(NAMES).body(with_usage=True)
    assert answer_text(cut) == answer_text(whole) == "".join(TEXT)
    binary = case("bedrock-stream").build(NAMES).body(with_usage=True)
    assert (
        answer_text(binary)
        == answer_text(case("bedrock-invoke-stream").build(NAMES).body(with_usage=True))
        == "".join(TEXT)
    )
    began = answer_text(binary[:9_000])
    assert began
    assert "".join(TEXT).startswith(began)
    assert documents(b"data: [DONE]\n\ndata: 1\n\n: x\n\nnonsense") == []


# -- bills -------------------------------------------------------------------------------------------------------


def test_bills_are_summed_by_model() -> None:
    lines = [
        '{"model": "a", "prompt_tokens": 3, "completion_tokens": 4, "charge_usd": "0.000000001", "key": "x"}',
        "",
        '{"model": "a", "prompt_tokens": -1, "completion_tokens": null, "cost_usd": 0.1}',
        '{"model": "b", "completion_tokens": 9}',
    ]
    assert sums(lines) == {"a": GatewayBill(2, 2, 4, Decimal("0.100000001")), "b": GatewayBill(1, 0, 9, None)}
    assert GatewayBill(2, 5, 5, Decimal(3)) - GatewayBill(1, 1, 2, Decimal(1)) == GatewayBill(1, 4, 3, Decimal(2))
    assert GatewayBill(1, 1, 1, None) - GatewayBill() == GatewayBill(1, 1, 1, None)
    # A command that prints one sum a model.
    assert not (GatewayBill(1, 90, 9) - GatewayBill(1, 10, 9)).is_empty
    assert (GatewayBill(1, 90, 9) - GatewayBill(1, 90, 9)).is_empty


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("no json", "line 2 is not a JSON object: no json"),
        ("[1]", "line 2 is not a JSON object"),
        ('{"prompt_tokens": 1}', "line 2: model: expected a string"),
        ('{"model": "a", "prompt_tokens": 1.5}', "line 2: prompt_tokens: expected a whole number, got 1.5"),
        ('{"model": "a", "completion_tokens": true}', "line 2: completion_tokens: expected a whole number"),
        ('{"model": "a", "charge_usd": "much"}', "line 2: charge_usd: expected an amount of USD, got much"),
        ('{"model": "a", "cost_usd": NaN}', "line 2: cost_usd: expected an amount of USD"),
    ],
)
def test_a_line_that_is_no_bill_is_named(line: str, reason: str) -> None:
    with pytest.raises(UnreadableBill, match=reason):
        sums(['{"model": "a"}', line])


@pytest.mark.process
async def test_a_command_that_fails_or_hangs_is_no_bill(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnreadableBill, match="exit code 3: no such file"):
        await read_bills("echo no such file >&2; exit 3")
    monkeypatch.setattr("proxy.conformance.bills.COMMAND_S_MAX", 0.2)
    with pytest.raises(UnreadableBill, match="longer than"):
        await read_bills("exec sleep 60")


# -- verdicts on bills -------------------------------------------------------------------------------------------

PLAIN_USD = Decimal("0.000952")


@pytest.mark.parametrize(
    ("name", "bill", "verdict"),
    [
        ("chat-stream", GatewayBill(1, 80, 99, PLAIN_USD), "exact"),
        ("chat-stream", GatewayBill(1, 80, 99, None), "exact"),
        ("chat-stream", GatewayBill(1, 80, 99, Decimal("0.00095200001")), "exact"),
        ("chat-stream", GatewayBill(2, 160, 198, PLAIN_USD * 2), "prompt 160 of 80"),
        ("chat-stream", GatewayBill(1, 80, 100, PLAIN_USD), "completion 100 of 99"),
        ("chat-stream", GatewayBill(1, 80, 99, PLAIN_USD * 2), "$0.001904 of $0.000952"),
        ("chat-stream", GatewayBill(), "nothing"),
        ("chat-tier-priority", GatewayBill(1, 80, 99, PLAIN_USD), "$0.000952 of $0.001904"),
        ("chat-never-reported", GatewayBill(1, 74, 100, None), "close"),
        ("chat-never-reported", GatewayBill(1, 80, 114, None), "completion 114 of 99"),
        ("chat-never-reported", GatewayBill(1, 0, 99, None), "prompt 0 of 80"),
        ("chat-never-reported", GatewayBill(1, 80, 99, None), "exact"),
        ("chat-error-before", GatewayBill(), "exact"),
        ("chat-error-before", GatewayBill(1, 80, 0, None), "prompt 80 of 0"),
    ],
)
def test_a_bill_is_judged(name: str, bill: GatewayBill, verdict: str) -> None:
    one = case(name)
    assert billed(one, truth_of(one, [served(one)]), bill) == verdict


def test_what_is_true_of_an_exchange_that_was_cut_is_what_was_generated() -> None:
    one = case("chat-client-leaves")
    left = truth_of(one, [served(one, generated=42, ended="client_left")])
    assert (left.completion_tokens, left.reported, left.usd) == (42, False, None)
    assert billed(one, left, GatewayBill(1, 80, 47, None)) == "close"
    assert billed(one, left, GatewayBill(1, 80, 49, None)) == "completion 49 of 42"
    early = case("chat-client-leaves-early")
    nobody_knows = truth_of(early, [served(early, generated=0, ended="client_left")])
    assert (
        billed(early, nobody_knows, GatewayBill())
        == billed(early, nobody_knows, GatewayBill(1, 80, 0, None))
        == "exact"
    )
    assert billed(early, nobody_knows, GatewayBill(1, 80, 99, None)) == "completion 99 of 0"


def test_a_gateway_that_repeats_a_request_owes_both() -> None:
    one = case("chat-json")
    assert truth_of(one, [served(one), served(one)]).usd == PLAIN_USD * 2


def test_usage_that_nobody_asked_for_is_not_reported() -> None:
    one = case("chat-stream")
    assert not truth_of(one, [served(one, asked=False)]).reported


# -- verdicts on what was relayed --------------------------------------------------------------------------------

ERROR = b'data: {"error": {"message": "the provider failed"}}\n\n'
EXCEPTION = b"\0\0\0\x90 as a binary message :exception-type internalServerException"
MORE = case("bedrock-stream").build(NAMES).pieces[70].body


def sent(name: str, *, asked: bool = False) -> bytes:
    return case(name).build(NAMES).body(with_usage=asked)


def rewritten(body: bytes) -> bytes:
    """The same events in other bytes."""
    return body.replace(b'"object":"chat.completion.chunk"', b'"object": "chat.completion.chunk"')


RELAYED: Sequence[tuple[str, bytes, str]] = (
    ("chat-stream-asked", sent("chat-stream-asked", asked=True), "bytes"),
    ("chat-stream-asked", sent("chat-stream-asked"), "usage is missing"),
    ("chat-stream-declined", sent("chat-stream-declined"), "bytes"),
    ("chat-stream-declined", rewritten(sent("chat-stream-declined")), "text"),
    ("chat-stream-declined", sent("chat-stream-declined", asked=True), "usage is shown"),
    ("chat-stream-declined", sent("chat-stream-declined").replace(b" bridge", b""), "differs"),
    ("chat-stream-declined", b"", "differs"),
    ("chat-usage-running", sent("chat-usage-running"), "bytes"),
    ("chat-breaks-off", sent("chat-breaks-off"), "bytes"),
    ("chat-breaks-off", sent("chat-breaks-off") + ERROR, "bytes"),
    ("chat-breaks-off", rewritten(sent("chat-breaks-off")) + ERROR, "text"),
    ("chat-breaks-off", sent("chat-breaks-off")[:2000] + ERROR, "differs"),
    ("chat-breaks-off", sent("chat-breaks-off") + b'data: {"choices":[{"delta":{"content":"more"}}]}\n\n', "differs"),
    ("bedrock-breaks-off", sent("bedrock-breaks-off"), "bytes"),
    ("bedrock-breaks-off", sent("bedrock-breaks-off") + EXCEPTION, "bytes"),
    ("bedrock-breaks-off", sent("bedrock-breaks-off") + MORE, "differs"),
    ("bedrock-client-leaves", sent("bedrock-client-leaves")[:3000], "bytes"),
    ("bedrock-client-leaves", sent("bedrock-client-leaves").replace(b" bridge", b" brigde")[:6000], "differs"),
    ("chat-reset", sent("chat-reset")[: sent("chat-reset").index(b"water")] + ERROR, "bytes"),
    ("chat-reset", b"", "differs"),
    ("chat-client-leaves", sent("chat-client-leaves")[:3000], "bytes"),
    ("chat-client-leaves", rewritten(sent("chat-client-leaves")[:3000]), "text"),
    ("chat-client-leaves", b"", "differs"),
    ("chat-client-leaves-early", b"", "-"),
)


@pytest.mark.parametrize(("name", "body", "verdict"), RELAYED)
def test_what_was_relayed_is_judged(name: str, body: bytes, verdict: str) -> None:
    one = case(name)
    assert relayed(one, [served(one)], [Received(200, body, 9.0)]) == verdict


def test_a_slow_stream_that_comes_at_once_was_buffered() -> None:
    one = case("chat-stream")
    assert relayed(one, [served(one)], [Received(200, sent("chat-stream"), 0.1)]) == "buffered"
    assert relayed(one, [served(one)], [Received(200, sent("chat-stream"), 0.9)]) == "bytes"


def test_one_wrong_answer_of_several_is_seen() -> None:
    one = case("chat-same-id")
    good, bad = Received(200, sent("chat-same-id"), 1.0), Received(502, b"", 0.0, "")
    assert relayed(one, [served(one)] * 3, [good, good, good]) == "bytes"
    assert relayed(one, [served(one)] * 3, [good, bad, good]) == "differs (status 502)"
    # Two clients that got one answer: it was not made twice.
    assert relayed(one, [served(one)], [good, good]) == "differs"


def test_answers_with_the_same_text_are_told_apart_by_their_bytes() -> None:
    one = case("chat-busy")
    names = [Names(f"id-{number}", "model-1") for number in range(3)]
    exchanges = [replace(served(one), scripted=one.build(name)) for name in names]
    received = [Received(200, one.build(name).body(with_usage=False), 1.0) for name in reversed(names)]
    assert relayed(one, exchanges, received) == "bytes"


def test_a_request_that_does_not_reach_the_provider_is_not_right() -> None:
    result = result_of(case("chat-json"), [], [Received(404, b"{}", 0.0)], GatewayBill())
    assert (result.relayed, result.billed, result.right) == ("not passed on (404)", "nothing", False)


def test_what_did_not_run_is_neither_right_nor_wrong() -> None:
    one = result_of(
        case("chat-json"), [served(case("chat-json"))], [Received(200, sent("chat-json"))], GatewayBill(1, 80, 99)
    )
    assert one.ran
    assert one.right
    assert not replace(one, billed="not run", relayed="not run").ran


def test_a_usage_of_an_empty_answer_is_a_usage() -> None:
    one: Any = case("chat-usage-zero")
    assert billed(one, truth_of(one, [served(one)]), GatewayBill(1, 80, 0, Decimal("0.00016"))) == "exact"
    assert billed(one, truth_of(one, [served(one)]), GatewayBill(1, 80, 3, None)) == "completion 3 of 0"

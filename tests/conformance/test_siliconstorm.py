"""SiliconStorm: usage on the last content chunk, texts that repeat themselves, errors that call themselves `stop`.

Law: each test is one line of what SiliconStorm's own pages say about its wire.
"""

from __future__ import annotations

import json
from decimal import Decimal
from urllib.request import urlopen

import pytest

from proxy.demo.script import Shape
from proxy.demo.shapes import words
from tests.conformance.clients import CurlClient, PythonClient
from tests.conformance.shapes import dollars, fixture
from tests.conformance.stand import Stand
from tests.support import sse
from tests.support.net import post_chat
from tests.support.provider import broken_after

MODEL = "DeepSeek-R1"
TALE = "".join(words(24))


def _deltas(texts: list[str]) -> list[bytes]:
    """Events in its language, one for each text; no end and no usage."""
    head = {"id": "endpoint_common_9", "object": "chat.completion.chunk", "created": 1764200000, "model": MODEL}
    choices = ([{"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": None}] for text in texts)
    return [f"data: {json.dumps({**head, 'choices': choice})}\n\n".encode() for choice in choices]


async def _estimated(stand: Stand, system: str, texts: list[str]) -> int:
    """Completion tokens estimated for a stream of these texts that broke off."""
    model = stand.plan(system, broken_after(_deltas(texts), "fin"))
    request = {"model": model, "messages": [{"role": "user", "content": "Go on."}], "stream": True}
    await post_chat(stand.url, request, key=stand.key)
    entry = stand.entry(model)
    assert (entry["outcome"], entry["usage_source"]) == ("upstream_failed", "estimated")
    return int(entry["completion_tokens"])


def test_siliconstorm_stream_as_its_page_shows_it(stand: Stand, curl: CurlClient) -> None:
    request = {"model": MODEL, "messages": [{"role": "user", "content": "Go on."}], "stream": True}
    with stand.one_entry(MODEL) as entry:
        heard = curl.ask(stand.base_url, stand.key, request)
    assert heard.text(cumulative=False) == TALE
    assert heard.usage is not None  # unasked, on the last content chunk
    assert heard.usage["completion_tokens"] == entry["completion_tokens"] == 24
    assert all(chunk["choices"][0]["delta"]["role"] == "assistant" for chunk in sse.chunks(heard.body or b""))


async def test_siliconstorm_cumulative_text_is_not_overcounted(stand: Stand) -> None:
    fragments = list(words(60))
    so_far = ["".join(fragments[:count]) for count in range(1, 61)]
    assert await _estimated(stand, "siliconstorm", so_far) == await _estimated(stand, "siliconstorm", fragments)


async def test_siliconstorm_full_text_mode_can_be_said_or_denied(stand: Stand) -> None:
    look_alike = ["ha" * count for count in range(1, 9)]  # "ha", "haha", …: repetition, or a long laugh?
    repeated = await _estimated(stand, "siliconstorm-fulltext", look_alike)
    laughed = await _estimated(stand, "siliconstorm-fragments", look_alike)
    assert repeated == await _estimated(stand, "siliconstorm-fragments", ["ha"] * len(look_alike))
    assert laughed == await _estimated(stand, "siliconstorm-fragments", ["ha" * sum(range(1, 9))])
    assert repeated < laughed


def test_siliconstorm_times_feed_the_latency_histograms(stand: Stand, python_client: PythonClient) -> None:
    def observed() -> dict[str, float]:
        with urlopen(f"{stand.base_url.removesuffix('/v1')}/metrics") as answer:
            lines = answer.read().decode().split("\n")
        sums = [line.rsplit(" ", 1) for line in lines if line.startswith("tokenweir_provider_") and "_sum{" in line]
        return {name.split("{")[0]: float(value) for name, value in sums if "siliconstorm" in name}

    before = observed()
    shape = fixture("siliconstorm", "timings")
    model = stand.plan("siliconstorm", shape.script())
    python_client.ask(stand.base_url, stand.key, shape.request(model))
    stand.entry(model)
    grown = {name: value - before.get(name, 0.0) for name, value in observed().items()}
    assert grown["tokenweir_provider_prefill_seconds_sum"] == pytest.approx(0.0417)
    assert grown["tokenweir_provider_decode_seconds_sum"] == pytest.approx(0.0121)


@pytest.mark.parametrize(
    ("name", "prompt_tokens"), [("err_msg_stop", 0), ("err_msg_with_usage", 12), ("whole_err_msg", 0)]
)
def test_siliconstorm_err_msg_bills_no_output(
    stand: Stand, python_client: PythonClient, name: str, prompt_tokens: int
) -> None:
    shape = fixture("siliconstorm", name)
    model = stand.plan("siliconstorm", shape.script())
    heard = python_client.ask(stand.base_url, stand.key, shape.request(model))
    assert (heard.finish_reason, heard.text(cumulative=False)) == ("stop", "")  # as it came
    entry = stand.entry(model)
    assert (entry["outcome"], entry["details"]["failed"]) == ("upstream_failed", "err_msg")
    assert not entry["completion_tokens"]
    assert Decimal(entry["charge_usd"]) == dollars(prompt_tokens, 0)


async def test_siliconstorm_words_of_an_err_msg_are_not_kept(stand: Stand) -> None:
    shape = fixture("siliconstorm", "err_msg_stop")
    model = stand.plan("siliconstorm", shape.script())
    response = await post_chat(stand.url, shape.request(model), key=stand.key)
    assert b"lost its card" in response.body
    stand.entry(model)
    assert b"lost its card" not in stand.tokenweir.outputs()


def test_siliconstorm_is_not_disturbed_by_being_asked_for_usage(stand: Stand, python_client: PythonClient) -> None:
    request = {"model": MODEL, "messages": [{"role": "user", "content": "Go on."}], "stream": True}
    asked = {**request, "stream_options": {"include_usage": True}}
    with stand.one_entry(MODEL) as unasked_entry:
        unasked_heard = python_client.ask(stand.base_url, stand.key, request)
    with stand.one_entry(MODEL) as asked_entry:
        asked_heard = python_client.ask(stand.base_url, stand.key, asked)
    assert unasked_heard.usage == asked_heard.usage is not None
    assert unasked_heard.chunks == asked_heard.chunks
    assert unasked_entry["events"] == asked_entry["events"]


def test_siliconstorm_answers_with_choice_0_only_and_the_bill_follows_it(
    stand: Stand, python_client: PythonClient
) -> None:
    model = stand.plan("siliconstorm", Shape("siliconstorm"))
    answer = python_client.at(stand).chat.completions.create(
        model=model, messages=[{"role": "user", "content": "Go on."}], n=2
    )
    assert [choice.index for choice in answer.choices] == [0]
    assert stand.entry(model)["completion_tokens"] == 24

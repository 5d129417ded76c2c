"""The four systems, line by line of what their own pages say, beyond the table of shapes (test_providers.py).

Law: what any provider may do about timers, failures and clients that leave is proven by the tests of the exchange.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from urllib.request import urlopen

import pytest

from proxy.demo.script import Script, Shape
from proxy.demo.shapes import words
from tests.conformance.clients import CurlClient, Heard, NodeClient, PythonClient
from tests.conformance.leaving import endless, leave_after, near
from tests.conformance.shapes import Fixture, dollars, fixture
from tests.conformance.stand import SOON_S, Stand
from tests.support import sse
from tests.support.net import ask, post_chat
from tests.support.provider import broken_after
from tests.support.sdks import openai
from tests.support.waiting import wait_until

TERA, TENSORLOOP, SILICONSTORM, ELECTRON = "Qwen/Qwen2.5-7B-Instruct", "gpt-4o-mini", "DeepSeek-R1", "electron"
# What the scripted provider says, if nobody limits it.
TALE = "".join(words(24))

Play = Callable[..., tuple[Heard, dict[str, Any]]]


@pytest.fixture
def play(stand: Stand, python_client: PythonClient) -> Play:
    """Plays a shape, by its own script or another: what the client heard, and the entry."""

    def played(shape: Fixture, script: Script | None = None) -> tuple[Heard, dict[str, Any]]:
        model = stand.plan(shape.system, script or shape.script())
        return python_client.ask(stand.base_url, stand.key, shape.request(model)), stand.entry(model)

    return played


# -- Tera: the samples of its own pages, and reasoning whose usage never came ----------------------------------------


@pytest.mark.thorough
def test_tera_python_sample(stand: Stand, capsys: pytest.CaptureFixture[str]) -> None:
    with stand.one_entry(TERA) as entry, openai.OpenAI(base_url=stand.base_url, api_key=stand.key) as client:
        stream = client.chat.completions.create(
            model=TERA,
            messages=[{"role": "user", "content": "Count the gates."}],
            stream=True,
        )
        for chunk in stream:
            print(chunk.choices[0].delta.content or "", end="", flush=True)
    assert capsys.readouterr().out == TALE
    assert (entry["outcome"], entry["usage_source"], entry["completion_tokens"]) == ("served", "reported", 24)


def test_tera_curl_sample(stand: Stand, curl: CurlClient) -> None:
    body = {"model": TERA, "messages": [{"role": "user", "content": "Count the gates."}], "stream": True}
    with stand.one_entry(TERA) as entry:
        done = curl.run(
            f"{stand.base_url}/chat/completions",
            "-H", f"Authorization: Bearer {stand.key}",
            "-H", "Content-Type: application/json",
            "-d", json.dumps(body),
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert sse.text(done.stdout) == TALE
    assert sse.done(done.stdout)
    assert sse.usage(done.stdout) is None
    assert (entry["outcome"], entry["events"]) == ("served", len(sse.data_events(done.stdout)))


def test_tera_reasoning_is_counted_where_usage_never_came(play: Play) -> None:
    shape = fixture("tera", "reasoning_only_length")
    _, entry = play(shape)
    assert entry["usage_source"] == "estimated"
    assert entry["completion_tokens"] == 4  # more were seen than `max_tokens` allows
    assert entry["details"]["evidence"]["reasoning_chars"] == len(shape.truth["reasoning"])


# -- TensorLoop: fragments of calls, no resume, keys -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "model"),
    [
        ("sample_openai.mjs", TENSORLOOP),
        ("sample_reader.mjs", TENSORLOOP),
        ("sample_openai.mjs", TERA),
    ],
)
def test_tensorloop_and_tera_node_samples(stand: Stand, node: NodeClient, script: str, model: str) -> None:
    with stand.one_entry(model) as entry:
        done = node.run(script, BASE_URL=stand.base_url, API_KEY=stand.key, MODEL=model)
    assert (done.stdout, done.returncode) == (TALE, 0), done.stderr
    assert (entry["outcome"], entry["usage_source"], entry["completion_tokens"]) == ("served", "reported", 24)


def test_tensorloop_tool_fragments_are_output_where_usage_never_came(play: Play) -> None:
    shape = fixture("tensorloop", "tool_call_fragments")
    until_usage = [event.wire for event in sse.events(shape.wire) if not sse.is_usage_event(event)][:-1]
    heard, entry = play(shape, broken_after(until_usage, "fin"))
    assert heard.arguments == shape.truth["tool_arguments"]
    assert entry["usage_source"] == "estimated"
    assert near(entry["completion_tokens"], shape.truth["usage"]["completion_tokens"])


def test_tensorloop_a_dropped_stream_is_billed_as_delivered_and_a_retry_is_a_second_call(
    stand: Stand, python_client: PythonClient
) -> None:
    dropped, whole = fixture("tensorloop", "dropped"), fixture("tensorloop", "usage_chunk")
    model = stand.plan("tensorloop", dropped.script())
    first = python_client.ask(stand.base_url, stand.key, dropped.request(model))
    assert first.broken
    stand.provider.script(model.partition("/")[2], whole.script())
    second = python_client.ask(stand.base_url, stand.key, whole.request(model))
    assert not second.broken
    assert first.response_id != second.response_id
    lost, served = stand.entries(model, 2)
    assert (lost["outcome"], lost["details"]["billed"]) == ("upstream_failed", "output")
    assert lost["details"]["delivered_only"] is True
    assert (served["outcome"], served["details"]["billed"]) == ("served", "prompt+output")
    assert len(stand.seen(model)) == 2  # nothing was retried behind the client's back


def test_tensorloop_keys_have_an_alias_and_a_list_of_models(stand: Stand, python_client: PythonClient) -> None:
    messages: Any = [{"role": "user", "content": "Go on."}]
    client = python_client.at(stand, stand.narrow.secret)
    with stand.one_entry(TENSORLOOP) as entry:
        assert client.chat.completions.create(model=TENSORLOOP, messages=messages).choices[0].message.content == TALE
    assert (entry["key_alias"], entry["key_id"]) == ("narrow", stand.narrow.key_id)
    with pytest.raises(openai.PermissionDeniedError, match="may not use the model 'electron'"):
        client.chat.completions.create(model="electron", messages=messages)
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.chat.completions.create(model="gpt-none", messages=messages)
    assert [model.id for model in client.models.list()] == [TENSORLOOP]


def test_tensorloop_a_key_is_shown_once_and_expires(stand: Stand, python_client: PythonClient) -> None:
    command = stand.tokenweir.command("keys", "create", "--alias", "shown once", "--model", TENSORLOOP)
    made = json.loads(command.stdout)
    lasts = datetime.fromisoformat(made["expires_at"]) - datetime.now(UTC)
    assert timedelta(days=89) < lasts <= timedelta(days=90)  # unless said otherwise
    client = python_client.at(stand, made["key"])

    def works() -> bool:
        with suppress(openai.AuthenticationError):  # the key is not known yet
            return [model.id for model in client.models.list()] == [TENSORLOOP]
        return False

    wait_until(works, within_s=SOON_S, poll_s=0.05)
    outputs = stand.tokenweir.outputs()
    assert made["key_id"].encode() in outputs
    assert made["key"].encode() not in outputs


# -- SiliconStorm: usage on the last content chunk, texts that repeat themselves, errors that call themselves `stop` -


def _deltas(texts: list[str]) -> list[bytes]:
    """Events in its language, one for each text; no end and no usage."""
    head = {"id": "endpoint_common_9", "object": "chat.completion.chunk", "created": 1764200000, "model": SILICONSTORM}
    choices = ([{"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": None}] for text in texts)
    return [f"data: {json.dumps({**head, 'choices': choice})}\n\n".encode() for choice in choices]


async def _estimated(stand: Stand, system: str, texts: list[str]) -> int:
    """Completion tokens estimated for a stream of these texts that broke off."""
    model = stand.plan(system, broken_after(_deltas(texts), "fin"))
    await post_chat(stand.url, ask(model), key=stand.key)
    entry = stand.entry(model)
    assert (entry["outcome"], entry["usage_source"]) == ("upstream_failed", "estimated")
    return int(entry["completion_tokens"])


def test_siliconstorm_stream_as_its_page_shows_it(stand: Stand, curl: CurlClient) -> None:
    with stand.one_entry(SILICONSTORM) as entry:
        heard = curl.ask(stand.base_url, stand.key, ask(SILICONSTORM))
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


def test_siliconstorm_times_feed_the_latency_histograms(stand: Stand, play: Play) -> None:
    def observed() -> dict[str, float]:
        with urlopen(f"{stand.base_url.removesuffix('/v1')}/metrics") as answer:
            lines = answer.read().decode().split("\n")
        sums = [line.rsplit(" ", 1) for line in lines if line.startswith("tokenweir_provider_") and "_sum{" in line]
        return {name.split("{")[0]: float(value) for name, value in sums if "siliconstorm" in name}

    before = observed()
    play(fixture("siliconstorm", "timings"))
    grown = {name: value - before.get(name, 0.0) for name, value in observed().items()}
    assert grown["tokenweir_provider_prefill_seconds_sum"] == pytest.approx(0.0417)
    assert grown["tokenweir_provider_decode_seconds_sum"] == pytest.approx(0.0121)


@pytest.mark.parametrize(
    ("name", "prompt_tokens"), [("err_msg_stop", 0), ("err_msg_with_usage", 12), ("whole_err_msg", 0)]
)
def test_siliconstorm_err_msg_bills_no_output(play: Play, name: str, prompt_tokens: int) -> None:
    heard, entry = play(fixture("siliconstorm", name))
    assert (heard.finish_reason, heard.text(cumulative=False)) == ("stop", "")  # as it came
    assert (entry["outcome"], entry["details"]["failed"]) == ("upstream_failed", "err_msg")
    assert not entry["completion_tokens"]
    assert Decimal(entry["charge_usd"]) == dollars(prompt_tokens, 0)


def test_siliconstorm_words_of_an_err_msg_are_not_kept(stand: Stand, play: Play) -> None:
    shape = fixture("siliconstorm", "err_msg_stop")
    assert b"lost its card" in shape.wire
    play(shape)
    assert b"lost its card" not in stand.tokenweir.outputs()


def test_siliconstorm_is_not_disturbed_by_being_asked_for_usage(stand: Stand, python_client: PythonClient) -> None:
    with stand.one_entry(SILICONSTORM) as unasked_entry:
        unasked_heard = python_client.ask(stand.base_url, stand.key, ask(SILICONSTORM))
    with stand.one_entry(SILICONSTORM) as asked_entry:
        asked_heard = python_client.ask(stand.base_url, stand.key, ask(SILICONSTORM, usage=True))
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


# -- Electron: a path prefix, and a voice that starts on the first delta ---------------------------------------------


@pytest.mark.thorough
def test_electron_python_sample(stand: Stand, capsys: pytest.CaptureFixture[str]) -> None:
    text, usage = "", None
    with stand.one_entry(ELECTRON) as entry, openai.OpenAI(base_url=stand.base_url, api_key=stand.key) as client:
        stream = client.chat.completions.create(
            model=ELECTRON,
            messages=[{"role": "user", "content": "Say one true thing about rivers."}],
            stream=True,
            stream_options={"include_usage": True},
        )
        for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content:
                print(chunk.choices[0].delta.content, end="", flush=True)
                text += chunk.choices[0].delta.content
            if chunk.usage is not None:
                usage = chunk.usage
    assert capsys.readouterr().out == text == TALE
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (entry["prompt_tokens"], entry["completion_tokens"])
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == entry["cached_tokens"]


@pytest.mark.parametrize("streamed", [True, False], ids=["stream", "whole"])
def test_electron_path_prefix(stand: Stand, python_client: PythonClient, streamed: bool) -> None:
    model = stand.plan("electron", Shape("electron"))
    python_client.ask(stand.base_url, stand.key, ask(model, stream=streamed))
    (seen,) = stand.seen(model)
    assert seen["path"] == "/waves/v1/chat/completions"
    assert stand.entry(model)["endpoint"] == "/v1/chat/completions"


def test_electron_a_retry_after_leaving_is_a_second_line_and_charges_the_first_no_second_time(
    stand: Stand, python_client: PythonClient
) -> None:
    model = stand.plan("electron", endless("electron", tokens=50))
    leave_after(stand, python_client, model, texts=3)
    (first,) = stand.entries(model)
    python_client.ask(stand.base_url, stand.key, ask(model, max_tokens=5))
    again, second = stand.entries(model, 2)
    assert again == first
    assert (second["outcome"], second["completion_tokens"]) == ("served", 5)
    seen = stand.seen(model)
    assert [one["completion_tokens"] for one in seen] == [50, 5]
    assert [one["response_id"] for one in seen] == [first["provider_response_id"], second["provider_response_id"]]


def test_electron_time_to_first_token_is_recorded(stand: Stand, python_client: PythonClient) -> None:
    wait_ms = 120
    model = stand.plan("electron", Shape("electron", first_ms=wait_ms, pace_ms=2))
    python_client.ask(stand.base_url, stand.key, ask(model))
    entry = stand.entry(model)
    assert wait_ms <= entry["first_token_ms"] < entry["duration_ms"]


# -- a client that leaves in mid-stream ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("system", "language", "texts"),
    [
        ("tera", "tera", 30),
        ("siliconstorm", "siliconstorm", 30),
        ("siliconstorm", "siliconstorm-fulltext", 40),
        ("electron-cancel", "electron", 30),
    ],
)
def test_leaving_cancels_and_the_text_is_estimated_once(
    stand: Stand, python_client: PythonClient, system: str, language: str, texts: int
) -> None:
    model = stand.plan(system, endless(language))
    leave_after(stand, python_client, model, texts=texts)
    seen = stand.seen_until(model, lambda one: one["duration_s"] is not None)
    entry = stand.entry(model)
    details = entry["details"]
    assert seen["ended"] == "client_left"
    assert seen["completion_tokens"] < 400
    assert (entry["outcome"], entry["usage_source"], details["policy"]) == ("client_left", "estimated", "cancel")
    assert near(entry["completion_tokens"], seen["completion_tokens"])
    assert entry["prompt_tokens"] > 0
    assert ("cumulative" in details.get("flags", ())) == (language == "siliconstorm-fulltext")


@pytest.mark.parametrize("system", ["tensorloop", "electron"])
def test_leaving_drains_and_what_was_generated_is_billed_once(
    stand: Stand, python_client: PythonClient, system: str
) -> None:
    model = stand.plan(system, endless(system, tokens=50))
    leave_after(stand, python_client, model, texts=3)
    entry = stand.entry(model)
    details = entry["details"]
    (seen,) = stand.seen(model)
    assert (seen["ended"], seen["client_left_s"], seen["completion_tokens"]) == ("served", None, 50)
    assert (entry["outcome"], entry["usage_source"], details["policy"]) == ("client_left", "reported", "drain")
    assert (entry["prompt_tokens"], entry["completion_tokens"]) == (seen["prompt_tokens"], 50)
    assert Decimal(entry["charge_usd"]) == dollars(seen["prompt_tokens"], 50, cached=seen["cached_tokens"])
    assert "drain_ended_by" not in details
    assert 2 < entry["events"] < 50  # those passed to the client, not those that were drained

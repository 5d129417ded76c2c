"""OpenAI's other endpoints through the proxy: vectors, pictures, speech and files of audio go through byte for byte;
each is billed in what it is counted in."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from proxy.demo.script import Cut, Script, Send, Stall, json_script
from proxy.http.multipart import serialise
from proxy.metering.request import Upload, uploads_in
from tests.gateway.deployment import SOON_S, Deployment, charge, nusd
from tests.gateway.dialects.languages import ask
from tests.gateway.streams import without_run
from tests.support.net import Response, chat_request, connect, post_chat
from tests.support.sdks import openai
from tests.support.sse import without_usage_event

AUDIO = bytes(range(256)) * 300
MP3, PNG = Upload("a.mp3", "audio/mpeg", AUDIO), Upload("a.png", "image/png", AUDIO)
HEARD = {"text": "Over the weir.", "usage": {"type": "duration", "seconds": 5}}
PICTURES: dict[str, Any] = {"created": 1, "data": [{"url": "http://x.test/1"}, {"url": "http://x.test/2"}]}


def events(*documents: dict[str, Any]) -> list[bytes]:
    return [f"data: {json.dumps(one)}\n\n".encode() for one in documents]


def audio(*, kind: str = "audio/mpeg", **more: Any) -> Script:
    return Script(steps=(Send(AUDIO),), headers=(("Content-Type", kind),), chunking=Cut(size=9000), **more)


async def send_form(deployment: Deployment, path: str, form: dict[str, Any], **headers: str) -> Response:
    """One request with a form; lists are fields that come several times."""
    kind, pieces = serialise(form)
    body = b"".join(pieces)
    given = {"Content-Type": kind} | {name.replace("_", "-"): value for name, value in headers.items()}
    return await post_chat(deployment.url, body, timeout_s=SOON_S, path=path, key=deployment.key, headers=given)


async def test_a_completion_streams_without_the_usage_it_did_not_ask_for(deployment: Deployment) -> None:
    choice = {"index": 0, "text": "Much more", "finish_reason": None}
    usage = {"prompt_tokens": 4, "completion_tokens": 2, "total_tokens": 6}
    told = events({"id": "cmpl-1", "choices": [choice]}, {"id": "cmpl-1", "choices": [], "usage": usage})
    model = deployment.plan("many", Script(steps=(*map(Send, told), Send(b"data: [DONE]\n\n"))))
    response = await ask(deployment, "/v1/completions", {"model": model, "prompt": "How much?", "stream": True})
    assert response.body == without_usage_event(b"".join(told) + b"data: [DONE]\n\n")
    assert b"usage" not in response.body
    entry = await deployment.entry(model)
    assert (entry["outcome"], entry["usage_source"], entry["endpoint"]) == ("served", "reported", "/v1/completions")
    assert (entry["prompt_tokens"], entry["completion_tokens"], nusd(entry)) == (4, 2, charge(entry))
    assert deployment.seen(model)[0]["body"]["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize("last", [{"id": "c", "object": "chunk"}, {"id": "c", "choices": None}, {}])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
async def test_a_last_event_with_usage_and_no_choices_does_not_reach_a_client_that_did_not_ask_for_it(
    deployment: Deployment, last: dict[str, Any], end: bytes
) -> None:
    usage = {"prompt_tokens": 4, "completion_tokens": 2, "total_tokens": 6}
    for path, choice in (
        ("/v1/chat/completions", {"index": 0, "delta": {"content": "Much more"}, "finish_reason": None}),
        ("/v1/completions", {"index": 0, "text": "Much more", "finish_reason": None}),
    ):
        head, tail = (one.replace(b"\n", end) for one in events({"choices": [choice]}, last | {"usage": usage}))
        done = b"data: [DONE]" + end * 2
        model = deployment.plan("many", [Send(head), Send(tail), Send(done)])
        prompt: Any = {"messages": [{"role": "user", "content": "?"}]} if "chat" in path else {"prompt": "?"}
        asked = {"model": model, "stream": True, **prompt}
        assert (await ask(deployment, path, asked)).body == head + done
        response = await ask(deployment, path, asked | {"stream_options": {"include_usage": True}})
        assert response.body == head + tail + done
        for entry in await deployment.entries(model, 2):
            assert (entry["outcome"], entry["usage_source"]) == ("served", "reported")
            assert (entry["prompt_tokens"], entry["completion_tokens"], nusd(entry)) == (4, 2, charge(entry))


VECTORS = [{"object": "embedding", "index": at, "embedding": [0.125] * 1000} for at in range(100)]
COMPACTED = {
    "id": "resp_c", "object": "response.compaction", "created_at": 1,
    "output": [
        {"type": "message", "id": "m", "role": "user", "status": "completed", "content": []},
        {"type": "compaction", "id": "c", "encrypted_content": "AAAA"},
    ],
    "usage": {"input_tokens": 300, "output_tokens": 40, "total_tokens": 340},
}  # fmt: skip
# Endpoint, request, answer; source and tokens of the usage; other units, and their price in nUSD.
BILLED: dict[str, tuple[str, dict[str, Any], dict[str, Any], str, tuple[int, int] | None, dict[str, int], int]] = {
    "vectors": (
        "/v1/embeddings", {"input": ["a", "b"], "encoding_format": "float"},
        {"object": "list", "data": VECTORS, "model": "m", "usage": {"prompt_tokens": 300, "total_tokens": 300}},
        "reported", (300, 0), {}, 0,
    ),
    "pictures by the piece": (
        "/v1/images/generations", {"prompt": "a weir", "n": 2}, PICTURES, "reported", None, {"images": 2}, 80_000_000,
    ),
    "pictures by tokens": (
        "/v1/images/generations", {"prompt": "a weir", "n": 2},
        PICTURES | {"usage": {"input_tokens": 10, "output_tokens": 100, "total_tokens": 110}},
        "reported", (10, 100), {"image_completion_tokens": 100}, 0,
    ),
    "edited pictures": (
        "/v1/images/edits", {"image[]": [PNG, Upload("b.png", "image/png", AUDIO[:99])], "prompt": "a weir"},
        {"data": [{"b64_json": "AA=="}], "usage": {"input_tokens": 300, "output_tokens": 100, "total_tokens": 400}},
        "reported", (300, 100), {"image_completion_tokens": 100}, 0,
    ),
    "variations": (
        "/v1/images/variations", {"image": PNG, "n": "2"}, PICTURES, "reported", None, {"images": 2}, 80_000_000,
    ),
    "a transcript": (
        "/v1/audio/transcriptions", {"file": MP3}, HEARD, "reported", None, {"audio_ms": 5000}, 500_000,
    ),
    "a translation": (
        "/v1/audio/translations", {"file": MP3, "response_format": "verbose_json"},
        {"text": "Over the weir.", "duration": 5.0}, "reported", None, {"audio_ms": 5000}, 500_000,
    ),
    "a compacted conversation": (
        "/v1/responses/compact", {"input": "How much?"}, COMPACTED, "reported", (300, 40), {}, 0,
    ),
    "search units": (
        "/v2/rerank", {"query": "weir", "documents": ["water", "wine"]},
        {"id": "r1", "results": [{"index": 0}], "meta": {"billed_units": {"search_units": 3}}},
        "reported", None, {"searches": 3}, 6_000_000,
    ),
    "a moderation": (
        "/v1/moderations", {"input": "Over the weir."}, {"id": "modr-1", "model": "m", "results": []},
        "estimated", None, {}, 0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BILLED)
async def test_what_each_endpoint_bills(deployment: Deployment, what: str) -> None:
    path, asked, answer, source, tokens, units, units_nusd = BILLED[what]
    model = deployment.plan("units", json_script(answer))
    send: Any = send_form if uploads_in(asked) else ask
    response = await send(deployment, path, {"model": model, **asked})
    assert (response.status, json.loads(response.body)) == (200, answer)
    entry = await deployment.entry(model)
    endpoint = path.replace("/v2/", "/v1/")  # both versions of a rerank are one endpoint
    assert (entry["outcome"], entry["endpoint"], entry["usage_source"]) == ("served", endpoint, source)
    assert tokens is None or (entry["prompt_tokens"], entry["completion_tokens"]) == tokens
    assert entry["details"].get("units", {}) == units
    assert nusd(entry) == charge(entry) + units_nusd
    assert "unread" not in entry["details"]


async def test_counting_the_tokens_of_a_response_is_free(deployment: Deployment) -> None:
    model = deployment.plan("many", json_script({"object": "response.input_tokens", "input_tokens": 47}))
    response = await ask(deployment, "/v1/responses/input_tokens", {"model": model, "input": "How much?"})
    assert json.loads(response.body)["input_tokens"] == 47
    entry = await deployment.entry(model)
    assert (entry["charge_usd"], entry["prompt_tokens"], entry["outcome"]) == ("0", 0, "served")


async def test_a_client_that_leaves_a_picture_pays_for_it(deployment: Deployment) -> None:
    told = events({"type": "image_generation.partial_image", "b64_json": "a" * 2000})
    model = deployment.plan("units", Script(steps=(*map(Send, told), Stall())))
    document = {"model": model, "prompt": "a weir", "stream": True, "quality": "low"}
    async with await connect(deployment.url) as client:
        await client.send(chat_request(document, path="/v1/images/generations", key=deployment.key))
        await client.read_body(await client.read_head(SOON_S), until=told[0], timeout_s=SOON_S)
    entry = await deployment.entry(model)
    assert (entry["outcome"], entry["usage_source"]) == ("client_left", "estimated")
    assert (entry["completion_tokens"], entry["details"]["units"]) == (272, {"images": 1})
    assert nusd(entry) == charge(entry) + 40_000_000


async def test_a_picture_is_edited_by_its_link_as_xai_has_it(deployment: Deployment) -> None:
    model = deployment.plan("units", json_script({"data": [{"url": "http://x.test/1"}]}))
    document = {"model": model, "prompt": "a weir", "image": {"type": "image_url", "url": "http://x.test/0"}}
    response = await ask(deployment, "/v1/images/edits", document)
    assert response.status == 200
    assert deployment.seen(model)[0]["body"] == document | {"model": model.partition("/")[2]}
    entry = await deployment.entry(model)
    assert (entry["details"]["units"], entry["charge_usd"]) == ({"images": 1}, "0.04")
    response = await ask(deployment, "/v1/images/edits", {"model": model, "prompt": "a weir"})
    assert (response.status, json.loads(response.body)["error"]["param"]) == (400, "image")


async def test_speech_goes_down_as_it_is_and_is_billed_by_its_characters(deployment: Deployment) -> None:
    entries = []
    for script in (audio(), audio(framing="length"), audio(framing="close")):
        model = deployment.plan("units", script)
        document = {"model": model, "input": "Over the weir.", "voice": "alloy"}
        response = await ask(deployment, "/v1/audio/speech", document, {"Accept": "application/octet-stream"})
        assert (response.body, response.header("content-type")) == (AUDIO, "audio/mpeg")
        entries.append(await deployment.entry(model))
    assert all(without_run(entry) == without_run(entries[0]) for entry in entries)
    entry = entries[0]
    assert (entry["outcome"], entry["usage_source"], entry["bytes"]) == ("served", "estimated", len(AUDIO))
    assert entry["details"]["units"] == {"characters": 14, "audio_completion_tokens": 20}
    assert nusd(entry) == charge(entry) + 14 * 15_000
    assert dict(deployment.seen(model)[0]["headers"])["Accept"] == "*/*"


async def test_speech_as_a_stream(deployment: Deployment) -> None:
    usage = {"input_tokens": 4, "output_tokens": 30, "total_tokens": 34}
    told = events({"type": "speech.audio.delta", "audio": "UklG"}, {"type": "speech.audio.done", "usage": usage})
    model = deployment.plan("units", Script(steps=tuple(map(Send, told))))
    document = {"model": model, "input": "Over", "voice": "alloy", "stream_format": "sse"}
    assert (await ask(deployment, "/v1/audio/speech", document)).body == b"".join(told)
    entry = await deployment.entry(model)
    assert (entry["outcome"], entry["usage_source"], entry["events"]) == ("served", "reported", 2)
    assert (entry["prompt_tokens"], entry["completion_tokens"], nusd(entry)) == (4, 30, charge(entry))


async def test_a_form_goes_up_as_it_is(deployment: Deployment) -> None:
    model = deployment.plan("units", json_script(HEARD))
    form = {"file": MP3, "model": model, "timestamp_granularities[]": ["word", "segment"]}
    assert (await send_form(deployment, "/v1/audio/transcriptions", form)).status == 200
    (seen,) = deployment.seen(model)
    form = seen["body"]
    assert f'name="file"; filename="a.mp3"\r\nContent-Type: audio/mpeg\r\n\r\n{AUDIO.decode("latin-1")}\r\n' in form
    assert f'name="model"\r\n\r\n{model.partition("/")[2]}\r\n' in form
    assert form.count('name="timestamp_granularities[]"\r\n\r\n') == 2
    boundary = dict(seen["headers"])["Content-Type"].partition("boundary=")[2]
    assert form.startswith(f"--{boundary}\r\n")


@pytest.mark.parametrize(
    ("sound", "flags", "audio_ms"),
    [
        (Path(__file__).parents[2] / "metering" / "audio" / "sounds" / "cbr.mp3", ["audio_unknown"], 784),
        (None, ["audio_unknown", "audio_doubtful"], 2000),
    ],
    ids=["mp3", "no known format"],
)
async def test_a_transcript_as_text_is_estimated_and_says_so(
    deployment: Deployment, sound: Path | None, flags: list[str], audio_ms: int
) -> None:
    script = Script(steps=(Send(b"Over the weir.\n"),), headers=(("Content-Type", "text/plain"),), framing="length")
    model = deployment.plan("units", script)
    file = Upload("a.mp3", "", b"x" * 8000 if sound is None else sound.read_bytes())
    form = {"model": model, "file": file, "response_format": "text"}
    assert (await send_form(deployment, "/v1/audio/transcriptions", form)).body == b"Over the weir.\n"
    entry = await deployment.entry(model)
    assert (entry["outcome"], entry["usage_source"], entry["details"]["flags"]) == ("served", "estimated", flags)
    assert entry["details"]["units"] == {"audio_ms": audio_ms}


async def test_a_transcript_as_a_stream(deployment: Deployment) -> None:
    usage = {"type": "tokens", "input_tokens": 37, "output_tokens": 4, "total_tokens": 41}
    told = events(
        {"type": "transcript.text.delta", "delta": "Over"},
        {"type": "transcript.text.done", "text": "Over", "usage": usage},
    )
    model = deployment.plan("units", Script(steps=tuple(map(Send, told))))
    form = {"model": model, "file": MP3, "stream": "true"}
    assert (await send_form(deployment, "/v1/audio/transcriptions", form)).body == b"".join(told)
    entry = await deployment.entry(model)
    assert (entry["streamed"], entry["usage_source"], entry["prompt_tokens"]) == (True, "reported", 37)


async def test_a_repeated_form_is_one_whatever_its_boundary(deployment: Deployment) -> None:
    model = deployment.plan("units", json_script(HEARD))
    statuses = []
    for file in (MP3, MP3, Upload("b.mp3", "audio/mpeg", AUDIO)):
        form = {"model": model, "file": file}
        response = await send_form(deployment, "/v1/audio/transcriptions", form, Idempotency_Key="one-form")
        statuses.append(response.status)
    assert statuses == [200, 409, 422]
    await deployment.entry(model)


async def test_without_a_price_a_moderation_is_free_and_nothing_else_is(deployment: Deployment) -> None:
    told = json_script({"id": "modr-1", "usage": {"prompt_tokens": 3, "total_tokens": 3}})
    free, unpriced = (deployment.plan("unpriced", told) for _ in range(2))
    await ask(deployment, "/v1/moderations", {"model": free, "input": "Over the weir."})
    await ask(deployment, "/v1/embeddings", {"model": unpriced, "input": "Over the weir."})
    entry = await deployment.entry(free)
    assert (entry["charge_usd"], entry["cost_usd"], entry["price_version"]) == ("0", "0", "free")
    entry = await deployment.entry(unpriced)
    assert (entry["charge_usd"], entry["details"]["unpriced"]) == (None, True)


async def test_what_is_asked_for_is_held(deployment: Deployment) -> None:
    key = deployment.tokenweir.key("painter", "--budget", "5")
    model = deployment.plan("units", json_script({"data": [{}, {}]}))
    document = {"model": model, "prompt": "a weir"}
    statuses = []
    for images in (2, 128):  # at 0.04 USD each
        async with await connect(deployment.url) as client:
            wire = chat_request(document | {"n": images}, path="/v1/images/generations", key=key)
            await client.send(wire)
            statuses.append((await client.read(SOON_S)).status)
    assert statuses == [200, 402]
    entry = await deployment.entry(model)
    assert float(entry["details"]["held_usd"]) >= 0.08
    assert entry["charge_usd"] == "0.08"


@pytest.mark.parametrize(
    ("path", "document", "param"),
    [
        ("/v1/completions", {"prompt": [["x"]]}, "prompt[0][0]"),
        ("/v1/embeddings", {"input": [1, "x"]}, "input[1]"),
        ("/v1/rerank", {"query": "x"}, "documents"),
        ("/v1/images/generations", {"prompt": 1}, "prompt"),
        ("/v1/audio/speech", {}, "input"),
        ("/v1/audio/transcriptions", {}, "Content-Type"),
    ],
)
async def test_what_is_wrong_is_named_and_leaves_no_entry(
    deployment: Deployment, path: str, document: dict[str, Any], param: str
) -> None:
    response = await ask(deployment, path, {"model": "many/weir"} | document)
    assert response.status == (415 if param == "Content-Type" else 400)
    assert json.loads(response.body)["error"]["param"] == param


async def test_a_form_s_wrong_field_is_refused_by_name(deployment: Deployment) -> None:
    form = {"model": "many/weir", "file": MP3, "stream": "yes"}
    response = await send_form(deployment, "/v1/audio/transcriptions", form)
    assert (response.status, json.loads(response.body)["error"]["param"]) == (400, "stream")


async def test_azures_deployments_of_pictures_and_audio(deployment: Deployment) -> None:
    """The deployment is in the path; its name may have dots and slashes."""
    for send, path, asked, answer in (
        (ask, "images/generations", {"prompt": "a weir"}, PICTURES),
        (send_form, "audio/transcriptions", {"file": MP3}, HEARD),
    ):
        model = deployment.plan("units", json_script(answer), "gpt-4.1-eu")
        assert (await send(deployment, f"/openai/deployments/{model}/{path}?{AZURE}", asked)).status == 200
        await check_azure(deployment, model, path)


async def check_azure(deployment: Deployment, model: str, path: str) -> None:
    entry = await deployment.entry(model)
    assert (entry["outcome"], entry["endpoint"]) == ("served", f"/openai/deployments/{{model}}/{path}")
    assert entry["details"]["units"]
    (seen,) = deployment.seen(model)
    assert seen["path"] == f"/v1/deployments/{model.partition('/')[2]}/{path}?{AZURE}"


AZURE = "api-version=2024-10-21"


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")
@pytest.mark.parametrize("azure", [False, True])
async def test_the_sdk_s_calls_of_each(deployment: Deployment, azure: bool) -> None:
    """That for Azure puts the deployment into the path of most."""
    common: dict[str, Any] = {
        "api_key": deployment.key, "max_retries": 0,
        "http_client": openai.DefaultAsyncHttpxClient(verify=False, trust_env=False),
    }  # fmt: skip
    async with (
        openai.AsyncAzureOpenAI(azure_endpoint=deployment.url, api_version="2024-10-21", **common)
        if azure
        else openai.AsyncOpenAI(base_url=f"{deployment.url}/v1", **common)
    ) as sdk:
        image, file = ("a.png", AUDIO, "image/png"), ("a.mp3", AUDIO)
        picture, heard = json_script(PICTURES), json_script(HEARD)
        asked: dict[str, tuple[Script, Callable[[str], Any]]] = {
            "images/generations": (picture, lambda model: sdk.images.generate(model=model, prompt="a weir")),
            "images/edits": (picture, lambda model: sdk.images.edit(model=model, prompt="x", image=[image, image])),
            "audio/speech": (audio(), lambda model: sdk.audio.speech.create(model=model, input="x", voice="alloy")),
            "audio/transcriptions": (heard, lambda model: sdk.audio.transcriptions.create(model=model, file=file)),
            "audio/translations": (heard, lambda model: sdk.audio.translations.create(model=model, file=file)),
        }
        for path, (script, call) in asked.items():
            model = deployment.plan("units", script, "gpt-4.1-eu")
            await call(model)
            if azure:
                await check_azure(deployment, model, path)
            else:
                assert (await deployment.entry(model))["endpoint"] == f"/v1/{path}"


async def test_azures_v1_names_the_deployment_in_the_body(deployment: Deployment) -> None:
    model = deployment.plan("many", json_script({"object": "response.input_tokens", "input_tokens": 47}))
    response = await ask(deployment, "/openai/v1/responses/input_tokens", {"model": model, "input": "How much?"})
    assert response.status == 200
    assert (await deployment.entry(model))["charge_usd"] == "0"
    assert deployment.seen(model)[0]["path"] == "/v1/v1/responses/input_tokens"

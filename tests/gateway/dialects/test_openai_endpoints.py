"""OpenAI's other endpoints through the proxy, most of them asked by its own SDK: vectors, pictures, speech and files of
audio go through byte for byte, and each is billed in what it is counted in."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from proxy.demo.script import Cut, Script, Send, Stall, json_script
from tests.gateway.deployment import SOON_S, Deployment, charge, nusd
from tests.gateway.dialects.main_dialects import ask
from tests.gateway.streams import without_run
from tests.support.net import chat_request, connect
from tests.support.sdks import openai
from tests.support.sse import without_usage_event

AUDIO = bytes(range(256)) * 300


@pytest.fixture
async def sdk(deployment: Deployment) -> AsyncIterator[openai.AsyncOpenAI]:
    # Without certificates: reading the system's for each client costs more than the rest of a test.
    http = openai.DefaultAsyncHttpxClient(verify=False, trust_env=False)
    async with openai.AsyncOpenAI(
        base_url=f"{deployment.url}/v1", api_key=deployment.key, max_retries=0, http_client=http
    ) as client:
        yield client


def events(*documents: dict[str, Any]) -> list[bytes]:
    return [f"data: {json.dumps(one)}\n\n".encode() for one in documents]


def audio(*, kind: str = "audio/mpeg", **more: Any) -> Script:
    return Script(steps=(Send(AUDIO),), headers=(("Content-Type", kind),), chunking=Cut(size=9000), **more)


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
    deployment: Deployment, sdk: openai.AsyncOpenAI, last: dict[str, Any], end: bytes
) -> None:
    usage = {"prompt_tokens": 4, "completion_tokens": 2, "total_tokens": 6}
    for path, choice in (
        ("/v1/chat/completions", {"index": 0, "delta": {"content": "Much more"}, "finish_reason": None}),
        ("/v1/completions", {"index": 0, "text": "Much more", "finish_reason": None}),
    ):
        head, tail = events({"id": "c", "choices": [choice]}, last | {"usage": usage})
        done = b"data: [DONE]\n\n".replace(b"\n", end)
        head, tail = head.replace(b"\n", end), tail.replace(b"\n", end)
        model = deployment.plan("many", [Send(head), Send(tail), Send(done)])
        prompt: Any = {"messages": [{"role": "user", "content": "?"}]} if "chat" in path else {"prompt": "?"}
        response = await ask(deployment, path, {"model": model, "stream": True, **prompt})
        assert response.body == head + done
        create: Any = sdk.chat.completions.create if "chat" in path else sdk.completions.create
        chunks = [chunk async for chunk in await create(model=model, stream=True, **prompt)]
        assert len(chunks) == len([chunk.choices[0] for chunk in chunks]) == 1
        response = await ask(
            deployment, path, {"model": model, "stream": True, "stream_options": {"include_usage": True}, **prompt}
        )
        assert response.body == head + tail + done
        for entry in await deployment.entries(model, 3):
            assert (entry["outcome"], entry["usage_source"]) == ("served", "reported")
            assert (entry["prompt_tokens"], entry["completion_tokens"], nusd(entry)) == (4, 2, charge(entry))


async def test_embeddings(deployment: Deployment, sdk: openai.AsyncOpenAI) -> None:
    usage = {"prompt_tokens": 300, "total_tokens": 300}
    vectors = [{"object": "embedding", "index": at, "embedding": [0.125] * 1000} for at in range(100)]
    model = deployment.plan("many", json_script({"object": "list", "data": vectors, "model": "m", "usage": usage}))
    made = await sdk.embeddings.create(model=model, input=["a", "b"], encoding_format="float")
    assert [one.embedding for one in made.data] == [[0.125] * 1000] * 100
    entry = await deployment.entry(model)
    assert (entry["usage_source"], entry["prompt_tokens"], entry["completion_tokens"]) == ("reported", 300, 0)
    assert nusd(entry) == charge(entry) == 39_000


async def test_images_are_billed_by_the_piece_or_by_tokens(deployment: Deployment, sdk: openai.AsyncOpenAI) -> None:
    pictures = {"created": 1, "data": [{"url": "http://x.test/1"}, {"url": "http://x.test/2"}]}
    usage = {"input_tokens": 10, "output_tokens": 100, "total_tokens": 110}
    pieces = deployment.plan("units", json_script(pictures))
    tokens = deployment.plan("units", json_script(pictures | {"usage": usage}))
    for model in (pieces, tokens):
        assert len((await sdk.images.generate(model=model, prompt="a weir", n=2)).data or ()) == 2
    entry = await deployment.entry(pieces)
    assert (entry["usage_source"], entry["details"]["units"], entry["charge_usd"]) == (
        "reported",
        {"images": 2},
        "0.08",
    )
    entry = await deployment.entry(tokens)
    assert (entry["prompt_tokens"], entry["completion_tokens"], nusd(entry)) == (10, 100, charge(entry))
    assert "units" not in entry["details"]


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


async def test_an_edited_picture(deployment: Deployment, sdk: openai.AsyncOpenAI) -> None:
    usage = {"input_tokens": 300, "output_tokens": 100, "total_tokens": 400}
    model = deployment.plan("units", json_script({"created": 1, "data": [{"b64_json": "AA=="}], "usage": usage}))
    files = [("a.png", AUDIO, "image/png"), ("b.png", AUDIO[:99], "image/png")]
    made = await sdk.images.edit(model=model, image=files, prompt="a weir", n=1, quality="low")
    assert made.usage is not None
    assert made.usage.total_tokens == 400
    (seen,) = deployment.seen(model)
    assert seen["path"] == "/v1/images/edits"
    assert seen["body"].count('name="image[]"; filename=') == 2
    assert AUDIO.decode("latin-1") in seen["body"]
    entry = await deployment.entry(model)
    assert (entry["endpoint"], entry["usage_source"]) == ("/v1/images/edits", "reported")
    assert (entry["prompt_tokens"], entry["completion_tokens"], nusd(entry)) == (300, 100, charge(entry))


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


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")
async def test_variations_of_a_picture(deployment: Deployment, sdk: openai.AsyncOpenAI) -> None:
    model = deployment.plan("units", json_script({"created": 1, "data": [{"url": "http://x.test/1"}] * 3}))
    made = await sdk.images.create_variation(model=model, image=("a.png", AUDIO, "image/png"), n=3)
    assert len(made.data or ()) == 3
    entry = await deployment.entry(model)
    assert (entry["endpoint"], entry["details"]["units"]) == ("/v1/images/variations", {"images": 3})
    assert entry["charge_usd"] == "0.12"


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")
async def test_a_translation(deployment: Deployment, sdk: openai.AsyncOpenAI) -> None:
    told = {"text": "Over the weir.", "duration": 5.0, "language": "english"}
    model = deployment.plan("units", json_script(told))
    heard = await sdk.audio.translations.create(model=model, file=("a.mp3", AUDIO), response_format="verbose_json")
    assert heard.text == "Over the weir."
    entry = await deployment.entry(model)
    assert (entry["endpoint"], entry["details"]["units"]) == ("/v1/audio/translations", {"audio_ms": 5000})


async def test_counting_the_tokens_of_a_response_is_free(deployment: Deployment, sdk: openai.AsyncOpenAI) -> None:
    model = deployment.plan("many", json_script({"object": "response.input_tokens", "input_tokens": 47}))
    assert (await sdk.responses.input_tokens.count(model=model, input="How much?")).input_tokens == 47
    entry = await deployment.entry(model)
    assert (entry["charge_usd"], entry["prompt_tokens"], entry["outcome"]) == ("0", 0, "served")


async def test_a_compacted_conversation_is_billed(deployment: Deployment, sdk: openai.AsyncOpenAI) -> None:
    usage = {"input_tokens": 300, "output_tokens": 40, "total_tokens": 340}
    items = [
        {"type": "message", "id": "m", "role": "user", "status": "completed", "content": []},
        {"type": "compaction", "id": "c", "encrypted_content": "AAAA"},
    ]
    told = {"id": "resp_c", "object": "response.compaction", "created_at": 1, "output": items, "usage": usage}
    model = deployment.plan("many", json_script(told))
    made = await sdk.responses.compact(model=model, input="How much?")
    assert made.usage.total_tokens == 340
    entry = await deployment.entry(model)
    assert (entry["endpoint"], entry["usage_source"]) == ("/v1/responses/compact", "reported")
    assert (entry["prompt_tokens"], entry["completion_tokens"], nusd(entry)) == (300, 40, charge(entry))
    assert "unread" not in entry["details"]


async def test_speech_goes_down_as_it_is_and_is_billed_by_its_characters(
    deployment: Deployment, sdk: openai.AsyncOpenAI
) -> None:
    entries = []
    for script in (audio(), audio(framing="length"), audio(framing="close")):
        model = deployment.plan("units", script)
        spoken = await sdk.audio.speech.create(model=model, input="Over the weir.", voice="alloy")
        assert spoken.content == AUDIO
        assert spoken.response.headers["content-type"] == "audio/mpeg"
        entries.append(await deployment.entry(model))
    assert all(without_run(entry) == without_run(entries[0]) for entry in entries)
    entry = entries[0]
    assert (entry["outcome"], entry["usage_source"], entry["bytes"]) == ("served", "estimated", len(AUDIO))
    assert entry["details"]["units"] == {"characters": 14, "audio_completion_tokens": 20}
    assert nusd(entry) == charge(entry) + 14 * 15_000
    assert dict(deployment.seen(model)[0]["headers"])["Accept"] == "*/*"


async def test_speech_as_a_stream(deployment: Deployment, sdk: openai.AsyncOpenAI) -> None:
    usage = {"input_tokens": 4, "output_tokens": 30, "total_tokens": 34}
    told = events({"type": "speech.audio.delta", "audio": "UklG"}, {"type": "speech.audio.done", "usage": usage})
    model = deployment.plan("units", Script(steps=tuple(map(Send, told))))
    spoken = await sdk.audio.speech.create(model=model, input="Over", voice="alloy", stream_format="sse")
    assert spoken.content == b"".join(told)
    entry = await deployment.entry(model)
    assert (entry["outcome"], entry["usage_source"], entry["events"]) == ("served", "reported", 2)
    assert (entry["prompt_tokens"], entry["completion_tokens"], nusd(entry)) == (4, 30, charge(entry))


async def test_a_file_of_audio_goes_up_as_it_is(deployment: Deployment, sdk: openai.AsyncOpenAI) -> None:
    told = {"text": "Over the weir.", "usage": {"type": "duration", "seconds": 5}}
    model = deployment.plan("units", json_script(told))
    heard = await sdk.audio.transcriptions.create(
        model=model, file=("a.mp3", AUDIO, "audio/mpeg"), timestamp_granularities=["word", "segment"]
    )
    assert heard.text == "Over the weir."
    (seen,) = deployment.seen(model)
    form = seen["body"]
    assert f'name="file"; filename="a.mp3"\r\nContent-Type: audio/mpeg\r\n\r\n{AUDIO.decode("latin-1")}\r\n' in form
    assert f'name="model"\r\n\r\n{model.partition("/")[2]}\r\n' in form
    assert form.count('name="timestamp_granularities[]"\r\n\r\n') == 2
    boundary = dict(seen["headers"])["Content-Type"].partition("boundary=")[2]
    assert form.startswith(f"--{boundary}\r\n")
    entry = await deployment.entry(model)
    assert (entry["usage_source"], entry["details"]["units"], entry["charge_usd"]) == (
        "reported", {"audio_ms": 5000}, "0.0005",
    )  # fmt: skip


async def test_a_transcript_as_text_is_estimated_and_says_so(deployment: Deployment, sdk: openai.AsyncOpenAI) -> None:
    script = Script(steps=(Send(b"Over the weir.\n"),), headers=(("Content-Type", "text/plain"),), framing="length")
    model = deployment.plan("units", script)
    sound = (Path(__file__).parents[2] / "metering" / "audio" / "sounds" / "cbr.mp3").read_bytes()
    heard = await sdk.audio.transcriptions.create(model=model, file=("a.mp3", sound), response_format="text")
    assert heard == "Over the weir.\n"
    entry = await deployment.entry(model)
    assert (entry["outcome"], entry["usage_source"], entry["details"]["flags"]) == (
        "served", "estimated", ["audio_unknown"],
    )  # fmt: skip
    assert entry["details"]["units"] == {"audio_ms": 784}


async def test_a_file_of_no_known_format_is_a_guess_and_flagged(
    deployment: Deployment, sdk: openai.AsyncOpenAI
) -> None:
    script = Script(steps=(Send(b"Over the weir.\n"),), headers=(("Content-Type", "text/plain"),), framing="length")
    model = deployment.plan("units", script)
    await sdk.audio.transcriptions.create(model=model, file=("a.mp3", b"x" * 8000), response_format="text")
    entry = await deployment.entry(model)
    assert entry["details"]["flags"] == ["audio_unknown", "audio_doubtful"]
    assert entry["details"]["units"] == {"audio_ms": 2000}


async def test_a_transcript_as_a_stream(deployment: Deployment, sdk: openai.AsyncOpenAI) -> None:
    usage = {"type": "tokens", "input_tokens": 37, "output_tokens": 4, "total_tokens": 41}
    told = events(
        {"type": "transcript.text.delta", "delta": "Over"},
        {"type": "transcript.text.done", "text": "Over", "usage": usage},
    )
    model = deployment.plan("units", Script(steps=tuple(map(Send, told))))
    stream = await sdk.audio.transcriptions.create(model=model, file=("a.mp3", AUDIO), stream=True)
    assert [event.type async for event in stream] == ["transcript.text.delta", "transcript.text.done"]
    entry = await deployment.entry(model)
    assert (entry["streamed"], entry["usage_source"], entry["prompt_tokens"]) == (True, "reported", 37)


async def test_a_repeated_form_is_one_whatever_its_boundary(deployment: Deployment, sdk: openai.AsyncOpenAI) -> None:
    model = deployment.plan("units", json_script({"text": "Over", "usage": {"type": "duration", "seconds": 5}}))
    headers = {"Idempotency-Key": "one-form"}
    await sdk.audio.transcriptions.create(model=model, file=("a.mp3", AUDIO), extra_headers=headers)
    with pytest.raises(openai.ConflictError):
        await sdk.audio.transcriptions.create(model=model, file=("a.mp3", AUDIO), extra_headers=headers)
    with pytest.raises(openai.UnprocessableEntityError):
        await sdk.audio.transcriptions.create(model=model, file=("b.mp3", AUDIO), extra_headers=headers)
    await deployment.entry(model)


async def test_search_units_and_moderations(deployment: Deployment, sdk: openai.AsyncOpenAI) -> None:
    ranked = {"id": "r1", "results": [{"index": 0}], "meta": {"billed_units": {"search_units": 3}}}
    model = deployment.plan("units", json_script(ranked))
    document = {"model": model, "query": "weir", "documents": ["water", "wine"]}
    assert json.loads((await ask(deployment, "/v2/rerank", document)).body) == ranked
    entry = await deployment.entry(model)
    assert (entry["details"]["units"], entry["charge_usd"]) == ({"searches": 3}, "0.006")
    model = deployment.plan("many", json_script({"id": "modr-1", "model": "m", "results": []}))
    await sdk.moderations.create(model=model, input="Over the weir.")
    entry = await deployment.entry(model)
    assert (entry["outcome"], entry["usage_source"], nusd(entry)) == ("served", "estimated", charge(entry))


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


async def test_a_form_without_a_file_is_refused_by_name(deployment: Deployment, sdk: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refusal:
        await sdk.audio.transcriptions.create(model="many/weir", file=("a.mp3", AUDIO), extra_body={"stream": "yes"})
    assert refusal.value.param == "stream"


@pytest.fixture
async def azure(deployment: Deployment) -> AsyncIterator[openai.AsyncAzureOpenAI]:
    http = openai.DefaultAsyncHttpxClient(verify=False, trust_env=False)
    async with openai.AsyncAzureOpenAI(
        azure_endpoint=deployment.url,
        api_version="2024-10-21",
        api_key=deployment.key,
        max_retries=0,
        http_client=http,
    ) as client:
        yield client


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")
async def test_azures_deployments_of_pictures_and_audio(deployment: Deployment, azure: openai.AsyncAzureOpenAI) -> None:
    """The SDK puts the deployment into the path of most; a name may have dots and slashes."""
    picture = json_script({"created": 1, "data": [{"url": "http://x.test/1"}]})
    heard = json_script({"text": "Over the weir.", "usage": {"type": "duration", "seconds": 5}})
    asked = {
        "images/generations": (picture, lambda model: azure.images.generate(model=model, prompt="a weir")),
        "images/edits": (
            picture, lambda model: azure.images.edit(model=model, prompt="a weir", image=("a.png", AUDIO)),
        ),
        "audio/speech": (audio(), lambda model: azure.audio.speech.create(model=model, input="Over", voice="alloy")),
        "audio/transcriptions": (
            heard, lambda model: azure.audio.transcriptions.create(model=model, file=("a.mp3", AUDIO)),
        ),
        "audio/translations": (
            heard, lambda model: azure.audio.translations.create(model=model, file=("a.mp3", AUDIO)),
        ),
    }  # fmt: skip
    for path, (script, call) in asked.items():
        model = deployment.plan("units", script, "gpt-4.1-eu")
        await call(model)
        entry = await deployment.entry(model)
        assert (entry["outcome"], entry["endpoint"]) == ("served", f"/openai/deployments/{{model}}/{path}")
        assert entry["details"]["units"]
        (seen,) = deployment.seen(model)
        assert seen["path"] == f"/v1/deployments/{model.partition('/')[2]}/{path}?api-version=2024-10-21"


async def test_azures_v1_names_the_deployment_in_the_body(deployment: Deployment) -> None:
    model = deployment.plan("many", json_script({"object": "response.input_tokens", "input_tokens": 47}))
    response = await ask(deployment, "/openai/v1/responses/input_tokens", {"model": model, "input": "How much?"})
    assert response.status == 200
    assert (await deployment.entry(model))["charge_usd"] == "0"
    assert deployment.seen(model)[0]["path"] == "/v1/v1/responses/input_tokens"

"""OpenAI's own WebSocket clients through the gateway, and providers behind a private CA and an HTTP proxy."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from aiohttp import WSServerHandshakeError

from proxy.billing.record import Outcome
from proxy.metering.usage import Usage
from proxy.settings import ForwardProxy, Secret, TlsSettings
from tests.gateway.websocket.sockets import CREATE, Stage, begun, completed, done, said, stage
from tests.support.certificates import Authority
from tests.support.connect_proxy import connect_proxy
from tests.support.sdks import openai
from tests.support.socket_provider import SocketProvider

pytestmark = pytest.mark.io

AUDIO_USAGE: dict[str, Any] = {
    "total_tokens": 60, "input_tokens": 40, "output_tokens": 20,
    "input_token_details": {
        "text_tokens": 10, "audio_tokens": 30, "cached_tokens": 12,
        "cached_tokens_details": {"text_tokens": 4, "audio_tokens": 8},
    },
    "output_token_details": {"text_tokens": 5, "audio_tokens": 15},
}  # fmt: skip


def client(on: Stage) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{on.gateway.url}/v1", api_key="k", max_retries=0)


@pytest.mark.thorough
async def test_a_conversation_of_realtime(on: Stage) -> None:
    async with client(on) as sdk, sdk.realtime.connect(model="electron") as connection:
        link = await on.provider.link()
        await link.say({"type": "session.created", "session": {"type": "realtime", "model": "electron"}})
        assert (await connection.recv()).type == "session.created"
        await connection.session.update(session={"type": "realtime", "output_modalities": ["audio"]})
        await link.hear("session.update")
        await connection.input_audio_buffer.append(audio=base64.b64encode(bytes(4800)).decode())
        await connection.response.create()
        await link.hear("response.create")
        audio = base64.b64encode(bytes(48_000)).decode()
        await link.say(
            begun(),
            {"type": "response.output_audio.delta", "response_id": "resp_1", "delta": audio},
            {"type": "response.output_audio_transcript.delta", "response_id": "resp_1", "delta": "Drei"},
            done(usage=AUDIO_USAGE),
        )
        kinds = []
        async for event in connection:
            kinds.append(event.type)
            if event.type == "response.done":
                assert event.response.usage is not None
                assert event.response.usage.output_tokens == 20
                break
        assert kinds[1:3] == ["response.output_audio.delta", "response.output_audio_transcript.delta"]
    assert await link.until_gone() == (1000, "")
    record = await on.record()
    assert record.outcome is Outcome.SERVED
    expected = Usage(40, 12, 20, None, 60, audio_prompt_tokens=30, audio_completion_tokens=15, cached_audio_tokens=8)
    assert record.reading.usage == expected


@pytest.mark.thorough
async def test_responses_over_a_websocket(on: Stage) -> None:
    async with client(on) as sdk, sdk.responses.connect() as connection:
        await connection.response.create(model="electron", input="Was kostet das?", stream=True)
        link = await on.provider.link()
        assert (await link.hear("response.create"))["model"] == "electron"
        await link.say(begun(), said("Drei"), completed())
        async for event in connection:
            if event.type == "response.completed":
                break
        # A warm-up generates nothing, and is billed as it says.
        warm_up = CREATE | {"generate": False}
        await connection.send(warm_up)  # type: ignore[arg-type]
        assert (await link.hear("response.create"))["generate"] is False
        usage = {"input_tokens": 5, "output_tokens": 0, "total_tokens": 5}
        await link.say(begun("resp_2"), completed("resp_2", usage=usage))
        async for event in connection:
            if event.type == "response.completed":
                break
    await on.record(1)
    first, second = on.records
    assert (first.reading.usage.prompt_tokens, first.reading.usage.completion_tokens) == (3, 4)
    assert (second.reading.usage.prompt_tokens, second.reading.usage.completion_tokens) == (5, 0)


# -- the way to the provider


async def test_a_private_authority_a_client_certificate_and_a_tunnel_serve_websockets_too(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "pki")
    issued, mine = authority.issue("server"), authority.issue("client")
    speaking = SocketProvider(tls=authority.server_context(issued, clients=True))
    async with connect_proxy(credentials="user:word") as tunnel:
        way = {
            "tls": TlsSettings(ca_file=authority.file, cert_file=mine.cert, key_file=mine.key),
            "proxy": ForwardProxy("127.0.0.1", tunnel.port, False, Secret("user:word")),
        }
        async with stage(tmp_path, provider=speaking, **way) as on, on.talk() as (one, link):
            await one.say({"type": "response.create"})
            await link.hear("response.create")
            await link.say(begun(), said("Drei"), done())
            assert (await one.hear("response.done"))["response"]["id"] == "resp_1"
            assert tunnel.targets == [speaking.base_url.removeprefix("https://").removesuffix("/v1")]
            assert (await on.record()).outcome is Outcome.SERVED


async def assert_unreachable(tmp_path: Path, **way: Any) -> None:
    """A provider whose certificate nobody vouches for, this way to it."""
    authority = Authority(tmp_path / "pki")
    speaking = SocketProvider(tls=authority.server_context(authority.issue("server")))
    async with stage(tmp_path, provider=speaking, **way) as on:
        with pytest.raises(WSServerHandshakeError) as refused:
            async with on.client():
                pass
        assert refused.value.status == 502
        assert speaking.links == []


@pytest.mark.parametrize("behaviour", ["forbids", "garbage", "closes"])
async def test_a_tunnel_that_does_not_open_is_no_provider(behaviour: Any, tmp_path: Path) -> None:
    async with connect_proxy(behaviour) as tunnel:
        await assert_unreachable(tmp_path, proxy=ForwardProxy("127.0.0.1", tunnel.port, False, None))


async def test_a_certificate_of_nobody_is_refused(tmp_path: Path) -> None:
    await assert_unreachable(tmp_path)

"""Leaks: secrets and texts are planted, all kinds of exchanges are made, and no log, file or answer has them."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import signal
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from proxy.demo.script import Send, Shape, Stall
from proxy.demo.shapes import sse
from tests.security.payloads import refused
from tests.support.net import Response, ask, chat_request, connect
from tests.support.provider import ScriptedProvider, broken_after, error_script, garbage, sse_script
from tests.support.tokenweir import COMMAND, Tokenweir, provider_section

PROMPT = "canary-prompt-4f0c"
COMPLETION = "canary-completion-91be"
OWN = "sk-canary-of-a-client-2f6d8a117c"
"""a client's own provider credential"""
DONE = b"data: [DONE]\n\n"


def said(text: str) -> bytes:
    """One event that generates `text`."""
    return sse({"id": "c1", "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]})


@dataclass(slots=True)
class Aviary:
    """A deployment of its own, what it answered, and what must be found nowhere."""

    tokenweir: Tokenweir
    provider: ScriptedProvider
    key: str
    byok_key: str
    """for clients with their own credential"""
    answers: list[Response] = field(default_factory=list)
    command_lines: bytes = b""
    metrics: bytes = b""
    printed: bytes = b""

    async def ask(self, model: str, **more: object) -> None:
        """One exchange with everything planted, to its end."""
        messages = [{"role": "user", "content": PROMPT}]
        await self.send(chat_request(ask(model) | {"messages": messages} | more, key=self.key))

    async def ask_own(self, model: str) -> None:
        """The same with the client's own credential, in each of the headers for it."""
        body = ask(model) | {"messages": [{"role": "user", "content": PROMPT}]}
        await self.send(chat_request(body, key=self.byok_key, headers={"x-tokenweir-provider-key": OWN}))
        await self.send(chat_request(body, key=OWN, headers={"x-tokenweir-key": self.byok_key}))
        await self.send(chat_request(body, key=self.key, headers={"x-tokenweir-provider-key": OWN}))

    async def send(self, wire: bytes, *, ends: bool = False) -> None:
        """These bytes, and whatever comes back; `ends`: no more will come, and the proxy hears it."""
        async with await connect(self.tokenweir.url) as client:
            await client.send(wire)
            if ends:
                client.half_close()
            with suppress(EOFError, ConnectionError):
                self.answers.append(await client.read())

    def look(self) -> None:
        """Keep what only a running process shows."""
        child = self.tokenweir.child
        assert child is not None
        self.command_lines += Path(f"/proc/{child.pid}/cmdline").read_bytes()

    async def scrape(self) -> None:
        """Keep what /metrics says."""
        async with await connect(self.tokenweir.url) as client:
            await client.send(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
            self.metrics += (await client.read()).body

    def stop(self) -> None:
        """Stop it, and keep its last words."""
        child = self.tokenweir.child
        assert child is not None
        assert child.stdout is not None
        child.send_signal(signal.SIGTERM)
        self.printed += child.stdout.read().encode()
        assert self.tokenweir.stop() == 0


@pytest.fixture(scope="module", params=["copied", pytest.param("by command", marks=pytest.mark.slow)])
def aviary(
    tmp_path_factory: pytest.TempPathFactory, provider_process: ScriptedProvider, request: pytest.FixtureRequest
) -> Iterator[Aviary]:
    """Everything that can happen has happened in it, and it has stopped. Only what was started by its command shows a
    command line of its own."""
    provider_process.reset()
    deployment = Tokenweir(
        tmp_path_factory.mktemp("aviary"),
        providers={"scripted": provider_section(provider_process.base_url, byok=True)},
        shutdown_grace_s=0.1,
        estimates={},  # texts are held and counted
    )
    if request.param == "by command":
        deployment.program = COMMAND
    deployment.start()
    byok_key = deployment.key("own", "--byok", "5%")
    aviary = Aviary(deployment, provider_process, deployment.key(), byok_key)
    try:
        asyncio.run(_everything(aviary))
        yield aviary
    finally:
        deployment.close()


async def _everything(aviary: Aviary) -> None:
    aviary.look()
    await _exchanges(aviary)
    await _refusals(aviary)
    await _leave(aviary)
    await _crash(aviary)
    await _cut_by_stop(aviary)


async def _exchanges(aviary: Aviary) -> None:
    script = aviary.provider.script
    secret = aviary.tokenweir.PROVIDER_KEY
    text = f"{COMPLETION} "
    script("plain", Shape("openai", text=text))
    await aviary.ask("plain")
    await aviary.ask("plain", stream=False)
    script("silent-on-usage", Shape("tera", text=text, reports_usage=False))
    await aviary.ask("silent-on-usage")
    for ending in ("reset", "fin"):
        script("breaks", broken_after([said(COMPLETION)], ending))  # type: ignore[arg-type]
        await aviary.ask("breaks")
    error = sse({"error": {"message": f"{COMPLETION} {PROMPT} {secret}", "type": "server_error"}})
    script("fails", sse_script([said(COMPLETION), error, DONE]))
    await aviary.ask("fails")
    # The finish reason and the id are the provider's words, too; what is no word must not be kept.
    odd = {"index": 0, "delta": {"content": COMPLETION}, "finish_reason": f"{COMPLETION} {PROMPT} {secret}"}
    script("odd", sse_script([sse({"id": f"{PROMPT} {secret}", "model": PROMPT, "choices": [odd]}), DONE]))
    await aviary.ask("odd")
    usage = {"prompt_tokens": 3, "completion_tokens": 1, "note": "harmless"}
    script("noted", sse_script([said(COMPLETION), sse({"id": "c1", "choices": [], "usage": usage}), DONE]))
    await aviary.ask("noted")
    script("garbage", garbage(f"{COMPLETION} {PROMPT} {secret}\r\n\r\n".encode()))
    await aviary.ask("garbage")
    for status in (400, 401, 403, 404, 429, 500, 503):
        script("refuses", error_script(status, f"bad key {secret} for {PROMPT}"))
        await aviary.ask("refuses")
    for name in ("plain", "silent-on-usage", "breaks", "garbage", "refuses"):
        await aviary.ask_own(name)
    script("refuses", error_script(401, "no such key"))
    await aviary.ask_own("refuses")


async def _refusals(aviary: Aviary) -> None:
    """Heads and bodies that cannot be read, each with the key and the prompt in it."""
    body = b'{"model":"plain","messages":[{"role":"user","content":"%b"}]}' % PROMPT.encode()
    for wire in refused(body, aviary.key).values():
        await aviary.send(wire)
    await aviary.send(chat_request(body.replace(b'"}]', b'"}'), key=aviary.key))
    await aviary.send(chat_request(body.replace(b"plain", b"plain\\n"), key=aviary.key))
    await aviary.send(chat_request(body[:-1] + b',"n":NaN}', key=aviary.key))
    await aviary.send(chat_request(body[:-1] + b',"n":"x"}', key=aviary.key))
    await aviary.send(chat_request(body[:-9], key=aviary.key, headers={"Content-Length": "9999"}), ends=True)
    await aviary.send(chat_request(body, key=aviary.key[:-1] + "!"))
    await aviary.send(chat_request(body, key=aviary.key, path=f"/v1/nowhere?key={aviary.key}"))
    await aviary.send(b"GET /metrics?key=" + aviary.key.encode() + b" HTTP/1.1\r\nHost: a\r\n\r\n")


async def _running(aviary: Aviary, name: str, *, own: bool = False) -> tuple[object, Response]:
    """`own`: with the client's own credential."""
    aviary.provider.script(name, (Send(said(COMPLETION)), Send(said(COMPLETION)), Stall()))
    messages = [{"role": "user", "content": PROMPT}]
    client = await connect(aviary.tokenweir.url)
    key, headers = (aviary.byok_key, {"x-tokenweir-provider-key": OWN}) if own else (aviary.key, {})
    await client.send(chat_request(ask(name) | {"messages": messages}, key=key, headers=headers))
    return client, await client.read_body(await client.read_head(), until=b"data:")


async def _leave(aviary: Aviary) -> None:
    client, _ = await _running(aviary, "left")
    client.reset()  # type: ignore[attr-defined]
    await asyncio.to_thread(
        aviary.tokenweir.until, lambda entries: any(entry["outcome"] == "client_left" for entry in entries)
    )


async def _crash(aviary: Aviary) -> None:
    client, answer = await _running(aviary, "killed")
    own_client, _ = await _running(aviary, "killed", own=True)
    aviary.answers.append(answer)
    await aviary.scrape()
    await asyncio.to_thread(aviary.tokenweir.kill)
    client.close()  # type: ignore[attr-defined]
    own_client.close()  # type: ignore[attr-defined]
    await asyncio.to_thread(aviary.tokenweir.start)
    aviary.look()
    await asyncio.to_thread(
        aviary.tokenweir.until, lambda entries: sum(entry["outcome"] == "crashed" for entry in entries) == 2
    )


async def _cut_by_stop(aviary: Aviary) -> None:
    client, answer = await _running(aviary, "cut")
    aviary.answers.append(answer)
    await aviary.scrape()
    await asyncio.to_thread(aviary.stop)
    client.close()  # type: ignore[attr-defined]


def disguises(secret: str) -> list[bytes]:
    """A secret as it is, in parts long enough to be of use, hashed without the pepper, and as common codes have it."""
    raw = secret.encode()
    whole = [raw, base64.b64encode(raw)[:-4], raw.hex().encode(), hashlib.sha256(raw).hexdigest().encode()]
    return [*whole, hashlib.sha256(raw).digest(), raw[:20], raw[-16:]]


def test_everything_happened(aviary: Aviary) -> None:
    outcomes = {entry["outcome"] for entry in aviary.tokenweir.read_ledger()}
    assert outcomes >= {"served", "client_left", "upstream_failed", "crashed", "shut_down", "refused_upstream"}
    own = [entry for entry in aviary.tokenweir.read_ledger() if "byok" in entry["details"]]
    assert {entry["outcome"] for entry in own} >= {"served", "upstream_failed", "crashed", "refused_upstream"}
    assert {entry["cost_usd"] for entry in own} == {"0"}
    assert len(aviary.answers) > 100
    assert b"tokenweir_exchanges_total" in aviary.metrics
    assert aviary.tokenweir.program is None or b"serve" in aviary.command_lines
    logged = [one for one in aviary.provider.log() if PROMPT in str(one["body"])]
    assert len(logged) > 10, "the prompt did go up"
    assert COMPLETION.encode() in b"".join(answer.body for answer in aviary.answers), "the answer did come down"


def test_the_keys_are_nowhere(aviary: Aviary) -> None:
    left = aviary.tokenweir.outputs() + aviary.metrics + aviary.command_lines + aviary.printed
    answered = b"".join(answer.head + answer.body for answer in aviary.answers)
    for secret in (aviary.key, aviary.byok_key, OWN, aviary.tokenweir.PROVIDER_KEY):
        for disguise in disguises(secret):
            assert disguise not in left, f"on disk or in metrics: {disguise!r}"
    for disguise in (*disguises(aviary.key), *disguises(OWN)):
        assert disguise not in answered
    went_up = [dict(one["headers"]).get("Authorization") for one in aviary.provider.log()]
    assert f"Bearer {OWN}" in went_up
    assert {one for one in went_up if one and OWN in one} == {f"Bearer {OWN}"}
    assert b"keys create" not in aviary.command_lines


def test_the_providers_key_does_not_come_down(aviary: Aviary) -> None:
    """But for what a provider itself writes into a stream that has begun: its bytes are passed on as they are."""
    for answer in aviary.answers:
        if answer.header("content-type") != "text/event-stream":
            assert aviary.tokenweir.PROVIDER_KEY.encode() not in answer.head + answer.body


def test_no_prompt_and_no_answer_is_kept(aviary: Aviary) -> None:
    left = aviary.tokenweir.outputs() + aviary.metrics + aviary.command_lines + aviary.printed
    for text in (PROMPT, COMPLETION):
        assert text.encode() not in left
        assert base64.b64encode(text.encode())[:-4] not in left
        assert text.encode("utf-16-le") not in left


def test_what_the_ledger_packs_is_looked_into_as_well(aviary: Aviary) -> None:
    """Whatever a file's format hides from a search, the database gives back as text."""
    connection = sqlite3.connect(aviary.tokenweir.folder / "data" / "ledger.db")
    try:
        dump = "\n".join(connection.iterdump())
    finally:
        connection.close()
    assert "ledger_entries" in dump
    for text in (PROMPT, COMPLETION, OWN, aviary.key, aviary.byok_key, aviary.tokenweir.PROVIDER_KEY):
        assert text not in dump


def test_what_is_on_disk_is_its_owners(aviary: Aviary) -> None:
    data_dir = aviary.tokenweir.folder / "data"
    found = {path: stat.S_IMODE(path.stat().st_mode) for path in [data_dir, *data_dir.rglob("*")]}
    assert {path.name for path in found} >= {"data", "journal", "ledger.db", "pepper", "progress.table"}
    for path, mode in found.items():
        assert mode == (0o700 if path.is_dir() else 0o600), f"{path.name}: {mode:o}"

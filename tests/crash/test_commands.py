"""The commands beside a running server, each a process of its own: what one does, the others see."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from proxy.cli import NOT_FOUND, main
from proxy.demo.script import Shape
from tests.crash.stage import PATIENCE_S, Stage, entries_of
from tests.support.provider import ScriptedProvider
from tests.support.tokenweir import Tokenweir

PLAIN = Shape("openai", tokens=3)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that only read may run in this process: it has their environment."""
    monkeypatch.setenv("TEST_PROVIDER_KEY", Tokenweir.PROVIDER_KEY)


@pytest.mark.thorough
async def test_a_key_counts_as_soon_as_it_is_made_and_not_for_long_when_it_is_revoked(
    running: Tokenweir, provider: ScriptedProvider, here: None, capsys: pytest.CaptureFixture[str]
) -> None:
    provider.script("asked", PLAIN)
    made = json.loads(running.command("keys", "create", "--alias", "short-lived", "--model", "asked").stdout)
    async with Stage(running, made["key"]) as stage:
        assert (await stage.whole("asked", stream=False)).status == 200
        assert (await stage.whole("not-for-it", stream=False)).status == 403
        running.command("keys", "revoke", "short-lived")
        time.sleep(1)
        refused = await stage.whole("asked", stream=False)
    assert refused.status == 401
    assert b"revoked" in refused.body
    assert main(["keys", "list", "--config", str(running.config)]) == 0
    listed = capsys.readouterr().out
    assert made["key"] not in listed
    assert made["key"].removeprefix("tw-")[6:-6] not in listed
    by_id = {key["key_id"]: key for key in map(json.loads, listed.splitlines())}
    assert by_id[made["key_id"]]["revoked_at"] is not None


@pytest.mark.thorough
async def test_the_ledger_is_followed_as_entries_come(running: Tokenweir, key: str, provider: ScriptedProvider) -> None:
    provider.script("followed-1", PLAIN)
    provider.script("followed-2", PLAIN)
    command = [sys.executable, "-m", "proxy", "ledger", "--json", "--follow", "--config", str(running.config)]
    following = await asyncio.create_subprocess_exec(
        *command, cwd=running.folder, env=running.environment, stdout=asyncio.subprocess.PIPE
    )
    try:
        async with Stage(running, key) as stage:
            for name in ("followed-1", "followed-2"):
                assert (await stage.whole(name)).ended == "complete"
                assert (await _shown(following, name))["outcome"] == "served"
        following.send_signal(signal.SIGINT)
        async with asyncio.timeout(PATIENCE_S):
            assert await following.wait() == 0
    finally:
        if following.returncode is None:
            following.kill()
        await following.communicate()


async def _shown(following: asyncio.subprocess.Process, model: str) -> dict[str, Any]:
    """The next entry of that model that is printed; those of earlier tests come first."""
    assert following.stdout is not None
    async with asyncio.timeout(PATIENCE_S):
        while True:
            entry: dict[str, Any] = json.loads(await following.stdout.readline())
            if entry["model"] == model:
                return entry


async def test_an_exchange_is_set_right_beside_a_running_server(
    running: Tokenweir, key: str, provider: ScriptedProvider, here: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """And all that this server has settled so far, in whatever tests, adds up."""
    provider.script("set-right", PLAIN)
    async with Stage(running, key) as stage:
        assert (await stage.whole("set-right")).ended == "complete"
        (entry,) = entries_of(running, "set-right")
        adjust = ("adjust", entry["exchange_id"], "--reason", "goodwill", "--charge-usd", "0")
        written = json.loads(running.command(*adjust).stdout)
        assert written["charge_usd"] == f"-{entry['charge_usd']}"
        assert (await stage.whole("set-right")).ended == "complete"
    running.until(lambda entries: sum(one["model"] == "set-right" for one in entries) == 3)
    assert main(["reconcile", "--config", str(running.config)]) == 0, capsys.readouterr().out


async def test_migrating_beneath_a_running_server_is_harmless(
    running: Tokenweir, key: str, provider: ScriptedProvider
) -> None:
    provider.script("beneath", Shape("openai", tokens=20, pace_ms=20))
    async with Stage(running, key) as stage:
        client, response = await stage.begin("beneath")
        assert "up to date" in running.command("migrate").stdout
        assert (await client.read_body(response)).ended == "complete"
    assert entries_of(running, "beneath")[0]["outcome"] == "served"


COMMANDS = (
    ("serve",),
    ("migrate",),
    ("keys", "create", "--alias", "a"),
    ("keys", "list"),
    ("keys", "revoke", "a"),
    ("ledger",),
    ("adjust", "an-exchange", "--reason", "r", "--charge-usd", "0"),
    ("rerate", "--model", "m", "--since", "1h"),
    ("dead-letters", "list"),
    ("dead-letters", "retry", "--all"),
    ("dead-letters", "drop", "an-unknown-id", "--reason", "r"),
    ("reconcile",),
)
WRONG = {
    "": "must be a mapping",
    "providers: {one: {base_url: 'http://127.0.0.1:1/v1'}}\nmodels: {m: {provider: two}}": "models.m.provider: ",
    "providers: {one: {base_url: nowhere}}\nmodels: {m: {provider: one}}": "providers.one.base_url: ",
    "listen: {port: 99999}": "listen.port: ",
    "shutdown_grace: 3": "shutdown_grace: unknown field; did you mean shutdown_grace_s?",
}


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_names_the_field_it_cannot_read(
    command: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "tokenweir.yaml"
    assert main([*command, "--config", str(config)]) == 1
    assert "tokenweir.yaml" in capsys.readouterr().err
    for text, said in WRONG.items():
        config.write_text(text)
        assert main([*command, "--config", str(config)]) == 1
        printed = capsys.readouterr()
        assert re.match(f"tokenweir: .*{re.escape(said)}", printed.err), "others may follow"
        assert printed.out == ""
    assert list(tmp_path.iterdir()) == [config], "a refused command leaves nothing behind"


def test_a_second_proxy_is_told_which_process_has_the_data_folder(running: Tokenweir, here: None) -> None:
    done = running.command("serve", "--port", "0", check=False)
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1
    assert last.startswith(f"tokenweir: data_dir: {running.config.parent / 'data'} is used by process ")
    assert re.search(r"process \d+, since 20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ\. ", last)
    assert all(words in last for words in ("`tokenweir reload`", "`serve --workers N`", "set another data_dir"))


def test_what_is_not_there_is_said(running: Tokenweir, here: None, capsys: pytest.CaptureFixture[str]) -> None:
    config = ["--config", str(running.config)]
    assert main(["keys", "revoke", "nobody", *config]) == NOT_FOUND
    said = capsys.readouterr().err
    assert said.startswith("tokenweir: ")
    assert "nobody" in said
    assert main(["dead-letters", "drop", "an-unknown-id", "--reason", "r", *config]) == NOT_FOUND
    assert "no dead letter has the id" in capsys.readouterr().err

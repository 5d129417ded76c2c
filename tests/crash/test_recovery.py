"""What a start finds after a crash: each exchange ends once, as far as it had come; damage is said, and survived."""

from __future__ import annotations

from contextlib import closing
from decimal import Decimal
from pathlib import Path

import pytest

from proxy.demo.script import Script, Send, Shape, Stall
from proxy.demo.shapes import sse as event
from tests.crash.chaos import deployment, gauges
from tests.crash.stage import Stage, entries_of, quick_key, until
from tests.support import sse
from tests.support.provider import ScriptedProvider, broken_after, silent
from tests.support.tokenweir import Tokenweir

LONG = Shape("openai", tokens=3_000, pace_ms=10)
PLAIN = Shape("openai", tokens=3)
USAGE = {"prompt_tokens": 31, "completion_tokens": 7, "total_tokens": 38}


async def test_each_exchange_is_settled_as_far_as_it_had_come(
    running: Tokenweir, key: str, provider: ScriptedProvider
) -> None:
    words = [event({"choices": [{"index": 0, "delta": {"content": f"drop {number} "}}]}) for number in range(7)]
    last = event({"choices": [], "usage": USAGE})
    provider.script("cut-flows", LONG)
    provider.script("cut-told", broken_after([*words, last], "stall"))
    provider.script("cut-head", Script(steps=(Stall(),)))
    provider.script("cut-amid", [Send(words[0]), Send(words[1][:-20]), Stall()])
    provider.script("cut-silent", silent())
    provider.script("cut-drained", LONG)
    provider.script("cut-left", LONG)
    provider.script("over", PLAIN)
    async with Stage(running, key) as stage:
        flowing, flows = await stage.begin("cut-flows", user="alice")
        _, told = await stage.begin("cut-told", usage=True, until=b'"usage"')
        _, amid = await stage.begin("cut-amid", until=words[1][:-20])
        head = await (await stage.ask("cut-head")).read_head()
        await stage.ask("cut-silent", stream=False)
        for name in ("drain/cut-drained", "cut-left"):
            leaving, _ = await stage.begin(name)
            leaving.close()
        assert (await stage.whole("over")).ended == "complete"
        entries_of(running, "cut-left", "over")
        await flowing.read_body(flows, until=b"miller")
        await until(lambda: len(provider.log()) == 8)
        running.kill()
        await flowing.read_body(flows)
    running.start()
    names = ("cut-flows", "cut-told", "cut-amid", "cut-head", "cut-silent", "drain/cut-drained")
    found = dict(zip(names, entries_of(running, *names), strict=True))
    assert {entry["outcome"] for entry in found.values()} == {"crashed"}
    assert all(entry["details"]["recovered"] for entry in found.values())

    assert found["cut-flows"]["usage_source"] == "estimated"
    assert running.dimensions(found["cut-flows"]) == {"end_user": "alice"}
    for name, response in {"cut-flows": flows, "cut-told": told, "cut-amid": amid}.items():
        assert found[name]["events"] >= len(sse.events(response.body))
        assert found[name]["bytes"] >= len(response.body)
    assert (found["cut-told"]["usage_source"], found["cut-told"]["completion_tokens"]) == ("reported", 7)
    assert found["cut-amid"]["completion_tokens"] >= 1
    assert head.header("x-tokenweir-exchange") == found["cut-head"]["exchange_id"]
    assert [Decimal(found[name]["charge_usd"]) for name in ("cut-head", "cut-silent")] == [0, 0], (
        "nothing was delivered"
    )
    assert Decimal(found["drain/cut-drained"]["charge_usd"]) > 0, "it was being read on for the bill"
    assert [entry["outcome"] for entry in entries_of(running, "cut-left", "over")] == ["client_left", "served"]


async def test_a_torn_last_frame_is_no_damage_and_a_lost_table_no_loss(
    running: Tokenweir, key: str, provider: ScriptedProvider
) -> None:
    provider.script("torn", LONG)
    async with Stage(running, key) as stage:
        await stage.begin("torn")
        running.kill()
    last = max((running.folder / "data" / "journal").glob("*.log"))
    whole = last.read_bytes()
    last.write_bytes(whole + whole[:40])
    (running.folder / "data" / "progress.table").unlink()
    running.start()
    (entry,) = entries_of(running, "torn")
    assert (entry["outcome"], entry["details"]["progress"]) == ("crashed", "missing")
    assert gauges(running)["tokenweir_journal_damage_total"] == 0


@pytest.mark.thorough
async def test_a_corrupted_journal_is_said_and_kept_and_the_proxy_serves(
    tmp_path: Path, provider: ScriptedProvider
) -> None:
    names = [provider.script(f"open-{number}", LONG) for number in range(5)]
    provider.script("after", PLAIN)
    tokenweir = deployment(tmp_path, provider)
    key = quick_key(tokenweir)
    with closing(tokenweir):
        tokenweir.start()
        async with Stage(tokenweir, key) as stage:
            for name in names:
                await stage.begin(name)
            tokenweir.kill()
        _flip_a_bit_of(tmp_path / "data" / "journal", b"open-2")
        tokenweir.start()
        async with Stage(tokenweir, key) as stage:
            assert (await stage.whole("after")).ended == "complete"
        sound = [name for name in names if name != "open-2"]
        outcomes = [entry["outcome"] for entry in entries_of(tokenweir, *sound, "after")]
        assert outcomes == ["crashed"] * 4 + ["served"]
        assert gauges(tokenweir)["tokenweir_journal_damage_total"] == 1
        assert "journal damaged" in tokenweir.log.read_text()
        kept = [path.read_bytes() for path in (tmp_path / "data" / "journal" / "quarantine").iterdir()]
        assert len(kept) == 1
        assert b"open-3" in kept[0], "the whole file is kept as it was found"


def _flip_a_bit_of(journal: Path, name: bytes) -> None:
    """Change one byte of the frame that has `name` in it, and nothing else."""
    last = max(journal.glob("*.log"))
    content = bytearray(last.read_bytes())
    content[content.index(name)] ^= 0x04
    last.write_bytes(content)

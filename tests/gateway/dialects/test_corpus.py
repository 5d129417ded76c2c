"""Recorded answers of real providers, replayed through the proxy: what arrives is what was recorded, and what the
ledger says is what the provider reported. Every sixth record, parted in one way, here; every record, parted in every
way, in `make real`.

Exceptions, each by name: refusals of 401 (their text is about the proxy's own key) are replaced by our own; in
chat streams whose usage was not asked for, the usage-only events are taken out. Nothing else differs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.gateway.deployment import Deployment
from tests.gateway.dialects.replay import ASKED, Replay, check, records_of, replay_all, replays


def chosen(records: list[dict[str, Any]]) -> Iterator[Replay]:
    """Every sixth, each at one chunking, the next record at the next one; `make real` replays each at every one."""
    for turn, record in enumerate(records[::6]):
        ways = list(replays([record]))
        yield ways[turn % len(ways)]


async def replay_and_check(deployment: Deployment, policy: str, asking: Iterable[Replay]) -> None:
    planned = [(replay, deployment.plan(policy, replay.script(), "corpus")) for replay in asking]
    await replay_all(deployment, planned)
    await deployment.entry(planned[-1][1])
    entries = {entry["model"]: entry for entry in deployment.tokenweir.read_ledger()}
    for replay, model in planned:
        check(replay, entries.get(model) or await deployment.entry(model))


async def test_recorded_chats(deployment: Deployment, corpus: Path) -> None:
    records = records_of(corpus, "openai.chat")
    assert len(records) == 309
    turns: Counter[str] = Counter()
    asking: list[Replay] = []
    for one in chosen(records):
        asking.append(replace(one, asked=turns[one.how] % 2 == 0))
        turns[one.how] += 1
    await replay_and_check(deployment, "cancel", asking)
    assert len({(replay.how, replay.asked) for replay in asking}) == 12


async def test_recorded_answers_in_other_languages(deployment: Deployment, corpus: Path) -> None:
    records = records_of(corpus, *ASKED)
    assert len(records) == 339
    await replay_and_check(deployment, "many", chosen(records))


async def test_the_same_body_reads_the_same_at_every_chunking(deployment: Deployment, corpus: Path) -> None:
    """Whatever cannot be compared with a truth (estimates, outcomes) is at least the same for every cut."""
    unreported = [
        r for r in records_of(corpus, "openai.chat") if r["truth"] is None and r["status"] == 200 and r["streamed"]
    ]
    for record in unreported[::6]:
        ways = [Replay(record, how, asked=True) for how in ("whole", "random", "per event")]
        todo = [(replay, deployment.plan("cancel", replay.script(), "same")) for replay in ways]
        await replay_all(deployment, todo)
        entries = [await deployment.entry(model) for _, model in todo]
        told = [(e["outcome"], e["finish_reason"], e["events"], e["details"].get("evidence")) for e in entries]
        assert told == [told[0]] * len(ways), record["id"]
    assert len(unreported) >= 10

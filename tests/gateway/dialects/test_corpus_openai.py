"""Recorded answers of OpenAI's other endpoints, and of the smaller routes of others, replayed through the proxy: every
other one at one chunking. What arrives is what was recorded, and what the ledger says is what the meter's own suite
holds to the record's truth.

Exceptions: refusals of 401 are replaced by our own; Writer's streams never say that they end; a stream whose
recorder calls it JSON is none.
"""

from __future__ import annotations

from pathlib import Path

from tests.gateway.deployment import Deployment
from tests.gateway.dialects.replay_endpoints import check, chosen, request
from tests.support.net import Response, connect


async def test_every_record(deployment: Deployment, corpus: Path) -> None:
    todo = [
        (dialect, replay, deployment.plan("units", replay.script(), "corpus")) for dialect, replay in chosen(corpus)
    ]
    assert len(todo) == 61
    responses: list[Response] = []
    async with await connect(deployment.url) as client:
        for dialect, replay, model in todo:
            await client.send(request(deployment, dialect, model, streamed=replay.record["streamed"]))
            responses.append(await client.read(60))
    await deployment.entry(todo[-1][2])
    entries = {entry["model"]: entry for entry in deployment.tokenweir.read_ledger()}
    for (dialect, replay, model), response in zip(todo, responses, strict=True):
        check(dialect, replay, response, entries.get(model) or await deployment.entry(model))

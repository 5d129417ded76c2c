"""A thousand requests at once against a budget that fits ten: exactly ten are served, whatever serves them.

Each round has a key of its own. In `make faults`, two hundred rounds on one machine, and two hundred through three
proxies on one Redis; then every reservation is gone, and the ledger says what was spent.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from proxy.billing.limits import Limits
from proxy.keys.secrets import digest, hint, new_secret
from proxy.ledger.accounts.key_store import KeyStore
from proxy.storage.database import open_engine
from tests.budgets.deployed.limited import Limited, deployment
from tests.budgets.deployed.machines import Machines
from tests.support.ledger_tables import read_balances
from tests.support.long_runs import part_of
from tests.support.net import RawClient, ask, chat_request, connect
from tests.support.provider import ScriptedProvider

CROWD, FIT, TOKENS = 1_000, 10, 100
ROUNDS = part_of(1_000)
BUDGET_NUSD = FIT * TOKENS * 1_000
LEARNED_S = 2.0
RESTING_S = 60.0


def new_keys(limited: Limited, count: int) -> dict[str, str]:
    """Key ids → secrets, each with a budget that fits ten; made at once, not by a command for each."""
    engine = open_engine(limited.tokenweir.ledger_url)
    store = KeyStore(engine, clock=time.time)
    pepper = bytes.fromhex(limited.tokenweir.said("keys", "pepper").strip())
    made: dict[str, str] = {}
    for number in range(count):
        secret = new_secret().reveal()
        key_id = f"key_{secrets.token_hex(10)}"
        store.create(
            key_id=key_id, alias=f"crowd-{number}-{key_id}", digest=digest(secret, pepper), hint=hint(secret),
            models=None, expires_at=None, limits=Limits(budget_nusd=BUDGET_NUSD, budget_window="none"),
        )  # fmt: skip
        made[key_id] = secret
    engine.dispose()
    return made


async def ask_at_once(clients: Sequence[RawClient], key: str, model: str) -> Counter[int]:
    """How many got which status."""
    request = chat_request(ask(model, stream=False, max_tokens=TOKENS), key=key)

    async def one(client: RawClient) -> int:
        await client.send(request)
        return (await client.read(60)).status

    return Counter(await asyncio.gather(*map(one, clients)))


async def rounds(proxies: Sequence[Limited]) -> list[str]:
    """What is wrong after all of them."""
    first = proxies[0]
    keys = new_keys(first, ROUNDS)
    await asyncio.sleep(LEARNED_S)
    model = first.model(TOKENS)
    wrong: list[str] = []
    async with AsyncExitStack() as stack:
        turns = (proxies[number % len(proxies)] for number in range(CROWD))
        clients = [await stack.enter_async_context(await connect(one.url)) for one in turns]
        for number, key in enumerate(keys.values()):
            found = await ask_at_once(clients, key, model)
            if found != {200: FIT, 402: CROWD - FIT}:
                wrong.append(f"round {number}: {dict(found)}")
    for key_id in keys:
        counter = await first.at_rest(key_id, within_s=RESTING_S)
        if counter.spent != BUDGET_NUSD:
            wrong.append(f"{key_id}: spent {counter.spent}")
    engine = open_engine(first.tokenweir.ledger_url)
    charged = {one.key_id: (one.charged_nusd, one.entries) for one in read_balances(engine)}
    engine.dispose()
    wrong += [f"{one}: {charged.get(one)}" for one in keys if charged.get(one) != (BUDGET_NUSD, FIT)]
    return [*wrong, *first.tokenweir.unreconciled()]


@pytest.mark.slow
@pytest.mark.parametrize("where", ["one machine", "three proxies"])
async def test_a_thousand_crowds(
    where: str, tmp_path: Path, provider: ScriptedProvider, capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    began = time.monotonic()
    if where == "one machine":
        alone = Limited(deployment(tmp_path, provider), provider)
        alone.tokenweir.start()
        proxies, close = [alone], alone.tokenweir.close
    else:
        urls = (request.getfixturevalue("ledger_url"), request.getfixturevalue("queue_url"))
        machines = Machines(tmp_path, provider, *urls, 3)
        machines.start()
        proxies, close = machines.proxies, machines.close
    try:
        wrong = await rounds(proxies)
    finally:
        close()
    with capsys.disabled():
        print(
            f"\nbudgets, {where}: {ROUNDS} rounds of {CROWD} requests at once against a budget that fits {FIT}, "
            f"{len(wrong)} violations ({time.monotonic() - began:.0f} s)"
        )
    assert not wrong, json.dumps(wrong[:20])

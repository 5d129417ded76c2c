"""Two hundred requests at once at each level of limits, and at all together: what fits ten serves ten.

In `make faults`: forty rounds for each level, on one machine, and through three proxies on one Redis. On three, a proxy
is killed or sleeps, or Redis loses all its data, in the middle of some rounds: these serve at most ten. Then no counter
differs from the ledger.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from proxy.billing.dimensions import END_USER
from proxy.billing.limit_rules import RULE_ID
from proxy.billing.limits import Limits, Measure
from proxy.demo.script import Shape
from proxy.foundation.ids import new_id
from proxy.keys.secrets import digest, hint, new_secret
from proxy.ledger.accounts.account_store import AccountStore
from proxy.ledger.accounts.key_store import KeyStore
from proxy.ledger.limit_rules import RuleStore
from proxy.storage.database import open_engine
from tests.budgets.deployed.limited import Limited, deployment
from tests.budgets.deployed.machines import Machines, asleep
from tests.support.net import ask, chat_request, connect
from tests.support.provider import ScriptedProvider
from tests.support.valkey import Valkey

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3_000)]

ROUNDS = 40
AT_ONCE, FIT, TOKENS = 200, 10, 100
MONEY = {"budget_nusd": FIT * TOKENS * 1_000, "budget_window": "none"}
QUOTAS = {
    "requests": {Measure.REQUESTS: FIT},
    "output tokens": {Measure.OUTPUT_TOKENS: FIT * TOKENS + TOKENS - 1},
}
LEARNED_S, RESTING_S, PAUSE_S = 2.5, 60.0, 1.0
AWAY_EVERY = 8

Level = Callable[[int], tuple[str, dict[str, str]]]
"""round → secret of its key, and headers"""


@dataclass
class Site:
    """The keys and limits of all rounds, written to the ledger directly."""

    limited: Limited
    rounds: int
    levels: dict[str, Level] = field(default_factory=dict)

    def __post_init__(self) -> None:
        engine = open_engine(self.limited.tokenweir.ledger_url)
        self.keys = KeyStore(engine, clock=time.time)
        self.accounts = AccountStore(engine, clock=time.time)
        self.rules = RuleStore(engine, clock=time.time)
        self.pepper = bytes.fromhex(self.limited.tokenweir.said("keys", "pepper").strip())
        budget = Limits(**MONEY)  # type: ignore[arg-type]
        of_keys = [self.key(limits=budget) for _ in range(self.rounds)]
        of_projects = [self.key(project_id=self.project("proj", budget)) for _ in range(self.rounds)]
        organizations = [self.organization(budget) for _ in range(self.rounds)]
        of_organizations = [self.key(project_id=self.project("in", Limits(), one)) for one in organizations]
        tight = [self.project("all", budget, self.organization(budget)) for _ in range(self.rounds)]
        together = [self.key(limits=budget, project_id=one) for one in tight]
        plain = self.key()
        self.levels = {
            "key": lambda n: (of_keys[n], {}),
            "project": lambda n: (of_projects[n], {}),
            "organization": lambda n: (of_organizations[n], {}),
            "run": lambda n: (plain, {"x-tokenweir-run": f"run-{n}; max=0.001"}),
            "all": lambda n: (together[n], {"x-tokenweir-run": f"r{n}; max=0.001", "x-tokenweir-end-user": f"all-{n}"}),
        }
        self.with_rule("rule", budget, scope_id=None, models=("races-*",))
        for name, quota in QUOTAS.items():
            self.with_rule(name, Limits(budget_window="none", quotas=quota))
        engine.dispose()

    def with_rule(self, name: str, limits: Limits, **where: object) -> None:
        """A level: each end user of a key, or of all keys."""
        secret = self.key()
        scope = {"scope_id": self.key_id} | where
        self.rules.create(rule_id=new_id(RULE_ID), name=f"races {name}", split_by=[END_USER], limits=limits, **scope)  # type: ignore[arg-type]
        self.levels[name] = lambda n: (secret, {"x-tokenweir-end-user": f"{name}-{n}"})

    def key(self, **fields: object) -> str:
        secret, self.key_id = new_secret().reveal(), f"key_{secrets.token_hex(10)}"
        self.keys.create(
            key_id=self.key_id, alias=self.key_id, digest=digest(secret, self.pepper), hint=hint(secret), models=None,
            expires_at=None, **fields,  # type: ignore[arg-type]
        )  # fmt: skip
        return secret

    def organization(self, limits: Limits) -> str:
        made = f"org_{secrets.token_hex(6)}"
        return self.accounts.create_organization(account_id=made, name=made, limits=limits).account_id

    def project(self, kind: str, limits: Limits, organization: str = "default") -> str:
        made = f"{kind}_{secrets.token_hex(6)}"
        return self.accounts.create_project(
            account_id=made, name=made, organization=organization, limits=limits
        ).account_id


async def at_once(proxies: Sequence[Limited], key: str, model: str, headers: Mapping[str, str]) -> Counter[int]:
    """How many got which status; 0: the proxy went away."""
    request = chat_request(ask(model, stream=False, max_tokens=TOKENS), key=key, headers=dict(headers))

    async def one(proxy: Limited) -> int:
        with suppress(OSError, EOFError, AssertionError, asyncio.IncompleteReadError):
            async with await connect(proxy.url) as client:
                await client.send(request)
                return (await client.read(30)).status
        return 0

    return Counter(await asyncio.gather(*(one(proxies[n % len(proxies)]) for n in range(AT_ONCE))))


async def races(proxies: Sequence[Limited], disturb: Callable[[int], Awaitable[None]] | None = None) -> list[str]:
    """What is wrong after all rounds. `disturb`: called in the middle of each AWAY_EVERY-th round."""
    first = proxies[0]
    site = Site(first, ROUNDS)
    await asyncio.sleep(LEARNED_S)
    model = first.provider.script("races-model", Shape("openai", tokens=TOKENS, first_ms=20))
    wrong: list[str] = []
    for number in range(ROUNDS):
        for place, (level, of_round) in enumerate(site.levels.items()):
            key, headers = of_round(number)
            accident = disturb if (number + place) % AWAY_EVERY == AWAY_EVERY - 1 else None
            disturbed = accident is not None

            async def in_the_middle() -> None:
                if accident is not None:  # noqa: B023  awaited in this round
                    await asyncio.sleep(0.05)
                    await accident((number + place) // AWAY_EVERY)  # noqa: B023

            found, _ = await asyncio.gather(at_once(proxies, key, model, headers), in_the_middle())
            if found[200] > FIT or (found[200] < FIT and not disturbed):
                wrong.append(f"round {number}, {level}: {dict(found)}")
    return wrong


async def until_equal(limited: Limited) -> list[str]:
    """The counters that differ from the ledger once all is settled."""
    until = time.monotonic() + RESTING_S
    while any(one["running"] or one["unsettled"] for one in limited.counters().values()):
        assert time.monotonic() < until, "something stays reserved"
        await asyncio.sleep(1)
    lines = limited.tokenweir.command("budgets", "rebuild", "--json").stdout.splitlines()
    return [line for line in lines if json.loads(line).get("drift_usd", "0") != "0" or json.loads(line).get("drift", 0)]


async def test_each_level_and_all_together_on_one_machine(tmp_path: Path, provider: ScriptedProvider) -> None:
    alone = Limited(deployment(tmp_path, provider), provider)
    alone.tokenweir.start()
    try:
        assert await races([alone]) == []
        assert await until_equal(alone) == []
    finally:
        alone.tokenweir.close()


async def test_each_level_and_all_together_through_three_proxies_and_losses(
    tmp_path: Path, provider: ScriptedProvider, ledger_url: str, queue_url: str, valkey: Valkey
) -> None:
    machines = Machines(tmp_path, provider, ledger_url, queue_url, 3)
    machines.start()

    async def disturb(number: int) -> None:
        last = machines.proxies[-1]
        if number % 3 == 0:
            valkey.ask("FLUSHALL")
        elif number % 3 == 1:
            await asyncio.to_thread(last.tokenweir.kill)
            await asyncio.to_thread(last.tokenweir.start)
        else:
            with asleep(last):
                await asyncio.sleep(PAUSE_S)

    try:
        assert await races(machines.proxies, disturb) == []
        assert await until_equal(machines.proxies[0]) == []
    finally:
        machines.close()

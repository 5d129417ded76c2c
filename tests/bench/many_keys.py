"""A ledger with a million keys, made inside Postgres.

Law: nine in ten keys have a budget; each of them has used something on three of the last thirty days; half of the
projects, and so half of the keys, belong to one organization.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from hashlib import md5, sha256
from pathlib import Path
from statistics import median
from typing import Final

from proxy.billing.limits import credit_counter_id
from proxy.billing.reservation import CounterState
from proxy.budgets.followed_ledger import FollowedLedger
from proxy.budgets.follower import Follower
from proxy.budgets.observers import FollowerObserver
from proxy.budgets.redis.store import RedisBudgets
from proxy.cli.common import json_line
from proxy.cli.limit_options import key_json
from proxy.foundation.outage import OutageLog
from proxy.keys.keyring import Keyring
from proxy.ledger.accounts.key_store import KeyStore
from proxy.ledger.settling.spend import sums
from proxy.reports.totals import read_paid
from proxy.storage.database import open_engine
from proxy.storage.redis_client import open_redis
from proxy.telemetry.metrics import Metrics
from tests.bench.stores import Ledger
from tests.support.tokenweir import ROOT

Found = dict[str, float]

TIMES: Final = 5
BIGGEST: Final = "org_0"
_ORGANIZATIONS: Final = 100
_KEY = "'key_' || substr(md5(i::text), 1, 20)"
_ROWS = """
INSERT INTO accounts
SELECT 'org_' || i, 'organization', NULL, 'customer ' || i, NULL, now() - interval '90 days', NULL, 10 + i
FROM generate_series(0, {organizations} - 1) AS i;

INSERT INTO accounts
SELECT 'proj_' || i, 'project', 'org_' || CASE i % 2 WHEN 0 THEN 0 ELSE i % {organizations} END, 'project ' || i,
       NULL, now() - interval '90 days', NULL, 1000 + i
FROM generate_series(0, {projects} - 1) AS i;

INSERT INTO api_keys (key_id, alias, digest, hint, created_at, revision, project_id, limits)
SELECT {key}, 'customer key ' || i, sha256(('secret' || i)::bytea), 'tw-…' || i % 10000,
       now() - interval '90 days' + i * interval '1 second', 1000000 + i, 'proj_' || i % {projects},
       CASE i % 10 WHEN 0 THEN NULL ELSE jsonb_build_object('budget_usd', 5000000000, 'budget_window', '30d') END
FROM generate_series(0, {keys} - 1) AS i;

INSERT INTO balances
SELECT {key}, 0.001234566, 0.0009, 3000, 0, 600, 0, 3600, 3 FROM generate_series(0, {keys} - 1) AS i;

INSERT INTO usage_daily
SELECT (now() AT TIME ZONE 'UTC')::date - (i + day) % 30, {key}, 'model-' || i % 8, 0.000411522, 0.0003, 1000, 0, 200,
       0, 1200, 1
FROM generate_series(0, {keys} - 1) AS i, generate_series(0, 20, 10) AS day;

INSERT INTO account_daily
SELECT of_account.account_id, day, sum(charged_usd) * 1000000000
FROM usage_daily JOIN api_keys USING (key_id) JOIN accounts AS project ON project.account_id = project_id
     CROSS JOIN LATERAL (VALUES (project.account_id), (project.parent_id)) AS of_account(account_id)
GROUP BY 1, 2;

VACUUM ANALYZE;

CHECKPOINT
"""


def key_id(number: int) -> str:
    return f"key_{md5(str(number).encode(), usedforsecurity=False).hexdigest()[:20]}"


def fill(ledger: Ledger, *, keys: int, projects: int) -> None:
    """Put so many into an empty ledger."""
    ledger.do(*_ROWS.format(keys=keys, projects=projects, organizations=_ORGANIZATIONS, key=_KEY).split(";"))


# -- what it costs to have them, each in a process of its own, for its memory


async def keyring(url: str) -> Found:
    """A proxy's: its first read, a poll without a change, and the first requests of keys that it has not read."""
    source, observer = KeyStore(open_engine(url), clock=time.time), OutageLog("keys")
    ring = Keyring(source, pepper=b"p" * 32, unix_time=time.time, observer=observer)
    before_mb, began_s = memory_mb(), time.process_time()
    await ring.refresh()
    read_s, mb = time.process_time() - began_s, memory_mb() - before_mb
    poll_ms = await _median_ms(ring.refresh)
    ring.close()
    digests = iter(sha256(f"secret{number}".encode()).digest() for number in range(TIMES))
    lookup_ms = await _median_ms(lambda: asyncio.to_thread(source.changes_since, 10**9, [next(digests)]))
    return {"read_s": read_s, "mb": mb, "poll_ms": poll_ms, "lookup_ms": lookup_ms}


async def listing(url: str) -> Found:
    """All of them as `keys list` prints them, and a page of the console."""
    keys = KeyStore(open_engine(url), clock=time.time)
    page_ms = await _median_ms(lambda: asyncio.to_thread(keys.page, first=0, size=100))
    before_mb, began_s = memory_mb(), time.process_time()
    for key in keys.every():
        json_line(key_json(key))
    return {"page_ms": page_ms, "list_s": time.process_time() - began_s, "list_mb": memory_mb() - before_mb}


async def spending(url: str) -> Found:
    """The totals that seed a counter, and the balance of an account."""
    engine, since = open_engine(url), time.time() - 20 * 86_400
    wanted = {
        "key_ms": (key_id(5), since),
        "project_ms": ("proj_0", since),
        "organization_ms": (BIGGEST, since),
        "prepaid_ms": (credit_counter_id(BIGGEST), 0.0),
    }
    found = {name: await _median_ms(partial(asyncio.to_thread, sums, engine, [one])) for name, one in wanted.items()}
    return {**found, "balance_ms": await _median_ms(lambda: asyncio.to_thread(read_paid, engine, [BIGGEST]))}


async def following(url: str, queue_url: str, keys: int) -> Found:
    """A leader's work at rest, with a counter for every key."""
    engine, redis = open_engine(url), open_redis(queue_url)
    store = RedisBudgets(redis, node="bench")
    await store.seed(await FollowedLedger(engine).sums([(key_id(0), 0.0)]))
    for first in range(0, keys, 10_000):
        made = [key_id(number) for number in range(first, min(first + 10_000, keys))]
        fields = {f"{kind}{one}": value for one in made for kind, value in (("w", "0.0 1"), ("s", "1234566"))}
        await redis.hset(store._key("sums"), mapping=fields)  # type: ignore[misc]
    observer = FollowerObserver(Metrics().budgets)
    follower = Follower(store, FollowedLedger(engine), on_spent=_nobody, observer=observer)
    found = {
        "follow_ms": await _median_ms(follower.follow),
        "tidy_ms": await _median_ms(follower.tidy),
        "measure_ms": await _median_ms(follower.measure),
        "mb": memory_mb(),
    }
    await redis.aclose()
    return found


async def _nobody(_states: Sequence[CounterState]) -> None:
    """Is told."""


async def _median_ms(work: Callable[[], Awaitable[object]]) -> float:
    times = list[float]()
    for _ in range(TIMES):
        began = time.perf_counter()
        await work()
        times.append(time.perf_counter() - began)
    return median(times) * 1e3


def memory_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6


def measured(name: str, *arguments: str) -> Found:
    command = [sys.executable, "-m", "tests.bench.many_keys", name, *arguments]
    found: Found = json.loads(subprocess.run(command, check=True, capture_output=True, cwd=ROOT).stdout)
    return found


if __name__ == "__main__":
    _, chosen, *given = sys.argv
    if chosen == "following":
        done = asyncio.run(following(given[0], given[1], int(given[2])))
    else:
        done = asyncio.run({"keyring": keyring, "listing": listing, "spending": spending}[chosen](given[0]))
    print(json.dumps(done))

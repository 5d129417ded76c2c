"""Records of the full width: every field that can be set is, so that none of them is cheaper than in real life."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from itertools import count
from typing import Any, Final

from redis import Redis

from proxy.billing.record import BillableParts, Opened, Outcome, Price, Rates, UsageRecord
from proxy.delivery.sharded_queue import shard_of
from proxy.foundation.ids import exchange_id
from proxy.journal.frames import record_payload
from proxy.journal.replay import COUNT_BITS
from proxy.metering.usage import Reading, Usage, UsageSource
from tests.bench.stores import STREAM

KEYS: Final = 1_000
MODELS: Final = 4
NODES: Final = 4
_AT_ONCE = 1_000
_PRICE = Price("2026-11-01", (Rates(100_000_000, 50_000_000, 400_000_000),))
_COST = Price("2026-11-01", (Rates(80_000_000, 40_000_000, 320_000_000),))


def opened(number: int, keys: int = KEYS) -> Opened:
    """An exchange of any of so many keys that begins now; the model follows from the key."""
    key = random.randrange(keys)
    model = f"model-{key % MODELS}"
    return Opened(
        exchange_id=exchange_id(),
        key_id=f"key_{key:020x}",
        key_alias=f"team-{key}",
        provider="bench",
        model=model,
        upstream_model=f"upstream/{model}-2026-11-01",
        endpoint="/v1/chat/completions",
        streamed=True,
        started_at=time.time(),
        price=_PRICE,
        cost=_COST,
        prompt_tokens_estimate=1_000 + number % 1_000,
        completion_tokens_max=4_096,
        slot=number % 1_000,
    )


def record(begun: Opened) -> UsageRecord:
    prompt, completion = begun.prompt_tokens_estimate, 100 + begun.slot
    usage = Usage(prompt, prompt // 2, completion, completion // 4, prompt + completion)
    return UsageRecord(
        opened=begun,
        outcome=Outcome.SERVED,
        reading=Reading(usage, UsageSource.REPORTED, estimator="2026-11", expected_error=0.05),
        bills=BillableParts.EVERYTHING,
        events=completion,
        bytes=280 * completion,
        duration_ms=20.25 * completion,
        first_token_ms=231.5,
        finish_reason="stop",
        provider_response_id=f"chatcmpl-{begun.exchange_id}",
    )


def fill_stream(redis: Redis, number: int, *, keys: int = KEYS, streams: Sequence[str] = (STREAM,)) -> None:
    """Put so many new records of so many keys into the queue, as several proxies' shippers do."""
    seqs = count(random.randrange(1, 1 << 22) << COUNT_BITS)  # another run of these nodes
    for start in range(0, number, _AT_ONCE):
        pipeline = redis.pipeline(transaction=False)
        for one in range(start, min(start + _AT_ONCE, number)):
            begun = opened(one, keys)
            fields: dict[Any, Any] = {
                "v": 1,
                "n": f"bench-node-{one % NODES}",
                "s": next(seqs),
                "r": record_payload(record(begun)),
            }
            pipeline.xadd(streams[shard_of(begun.key_id, len(streams))], fields)
        pipeline.execute()

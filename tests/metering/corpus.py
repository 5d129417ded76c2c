"""The recorded exchanges of real providers, and ways to cut their bytes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

CORPUS = Path(__file__).parents[3] / "shared" / "corpus"

FIELDS = ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens", "total_tokens")


def cuts(body: bytes, seed: str) -> Iterator[list[bytes]]:
    rng = random.Random(seed)
    yield [body]
    yield body.splitlines(keepends=True)
    at = sorted({0, len(body), *(rng.randrange(len(body) + 1) for _ in range(40))})
    yield [body[a:b] for a, b in pairwise(at)]
    inside = [at for at in range(1, len(body)) if body[at] & 0xC0 == 0x80]  # inside UTF-8
    yield [body[a:b] for a, b in zip([0, *inside], [*inside, len(body)], strict=True)]

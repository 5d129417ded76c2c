"""The recorded exchanges of real providers, and ways to cut their bytes."""

from __future__ import annotations

import functools
import gzip
import json
import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

CORPUS = Path(__file__).parents[3] / "shared" / "corpus"

FIELDS = ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens", "total_tokens")


@functools.cache
def records_named(*dialects: str) -> list[dict[str, Any]]:
    """All records that the corpus has under these names."""
    lines = (CORPUS / "open.jsonl").read_bytes().split(b"\n")
    lines += gzip.decompress((CORPUS / "more_streams.jsonl.gz").read_bytes()).split(b"\n")
    quoted = [f'"{name}"'.encode() for name in dialects]
    found = [json.loads(line) for line in lines if any(name in line for name in quoted)]
    return [record for record in found if record["dialect"] in dialects]


def cuts(body: bytes, seed: str) -> Iterator[list[bytes]]:
    rng = random.Random(seed)
    yield [body]
    yield body.splitlines(keepends=True)
    at = sorted({0, len(body), *(rng.randrange(len(body) + 1) for _ in range(40))})
    yield [body[a:b] for a, b in pairwise(at)]
    inside = [at for at in range(1, len(body)) if body[at] & 0xC0 == 0x80]  # inside UTF-8
    yield [body[a:b] for a, b in zip([0, *inside], [*inside, len(body)], strict=True)]

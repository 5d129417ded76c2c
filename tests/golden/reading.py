"""What the golden files are read with."""

from __future__ import annotations

import asyncio
import base64
import json
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proxy.billing.entries import LedgerEntry
from proxy.metering.usage import Evidence
from proxy.reports.entry_reader import entry_json

HERE = Path(__file__).parent
BEGAN = 1_793_000_000.25
"""Unix seconds: about when the golden exchanges began"""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
NODE = "ce9042c49e58c5ac"
"""of the golden journal"""


def exchange_id(number: int) -> str:
    """The UUIDv7 of golden exchange `number`: it began that many seconds after 2026-10-26T07:33:20.25Z."""
    digits = f"{1_793_000_000_250 + 1000 * number:012x}"
    return f"{digits[:8]}-{digits[8:]}-7000-8000-{number:012x}"


@dataclass(frozen=True)
class Tokens:
    """An estimate."""

    tokens: int
    expected_error: float = 0.2
    capped: bool = False
    hidden: int | None = None
    limit_exceeded: bool = False


class FourCharacters:
    """An estimator that never changes: a token for every four characters."""

    VERSION = "four-1"

    def completion(
        self, model_key: str, evidence: Evidence, *, completion_tokens_max: int | None, bytes_seen: int, counted: None
    ) -> Tokens:
        tokens = -(-evidence.chars // 4)
        if completion_tokens_max is not None and tokens > completion_tokens_max:
            return Tokens(completion_tokens_max, capped=True)
        return Tokens(tokens)

    def broken_bound(self, model_key: str, evidence: Evidence, tokens: int) -> dict[str, int]:
        return {}

    def prompt_error(self, model_key: str) -> float:
        return 0.07


def golden_json(name: str) -> Any:
    """The value in a golden JSON file."""
    return json.loads((HERE / name).read_text("utf-8"))


def golden_entries() -> list[dict[str, Any]]:
    """All entries of the golden ledgers, as `shown` has them."""
    return [json.loads(line) for line in (HERE / "entries.jsonl").read_text("utf-8").splitlines()]


def shown(entries: Iterable[LedgerEntry]) -> list[dict[str, Any]]:
    """Entries as they are exported, with their numbers, in the order of their ids."""
    return [entry_json(one) | {"seq": one.seq} for one in sorted(entries, key=lambda one: one.entry_id)]


def load_sqlite(name: str, path: Path) -> None:
    """Make a database of a golden SQL file."""
    with closing(sqlite3.connect(path)) as database:
        database.executescript((HERE / name).read_text("utf-8"))


def of_this_boot(folder: Path) -> Path:
    """The budgets' file of 0.1, as if this machine had not been started since."""
    path = folder / "budgets.db"
    load_sqlite("budgets.sql", folder / "draft")
    with closing(sqlite3.connect(folder / "draft")) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("UPDATE life SET boot = :boot", {"boot": BOOT_ID.read_text().strip()})
        (name,) = database.execute("SELECT generation FROM life").fetchone()
        database.commit()
    (folder / "draft").rename(folder / name)
    path.symlink_to(name)
    return path


def sqlite_lines(path: Path) -> list[str]:
    """A database as a golden SQL file has it."""
    with closing(sqlite3.connect(path)) as database:
        (version,) = database.execute("PRAGMA user_version").fetchone()
        text = "\n".join([f"PRAGMA user_version = {version};", *database.iterdump()])
    return text.splitlines()


def _bytes(shown: str | dict[str, str]) -> bytes:
    return shown.encode() if isinstance(shown, str) else base64.b64decode(shown["base64"])


def _shown(raw: bytes) -> str | dict[str, str]:
    try:
        found = raw.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(raw).decode()}
    return found if found.isprintable() or "\0" in found else {"base64": base64.b64encode(raw).decode()}


async def dump(redis: Any) -> dict[str, Any]:
    """All keys of a server, as the golden files have them: key → type, whether it expires, content."""
    found: dict[str, Any] = {}
    for key in sorted([key async for key in redis.scan_iter()]):
        kind = (await redis.type(key)).decode()
        content: Any
        if kind == "string":
            content = _shown(await redis.get(key))
        elif kind == "hash":
            content = sorted(([_shown(k), _shown(v)] for k, v in (await redis.hgetall(key)).items()), key=str)
        elif kind == "zset":
            content = [[_shown(member), score] for member, score in await redis.zrange(key, 0, -1, withscores=True)]
        else:
            assert kind == "stream"
            entries = [
                [name.decode(), [[_shown(k), _shown(v)] for k, v in fields.items()]]
                for name, fields in await redis.xrange(key)
            ]
            groups = [
                {
                    "name": group["name"].decode(),
                    "pending": [
                        [one["consumer"].decode(), one["message_id"].decode()]
                        for one in await redis.xpending_range(key, group["name"], "-", "+", 99)
                    ],
                }
                for group in await redis.xinfo_groups(key)
            ]
            content = {"entries": entries, "groups": groups}
        found[key.decode()] = {"type": kind, "expires": await redis.pttl(key) > 0, "content": content}
    return found


async def load_redis(redis: Any, name: str) -> None:
    """Put the keys of a golden file into an empty server."""
    for key, value in golden_json(f"redis/{name}").items():
        content = value["content"]
        match value["type"]:
            case "string":
                await redis.set(key, _bytes(content))
            case "hash":
                await redis.hset(key, mapping={_bytes(field): _bytes(one) for field, one in content})
            case "zset":
                await redis.zadd(key, {_bytes(member): score for member, score in content})
            case "stream":
                await _load_stream(redis, key, content)
        if value["expires"]:
            await redis.pexpire(key, 120_000)


async def _load_stream(redis: Any, key: str, content: dict[str, Any]) -> None:
    for name, fields in content["entries"]:
        await redis.xadd(key, {_bytes(field): _bytes(one) for field, one in fields}, id=name)
    for group in content["groups"]:
        await redis.xgroup_create(key, group["name"], id="0")
        for consumer, name in group["pending"]:
            [[_, [[given, _]]]] = await redis.xreadgroup(group["name"], consumer, {key: ">"}, count=1)
            assert given.decode() == name, "the first ones are pending, in their order"
    # What is pending for less than a millisecond is held by a living worker, whatever `claim_after_ms` is.
    await asyncio.sleep(0.003)

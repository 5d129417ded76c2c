"""Every await and every I/O call between admission and settlement: the places where a fault can strike.

Law: they are found in the source, not listed by hand, so a new one is swept without anybody thinking of it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

ROOT = Path(__file__).parents[2]

# The path of one exchange, from admission to settlement; first what runs in a proxy, then what a worker runs too.
PROXY_FILES = (
    "gateway/exchange/handler.py", "gateway/exchange/upstream_request.py", "gateway/upstream/provider_call.py",
    "gateway/exchange/exchange.py", "gateway/exchange/body.py", "gateway/exchange/client_side.py",
    "gateway/exchange/metering.py", "gateway/exchange/ending.py",
    "gateway/exchange/open_exchange.py", "gateway/exchange/relay.py", "http/reply.py", "gateway/upstream/client.py",
    "gateway/upstream/connection.py", "gateway/exchange/deadlines.py", "gateway/exchange/spending.py",
    "budgets/admission.py", "budgets/sqlite/store.py", "budgets/sqlite/file.py", "budgets/redis/store.py",
    "gateway/outbox.py", "journal/journal.py", "journal/log.py", "journal/segment.py", "journal/progress.py",
    "delivery/local_queue.py", "delivery/shipper.py", "delivery/leases.py", "delivery/redis_leases.py",
    "delivery/redis_queue.py",
)  # fmt: skip
WORKER_FILES = (
    "delivery/redis_queue.py", "delivery/redis_leases.py", "delivery/sweeper.py",
    "ledger/settling/settler.py", "ledger/settling/store.py", "storage/prepared.py", "storage/database.py",
)  # fmt: skip
# What a call is named that reads, writes, waits, or changes what is durable.
_IO = frozenset({
    "abort", "add", "announce", "append", "ask", "begin", "begin_nested", "claim", "close", "close_soon",
    "connect", "cut", "deliver", "drop", "ended", "exec_driver_sql", "execute", "extend_claim", "fdatasync",
    "finish", "fsync", "ftruncate", "heartbeat", "hold", "insert_dead_letters", "mark_dead", "missing", "note",
    "open", "opened", "pipeline", "pread", "pwrite", "reassign", "receipts", "relay_to", "release", "remove",
    "renew", "reserve", "retry", "roll", "run_in_executor", "settle", "settled", "start", "sync", "take",
    "transaction", "unlink", "write", "writelines", "xack", "xadd", "xclaim", "xdel",
    "xpending_range", "xrange", "xreadgroup",
})  # fmt: skip


class Fault(StrEnum):
    KILL = "kill"
    """the process dies, as by kill -9"""
    FAIL = "fail"
    """the call raises OSError, and has not been made"""
    DELAY = "delay"
    """the thread stands still for a moment"""


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """A line of a file below proxy/."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"

    @classmethod
    def of(cls, text: str) -> Point:
        file, _, line = text.rpartition(":")
        return cls(file, int(line))


def points(files: tuple[str, ...]) -> list[Point]:
    """Every one of these files, in order; files that a version does not have are none."""
    found: set[Point] = set()
    for file in files:
        path = ROOT / "proxy" / file
        if path.exists():
            found |= {Point(file, line) for line in _lines(ast.parse(path.read_text("utf-8")))}
    return sorted(found)


def _lines(module: ast.Module) -> Iterator[int]:
    """The first lines of statements that wait or do I/O: there a trace function is called."""
    for statement in ast.walk(module):
        if isinstance(statement, ast.stmt) and _strikes(statement):
            yield statement.lineno


def _strikes(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.AsyncFor | ast.AsyncWith):
        return True
    own = [node for node in ast.iter_child_nodes(statement) if not isinstance(node, ast.stmt)]
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return False
    return any(_waits(node) for part in own for node in ast.walk(part))


def _waits(node: ast.AST) -> bool:
    if isinstance(node, ast.Await):
        return True
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr.lstrip("_") in _IO

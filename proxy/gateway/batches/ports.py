"""What files and batches need from other packages. Runtime passes in the implementations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from proxy.billing.batch import BatchState, StoredBatch, StoredFile, Terms
from proxy.billing.keys import ApiKey
from proxy.billing.pricing.rules import Payer
from proxy.billing.record import UsageRecord
from proxy.metering.stored_objects.api import PageAsked
from proxy.storage.executor import InThread


class Files(Protocol):
    """The files of keys: see `ledger/stored_objects/files.py`. Every method blocks, and raises OSError."""

    def add(self, file: StoredFile) -> None: ...
    def find(self, file_ids: Collection[str]) -> dict[str, StoredFile]: ...
    def page(self, api: str, key: ApiKey, asked: PageAsked) -> tuple[list[StoredFile], bool]: ...
    def count(self, key_id: str) -> int: ...
    def forget(self, file_id: str) -> None: ...


class Batches(Protocol):
    """The batches of keys: see `ledger/stored_objects/batches.py`. Every method blocks, and raises OSError."""

    def add(
        self, batch: StoredBatch, terms: Sequence[Terms], *, node: str, next_at: float, unfinished_max: int
    ) -> bool: ...
    def find(self, batch_id: str) -> StoredBatch | None: ...
    def of_exchange(self, exchange_id: str) -> StoredBatch | None: ...
    def terms(self, exchange_id: str) -> tuple[Terms, ...]: ...
    def page(self, api: str, key: ApiKey, asked: PageAsked) -> tuple[list[StoredBatch], bool]: ...
    def known(self, batch_ids: Collection[str]) -> set[str]: ...
    def made(self, exchange_id: str, batch_id: str, *, next_at: float) -> bool: ...
    def ended(self, batch: StoredBatch, files: Sequence[StoredFile]) -> None: ...
    def close(self, exchange_id: str, state: BatchState) -> None: ...
    def forget(self, exchange_id: str) -> None: ...
    def claim(self, node: str, *, now: float, for_s: float, limit: int) -> list[StoredBatch]: ...
    def postpone(self, exchange_id: str, next_at: float) -> None: ...
    def forget_older(self, than: float) -> None: ...


@dataclass(frozen=True, slots=True)
class BatchPorts:
    """The implementations that runtime passes in."""

    files: Files
    batches: Batches
    in_thread: InThread
    """for the calls of these two"""
    node: str
    """the name of this process among those that ask for batches"""
    settle: Callable[[Sequence[UsageRecord]], Awaitable[None]]
    """returns when the ledger has the records. Raises OSError"""
    recorded: Callable[[Collection[str]], Awaitable[set[str]]]
    """those of these exchanges that the ledger has. Raises OSError"""
    hold: Callable[[Sequence[StoredBatch]], Awaitable[None]]
    """reserves again for batches that another process has admitted"""
    payer: Callable[[str], Awaitable[Payer]]
    """who pays for a key. Raises OSError"""

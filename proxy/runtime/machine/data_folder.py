"""The layout of a data directory. Invariant: files that processes share are in the root; files with one writer are in
the folder of that process."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from itertools import chain, count, islice
from pathlib import Path

from proxy.foundation.files import replace_text
from proxy.journal.segment import is_locked
from proxy.keys.secrets import load_pepper
from proxy.settings import Settings
from proxy.storage.database import sqlite_url

_OWN = "worker-{}"


class DataFolder:
    """The paths of one process."""

    def __init__(self, root: Path, worker: int | None = None) -> None:
        """`worker`: its number among several processes; None: it is the only one."""
        self.root = root
        self.own = root if worker is None else root / _OWN.format(worker)
        self.journal = self.own / "journal"
        self.progress = self.own / "progress.table"
        self.estimator = self.own / "estimator.json"
        self.known_nodes = self.own / "nodes.json"

    def make(self) -> None:
        """Create the folders, readable by their owner only."""
        for folder in (self.root, self.own):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def left_behind(self, beside: Collection[int] = ()) -> list[DataFolder]:
        """The folders with journals of processes that have ended, or that this one replaces. `beside`: numbers of the
        folders of the processes on this port, which are left out, locked or not."""
        names = (path.name.removeprefix(_OWN.format("")) for path in self.root.glob(_OWN.format("*")))
        numbered = [DataFolder(self.root, int(name)) for name in names if name.isdecimal() and int(name) not in beside]
        found = [folder for folder in (DataFolder(self.root), *numbered) if folder.journal.is_dir()]
        return [folder for folder in found if folder.own != self.own]

    def unlocked(self) -> DataFolder:
        """This folder, or the first other one of its data directory that no process uses."""
        numbered = (DataFolder(self.root, number) for number in count())
        return next(folder for folder in chain([self], numbered) if not is_locked(folder.journal))

    def inherit(self) -> None:
        """Take the learned state of the process that this one replaces: the one that was saved last."""
        saved = [one for one in (folder.estimator for folder in (self, *self.left_behind())) if one.is_file()]
        newest = max(saved, key=lambda one: one.stat().st_mtime, default=self.estimator)
        if newest != self.estimator:
            with suppress(OSError):
                replace_text(self.estimator, newest.read_text())


def unlocked_folders(root: Path, workers: int) -> list[int]:
    """The first so many numbers of folders that no process uses."""
    return list(islice((number for number in count() if not is_locked(DataFolder(root, number).journal)), workers))


def ledger_file(settings: Settings) -> Path:
    """The file of a ledger on SQLite."""
    return settings.data_dir / "ledger.db"


def ledger_url(settings: Settings) -> str:
    """The ledger's URL, password included."""
    return sqlite_url(ledger_file(settings)) if settings.ledger is None else settings.ledger.reveal()


def key_pepper(settings: Settings) -> bytes:
    """The secret of key digests: the configured one, or the one in the data directory, which is created at its first
    use. Raises BadPepperError, OSError."""
    if settings.key_pepper is not None:
        return bytes.fromhex(settings.key_pepper.reveal())
    return load_pepper(settings.data_dir / "pepper")

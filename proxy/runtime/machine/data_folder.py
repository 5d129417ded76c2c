"""Where everything of a data directory is. Law: what processes share lies in the root; what only one may write to at a
time, in a folder of that process."""

from __future__ import annotations

from pathlib import Path

from proxy.keys.secrets import load_pepper
from proxy.settings import Settings
from proxy.storage.database import sqlite_url

_OWN = "worker-{}"


class DataFolder:
    """A data directory, as one process sees it."""

    def __init__(self, root: Path, worker: int | None = None) -> None:
        """`worker`: which of several processes; None: the only one."""
        self.root = root
        self.own = root if worker is None else root / _OWN.format(worker)
        self.journal = self.own / "journal"
        self.progress = self.own / "progress.table"
        self.estimator = self.own / "estimator.json"

    def make(self) -> None:
        """Make it, for its owner only."""
        for folder in (self.root, self.own):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def left_behind(self, workers: int) -> list[DataFolder]:
        """The folders with journals that nobody starts any more, now that there are so many numbered processes (0: one
        without a number). Those of the others that are started now are theirs, also before they have locked them."""
        names = (path.name.removeprefix(_OWN.format("")) for path in self.root.glob(_OWN.format("*")))
        numbered = [DataFolder(self.root, int(name)) for name in names if name.isdecimal() and int(name) >= workers]
        alone = [DataFolder(self.root)] if workers else []
        return [folder for folder in (*alone, *numbered) if folder.journal.is_dir()]


def ledger_url(settings: Settings) -> str:
    """Where the ledger is; with its password."""
    return sqlite_url(settings.data_dir / "ledger.db") if settings.ledger is None else settings.ledger.reveal()


def key_pepper(settings: Settings) -> bytes:
    """What keys are hashed with: as configured, or this data directory's own, made at its first use."""
    if settings.key_pepper is not None:
        return bytes.fromhex(settings.key_pepper.reveal())
    return load_pepper(settings.data_dir / "pepper")

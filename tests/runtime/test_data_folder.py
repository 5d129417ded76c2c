"""Whose is what in a data directory: a journal that somebody is about to start is not taken from under its feet."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.runtime.machine.data_folder import DataFolder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Once one process ran on it, and once four."""
    for worker in (None, 0, 1, 2, 3):
        DataFolder(tmp_path, worker).journal.mkdir(parents=True)
    (tmp_path / "worker-x" / "journal").mkdir(parents=True)
    (tmp_path / "worker-9").mkdir()  # it never got as far as a journal
    return tmp_path


@pytest.mark.parametrize(
    ("workers", "left"),
    [(0, {"worker-0", "worker-1", "worker-2", "worker-3"}), (2, {"", "worker-2", "worker-3"}), (4, {""}), (9, {""})],
)
def test_only_what_nobody_starts_any_more_is_left_behind(root: Path, workers: int, left: set[str]) -> None:
    mine = DataFolder(root, 0 if workers else None)
    found = [str(folder.own.relative_to(root)).removeprefix(".") for folder in mine.left_behind(range(workers))]
    assert sorted(found) == sorted(left)

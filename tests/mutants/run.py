"""Runs the tests of the gate against one mutant at a time, in a copy of the project.

`python -m tests.mutants.run` prints each of the fifty mutants and the tests that find it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.mutants.mutate import Mutant, chosen

ROOT = Path(__file__).parents[2]
GATE = "not external and not thorough and not slow and not real"

# Area -> its modules, how many mutants of them, and the tests that are run first.
AREAS: Mapping[str, tuple[Sequence[str], int, Sequence[str]]] = {
    "meter": (("proxy/metering/*.py", "proxy/metering/wire/*.py"), 13, ("tests/metering",)),
    "billing": (("proxy/billing/*.py", "proxy/billing/pricing/*.py"), 13, ("tests/billing", "tests/ledger")),
    "ledger": (("proxy/ledger/settling/*.py", "proxy/ledger/accounts/*.py"), 12, ("tests/ledger",)),
    "exchange": (("proxy/gateway/exchange/*.py",), 12, ("tests/gateway/exchange", "tests/gateway")),
}

# Mutants that change nothing a test could see, each with the reason.
EQUIVALENT: Mapping[str, str] = {
    "proxy/billing/entries.py entry_id: False -> True": "usedforsecurity only says whether FIPS allows SHA-1",
    "proxy/billing/later.py _opened: 0 -> 1": "a report has all counts: nothing reads the estimate of the prompt",
    "proxy/ledger/settling/spend.py _first_us: 0 -> 1": "no entry was settled in the first microsecond of 1970",
}


def modules(patterns: Sequence[str]) -> list[str]:
    """Paths from the root, in the order of their names."""
    return sorted(str(path.relative_to(ROOT)) for pattern in patterns for path in ROOT.glob(pattern))


def mutants_of(area: str, *, listed: bool = False) -> list[Mutant]:
    """The chosen mutants of an area. Equivalent ones are passed over, unless `listed`."""
    patterns, count, _ = AREAS[area]
    ranked = chosen(ROOT, modules(patterns), count + len(EQUIVALENT))
    return ranked if listed else [mutant for mutant in ranked if mutant.name not in EQUIVALENT][:count]


class Copy:
    """A copy of the project in a folder of its own; use it as a context manager."""

    _is_green = False

    def __enter__(self) -> Copy:
        self._folder = tempfile.TemporaryDirectory(prefix="mutants")
        self.root = Path(self._folder.name) / "main"
        ignored = shutil.ignore_patterns(".git", ".venv*", "__pycache__", ".*_cache", ".hypothesis", "data")
        shutil.copytree(ROOT, self.root, ignore=ignored)
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    def failing_test(self, mutant: Mutant, first: Sequence[str]) -> str | None:
        """The first test that fails with this mutant; None: it survives the whole gate."""
        path = self.root / mutant.module
        original = path.read_text("utf-8")
        path.write_text(mutant.source, "utf-8")
        try:
            found = self._failure(first)
        finally:
            path.write_text(original, "utf-8")
        if found is not None:
            return found
        self._assert_green()
        path.write_text(mutant.source, "utf-8")
        try:
            return self._failure(("tests",))
        finally:
            path.write_text(original, "utf-8")

    def _assert_green(self) -> None:
        """Without a fault the copy passes, so that a failure proves something. Tried once."""
        if not self._is_green:
            failure = self._failure(("tests",))
            assert failure is None, f"fails without any fault: {failure}"
            self._is_green = True

    def _failure(self, paths: Sequence[str]) -> str | None:
        existing = [path for path in paths if (self.root / path).exists()]
        options = ["-q", "-x", "-n", "2", "--timeout", "60", "-p", "no:cacheprovider", "-m", GATE]
        # With bytecode kept: without it each run would compile all tests again.
        environment = {**os.environ, "PYTHONPATH": str(self.root), "PYTHONDONTWRITEBYTECODE": ""}
        ran = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *existing],
            cwd=self.root, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if ran.returncode == 0:
            return None
        lines = [line for line in ran.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
        return lines[0][:160] if lines else f"exit code {ran.returncode}: {ran.stdout[-160:]}"


def results() -> Iterator[tuple[Mutant, str | None]]:
    """Each chosen mutant, and the test that finds it; None: it survives."""
    with Copy() as project:
        for area, (_, _, first) in AREAS.items():
            for mutant in mutants_of(area):
                yield mutant, project.failing_test(mutant, first)


def main() -> int:
    """Print the result of each mutant. Returns the exit code."""
    survivors = 0
    for mutant, found in results():
        survivors += found is None
        print(f"{'SURVIVES' if found is None else 'found'} line {mutant.line}, {mutant.name}\n    {found}", flush=True)
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())

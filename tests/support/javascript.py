"""Lints the console's page and checks its types. `python -m tests.support.javascript`; says so where it cannot.

The page has no build step and the project no package.json: the tools are installed once, at these versions, into
the user's cache.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "proxy" / "console" / "page"
TOOLS = {"typescript": "5.9.3", "oxlint": "1.20.0", "axe-core": "4.14.1"}
INSTALL_S_MAX = 120
# A method that is a variable is taken for GET.
LINT = ["--deny", "correctness", "--allow", "no-invalid-fetch-options"]
TYPES = [
    "--noEmit", "--allowJs", "--checkJs", "--target", "es2024", "--module", "es2022", "--moduleResolution", "bundler",
    "--lib", "es2024,dom,dom.iterable", "--noUnusedLocals", "--noUnusedParameters", "--noImplicitReturns",
    "--noFallthroughCasesInSwitch", "--allowUnreachableCode", "false", "--alwaysStrict",
]  # fmt: skip


def installed() -> Path | None:
    """The folder of the tools; None: they cannot be installed."""
    if shutil.which("npm") is None:
        return None
    name = "-".join(f"{tool}-{version}" for tool, version in TOOLS.items())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tokenweir-tests" / name
    programs = cache / "node_modules" / ".bin"
    if not (cache / "complete").exists():
        cache.mkdir(parents=True, exist_ok=True)
        command = ["npm", "install", "--no-audit", "--no-fund", "--no-save", "--no-package-lock", "--ignore-scripts"]
        wanted = [f"{tool}@{version}" for tool, version in TOOLS.items()]
        try:
            done = subprocess.run(
                [*command, *wanted], cwd=cache, capture_output=True, timeout=INSTALL_S_MAX, check=False
            )
        except subprocess.TimeoutExpired:
            return None
        if done.returncode:
            return None
        (cache / "complete").touch()
    return programs


def main() -> int:
    """The exit code: not 0 if there are errors, or if the tools are missing in CI."""
    programs = installed()
    if programs is None:
        print("the console's JavaScript was not checked: npm is missing, or cannot install", ", ".join(TOOLS))
        return int(os.environ.get("CI") == "true")
    files = sorted(map(str, PAGE.glob("*.js")))  # not those of others, in vendor/
    lint = subprocess.run([programs / "oxlint", "--quiet", *LINT, *files], check=False)
    types = subprocess.run([programs / "tsc", *TYPES, *files], check=False)
    return lint.returncode or types.returncode


if __name__ == "__main__":
    sys.exit(main())

"""The command lines of README, docs/ and deploy/."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from proxy.cli import COMMANDS

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")), *sorted(ROOT.glob("deploy/**/*.md"))]
BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
# What is not run here, and why: the first words of a command.
NOT_RUN = {
    "serve": "serves until it is stopped",
    "worker": "needs Redis, and works until it is stopped",
    "demo": "serves until it is stopped; tests/demo",
    "migrate": "needs Postgres; tests/ledger/schema",
    "reconcile": "needs an account at a provider; tests/cli/test_provider_pull.py",
    "conformance": "needs a gateway; tests/conformance",
    "doctor": "is run in a container",
    "erase": "needs somebody who has used something; tests/cli/test_erase.py",
}
LITELLM = "model_list: [{model_name: m, litellm_params: {model: openai/gpt-4.1, api_key: os.environ/OPENAI_API_KEY}}]\n"


def commands_of(page: Path) -> list[list[str]]:
    """The words of each `tokenweir …` in the code blocks, without what the shell does with it."""
    found = []
    blocks = BLOCK.findall(page.read_text())
    for block in (text for language, text in blocks if language in ("", "sh", "bash", "console")):
        for line in filter(re.compile(r"\btokenweir ").search, block.replace("\\\n", " ").splitlines()):
            words = shlex.shlex(line, posix=True, punctuation_chars=True)
            words.whitespace_split = True
            typed: list[str] | None = None
            for word in [*words, ";"]:
                if typed is not None and set(word) <= set(";&|<>()"):
                    found.append(typed)
                    typed = None
                elif typed is not None:
                    typed.append(word)
                elif re.fullmatch(r"(?:.*/bin/)?tokenweir", word):
                    typed = []
    return [typed for typed in found if typed and typed[0] in COMMANDS]


def written() -> Iterator[tuple[Path, list[str]]]:
    for page in PAGES:
        for typed in commands_of(page):
            yield page, typed

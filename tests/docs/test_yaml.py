"""The YAML of README, docs/ and deploy/: each block can be read, and a block of settings is a valid configuration."""

from __future__ import annotations

import re
import secrets
import textwrap
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy.settings import Settings, parse
from proxy.settings.fields import setting_name
from proxy.sinks.kinds import SINKS
from tests.docs.lines import BLOCK, PAGES

SETTINGS = frozenset(setting_name(one) for one in fields(Settings) if one.metadata)
# What a block leaves out: its reader has it in another part of the file.
LEFT_OUT: dict[str, Any] = {
    "queue": "redis://127.0.0.1",
    "ledger": "postgresql://127.0.0.1/x",
    "key_pepper": "${PEPPER}",
}
# Variables that hold a URL.
URLS = {"DATABASE_URL": LEFT_OUT["ledger"], "REDIS_URL": LEFT_OUT["queue"]}
PLACEHOLDER = "https://provider.test/v1"


def blocks() -> Iterator[Any]:
    for page in PAGES:
        found = (text for language, text in BLOCK.findall(page.read_text()) if language in ("yaml", "yml"))
        for number, text in enumerate(found):
            yield pytest.param(textwrap.dedent(text), id=f"{page.name}-{number}")


def whole(document: dict[str, Any]) -> dict[str, Any]:
    """A configuration with this part: with a provider for each that is named, and a model."""
    models = document.get("models") or {}
    named = {one.get("provider") for one in models.values()} | {
        target if isinstance(target, str) else target.get("provider")
        for one in models.values()
        for target in one.get("providers", ())
    }
    providers = {name: {"base_url": PLACEHOLDER} for name in named - {None}} | (document.get("providers") or {})
    providers = providers or {"openai": {"base_url": PLACEHOLDER}}
    for one in providers.values():
        one.setdefault("base_url", PLACEHOLDER)
    more = {"models": models or {"m": {"provider": next(iter(providers))}}, "providers": providers}
    if "resume" in document:
        more |= LEFT_OUT
    return {**LEFT_OUT, **document, **more} if "ledger" in document else {**document, **more}


@pytest.mark.parametrize("text", list(blocks()))
def test_a_block_is_valid(text: str, tmp_path: Path) -> None:
    document = yaml.safe_load(text)
    if not isinstance(document, dict) or not document.keys() <= SETTINGS:
        return  # for another program
    for file in re.findall(r"(?:tokenizer|_file): ([^,}\s]+)", text):
        if not Path(file).is_absolute():
            (tmp_path / file).write_text("")
    document = whole(document)
    shown = yaml.safe_dump(document, allow_unicode=True).replace("HOST", "host.test")
    values = {variable: secrets.token_hex(32) for variable in re.findall(r"\$\{(\w+)\}", shown)}
    values |= {name: URLS[name] for name in values.keys() & URLS.keys()}
    parse(shown, env=values, folder=tmp_path, sinks=SINKS)

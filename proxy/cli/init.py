"""`tokenweir init`: writes a configuration file for the providers whose keys are in the environment, or from LiteLLM's.

Invariants: no file is replaced, and no secret is written. The written file is valid, except for variables that are not
set.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proxy.cli.common import Failure, add_command

if TYPE_CHECKING:
    from proxy.billing.record import Price
    from proxy.settings import ProviderSettings

FILE = Path("tokenweir.yaml")
_HEAD = """\
# Tokenweir. Each setting and its meaning: `tokenweir config show`, docs/reference/settings.md
# Check this file: `tokenweir config check`. Apply a change to a running proxy: `tokenweir reload`
"""
_ADMIN = """\

# The console and its API, at http://127.0.0.1:8090. The secret: openssl rand -hex 32
# admin: {secret: "${TOKENWEIR_ADMIN_SECRET}"}
"""


def add_commands(commands: Any) -> None:
    init = add_command(commands, "init", "write a configuration file that runs at once", _init)
    init.add_argument("file", nargs="?", type=Path, default=FILE, metavar="FILE", help=f"the new file (default {FILE})")
    init.add_argument("--from-litellm", type=Path, metavar="FILE", help="convert the configuration of a LiteLLM proxy")


def _init(options: argparse.Namespace) -> None:
    if options.from_litellm is not None:
        text, told = _from_litellm(options.from_litellm)
    else:
        text, told = _from_environment()
    try:
        with options.file.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise Failure(f"{options.file}: exists already; name another file, or remove it") from None
    except OSError as failure:
        raise Failure(f"{options.file}: cannot be written: {failure.strerror}") from None
    for line in told:
        print(f"tokenweir: {line}", file=sys.stderr)
    print(f"tokenweir: wrote {options.file}; next: tokenweir config check --config {options.file}")


def _from_environment() -> tuple[str, list[str]]:
    """The file's text, and remarks to print."""
    from proxy.settings.environment import KNOWN

    found = [known for known in KNOWN if known.has_key(os.environ)]
    usable = [known for known in found if known.has_url(os.environ)]
    told = [f"{one.key_variable} is set but needs {one.url_variable}, too" for one in found if one not in usable]
    if not usable:
        usable = [KNOWN[0]]
        told.append(f"no provider's key is in the environment: set {KNOWN[0].key_variable}, or edit the file")
    providers, models = "", ""
    for known in usable:
        providers += (
            f"  {known.name}:\n    base_url: {known.url_written(os.environ)}\n    api_key: ${{{known.key_variable}}}\n"
        )
        if known.on_client_disconnect == "drain":
            providers += "    on_client_disconnect: drain     # it bills what it generates after the client has left\n"
        pattern = '"*"' if len(usable) == 1 else f'"{known.name}/*"'
        models += f"  {pattern}: {{provider: {known.name}}}\n"
    text = f"""{_HEAD}
listen: {{host: 127.0.0.1, port: 8080}}
data_dir: ./data                        # the journal, and the ledger on SQLite

providers:
{providers}    # on_client_disconnect: drain   # read on for the reported usage when a client leaves

models:                                 # any name that matches; prices from the built-in book
{models}  # a name of its own, with the price that its users are charged, in USD per million tokens:
  # large: {{provider: {usable[0].name}, upstream_model: gpt-4.1, price: {{input: 3, output: 12}}}}
{_ADMIN}"""
    return text, told


def _from_litellm(source: Path) -> tuple[str, list[str]]:
    import yaml

    from proxy.settings import SettingsError
    from proxy.settings.litellm import converted
    from proxy.settings.reading import parsed_yaml, read_text

    text = read_text(source)
    try:
        found = converted(parsed_yaml(text))
    except SettingsError as wrong:
        raise Failure(f"{source}: {wrong}") from None
    except ValueError as wrong:
        raise Failure(f"{source}: {wrong}") from None
    if not found.document["models"]:
        raise Failure("\n".join([f"{source}: no model could be converted", *_notes(source, found.notes)]))
    body = yaml.dump(found.document, Dumper=_plain_dumper(), sort_keys=False, allow_unicode=True)
    told = [f"{source}: {path}: the key is not written: set {name}" for name, path in found.variables.items()]
    told += _notes(source, found.notes)
    told += _unpriced(found.document, body)
    told.append("keys, teams and their budgets are in LiteLLM's database: create them with `tokenweir keys create`")
    comments = "".join(f"# {line}\n" for line in told)
    return f"{_HEAD}# From {source.name}. What is not here:\n{comments}\ndata_dir: ./data\n{body}{_ADMIN}", told


def _plain_dumper() -> Any:
    """A dumper without anchors: each price is written out."""
    import yaml

    class Plain(yaml.SafeDumper):
        def ignore_aliases(self, _: Any) -> bool:
            return True

    return Plain


def _unpriced(document: Any, text: str) -> list[str]:
    """The models of the new file that `serve` would refuse, since no price is known. `text`: its YAML."""
    import time

    from proxy.billing.pricing.book import PriceBook
    from proxy.settings import SettingsError, require_prices
    from proxy.settings.fields import VARIABLE
    from proxy.settings.reading import settings_from

    variables = dict.fromkeys(VARIABLE.findall(text), "https://x.example")
    book = PriceBook()
    book.load()

    def lookup(provider: ProviderSettings, model: str) -> Price | None:
        return book.price(provider=provider.name, base_url=provider.base_url, model=model, at=time.time())

    try:
        settings = settings_from(document, env=variables, folder=Path())
        require_prices(settings, lookup)
    except SettingsError as wrong:
        return str(wrong).splitlines()
    return []


def _notes(source: Path, notes: Any) -> list[str]:
    return [f"{source}: {note.path}: {note.text}" for note in notes]

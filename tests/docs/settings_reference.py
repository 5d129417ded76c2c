"""The tables of docs/reference/settings.md: `python -m tests.docs.settings_reference` writes them.

Invariants: names, types, defaults and meanings come from the declarations of the settings; only groups and examples are
here. Each example is a configuration, with the providers and models of BASE where it has none.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import Field, fields, is_dataclass
from pathlib import Path
from typing import Any

from proxy.billing.settlement import POLICY
from proxy.settings import Settings
from proxy.settings.fields import FieldType, setting_name
from proxy.settings.reading import SinkKinds
from proxy.settings.schema import default_of
from proxy.settings.sinks import SinkSettings
from proxy.sinks.kinds import SINKS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "settings.md"
BEGIN, END = "<!-- reference -->\n", "<!-- /reference -->"
HEAD = ("| name | type | default | meaning |", "|---|---|---|---|")
# A section within a section has a heading of its own if it has so many rows.
OWN_HEADING = 4

GROUPS: Mapping[str, Sequence[str]] = {
    "Providers and models": ("providers", "models", "prices", "price_rules", "estimates"),
    "Listeners": ("listen", "cors", "admin", "metrics", "worker"),
    "Ledger, queue and journal": (
        "ledger", "queue", "queue_shards", "lease_s", "data_dir", "journal", "key_pepper", "allow_literal_secrets",
    ),
    "Keys, people and limits": (
        "identities", "dimensions", "budgets", "reserve", "key_lifetime_max", "key_info", "key_rotation",
        "hide_providers", "budget_headers", "idempotency",
    ),
    "Billing": ("billing", "statement", "alerts", "sinks"),
    "Requests": (
        "request_bytes_max", "exchanges_max", "websockets_per_key_max", "write_stall_s", "drain_delay_s",
        "shutdown_grace_s", "resume",
    ),
    "Log and traces": ("log", "traces"),
}  # fmt: skip
BASE = {
    "providers": {"openai": {"base_url": "https://api.openai.com/v1"}},
    "models": {"gpt-4o-mini": {"provider": "openai"}},
}
EXAMPLES: Mapping[str, str] = {
    "providers": """
        providers:
          openai:
            base_url: https://api.openai.com/v1
            api_key: ${OPENAI_API_KEY}
            on_client_disconnect: drain
            drain: {seconds: 60}
            timeouts: {first_byte_s: 60}
        """,
    "models": """
        models:
          gpt-4o-mini:
            provider: openai
            price: {input: 0.20, cached_input: 0.10, output: 0.80}
          fast: {alias_of: gpt-4o-mini}
          "*": {provider: openai}
        """,
    "prices": """
        prices:
          refresh: {every: 12h}
        """,
    "price_rules": """
        price_rules:
          acme-discount: {organizations: [acme], multiply: 0.9}
          nights: {hours: 22:00-06:00, time_zone: Europe/Berlin, multiply: 0.5}
        """,
    "estimates": "estimates: {answer_bytes_max: 128 KiB}",
    "listen": "listen: {host: 0.0.0.0, port: 8080}",
    "cors": "cors: {origins: [https://app.example.com]}",
    "admin": """
        admin:
          port: 8090
          secret: ${ADMIN_SECRET}
          operators:
            ann@example.com: {secret: "${ANN_SECRET}", role: operate}
        """,
    "metrics": "metrics: {port: 9100, projects_max: 50}",
    "worker": "worker: {port: 8081}",
    "ledger": """
        ledger: postgresql://tokenweir@db.internal/tokenweir
        queue: redis://redis.internal
        key_pepper: ${KEY_PEPPER}
        """,
    "journal": "journal: {durability: power, bytes_max: 4 GiB}",
    "identities": """
        identities:
          github:
            issuer: https://token.actions.githubusercontent.com
            audience: https://llm.example.com
            require: {repository_owner: [acme]}
            project: ci
            claims: {end_user: actor, run: run_id}
            key: {budget_usd: 20, budget_window: calendar_day}
        """,
    "dimensions": """
        dimensions:
          sources: [tokenweir, openai, claude_code]
          hash_end_users: true
        """,
    "budgets": "budgets: {exceeded_status: 429, on_store_outage: fail_open}",
    "reserve": "reserve: {completion_tokens: 2048, usd_max: 1}",
    "idempotency": "idempotency: {replay_bytes_max: 256 KiB}",
    "billing": "billing: {close_after_days: 3}",
    "statement": """
        statement:
          seller: Weir & Sons GmbH
          address: Kanalstraße 12, 20457 Hamburg
          due_days: 14
          tax: {label: VAT, percent: 19}
          customers:
            acme: {legal_name: Acme Ltd, tax_id: VAT GB123456789, email: accounts@acme.example}
          mail:
            host: smtp.example.com
            username: billing
            password: ${MAIL_PASSWORD}
            from: billing@example.com
        """,
    "alerts": """
        alerts:
          url: https://hooks.example.com/budgets
          secret: ${ALERT_SECRET}
          balance_low_usd: 5
        """,
    "sinks": """
        sinks:
          stripe:
            kind: stripe
            url: https://api.stripe.com
            secret: ${STRIPE_KEY}
            subject: organization
            customers: {acme: cus_123}
        """,
    "resume": "resume: {minutes: 5, total_bytes_max: 512 MiB}",
    "log": "log: {format: json}",
    "traces": "traces: {endpoint: http://collector:4318/v1/traces, sample: 0.1}",
}


def reference(sinks: SinkKinds = SINKS) -> str:
    """Every setting (name, type, default, meaning) by section, and the billed parts in each situation."""
    made = _Reference(sinks)
    declared = {setting_name(one): one for one in fields(Settings) if one.metadata}
    lines = []
    for group, names in GROUPS.items():
        here = [declared[name] for name in names if name in declared]
        sections = [one for one in here if one.metadata["kind"].section is not None]
        plain = [one for one in here if one.metadata["kind"].section is None]
        lines += ["", f"## {group}"]
        for one in sections:
            lines += made.section(one)
        if plain:
            names = [setting_name(one) for one in plain]
            lines += ["", f"### {', '.join(f'`{name}`' for name in names)}", *_examples(names), "", *HEAD]
            lines += [
                _row(setting_name(one), one.metadata["kind"].description, one, one.metadata["meaning"]) for one in plain
            ]
    policy = ["", "## What is billed when", "", "| situation | bills | when |", "|---|---|---|"]
    policy += [f"| `{situation}` | `{rule.bills}` | {rule.when} |" for situation, rule in POLICY.items()]
    return "\n".join([*lines, *policy, ""])


def _examples(names: Sequence[str]) -> Iterator[str]:
    for name in names:
        if name in EXAMPLES:
            yield from ("", "```yaml", textwrap.dedent(EXAMPLES[name]).strip(), "```")


class _Reference:
    """The tables of sections. A section that several settings have is listed once."""

    def __init__(self, sinks: SinkKinds) -> None:
        self._sinks = sinks
        self._listed: dict[type[Any], str] = {}  # sections that have rows already → the name in those rows

    def section(self, setting: Field[Any]) -> Iterator[str]:
        """The heading, the example and the tables of a section of the file."""
        name, kind = setting_name(setting), setting.metadata["kind"]
        meaning = setting.metadata["meaning"] + _cross_reference(kind, self._listed)
        optional = f" Default: {default_of(setting)}." if default_of(setting) in ("off", "none") else ""
        yield from ("", f"### `{name}`", "", f"{meaning[:1].upper()}{meaning[1:]}.{optional}", *_examples([name]))
        for heading, rows in self._tables(f"{name}{kind.suffix}", kind.section):
            yield from () if heading == f"{name}{kind.suffix}" else ("", f"#### `{heading}`")
            yield from ("", *HEAD, *rows)

    def _tables(self, name: str, section: type[Any]) -> list[tuple[str, list[str]]]:
        """Name and rows of a section, then of the sections in it that are long enough for a table of their own."""
        if section is SinkSettings:
            return [(name, list(_sink_rows(f"{name}.", self._sinks)))]
        known, rows, more = _known(section, self._listed), [], []
        self._listed |= {one: name for one in section.__mro__ if is_dataclass(one) and one not in self._listed}
        for setting in fields(section):
            if not setting.metadata or setting.name in known:
                continue
            kind: FieldType = setting.metadata["kind"]
            below = f"{name}.{setting_name(setting)}"
            meaning = setting.metadata["meaning"] + _cross_reference(kind, self._listed)
            rows.append(_row(below, kind.description, setting, meaning))
            if kind.section is not None:
                first, *others = self._tables(f"{below}{kind.suffix}", kind.section)
                if len(first[1]) < OWN_HEADING and not others:
                    rows += first[1]
                else:
                    more += [first, *others]
        return [(name, rows), *[one for one in more if one[1]]]


def _sink_rows(prefix: str, sinks: SinkKinds) -> Iterator[str]:
    """One row per name; where the kinds of sinks differ, it has the meaning for each kind."""
    named: dict[str, dict[str, Field[Any]]] = {}
    for kind, section in sinks.items():
        for setting in fields(section):
            if setting.metadata:
                named.setdefault(setting_name(setting), {})[kind] = setting
    for name, settings in named.items():
        first = next(iter(settings.values()))
        words = " or ".join(f"`{kind}`" for kind in sinks) if name == "kind" else first.metadata["kind"].description
        yield _row(f"{prefix}{name}", words, first, _meaning_by_kind(settings, len(sinks)))


def _meaning_by_kind(settings: Mapping[str, Field[Any]], kinds: int) -> str:
    meanings: dict[str, list[str]] = {}
    for kind, setting in settings.items():
        meanings.setdefault(setting.metadata["meaning"], []).append(f"`{kind}`")
    if len(settings) == kinds and len(meanings) == 1:
        return next(iter(meanings))
    return "; ".join(f"{', '.join(words)}: {meaning}" for meaning, words in meanings.items())


def _plain_row(setting: Field[Any]) -> str:
    return _row(setting_name(setting), setting.metadata["kind"].description, setting, setting.metadata["meaning"])


def _row(name: str, words: str, setting: Field[Any], meaning: str) -> str:
    cells = (f"`{name}`", words, default_of(setting), meaning)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _known(section: type[Any], listed: Mapping[type[Any], str]) -> set[str]:
    return {field.name for each in section.__mro__ if each in listed for field in fields(each)}


def _cross_reference(kind: FieldType, listed: Mapping[type[Any], str]) -> str:
    """A reference to the section's fields, if they are listed already."""
    if kind.section is None:
        return ""
    found = next((each for each in kind.section.__mro__ if each in listed), None)
    if found is None:
        return ""
    which = "fields" if found is kind.section else "those of its fields that are not listed here"
    return f"; {which} as in `{listed[found]}`"


def page() -> str:
    """The page with its tables."""
    head, rest = PAGE.read_text().split(BEGIN)
    return f"{head}{BEGIN}{reference()}{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(page())

"""The part of docs/reference/cli.md with the commands: `python -m tests.docs.cli_reference` writes it.

Invariants: synopsis, options and their help come from the parsers. What the help does not say, such as links and
examples, is here, once for each command.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from proxy.cli import _parser

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"
BEGIN, END = "<!-- generated: python -m tests.docs.cli_reference -->", "<!-- end of the generated part -->"
# Of all commands; the page explains them once.
COMMON = frozenset({"--help", "--config", "--json", "--wide", "--quiet", "--yes"})
WIDTH = 100

GROUPS: Mapping[str, Sequence[str]] = {
    "Set up and serve": ("init", "demo", "config", "doctor", "serve", "reload", "worker", "migrate", "conformance"),
    "Keys, limits, credit": ("keys", "accounts", "limits", "credit", "grants", "budgets"),
    "Look up usage": ("ledger", "exchange", "usage", "audit"),
    "Prices and corrections": ("prices", "simulate", "rerate", "adjust", "import"),
    "Statements and exports": ("periods", "statement", "receipt", "verify", "export", "sinks", "archive"),
    "Check and repair": ("reconcile", "dead-letters", "journal", "backup", "erase"),
    "Shell": ("completion",),
}

# More than the help says: Markdown.
NOTES: Mapping[str, str] = {
    "init": "For the providers whose keys are in the environment (`OPENAI_API_KEY`, …), or "
    "[from LiteLLM's configuration](../how-to/move-from-litellm.md). No file is replaced.",
    "serve": "SIGTERM or Ctrl-C stops gracefully; a second one ends running streams at once, a third one the process. "
    "`--workers` runs so many processes on one port. `--take-over` replaces the running proxy "
    "[without a pause](../operations/running.md#without-a-pause-on-one-machine).",
    "reload": "As [SIGHUP does](../how-to/change-the-configuration.md). Prints the result of each process; "
    "exit code 1 if one of them has changed nothing.",
    "migrate": "No other command changes the tables on Postgres; a ledger on SQLite is upgraded when it is opened. "
    "[Servers may run](../operations/running.md#upgrade) meanwhile. With `--from`, it "
    "[moves a ledger](../how-to/move-from-sqlite-to-postgres.md): copies all of it and compares every row; it can be "
    "interrupted and run again.",
    "conformance": "See [Test a gateway](../how-to/test-a-gateway.md). Exit code 1 if a relayed byte or a bill is "
    "wrong. The key may be in `TOKENWEIR_CONFORMANCE_KEY`.",
    "config check": "Names each fault with its line, and settings that are unsafe or without a price. Exit code 1 if "
    "`serve` would not start with the file.",
    "config show": "Secrets are not shown.",
    "config schema": "See [An editor that knows the settings](#an-editor-that-knows-the-settings).",
    "doctor": "From end to end: configuration, providers, ledger, queue. Exit code 1 if a check fails.",
    "keys create": "`--byok`: for [clients with their own provider keys](../how-to/clients-own-credentials.md). "
    "`--narrowable`: [narrower keys](../how-to/narrow-a-key.md) can be made from it.",
    "keys narrow": "See [Narrow a key](../how-to/narrow-a-key.md). Needs neither the proxy nor its configuration.",
    "limits create": "See [Limit each user](../how-to/limit-each-user.md).",
    "limits list": "`--all`: also the limits of keys, projects and organizations. `--key`: those that requests of this "
    "key can count against.",
    "credit add": "An entry of the ledger.",
    "grants add": "See [A trial credit](../how-to/trial-credit.md).",
    "budgets show": "Spend by usage date, with corrections, and reservations.",
    "ledger": "In the columns that fit the terminal. `--explain`: with the dimensions of each request, the addends of "
    "each charge, the prices, operator and new total of each correction (`prices`, `total_usd` in JSON), "
    "[flags](flags.md) and unread numbers.",
    "exchange": "Its entry, attempts, corrections, sums and details.",
    "usage": "The rows with the highest charges, then the total of all; see "
    "[Who used it](../how-to/who-used-it.md#see-it-in-reports).",
    "audit": "Changes by command, in the console or by the admin API: who, what, when, from where, and the result.",
    "import": "See [Import usage](../how-to/import-usage.md). Each row once, or none if one of them is wrong.",
    "adjust": "Money follows from the counts unless it is given.",
    "rerate": "At these prices, or those of the current configuration. Amounts that an operator has set stay; a second "
    "run writes nothing.",
    "simulate": "At the prices of another configuration, in another service tier, or with another lifetime of caches: "
    "a row for each key and model, and the sum. Amounts that an operator has set stay. `unpriced` and `unknown_cost` "
    "count exchanges whose amounts are unknown as settled and add nothing; `without_price`, exchanges without a price.",
    "prices why": "For the charge, and for the cost at each provider: the source (configuration or price book), the "
    "tier by length, the multipliers that apply and those that do not, and units without a price.",
    "prices show": "With `prices.refresh`, also the last check, and the models whose new prices were refused.",
    "prices refresh": "A row for each price that [changes](../explanation/money.md#prices-that-refresh-themselves). "
    "Running proxies apply it within seconds.",
    "prices update": "From the next start on (`price-book.json` in the data directory, on every machine); with "
    "`prices.refresh`, at once and on all machines. A price that is removed, or changes by more than a factor of 3, is "
    "listed and needs `--confirm`.",
    "periods close": "Its statements never change again. Unsettled records are named: `--wait` waits for them, "
    "`--leave` leaves them to a later statement.",
    "periods list": "Who closed it and when, unsettled records, the digest of all statements, and the file of the "
    "entries if it is archived.",
    "export": "Also as FOCUS 1.2, a row for each billed unit, and in double entry.",
    "verify": "Needs no configuration and no ledger.",
    "reconcile": "Without `--provider`: every invariant of the ledger, also while it is written to. `--provider` with "
    "`--file`: against a provider's report; with `--pull`: against the API of OpenAI or Anthropic, read with "
    "`providers.NAME.admin_key`, for whole days in the past; an incomplete pull compares nothing. `--estimates`: the "
    "error of estimates, against usage that was "
    "[reported afterwards](../explanation/estimates.md#asked-afterwards). Exit code 1 if anything differs.",
    "dead-letters list": "Of a conflict, each field in which the ledger and the record differ.",
    "journal replay": "Compares the settled records that the journals keep (`journal.keep_settled_s`). Proxies may "
    "run, and do this themselves after a [failover](../operations/running.md#failover).",
    "erase": "See [Erasing a person](../explanation/security.md#erasing-a-person). Prints what contains the id.",
    "completion": "See [Completion in a shell](#completion-in-a-shell).",
}

# Examples: run by tests, in the order of the page, on an empty ledger.
EXAMPLES: Mapping[str, Sequence[str]] = {
    "config check": ("tokenweir config check",),
    "keys create": ("tokenweir keys create --alias alice --budget 50 --budget-window calendar_month",),
    "keys update": ("tokenweir keys update alice --budget 80 --model tera-large",),
    "keys rotate": ("tokenweir keys rotate alice --grace 24h",),
    "keys block": ("tokenweir keys block alice",),
    "keys unblock": ("tokenweir keys unblock alice",),
    "keys narrow": ("tokenweir keys narrow --usd 2.50 --expires 1h",),
    "accounts create-organization": ("tokenweir accounts create-organization acme --budget 500",),
    "accounts create-project": ("tokenweir accounts create-project chat --organization acme",),
    "limits create": (
        "tokenweir limits create per-user --project chat --split-by end_user --budget 5 --budget-window calendar_month",
    ),
    "limits list": ("tokenweir limits list --all",),
    "credit add": ('tokenweir credit add --account acme --usd 100 --reason "invoice 2026-118"',),
    "grants add": ("tokenweir grants add trial --account acme --usd 10 --lasts 14d",),
    "ledger": ("tokenweir ledger --since 24h --explain", "tokenweir ledger --key alice --json"),
    "usage": ("tokenweir usage --by project --by model --since 30d",),
    "audit": ("tokenweir audit --since 7d",),
    "prices why": ("tokenweir prices why tera-large --prompt-tokens 200000",),
    "simulate": ("tokenweir simulate --since 30d --model tera-large",),
    "rerate": ("tokenweir rerate --model tera-large --since 2026-11-01 --input 0.2 --output 0.8 --dry-run",),
    "statement": ("tokenweir statement --account acme --month 2026-10 --format html --output acme-2026-10.html",),
    "export": ("tokenweir export --format csv --since 30d --output entries.csv",),
    "backup": ("tokenweir backup ./backup",),
}  # fmt: skip


def every() -> dict[str, argparse.ArgumentParser]:
    """Each command that can be run, by its words."""
    return dict(_below("", _parser()))


def _below(words: str, parser: Any) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    if parser.commands is None:
        yield words, parser
        return
    for name, one in parser.commands.choices.items():
        yield from _below(f"{words} {name}".strip(), one)


def generated() -> str:
    """The generated part, in Markdown."""
    known = every()
    lines = []
    for group, names in GROUPS.items():
        words = [one for name in names for one in known if one.split()[0] == name]
        links = ", ".join(f"[{one}](#{_anchor(one)})" for one in words)
        lines.append(f"* {group}: {links}")
    for group, names in GROUPS.items():
        lines += ["", f"## {group}"]
        for one in (one for name in names for one in known if one.split()[0] == name):
            lines += ["", *_section(one, known[one])]
    return "\n".join(lines)


def _anchor(words: str) -> str:
    return f"tokenweir-{words.replace(' ', '-')}"


def _section(words: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    """Heading, what it does, synopsis, options, examples."""
    yield f"### tokenweir {words}"
    yield ""
    yield _sentence(parser.description or "")
    if words in NOTES:
        yield NOTES[words]
    yield from ("", "```text", *_synopsis(parser), "```")
    if rows := [_row(action) for action in _actions(parser) if not COMMON.intersection(action.option_strings)]:
        yield from ("", "| | |", "|---|---|", *rows)
    if words in EXAMPLES:
        yield from ("", "```sh", *EXAMPLES[words], "```")


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "."


def _synopsis(parser: argparse.ArgumentParser) -> list[str]:
    """The command with its options, as `--help` has it, but the same on each version of Python."""
    parts, grouped = [], set()
    for action in sorted(_actions(parser), key=lambda one: not one.option_strings):
        group = next((one for one in parser._mutually_exclusive_groups if action in one._group_actions), None)
        if group is None:
            text = _name(action)
            parts.append(text if action.required or text.startswith("[") else f"[{text}]")
        elif group not in grouped:
            grouped.add(group)
            choice = " | ".join(map(_name, group._group_actions))
            parts.append(f"({choice})" if group.required else f"[{choice}]")
    indent = " " * (len(parser.prog) + 1)
    lines = [parser.prog]
    for part in parts:
        if len(lines[-1]) + len(part) >= WIDTH:
            lines.append(indent + part)
        else:
            lines[-1] += f" {part}"
    return lines


def _actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [one for one in parser._actions if "--help" not in one.option_strings and one.help != argparse.SUPPRESS]


def _name(action: argparse.Action) -> str:
    """`--model MODEL`, `[FILE]`."""
    if action.nargs == 0:
        return " | ".join(action.option_strings)
    shown = action.metavar or (f"{{{','.join(map(str, action.choices))}}}" if action.choices else action.dest.upper())
    value = f"[{shown}]" if action.nargs == "?" else str(shown)
    return " ".join([*action.option_strings, value])


def _row(action: argparse.Action) -> str:
    help_text = re.sub(r"<(\w+)>", r"\\<\1\\>", (action.help or "") % {"default": action.default})
    return f"| `{_cell(_name(action))}` | {_cell(help_text)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def page() -> str:
    """The page with its generated part."""
    text = PAGE.read_text()
    head, rest = text.split(BEGIN)
    return f"{head}{BEGIN}\n\n{generated()}\n\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(page())

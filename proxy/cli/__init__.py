"""The `tokenweir` command: option parsing, printed results and exit codes.

Exit codes: see EXIT_CODES; the reason is on standard error.
Invariants: these modules parse and print; other packages do the work. A command loads its own module alone, so that it
starts in a fraction of a second, and Ctrl-C ends it without a traceback.
"""

from __future__ import annotations

# Nothing else here, `typing` least of all: until `main` runs, Ctrl-C prints a traceback.
import os
import sys

from proxy import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Mapping, Sequence
    from types import FrameType

    from proxy.cli.parser import Parser

COMMANDS: Mapping[str, str] = {
    "init": "init", "demo": "serve", "serve": "serve", "reload": "reload", "worker": "serve", "migrate": "migrate",
    "accounts": "accounts", "keys": "keys", "limits": "limits", "credit": "credit", "grants": "grants",
    "budgets": "budgets",
    "ledger": "ledger", "exchange": "ledger", "usage": "usage",
    "import": "imports",
    "adjust": "corrections", "rerate": "corrections", "simulate": "corrections", "prices": "prices",
    "dead-letters": "dead_letters", "reconcile": "reconcile", "doctor": "doctor", "config": "config",
    "conformance": "conformance",
    "backup": "backup", "journal": "journal", "audit": "audit", "archive": "archive", "statement": "statement",
    "periods": "periods", "receipt": "periods", "verify": "periods", "export": "export", "sinks": "sinks",
    "erase": "erase", "completion": "completion",
}  # fmt: skip
"""command → the module here that has it, in the order of the help"""

FAILED, WRONG_USAGE, NOT_FOUND = 1, 2, 3
# 128 + SIGINT, as shells report a program that Ctrl-C ended.
INTERRUPTED = 130
EXIT_CODES: Mapping[int, str] = {
    0: "done; of a check: nothing is wrong",
    FAILED: "refused, or failed; of a check: something is wrong",
    WRONG_USAGE: "a command, an option or a value that is wrong; nothing was done",
    NOT_FOUND: "no key, account, exchange, dead letter, model, provider or sink has this name",
    INTERRUPTED: "ended by Ctrl-C",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns its exit code."""
    typed = sys.argv[1:] if arguments is None else list(arguments)
    try:
        import argparse

        _end_at_once()
        options = _parser(typed).parse_args(typed, argparse.Namespace(typed=typed, parser=None))
        return _run(options)
    except KeyboardInterrupt:
        return INTERRUPTED


def _end_at_once() -> None:
    """Let Ctrl-C end the process while modules load."""
    import signal
    from threading import current_thread, main_thread

    is_ignored = signal.getsignal(signal.SIGINT) is not signal.default_int_handler  # as in a shell's background
    if not is_ignored and current_thread() is main_thread():  # else called by another program
        signal.signal(signal.SIGINT, _interrupted)


def _interrupted(_: int, frame: FrameType | None) -> None:
    """End the process at once while a module loads: an import that is interrupted can crash in C (msgspec's does)."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            os._exit(INTERRUPTED)
        frame = frame.f_back
    raise KeyboardInterrupt


def _run(options: argparse.Namespace) -> int:
    from proxy.cli.common import Failure, WrongUsage
    from proxy.foundation.names import UnknownNameError
    from proxy.settings import SettingsError

    try:
        code: int | None = options.run(options)
    except BrokenPipeError:  # the reader of our output, such as `head`, has exited
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except UnknownNameError as unknown:
        _print_error(unknown, options.parser)
        return NOT_FOUND
    except WrongUsage as wrong:
        _print_error(wrong)
        return WRONG_USAGE
    except (Failure, SettingsError, OSError) as refusal:
        _print_error(refusal)
        return FAILED
    except ValueError as refusal:
        _print_error(refusal, options.parser)
        return FAILED
    return code or 0


def _print_error(wrong: Exception, parser: Parser | None = None) -> None:
    """Print the error on standard error; each line begins with the name of the command. `parser`: of the typed command,
    whose options replace the names of fields."""
    text = str(wrong) if parser is None else parser.with_options(str(wrong))
    for line in text.splitlines() or [""]:
        print(f"tokenweir: {line}", file=sys.stderr)


def _parser(typed: Sequence[str] = ()) -> argparse.ArgumentParser:
    from importlib import import_module

    from proxy.cli.parser import Parser

    parser = Parser(
        prog="tokenweir",
        description="A reverse proxy that meters LLM streams and bills each request in an auditable ledger.",
    )
    parser.add_argument("--version", action="version", version=f"tokenweir {__version__}")
    if typed[:1] == ["--version"]:
        return parser
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for module in _modules(typed):
        import_module(f"proxy.cli.{module}").add_commands(commands)
    return parser


def _modules(typed: Sequence[str]) -> Iterable[str]:
    """The module of the command that was typed; for the help and for a wrong command, all of them."""
    if typed and typed[0] in COMMANDS:
        return (COMMANDS[typed[0]],)
    return dict.fromkeys(COMMANDS.values())

"""All checks at once, each with a time limit of its own. Law: the order of the report is that of the list, whoever
answers first."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTime
from dataclasses import dataclass
from functools import partial
from threading import Thread

from proxy.doctor import configuration, ledger, machine, providers, queue
from proxy.doctor.finding import Case, Finding, error

# A server that is well answers in milliseconds; one of ours gives a lost connection 5 s.
CHECK_S = 10.0


@dataclass(frozen=True, slots=True)
class Check:
    """One look at one thing. `look` may raise OSError or ValueError, in words that hold no secret."""

    name: str
    look: Callable[[Case], list[Finding]]
    limit_s: float = CHECK_S


def checks(case: Case) -> list[Check]:
    """What there is to look at in this deployment."""
    found = [
        Check("configuration", configuration.wording),
        Check("prices", configuration.prices),
        Check("hidden reasoning", configuration.hidden_reasoning),
        *([Check("tokenizers", configuration.tokenizers)] if _has_tokenizers(case) else []),
        Check("data folder", machine.data_folder),
        Check("journal", machine.journal),
        Check("open files", machine.open_files),
        Check("ledger", ledger.look),
    ]
    if case.settings.queue is not None:
        found.append(Check("queue", queue.look))
    found += [Check(f"provider {name}", partial(providers.look, name)) for name in case.settings.providers]
    if case.call is not None:
        found.append(Check(f"call {case.call}", providers.call, providers.CALL_S + CHECK_S))
    return found


def _has_tokenizers(case: Case) -> bool:
    return any(model.tokenizer is not None for model in case.settings.models.values())


def examine(case: Case, listed: Sequence[Check]) -> list[Finding]:
    """What each check says, in the order of the list."""
    began = time.monotonic()
    waiting = [(check, _begun(check, case)) for check in listed]
    return [finding for check, answer in waiting for finding in _answer(check, answer, began + check.limit_s)]


def _begun(check: Check, case: Case) -> Future[list[Finding]]:
    """In a thread that nobody waits for at the end: a server can hold it for ever."""
    answer: Future[list[Finding]] = Future()

    def look() -> None:
        try:
            answer.set_result(check.look(case))
        except BaseException as wrong:  # noqa: BLE001  it is said below, in the thread that reports
            answer.set_exception(wrong)

    Thread(target=look, name=check.name, daemon=True).start()
    return answer


def _answer(check: Check, answer: Future[list[Finding]], until: float) -> list[Finding]:
    try:
        return answer.result(max(0.0, until - time.monotonic()))
    except NotInTime:
        return [error(check.name, f"no answer within {check.limit_s:g} s", "see whether what it asks is overloaded")]
    except (OSError, ValueError) as refused:
        return [error(check.name, str(refused), "see whether it runs, and whether its address is right")]
    except Exception as bug:  # noqa: BLE001  a bug in one check hides none of the others; its words could be anything
        return [error(check.name, f"the check itself failed: {type(bug).__name__}", "please report this")]

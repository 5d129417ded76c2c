"""Runs all checks concurrently, each with a time limit. Invariant: the findings are in the order of the checks."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTime
from dataclasses import dataclass
from functools import partial
from threading import Thread

from proxy.doctor import configuration, identity_provider, ledger, machine, price_scale, providers, queue
from proxy.doctor.finding import CheckedDeployment, Finding, error

# A healthy server answers in milliseconds; our clients allow 5 s to connect.
CHECK_S = 10.0


@dataclass(frozen=True, slots=True)
class Check:
    """One check. `run` may raise OSError or ValueError; the message must not contain a secret."""

    name: str
    run: Callable[[CheckedDeployment], list[Finding]]
    limit_s: float = CHECK_S


def offline_checks(case: CheckedDeployment) -> list[Check]:
    """The checks of the configuration alone: they reach no server, and read no data."""
    return [
        Check("configuration", configuration.settings_valid),
        Check("prices", configuration.prices),
        Check("price scale", price_scale.price_scale),
        Check("hidden reasoning", configuration.hidden_reasoning),
        *([Check("tokenizers", configuration.tokenizers)] if _has_tokenizers(case) else []),
    ]


def checks(case: CheckedDeployment) -> list[Check]:
    """The checks of this deployment."""
    listed = [
        *offline_checks(case),
        Check("data folder", machine.data_folder),
        Check("journal", machine.journal),
        Check("open files", machine.open_files),
        Check("ledger", ledger.check),
    ]
    if case.settings.queue is not None:
        listed.append(Check("queue", queue.check))
    if case.settings.admin.oidc is not None:
        listed.append(Check(identity_provider.TITLE, identity_provider.check, identity_provider.CHECK_S))
    listed += [
        Check(f"identity {name}", partial(identity_provider.issuer, name), identity_provider.CHECK_S)
        for name in case.settings.identities
    ]
    listed += [Check(f"provider {name}", partial(providers.check, name)) for name in case.settings.providers]
    if case.call is not None:
        listed.append(Check(f"call {case.call}", providers.call, providers.CALL_S + CHECK_S))
    return listed


def _has_tokenizers(case: CheckedDeployment) -> bool:
    return any(model.tokenizer is not None for model in case.settings.models.values())


def examine(case: CheckedDeployment, listed: Sequence[Check]) -> list[Finding]:
    """Run the checks. Returns their findings in the order of `listed`."""
    began = time.monotonic()
    started = [(check, _start(check, case)) for check in listed]
    return [finding for check, result in started for finding in _findings(check, result, began + check.limit_s)]


def _start(check: Check, case: CheckedDeployment) -> Future[list[Finding]]:
    """Run a check in a daemon thread, because a hung server can block it without end."""
    result: Future[list[Finding]] = Future()

    def run() -> None:
        try:
            result.set_result(check.run(case))
        except BaseException as failure:  # noqa: BLE001  `_findings` reports it
            result.set_exception(failure)

    Thread(target=run, name=check.name, daemon=True).start()
    return result


def _findings(check: Check, result: Future[list[Finding]], until: float) -> list[Finding]:
    try:
        return result.result(max(0.0, until - time.monotonic()))
    except NotInTime:
        return [
            error(
                check.name,
                f"no answer within {check.limit_s:g} s",
                "check whether the server is overloaded or unreachable",
            )
        ]
    except (OSError, ValueError) as failure:
        return [error(check.name, str(failure), "check that the server runs and that its address is correct")]
    except Exception as bug:  # noqa: BLE001  a bug in one check must not hide the others; its message may contain a secret
        return [error(check.name, f"the check itself failed: {type(bug).__name__}", "please report this")]

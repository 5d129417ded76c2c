"""The learned state of all models: one `ModelState` a model, and its stored form.

Invariants: at most MODELS_MAX models are remembered; the one that learned longest ago is dropped. The stored form has
one row of numbers for each kind of state and model, under the names of STORED; invalid rows are skipped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard, TypeVar

from proxy.metering.estimator.completion import Completions, Hidden
from proxy.metering.estimator.floor import Floor
from proxy.metering.estimator.prompted import ReferencedPrompt
from proxy.metering.estimator.prompts import Prompts
from proxy.metering.estimator.referenced import ReferencedEstimate
from proxy.metering.estimator.silence import Pace
from proxy.metering.estimator.tokenized import TokenizedEstimate

# Clients may use any name on "*" routes.
MODELS_MAX = 1000


@dataclass(slots=True)
class ModelState:
    """The learned state of one model; None: nothing learned of that kind."""

    completion: Completions | None = None
    prompt: Prompts | None = None
    tokenized: TokenizedEstimate | None = None
    referenced: ReferencedEstimate | None = None
    prompted: ReferencedPrompt | None = None
    floor: Floor | None = None
    pace: Pace | None = None
    answers: int = 0
    """answers that reported usage, since this process started; not stored"""


# Stored name (another one after a change of the features), attribute, class. The last one determines the order of
# restored models.
STORED: tuple[tuple[str, str, Any], ...] = (
    ("prompted-3", "prompted", ReferencedPrompt),
    ("prompts", "prompt", Prompts),
    ("referenced-3", "referenced", ReferencedEstimate),
    ("tokenized", "tokenized", TokenizedEstimate),
    ("paces", "pace", Pace),
    ("floors", "floor", Floor),
    ("completions", "completion", Completions),
)
# Names of an earlier version, read where a state has nothing under the new name: what reads their rows.
_EARLIER: dict[str, tuple[str, Callable[[list[float]], Any]]] = {
    "prompted-3": ("prompted-2", ReferencedPrompt.of_version_2),
    "referenced-3": ("referenced-2", ReferencedEstimate.of_version_2),
}
# The first version has these members even if they are empty.
_ALWAYS = ("completions", "prompts", "tokenized")

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class LearnedState:
    """The state of all models."""

    models: dict[str, ModelState] = field(default_factory=dict)
    """model key, `provider/upstream_model` → its state"""
    names: dict[str, Hidden] = field(default_factory=dict)
    """hidden tokens by the model's own name, at any provider"""

    def export(self) -> dict[str, Any]:
        """Plain JSON values, for `restore`."""
        exported: dict[str, Any] = {"named": {name: hidden.row() for name, hidden in self.names.items()}}
        for name, attribute, _ in STORED:
            parts = {key: getattr(model, attribute) for key, model in self.models.items()}
            rows = {key: part.row() for key, part in parts.items() if part is not None}
            if rows or name in _ALWAYS:
                exported[name] = rows
        return exported

    @classmethod
    def restore(cls, exported: Mapping[str, Any]) -> LearnedState:
        """The inverse of `export`."""
        models: dict[str, ModelState] = {}
        for name, attribute, kind in STORED:
            stored, read = name, kind.restored
            if name in _EARLIER and name not in exported:
                stored, read = _EARLIER[name]
            for key, part in _restored(exported.get(stored), read).items():
                setattr(kept(models, key, ModelState), attribute, part)
        return cls(models, _restored(exported.get("named"), Hidden.restored))


def kept(states: dict[str, _T], key: str, new: Callable[[], _T]) -> _T:
    """The state of `key`, moved to the most recent end; drops the oldest one beyond MODELS_MAX."""
    state = states.pop(key, None)
    if state is None:
        state = new()
    if len(states) >= MODELS_MAX:
        del states[next(iter(states))]
    states[key] = state
    return state


def _restored(exported: object, read: Callable[[list[float]], _T | None]) -> dict[str, _T]:
    rows = exported.items() if isinstance(exported, Mapping) else ()
    parts = ((key, read(row)) for key, row in rows if isinstance(key, str) and _is_row(row))
    good = [(key, part) for key, part in parts if part is not None]
    return dict(good[-MODELS_MAX:])


def _is_row(row: object) -> TypeGuard[list[float]]:
    return isinstance(row, list) and all(type(value) in (int, float) and math.isfinite(value) for value in row)

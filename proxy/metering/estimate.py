"""Token counts that no provider reported, from counters alone; and the reading that says which is which.

Law: a reported number is never replaced. An estimate is a prior until a model's streams with usage teach otherwise: of
completions by a small regression (`completion`), of prompts by one factor. It is capped by what the request allowed
and by the bytes seen, and it is never 0 where something was generated. Equal state and evidence give equal numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard, TypeVar

import msgspec
from msgspec import structs

from proxy.metering.completion import Completions, Hidden, counters, hidden_tokens
from proxy.metering.meter import Metered
from proxy.metering.usage import NOTHING, Evidence, PromptEvidence, Reading, Usage, UsageSource

VERSION = "ridge-1"
# Where the provider said how much it had generated so far: its own count, of an answer that was cut.
RUNNING_COUNT = "running-count"

# Models remembered; beyond it the one learned from longest ago is forgotten. "*" routes pass any name on.
MODELS_MAX = 1000
# The prior counts as much as this many streams of a model.
_SHRINK = 5.0
# Older streams than about this many are forgotten: models change behind their names.
_MEMORY = 200.0
# One stream moves the correction by no more than this factor, and a correction is never more than that one.
_STEP_MAX, _CORRECTION_MAX = math.log(2), math.log(4)
# An error beyond this is an outlier, and counts as this much.
_ERROR_MAX = 2.0
# Fewer tokens than this say less about a model: role, stop and template tokens outweigh the text.
_TELLING_TOKENS = 20
# What the prior of prompts misses by, typically, on recorded traffic.
_PROMPT_ERROR = 0.30


class Estimate(msgspec.Struct, frozen=True, gc=False):
    """Tokens, and how far off such an estimate typically is (0.1 = 10 %)."""

    tokens: int
    expected_error: float
    capped: bool = False
    """the estimate was higher than what was possible"""
    hidden: int = 0
    """the part of `tokens` that was never streamed, by what models of this name did before; 0: none is known"""


def _prompt_prior(prompt: PromptEvidence) -> float:
    """Fitted on 764 recorded requests: median error 17 %. Images and attachments are a guess: providers differ 40 ×."""
    return (
        3.0
        + prompt.messages * 4.0
        + prompt.chars_latin / 4.4
        + prompt.chars_wide * 0.8
        + prompt.chars_other / 2.2
        + prompt.tool_chars / 5.5
        + (prompt.images + prompt.attachments) * 500.0
    )


@dataclass(slots=True)
class _Correction:
    """What the streams of one model say about the prior of prompts: weight of what was seen, mean log ratio and error.

    `trust` and `factor`, which follow from them, are worked out when they change: they are asked for more often.
    """

    weight: float = 0.0
    log_ratio: float = 0.0
    error: float = 0.0
    trust: float = field(init=False)
    factor: float = field(init=False)

    def __post_init__(self) -> None:
        self._follow()

    def _follow(self) -> None:
        self.trust = self.weight / (self.weight + _SHRINK)
        self.factor = math.exp(self.log_ratio * self.trust)

    def expected_error(self, prior: float) -> float:
        return round(prior + (self.error - prior) * self.trust, 4)

    def learn(self, *, prior_tokens: float, tokens: int) -> float:
        """Returns the relative error that the corrected estimate would have had: 0.1 = 10 % too high."""
        error = prior_tokens * self.factor / tokens - 1
        weight = min(1.0, tokens / _TELLING_TOKENS)
        self.weight = min(self.weight + weight, _MEMORY)
        share = weight / self.weight
        step = math.log(tokens / prior_tokens) - self.log_ratio
        moved = self.log_ratio + share * _within(step, _STEP_MAX)
        self.log_ratio = _within(moved, _CORRECTION_MAX)
        self.error += share * (min(abs(error), _ERROR_MAX) - self.error)
        self._follow()
        return error


_NONE_SEEN = _Correction()
_NO_ANSWERS, _NO_NAMESAKES = Completions(), Hidden()


def _within(value: float, bound: float) -> float:
    return -bound if value < -bound else bound if value > bound else value


class Estimator:
    """Estimates, and learns from every answer that reported. Models are named `provider/upstream_model`."""

    VERSION = VERSION

    __slots__ = ("_completions", "_named", "_prompts")

    def __init__(self) -> None:
        self._completions: dict[str, Completions] = {}
        self._named: dict[str, Hidden] = {}  # by the model's own name, whoever provides it
        self._prompts: dict[str, _Correction] = {}

    def completion(
        self, model_key: str, evidence: Evidence, *, completion_tokens_max: int | None, bytes_seen: int
    ) -> Estimate:
        """Tokens generated. A streamed token needs at least one byte; without evidence there are none."""
        model = self._completions.get(model_key, _NO_ANSWERS)
        if evidence.empty:
            return Estimate(0, model.expected_error(0.0))
        visible = model.visible(counters(evidence))
        named = self._named.get(_name(model_key), _NO_NAMESAKES)
        hidden = round(hidden_tokens(model.hidden, named, visible)) if named.hidden or model.hidden.hidden else 0
        likely = round(visible) + hidden
        tokens = min(likely, max(bytes_seen, 1) + hidden)
        if completion_tokens_max is not None and completion_tokens_max < tokens:
            hidden = max(hidden - tokens + completion_tokens_max, 0)
            tokens = max(completion_tokens_max, 1)
        return Estimate(tokens, model.expected_error(hidden / tokens), capped=tokens < likely, hidden=hidden)

    def prompt(self, model_key: str, prompt: PromptEvidence) -> Estimate:
        """Tokens of the prompt, at least one."""
        correction = self._prompts.get(model_key, _NONE_SEEN)
        tokens = max(round(_prompt_prior(prompt) * correction.factor), 1)
        return Estimate(tokens, correction.expected_error(_PROMPT_ERROR))

    def learn(self, model_key: str, *, evidence: Evidence, prompt: PromptEvidence | None, usage: Usage) -> float | None:
        """From an answer that reported `usage`: the relative error that its estimate would have had, or None."""
        if prompt is not None and usage.prompt_tokens:
            correction = _kept(self._prompts, model_key, _Correction)
            correction.learn(prior_tokens=_prompt_prior(prompt), tokens=usage.prompt_tokens)
        if evidence.empty or not usage.completion_tokens:
            return None
        model = _kept(self._completions, model_key, Completions)
        return model.learn(evidence, usage, _kept(self._named, _name(model_key), Hidden))

    def export(self) -> dict[str, Any]:
        """What was learned, as plain JSON values for `restore`."""
        return {
            "version": VERSION,
            "completions": {key: model.row() for key, model in self._completions.items()},
            "named": {name: hidden.row() for name, hidden in self._named.items()},
            "prompts": {key: [c.weight, c.log_ratio, c.error] for key, c in self._prompts.items()},
        }

    @classmethod
    def restore(cls, exported: object) -> Estimator:
        """From `export`. What cannot be read, or was learned by another version, is left out."""
        estimator = cls()
        if isinstance(exported, Mapping) and exported.get("version") == VERSION:
            estimator._completions = _restored(exported.get("completions"), Completions.restored)
            estimator._named = _restored(exported.get("named"), _restored_hidden)
            estimator._prompts = _restored(exported.get("prompts"), _restored_correction)
        return estimator


_T = TypeVar("_T")


def _kept(models: dict[str, _T], key: str, new: Callable[[], _T]) -> _T:
    """What is known of `key`, moved to the young end; the oldest goes when there are too many."""
    model = models.pop(key, None)
    if model is None:
        model = new()
    if len(models) >= MODELS_MAX:
        del models[next(iter(models))]
    models[key] = model
    return model


def _name(model_key: str) -> str:
    """The model's own name: `a/openai/gpt-5-mini` and `b/gpt-5-mini` are of one name."""
    return model_key.rpartition("/")[2]


def _restored(exported: object, read: Callable[[list[float]], _T | None]) -> dict[str, _T]:
    rows = exported.items() if isinstance(exported, Mapping) else ()
    found = ((key, read(row)) for key, row in rows if isinstance(key, str) and _is_row(row))
    good = [(key, model) for key, model in found if model is not None]
    return dict(good[-MODELS_MAX:])


def _is_row(row: object) -> TypeGuard[list[float]]:
    return isinstance(row, list) and all(type(value) in (int, float) and math.isfinite(value) for value in row)


def _restored_hidden(row: list[float]) -> Hidden | None:
    return Hidden(*row) if Hidden.is_row(row) else None


def _restored_correction(row: list[float]) -> _Correction | None:
    if len(row) != 3 or row[0] < 0 or row[2] < 0:
        return None
    return _Correction(_within(row[0], _MEMORY), _within(row[1], _CORRECTION_MAX), _within(row[2], _ERROR_MAX))


def _counted(metered: Metered, completion_tokens_max: int | None) -> Estimate | None:
    """What the provider had counted by the last event that came; None where it had not."""
    so_far = metered.completion_so_far
    if not so_far:
        return None
    tokens = so_far if completion_tokens_max is None else min(so_far, completion_tokens_max)
    return Estimate(tokens, 0.0, capped=tokens < so_far)


def reading(
    metered: Metered,
    *,
    estimator: Estimator,
    model_key: str,
    prompt_tokens_estimate: int,
    completion_tokens_max: int | None,
    bytes_seen: int,
    accepted: bool = False,
) -> Reading:
    """What an exchange used. Reported numbers stay as reported; what is missing beside them is estimated: by the
    provider's own count so far, where there is one, which knows hidden reasoning, too.

    `accepted`: the provider took the request, so that a prompt was used even if nothing was generated. Without it,
    no usage and no evidence is NOTHING.
    """
    usage = metered.usage or Usage()
    if usage.in_other_units or (usage.prompt_tokens is not None and usage.completion_tokens is not None):
        return Reading(usage, UsageSource.REPORTED, service_tier=metered.service_tier)
    if usage.reported_nothing and metered.evidence.empty and not accepted:
        return NOTHING
    counted = _counted(metered, completion_tokens_max) if usage.completion_tokens is None else None
    estimate = counted or estimator.completion(
        model_key, metered.evidence, completion_tokens_max=completion_tokens_max, bytes_seen=bytes_seen
    )
    prompt_tokens = prompt_tokens_estimate if usage.prompt_tokens is None else usage.prompt_tokens
    completion_tokens = estimate.tokens if usage.completion_tokens is None else usage.completion_tokens
    return Reading(
        structs.replace(
            usage,
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            total_tokens=prompt_tokens + completion_tokens if usage.total_tokens is None else usage.total_tokens,
        ),
        UsageSource.ESTIMATED,
        estimator=VERSION if counted is None else RUNNING_COUNT,
        expected_error=estimate.expected_error,
        service_tier=metered.service_tier,
    )

"""Token counts that no provider reported, from counters alone; and the reading that says which is which.

Law: a reported number is never replaced. An estimate is a prior until a model's streams with usage teach otherwise, by
one small regression of completions (`completion`), one of prompts (`prompts`), and, where a tokenizer counts, one of
what it counts (`tokenized`). It is capped by what the request allowed and by the bytes seen, and it is never 0 where
something was generated. Equal state and evidence give equal numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard, TypeVar

import msgspec
from msgspec import structs

from proxy.metering.estimator.completion import Completions, Hidden, counters, hidden_of, hidden_tokens, may_hide
from proxy.metering.estimator.prompts import Prompts
from proxy.metering.estimator.tokenized import TokenizedEstimate
from proxy.metering.meter import Metered
from proxy.metering.usage import NO_USAGE, NOTHING, Evidence, PromptEvidence, Reading, Usage, UsageSource

VERSION = "ridge-2"
# Where a tokenizer counted what was streamed.
TOKENIZED = "tokenizer-1"
# Where the provider said how much it had generated so far: its own count, of an answer that was cut.
RUNNING_COUNT = "running-count"

# Models remembered; beyond it the one learned from longest ago is forgotten. "*" routes pass any name on.
MODELS_MAX = 1000
# What is only told by the request: how an image or a voice comes out in tokens, nobody knows before.
_ASKED_ERROR = 0.5


class Estimate(msgspec.Struct, frozen=True, gc=False):
    """Tokens, and how far off such an estimate typically is (0.1 = 10 %)."""

    tokens: int
    expected_error: float
    capped: bool = False
    """the estimate was higher than what was possible"""
    hidden: int | None = None
    """the part of `tokens` that was never streamed, by what models of this name did before (0: none told how much);
    None: this one is not known to hide any"""


_NO_ANSWERS, _NO_PROMPTS, _NO_NAMESAKES, _NO_COUNTS = Completions(), Prompts(), Hidden(), TokenizedEstimate()


class Estimator:
    """Estimates, and learns from every answer that reported. Models are named `provider/upstream_model`."""

    VERSION = VERSION

    __slots__ = ("_completions", "_named", "_prompts", "_tokenized")

    def __init__(self) -> None:
        self._completions: dict[str, Completions] = {}
        self._named: dict[str, Hidden] = {}  # by the model's own name, whoever provides it
        self._prompts: dict[str, Prompts] = {}
        self._tokenized: dict[str, TokenizedEstimate] = {}

    def completion(
        self,
        model_key: str,
        evidence: Evidence,
        *,
        completion_tokens_max: int | None,
        bytes_seen: int,
        counted: int | None = None,
    ) -> Estimate:
        """Tokens generated. A streamed token needs at least one byte; without evidence there are none.

        `counted`: tokens of what was streamed, by a tokenizer; None or 0: by the counters alone.
        """
        model = self._completions.get(model_key, _NO_ANSWERS)
        if evidence.empty:
            hidden = None if self._hidden(model_key, model, 0.0) is None else 0
            return Estimate(0, model.expected_error(hidden), hidden=hidden)
        told = self._tokenized.get(model_key, _NO_COUNTS) if counted else None
        visible = told.visible(evidence, counted) if told and counted else model.visible(counters(evidence))
        expected_error = (told or model).expected_error
        hidden = self._hidden(model_key, model, visible)
        unseen = hidden or 0
        likely = round(visible) + unseen
        tokens = min(likely, max(bytes_seen, 1) + unseen)
        if completion_tokens_max is not None and completion_tokens_max < tokens:
            unseen = max(unseen - tokens + completion_tokens_max, 0)
            tokens = max(completion_tokens_max, 1)
        if hidden is None:
            return Estimate(tokens, expected_error(None), capped=tokens < likely)
        return Estimate(tokens, expected_error(unseen / tokens), capped=tokens < likely, hidden=unseen)

    def _hidden(self, model_key: str, model: Completions, visible: float) -> int | None:
        """Tokens that were generated beside so many visible ones and never streamed; None: none, as far as is known."""
        name = _name(model_key)
        named = self._named.get(name, _NO_NAMESAKES)
        if named.hidden or model.hidden.hidden:
            return round(hidden_tokens(model.hidden, named, visible)) or None
        return 0 if may_hide(name, named.answers) else None

    def prompt_tokens(self, model_key: str, prompt: PromptEvidence) -> int:
        """Tokens of the prompt, at least one."""
        return self._prompts.get(model_key, _NO_PROMPTS).tokens(prompt)

    def prompt_error(self, model_key: str) -> float:
        """How far off a prompt's estimate typically is."""
        return self._prompts.get(model_key, _NO_PROMPTS).expected_error()

    def learn(self, model_key: str, *, evidence: Evidence, prompt: PromptEvidence | None, usage: Usage) -> float | None:
        """From an answer that reported `usage`: the relative error that its estimate would have had, or None."""
        if prompt is not None and usage.prompt_tokens:
            _kept(self._prompts, model_key, Prompts).learn(prompt, usage.prompt_tokens)
        if evidence.empty or not usage.completion_tokens:
            return None
        model = _kept(self._completions, model_key, Completions)
        return model.learn(evidence, usage, _kept(self._named, _name(model_key), Hidden))

    def learn_counted(self, model_key: str, *, evidence: Evidence, usage: Usage, counted: int) -> float | None:
        """Beside `learn`, where a tokenizer counted so many: the relative error of the estimate by that, or None."""
        if evidence.empty or not usage.completion_tokens or not counted:
            return None
        tokenized = _kept(self._tokenized, model_key, TokenizedEstimate)
        visible = tokenized.visible(evidence, counted)
        unseen = self._hidden(model_key, self._completions.get(model_key, _NO_ANSWERS), visible) or 0
        error = (visible + unseen) / usage.completion_tokens - 1
        seen = usage.completion_tokens - hidden_of(evidence, usage)
        tokenized.learn(evidence, counted, visible=seen, billed=usage.completion_tokens, error=error)
        return error

    def export(self) -> dict[str, Any]:
        """What was learned, as plain JSON values for `restore`."""
        return {
            "version": VERSION,
            "completions": {key: model.row() for key, model in self._completions.items()},
            "named": {name: hidden.row() for name, hidden in self._named.items()},
            "prompts": {key: model.row() for key, model in self._prompts.items()},
            "tokenized": {key: model.row() for key, model in self._tokenized.items()},
        }

    @classmethod
    def restore(cls, exported: object) -> Estimator:
        """From `export`. What cannot be read, or was learned by another version, is left out."""
        estimator = cls()
        if isinstance(exported, Mapping) and exported.get("version") == VERSION:
            estimator._completions = _restored(exported.get("completions"), Completions.restored)
            estimator._named = _restored(exported.get("named"), _restored_hidden)
            estimator._prompts = _restored(exported.get("prompts"), Prompts.restored)
            estimator._tokenized = _restored(exported.get("tokenized"), TokenizedEstimate.restored)
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
    asked: Usage = NO_USAGE,
) -> Reading:
    """What an exchange used. Reported numbers stay as reported; what is missing beside them is estimated: by the
    provider's own count so far, where there is one, which knows hidden reasoning, too; and by what the request itself
    tells (`asked`) where an answer shows nothing.

    `accepted`: the provider took the request, so that a prompt was used even if nothing was generated. Without it,
    no usage and no evidence is NOTHING.
    """
    usage = metered.usage or NO_USAGE
    if usage.in_other_units or (usage.prompt_tokens is not None and usage.completion_tokens is not None):
        return Reading(usage, UsageSource.REPORTED, service_tier=metered.service_tier)
    if usage.reported_nothing and metered.evidence.empty and not accepted:
        return NOTHING
    told = usage.completion_tokens is not None
    so_far = None if told else _counted(metered, completion_tokens_max)
    counted = metered.counter.total() if metered.counter and not told and so_far is None else None
    estimate = so_far or estimator.completion(
        model_key,
        metered.evidence,
        completion_tokens_max=completion_tokens_max,
        bytes_seen=bytes_seen,
        counted=counted,
    )
    prompt_tokens = prompt_tokens_estimate if usage.prompt_tokens is None else usage.prompt_tokens
    made = estimate.tokens or asked.completion_tokens or 0
    completion_tokens = made if usage.completion_tokens is None else usage.completion_tokens
    guessed = estimate.tokens < completion_tokens == asked.completion_tokens
    likely = estimator.prompt_error(model_key) if told else estimate.expected_error
    return Reading(
        structs.replace(
            _filled(usage, asked),
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            total_tokens=prompt_tokens + completion_tokens if usage.total_tokens is None else usage.total_tokens,
        ),
        UsageSource.ESTIMATED,
        estimator=RUNNING_COUNT if so_far else TOKENIZED if counted else VERSION,
        expected_error=max(likely, _ASKED_ERROR) if guessed else likely,
        service_tier=metered.service_tier,
        capped=estimate.capped and not told,
        hidden_tokens=None if told else estimate.hidden,
    )


def _filled(usage: Usage, asked: Usage) -> Usage:
    """`usage`, and what is asked where it says nothing."""
    pairs = zip(structs.astuple(usage), structs.astuple(asked), strict=True)
    return usage if asked is NO_USAGE else Usage(*(there if count is None else count for count, there in pairs))

"""Estimates unreported token counts, and combines them with reported ones into a `Reading`.

Invariants: a reported number is never replaced. Each model starts with a prior and learns from its streams with usage,
by small regressions: from counters, of completions (`completion`) and prompts (`prompts`); from a vocabulary's count of
their text, by the model's own vocabulary (`tokenized`) or the reference (`referenced`, `prompted`). An estimate is
capped by the received bytes and by the request's limit, unless the output exceeds that (`floor`), and is never 0 if
output was generated. Equal state and evidence give equal numbers. Counters survive a crash and texts do not: an end
with the text has more evidence than recovery, and may give a better number.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec
from msgspec import structs

from proxy.metering.estimator.completion import (
    ERROR_PRIOR,
    Completions,
    Hidden,
    counters,
    hidden_of,
    hidden_tokens,
    may_hide,
    shown_error,
)
from proxy.metering.estimator.floor import Floor
from proxy.metering.estimator.prompted import ReferencedPrompt
from proxy.metering.estimator.prompts import Prompts
from proxy.metering.estimator.referenced import ReferencedEstimate
from proxy.metering.estimator.silence import Pace
from proxy.metering.estimator.state import LearnedState, ModelState, kept
from proxy.metering.estimator.tokenized import ERROR_PRIOR as OWN_ERROR_PRIOR
from proxy.metering.estimator.tokenized import TokenizedEstimate
from proxy.metering.metered import Metered
from proxy.metering.profile import Counted, Profile
from proxy.metering.usage import (
    NO_USAGE,
    NOT_SAID,
    NOTHING,
    Evidence,
    PromptEvidence,
    Reading,
    Silence,
    Usage,
    UsageSource,
)

# From counters, which outlive a crash.
VERSION = "ridge-2"
# From a count of the text: by the reference vocabulary, and by the model's own.
REFERENCED = "reference-3"
TOKENIZED = "tokenizer-1"
# The provider's running count of a truncated answer.
RUNNING_COUNT = "running-count"

# Models of OpenAI whose own vocabulary is the reference, o200k, at any provider.
# https://github.com/openai/tiktoken/blob/main/tiktoken/model.py
_HAVE_REFERENCE = re.compile(r"gpt-(4o|4\.[15]|[5-9]|oss)|chatgpt-4o|o[1-9](-|$)")
# The first answers of a model that are all learned and counted; after them, one of so many is learned, and one of so
# many of these is counted.
_ALL_LEARNED, _ONE_LEARNED_IN, _ONE_COUNTED_IN = 200, 8, 8
# Error of a count that follows from the request alone: the tokens of an image or of speech vary.
_ASKED_ERROR = 0.5


class Estimate(msgspec.Struct, frozen=True, gc=False):
    """Tokens, and the typical relative error of the estimate (0.1 = 10 %)."""

    tokens: int
    expected_error: float
    capped: bool = False
    """the estimate exceeded its upper bound"""
    hidden: int | None = None
    """the part of `tokens` that was not streamed, learned from models of this name (0: amount unknown yet); None: the
    model is not known to hide reasoning"""
    limit_exceeded: bool = False
    """the output exceeds the request's limit"""

    def held_to(self, limit: int | None) -> Estimate:
        """This estimate, capped at the limit even if more output was seen: the answer repeats its prompt."""
        if limit is None or not self.limit_exceeded:
            return self
        tokens = max(limit, 1)
        hidden = None if self.hidden is None else min(self.hidden, tokens)
        return Estimate(tokens, self.expected_error, capped=True, hidden=hidden)


_NO_ANSWERS, _NO_PROMPTS, _NO_NAMESAKES, _NO_COUNTS = Completions(), Prompts(), Hidden(), TokenizedEstimate()
_NO_REFERENCES, _NO_PROMPT_REFERENCES = ReferencedEstimate(), ReferencedPrompt()
_NO_FLOOR, _UNKNOWN = Floor(), ModelState()


class Estimator:
    """Estimates, and learns from reported usage. Models are named `provider/upstream_model`."""

    VERSION = VERSION

    def __init__(self, learned: LearnedState | None = None) -> None:
        learned = learned or LearnedState()
        self._models, self._names = learned.models, learned.names

    def completion(
        self,
        model_key: str,
        evidence: Evidence,
        *,
        completion_tokens_max: int | None,
        bytes_seen: int,
        counted: Counted | None = None,
    ) -> Estimate:
        """Completion tokens: at most one per received byte, plus hidden ones, and 0 without evidence. The limit does
        not cap them if the output exceeds it.

        `counted`: the count of the streamed text; None: estimate by the counters. Before any report, a count replaces
        the rule of one token an event.
        """
        state = self._models.get(model_key, _UNKNOWN)
        if evidence.empty:
            model = state.completion or _NO_ANSWERS
            hidden = None if self._hidden(model_key, model, 0.0) is None else 0
            return Estimate(0, shown_error(model.errors.expected(ERROR_PRIOR), hidden), hidden=hidden)
        visible, error = _visible(model_key, state, evidence, counted)
        floor = state.floor or _NO_FLOOR
        if counted is None or floor.is_learned:
            visible = max(visible, floor.tokens(evidence))
        hidden = self._hidden(model_key, state.completion or _NO_ANSWERS, visible)
        unseen = hidden or 0
        likely = round(visible) + unseen
        tokens = min(likely, max(bytes_seen, 1) + unseen)
        exceeded, limit = False, completion_tokens_max
        if limit is not None and limit < tokens:
            exceeded = floor.proves_more_than(limit, evidence)
            if not exceeded:
                unseen = max(unseen - tokens + limit, 0)
                tokens = max(limit, 1)
        shown = shown_error(error, None if hidden is None else unseen / tokens)
        return Estimate(tokens, shown, tokens < likely, None if hidden is None else unseen, exceeded)

    def _hidden(self, model_key: str, model: Completions, visible: float) -> int | None:
        """Hidden tokens of an answer with `visible` streamed ones; None: the model is not known to hide any."""
        name = _name(model_key)
        named = self._names.get(name, _NO_NAMESAKES)
        if named.hidden or model.hidden.hidden:
            return round(hidden_tokens(model.hidden, named, visible)) or None
        return 0 if may_hide(name, named.answers) else None

    def broken_bound(self, model_key: str, evidence: Evidence, tokens: int) -> Mapping[str, int]:
        """The bound of a plausible report that `tokens` break: see `plausibility.BrokenBound`. A model that may hide
        reasoning has no upper bound."""
        model = self._models.get(model_key, _UNKNOWN).completion or _NO_ANSWERS
        bound = model.broken_bound(evidence, tokens)
        return {} if "at_most" in bound and self._hidden(model_key, model, tokens) is not None else bound

    def prompt_tokens(self, model_key: str, prompt: PromptEvidence) -> int:
        """Tokens of the prompt, at least one."""
        return (self._models.get(model_key, _UNKNOWN).prompt or _NO_PROMPTS).tokens(prompt)

    def prompt_error(self, model_key: str) -> float:
        """Typical relative error of a prompt estimate."""
        return (self._models.get(model_key, _UNKNOWN).prompt or _NO_PROMPTS).expected_error()

    def silence(self, model_key: str, limit: int | None, *, billed: bool) -> Silence | None:
        """The hidden tokens that a silence of this model indicates; None: no rate is learned."""
        pace = self._models.get(model_key, _UNKNOWN).pace
        return None if pace is None else pace.silence(limit, billed=billed)

    def learn(
        self,
        model_key: str,
        *,
        evidence: Evidence,
        prompt: PromptEvidence | None,
        usage: Usage,
        silent_s: float | None = None,
    ) -> float | None:
        """Learn from an answer that reported `usage`. Returns the relative error of its estimate, or None. `silent_s`:
        the time before its first word; None: unknown."""
        is_empty = evidence.empty or not usage.completion_tokens
        if is_empty and (prompt is None or not usage.prompt_tokens):
            return None
        state = kept(self._models, model_key, ModelState)
        if prompt is not None and usage.prompt_tokens:
            state.prompt = state.prompt or Prompts()
            state.prompt.learn(prompt, usage.prompt_tokens)
        if is_empty or not usage.completion_tokens:
            return None
        hidden = hidden_of(evidence, usage)
        state.floor = state.floor or Floor()
        state.floor.learn(evidence, usage.completion_tokens - hidden)
        if hidden and silent_s is not None:
            state.pace = state.pace or Pace()
            state.pace.learn(hidden, silent_s)
        state.completion = state.completion or Completions()
        return state.completion.learn(evidence, usage, kept(self._names, _name(model_key), Hidden))

    def learn_counted(self, model_key: str, *, evidence: Evidence, usage: Usage, counted: Counted) -> float | None:
        """Learn from the count of an answer's text, in addition to `learn`. Returns as `learn` does."""
        if evidence.empty or not usage.completion_tokens or not counted.tokens:
            return None
        counted = _all_of(model_key, evidence, counted)
        state = kept(self._models, model_key, ModelState)
        visible, _ = _visible(model_key, state, evidence, counted)
        unseen = self._hidden(model_key, state.completion or _NO_ANSWERS, visible) or 0
        error = (visible + unseen) / usage.completion_tokens - 1
        streamed = usage.completion_tokens - hidden_of(evidence, usage)
        if counted.own:
            state.tokenized = state.tokenized or TokenizedEstimate()
            state.tokenized.learn(
                evidence, counted.tokens, visible=streamed, billed=usage.completion_tokens, error=error
            )
        else:
            state.referenced = state.referenced or ReferencedEstimate()
            state.referenced.learn(evidence, counted, streamed)
        return error

    def learns(self, model_key: str) -> bool:
        """Whether the next answer of this model that reports usage is to be learned: at first each, then a sample."""
        state = self._models.get(model_key)
        if state is None:
            return True
        state.answers += 1
        return state.answers <= _ALL_LEARNED or state.answers % _ONE_LEARNED_IN == 0

    def learns_counts(self, model_key: str) -> bool:
        """Whether the text of that answer is to be counted, too: counting takes ten times as long as `learn`."""
        answers = self._models.get(model_key, _UNKNOWN).answers
        return answers <= _ALL_LEARNED or answers % (_ONE_LEARNED_IN * _ONE_COUNTED_IN) == 0

    def prompt_counted(self, model_key: str, prompt: PromptEvidence, counted: Profile) -> tuple[int, float]:
        """Tokens of a prompt whose text was counted, at least one, and the relative error."""
        counted = _prompt_by_own(model_key, counted)
        return (self._models.get(model_key, _UNKNOWN).prompted or _NO_PROMPT_REFERENCES).estimate(prompt, counted)

    def learn_prompt(self, model_key: str, prompt: PromptEvidence, counted: Profile, tokens: int) -> None:
        """Learn from the count of a prompt's text, in addition to `learn`."""
        counted = _prompt_by_own(model_key, counted)
        state = kept(self._models, model_key, ModelState)
        state.prompted = state.prompted or ReferencedPrompt()
        state.prompted.learn(prompt, counted, tokens)

    def export(self) -> dict[str, Any]:
        """The learned state as plain JSON values, for `restore`."""
        return {"version": VERSION, **LearnedState(self._models, self._names).export()}

    @classmethod
    def restore(cls, exported: object) -> Estimator:
        """The inverse of `export`. Skips invalid rows, and state of another version."""
        if isinstance(exported, Mapping) and exported.get("version") == VERSION:
            return cls(LearnedState.restore(exported))
        return cls()


def _visible(model_key: str, state: ModelState, evidence: Evidence, counted: Counted | None) -> tuple[float, float]:
    """Streamed tokens, and the relative error of the estimate."""
    if counted is None:
        model = state.completion or _NO_ANSWERS
        return model.visible(counters(evidence)), model.errors.expected(ERROR_PRIOR)
    counted = _all_of(model_key, evidence, counted)
    if counted.own:
        tokenized = state.tokenized or _NO_COUNTS
        return tokenized.visible(evidence, counted.tokens), tokenized.errors.expected(OWN_ERROR_PRIOR)
    return (state.referenced or _NO_REFERENCES).estimate(evidence, counted)


def _name(model_key: str) -> str:
    """The model's own name, the same for `a/openai/gpt-5-mini` and `b/gpt-5-mini`."""
    return model_key.rpartition("/")[2]


def _all_of(model_key: str, evidence: Evidence, counted: Counted) -> Counted:
    """The count, extrapolated to the whole text if only a part was held, and marked as by `_by_own`."""
    calls = evidence.tool_chars
    return _by_own(model_key, counted).whole(text_chars=evidence.chars - calls, call_chars=calls)


def _by_own(model_key: str, counted: Counted) -> Counted:
    """`counted`, marked as the own vocabulary's count if the reference is the model's own."""
    return structs.replace(counted, own=True) if _HAVE_REFERENCE.match(_name(model_key)) else counted


def _prompt_by_own(model_key: str, counted: Profile) -> Profile:
    """`counted` without scripts if the reference is the model's own: its count needs no correction by script."""
    return counted.tokens_alone() if _HAVE_REFERENCE.match(_name(model_key)) else counted


def model_key(provider: str, upstream_model: str) -> str:
    """The estimator's key of a model."""
    return f"{provider}/{upstream_model}"


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
    counted: Counted | None = None,
    prompt_counted: tuple[int, float] | None = None,
    echoes: bool = False,
) -> Reading:
    """The usage of an exchange. Reported numbers are kept. Missing ones are estimated: by the provider's running count,
    which includes hidden reasoning, if there is one; else by the estimator; by `asked`, the usage that follows from the
    request, if the answer shows nothing. A count that was followed by output is a lower bound.

    `accepted`: the provider accepted the request, so its prompt was used even if nothing was generated. Otherwise an
    exchange without usage and evidence is NOTHING. `counted`: the count of the answer's text; `prompt_counted`: tokens
    of the prompt, and the relative error. `echoes`: the answer repeats the prompt.
    """
    usage, reported = metered.usage or NO_USAGE, metered.reported_completion
    served_as = {} if metered.served_as is NOT_SAID else structs.asdict(metered.served_as)
    if not is_estimated(metered):
        return Reading(usage, UsageSource.REPORTED, **served_as)
    if usage.reported_nothing and not metered.generated and not accepted:
        return NOTHING
    if prompt_counted is None:
        prompt_counted = prompt_tokens_estimate, 0.0 if reported is None else estimator.prompt_error(model_key)
    prompt_tokens, prompt_error = prompt_counted
    complete = partial(_complete, metered, asked, prompt_tokens if usage.prompt_tokens is None else usage.prompt_tokens)
    if reported is not None:
        return Reading(complete(reported), UsageSource.ESTIMATED, estimator.VERSION, prompt_error, **served_as)
    limit = completion_tokens_max
    estimate, by = _estimated(metered, estimator, model_key, limit, bytes_seen, counted)
    if echoes:
        estimate = estimate.held_to(limit)
    tokens, expected_error = _completion(usage, asked, estimate, limit, bytes_seen)
    return Reading(
        complete(tokens),
        UsageSource.ESTIMATED,
        by,
        expected_error,
        capped=estimate.capped,
        hidden_tokens=estimate.hidden,
        limit_exceeded=estimate.limit_exceeded,
        **served_as,
    )


def _completion(
    usage: Usage, asked: Usage, estimate: Estimate, limit: int | None, bytes_seen: int
) -> tuple[int, float]:
    """Completion tokens and their relative error: estimated, at least those that output followed; or by request."""
    seen = _with_audio(usage, estimate, limit, bytes_seen)
    tokens = max(seen, usage.completion_tokens or 0) or asked.completion_tokens or 0
    from_request = seen < tokens == asked.completion_tokens
    return tokens, max(estimate.expected_error, _ASKED_ERROR) if from_request else estimate.expected_error


def _complete(metered: Metered, asked: Usage, prompt_tokens: int, completion_tokens: int) -> Usage:
    """The reported usage with these counts, and missing ones by `asked`. A total that output followed is replaced."""
    usage = metered.usage or NO_USAGE
    if asked is not NO_USAGE:
        usage = usage.filled_from(asked)
    total_tokens = None if metered.usage_behind or metered.usage is None else metered.usage.total_tokens
    counts = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}
    return structs.replace(usage, **counts, total_tokens=sum(counts.values()) if total_tokens is None else total_tokens)


def _with_audio(usage: Usage, estimate: Estimate, completion_tokens_max: int | None, bytes_seen: int) -> int:
    """The estimate plus counted audio, with the caps of the estimate."""
    tokens = usage.beside_audio(estimate.tokens)
    if tokens == estimate.tokens:
        return tokens
    tokens = min(tokens, max(bytes_seen, 1) + (estimate.hidden or 0))
    if completion_tokens_max is None or estimate.limit_exceeded:
        return tokens
    return min(tokens, max(completion_tokens_max, 1))


def is_estimated(metered: Metered) -> bool:
    """True if the provider did not report all counts."""
    usage = metered.usage or NO_USAGE
    if usage.completion_tokens is not None and (metered.usage_behind or usage.prompt_tokens is not None):
        return metered.usage_behind > 0
    return usage.lacks_tokens(metered.generated or not metered.complete)  # what has not ended may be generated yet


def _estimated(
    metered: Metered,
    estimator: Estimator,
    model_key: str,
    limit: int | None,
    bytes_seen: int,
    counted: Counted | None,
) -> tuple[Estimate, str]:
    """Estimate the completion and name the estimator. The provider's running count applies whatever the limit."""
    so_far, running = metered.completion_so_far, None
    if so_far:
        running = Estimate(so_far, 0.0, limit_exceeded=limit is not None and so_far > limit)
        if not metered.usage_behind:
            return running, RUNNING_COUNT
    if counted is not None and not counted.tokens:
        counted = None
    estimate = estimator.completion(
        model_key, metered.evidence, completion_tokens_max=limit, bytes_seen=bytes_seen, counted=counted
    )
    if running is not None and running.tokens > estimate.tokens:
        return running, RUNNING_COUNT
    if counted is None:
        return estimate, estimator.VERSION
    return estimate, TOKENIZED if _by_own(model_key, counted).own else REFERENCED

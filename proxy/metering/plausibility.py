"""Compares reported counts of tokens with the text that they are about.

Invariants: a count is `refuted` only outside of bounds that no tokenizer can break, and `implausible` outside of bounds
of the estimator that honest answers break at most once in 500. Only reported counts are compared, never estimates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from msgspec import structs

from proxy.metering.metered import Metered
from proxy.metering.usage import NO_USAGE, Evidence, PromptEvidence

# No token of any vocabulary has more letters. Blanks and punctuation are left out: a token can have a line of them.
LETTERS_PER_TOKEN_MAX = 128
# Tokens around a text or a call that a client does not see. The most in recorded answers is 77.
_UNSEEN_TOKENS = 256
# Shorter answers, and those with reasoning or calls, are not held against the estimator.
_PLAUSIBLE_CHARS_MIN = 200

REFUTED, IMPLAUSIBLE = "refuted", "implausible"

Contradictions: TypeAlias = "dict[str, dict[str, dict[str, int]]]"
"""`refuted` or `implausible` → name of the count → `reported`, and `at_least` or `at_most`"""
BrokenBound: TypeAlias = Callable[[Evidence, int], Mapping[str, int]]
"""an answer and its reported tokens without reasoning → `at_least` or `at_most` by the estimator; {}: plausible"""


def contradictions(
    metered: Metered, prompt: PromptEvidence, broken_bound: BrokenBound, *, is_text: bool = True
) -> Contradictions:
    """The reported counts that contradict the answer or its prompt. `is_text`: answers of the request are text.

    Not compared: answers without output, failed answers and Claude's refusals, audio and images, reasoning, and a usage
    that output followed.
    """
    usage, evidence = metered.usage, metered.evidence
    if usage is None or metered.failed or "refused_unbilled" in metered.flags:
        return {}
    text, called = evidence.chars_latin + evidence.chars_wide + evidence.chars_other, evidence.tool_chars
    has_output = text or called
    if is_text and not has_output:
        return {}
    found: Contradictions = {}
    asked, told = usage.prompt_tokens, usage.completion_tokens
    letters = prompt.chars_latin - prompt.blanks - prompt.marks + prompt.chars_wide + prompt.chars_other
    if asked is not None and asked * LETTERS_PER_TOKEN_MAX < letters:
        _add(found, REFUTED, "prompt_tokens", asked, at_least=-(-letters // LETTERS_PER_TOKEN_MAX))
    if told is None or not has_output or metered.usage_behind or usage.audio_completion_tokens:
        return found
    shown = text - evidence.reasoning_chars if evidence.reasoning_chars < text else 0
    letters = called + (shown * (text - evidence.blanks - evidence.marks) // text if text else 0)
    most = (
        evidence.chars_latin + evidence.chars_accented + 3 * evidence.chars_other + 4 * (evidence.chars_wide + called)
    )
    most += _UNSEEN_TOKENS * (evidence.tool_calls + 1) + (usage.reasoning_tokens or 0)
    if told * LETTERS_PER_TOKEN_MAX < letters:
        _add(found, REFUTED, "completion_tokens", told, at_least=-(-letters // LETTERS_PER_TOKEN_MAX))
    elif told > most and not usage.image_completion_tokens:
        _add(found, REFUTED, "completion_tokens", told, at_most=most)
    elif text < _PLAUSIBLE_CHARS_MIN or evidence.reasoning_chars or called or usage.image_completion_tokens:
        return found
    elif bound := broken_bound(evidence, told - (usage.reasoning_tokens or 0)):
        _add(found, IMPLAUSIBLE, "completion_tokens", told, **bound)
    return found


def _add(found: Contradictions, kind: str, count: str, reported: int, **bound: int) -> None:
    found.setdefault(kind, {})[count] = {"reported": reported, **bound}


def without(metered: Metered, refuted: Mapping[str, object]) -> Metered:
    """`metered` without these counts, so that they are estimated, and without their stated cost."""
    usage = structs.replace(metered.usage or NO_USAGE, total_tokens=None, **dict.fromkeys(refuted))
    return structs.replace(metered, usage=usage, stated_usd=None)

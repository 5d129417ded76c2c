"""Compares reported counts of tokens with the text that they are about.

Invariants: a count is `refuted` only outside of bounds that no tokenizer can break, and `implausible` outside of bounds
that honest answers break at most once in 500. Only reported counts are compared, never estimates.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from msgspec import structs

from proxy.metering.metered import Metered
from proxy.metering.usage import NO_USAGE, Evidence, PromptEvidence, Usage

# No token of any vocabulary has more letters. Blanks and punctuation are left out: a token can have a line of them.
LETTERS_PER_TOKEN_MAX = 128
# Tokens around a text or a call that a client does not see. The most in recorded answers is 77.
_UNSEEN_TOKENS = 256
# Of recorded answers with at least this much text, and without reasoning, 247 of 247 are within these bounds: tokens
# per character from 1 / 18 to 0.77.
_PLAUSIBLE_CHARS_MIN = 200
_CHARS_PER_TOKEN_MAX, _TOKENS_PER_CHAR_MAX, _TOKENS_PER_OTHER_CHAR_MAX = 24, 1, 3

REFUTED, IMPLAUSIBLE = "refuted", "implausible"

Contradictions: TypeAlias = "dict[str, dict[str, dict[str, int]]]"
"""`refuted` or `implausible` → name of the count → `reported`, and `at_least` or `at_most`"""


def contradictions(metered: Metered, prompt: PromptEvidence) -> Contradictions:
    """The reported counts that contradict the answer or its prompt. `prompt`: none for an answer that lacks output.

    Not compared: failed answers and Claude's refusals, audio and images, reasoning, a usage that output followed.
    """
    usage = metered.usage
    if usage is None or metered.failed or "refused_unbilled" in metered.flags:
        return {}
    found: Contradictions = {}
    letters = prompt.chars_latin - prompt.blanks - prompt.marks + prompt.chars_wide + prompt.chars_other
    _at_least(found, REFUTED, "prompt_tokens", usage.prompt_tokens, _fewest(letters))
    if metered.reported_completion is None or metered.evidence.empty or usage.audio_completion_tokens:
        return found
    _compare_completion(found, usage, metered.evidence)
    return found


def _compare_completion(found: Contradictions, usage: Usage, evidence: Evidence) -> None:
    text = evidence.chars_latin + evidence.chars_wide + evidence.chars_other
    shown = 1 - min(evidence.reasoning_chars / text, 1) if text else 0
    letters = int((text - evidence.blanks - evidence.marks) * shown) + evidence.tool_chars
    reported, reasoning = usage.completion_tokens or 0, usage.reasoning_tokens or 0
    _at_least(found, REFUTED, "completion_tokens", reported, _fewest(letters))
    if usage.image_completion_tokens:
        return
    size = evidence.chars_latin + evidence.chars_accented + 3 * evidence.chars_other + 4 * evidence.chars_wide
    most = size + evidence.tool_chars * 4 + _UNSEEN_TOKENS * (evidence.tool_calls + 1) + reasoning
    _at_most(found, REFUTED, "completion_tokens", reported, most)
    if found or evidence.reasoning_chars or evidence.tool_chars or text < _PLAUSIBLE_CHARS_MIN:
        return
    _at_least(found, IMPLAUSIBLE, "completion_tokens", reported, text // _CHARS_PER_TOKEN_MAX)
    others = evidence.chars_wide + evidence.chars_other
    most = (text - others) * _TOKENS_PER_CHAR_MAX + others * _TOKENS_PER_OTHER_CHAR_MAX
    _at_most(found, IMPLAUSIBLE, "completion_tokens", reported - reasoning, most)


def without(metered: Metered, refuted: Mapping[str, object]) -> Metered:
    """`metered` without these counts, so that they are estimated."""
    usage = structs.replace(metered.usage or NO_USAGE, total_tokens=None, **dict.fromkeys(refuted))
    return structs.replace(metered, usage=usage)


def _fewest(letters: int) -> int:
    return -(-letters // LETTERS_PER_TOKEN_MAX)


def _at_least(found: Contradictions, kind: str, count: str, reported: int | None, least: int) -> None:
    if reported is not None and reported < least:
        found.setdefault(kind, {})[count] = {"reported": reported, "at_least": least}


def _at_most(found: Contradictions, kind: str, count: str, reported: int, most: int) -> None:
    if reported > most:
        found.setdefault(kind, {})[count] = {"reported": reported, "at_most": most}

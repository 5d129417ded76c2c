"""How far off the tokens of a prompt are said to be, where nobody reported them: recorded requests and what they cost.

Law: each after REPORTED others of its provider and model, chosen at random; of models with more than so many.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from proxy.metering.dialects.openai.chat import OPENAI_CHAT
from proxy.metering.dialects.openai.request import facts
from proxy.metering.estimator.estimate import Estimator
from proxy.metering.profile import Profile, profiles_of
from proxy.metering.request import InvalidField
from proxy.metering.usage import Evidence, PromptEvidence, Usage
from tests.bench.figures import Figures, shown
from tests.bench.tokenized import counting

REPORTED = 20
HELD_CHARS_MAX = 64 << 10
TOKENS_TELLING = 50


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, and what it was reported to be."""

    id: str
    key: str
    prompt: PromptEvidence
    counted: Profile
    tokens: int

    @property
    def by_chars(self) -> float:
        """The baseline: a token for four characters."""
        prompt = self.prompt
        chars = prompt.chars_latin + prompt.chars_wide + prompt.chars_other + prompt.tool_chars
        return max(chars / 4, 1.0)


def read(records: Iterable[Mapping[str, Any]]) -> Iterator[Asked]:
    """Those that can be read, and whose prompt was reported."""
    for record in records:
        meter = OPENAI_CHAT.stream_meter()
        meter.feed(record["body"].encode())
        usage = meter.close().usage
        try:
            found = facts(record["request_json"])
        except InvalidField:
            continue
        if usage is not None and usage.prompt_tokens:
            (counted,) = profiles_of([found.prompt.text.text[:HELD_CHARS_MAX]], counting())
            key = f"{record['provider_host']}/{found.model}"
            yield Asked(record["id"], key, found.prompt, counted, usage.prompt_tokens)


Estimates = tuple[float, float, float]
"""by characters, by counters, by the reference"""


def estimated(one: Asked, group: Sequence[Asked]) -> Estimates:
    """After some of the others."""
    others = [other for other in group if other.id != one.id]
    estimator = Estimator()
    for other in random.Random(one.id).sample(others, REPORTED):
        estimator.learn(one.key, evidence=Evidence(), prompt=other.prompt, usage=Usage(prompt_tokens=other.tokens))
        estimator.learn_prompt(one.key, other.prompt, other.counted, other.tokens)
    counted, _ = estimator.prompt_counted(one.key, one.prompt, one.counted)
    return one.by_chars, estimator.prompt_tokens(one.key, one.prompt), counted


def measured(records: Iterable[Mapping[str, Any]]) -> list[tuple[Asked, Estimates]]:
    requests = sorted(read(records), key=lambda one: one.key)
    groups = [list(group) for _, group in groupby(requests, key=lambda one: one.key)]
    return [(one, estimated(one, group)) for group in groups if len(group) > REPORTED for one in group]


def figures(found: Sequence[tuple[Asked, Estimates]]) -> list[Figures]:
    return [Figures.of((said[which], one.tokens) for one, said in found) for which in range(3)]


def rows(records: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    found = measured(records)
    for title, among, most in (
        ("prompts, after 20 of their group", found, "≤ 5 %"),
        ("without images and attachments", [pair for pair in found if not _seen(pair[0])], ""),
        ("of at least 50 tokens", [pair for pair in found if pair[0].tokens >= TOKENS_TELLING], ""),
    ):
        of_each = figures(among)
        yield f"{title:61}{of_each[0].streams:8} |  {' |  '.join(map(shown, of_each))} | {most}"


def _seen(one: Asked) -> bool:
    return one.prompt.images + one.prompt.attachments > 0

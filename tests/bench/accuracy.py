"""How far off estimates are in every language, on streams made with real tokenizers: `python -m tests.bench.accuracy`.

Invariants: the vocabularies are not the reference's, and what is measured shares no sentence with what is learned from.
Half of the models stream a token an event, the others several. Lessons go through the kinds of text in turn, in an
order of chance, unless a row says otherwise.
"""

from __future__ import annotations

import base64
import json
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from proxy.metering.estimator.estimate import REFERENCED, VERSION, Estimator
from proxy.metering.profile import Profile
from proxy.metering.usage import PromptEvidence, Usage
from tests.bench import kinds
from tests.bench.figures import Figures
from tests.bench.tokenized import (
    LONG,
    OLDER,
    SHORT,
    SINGLE,
    TOKENS_MIN,
    VOCABULARIES,
    Cut,
    Seen,
    Shape,
    counted_of,
    counting,
    events,
    read,
    stream,
    vocabulary,
    wire,
)

KEY = "provider/model"
SHAPES = (SINGLE, SHORT, SINGLE, LONG)
LESSONS, MANY_LESSONS = 20, 200
CUTS = 4
ODD_STREAMS = 200


@dataclass(slots=True)
class Model:
    """What one model streamed: to learn from, and cut."""

    cut: Cut
    shape: Shape
    rng: random.Random
    lessons: list[Seen] = field(default_factory=list)
    cuts: list[Seen] = field(default_factory=list)

    def in_turn(self, count: int, half: int, among: Sequence[str] = kinds.KINDS) -> list[Seen]:
        """Streams of each kind before any comes again; cut ones from the half to measure on."""
        found: list[Seen] = []
        order: list[str] = []
        while len(found) < count:
            order = order or self.rng.sample(among, len(among))
            made = stream(self.cut, self.rng, order[-1], half, self.shape, whole=half == 0)
            if made is not None:
                found.append(made)
                order.pop()
        return found

    @classmethod
    def of(cls, name: str, shape: Shape, seed: object, *, lessons: int, cuts: int) -> Model:
        """`cuts`: of each kind."""
        model = cls(vocabulary(name), shape, random.Random(f"{name} {shape.name} {seed}"))
        model.lessons = model.in_turn(lessons, 0)
        model.cuts = model.in_turn(cuts * len(kinds.KINDS), 1)
        return model


def taught(lessons: Iterable[Seen]) -> Estimator:
    """By counters and by counts, as the proxy does."""
    estimator = Estimator()
    for one in lessons:
        teach(estimator, one)
    return estimator


def teach(estimator: Estimator, one: Seen) -> None:
    estimator.learn(KEY, evidence=one.evidence, prompt=one.prompt, usage=one.usage)
    estimator.learn_counted(KEY, evidence=one.evidence, usage=one.usage, counted=one.counted)
    if one.prompt_tokens:
        estimator.learn_prompt(KEY, one.prompt, one.prompt_counted, one.prompt_tokens)


@dataclass(frozen=True, slots=True)
class Measured:
    """Estimates by the reference and by counters, of the same streams."""

    reference: Figures
    counters: Figures
    covered: float
    """share of the estimates by the reference that were no further off than they said"""


Estimates = tuple[float, float, float, float]
"""by the reference, its stated error, by counters, the truth"""


def completion(estimator: Estimator, one: Seen) -> Estimates:
    ask = partial(estimator.completion, KEY, one.evidence, completion_tokens_max=None, bytes_seen=one.size)
    found = ask(counted=one.counted)
    return found.tokens, found.expected_error, ask().tokens, one.tokens


def prompt(estimator: Estimator, one: Seen) -> Estimates:
    tokens, error = estimator.prompt_counted(KEY, one.prompt, one.prompt_counted)
    return tokens, error, estimator.prompt_tokens(KEY, one.prompt), one.prompt_tokens


def figures(found: Sequence[Estimates]) -> Measured:
    return Measured(
        Figures.of((said, true) for said, _, _, true in found),
        Figures.of((said, true) for _, _, said, true in found),
        sum(abs(said / true - 1) <= error for said, error, _, true in found) / len(found),
    )


Of = Callable[[Estimator, Seen], Estimates]


def of_all_kinds(models: Iterable[Model], lessons: int, of: Of = completion, *, at_random: bool = False) -> Measured:
    """One model for all kinds, after so many lessons: in turn, or of any kind by chance."""
    found: list[Estimates] = []
    for model in models:
        estimator = taught(model.rng.choices(model.lessons, k=lessons) if at_random else model.lessons[:lessons])
        found += [of(estimator, one) for one in model.cuts]
    return figures(found)


def of_each_kind(models: Iterable[Model], lessons: int, cuts: int) -> Measured:
    """A model for each kind."""
    found: list[Estimates] = []
    for model in models:
        for kind in kinds.KINDS:
            estimator = taught(model.in_turn(lessons, 0, [kind]))
            found += [completion(estimator, one) for one in model.in_turn(cuts, 1, [kind])]
    return figures(found)


def as_seen(cut: Cut, wires: Sequence[tuple[bytes, int]]) -> Seen:
    """A whole stream, without its prompt."""
    evidence, held, came = read(wires, 1 << 30)
    size = sum(len(piece) for piece, _ in wires)
    return Seen("", evidence, size, counted_of(held, counting()), came, *_NO_PROMPT)


_NO_PROMPT = (PromptEvidence(), Profile(), 0)


def tool_call(cut: Cut, rng: random.Random, shape: Shape) -> Seen:
    """A call of some 56 tokens: its name, and JSON with a sentence in it."""
    language = rng.choice(("english", "english", "german", "french"))
    said = rng.choice(kinds.halves(language)[1]).strip()
    written = cut(json.dumps({"city": rng.choice(("Ghent", "Brno")), "note": said, "days": 3}, ensure_ascii=False))

    def delta(**function: str) -> bytes:
        return wire({"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": function}]})

    wires = [(delta(name="get_weather", arguments=""), len(cut("get_weather")))]
    wires += [(delta(arguments=text), count) for text, count in events(written[:53], shape, rng)]
    return as_seen(cut, wires)


def tool_calls(models: Iterable[Model]) -> list[Estimates]:
    return [
        completion(Estimator(), tool_call(model.cut, model.rng, model.shape)) for model in models for _ in range(CUTS)
    ]


def odd_texts(rng: random.Random) -> dict[str, str]:
    return {
        "emoji": " ".join(rng.choices(["🌊", "🚀", "😀", "👍", "🎉", "🔥", "✅", "🐟", "👩\u200d🔬", "🇩🇪"], k=150)),
        "rare ideographs": "".join(chr(rng.randrange(0x3400, 0x4DBF)) for _ in range(300)),
        "zalgo": "".join(char + "".join(rng.choices("\u0301\u0335\u0489\u0327", k=3)) for char in "zalgo text " * 12),
        "base64": base64.b64encode(rng.randbytes(900)).decode(),
        "whitespace": (" " * 300 + "x" + "\n" * 60) * 6,
        "one event of 50 KB": kinds.text("english", rng, 1) * 60,
    }


def odd_stream(cut: Cut, rng: random.Random, shape: Shape, name: str) -> Seen:
    text = odd_texts(rng)[name]
    parts = (
        [(text[:50_000], len(cut(text[:50_000])))] if name.startswith("one event") else events(cut(text), shape, rng)
    )
    return as_seen(cut, [(wire({"content": part}), count) for part, count in parts])


def odd(models: Iterable[Model], name: str) -> list[Estimates]:
    return [completion(Estimator(), odd_stream(model.cut, model.rng, model.shape, name)) for model in models]


def poisoned(models: Iterable[Model], lessons: int) -> list[float]:
    """How far the estimates of others move, for each model, by odd streams: half are odd texts that are reported as
    they are, half are ordinary ones of which three times as much is reported, or next to nothing."""
    moved = []
    for model in models:
        estimator = taught(model.lessons[:lessons])
        plain = [one for one in model.cuts if one.kind not in ("emoji", "blobs")]
        before = sum(completion(estimator, one)[0] for one in plain)
        names = list(odd_texts(model.rng))
        for number in range(ODD_STREAMS):
            if number % 2:
                teach(estimator, odd_stream(model.cut, model.rng, model.shape, names[number // 2 % len(names)]))
            else:
                one = model.lessons[number % len(model.lessons)]
                usage = Usage(one.prompt_tokens, None, 1 if number % 4 else 3 * one.tokens)
                estimator.learn_counted(KEY, evidence=one.evidence, usage=usage, counted=one.counted)
        moved.append(sum(completion(estimator, one)[0] for one in plain) / before - 1)
    return moved


def made(
    seed: object, *, lessons: int = MANY_LESSONS, cuts: int = CUTS, names: Iterable[str] = VOCABULARIES
) -> list[Model]:
    return [
        Model.of(name, shape, f"{seed} {number}", lessons=lessons, cuts=cuts)
        for name in names
        for number, shape in enumerate(SHAPES)
    ]


def line(title: str, found: Measured, most: str) -> str:
    now, before = found.reference, found.counters
    return (
        f"{title:46} {now.streams:6} | {now.median:6.1%} {now.high:6.1%} {now.bias:6.3f} {found.covered:6.0%} |"
        f" {before.median:6.1%} {before.high:6.1%} {before.bias:6.3f} | {most}"
    )


def table() -> Iterator[str]:
    yield f"{', '.join(VOCABULARIES)}; {len(kinds.KINDS)} kinds of text; at least {TOKENS_MIN} tokens seen"
    yield f"{'':46} {'':>6} | {REFERENCED:^28} | {VERSION:^20} |"
    yield f"{'':46} {'streams':>6} | median   95 %   bias  ± held | median   95 %   bias | must reach"
    models = made(1)
    joined = [model for model in models if model.shape is not SINGLE]
    last = "≤ 2 %, ≤ 10 %, 0.99–1.01"
    yield line("one model for all kinds, nothing learned", of_all_kinds(models, 0), "≤ 6 %, ≤ 25 %, 0.95–1.05")
    yield line("one model for all kinds, after 20", of_all_kinds(models, LESSONS), last)
    yield line("one model for all kinds, after 200", of_all_kinds(models, MANY_LESSONS), "")
    yield line("  after 20, events of several tokens only", of_all_kinds(joined, LESSONS), "")
    yield line("  after 20 of kinds drawn at random", of_all_kinds(models, LESSONS, at_random=True), "")
    yield line("a model for each kind, after 20", of_each_kind(models[::2], LESSONS, 2), "")
    older = made(1, names=OLDER)
    for lessons in (LESSONS, MANY_LESSONS):
        yield line(f"{', '.join(OLDER)}, all kinds, after {lessons}", of_all_kinds(older, lessons), last)
    yield line("prompts of cut streams, after 20", of_all_kinds(models, LESSONS, prompt), "≤ 5 %, ≤ 25 %")
    yield line("prompts of cut streams, nothing learned", of_all_kinds(models, 0, prompt), "")
    yield line("a tool call of 56 tokens, nothing learned", figures(tool_calls(models)), "± 15 %")
    for name in odd_texts(random.Random(1)):
        yield line(f"odd, nothing learned: {name}", figures(odd(models, name)), "± 25 %")
    for lessons in (LESSONS, MANY_LESSONS):
        moved = [abs(one) for one in poisoned(models, lessons)]
        title = f"moved by {ODD_STREAMS} odd streams, after {lessons}"
        yield f"{title:46} {len(moved):6} | {max(moved):.1%} at most (≤ 3 %)"


def main() -> int:
    for one in table():
        print(one, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

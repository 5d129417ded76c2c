"""Kinds of text that answers are made of: sixteen languages, code, and what templates make: JSON, tables, emoji, blobs.

Invariant: the two halves of a kind share no sentence, no key, no emoji and no blob, so that what is learned from one is
measured on other text. All is our own.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

TEXTS = Path(__file__).with_name("texts")
WRITTEN = tuple(sorted(path.stem for path in TEXTS.iterdir()))
"""languages, and code"""
SENTENCES_MIN, SENTENCES_MAX = 5, 30

_NAMES = (
    ["station", "river", "gate", "level", "flow", "depth", "width", "alarm", "owner", "channel", "basin", "crest",
     "sensor", "battery", "signal", "reading"],
    ["order", "item", "price", "customer", "invoice", "street", "city", "country", "carrier", "weight", "colour",
     "size", "stock", "voucher", "refund", "note"],
)  # fmt: skip
_PLACES = (
    ["Elbe", "Danube", "Loire", "Ebro", "Tagus", "Drava", "Volga", "Nile", "Indus", "Yukon", "Orinoco", "Mekong"],
    ["Lisbon", "Porto", "Ghent", "Lyon", "Turin", "Vilnius", "Tartu", "Bergen", "Malmö", "Gdańsk", "Brno", "Zürich"],
)
_EMOJI = (
    ["🌊", "🚀", "😀", "👍", "🎉", "❤️", "🔥", "✅", "🐟", "🌧️", "🏔️", "👩\u200d🔬", "🇩🇪", "⚠️", "📈", "🤔"],
    ["🌍", "🛠️", "😂", "🙏", "🎂", "💡", "⭐", "❌", "🐝", "☀️", "🏝️", "👨\u200d🍳", "🇫🇷", "⏰", "📉", "🥳"],
)


@cache
def sentences(language: str) -> tuple[str, ...]:
    """Each with what divides it from the next."""
    text = (TEXTS / f"{language}.txt").read_text()
    if language == "code":
        return tuple(block.strip("\n") + "\n\n" for block in text.split("\n\n"))
    blank = "" if language in ("chinese", "japanese") else " "
    return tuple(line + blank for line in text.splitlines())


@cache
def halves(language: str, seed: object = 0) -> tuple[Sequence[str], Sequence[str]]:
    """To learn from, and to measure on: they share no sentence."""
    known = sentences(language)
    mixed = random.Random(f"{language} {seed}").sample(known, len(known))
    return mixed[::2], mixed[1::2]


def told(rng: random.Random, among: Sequence[str]) -> str:
    return "".join(rng.choices(among, k=rng.randint(SENTENCES_MIN, SENTENCES_MAX)))


def _document(rng: random.Random, half: int, seed: object) -> str:
    """JSON as models write it, indented or not."""
    names, places = _NAMES[half], _PLACES[half]

    def value(depth: int) -> object:
        makes: list[Callable[[], object]] = [
            lambda: rng.choice(places),
            lambda: round(rng.uniform(0, 1000), rng.randint(0, 3)),
            lambda: rng.randint(0, 10**6),
            lambda: rng.random() < 0.5,
            lambda: rng.choice(halves("english", seed)[half]).strip(),
            lambda: f"20{rng.randint(10, 29)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}T00:00:00Z",
        ]
        if depth:
            makes += [lambda: record(depth - 1), lambda: [value(0) for _ in range(rng.randint(1, 5))]]
        return rng.choice(makes)()

    def record(depth: int) -> dict[str, object]:
        return {
            rng.choice(names) + rng.choice(("", "_id", "_m", "_at")): value(depth) for _ in range(rng.randint(3, 8))
        }

    whole = [record(2) for _ in range(rng.randint(2, 12))]
    return json.dumps(whole, indent=rng.choice((None, 2, 2, 4)), ensure_ascii=False)


def _table(rng: random.Random, half: int, _seed: object) -> str:
    """Markdown tables of words and numbers."""
    names, places = _NAMES[half], _PLACES[half]
    columns = rng.sample(names, rng.randint(3, 6))
    rows = [" | ".join(columns), " | ".join(["---"] * len(columns))]
    for number in range(rng.randint(8, 40)):
        cells = [
            rng.choice(places),
            *(f"{rng.uniform(0, 10 ** rng.randint(1, 5)):.{rng.randint(0, 2)}f}" for _ in columns[2:]),
        ]
        rows.append(" | ".join([str(number + 1), *cells]))
    return "\n".join(f"| {row} |" for row in rows) + "\n"


def _emoji(rng: random.Random, half: int, seed: object) -> str:
    """Chat with many of them."""
    said = halves("english", seed)[half]
    found: list[str] = []
    for _ in range(rng.randint(8, 40)):
        words = rng.choice(said).split()
        at = rng.randrange(len(words))
        found.append(" ".join(words[at : at + rng.randint(2, 9)]))
        found.append("".join(rng.choices(_EMOJI[half], k=rng.randint(1, 3))))
    return " ".join(found)


def _blob(rng: random.Random, _half: int, _seed: object) -> str:
    """Base64, digests, ids, and long whitespace between."""
    makes = (
        lambda: base64.b64encode(rng.randbytes(rng.randint(20, 200))).decode(),
        lambda: rng.randbytes(32).hex(),
        lambda: f"{rng.getrandbits(32):08x}-{rng.getrandbits(16):04x}-{rng.getrandbits(16):04x}",
        lambda: " " * rng.randint(10, 200),
        lambda: "\n" * rng.randint(2, 20),
    )
    return "\n".join(rng.choice(makes)() for _ in range(rng.randint(6, 30)))


_MADE: dict[str, Callable[[random.Random, int, object], str]] = {
    "json": _document, "tables": _table, "emoji": _emoji, "blobs": _blob,
}  # fmt: skip
KINDS = (*WRITTEN, *_MADE)


def text(kind: str, rng: random.Random, half: int, seed: object = 0) -> str:
    """One answer of that kind. `half`: 0 to learn from, 1 to measure on."""
    made = _MADE.get(kind)
    return told(rng, halves(kind, seed)[half]) if made is None else made(rng, half, seed)

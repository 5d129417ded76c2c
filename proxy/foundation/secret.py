"""Texts that must not be seen: keys of ours and of providers. Law: only who asks by name gets the text."""

from __future__ import annotations

import hmac
import re

# Keys as we and the providers make them; most of one, too, where somebody has lost a part of it.
_LIKE_ONE = re.compile(r"\b(tw-|sk-)[A-Za-z0-9_-]{24,}", re.ASCII)


def masked(text: str) -> str:
    """`text` without whatever looks like a key in it."""
    return _LIKE_ONE.sub(r"\1…", text)


class Secret:
    """A text that does not show itself: not in a repr, a log line or a traceback. Ask `reveal`.

    It can be pickled, because worker processes get their settings whole. No dataclass: `asdict` would copy it out.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text itself."""
        return self._text

    def __repr__(self) -> str:
        return "Secret(***)"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(self._text.encode(), other.reveal().encode())

    __hash__ = None  # type: ignore[assignment]  # a set of secrets would compare their hashes first

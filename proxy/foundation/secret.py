"""Secret texts: proxy keys and provider keys. Invariant: only `reveal` returns the text."""

from __future__ import annotations

import hmac
import re

# Keys of this proxy and of providers, truncated ones too; narrowed keys and tokens (JWT) have several parts.
_KEY = re.compile(
    r"\b(?:(tw-|sk-|AIza|gsk_|xai-|eyJ)[A-Za-z0-9_-]{24,}(?:\.[A-Za-z0-9_-]+)*|(AKIA|ASIA)[A-Z0-9]{16}\b)", re.ASCII
)


def masked(text: str) -> str:
    """`text` with everything that looks like a key shortened to its prefix."""
    return _KEY.sub(lambda found: f"{found[1] or found[2]}…", text)


class Secret:
    """A text that no repr, log line or traceback shows.

    It can be pickled, because settings are passed to worker processes. Not a dataclass: `asdict` would expose the text.
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

    __hash__ = None  # type: ignore[assignment]  # a set would compare hashes first, which is not constant time

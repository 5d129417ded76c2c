"""The settings of the admin listener.

Invariants: without a secret the listener is off; a secret that is easy to guess is rejected.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from proxy.foundation.secret import Secret
from proxy.settings.kinds import FieldPath, FieldType, about, host, secret, whole

# 32 hexadecimal digits are 128 bits; `openssl rand -hex 32` prints twice that.
SECRET_CHARS_MIN = 32
# Random text of that length has more; "changeme" four times has seven.
DISTINCT_CHARS_MIN = 10


def admin_secret() -> FieldType:
    """A secret that is long and random."""
    any_secret = secret()

    def read(raw: object, at: FieldPath) -> Secret:
        value: Secret = any_secret.read(raw, at)
        text = value.reveal()
        if len(text) < SECRET_CHARS_MIN or len(set(text)) < DISTINCT_CHARS_MIN:
            raise at.wrong(
                f"too easy to guess: must be at least {SECRET_CHARS_MIN} random characters; "
                "generate it with `openssl rand -hex 32`"
            )
        return value

    return FieldType("`${VAR}`", read)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminSettings:
    """The listener of the console and its APIs; see `proxy/console`."""

    host: str = field(default="127.0.0.1", metadata=about(host(), "address of the admin listener"))
    port: int = field(default=8090, metadata=about(whole(0, 65_535), "port of the admin listener; 0: any free one"))
    secret: Secret | None = field(
        default=None,
        metadata=about(
            admin_secret(), "the operators' sign-in secret, 32 characters or more; without one the listener is off",
            default="none",
        ),
    )  # fmt: skip

"""The settings of the admin listener. Law: without a secret it is off; a secret that could be guessed is refused."""

from __future__ import annotations

from dataclasses import dataclass, field

from proxy.foundation.secret import Secret
from proxy.settings.kinds import FieldPath, FieldType, about, host, secret, whole

# 32 characters of hexadecimal digits are 128 bits: `openssl rand -hex 32` is twice that.
SECRET_CHARS_MIN = 32
# A random text of that length has more; "changeme" four times has seven.
DISTINCT_CHARS_MIN = 10


def admin_secret() -> FieldType:
    """A secret that nobody guesses."""
    any_secret = secret()

    def read(raw: object, at: FieldPath) -> Secret:
        found: Secret = any_secret.read(raw, at)
        text = found.reveal()
        if len(text) < SECRET_CHARS_MIN or len(set(text)) < DISTINCT_CHARS_MIN:
            raise at.wrong(
                f"can be guessed: must be at least {SECRET_CHARS_MIN} random characters, say of `openssl rand -hex 32`"
            )
        return found

    return FieldType("`${VAR}`", read)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminSettings:
    """Where operators and keys' owners look; see `proxy/console`."""

    host: str = field(default="127.0.0.1", metadata=about(host(), "address of the admin listener"))
    port: int = field(default=8090, metadata=about(whole(0, 65_535), "port of the admin listener; 0: any free one"))
    secret: Secret | None = field(
        default=None,
        metadata=about(
            admin_secret(), "what operators sign in with, 32 characters or more; without one the listener is off",
            default="none",
        ),
    )  # fmt: skip

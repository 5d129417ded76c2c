"""The list of all kinds of sinks. Invariant: the settings, their reference and the senders are made of the list."""

from __future__ import annotations

from proxy.settings.sinks import SinkSettings
from proxy.sinks.format import SinkFormat, SinkKind
from proxy.sinks.lago import LAGO
from proxy.sinks.openmeter import OPENMETER
from proxy.sinks.stripe import STRIPE
from proxy.sinks.webhook import WEBHOOK

KINDS: tuple[SinkKind, ...] = (
    STRIPE,
    LAGO,
    OPENMETER,
    WEBHOOK,
)

SINKS = {kind.name: kind.settings for kind in KINDS}
"""kind → settings class, for `settings.load`"""

_FORMATS = {kind.name: kind.format for kind in KINDS}


def format_of(settings: SinkSettings) -> SinkFormat:
    """The format of the kind that the settings name."""
    return _FORMATS[settings.kind](settings)

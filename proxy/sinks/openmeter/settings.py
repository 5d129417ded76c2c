"""The settings of an OpenMeter sink."""

from __future__ import annotations

from dataclasses import dataclass, field

from proxy.foundation.secret import Secret
from proxy.settings.kinds import about, secret
from proxy.settings.sinks import SinkSettings, event_name


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenMeterSettings(SinkSettings):
    """One of OpenMeter's meters."""

    secret: Secret | None = field(
        default=None, metadata=about(secret(), "the API's key; a server of your own may need none", default="none")
    )
    event: str = field(default="llm_usage", metadata=about(event_name(), "the events' `type`"))

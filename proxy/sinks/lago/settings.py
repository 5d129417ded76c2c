"""The settings of a Lago sink."""

from __future__ import annotations

from dataclasses import dataclass, field

from proxy.settings.kinds import about
from proxy.settings.sinks import SinkSettings, event_name


@dataclass(frozen=True, slots=True, kw_only=True)
class LagoSettings(SinkSettings):
    """One of Lago's billable metrics."""

    event: str = field(default="llm_usage", metadata=about(event_name(), "the billable metric's `code`"))

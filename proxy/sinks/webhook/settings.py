"""The settings of a webhook sink."""

from __future__ import annotations

from dataclasses import dataclass

from proxy.settings.sinks import SinkSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSettings(SinkSettings):
    """Only those of every sink."""

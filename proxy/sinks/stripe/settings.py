"""The settings of a Stripe sink."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from proxy.settings.kinds import about, choice
from proxy.settings.sinks import SinkSettings, event_name


class MeteredQuantity(StrEnum):
    """What a Stripe meter counts."""

    TOKENS = "tokens"
    CHARGE = "charge"


@dataclass(frozen=True, slots=True, kw_only=True)
class StripeSettings(SinkSettings):
    """One of Stripe's meters."""

    event: str = field(default="llm_usage", metadata=about(event_name(), "the meter's `event_name`"))
    metered: MeteredQuantity = field(
        default=MeteredQuantity.TOKENS,
        metadata=about(choice(MeteredQuantity), "the values sent: tokens by type, or the charge in nano-dollars"),
    )

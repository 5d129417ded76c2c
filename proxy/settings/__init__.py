"""Settings: a YAML file or the environment → frozen, checked values, or an error that names the field."""

from proxy.foundation.secret import Secret
from proxy.settings.environment import from_environment
from proxy.settings.kinds import SettingsError
from proxy.settings.listeners import AdminSettings, Listen
from proxy.settings.models import ModelSettings, TargetSettings
from proxy.settings.outbound import CredentialSettings, ForwardProxy, TlsSettings
from proxy.settings.prices import PriceSettings
from proxy.settings.reading import Lookup, SinkKinds, load, parse, require_prices, route
from proxy.settings.reference import reference
from proxy.settings.values import (
    Drain,
    Durability,
    InjectUsage,
    JournalSettings,
    OnClientDisconnect,
    ProviderSettings,
    Settings,
    Timeouts,
)

__all__ = [
    "AdminSettings",
    "CredentialSettings",
    "Drain",
    "Durability",
    "ForwardProxy",
    "InjectUsage",
    "JournalSettings",
    "Listen",
    "Lookup",
    "ModelSettings",
    "OnClientDisconnect",
    "PriceSettings",
    "ProviderSettings",
    "Secret",
    "Settings",
    "SettingsError",
    "SinkKinds",
    "TargetSettings",
    "Timeouts",
    "TlsSettings",
    "from_environment",
    "load",
    "parse",
    "reference",
    "require_prices",
    "route",
]

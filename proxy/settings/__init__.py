"""Settings: a YAML file or the environment → frozen, checked values, or an error that names the field."""

from proxy.foundation.secret import Secret
from proxy.settings.environment import from_environment
from proxy.settings.faults import SettingsError
from proxy.settings.models import ModelSettings, TargetSettings
from proxy.settings.outbound import CredentialSettings, ForwardProxy, TlsSettings
from proxy.settings.providers import Drain, OnClientDisconnect, ProviderSettings, Timeouts
from proxy.settings.reading import load, parse, require_prices, route
from proxy.settings.values import Settings

__all__ = [
    "CredentialSettings",
    "Drain",
    "ForwardProxy",
    "ModelSettings",
    "OnClientDisconnect",
    "ProviderSettings",
    "Secret",
    "Settings",
    "SettingsError",
    "TargetSettings",
    "Timeouts",
    "TlsSettings",
    "from_environment",
    "load",
    "parse",
    "require_prices",
    "route",
]

"""The configuration file of a running proxy, and what of it a reload changes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import NamedTuple

import msgspec

from proxy.settings import Settings, SettingsError, load
from proxy.settings.kinds import setting_name
from proxy.settings.values import LogFormat
from proxy.sinks.kinds import SINKS

STATUS_FILE = "configuration.json"
# The fields of `Settings` that a reload changes.
RELOADED = ("providers", "models", "price_rules", "allow_literal_secrets")


class ConfigurationStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What a proxy runs with: the file STATUS_FILE of its data folder."""

    pid: int
    """the process that takes SIGHUP"""
    journal: str
    """the folder of the journal, which is locked while the proxy runs"""
    file: str | None
    """the configuration file; None: settings of the environment"""
    digest: str = ""
    """of the file as it is applied"""
    applied_at: float
    """Unix time"""
    attempts: int = 0
    """reloads since the start"""
    error: str | None = None
    """why the last reload has changed nothing"""
    need_restart: Sequence[str] = ()
    """settings that the file has changed, and only a restart applies"""


class ConfigurationFile(NamedTuple):
    """Where a proxy has its settings from. `host`, `port`, `log_format`: as the command line overrides them."""

    path: Path
    host: str | None = None
    port: int | None = None
    log_format: str | None = None

    def read(self) -> tuple[Settings, str]:
        """The settings, and the digest of the file. Raises SettingsError."""
        digest = digest_of(self.path)
        settings = load(self.path, os.environ, sinks=SINKS)
        listen = settings.listen
        port = listen.port if self.port is None else self.port
        log = settings.log if self.log_format is None else replace(settings.log, format=LogFormat(self.log_format))
        return replace(settings, listen=replace(listen, host=self.host or listen.host, port=port), log=log), digest

    def read_again(self, settings: Settings) -> Settings:
        """`settings` after a reload; unchanged if the file cannot be used."""
        try:
            return reloaded(settings, self.read()[0])
        except SettingsError:
            return settings


def digest_of(file: Path) -> str:
    """The first 12 hexadecimal digits of the file's SHA-256; empty if it cannot be read."""
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()[:12]
    except OSError:
        return ""


def reloaded(before: Settings, new: Settings) -> Settings:
    """The settings that apply after a reload."""
    return replace(before, **{name: getattr(new, name) for name in RELOADED})


def not_reloaded(before: Settings, new: Settings) -> list[str]:
    """The names of settings that differ, and only a restart applies."""
    differing = (one for one in fields(Settings) if getattr(before, one.name) != getattr(new, one.name))
    return [setting_name(one) for one in differing if one.name not in RELOADED]

"""The configuration file of a running proxy, and the settings that a reload changes."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import NamedTuple

import msgspec

from proxy.settings import Settings, SettingsError
from proxy.settings.fields import setting_name
from proxy.settings.reading import load_text, read_text
from proxy.settings.values import LogFormat
from proxy.sinks.kinds import SINKS

STATUS_FILE, _STATUS_FILE_OF = "configuration.json", "configuration-{}.json"
# Of a SHA-256, in hexadecimal.
DIGEST_DIGITS = 12
# The fields of `Settings` that a reload changes; any other needs a restart. docs/operations/running.md has this list.
RELOADED = (
    "providers", "models", "price_rules", "identities", "dimensions", "sinks", "alerts", "reserve", "budgets",
    "request_bytes_max", "websockets_per_key_max", "drain_delay_s", "shutdown_grace_s", "allow_literal_secrets",
    "hide_providers",
    "key_rotation",
)  # fmt: skip
# Those that workers use, if there is a queue: a worker needs a restart.
OF_WORKERS = frozenset({"sinks", "alerts"})


class ConfigurationStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration that a proxy runs with: a file in its data folder, see `status_file`, as long as it runs."""

    pid: int
    """the process that takes SIGHUP"""
    started: str
    """the start of that process, in the form of `process_start`: another process may get the same pid later"""
    started_at: float = 0.0
    """the start of that process, in Unix seconds"""
    processes: int = 1
    """how many processes are on the port; each has its own file"""
    process: int = 0
    """the process that wrote this: a child of `pid` where there are several"""
    file: str | None
    """the configuration file; None: settings of the environment"""
    digest: str = ""
    """the digest of the applied file"""
    applied_at: float
    """Unix time"""
    attempts: int = 0
    """reloads since the start"""
    error: str | None = None
    """why the last reload has changed nothing"""
    need_restart: Sequence[str] = ()
    """settings that the file has changed, and only a restart applies"""


def status_file(data_dir: Path, number: int) -> Path:
    """The file with the status of a process; `number`: among those on one port, 0 if it is alone."""
    return data_dir / (_STATUS_FILE_OF.format(number) if number else STATUS_FILE)


def running_status(data_dir: Path, number: int = 0) -> ConfigurationStatus | None:
    """The status of the proxy that runs with this data folder; None: there is none. `number`: see `status_file`."""
    try:
        status = msgspec.json.decode(status_file(data_dir, number).read_bytes(), type=ConfigurationStatus)
    except (OSError, msgspec.MsgspecError):
        return None
    return status if status.started and status.started == process_start(status.pid) else None


def process_start(pid: int) -> str:
    """When a process started, in words of the system; empty: there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        pass
    with suppress(OSError, subprocess.SubprocessError):  # a system without /proc
        command = ["ps", "-o", "lstart=", "-p", str(pid)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=5)  # noqa: S603  a number
        return done.stdout.strip()
    return ""


class ConfigurationFile(NamedTuple):
    """Where a proxy has its settings from. `host`, `port`, `log_format`: as the command line overrides them."""

    path: Path
    host: str | None = None
    port: int | None = None
    log_format: str | None = None
    digest: str = ""
    """the digest of the file when the running settings were read from it"""

    def read(self) -> tuple[Settings, str]:
        """The settings, and the digest of the file. Raises SettingsError."""
        text = read_text(self.path)
        settings = load_text(text, self.path, os.environ, sinks=SINKS)
        listen = settings.listen
        port = listen.port if self.port is None else self.port
        log = settings.log if self.log_format is None else replace(settings.log, format=LogFormat(self.log_format))
        settings = replace(settings, listen=replace(listen, host=self.host or listen.host, port=port), log=log)
        return settings, hashlib.sha256(text.encode()).hexdigest()[:DIGEST_DIGITS]

    def read_again(self) -> tuple[Settings, str]:
        """Read again while the proxy runs. Only a regular file is read: another kind could block the proxy."""
        if self.path.exists() and not self.path.is_file():
            raise SettingsError(f"{self.path}: is no regular file")
        return self.read()


def reloaded(before: Settings, new: Settings) -> Settings:
    """The settings that apply after a reload."""
    return replace(before, **{name: getattr(new, name) for name in _reloaded_by(before)})


def not_reloaded(before: Settings, new: Settings) -> list[str]:
    """The names of settings that differ, and only a restart applies."""
    if not new.listen.port:  # any port, which is known by now
        new = replace(new, listen=replace(new.listen, port=before.listen.port))
    others = (one for one in fields(Settings) if one.name not in _reloaded_by(before))
    return [setting_name(one) for one in others if getattr(before, one.name) != getattr(new, one.name)]


def _reloaded_by(before: Settings) -> list[str]:
    """The names of the settings that a reload of a proxy with these settings changes."""
    return [name for name in RELOADED if before.queue is None or name not in OF_WORKERS]

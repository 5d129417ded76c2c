"""The settings of traces: what they take, and that a refusal names the field and quotes nothing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from proxy.foundation.secret import Secret
from proxy.runtime.machine.traces import open_traces
from proxy.settings import Settings, SettingsError
from proxy.settings.reading import settings_from
from proxy.telemetry.metrics import Metrics

URL = "http://collector:4318/v1/traces"
TOKEN = "canary-of-the-collector"


def settings(traces: object) -> Settings:
    provider = {"base_url": "https://host.example/v1"}
    document = {"providers": {"one": provider}, "models": {"*": {"provider": "one"}}, "traces": traces}
    return settings_from(document, env={"TOKEN": TOKEN, "LINES": "a\nb", "NONE": ""}, folder=Path())


def test_what_is_written_arrives_and_nothing_is_the_default() -> None:
    assert settings(None).traces is None
    read = settings({"endpoint": URL}).traces
    assert read is not None
    assert (read.endpoint, read.headers, read.sample, read.service_name) == (URL, {}, 1.0, "tokenweir")
    headers = {"Authorization": "Bearer ${TOKEN}", "x-team": "${TOKEN}"}
    read = settings({"endpoint": URL, "headers": headers, "sample": 0.25, "service_name": "edge-1"}).traces
    assert read is not None
    assert read.headers == {"authorization": Secret(f"Bearer {TOKEN}"), "x-team": Secret(TOKEN)}
    assert (read.sample, read.service_name, TOKEN in repr(read)) == (0.25, "edge-1", False)


@pytest.mark.parametrize(
    ("more", "refused"),
    [
        ({"endpoint": None}, "traces.endpoint: is missing"),
        ({"endpoint": "http://collector:4318/"}, "traces.endpoint: must be the whole URL"),
        ({"endpoint": "http://user:canary@collector/v1/traces"}, "traces.endpoint: must not contain a user name"),
        ({"headers": ["canary"]}, "traces.headers: must be a mapping"),
        ({"headers": {"bad name": "${TOKEN}"}}, "traces.headers.bad name: is not a valid header"),
        ({"headers": {"Content-Type": "${TOKEN}"}}, "traces.headers.Content-Type: cannot be set"),
        ({"headers": {"x-key": "canary"}}, "traces.headers.x-key: a secret does not belong"),
        ({"headers": {"x-key": "${LINES}"}}, "traces.headers.x-key: the value must be 1 to"),
        ({"headers": {"x-key": "${NONE}"}}, "traces.headers.x-key: the value must be 1 to"),
        ({"headers": {"x-key": "${TOKEN}", "X-Key": "${TOKEN}"}}, "traces.headers: duplicate header"),
        ({"sample": 1.5}, "traces.sample: must be a number from 0 to 1"),
        ({"sample": "nan"}, "traces.sample: must be"),
        ({"sample": True}, "traces.sample: must be"),
        ({"service_name": "two words"}, "traces.service_name: must be"),
        ({"samples": 1}, "traces.samples: unknown field; did you mean sample?"),
    ],
)
def test_a_refusal_names_the_field(more: dict[str, Any], refused: str) -> None:
    with pytest.raises(SettingsError) as refusal:
        settings({"endpoint": URL, **more})
    assert str(refusal.value).startswith(refused)
    assert "canary" not in str(refusal.value)


def test_without_the_extra_the_refusal_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "proxy.telemetry.traces.export", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(SettingsError, match=r"^traces: .*pip install 'tokenweir\[otlp\]'"):
        open_traces(settings({"endpoint": URL}).traces, Metrics())

"""Settings of dimensions: presets, names of headers, bounds."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.settings import SettingsError, parse
from proxy.settings.dimensions import DimensionSettings

MODELS = """
providers: {electron: {base_url: "http://electron.test/v1"}}
models: {electron: {provider: electron}}
"""


def parsed(written: str) -> DimensionSettings:
    return parse(f"{MODELS}dimensions: {{{written}}}", env={}, folder=Path("/etc/tokenweir")).dimensions


@pytest.mark.parametrize(
    ("written", "error"),
    [
        ("sources: [litellm, helicon]", r"dimensions\.sources\[1\]: unknown; did you mean helicone"),
        ("headers: {end_user: Authorization}", r"dimensions\.headers\.end_user: must not be"),
        ("headers: {run: X-Tokenweir-Session}", r"dimensions\.headers: must have four names"),
        ("headers: {end_user: 'a b'}", r"dimensions\.headers\.end_user: must be the name of a header"),
        ("new_values_per_key_hour: -1", r"dimensions\.new_values_per_key_hour: must be a whole number"),
    ],
)
def test_invalid_settings_are_named(written: str, error: str) -> None:
    with pytest.raises(SettingsError, match=error):
        parsed(written)


def test_no_source_may_be_read() -> None:
    assert parsed("sources: []").sources == ()
    assert parsed("headers: {run: X-Build}").headers.run == "x-build"

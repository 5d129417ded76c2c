"""Secrets in files: which of the places of a variable is taken, and what is said of a file that cannot be used."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from proxy.settings import SettingsError, from_environment, parse
from proxy.settings.variables import CREDENTIALS, SECRET_CHARS_MAX, variable

NAME, CANARY = "OPENAI_API_KEY", "sk-canary-0123456789"
CONFIGURATION = """\
providers: {openai: {base_url: "https://host.example/v1", api_key: "${OPENAI_API_KEY}"}}
models: {"*": {provider: openai}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in (("one", "file"), (NAME, "plain"), (f"tokenweir_{NAME}", "of a folder"), ("tokenweir_B", "b")):
        (tmp_path / name).write_text(f"{text}\n")
    return tmp_path


@pytest.mark.parametrize(
    ("env", "name", "value"),
    [
        ({NAME: "set"}, NAME, "set"),
        ({NAME: ""}, NAME, ""),
        ({f"{NAME}_FILE": "{}/one"}, NAME, "file"),
        ({CREDENTIALS: "{}"}, NAME, "plain"),
        ({CREDENTIALS: "{}"}, "B", "b"),
        ({CREDENTIALS: "{}"}, "C", None),
        ({CREDENTIALS: ""}, NAME, None),
        ({CREDENTIALS: "{}/none"}, NAME, None),
        ({CREDENTIALS: "{}", NAME: "set"}, NAME, "set"),
        ({CREDENTIALS: "{}", NAME: ""}, NAME, ""),
        ({CREDENTIALS: "{}", f"{NAME}_FILE": "{}/one"}, NAME, "file"),
        ({}, NAME, None),
    ],
)
def test_a_variable_has_one_place(folder: Path, env: Mapping[str, str], name: str, value: str | None) -> None:
    assert variable({one: path.format(folder) for one, path in env.items()}, name) == value


@pytest.mark.parametrize("env", [{NAME: "a", f"{NAME}_FILE": "b"}, {NAME: "", f"{NAME}_FILE": ""}])
def test_a_value_beside_a_file_is_refused(env: Mapping[str, str]) -> None:
    with pytest.raises(SettingsError, match=f"variables {NAME} and {NAME}_FILE are both set: remove one"):
        variable(env, NAME)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "No such file"),
        (b"", "is empty"),
        (b"\n", "is empty"),
        (b"%s\n\n", "begins or ends with a blank or a second line end"),
        (b"%s\r\n", "begins or ends with a blank"),
        (b" %s", "begins or ends with a blank"),
        (b"%s\nb", "has several lines"),
        (b"%s\0", "has several lines, or control characters"),
        (b"%s\xff", "is not UTF-8 text"),
        (b"%s" + b"x" * SECRET_CHARS_MAX, "is longer than 4096 characters"),
        (b"%s" + b"x" * (8 << 20), "is longer than 4096 characters"),
    ],
)
@pytest.mark.parametrize("place", ["file", "credential"])
def test_a_file_that_cannot_be_used_is_named_without_its_content(
    place: str, content: bytes | None, says: str, tmp_path: Path
) -> None:
    file = tmp_path / NAME
    if content is None:
        file.symlink_to(tmp_path / "nothing")
    else:
        file.write_bytes(content.replace(b"%s", CANARY.encode()))
    env = {f"{NAME}_FILE": str(file)} if place == "file" else {CREDENTIALS: str(tmp_path)}
    with pytest.raises(SettingsError) as refused:
        parse(CONFIGURATION, env=env, folder=tmp_path)
    (line,) = str(refused.value).splitlines()
    assert line.startswith(f"providers.openai.api_key: {NAME}{'_FILE' if place == 'file' else f', from {CREDENTIALS}'}")
    assert f" {file}: {says}" in line
    assert "canary" not in line


def test_a_file_is_a_regular_one_that_may_be_read_by_others(tmp_path: Path) -> None:
    def of(file: Path | str) -> str | None:
        return variable({f"{NAME}_FILE": str(file)}, NAME)

    pipe, shared = tmp_path / "pipe", tmp_path / "shared"
    os.mkfifo(pipe)
    for file in (pipe, tmp_path, Path(os.devnull)):
        with pytest.raises(SettingsError, match="is no regular file"):
            of(file)
    with pytest.raises(SettingsError, match="is not UTF-8"):
        of("a\0b")
    shared.write_text("word")
    shared.chmod(0o644)
    assert of(shared) == "word"


def test_the_rule_is_the_same_without_a_configuration_file(folder: Path) -> None:
    read, taken = from_environment({f"{NAME}_FILE": str(folder / "one"), "OPENAI_BASE_URL": "http://127.0.0.1:9/v1"})
    key = read.providers["openai"].api_key
    assert key is not None
    assert key.reveal() == "file"
    assert taken == ["openai: http://127.0.0.1:9/v1, key from OPENAI_API_KEY, serves any model name"]
    with pytest.raises(SettingsError, match=f"^{NAME}_FILE: /nowhere: No such file"):
        from_environment({f"{NAME}_FILE": "/nowhere"})

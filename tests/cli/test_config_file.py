"""The configuration file of a command, if `--config` does not name one."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import pytest

from proxy.cli import common, main
from proxy.cli.serve import _settings_to_serve
from proxy.foundation.secret import Secret
from proxy.runtime.machine.configuration_file import not_reloaded
from tests.cli.commands import Commands


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Folders for a file of each place; the command runs in `here`."""
    folders = {name: tmp_path / name for name in ("option", "variable", "here", "machine")}
    for folder in folders.values():
        folder.mkdir()
    monkeypatch.chdir(folders["here"])
    monkeypatch.delenv(common.CONFIG_VARIABLE, raising=False)
    monkeypatch.setattr(common, "CONFIG_PLACES", (Path("tokenweir.yaml"), folders["machine"] / "tokenweir.yaml"))
    return folders


@pytest.mark.io
def test_the_first_place_with_a_file_counts(
    places: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, options in (("machine", []), ("here", []), ("variable", []), ("option", ["--config"])):
        made = Commands(places[name], capsys)
        made("keys", "create", "--alias", name)
        if name == "variable":
            monkeypatch.setenv(common.CONFIG_VARIABLE, str(made.config))
        assert main(["keys", "list", *options, *([str(made.config)] if options else [])]) == 0
        assert f'"alias": "{name}"' in capsys.readouterr().out


def test_without_a_file_the_places_are_named(places: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["ledger"], ["migrate"], ["reconcile", "--json"], ["worker"]):
        assert main(command) == 1
        said = capsys.readouterr().err
        assert "no configuration file: `tokenweir init` writes one, --config or TOKENWEIR_CONFIG names one" in said
        assert "tokenweir.yaml and " in said


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("providers: [", "tokenweir.yaml:1: invalid YAML"),
        ("providers: {tera: {base_urls: x}}", "tokenweir.yaml:1: providers.tera."),
        (None, "tokenweir.yaml: Is a directory"),
    ],
)
def test_an_error_in_a_file_begins_with_its_name(
    places: dict[str, Path], capsys: pytest.CaptureFixture[str], written: str | None, said: str
) -> None:
    file = places["here"] / "tokenweir.yaml"
    if written is None:
        file.mkdir()
    else:
        file.write_text(written)
    assert main(["ledger"]) == 1
    assert capsys.readouterr().err.startswith(f"tokenweir: {said}")
    assert main(["serve"]) == 1
    assert capsys.readouterr().err.startswith(f"tokenweir: {said}")


def test_a_variable_that_names_no_file_is_an_error(
    places: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(common.CONFIG_VARIABLE, "elsewhere.yaml")
    (places["here"] / "tokenweir.yaml").write_text("")
    assert main(["keys", "list"]) == 1
    assert capsys.readouterr().err == "tokenweir: elsewhere.yaml: No such file or directory\n"


@pytest.mark.io
def test_the_folders_of_a_reload_are_those_of_the_start(
    places: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Else each reload would say that `data_dir` needs a restart."""
    made = Commands(places["here"], capsys)
    options = argparse.Namespace(config=Path("tokenweir.yaml"), host=None, port=None, log_format=None)
    settings, file = _settings_to_serve(options)
    assert file is not None
    again, digest = file.read_again()
    assert not_reloaded(settings, again) == []
    alerts = replace(again.alerts, url="https://alerts.test")
    assert not_reloaded(settings, replace(again, alerts=alerts)) == []
    of_workers = replace(settings, queue=Secret("redis://queue.test"))
    assert not_reloaded(of_workers, replace(of_workers, alerts=alerts)) == ["alerts"], "a worker needs a restart"
    assert (digest, file.path) == (file.digest, made.config)

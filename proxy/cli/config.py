"""`tokenweir config`: check the configuration file, show all its settings, and print its schema.

Invariant: no server is reached, nothing is written, and no secret is printed.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from proxy.cli.common import (
    add_command,
    json_line,
    load_settings,
    required_config_file,
    with_commands,
    with_config,
)
from proxy.cli.doctor import print_findings
from proxy.cli.output import add_json


def add_commands(commands: Any) -> None:
    config = with_commands(commands, "config", "check and show the configuration file")
    check = with_config(config, "check", "check the file for all faults, without network access", _check)
    show = with_config(config, "show", "print all settings, with the default of each that is not in the file", _show)
    for parser in (check, show):
        add_json(parser)
    add_command(config, "schema", "print the JSON Schema of the file, for editors", _schema, quiet="")


def _check(options: argparse.Namespace) -> int:
    from proxy.doctor.examine import offline_checks

    return print_findings(lambda: load_settings(options.config), offline_checks, options.config, as_json=options.json)


def _show(options: argparse.Namespace) -> None:
    from proxy.settings.reading import parsed_yaml, read_text
    from proxy.settings.schema import shown
    from proxy.sinks.kinds import SINKS

    load_settings(options.config)  # only what is valid is shown
    document = parsed_yaml(read_text(required_config_file(options.config)))
    for path, value, is_default in shown(document, SINKS):
        if options.json:
            print(json_line({"setting": path, "value": value, "default": is_default}))
        else:
            written = value if isinstance(value, str) else json.dumps(value, default=str)
            print(f"{path} = {written}{'  (default)' if is_default else ''}")


def _schema(_: argparse.Namespace) -> None:
    from proxy.settings.schema import schema

    print(json.dumps(schema(), indent=2, ensure_ascii=False))

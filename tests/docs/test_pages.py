"""README and docs/: every link leads somewhere, and what is generated or copied in them is what the program says."""

from __future__ import annotations

import ast
import re
from collections import Counter
from dataclasses import fields
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from msgspec import structs

from proxy.console.api.accounts import AccountsQuery
from proxy.console.api.budgets import BudgetsQuery
from proxy.console.api.keys import KeysQuery
from proxy.console.api.refusals import RefusalsQuery
from proxy.console.api.schemas.exchanges import ListQuery
from proxy.console.api.schemas.usage import ReportQuery
from proxy.http import errors
from proxy.http.probes import add_probes
from proxy.metering.counts import _WHOLES
from proxy.metering.dialects import DIALECTS
from proxy.runtime.machine.configuration_file import RELOADED
from proxy.runtime.proxy.handlers import client_routes
from proxy.settings import Settings, load
from proxy.settings.fields import setting_name
from proxy.settings.statement import TaxSettings
from tests.docs import csv_columns, dimensions, life_cycles, records, settings_reference
from tests.docs.routes import PAGE, written

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = sorted(
    str(page.relative_to(ROOT))
    for pattern in ("*.md", "docs/**/*.md", "examples/*.md", "deploy/**/*.md")
    for page in ROOT.glob(pattern)
)


def prose(file: Path) -> str:
    """The page without its code blocks."""
    return re.sub(r"^```.*?^```$", "", file.read_text(), flags=re.DOTALL | re.MULTILINE)


def anchors(file: Path) -> set[str]:
    """The names that a code host gives to the page's headings."""
    headings = re.findall(r"^#+ (.+)$", prose(file), re.MULTILINE)
    names = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
    seen: Counter[str] = Counter()
    found = set()
    for name in names:
        found.add(f"{name}-{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return found


def broken(file: Path) -> list[str]:
    """The relative links of the page that lead nowhere."""
    found = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(file)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (file.parent / path) if path else file
        if not there.exists() or (anchor and anchor not in anchors(there)):
            found.append(target)
    return found


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page: str) -> None:
    assert broken(ROOT / page) == []


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One\n\n# One\n\n[a](#one) [b](#one-1) [c](page.md#one)\n[d](#two) [e](gone.md) [f](page.md#x)\n")
    assert broken(page) == ["#two", "gone.md", "page.md#x"]


def test_the_threat_model_names_the_tests_of_each_family() -> None:
    page = (ROOT / "docs" / "explanation" / "threat-model.md").read_text()
    named = set(re.findall(r"`(tests/[\w/.]+)`", page))
    assert [one for one in named if not (ROOT / one).exists()] == []
    of_security = sorted((ROOT / "tests" / "security").glob("test_*.py"))
    assert {str(one.relative_to(ROOT)) for one in of_security} <= named
    for test in of_security:
        family = test.read_text().removeprefix('"""').split(":")[0]
        assert f"| **{family}** |" in page, test.name


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    pages = [str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")]
    assert [page for page in pages if page != "README.md" and f"({page})" not in index] == []


SET = re.compile(r'flags(?:\.add\(|\.append\(| = \{)"(\w+)"|\{"(\w+)"\} if|\| \{"(\w+)"\}|\("(tool_prompt)",\)')


def test_every_flag_has_a_line() -> None:
    """Those that the meter sets by their names, and those of parts that exceed their whole."""
    sources = "".join(path.read_text() for path in (ROOT / "proxy" / "metering").rglob("*.py"))
    flags = {name for found in SET.findall(sources) for name in found if name} | {"encoded", "audio_doubtful"}
    for parts in _WHOLES:
        whole = parts.whole.removesuffix("_tokens")
        flags |= {parts.exceeded(name) for name in (*parts.of.values(), parts.together)}
        flags |= {f"{name}_added" for name in parts.of.values() if whole in ("prompt", "completion")}
    page = (ROOT / "docs" / "reference" / "flags.md").read_text()
    assert {flag for flag in flags if f"`{flag}`" not in page} == set()
    assert len(flags) > 25


def test_the_readme_is_short_and_contributing_one_screen() -> None:
    assert len(README.read_text().splitlines()) <= 200
    assert len((ROOT / "CONTRIBUTING.md").read_text().splitlines()) <= 50


def test_the_settings_reference_is_made_of_the_settings() -> None:
    text = settings_reference.PAGE.read_text()
    assert text == settings_reference.page(), "run: python -m tests.docs.settings_reference"
    declared = {setting_name(one) for one in fields(Settings) if one.metadata}
    assert {name for names in settings_reference.GROUPS.values() for name in names} >= declared


def test_the_reference_names_every_setting_once() -> None:
    text = settings_reference.reference()
    names = [line.split("`")[1] for line in text.splitlines() if line.startswith("| `")]
    assert len(names) == len(set(names))
    prices = ("cached_input", "audio_hour", "tiers[].above_prompt_tokens")
    expected = {"listen.port", "providers.<name>.timeouts.idle_s", "crashed_empty"}
    assert {*expected, *(f"models.<name>.price.{one}" for one in prices)} <= set(names)
    assert "| `exchanges_max` | a whole number from 1 to 1048576 | `16384`" in text
    assert "| `allow_literal_secrets` | `true` or `false` | `false` |" in text
    assert "`64 MiB`" in text
    assert all(line.count("|") - line.count("\\|") in (4, 5) for line in text.splitlines() if line[:1] == "|")


def test_the_diagrams_of_the_life_cycles_are_those_of_their_tables() -> None:
    text = life_cycles.PAGE.read_text()
    assert text == life_cycles.written(text), "run: python -m tests.docs.life_cycles"


def test_the_sources_of_dimensions_are_those_of_the_table() -> None:
    text = dimensions.PAGE.read_text()
    assert text == dimensions.written(text), "run: python -m tests.docs.dimensions"


def test_the_routes_are_those_of_the_table() -> None:
    text = PAGE.read_text()
    assert text == written(text), "run: python -m tests.docs.routes"
    routes = client_routes(MagicMock())
    add_probes(routes, not_ready=MagicMock(), exposition=MagicMock())
    for path in routes._table:
        dialect_s = any(path in dialect.paths for dialect in DIALECTS)
        assert dialect_s or f"{path}`" in text, path


@pytest.mark.parametrize("page", records.pages(), ids=lambda page: page.name)
def test_the_tables_of_entries_and_metrics_are_those_of_the_program(page: Path) -> None:
    assert page.read_text() == records.pages()[page], "run: python -m tests.docs.records"


def codes_of_errors() -> set[str]:
    """Every code of an error that clients of a proxy can get: the argument `code` of a call, or a value of a table."""
    found = set(errors._KEY_CODES.values()) | {"invalid_api_key", "invalid_key", "file_not_found", "batch_not_found"}
    for file in (ROOT / "proxy").rglob("*.py"):
        text = file.read_text()
        is_for_clients = "console" not in file.parts or file.name == "own_key.py"
        if is_for_clients and "code=" in text:  # to parse all of them takes seconds
            keywords = (one for one in ast.walk(ast.parse(text)) if isinstance(one, ast.keyword))
            texts = (ast.walk(one.value) for one in keywords if one.arg == "code")
            found |= {
                one.value
                for text in texts
                for one in text
                if isinstance(one, ast.Constant) and isinstance(one.value, str)
            }
    return {one for one in found if re.fullmatch(r"[a-z]+(_[a-z]+)+", one)}


def test_the_page_of_errors_has_every_code() -> None:
    rows = re.findall(r"^\| (`[^|]+) \|", (ROOT / "docs" / "reference" / "errors.md").read_text(), re.MULTILINE)
    written = {code for row in rows for code in re.findall(r"`(\w+)`", row)} - {"code"}
    assert written == codes_of_errors() | {"run_cap_unknown", "key_cap_unknown"}


# Heading of a list in the admin API → the parameters that it can have.
LISTS = {
    "Usage": ReportQuery, "Exchanges": ListQuery, "Refusals": RefusalsQuery, "Keys": KeysQuery,
    "Organizations and projects": AccountsQuery, "Budgets": BudgetsQuery,
}  # fmt: skip


@pytest.mark.parametrize("heading", LISTS)
def test_a_list_of_the_admin_api_has_its_parameters(heading: str) -> None:
    text = (ROOT / "docs" / "reference" / "admin-api.md").read_text()
    section = text.partition(f"\n### {heading}\n")[2].partition("\n#")[0]
    listed = "\n".join(re.findall(r"^(\* .*(?:\n  .*)*)", section, re.MULTILINE))
    known = {one.encode_name for one in structs.fields(LISTS[heading])}
    named = set(re.findall(r"`(\w+)(?:=[^`]+)?`", listed))
    assert known - named == set(), "not described"


def test_no_row_of_the_admin_api_is_longer_than_a_paragraph() -> None:
    rows = re.findall(r"^\| `.*$", (ROOT / "docs" / "reference" / "admin-api.md").read_text(), re.MULTILINE)
    assert [row[:60] for row in rows if len(row) > 900] == []


def test_the_columns_of_a_statement_are_those_that_it_writes() -> None:
    text = csv_columns.PAGE.read_text()
    assert text == csv_columns.written(text), "run: python -m tests.docs.csv_columns"


def test_the_settings_of_statements_load(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "how-to" / "statements.md").read_text()
    file = tmp_path / "tokenweir.yaml"
    models = "providers: {tera: {base_url: http://127.0.0.1:1}}\nmodels: {m: {provider: tera}}\n"
    file.write_text(models + text.split("```yaml\n")[1].split("```")[0])
    read = load(file, {}).statement
    assert read.tax == TaxSettings(label="VAT", percent="19")
    assert read.customers["acme"].legal_name == "Acme Ltd"


def test_the_configuration_of_the_four_systems_loads(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "how-to" / "four-systems.md").read_text()
    block = text.split("```yaml\n")[1].split("```")[0].replace("HOST", "host.test")
    file = tmp_path / "tokenweir.yaml"
    file.write_text(block + 'models: {"*": {provider: tera}}\n')
    names = ("TERA_API_KEY", "TENSORLOOP_KEY", "SILICONSTORM_KEY", "SMALLEST_API_KEY")
    settings = load(file, dict.fromkeys(names, "sk-x"))
    assert settings.providers["electron"].base_url.endswith("/waves/v1")


def test_the_configuration_of_the_clouds_loads(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "how-to" / "bedrock-and-vertex.md").read_text()
    file = tmp_path / "tokenweir.yaml"
    file.write_text(text.split("```yaml\n")[1].split("```")[0])
    providers = load(file, {}).providers
    assert [one.auth is not None for one in providers.values()] == [True, True]


def test_what_a_reload_changes_is_listed() -> None:
    text = (ROOT / "docs" / "how-to" / "change-the-configuration.md").read_text()
    rows = text.split("| setting | after a reload |")[1].split("| any other |")[0]
    listed = [name for row in rows.splitlines() for name in re.findall(r"`(\w+)`", row[2:].split(" |")[0])]
    assert listed == list(RELOADED)

"""`tokenweir init`: a file that runs at once, for what is in the environment, or from a LiteLLM proxy's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy.cli import main
from proxy.settings import load
from proxy.settings.environment import KNOWN
from proxy.settings.litellm import converted

LITELLM = """
model_list:
  - model_name: gpt-4o
    litellm_params: {model: openai/gpt-4o, api_key: os.environ/OPENAI_API_KEY, rpm: 500, tpm: 100000}
  - model_name: gpt-4o
    litellm_params:
      {model: azure/gpt-4o-eu, api_base: https://eu.openai.azure.com, api_key: sk-canary, api_version: "2024-10-21"}
  - model_name: gpt-4o-mini
    litellm_params: {model: gpt-4o-mini, api_key: os.environ/OPENAI_API_KEY}
  - model_name: claude
    litellm_params: {model: anthropic/claude-sonnet-4-5, api_key: os.environ/ANTHROPIC_API_KEY, timeout: 300}
    model_info:
      input_cost_per_token: 3.0e-06
      output_cost_per_token: 1.5e-05
      cache_read_input_token_cost: 3.0e-07
      cache_creation_input_token_cost: 3.75e-06
  - model_name: half
    litellm_params: {model: openai/gpt-4o, api_key: os.environ/OPENAI_API_KEY, input_cost_per_token: 2.0e-06}
  - model_name: own
    litellm_params:
      model: hosted_vllm/qwen3
      api_base: os.environ/VLLM_URL
      input_cost_per_token: 0.0000005
      output_cost_per_token: 1.5e-06
      temperature: 0.2
    model_info: {mode: chat}
  - model_name: unpriced
    litellm_params: {model: hosted_vllm/qwen3-next, api_base: os.environ/VLLM_URL}
  - model_name: "groq/*"
    litellm_params: {model: "groq/*", api_key: os.environ/GROQ_API_KEY}
  - model_name: nova
    litellm_params: {model: bedrock/amazon.nova-pro-v1:0, aws_region_name: us-east-1}
  - model_name: "a b"
    litellm_params: {model: openai/x}
router_settings:
  routing_strategy: simple-shuffle
  model_group_alias: {gpt-4: gpt-4o, gone: nothing, hid: {model: gpt-4o-mini, hidden: true}}
  redis_host: os.environ/REDIS_HOST
litellm_settings:
  drop_params: true
  fallbacks: [{gpt-4o-mini: [own]}, {nobody: [own]}, {half: [claude]}]
  cache: false
general_settings: {master_key: sk-canary-master, database_url: os.environ/DATABASE_URL}
environment_variables: {X: y}
"""
VARIABLES = {
    "OPENAI_API_KEY": "sk-1", "ANTHROPIC_API_KEY": "sk-2", "GROQ_API_KEY": "sk-3", "VLLM_URL": "http://vllm.example/v1",
    "AZURE_API_KEY": "sk-4",
}  # fmt: skip


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for known in KNOWN:
        monkeypatch.delenv(known.key_variable, raising=False)
        monkeypatch.delenv(known.url_variable, raising=False)
    return tmp_path


def test_the_providers_of_the_environment_are_in_the_file(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary-1")
    monkeypatch.setenv("GROQ_API_KEY", "sk-canary-2")
    monkeypatch.setenv("TENSORLOOP_API_KEY", "sk-canary-3")
    assert main(["init"]) == 0
    printed = capsys.readouterr()
    assert "wrote tokenweir.yaml; next: tokenweir config check" in printed.out
    assert "TENSORLOOP_API_KEY is set but needs TENSORLOOP_BASE_URL, too" in printed.err
    text = (here / "tokenweir.yaml").read_text()
    assert "canary" not in text
    settings = load(here / "tokenweir.yaml", {"OPENAI_API_KEY": "a", "GROQ_API_KEY": "b"})
    assert list(settings.providers) == ["openai", "groq"]
    assert list(settings.models) == ["openai/*", "groq/*"]
    assert main(["config", "check"]) == 0
    assert main(["init"]) == 1, "no file is replaced"
    assert "exists already" in capsys.readouterr().err
    assert (here / "tokenweir.yaml").read_text() == text


def test_without_any_key_it_says_which_to_set(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "other.yaml"]) == 0
    assert "set OPENAI_API_KEY" in capsys.readouterr().err
    settings = load(here / "other.yaml", {"OPENAI_API_KEY": "a"})
    assert list(settings.models) == ["*"]
    uncommented = (here / "other.yaml").read_text().replace("  # large:", "  large:").replace("# admin:", "admin:")
    (here / "third.yaml").write_text(uncommented)
    read = load(
        here / "third.yaml", {"OPENAI_API_KEY": "a", "TOKENWEIR_ADMIN_SECRET": "0123456789abcdefghijABCDEFGHIJ-_"}
    )
    assert "large" in read.models, "what is in comments is right, too"


def test_a_litellm_proxy_s_file_is_converted(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "config.yaml").write_text(LITELLM)
    assert main(["init", "--from-litellm", "config.yaml"]) == 0
    told = capsys.readouterr().err
    text = (here / "tokenweir.yaml").read_text()
    assert "canary" not in text + told
    assert "&id" not in text, "prices are written out"
    document: dict[str, Any] = yaml.safe_load(text)
    document["models"].pop("unpriced")
    (here / "priced.yaml").write_text(yaml.safe_dump(document))
    settings = load(here / "priced.yaml", VARIABLES)
    assert settings.providers["azure"].base_url == "https://eu.openai.azure.com/openai"
    assert settings.providers["azure"].dialects == ("azure",)
    assert settings.providers["anthropic"].timeouts.total_s == 300
    assert [(one.rpm, one.tpm) for one in settings.providers["openai"].credentials] == [(500, 100_000)]
    both = settings.models["gpt-4o"].providers
    assert [(one.provider, one.upstream_model, one.weight) for one in both] == [
        ("openai", "gpt-4o", 1), ("azure", "gpt-4o-eu", 1)
    ]  # fmt: skip
    mini = settings.models["gpt-4o-mini"].providers
    assert [(one.provider, one.upstream_model, one.weight) for one in mini] == [
        ("openai-2", "gpt-4o-mini", None), ("hosted-vllm", "qwen3", None)
    ]  # fmt: skip
    assert document["models"]["own"]["price"] == {"input": 0.5, "output": 1.5}
    assert document["models"]["claude"]["price"] == {"input": 3, "output": 15, "cached_input": 0.3, "cache_write": 3.75}
    assert settings.models["hid"].alias_of == "gpt-4o-mini"
    assert settings.models["gpt-4"].alias_of == "gpt-4o"
    assert settings.models["groq/*"].providers[0].provider == "groq"
    for line in (
        "model_list[1].litellm_params.api_key: the key is not written: set AZURE_API_KEY",
        "model_list[1].litellm_params.api_version: has no counterpart",
        "model_list[5].litellm_params.temperature: has no counterpart",
        "model_list[8].litellm_params.model: bedrock: configure this provider by hand",
        "model_list[9].model_name: is not a valid name",
        "router_settings.model_group_alias.gone: names no model of the file",
        "router_settings.redis_host: the queue between proxies and workers",
        "litellm_settings.drop_params: parameters are sent as the client wrote them",
        "litellm_settings.fallbacks: nobody: has no counterpart without models of these names",
        "general_settings.master_key: Tokenweir's admin secret is another",
        "general_settings.database_url: the ledger needs a database of its own",
        "environment_variables: has no counterpart",
        "models.unpriced.price: is missing",
        "half: its price lacks input or output",
        "litellm_settings.fallbacks: half: has no counterpart without models of these names that have the same API",
        "provider anthropic: its models are reached by its own API",
        "keys, teams and their budgets are in LiteLLM's database",
    ):
        assert line in told
        assert f"{line}" in text, "the same lines are comments of the new file"
    assert "litellm_settings.cache:" not in told, "what is off needs no line"


@pytest.mark.parametrize(
    ("model", "base", "written"),
    [
        ("azure/m", "https://eu.openai.azure.com/", "https://eu.openai.azure.com/openai"),
        ("azure/m", "https://eu.openai.azure.com/openai/v1/", "https://eu.openai.azure.com/openai"),
        ("azure/m", "os.environ/BASE", "${BASE}/openai"),
        ("anthropic/m", "https://a.example", "https://a.example/v1"),
        ("anthropic/m", "os.environ/BASE", "${BASE}/v1"),
        ("openai/m", "os.environ/BASE", "${BASE}"),
    ],
)
def test_a_base_url_ends_as_tokenweir_needs_it(model: str, base: str, written: str) -> None:
    entry = {"model_name": "m", "litellm_params": {"model": model, "api_base": base, "api_key": "os.environ/K"}}
    found = converted({"model_list": [entry]})
    (provider,) = found.document["providers"].values()
    assert provider["base_url"] == written
    told = [note.text for note in found.notes if note.path == "model_list[0].litellm_params.api_base"]
    end = written.removeprefix("${BASE}")
    assert told == ([f"${{BASE}} must end without {end} and without /"] if base == "os.environ/BASE" and end else [])


def test_each_key_in_the_old_file_gets_one_variable_that_no_other_key_has() -> None:
    keys = ["sk-a", "os.environ/OPENAI_API_KEY", "sk-b", "sk-a"]
    listed = [
        {"model_name": f"m{n}", "litellm_params": {"model": "openai/m", "api_key": key}} for n, key in enumerate(keys)
    ]
    found = converted({"model_list": listed})
    written = {name: section["api_key"] for name, section in found.document["providers"].items()}
    assert list(written.values()) == ["${OPENAI_API_KEY_2}", "${OPENAI_API_KEY}", "${OPENAI_API_KEY_3}"]
    assert list(found.variables) == ["OPENAI_API_KEY_2", "OPENAI_API_KEY_3"]
    assert found.document["models"]["m3"]["provider"] == found.document["models"]["m0"]["provider"]


@pytest.mark.parametrize("text", ["[]", "model_list: 7", "models: {}", "a: [", ""])
def test_another_file_is_refused(here: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "config.yaml").write_text(text)
    assert main(["init", "--from-litellm", "config.yaml"]) == 1
    assert capsys.readouterr().err.startswith("tokenweir: config.yaml: ")
    assert not (here / "tokenweir.yaml").exists()


@pytest.mark.parametrize(
    "entry",
    [7, None, {}, {"model_name": "x"}, {"model_name": "x", "litellm_params": []},
     {"model_name": "x", "litellm_params": {}},
     {"model_name": 7, "litellm_params": {"model": 8}}, {"model_name": "x", "litellm_params": {"model": "azure/y"}}],
)  # fmt: skip
def test_a_broken_entry_is_named_and_leaves_the_others(entry: object) -> None:
    good = {"model_name": "m", "litellm_params": {"model": "openai/m"}}
    found = converted({"model_list": [entry, good]})
    assert "m" in found.document["models"]
    assert found.notes == [] or found.notes[0].path.startswith("model_list[0]")

"""A LiteLLM proxy's configuration → Tokenweir's.

Invariants: pure. Each part of the file is either converted or named in a note; no note quotes a value, which could be a
secret. A key that is written in the file does not go into the new one: a variable takes its place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

from proxy.settings.environment import KNOWN
from proxy.settings.models import MODEL_NAME

Json = dict[str, Any]


class Note(NamedTuple):
    """A remark on a part of the old file that was not converted as it is."""

    path: str
    """`model_list[0].litellm_params.timeout`"""
    text: str


class Converted(NamedTuple):
    """The new configuration, as its YAML will be written."""

    document: Json
    notes: list[Note]
    variables: dict[str, str]
    """variables that take the place of keys in the old file → the path of the key"""


class _Kind(NamedTuple):
    """A provider by LiteLLM's prefix. `base_url`: None: `api_base` is required."""

    name: str
    base_url: str | None
    dialects: tuple[str, ...] = ()
    after: str = ""
    """appended to an `api_base`, which LiteLLM has without it"""


_KINDS: Mapping[str, _Kind] = {
    **{known.name: _Kind(known.name, known.base_url) for known in KNOWN},
    "together_ai": _Kind("together", "https://api.together.xyz/v1"),
    "fireworks_ai": _Kind("fireworks", "https://api.fireworks.ai/inference/v1"),
    "anthropic": _Kind("anthropic", "https://api.anthropic.com/v1", ("anthropic",), "/v1"),
    "gemini": _Kind("gemini", "https://generativelanguage.googleapis.com/v1beta", ("gemini",)),
    "cohere_chat": _Kind("cohere", "https://api.cohere.com/v2", ("cohere",)),
    "azure": _Kind("azure", None, ("azure",), "/openai"),
    "ollama": _Kind("ollama", None, ("ollama",), "/api"),
    "ollama_chat": _Kind("ollama", None, ("ollama",), "/api"),
    **{prefix: _Kind(prefix.replace("_", "-"), None) for prefix in (
        "hosted_vllm", "vllm", "lm_studio", "custom_openai", "openai_like", "litellm_proxy", "text-completion-openai",
        "llamafile", "infinity", "nvidia_nim", "databricks", "perplexity", "sambanova",
    )},
}  # fmt: skip
# Members of `litellm_params` that are read here, or that another one has made superfluous.
_READ = frozenset((
    "model", "api_key", "api_base", "base_url", "weight", "rpm", "tpm", "timeout", "stream_timeout",
    "input_cost_per_token", "output_cost_per_token", "cache_read_input_token_cost", "cache_creation_input_token_cost",
    "custom_llm_provider", "max_parallel_requests",
))  # fmt: skip
_RATES = {
    "input_cost_per_token": "input", "output_cost_per_token": "output",
    "cache_read_input_token_cost": "cached_input", "cache_creation_input_token_cost": "cache_write",
}  # fmt: skip
_ENVIRONMENT = re.compile(r"os\.environ/([A-Za-z_][A-Za-z0-9_]*)", re.ASCII)
_NO_COUNTERPART = "has no counterpart"
_NOTES = {
    "general_settings.master_key": "Tokenweir's admin secret is another: `admin.secret`; it must be random and long",
    "general_settings.database_url": "the ledger needs a database of its own: `ledger: ${…}`, `tokenweir migrate`",
    "router_settings.redis_host": "the queue between proxies and workers: `queue: redis://…`",
    "litellm_settings.success_callback": "billing systems: `sinks`; metrics: /metrics; spans: `traces`",
    "litellm_settings.drop_params": "parameters are sent as the client wrote them",
    "litellm_settings.cache": "answers are not cached",
}


def converted(old: object) -> Converted:
    """Convert a parsed file. Raises ValueError if it is not LiteLLM's."""
    if not isinstance(old, dict) or not isinstance(old.get("model_list"), list):
        raise ValueError("model_list: is missing: this is no configuration of LiteLLM's proxy")  # noqa: TRY004
    conversion = _Conversion(frozenset(_named(old)))
    for number, entry in enumerate(old["model_list"]):
        conversion.add(entry, f"model_list[{number}]")
    for section in ("router_settings", "litellm_settings", "general_settings"):
        conversion.settle(old.get(section) or {}, section)
    for name in old:
        if name not in ("model_list", "router_settings", "litellm_settings", "general_settings"):
            conversion.note(str(name), _NO_COUNTERPART)
    return conversion.result()


class _Conversion:
    def __init__(self, named: frozenset[str]) -> None:
        """`named`: the variables that the old file names. None of them takes the place of a key."""
        self._named = named
        self._providers: dict[str, Json] = {}
        self._models: dict[str, list[Json]] = {}
        self._prices: dict[str, Json] = {}
        self._aliases: dict[str, str] = {}
        self._in_order: set[str] = set()
        self._notes: list[Note] = []
        self._variables: dict[str, str] = {}
        self._of_key: dict[tuple[str, str], str] = {}  # usual variable and key in the file → the variable

    def note(self, path: str, text: str) -> None:
        self._notes.append(Note(path, text))

    def add(self, entry: Any, path: str) -> None:
        """One element of `model_list`."""
        given = entry.get("litellm_params") if isinstance(entry, dict) else None
        name = str(entry.get("model_name", "")) if isinstance(entry, dict) else ""
        if not isinstance(given, dict) or not name or not given.get("model"):
            self.note(path, "needs `model_name` and `litellm_params.model`")
            return
        if not MODEL_NAME.fullmatch(name):
            self.note(
                f"{path}.model_name", "is not a valid name: letters, digits and _ . : / @ + -, or `*`, or `prefix/*`"
            )
            return
        prefix, rest = _split(str(given["model"]), given.get("custom_llm_provider"))
        kind = _KINDS.get(prefix)
        if kind is None:
            self.note(f"{path}.litellm_params.model", f"{prefix}: configure this provider by hand (docs/how-to)")
            return
        provider = self._provider(kind, given, f"{path}.litellm_params")
        if provider is None:
            return
        target: Json = {"provider": provider}
        if rest != name and "*" not in rest:
            target["upstream_model"] = rest
        if isinstance(given.get("weight"), int):
            target["weight"] = given["weight"]
        info = entry.get("model_info")
        self._price(name, target, {**(info if isinstance(info, dict) else {}), **given}, path)
        self._models.setdefault(name, []).append(target)
        for member in given.keys() - _READ:
            self.note(f"{path}.litellm_params.{member}", _NO_COUNTERPART)

    def _price(self, name: str, target: Json, given: Json, path: str) -> None:
        """Convert the prices of a deployment to its cost. The first prices of a model are its charge, too."""
        rates = {ours: _per_million(given[theirs]) for theirs, ours in _RATES.items() if given.get(theirs) is not None}
        if "input" in rates and "output" in rates:
            target["cost"] = rates
            if self._prices.setdefault(name, rates) != rates:
                self.note(path, f"{name}: the charge is the price of the first deployment that has one")
        elif rates:
            self.note(path, f"{name}: its price lacks input or output, and is left out")
        if "cost" not in target and given.get("base_model"):
            self.note(f"{path}.model_info.base_model", "prices are looked up by the model's own name: check `price`")

    def _provider(self, kind: _Kind, given: Json, path: str) -> str | None:
        """The name of the provider, which is made if there is none like it."""
        base = given.get("api_base") or given.get("base_url")
        if base is None and kind.base_url is None:
            self.note(f"{path}.api_base", f"is needed for {kind.name}")
            return None
        section: Json = {"base_url": kind.base_url or ""}
        if base is not None:
            section["base_url"] = self._base(base, kind, path)
        key = self._key(given.get("api_key"), kind, path)
        if key is not None:
            section["api_key"] = key
        if kind.dialects:
            section["dialects"] = list(kind.dialects)
        timeouts = {ours: given[theirs] for theirs, ours in (("timeout", "total_s"), ("stream_timeout", "idle_s"))
                    if isinstance(given.get(theirs), int | float)}  # fmt: skip
        if timeouts:
            section["timeouts"] = timeouts
        limits = {ours: given[theirs] for theirs, ours in
                  (("rpm", "rpm"), ("tpm", "tpm"), ("max_parallel_requests", "parallel"))
                  if isinstance(given.get(theirs), int)}  # fmt: skip
        if limits and key is not None:
            del section["api_key"]
            section["credentials"] = [{"name": "main", "api_key": key, **limits}]
        same = next((name for name, known in self._providers.items() if known == section), None)
        if same is not None:
            return same
        name = next(name for name in _numbered(kind.name) if name not in self._providers)
        self._providers[name] = section
        if kind.dialects:
            self.note(path, f"provider {name}: its models are reached by its own API ({', '.join(kind.dialects)}): "
                            "requests are not translated")  # fmt: skip
        return name

    def _base(self, base: object, kind: _Kind, path: str) -> str:
        variable = _variable(base)
        if variable is None:
            return _with_end(str(base), kind.after)
        if kind.after:
            self.note(f"{path}.api_base", f"{variable} must end without {kind.after} and without /")
        return variable + kind.after

    def _key(self, key: object, kind: _Kind, path: str) -> str | None:
        if key is None:
            known = next((one for one in KNOWN if one.name == kind.name), None)
            return f"${{{known.key_variable if known else kind.name.upper() + '_API_KEY'}}}" if kind.base_url else None
        variable = _variable(key)
        if variable is not None:
            return variable
        base = f"{re.sub('[^A-Z0-9]', '_', kind.name.upper())}_API_KEY"
        name = self._of_key.get((base, str(key)))
        if name is None:
            used = self._named | self._variables.keys()
            name = self._of_key[base, str(key)] = next(name for name in _numbered(base, "_") if name not in used)
            self._variables[name] = f"{path}.api_key"
        return f"${{{name}}}"

    def settle(self, section: Any, path: str) -> None:
        """`router_settings`, `litellm_settings` or `general_settings`."""
        if not isinstance(section, dict):
            return
        for name, value in section.items():
            here = f"{path}.{name}"
            if name == "fallbacks":
                self._fall_back(value, here)
            elif name == "model_group_alias" and isinstance(value, dict):
                named = {alias: one.get("model") if isinstance(one, dict) else one for alias, one in value.items()}
                self._aliases |= {str(alias): str(model) for alias, model in named.items()}
            elif value not in (None, False, [], {}):
                self.note(here, _NOTES.get(here, _NO_COUNTERPART))

    def _dialects(self, target: Json) -> Any:
        return self._providers[target["provider"]].get("dialects")

    def _fall_back(self, value: Any, path: str) -> None:
        listed = value if isinstance(value, list) else []
        for model, others in (pair for one in listed if isinstance(one, dict) for pair in one.items()):
            mine = self._models.get(str(model))
            targets = [
                {**target, "upstream_model": target.get("upstream_model", other)}
                for other in (others if isinstance(others, list) else [])
                for target in self._models.get(str(other), [])
                if "*" not in str(other) and mine and self._dialects(target) == self._dialects(mine[0])
            ]
            if mine is None or not targets:
                self.note(path, f"{model}: {_NO_COUNTERPART} without models of these names that have the same API")
                continue
            if any("weight" in one for one in mine):
                self.note(path, f"{model}: its providers are tried in order now, without weights")
            known = [(one["provider"], one.get("upstream_model", model)) for one in mine]
            self._in_order.add(str(model))
            mine += [one for one in targets if (one["provider"], one["upstream_model"]) not in known]
            self.note(path, f"{model}: the price stays that of {model}, whichever model answers")

    def result(self) -> Converted:
        models: Json = {}
        for name, targets in self._models.items():
            # Its router draws at random among those of one name, and asks the fallbacks afterwards.
            in_order = len(targets) == 1 or name in self._in_order
            listed = [_ordered(one) if in_order else {**one, "weight": one.get("weight", 1)} for one in targets]
            section: Json = dict(listed[0]) if len(listed) == 1 else {"providers": listed}
            if name in self._prices:
                section["price"] = self._prices[name]
            models[name] = section
        for alias, model in self._aliases.items():
            if model in models and alias not in models and "*" not in alias + model:
                models[alias] = {"alias_of": model}
            else:
                self.note(f"router_settings.model_group_alias.{alias}", "names no model of the file")
        return Converted({"providers": self._providers, "models": models}, self._notes, self._variables)


def _ordered(target: Json) -> Json:
    return {name: value for name, value in target.items() if name != "weight"}


def _split(model: str, given: object) -> tuple[str, str]:
    """LiteLLM's prefix and the model's name at the provider."""
    if isinstance(given, str) and given:
        return given, model.removeprefix(f"{given}/")
    prefix, slash, rest = model.partition("/")
    return (prefix, rest) if slash and prefix in _KINDS else ("openai", model) if not slash else (prefix, rest)


def _variable(value: object) -> str | None:
    found = _ENVIRONMENT.fullmatch(value) if isinstance(value, str) else None
    return None if found is None else f"${{{found[1]}}}"


def _named(part: object) -> Iterator[str]:
    """The variables that a part of the file names."""
    members = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    for member in members:
        yield from _named(member)
    if isinstance(part, str) and (found := _ENVIRONMENT.fullmatch(part)):
        yield found[1]


def _with_end(url: str, end: str) -> str:
    url = url.rstrip("/").removesuffix("/v1" if end == "/openai" else "")  # Azure's newer address has it
    return url if url.endswith(end) else url + end


def _per_million(rate: object) -> float | str:
    """USD per token → USD per million tokens."""
    try:
        found = Decimal(str(rate)) * 1_000_000
    except InvalidOperation:
        return str(rate)
    return float(found)


def _numbered(name: str, before: str = "-") -> Iterator[str]:
    yield name
    number = 2
    while True:
        yield f"{name}{before}{number}"
        number += 1

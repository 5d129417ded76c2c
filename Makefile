# Everything a newcomer types. Needs Python 3.11 or newer and make; all else goes into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Stamps of one virtual environment: what runs, what tests need besides, and that pytest has compiled the tests once.
RUNTIME := $(VENV)/.runtime
READY := $(VENV)/.ready
COMPILED := $(VENV)/.compiled
LOCK := $(BIN)/uv pip compile --quiet --universal --generate-hashes --python-version 3.11
EXTRAS := bedrock otlp parquet pdf tokenizers vertex
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: help install ready demo dist test test-fast test-thorough test-cost check checks check-deploy coverage site bench faults soak real lock clean
help:            ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 20

# The lists are whole, so pip resolves nothing: its resolver refuses a list as soon as a newer release of a package
# exists that another one wants with an extra.
LOCKED := --no-deps --require-hashes

# No build isolation: setuptools is the pinned one, and 3.12 and later put none into a new environment.
$(RUNTIME): requirements/runtime.txt requirements/build.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; set PYTHON=…"; exit 1; }
	@echo "preparing $(VENV) (once) …"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) $(LOCKED) -r requirements/build.txt -r requirements/runtime.txt
	@$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

$(READY): $(RUNTIME) requirements/dev.txt
	@echo "adding what tests need to $(VENV) (once) …"
	@$(PIP) $(LOCKED) -r requirements/dev.txt
	@touch $@

install: $(RUNTIME) ## runtime packages, in .venv
ready: $(READY)

demo: $(RUNTIME) ## a tour: streams through the proxy into a ledger, in under a minute
	@$(BIN)/tokenweir demo
	@echo; echo "Next: $(BIN)/tokenweir demo --keep goes on serving, with the console; README.md has a quick start"

# The tests start hundreds of processes: each reads what the first one compiled.
export PYTHONDONTWRITEBYTECODE :=
PYTEST = $(BIN)/python -m pytest -q
TOGETHER := -n 3
# What opens no process, socket or database; all that Python and pip give, but what costs most; what costs most; what
# needs a program beside them.
FAST := not process and not io and not external and not thorough and not slow and not real
ALL := not external and not thorough and not slow and not real
THOROUGH := thorough and not external and not slow and not real
# Of make test, on a machine where the loop of tests/support/reference_loop.py takes one second.
ASKED := --asked-cpu-s 300 --asked-wall-s 180
DEPLOY := external and not slow and not real

# In a fresh clone each process would compile all tests for itself, all at once: a minute and a half of work, where one
# needs 20 seconds. Not again later: what was edited is soon compiled. What is wrong, the run says.
$(COMPILED): $(READY)
	@$(PYTEST) --collect-only -m "$(ALL)" >/dev/null || true
	@touch $@

test: $(COMPILED)      ## all tests that need only Python
	@$(PYTEST) $(TOGETHER) -m "$(ALL)" $(ASKED)

# TESTS: a folder or files, if not all.
test-cost: $(COMPILED) ## CPU-seconds of make test by folder, and the fifty most expensive tests (TESTS=tests/ledger: of these only)
	@$(PYTEST) $(TOGETHER) -m "$(ALL)" $(ASKED) --cost $(TESTS)

test-fast: $(READY)    ## tests that start no process and open no socket or database, for use while you work
	@$(PYTEST) -n 0 -m "$(FAST)" --asked-cpu-s 60

test-thorough: $(READY) ## what costs more than make test may take: whole deployments in many faults, both databases, our tools
	@$(PYTEST) $(TOGETHER) -m "$(THOROUGH)"

check-deploy: $(READY) ## tests that need another program: nginx, HAProxy, Caddy, Helm, systemd, Prometheus, Podman, Node, curl, Chromium, a C compiler, or root and network namespaces
	@$(PYTEST) -n 2 -m "$(DEPLOY)"

coverage: $(READY)     ## branch coverage of make test, make test-thorough and make check-deploy, subprocesses included
	@rm -f .coverage .coverage.*
	@$(BIN)/python -m coverage run -m pytest -q $(TOGETHER) -m "not slow and not real" --timeout 300
	@$(BIN)/python -m coverage combine --quiet
	@$(BIN)/python -m coverage report --format=total --precision=2 | sed 's/$$/ % of lines and branches/'

check: $(READY)  ## types, lint, import contract
	@$(BIN)/python -m tests.support.cost "make check" $(MAKE) --no-print-directory checks

checks:
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet . || { echo "run: $(BIN)/ruff format ."; exit 1; }
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo >/dev/null || $(BIN)/lint-imports --no-logo
	@$(BIN)/python -m tests.support.javascript
	@$(BIN)/python -m tests.support.growth
	@$(BIN)/python -m tests.support.glossary

site: $(READY)   ## docs/ as a static site with a search, in build/site/html; fails on a broken link
	@$(BIN)/python -m tests.docs.site build/site

bench: $(READY)  ## the tables of docs/evidence/benchmarks.md (needs a C compiler; nginx for the ratios)
	@$(BIN)/python -m tests.bench.run
	@$(BIN)/python -m tests.bench.apart

faults: $(READY) ## long runs: hundreds of kills, and random examples
	@HYPOTHESIS_PROFILE=random $(BIN)/python -m pytest -m slow -n 0 --timeout 14400
	@HYPOTHESIS_PROFILE=random $(PYTEST) $(TOGETHER) -m "hypothesis and not external and not slow and not real" --timeout 600

soak: $(READY)   ## all faults mixed for an hour (TOKENWEIR_SOAK_S: seconds)
	@TOKENWEIR_SOAK_S=$${TOKENWEIR_SOAK_S:-3600} $(BIN)/python -m pytest -m slow -n 0 --timeout 0 tests/distributed/test_soak.py

real: $(READY)   ## recorded answers of real providers at every chunking, a real llama-server, official SDKs and agents, Kubernetes' API server (if installed)
	@$(BIN)/python -m pytest -m real -n 0 --timeout 3600

lock: $(READY)   ## update requirements/: all packages; those for runtime; those for the build; what each extra adds
	@$(LOCK) --group dev --group build pyproject.toml -o requirements/dev.txt
	@$(LOCK) -c requirements/dev.txt pyproject.toml -o requirements/runtime.txt
	@$(LOCK) -c requirements/dev.txt --group build -o requirements/build.txt
	@for extra in $(EXTRAS); do \
		$(LOCK) -c requirements/dev.txt --extra $$extra $$(sed -n 's/^\([a-z0-9-]*\)==.*/--no-emit-package \1/p' requirements/runtime.txt) \
			--no-header pyproject.toml -o requirements/extras/$$extra.txt || exit 1; \
	done

# The SBOM lists what requirements/runtime.txt installs on this machine, with the wheel. The wheel is made of the sdist:
# setuptools would take files of an earlier version from build/ along.
SBOM := build/sbom
dist: $(READY)   ## the wheel, the sdist and an SBOM (CycloneDX) of the runtime packages with their licences, in dist/
	@rm -rf dist $(SBOM)
	@$(BIN)/uv build --quiet --no-build-isolation --python $(BIN)/python --out-dir dist
	@$(BIN)/uv venv --quiet --python $(BIN)/python $(SBOM)
	@$(BIN)/uv pip install --quiet --python $(SBOM) $(LOCKED) -r requirements/runtime.txt
	@$(BIN)/uv pip install --quiet --python $(SBOM) --no-deps dist/*.whl
	@$(BIN)/cyclonedx-py environment $(SBOM) --pyproject pyproject.toml --output-reproducible -o "$$(ls dist/*.tar.gz | sed 's/tar\.gz$$/cdx.json/')"
	@ls dist

clean:           ## remove generated files
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

# Everything a newcomer types. Needs Python 3.11 or newer and make; all else goes into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help ready demo test check bench faults real lock clean
help:            ## what can be made
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 20

$(READY): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; set PYTHON=…"; exit 1; }
	@echo "preparing $(VENV) (once) …"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $(READY)

ready: $(READY)

demo: $(READY)   ## real streams through the proxy into a ledger, in under a minute
	@$(BIN)/tokenweir demo
	@echo; echo "Now yours: $(BIN)/tokenweir demo --keep goes on serving, with the console; with your provider: see the README"

test: $(READY) check   ## all tests
	@$(BIN)/python -m pytest -q -n 3 --dist worksteal

check: $(READY)  ## types, lint, import contract
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet . || { echo "run: $(BIN)/ruff format ."; exit 1; }
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo >/dev/null || $(BIN)/lint-imports --no-logo

bench: $(READY)  ## the tables of the README (needs a C compiler; nginx for the ratios)
	@$(BIN)/python -m tests.bench.run
	@$(BIN)/python -m tests.bench.apart

faults: $(READY) ## the long runs: kills by the hundred
	@$(BIN)/python -m pytest -m slow -n 0

real: $(READY)   ## recorded answers of real providers at every chunking, and a real llama-server (where they are at hand)
	@$(BIN)/python -m pytest -m real -n 0

lock: $(READY)   ## renew requirements.txt, and deploy/requirements.txt: what runs, without what tests
	@$(BIN)/uv pip compile --quiet --universal --generate-hashes --python-version 3.11 --group dev pyproject.toml -o requirements.txt
	@$(BIN)/uv pip compile --quiet --universal --generate-hashes --python-version 3.11 -c requirements.txt pyproject.toml -o deploy/requirements.txt

clean:           ## remove what make made
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

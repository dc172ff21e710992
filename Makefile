# Every target makes the virtual environment that it needs; nothing is installed outside this folder.
PYTHON ?= python3
VENV   := .venv
PEERS  := .venv-peers
RUN    := $(VENV)/bin/

.PHONY: help quickstart test check format bench bench-rules bench-embedded parity clean
.DEFAULT_GOAL := help

help:            ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

$(VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(RUN)pip install --quiet --disable-pip-version-check -e ".[dev]"
	@touch $@

# The peers' own requirements are large (ray, transformers); they never touch the main environment.
$(PEERS)/.ready: pyproject.toml
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/pip install --quiet --disable-pip-version-check "torch==2.13.0" -e ".[peers]"
	@touch $@

quickstart: $(VENV)/.ready ## train a tiny language model by imitation and RL, two to three minutes on two CPU cores
	$(RUN)rewardsmith run recipes/quickstart.toml

test: $(VENV)/.ready ## run the tests
	$(RUN)pytest -n 2

check: $(VENV)/.ready ## lint, types, and the import rules between the rooms
	$(RUN)ruff check .
	$(RUN)ruff format --check .
	$(RUN)mypy
	$(RUN)lint-imports

format: $(VENV)/.ready ## format the code and fix what can be fixed
	$(RUN)ruff format .
	$(RUN)ruff check --fix .

bench: $(PEERS)/.ready ## time the mathematics against verl's own functions
	$(PEERS)/bin/python benchmarks/algorithms.py

bench-rules: $(VENV)/.ready $(PEERS)/.ready ## time rules in the worker pool beside math-verify called directly and beside verl
	$(RUN)python benchmarks/rules.py

bench-embedded: $(VENV)/.ready $(PEERS)/.ready ## time policy steps of the embedded engine beside TRL's
	$(RUN)python benchmarks/embedded.py

parity: $(PEERS)/.ready ## recompute the reference values of verl and TRL that the tests compare with
	$(PEERS)/bin/python -m tests.parity.make_references

clean:           ## remove the environments and caches
	rm -rf $(VENV) $(PEERS) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

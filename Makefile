# Every target sets up what it needs in .venv; `make help` lists them.
PYTHON ?= python3
HOST ?= 127.0.0.1
PORT ?= 9092
DATA ?= ./data
VENV := .venv
BIN := $(VENV)/bin
SHELL := /bin/bash

.DEFAULT_GOAL := help

.PHONY: help
help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "muster needs Python 3.11 or later; $(PYTHON) is $$($(PYTHON) --version 2>&1). Name another: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# One stamp per set of extras: it is renewed when pyproject.toml changes.
$(VENV)/.installed-%: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.$(if $(filter-out base,$*),[$*])'
	@touch $@

.PHONY: run
run: $(VENV)/.installed-base  ## start a broker on 127.0.0.1:9092, its store in ./data (HOST=, PORT=, DATA= change that)
	$(BIN)/muster serve --host $(HOST) --port $(PORT) --data $(DATA)

.PHONY: test
test: $(VENV)/.installed-test  ## the tests, on asyncio in debug mode and on uvloop where the loop matters
	$(BIN)/python -m pytest --loop asyncio --asyncio-debug
	$(BIN)/python -m pytest --loop uvloop tests/server tests/runtime tests/cluster tests/topics --ignore tests/server/test_scenario_replay.py

.PHONY: check
check: $(VENV)/.installed-check  ## ruff, mypy --strict, and the import contract
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.PHONY: interop
interop: $(VENV)/.installed-interop $(VENV)/.installed-test  ## stock Kafka clients against muster (needs Java 17+ and Maven)
	$(BIN)/python -m pytest tests/interop

.PHONY: kafka
kafka: $(VENV)/.installed-test  ## replay every scenario against Apache Kafka (needs Java 17+ and Maven)
	$(BIN)/python -m pytest tests/kafka

.PHONY: bench
bench: $(VENV)/.installed-interop $(VENV)/.installed-test  ## speed as ratios against peers in the same run
	$(BIN)/python -m tests.bench

.PHONY: sim
sim: $(VENV)/.installed-test  ## one simulated run: make sim SEED=7 STEPS=2000
	$(BIN)/python -m tests.simulator $(if $(SEED),--seed $(SEED)) $(if $(STEPS),--steps $(STEPS))

.PHONY: mutation
mutation: $(VENV)/.installed-mutation $(VENV)/.installed-test  ## mutation testing of coordinator/group (ten minutes; not in CI)
	$(BIN)/python -m tests.group.mutation

.PHONY: clean
clean:  ## remove what the targets made (not ./data)
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis mutants

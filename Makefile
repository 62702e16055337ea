# Every target works alone: the environment in .venv is made and refreshed when pyproject.toml or the pins change.
SHELL := /bin/bash
.DEFAULT_GOAL := help
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Several processes with torch run at once, and two threads in each would compete for the same cores. Not `up`: its
# one worker may serve a model that needs all of them.
demo example examples test test-all chaos outages: export OMP_NUM_THREADS ?= 1

.PHONY: help demo example examples test test-all chaos outages bench check format docs up clean

help: ## Show the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-18s %s\n", $$1, $$2}'

demo: $(READY) ## Start the service, run 500 rows and some chats through the official client, check every answer, stop
	@$(BIN)/python -m examples.demo

NAME ?= search
example: $(READY) ## Run one workload, check its answers: NAME=search, fraud, digits, translation, recommendation, summary or table
	@[[ " search fraud digits translation recommendation summary table " == *" $(NAME) "* ]] || { echo "make example: NAME is one of search, fraud, digits, translation, recommendation, summary, table" >&2; exit 2; }
	@$(BIN)/python -m examples.$(NAME)

examples: $(READY) ## Run all of these workloads in one service
	@$(BIN)/python -m examples.all

# The tests of the fault tests' own parts: `make chaos` begins with them.
HARNESS := tests/faults/harness
PYTEST := $(BIN)/python -m pytest -n 4 --dist=loadfile --no-loadscope-reorder --ignore=$(HARNESS)
test: $(READY) ## Run the tests: real Valkey, PostgreSQL and S3 servers, a browser, the whole service as processes
	@infra/test_tools.sh
	@$(PYTEST) -m "not exhaustive"

test-all: $(READY) ## Run the tests with every family, database and size: nightly and before a release
	@infra/test_tools.sh
	@$(PYTEST)

N ?= 100
SEED ?= $(shell date +%s)
DATABASE ?= sqlite
OBJECTS ?= directory
ENGINE ?= fake
chaos: $(READY) ## Kill the service's processes N times while it works, let an oracle judge every byte (N=1000 SEED=7 DATABASE=postgresql OBJECTS=moto ENGINE=demo, upstream or vllm; the same command goes on where it was stopped)
	@$(BIN)/python -m pytest --quiet $(HARNESS)
	@$(BIN)/python -m tests.faults.chaos --kills $(N) --seed $(SEED) --database $(DATABASE) --objects $(OBJECTS) --engine $(ENGINE) $(ARGS)

outages: $(READY) ## Keep Redis and PostgreSQL away for five minutes, in every way there is (an hour)
	@LONG=1 $(BIN)/python -m pytest --verbose --capture=no tests/faults/outages/test_redis.py tests/faults/outages/test_database.py

bench: $(READY) ## Measure our engine beside its peers on this machine (ARGS="--help" shows the choices; peers go to .bench/)
	@$(BIN)/python -m benchmarks.run $(ARGS)

check: $(READY) ## Check format, lint, types, import contracts and everything in infra/
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python infra/check.py

format: $(READY) ## Format the code and mend what can be mended
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

docs: $(READY) ## Write docs/reference/ from the code
	@$(BIN)/python -m infra.reference

up: $(READY) ## Run the whole service on this machine
	@$(BIN)/nightshift up

clean: ## Remove the environment and what tools leave behind
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .demo .chaos .examples .bench
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml requirements.txt $(wildcard infra/requirements/*.txt) tests/node/package-lock.json infra/setup.sh
	@infra/setup.sh $(VENV)
	@touch $@

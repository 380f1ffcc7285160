# `make demo` and `make test` each work from a fresh clone: they make .venv first.
# Variables: PYTHON (3.11 or newer), ASSAY_TORCH_INDEX (PyTorch's CPU wheel index, where pip is
# not configured to find torch's CPU build), ASSAY_CACHE_DIR (models), TESTS (what pytest runs).
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
TESTS ?= tests
export ASSAY_CACHE_DIR ?= $(CURDIR)/.cache/assay

.DEFAULT_GOAL := help
.PHONY: help env demo test lint format bench wheels clean

help:
	@echo "make demo    an honest and a cheating server, told apart (about 10 minutes at first)"
	@echo "make test    every test, servers included (about 30 minutes)"
	@echo "make lint    ruff, mypy, import rules"
	@echo "make format  apply what ruff can mend"
	@echo "make bench   the benchmarks; each prints a ratio against a baseline of the same run"
	@echo "make wheels  vLLM's sources of every supported release, for the contract tests"
	@echo "make clean   remove .venv and caches (.cache holds the models)"

env:
	@$(PYTHON) scripts/env.py

demo: env
	@$(BIN)/assay demo

test: env
	@sh scripts/browser.sh
	@sh scripts/postgres.sh
	@$(BIN)/python -m pytest $(TESTS)

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: env
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: env
	@for file in bench/*.py; do echo "== $$file"; $(BIN)/python $$file || exit 1; done

wheels: env
	@$(BIN)/python scripts/fetch_wheels.py

clean:
	rm -rf .venv .cache build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache

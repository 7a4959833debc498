# Every target makes .venv first, if need be. `make help` lists them.
PYTHON ?= python3
PYTEST_ARGS ?=

VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check -qq
READY := $(VENV)/.ready
SCATTER := $(VENV)/.scatter

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-full lint bench bench-quick scatter clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

setup: $(READY) ## make .venv: the project, its extras but scatter, the pinned tools

demo: $(READY) ## train and run small models on a text and a graph
	$(PY) -m experiments.demo

test: $(READY) ## run the quick tests: all but those marked slow
	$(PY) -m pytest -n 2 --dist worksteal -q -m "not slow" $(PYTEST_ARGS)

test-full: $(READY) ## run the slow tests: the rest of every generated matrix, training, large inputs
	$(PY) -m pytest -n 2 --dist worksteal -q -m slow $(PYTEST_ARGS)

lint: $(READY) ## check style, formatting and types
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(PY) -m mypy

bench: $(READY) ## time the library against its peers and write the results
	$(PY) -m experiments.benchmarks

bench-quick: $(READY) ## the same at small sizes
	$(PY) -m experiments.benchmarks --quick true

scatter: $(SCATTER) ## add the torch-scatter extra to .venv: built once from source, then kept by pip

clean: ## remove caches and builds; .venv stays
	rm -rf build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

# torch comes first and by its exact version: otherwise another package's range picks a newer build of several GB.
$(READY): pyproject.toml constraints.txt
	@echo "Setting up $(VENV) (once, one or two minutes)"
	@$(PYTHON) -m venv $(VENV)
	@echo "  torch" && $(PIP) install -c constraints.txt "$$(grep '^torch==' constraints.txt)" setuptools wheel
	@echo "  the project and its other packages" && $(PIP) install -c constraints.txt --no-build-isolation -e '.[dev]'
	@touch $@ && echo "  done"

# pip keeps the wheel but does not know which torch it was built against, so one that cannot be loaded is built anew.
$(SCATTER): constraints.txt | $(READY)
	@echo "Adding torch-scatter to $(VENV) (about 6 minutes the first time)"
	@$(PIP) install -c constraints.txt --no-build-isolation --no-deps torch-scatter
	@$(PY) -c 'import torch_scatter' 2>/dev/null || \
		$(PIP) install -c constraints.txt --no-build-isolation --no-deps --force-reinstall --no-cache-dir torch-scatter
	@$(PY) -c 'import torch_scatter'
	@touch $@ && echo "  done"

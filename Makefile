# make quickstart   create .venv, install, run the whole job on the text of the installed packages
# make test         lint, types, room rules and all tests
# make test-cluster the quickstart as a submitted job of a Ray cluster on this machine, against a local one
PYTHON ?= python3
VENV ?= .venv
WORK ?= work
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: help install quickstart test test-cluster lint format bench clean

help:
	@sed -n 's/^# make/make/p' Makefile; echo 'make lint | format | bench | clean'

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: Python 3.11 or newer is needed; give it as: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	@echo "installing (a few minutes the first time) ..."
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

install: $(INSTALLED)

quickstart: $(INSTALLED)
	$(BIN)/tsdae corpus docs $(WORK)/docs-corpus
	$(BIN)/tsdae run configs/quickstart.yaml workspace=$(WORK)/quickstart \
	  corpus.input=$(WORK)/docs-corpus/sentences documents.input=$(WORK)/docs-corpus/documents \
	  evaluate.tasks.0.folder=$(WORK)/docs-corpus/task

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test: lint
	$(BIN)/tsdae config check configs
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-cluster: quickstart
	TSDAE_QUICKSTART="$(abspath $(WORK))" $(BIN)/python -m pytest -m by_hand tests/end_to_end/test_cluster_quickstart.py

bench: $(INSTALLED)
	@for script in benchmarks/bench_*.py; do \
	  test -e "$$script" || { echo "there are no benchmarks yet (benchmarks/bench_*.py)"; break; }; \
	  echo "== $$script"; $(BIN)/python $$script || exit 1; \
	done

clean:
	rm -rf $(VENV) $(WORK) build *.egg-info

# Two commands matter: `make demo` and `make test`. Both set up .venv first (a few minutes, once).
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check --progress-bar on -c constraints.txt

.PHONY: demo test check lint bench docs clean

demo: .venv/installed  ## ConCM on the bundled bank, five draws, beside controls and published figures (about a minute)
	@echo "Running the main job, concm bench, on the bundled CIFAR-100 bank: about a minute on two cores."
	$(BIN)/concm bench --json runs/bench.json

test: .venv/developed  ## all tests (10 to 15 minutes on two cores)
	@echo "Running all tests: 10 to 15 minutes on two cores."
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto

check: .venv/developed  ## one test for each promise (under a minute on two idle cores)
	@echo "Running one test for each promise: under a minute on two idle cores."
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto -m promise -q

lint: .venv/developed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/benched  ## speed of the base session, of a draw and of many classes (minutes; meant for a GPU)
	$(BIN)/python bench/base_training.py
	$(BIN)/python bench/sessions.py
	$(BIN)/python bench/scaling.py

docs: .venv/documented  ## the documentation as a site in site/
	$(BIN)/mkdocs build --strict

clean:
	rm -rf .venv site

.venv/bin/python:
	@echo "Setting up .venv: 1 to 5 minutes the first time, most of it for torch."
	$(PYTHON) -m venv .venv

.venv/installed: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP) -e .
	@touch $@

.venv/developed: .venv/installed
	$(PIP) -e ".[dev]"
	@touch $@

.venv/benched: .venv/installed
	$(PIP) -e ".[bench]"
	@touch $@

.venv/documented: .venv/installed
	$(PIP) -e ".[docs]"
	@touch $@

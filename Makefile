# Every target installs what it needs into .venv and is quick when nothing has changed.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
NATIVE := $(wildcard native/*.pyx native/*.hpp ksrv/_native/*.pxd)
MODELS ?= demo-models
JOBS ?= 2

.PHONY: demo demo-once serve test test-slow check format protos bench bench-load fuzz asan coverage dist clean help

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  %-12s %s\n", $$1, $$2}'

$(VENV)/.python: constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -U pip setuptools wheel Cython
	@touch $@

$(VENV)/.installed: $(VENV)/.python pyproject.toml
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[torch,onnx,rich,test]'
	@touch $@ $(VENV)/.built

$(VENV)/.built: $(VENV)/.installed setup.py $(NATIVE)
	$(BIN)/python setup.py -q build_ext --inplace -j $(JOBS)
	@touch $@

$(VENV)/.bench: $(VENV)/.built
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[bench]'
	@touch $@

demo: $(VENV)/.built ## train a digit reader, serve it, be its client, leave the server up
	$(BIN)/python examples/digits/demo.py --models $(MODELS)

demo-once: $(VENV)/.built ## the same, but end after the table; non-zero exit when a way fails
	$(BIN)/python examples/digits/demo.py --models $(MODELS) --once

serve: $(VENV)/.built ## serve the repository in MODELS (default: the demo's)
	$(BIN)/ksrv serve $(MODELS)

test: $(VENV)/.built ## every test but the slow ones
	$(BIN)/python -m pytest -m 'not slow'

test-slow: $(VENV)/.built ## the soak tests, minutes each
	$(BIN)/python -m pytest -m slow --timeout 1800

check: $(VENV)/.built ## format, lint, types, import arrows
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/cython-lint native ksrv/_native
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_import_arrows.py

format: $(VENV)/.built ## rewrite the Python sources in the house format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## remove everything that make made
	rm -rf $(VENV) build dist *.egg-info $(MODELS) .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	find ksrv -name '*.so' -delete
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Needs Python 3.11 or newer, make, git and a package index; everything else is installed into $(VENV).
#
#     make demo     the main job on real Terraform modules: fail, look, go on, destroy
#     make test     all tests
#     make check    what CI runs: format, lint, types, imports, tests

VENV    ?= .venv
ARGS    ?=
WORKERS ?= 4

# The first of these that is new enough; `make PYTHON=/path/to/python3 ...` chooses another.
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& { echo $$python; break; }; done)

BIN   := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test check lint docs install clean

demo: $(STAMP)
	$(BIN)/orchestrator demo $(ARGS)

# First compiled once, else each worker compiles all tests. What fails there, the tests will say.
test: $(STAMP)
	-@test -d tests/__pycache__ || $(BIN)/python -m pytest --collect-only -qq >/dev/null
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

check: lint test

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(STAMP)
	$(BIN)/python -m docs.generate

install: $(STAMP)

$(STAMP): pyproject.toml
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or newer found; name one: make PYTHON=..." >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	echo "cannot make a virtual environment; on Debian: apt install python3-venv" >&2; exit 1; }
	@echo "installing into $(VENV), once"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --use-pep517 --editable '.[dev]'
	@touch $(STAMP)

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache

# make demo · make test · make check: each first makes .venv, or repairs or updates it, if that is needed.
#   PYTHON=python3.12                            which interpreter makes .venv (3.11 or newer)
#   PIP_FLAGS='--extra-index-url URL'            options for pip, e.g. an index of CPU-only torch builds:
#                                                the default index has CUDA builds of several GB on Linux
#   PYTEST_FLAGS='-k beam'                       options for pytest
#   JOBS=2                                       how many processes the tests are run by

PYTHON ?= $(firstword $(foreach p,python3.11 python3 python3.12 python3.13 python3.14,$(if $(shell \
	$(p) -c 'import sys; print(sys.version_info >= (3, 11) or "")' 2>/dev/null | grep True),$(p))))
PIP_FLAGS ?=
PYTEST_FLAGS ?=
JOBS ?= 2

BIN := .venv/bin
READY := .venv/installed

.DEFAULT_GOAL := help
.PHONY: help install demo test test-wheel nightly lint check docs clean
.NOTPARALLEL:

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*##/\1 \t/p' Makefile
	@sed -n '2,6s/^#  //p' Makefile

install: $(READY)  ## .venv with the package and its development tools, at the versions of constraints.txt

demo: $(READY)  ## train, evaluate and compare a small softmax and a MoS model (about a minute)
	@$(BIN)/dialog demo --out runs/demo

# Hundreds of processes that tests start would compile the program anew, where that is switched off.
test: export PYTHONDONTWRITEBYTECODE :=
test: $(READY)  ## the test suite
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(PYTEST_FLAGS)

test-wheel:  ## build and check the packages, then try the wheel alone: newest and lowest versions (WHEEL_FLAGS='--pin …')
	@$(PYTHON) scripts/try_wheel.py --pip '$(PIP_FLAGS)' $(WHEEL_FLAGS)

nightly: $(READY)  ## the fault matrix: at most 80 minutes on 2 cores; what is finished is kept, a second call goes on
	@$(BIN)/python scripts/nightly.py

lint: $(READY)  ## formatting, lint and types
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy

check: lint test  ## everything a change has to pass: lint, then test

docs: $(READY)  ## draw the generated parts of the pages, then build the site in build/site; stops at a broken link
	@$(BIN)/python scripts/docs.py
	@$(BIN)/python -c 'import furo, myst_parser' 2>/dev/null || \
		$(BIN)/python -m pip install --disable-pip-version-check --no-color -q $(PIP_FLAGS) -c constraints.txt -e '.[docs]'
	@$(BIN)/python -m sphinx -q -W --keep-going -d build/doctrees docs build/site
	@echo "build/site/index.html"

clean:  ## remove .venv and caches; runs/ stays
	@rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

# The marker is renamed to `installed` at the very end. One left over from an interrupted installation means
# that packages may be half written, so the environment is made anew; `activate` is the last file venv writes.
$(READY): pyproject.toml constraints.txt
	@if [ -z "$(PYTHON)" ]; then \
		echo "Python 3.11 or newer was not found: install it, or name it with 'make PYTHON=/path/to/python3'" >&2; exit 1; fi
	@if [ -e .venv/incomplete ] || [ ! -e $(BIN)/activate ] || ! $(BIN)/python -c '' 2>/dev/null; then \
		$(PYTHON) -m venv --clear .venv || { rm -rf .venv; \
		echo "$(PYTHON) could not make .venv: install its venv module (Debian, Ubuntu: apt-get install python3-venv)" >&2; \
		exit 1; }; fi
	@rm -f $(READY) && touch .venv/incomplete
	@echo "installing into .venv (once; torch is large): each package is named as it is fetched"
	@$(BIN)/python -m pip install --disable-pip-version-check --no-color $(PIP_FLAGS) -c constraints.txt -e '.[dev]'
	@mv .venv/incomplete $(READY) && touch $(READY)

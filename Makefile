# Needs Python 3.11+ with pip, git and make; everything else goes into .venv.
#   make demo        look into a published model, train one, write runs/demo/index.html
#   make test        every test; test-fast leaves the slow ones out (under a minute)
#   make lint        linter, formatter check, type check
#   make bench       side by side with other toolkits; CORPORA=folder adds larger corpora
PYTHON ?= python3
VENV := .venv
ifeq ($(OS),Windows_NT)
BIN := $(VENV)/Scripts
else
BIN := $(VENV)/bin
endif

# Byte-compiling all of torch takes longer than compiling what is imported, once, on first import.
# Where bytecode is not kept at all, every start would pay again.
export PYTHONDONTWRITEBYTECODE :=
PIP_INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check --no-compile \
	-c constraints.txt
# Small tensors gain nothing from several threads, and two busy test processes lose a lot.
JOBS ?= auto
TEST_ENV := OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1
PYTEST := $(TEST_ENV) $(BIN)/python -m pytest -n $(JOBS) --maxprocesses 8
PYTEST_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help demo test test-fast lint format bench clean
.DELETE_ON_ERROR:

help:
	@sed -n '2,5s/^# *//p' Makefile

demo: $(VENV)/demo.stamp
	$(BIN)/everyhead demo --run runs/demo

test: $(VENV)/test.stamp
	$(PYTEST) $(PYTEST_ARGS)

test-fast: $(VENV)/test.stamp
	$(PYTEST) -m "not slow" $(PYTEST_ARGS)

lint: $(VENV)/test.stamp
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy

format: $(VENV)/test.stamp
	$(BIN)/python -m ruff check --fix .
	$(BIN)/python -m ruff format .

bench: $(VENV)/bench.stamp
	$(BIN)/python -m bench $(if $(CORPORA),--corpora "$(CORPORA)") $(BENCH_ARGS)

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# One stamp per set of extras, so that a second call installs nothing.
$(VENV)/python.stamp:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "everyhead needs Python 3.11 or newer; say 'make PYTHON=/path/to/python3.11 ...'."; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { \
	  echo "Python cannot make a virtual environment here; on Debian: apt-get install python3-venv."; \
	  exit 1; }
	@touch $@

$(VENV)/demo.stamp: EXTRAS = demo,train,hf,look
$(VENV)/test.stamp: EXTRAS = test
$(VENV)/bench.stamp: EXTRAS = bench
$(VENV)/%.stamp: $(VENV)/python.stamp pyproject.toml constraints.txt
	@echo "Installing everyhead[$(EXTRAS)] into $(VENV) (once, a minute or two) ..."
	@$(PIP_INSTALL) --editable '.[$(EXTRAS)]'
	@touch $@

# make demo | test | test-services | check | dist | bench [NAME=x] | gpu-check | chaos | experiment [NAME=x] [SMOKE=1] [PAGE=1] | docs | site: each does its own set-up in $(VENV) first.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
DEMO_STAMP := $(VENV)/.installed-demo
STAMP := $(VENV)/.installed
NAME ?=
PIP := -qq --disable-pip-version-check --no-compile -c constraints.txt
TESTS ?= -n 3 --dist worksteal
# Byte code is kept, whatever the shell says: tests and demo start the program some hundred times.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-services check dist lint types bench gpu-check chaos experiment docs site clean

# pip and what builds pliant come first: the pip that Python brings takes twice as long, and so pip needs no second
# environment to build pliant. Nothing is compiled ahead: what is imported is compiled then.
$(DEMO_STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install $(PIP) --upgrade pip setuptools
	$(BIN)/python -m pip install $(PIP) --no-build-isolation -e '.[run,figures]'
	touch $@

# PyTorch's compiler is imported once here: tests that start side by side would each compile it.
$(STAMP): $(DEMO_STAMP)
	$(BIN)/python -m pip install $(PIP) -e '.[dev]'
	$(BIN)/python -c 'import torch._dynamo'
	touch $@

demo: $(DEMO_STAMP)
	PATH="$(abspath $(BIN)):$$PATH" bash examples/demo.sh

# Needs Python and make alone.
test: $(STAMP)
	$(BIN)/python -m pytest $(TESTS)

# Needs Slurm, several hosts, other accounts, a browser, a package index and published data (PLIANT_DATA): Debian's
# packages are installed where the user is root, else named.
test-services: $(STAMP)
	$(BIN)/python -m tests.services
	$(BIN)/python -m pytest -m services $(TESTS)

check: lint types test

dist: $(STAMP)
	$(BIN)/python -m pip wheel $(PIP) --no-deps --wheel-dir dist .

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# mypy needs to see the folder under its import name; a link does that without another install.
types: $(STAMP)
	mkdir -p .types && ln -sfn .. .types/pliant
	$(BIN)/mypy -m pliant -p pliant.cli -p pliant.integrations -p pliant.tools -p pliant.schemas

bench: $(STAMP)
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m benchmarks $(NAME)

gpu-check: $(STAMP)
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m benchmarks.gpu

chaos: $(STAMP)
	$(BIN)/python -m benchmarks.chaos

# SMOKE=1: small inputs only; PAGE=1: the page again, from the committed results.
experiment: $(STAMP)
	$(BIN)/python -m experiments $(NAME) $(if $(SMOKE),--smoke) $(if $(PAGE),--page)

docs: $(STAMP)
	$(BIN)/python -m pliant.schemas.generate
	$(BIN)/python -m docs.generate

# Into site/, whose index.html a browser opens; a broken link, or a page that mkdocs.yml does not place, fails.
site: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

clean:
	rm -rf .types .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist site demo *.egg-info
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

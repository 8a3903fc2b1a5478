# Everything that people and CI run. `make help` lists it.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
export HOME := $(or $(HOME),$(CURDIR)/.cache/home)
export PATH := $(CURDIR)/.venv/bin:$(PATH):/usr/sbin:/sbin
PYTHON := .venv/bin/python
PYTEST := $(PYTHON) -m pytest
# The tests with the public SDKs have an environment, a configuration and a set-up of their own.
SDK := .cache/sdk/python/bin/python -m pytest -c tests/sdk/python/pytest.ini -n 2 --dist loadfile tests/sdk/python
CODE := src tests benches scripts setup.py

.PHONY: help setup setup-run setup-sdk demo test sdk style crash fmt lint types arch mutants bench docs proto picture requirements clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 16

setup:  ## make this checkout ready for work: system packages, .venv, native parts
	@scripts/setup.sh dev </dev/null

setup-run:  ## the same with only what Flux itself needs
	@scripts/setup.sh run </dev/null

demo: setup-run  ## speculate, review, apply and revert in a throwaway directory
	@$(PYTHON) scripts/demo.py

test: setup  ## the quick tests, the public SDKs among them, a few minutes
	$(PYTEST) -n 2 --dist loadfile -m "not slow" $(ARGS)
	$(if $(ARGS),,@$(MAKE) --no-print-directory sdk)

setup-sdk: setup
	@scripts/sdk.sh </dev/null

sdk: setup-sdk  ## the public SDKs against running daemons
	$(SDK) -m "not slow" $(ARGS)

style: setup  ## only the tests of the house rules
	$(PYTEST) tests/style $(ARGS)

crash: setup  ## the slow sweeps: kill, full disk and I/O error at every step; the public SDKs at length
	$(PYTEST) -n 2 --dist loadfile -m slow $(ARGS)
	$(if $(ARGS),,@$(MAKE) --no-print-directory setup-sdk)
	$(if $(ARGS),,$(SDK) -m slow)

fmt: setup  ## format the code
	$(PYTHON) -m ruff check -q --fix $(CODE)
	$(PYTHON) -m ruff format -q $(CODE)

lint: setup  ## check style and format
	$(PYTHON) -m ruff check $(CODE)
	$(PYTHON) -m ruff format --check $(CODE)

types: setup  ## check types, strictly
	$(PYTHON) -m mypy --strict src/flux scripts benches

arch: setup  ## check that imports go one way
	.venv/bin/lint-imports

mutants: setup  ## break guards on purpose, one at a time: a test must notice each
	$(PYTHON) scripts/mutants.py $(ARGS)

bench: setup  ## measured comparisons; each prints a ratio
	$(PYTHON) -m benches.run $(ARGS)

docs: setup  ## write the generated pages anew
	$(PYTHON) scripts/reference.py
	$(PYTHON) scripts/diagrams.py

proto: setup  ## generate the messages between control plane and node anew
	$(PYTHON) scripts/proto.py

picture: setup  ## take the README's picture anew
	$(PYTHON) scripts/picture.py

requirements: setup  ## pin requirements/*.in anew
	scripts/requirements.sh

clean:  ## remove everything that was built
	rm -rf .venv .cache build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	rm -f src/flux/trees/_native*.so src/flux/substrates/procbox/_launcher
	find src tests benches scripts -name __pycache__ -prune -exec rm -rf {} +

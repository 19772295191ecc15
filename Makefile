# Two targets do all the set-up on a fresh machine: `make serve` and `make test`.
# PYTHON chooses the interpreter that .venv is made with (3.11 or newer).

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
FILE ?= models.yaml

# Python keeps what it has compiled even where the environment forbids it: tests start hundreds of processes.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: serve test test-all system fuzz fuzz-parsers fuzz-long chaos clients clients-update check lint format bench mutate clean help audit

help: ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Corral needs Python 3.11 or newer; $(PYTHON) is older. Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

# Each set of dependencies is installed once, and again when pyproject.toml changes.
$(VENV)/.demo $(VENV)/.test $(VENV)/.dev $(VENV)/.bench: $(VENV)/.%: pyproject.toml | $(BIN)/python
	@echo "Installing Corral with its [$*] extras. The first time llama.cpp is compiled: about five minutes on two cores."
	$(BIN)/python -m pip install -e '.[$*]'
	@touch $@

serve: $(VENV)/.demo ## install and serve models.yaml on http://127.0.0.1:8080
	$(BIN)/corral serve $(FILE)

test: $(VENV)/.test ## install and run the default tests
	$(BIN)/python -m pytest

test-all: $(VENV)/.test ## the default tests and the marked sets
	$(BIN)/python -m tests.clients.environments
	$(BIN)/python -m pytest -m ''

clients: $(VENV)/.test ## run real client programs against a real server, each installed in .venv-clients first
	$(BIN)/python -m tests.clients.environments
	$(BIN)/python -m pytest -m clients

system: $(VENV)/.test ## tests with real programs of the system: Chromium, Prometheus, nginx, systemd's checks
	$(BIN)/python -m pytest -m 'browser or prometheus or deploy'

fuzz: fuzz-parsers ## fuzz the parsers, then send thousands of wrong requests to a real server: about nine minutes
	$(BIN)/python -m pytest -m fuzz

fuzz-parsers: $(VENV)/.test ## inputs nobody thought of for all parsers, FUZZ_S=300 seconds in all; ONLY=name,name
	$(BIN)/python -m tests.fuzz.run

fuzz-long: $(VENV)/.test ## the same, ten minutes for each parser
	FUZZ_S=$${FUZZ_S:-5400} $(BIN)/python -m tests.fuzz.run

chaos: $(VENV)/.test ## inject every fault into a real server under load, then 20 minutes of kills; CHAOS=short takes five
	CHAOS_SOAK_S="$${CHAOS_SOAK_S-$$([ "$$CHAOS" = short ] || echo 1200)}" $(BIN)/python -m pytest -m chaos tests/chaos

clients-update: $(VENV)/.test ## pin the newest releases of these programs; then look at the differences and run `make clients`
	$(BIN)/python -m tests.clients.environments --update

lint: $(VENV)/.dev ## formatting, lint rules, types, and what bandit knows of insecure code
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/bandit --quiet --recursive --configfile pyproject.toml router worker

audit: $(VENV)/.dev ## ask for known faults of the installed packages; needs the network, and is no part of any build
	@said=$$($(BIN)/pip-audit --local --skip-editable --progress-spinner off 2>&1); code=$$?; \
	case "$$said" in *Traceback*) \
	  echo "Nothing was audited: the list of advisories cannot be reached from here." >&2; \
	  printf '%s\n' "$$said" | tail -n 1 >&2; exit 1;; \
	esac; \
	printf '%s\n' "$$said"; \
	unknown=$$(printf '%s\n' "$$said" | grep -c 'could not be audited'); \
	if [ "$$unknown" -gt 0 ]; then \
	  echo "Not audited: $$unknown packages, of which the index that was asked knows nothing." >&2; exit 1; \
	fi; \
	exit $$code

check: lint ## lint and the default tests
	$(BIN)/python -m pytest

format: $(VENV)/.dev ## rewrite the files as lint wants them
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.bench ## figures on this machine, up to 40 minutes; leave the machine idle
	$(BIN)/python -m bench

mutate: $(VENV)/.test ## try deliberate faults of the fleet and of the KV books, each of which a test must notice; ONLY=part-of-a-name
	$(BIN)/python -m tests.mutations.run

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) .venv-clients build *.egg-info .pytest_cache .ruff_cache .mypy_cache

# Each target makes its own virtual environment from nothing; nothing else is needed but Python 3.11 or newer.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# A test that fails only in parallel is wrong: it is to wait for what it is about, however long that takes on a busy
# machine.
JOBS ?= $(shell $(PYTHON) -c 'import os; print(min(os.cpu_count() or 1, 8))')
PARALLEL = -n $(JOBS) --dist loadgroup

.PHONY: run test smoke load compiled lock clean

run: $(VENV)/.run  ## four simulated replicas and one router, until Ctrl-C
	$(BIN)/homing demo

# The tests start hundreds of interpreters: bytecode is kept, also where the environment says otherwise.
test: export PYTHONDONTWRITEBYTECODE =
test: $(VENV)/.dev  ## everything that CI runs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -q $(PARALLEL) tests/core --cov --cov-fail-under=100 --cov-report=term-missing
	$(BIN)/pytest -q $(PARALLEL) tests --ignore=tests/core

smoke: $(VENV)/.dev  ## what takes a while to set up: Redis Sentinel through a failover, Redis Cluster
	$(BIN)/pytest -q tests/smoke/redis_setups.py

load: $(VENV)/.dev  ## Locust, one minute, round_robin and prefix_affinity in turn
	$(BIN)/python -m loadtests.locust_compare

# Built from a copy: the compiler leaves its libraries beside the sources, where they would shadow later edits.
compiled: $(VENV)/.dev  ## .venv-compiled: core and proxy as C (takes a C compiler); what the benchmarks and the image run
	rm -rf .venv-compiled build && mkdir -p build/source
	cp -r pyproject.toml README.md LICENSE router replica loadtests build/source/
	HATCH_BUILD_HOOKS_ENABLE=1 $(BIN)/python -m pip wheel --quiet --disable-pip-version-check \
	  --no-build-isolation --no-deps --wheel-dir build/wheel build/source
	$(PYTHON) -m venv .venv-compiled
	.venv-compiled/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/run.txt
	.venv-compiled/bin/python -m pip install --quiet --disable-pip-version-check --no-deps build/wheel/homing-*.whl

# The locks hold hashes and no index address, so that they serve on any network. `uv` is needed only here.
lock:
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate --no-header \
	  --quiet --upgrade pyproject.toml requirements/build.in -o requirements/run.txt
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate --no-header \
	  --quiet pyproject.toml requirements/build.in --extra dev -c requirements/run.txt -o requirements/dev.txt

$(VENV)/pyvenv.cfg:
	$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "Homing needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: $(VENV)/pyvenv.cfg requirements/run.txt pyproject.toml
	$(PIP) --require-hashes -r requirements/run.txt
	$(PIP) --no-build-isolation --no-deps --editable .
	touch $@

$(VENV)/.dev: $(VENV)/.run requirements/dev.txt
	$(PIP) --require-hashes -r requirements/dev.txt
	touch $@

clean:
	rm -rf $(VENV) .venv-compiled build

# Needs python3 (3.11 or newer), make and a package registry; everything else goes into .venv.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
LOCKED := $(VENV)/.locked
READY  := $(VENV)/.ready

# make test K=expression: pytest -k. JOBS: processes for the tests that may run side by side; many wait, so one more
# than the cores of CI.
K      ?=
JOBS   ?= 3
# make sim SEEDS=how-many SEED=first WORLD=jobs or agents; both without
SEEDS  ?= 100
SEED   ?= 1
WORLD  ?=
# make interleave SCENE=name; all of them without
SCENE  ?=
# make soak RUNS=how-many
RUNS   ?= 10000
# make bench QUICK=1 ONLY=drain,latency
QUICK  ?=
ONLY   ?=

PYTEST := $(BIN)/python -m pytest $(if $(K),-k '$(K)')
UV     := .cache/uv/bin/uv

.DEFAULT_GOAL := help
.PHONY: help check docs fix test test-long load test-pgbouncer interleave sim soak bench demo lock clean

help: ## print this
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1|\2/p' $(MAKEFILE_LIST) | \
	    while IFS='|' read -r target text; do printf '%-20s %s\n' "$$target" "$$text"; done

check: $(READY) ## format, lint, types, layers
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python tools/generate_docs.py --check

docs: $(READY) ## write the reference pages that are made from code
	$(BIN)/python tools/generate_docs.py

fix: $(READY) ## format, and mend what the linter can mend
	$(BIN)/ruff check --fix-only --quiet
	$(BIN)/ruff format

# Chaos tests need a machine that is not busy, and where time is the subject they run alone. pytest answers 5 when it
# selected nothing: an error only if every part did.
test: $(READY) ## all tests; K=expression selects, JOBS=n runs n side by side
	@ended=; part() { $(PYTEST) "$$@"; ended="$$ended $$?"; }; \
	part -n $(JOBS) --dist worksteal -m 'not chaos and not timed'; \
	part -n 2 --dist worksteal -m chaos tests/chaos tests/e2e; \
	part -m timed tests/chaos; \
	case $$ended in *[!\ 05]*|' 5 5 5') exit 1 ;; esac

test-long: $(READY) ## the tests that try many cases, with eight times as many
	HOLDFAST_SIMULATION_SEEDS=144 HOLDFAST_LOCKSTEP_EXAMPLES=504 \
	    $(PYTEST) -n $(JOBS) --dist worksteal tests/simulation tests/lockstep/test_lockstep.py

load: $(READY) ## the load tests at full size: lanes and keys that are replaced, 200,000 jobs that are cancelled
	HOLDFAST_TEST_LOAD=10 $(PYTEST) --timeout 1800 tests/chaos/test_replacing.py \
	    tests/conformance/test_cancel_many.py::test_all_jobs_of_a_queue_end_and_no_others

test-pgbouncer: $(READY) ## the conformance suite behind pgbouncer in transaction mode
	@PATH=$$PATH:/usr/sbin; \
	if ! command -v pgbouncer >/dev/null; then \
	    if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	        echo 'pgbouncer is missing: installing it with apt-get'; \
	        apt-get -q update && apt-get -q install -y --no-install-recommends pgbouncer || exit 1; \
	    else \
	        echo 'pgbouncer is missing: install the package of that name, then run this again' >&2; exit 1; \
	    fi; \
	fi
	HOLDFAST_TEST_PGBOUNCER=1 $(PYTEST) -n $(JOBS) tests/conformance

interleave: $(READY) ## one operation stopped after each of its statements while another runs, all pairs; SCENE=name
	$(BIN)/python -m tests.interleaving --all $(if $(SCENE),--scene $(SCENE))

sim: $(READY) ## a simulated cluster under faults; SEEDS=n runs, the first with SEED=n
	$(BIN)/python -m tests.simulation --seeds $(SEEDS) --seed $(SEED) $(if $(WORLD),--world $(WORLD))

soak: $(READY) ## RUNS=n runs in batch mode on each database while workers are killed; the witness's bill must be ours
	$(BIN)/python -m tests.chaos.overnight --runs $(RUNS) --on sqlite
	$(BIN)/python -m tests.chaos.overnight --runs $(RUNS) --on postgres

bench: $(READY) ## Holdfast, its peers and a bare loop, compared; QUICK=1 for a first look, ONLY=work,work for a part
	$(BIN)/python -m bench $(if $(QUICK),--quick) $(if $(ONLY),--only $(ONLY))

demo: $(READY) ## agents that survive the death of their workers
	$(BIN)/holdfast demo

lock: $(UV) ## renew requirements.lock from pyproject.toml
	$(UV) pip compile pyproject.toml --universal --python-version 3.11 --all-extras --group dev --upgrade \
	    --generate-hashes --no-emit-index-url --custom-compile-command 'make lock' \
	    --quiet --output-file requirements.lock

clean: ## remove everything that make and the tools made
	rm -rf $(VENV) .cache .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp is written last, so an interrupted set-up starts over.
$(LOCKED): requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo 'Holdfast needs Python 3.11 or newer: make PYTHON=/path/to/python ...' >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements.lock
	@touch $@

$(READY): $(LOCKED) pyproject.toml
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	$(BIN)/python -m pip check --quiet
	@touch $@

$(UV):
	$(PYTHON) -m venv --clear .cache/uv
	.cache/uv/bin/python -m pip install --quiet uv

# Needs python3 (3.11 or newer), make and a package registry; everything else goes into .venv.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
LIGHT  := $(VENV)/.light
LOCKED := $(VENV)/.locked
READY  := $(VENV)/.ready

# make test K=expression: pytest -k. JOBS: processes for the tests that may run side by side; many wait, so twice
# the cores of CI.
K      ?=
JOBS   ?= 4
# make steady TIMES=rounds SUITE=test or test-all
TIMES  ?= 10
SUITE  ?= test
# make sim SEEDS=how-many SEED=first WORLD=jobs, agents, pools, brokers, machines or resp; all without
SEEDS  ?= 100
SEED   ?= 1
WORLD  ?=
# make interleave SCENE=name; all of them without
SCENE  ?=
# make mutants MUTANT=name, in which * stands for anything; all of them without
MUTANT ?=
# make soak RUNS=how-many
RUNS   ?= 10000
# make soak-web MINUTES=how-many; make storm takes 30 minutes unless you say
MINUTES ?= 60
# make bench QUICK=1 ONLY=drain,latency
QUICK  ?=
ONLY   ?=
# make demo WEB=1
WEB    ?=

PYTEST  := $(BIN)/python -m pytest $(if $(K),-k '$(K)')
QUICKLY := not postgres$(if $(K), and ($(K)))
PIP     := $(BIN)/python -m pip --disable-pip-version-check --no-input
UV      := .cache/uv/bin/uv
COMPILE := pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
    --custom-compile-command 'make lock' --quiet

# Tests start many processes, and each would compile everything anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help assets check docs pictures docs-site fix quick test test-all steady test-long test-lowest try-wheel load test-pgbouncer interleave mutants sim storm soak soak-web attack bench demo screenshots lock clean

help: ## print this
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1|\2/p' $(MAKEFILE_LIST) | \
	    while IFS='|' read -r target text; do printf '%-20s %s\n' "$$target" "$$text"; done

check: $(READY) ## format, lint, types, layers
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python tools/generate_docs.py --check
	$(BIN)/python tools/pictures.py --check

docs: $(READY) ## write the reference pages that are made from code
	$(BIN)/python tools/generate_docs.py

pictures: $(READY) ## draw the pictures of commands in docs/images
	$(BIN)/python tools/pictures.py

docs-site: $(READY) ## the documentation as a site in build/site, without a network; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build
	@echo 'read it: $(BIN)/python -m http.server --directory build/site'

fix: $(READY) ## format, and mend what the linter can mend
	$(BIN)/ruff check --fix-only --quiet
	$(BIN)/ruff format

# tests/selection.py says what is long, tests/budgets.py how much each part may take, tools/suite.py what happens to a test
# that fails.
quick: $(READY) ## unit, shape, and conformance on SQLite: under a minute; K=expression selects
	$(PYTEST) -n $(JOBS) --dist worksteal --budget quick -m 'not long and not chaos and not timed' -k '$(QUICKLY)' \
	    tests/shape tests/unit tests/conformance

test: $(READY) ## what a change must pass before it is shared, in under six minutes on two cores; K=expression selects, JOBS=n side by side
	@$(BIN)/python tools/suite.py test --jobs $(JOBS) $(if $(K),-k '$(K)')

test-all: $(READY) ## all that test leaves out: the other database, long tails, chaos, releases that mix
	@$(BIN)/python tools/suite.py test-all --jobs $(JOBS) $(if $(K),-k '$(K)')

steady: $(READY) ## make test again and again, in random order beside CPU and disk load; TIMES=10 rounds, SUITE=test-all
	@$(BIN)/python tools/suite.py $(SUITE) --steady $(TIMES) --jobs $(JOBS) $(if $(K),-k '$(K)')

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

test-lowest: $(UV) ## unit and conformance tests with the lowest version of every dependency that pyproject.toml allows
	$(UV) venv --quiet --clear --python $(PYTHON) .cache/lowest
	$(UV) pip compile --quiet pyproject.toml --all-extras --resolution lowest-direct --python .cache/lowest/bin/python \
	    --no-emit-index-url --output-file .cache/lowest.txt
	$(UV) pip install --quiet --python .cache/lowest/bin/python --constraint .cache/lowest.txt \
	    --requirement .cache/lowest.txt --group test --editable .
	.cache/lowest/bin/python -m pytest -n $(JOBS) --dist worksteal -m 'not long' $(if $(K),-k '$(K)') tests/unit tests/conformance

try-wheel: $(READY) ## wheel and sdist, built and used outside of the repository with every python that is found
	$(BIN)/python tools/try_wheel.py

interleave: $(READY) ## one operation stopped after each of its statements while another runs, and who waits for held rows; SCENE=name
	$(BIN)/python -m tests.interleaving --all $(if $(SCENE),--scene $(SCENE))

mutants: $(READY) ## planted bugs, one at a time, each with the tests that must notice it; MUTANT=name
	$(BIN)/python -m tests.mutants $(if $(MUTANT),'$(MUTANT)')

sim: $(READY) ## a simulated cluster under faults; SEEDS=n runs, the first with SEED=n
	$(BIN)/python -m tests.simulation --seeds $(SEEDS) --seed $(SEED) $(if $(WORLD),--world $(WORLD))

storm: $(READY) ## every fault at once on PostgreSQL for MINUTES=30: kills, pauses, cuts, crashes, open transactions; SEED=n
	$(BIN)/python -m tests.chaos.storm $(if $(filter-out file,$(origin MINUTES)),--minutes $(MINUTES)) \
	    $(if $(filter-out file,$(origin SEED)),--seed $(SEED))

soak: $(READY) ## RUNS=n runs in batch mode on each database while workers are killed; the witness's bill must be ours
	$(BIN)/python -m tests.chaos.overnight --runs $(RUNS) --on sqlite
	$(BIN)/python -m tests.chaos.overnight --runs $(RUNS) --on postgres

soak-web: $(READY) ## pages that stay open for MINUTES=60 while agents work; they must not grow
	$(BIN)/python -m tests.http.soak --minutes $(MINUTES)

attack: $(READY) ## hundreds of thousands of hostile requests to a server on loopback, and how long a bystander waits; about five minutes
	$(BIN)/python -m tests.attack

bench: $(READY) ## Holdfast, its peers and a bare loop, compared; QUICK=1 for a first look, ONLY=work,work for a part
	$(BIN)/python -m bench $(if $(QUICK),--quick) $(if $(ONLY),--only $(ONLY))

assets: ## vendor what pages load from npm, at exact versions, with licences and hashes
	python3 tools/vendor_assets.py

demo: $(if $(WEB),$(READY),$(LIGHT)) ## agents that survive the death of their workers; WEB=1 then shows their store in the browser
	PYTHONPATH=src $(BIN)/python -m holdfast demo $(if $(WEB),--web)
	@$(if $(WEB),,echo && echo 'In this checkout, `make demo WEB=1` adds what the pages need and shows them.')

screenshots: $(READY) ## the pictures of the pages in docs/images, taken again
	$(BIN)/python tools/screenshots.py

lock: $(UV) ## renew requirements.lock from pyproject.toml, and the part of it that needs no extra
	$(UV) $(COMPILE) --all-extras --group dev --upgrade --output-file requirements.lock
	$(UV) $(COMPILE) --upgrade --constraint requirements.lock --output-file requirements-light.lock

clean: ## remove everything that make and the tools made
	rm -rf $(VENV) .cache .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} +

# The packages of a lock file. Their names show that it gets on.
INSTALL = { $(PIP) install --progress-bar off --require-hashes -r $(1); echo $$? >$(VENV)/.status; } | \
    grep --line-buffered -E '^(Collecting|Installing)' | cut -c 1-70; exit $$(cat $(VENV)/.status)

# A stamp is written last, so an interrupted set-up starts over: also the second stage, which takes away the stamp of the
# first until it is done.
$(LIGHT): requirements.lock requirements-light.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo 'Holdfast needs Python 3.11 or newer: make PYTHON=/path/to/python ...' >&2; exit 1; }
	@echo 'set-up: a virtual environment in $(VENV)'
	@$(PYTHON) -m venv --clear $(VENV)
	@echo "set-up: $$(grep -c '^[a-z]' requirements-light.lock) packages that Holdfast needs"
	@$(call INSTALL,requirements-light.lock)
	@touch $@

$(LOCKED): $(LIGHT)
	@rm $(LIGHT)
	@echo "set-up: all $$(grep -c '^[a-z]' requirements.lock) packages that its tests and tools need, which may take a minute"
	@$(call INSTALL,requirements.lock)
	@touch $(LIGHT) $@

$(READY): $(LOCKED) pyproject.toml
	@echo 'set-up: Holdfast itself'
	@$(PIP) install --quiet --no-deps --no-build-isolation -e .
	@$(PIP) check --quiet
	@touch $@

$(UV):
	$(PYTHON) -m venv --clear .cache/uv
	.cache/uv/bin/python -m pip install --quiet uv

# make demo: set up and run FedUAA over five phantom hospitals. make poc: rehearse it with startup kits and TLS.
# make test: set up, lint, type-check, test. make jobs: write the folders of jobs/ anew from the table of methods.
VENV   ?= .venv
PYTHON ?=
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# Two workers for two cores: a third would collect all tests once more, for ten seconds of a core.
SPREAD := -n 2 --dist worksteal --durations 15 --durations-min 5
FLARE  := tests/faults tests/flare tests/poc tests/provisioned
WAIT   := -n 3 --dist loadfile --durations 15 --durations-min 5

.PHONY: demo poc test test-alone test-flare test-papers everyday jobs docs site house lint lock licences dist benchmark clean

demo: $(READY)
	$(BIN)/nvflare simulator jobs/feduaa
	$(BIN)/fedretina show

# The same over startup kits, a server and five sites of their own, and mutual TLS: poc/README.md.
poc: $(READY)
	$(BIN)/python -m poc

# The package is compiled first, for each of the two hundred processes of a run would do it anew where
# PYTHONDONTWRITEBYTECODE is set. Then three at once: the checks, what stays in its own process and keeps the cores busy,
# and what starts FLARE's processes and mostly waits for them. What they print is mixed as it comes, so that one sees at
# which test a run hangs.
test: $(READY)
	$(BIN)/python -m compileall -q custom
	$(MAKE) --jobs 3 lint test-alone test-flare

# pytest keeps what it makes of each file of tests, so that it is made once and not by each worker of each run.
test-alone test-papers everyday: export PYTHONDONTWRITEBYTECODE :=

test-alone: $(READY)
	$(BIN)/python -m pytest $(SPREAD) -m "not flare and not provisioned" --ignore tests/papers

# Three files at a time; files that share a federation are done one after another (tests/conftest.py). Collecting the
# other folders would take each process some seconds more.
test-flare: $(READY)
	$(BIN)/python -m pytest $(WAIT) -m "flare or provisioned" $(FLARE)

# The papers' tables, their figures and the stored studies: a job of its own, which CI runs after `make test`. None of it
# is on a hospital's machine.
test-papers: $(READY)
	$(BIN)/python -m pytest $(SPREAD) tests/papers

# What one runs while working: everything but the papers, the simulator runs and the slow ones.
everyday: $(READY)
	$(BIN)/python -m pytest $(SPREAD) -m "not flare and not provisioned and not slow" --ignore tests/papers

# All files under jobs/: settings of each are its row's, and the two configurations of FLARE the same for all but one.
# A job for another row: `fedretina job write ROW`, which `make jobs` keeps from then on.
jobs: $(READY)
	set -e; for job in $(filter-out feduaa_learner,$(notdir $(wildcard jobs/*))); do \
	  $(BIN)/fedretina job write $$job --replace; done
	$(BIN)/fedretina job write feduaa --name feduaa_learner --learner --replace

# Pages and pictures that are rendered from the code, and the site that they make.
docs: house
	$(BIN)/python docs/render_settings.py
	$(BIN)/python docs/render_api.py
	$(BIN)/python docs/render_attacks.py
	$(BIN)/python docs/render_tutorials.py
	$(MAKE) site

# The pages as a site: build/site. A link or an anchor that leads nowhere ends it. Look at it: python -m http.server -d build/site
site: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

house: $(READY)
	$(BIN)/python docs/render_house.py

lint: $(READY)
	$(BIN)/ruff check custom tests benchmarks poc
	$(BIN)/ruff format --check custom tests benchmarks poc
	$(BIN)/mypy

# uv where it is present, else plain pip; both check every hash of the lock. Bytecode is compiled here, because FLARE
# starts a process per task and some machines forbid writing bytecode at import.
$(READY): requirements.lock pyproject.toml
	@set -e; found=""; \
	for python in $(PYTHON) python3.14 python3.13 python3.12 python3.11 python3; do \
	  if $$python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null; then \
	    found=$$python; break; fi; done; \
	if [ -z "$$found" ]; then echo "Python 3.11, 3.12, 3.13 or 3.14 is needed: install it, or name it with PYTHON=..."; exit 2; fi; \
	echo "setting up $(VENV) with $$($$found --version): some 3 GB to download, 7 GB on the disk, minutes without a word"; \
	if command -v uv >/dev/null 2>&1; then \
	  [ -x $(BIN)/python ] || uv venv --quiet --python "$$(command -v $$found)" $(VENV); \
	  uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements.lock; \
	  uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -e .; \
	else \
	  [ -x $(BIN)/python ] || $$found -m venv $(VENV); \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --require-hashes -r requirements.lock; \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .; \
	fi; \
	$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib custom || echo "some files of other packages do not compile; they are not used"; \
	touch $(READY)

# What is installed and under which licence, and a bill of materials (CycloneDX) for a scanner: build/. The two programs
# look at this environment from one of their own, so that they do not list themselves.
licences: $(READY)
	[ -x build/licences/bin/pip-licenses ] || { $(BIN)/python -m venv build/licences && \
	  build/licences/bin/python -m pip install --quiet "cyclonedx-bom>=7,<8" "pip-licenses>=5,<6"; }
	build/licences/bin/pip-licenses --python $(BIN)/python --order license --output-file build/licences.txt
	build/licences/bin/cyclonedx-py environment $(BIN)/python --output-file build/sbom.cdx.json
	@cat build/licences.txt; echo "bill of materials: build/sbom.cdx.json"

# The source archive and, from it, the wheel: dist/.
dist: $(READY)
	$(BIN)/python -m build --no-isolation
	$(BIN)/python -m twine check --strict dist/*

# Renew the lock: needs uv.
lock:
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate \
	  --no-header --upgrade --extra dev pyproject.toml -o requirements.lock

benchmark: $(READY)
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) build dist simulator_workspace fedretina_runs fedretina_results poc_workspace .mypy_cache .ruff_cache .pytest_cache

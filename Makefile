# make reproduce   set up the environment if need be, run the experiments, end with a table
# make test        set up the environment if need be, lint, check types (both where sources changed), run the tests
# make test-core   build the wheel, install it without extras into an empty environment, run the core's tests there
# make lint        lint and types only
# make docs        build the documentation into build/site
# make dist        build the source archive and the wheel into dist, and check them
# make clean       remove the environment and caches; results stay
#
# Any of CPython 3.11, 3.12 and 3.13 will do. 3.11 is taken first: it is the only one with all extras.
# make PYTHON=/path/to/python chooses one.
#
# On Linux x86_64, where the tested set was made, pip installs the very files that were tested (constraints/hashed), or none.
# Elsewhere it takes the same versions. make HASHES=yes and make HASHES=no choose.

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
PYTHONS := python3.11 python3.12 python3.13 python3 python
# Named by the content of what decides the environment: nothing is reinstalled while that is the same.
SUM := $(shell cat setup.cfg setup.py pyproject.toml constraints/*.txt constraints/hashed/*.txt | cksum | cut -d' ' -f1)
HASHES := $(if $(filter Linux-x86_64,$(shell uname -s)-$(shell uname -m)),yes,no)
# An environment that is there is kept, unless another Python is asked for.
KEPT := $(if $(PYTHON),,$(wildcard $(VENV)/installed-*-$(SUM)))
ifeq ($(KEPT),)
# Such as "python3.11 3.11": the first of the candidates that will do, and its version.
FOUND := $(shell for python in $(or $(PYTHON),$(PYTHONS)); do \
  version=$$($$python -c 'import sys; v = sys.version_info[:2]; \
    sys.exit(sys.implementation.name != "cpython" or not (3, 11) <= v <= (3, 13) or print("%d.%d" % v))' 2>/dev/null) \
  && echo "$$python $$version" && break; done)
endif
STAMP := $(or $(KEPT),$(VENV)/installed-$(or $(word 2,$(FOUND)),none)-$(SUM))
VERSION := $(word 2,$(subst -, ,$(notdir $(STAMP))))
# Named by the checksums of all sources, and by the environment that checks them.
LINTED := $(VENV)/linted-$(shell (echo $(STAMP); find . -name '.?*' -prune -o -name build -prune -o -name '*.py' \
  -exec cksum {} + | LC_ALL=C sort) | cksum | cut -d' ' -f1)

.PHONY: reproduce test test-core lint docs dist clean skipped
.DEFAULT_GOAL := reproduce

reproduce: $(STAMP) skipped
	@$(BIN)/tf-ensembles reproduce

lint: $(STAMP)
	@rm -f $(VENV)/linted-*
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@touch $(LINTED)

# Lints first, unless these sources have passed before.
test: $(LINTED) skipped
	$(BIN)/python -m pytest $(PYTEST_ARGS)

$(LINTED): | $(STAMP)
	@$(MAKE) --no-print-directory lint

test-core: $(STAMP)
	$(BIN)/python .ci/test_core.py

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "Open build/site/index.html"

dist: $(STAMP)
	rm -rf dist build/twine
	$(BIN)/python -m build --no-isolation
	$(BIN)/python -m venv build/twine
	build/twine/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes \
	  --requirement constraints/hashed/twine.txt
	build/twine/bin/python -m twine check --strict dist/*

# What this Python cannot have.
skipped: | $(STAMP)
	@[ $(VERSION) = 3.11 ] || echo "CPython $(VERSION): TF-Agents needs CPython 3.11. Its environment, agents, policies" \
	  "and drivers are left out, and their tests skipped; bandit problems, rollouts and all figures are not."

$(STAMP):
	@if [ -z "$(FOUND)" ]; then \
	  echo "error: CPython 3.11, 3.12 or 3.13 is needed, with pip: install one, or give its path:" \
	    "make PYTHON=/path/to/python3.11" >&2; \
	  exit 1; \
	fi
	@echo "Installing into $(VENV) with $(word 1,$(FOUND)) (CPython $(VERSION)): a few minutes, the first time only"
	@set -e; \
	python=$(word 1,$(FOUND)); \
	rm -rf $(VENV); \
	$$python -m venv $(VENV) 2>/dev/null >/dev/null || { \
	  rm -rf $(VENV); \
	  $$python -m venv --without-pip $(VENV); \
	  $$python -m pip --python $(BIN)/python install --quiet --require-hashes --requirement constraints/hashed/build.txt; \
	}; \
	if [ $(HASHES) = yes ]; then \
	  $(PIP) --require-hashes --requirement constraints/hashed/build.txt; \
	  $(PIP) --require-hashes --requirement constraints/hashed/$(VERSION).txt --no-build-isolation; \
	  PYTHONWARNINGS=ignore $(PIP) --no-deps --no-build-isolation --editable .; \
	else \
	  $(PIP) --constraint constraints/$(VERSION).txt --editable '.[all,dev]'; \
	fi; \
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache build dist *.egg-info

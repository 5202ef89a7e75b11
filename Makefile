# make reproduce   set up the environment if need be, run the experiments, end with a table
# make test        set up the environment if need be, lint, check types (both where sources changed), run the tests
# make lint        lint and types only
# make docs        build the documentation into build/site
# make clean       remove the environment and caches; results stay

VENV := .venv
BIN := $(VENV)/bin
# Named by the content of what decides the environment: nothing is reinstalled while that is the same.
STAMP := $(VENV)/installed-$(shell cat setup.cfg pyproject.toml constraints.txt | cksum | cut -d' ' -f1)
# Named by the checksums of all sources, and by the environment that checks them.
LINTED := $(VENV)/linted-$(shell (echo $(STAMP); find . -name '.?*' -prune -o -name build -prune -o -name '*.py' \
  -exec cksum {} + | LC_ALL=C sort) | cksum | cut -d' ' -f1)

.PHONY: reproduce test lint docs clean
.DEFAULT_GOAL := reproduce

reproduce: $(STAMP)
	@$(BIN)/tf-ensembles reproduce

lint: $(STAMP)
	@rm -f $(VENV)/linted-*
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@touch $(LINTED)

# Lints first, unless these sources have passed before.
test: $(LINTED)
	$(BIN)/python -m pytest $(PYTEST_ARGS)

$(LINTED): | $(STAMP)
	@$(MAKE) --no-print-directory lint

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "Open build/site/index.html"

$(STAMP):
	@for python in $(PYTHON) python3.11 python3 python; do \
	  if $$python -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then found=$$python; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
	  echo "error: CPython 3.11 is needed: install python3.11 with pip, or give its path: make PYTHON=/path/to/python3.11" >&2; \
	  exit 1; \
	fi; \
	echo "Installing into $(VENV) with $$found: a few minutes, the first time only"; \
	set -e; \
	rm -rf $(VENV); \
	$$found -m venv $(VENV) 2>/dev/null >/dev/null || { \
	  rm -rf $(VENV); \
	  $$found -m venv --without-pip $(VENV); \
	  $$found -m pip --python $(BIN)/python install --quiet pip; \
	}; \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[all]'; \
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache build dist *.egg-info

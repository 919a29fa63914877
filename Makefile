.PHONY: demo test check bench pins clean

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin

demo: $(VENV)/.demo
	$(RUN)/a2a-sidecar demo

test: $(VENV)/.test
	$(RUN)/python -m pytest

check: $(VENV)/.test
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/mypy

# `make bench BENCH="--rows 10000 1000000 --worst"`
bench: $(VENV)/.bench
	$(RUN)/python -m tests.bench $(BENCH)

# An extra is installed once, and again when what the project needs changes.
$(VENV)/.%: pyproject.toml
	test -x $(RUN)/python || $(PYTHON) -m venv $(VENV)
	$(RUN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	touch $@

# The image's dependencies, with hashes and without any index address.
pins:
	$(PYTHON) -m venv build/pins
	build/pins/bin/python -m pip install --quiet pip-tools
	CUSTOM_COMPILE_COMMAND="make pins" build/pins/bin/pip-compile --quiet --generate-hashes --strip-extras \
		--no-emit-index-url --no-emit-find-links --extra fast --extra metrics --extra rich \
		--output-file deploy/requirements.txt pyproject.toml

clean:
	rm -rf $(VENV) build dist

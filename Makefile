.PHONY: demo test check clean

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

# An extra is installed once, and again when what the project needs changes.
$(VENV)/.%: pyproject.toml
	test -x $(RUN)/python || $(PYTHON) -m venv $(VENV)
	$(RUN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	touch $@

clean:
	rm -rf $(VENV) build dist

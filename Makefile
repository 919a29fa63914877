.PHONY: demo test check bench pins audit sbom clean

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin

demo: $(VENV)/.demo
	$(RUN)/a2a-sidecar demo

test: $(VENV)/.test
	$(RUN)/python -m pytest -n 3 --dist loadfile

check: $(VENV)/.test
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/mypy

# `make bench BENCH="--rows 10000 1000000 --worst"`
bench: $(VENV)/.bench
	$(RUN)/python -m tests.bench $(BENCH)
	$(RUN)/python -m tests.bench.search

# An extra is installed once, and again when what the project needs changes.
$(VENV)/.%: pyproject.toml
	test -x $(RUN)/pip || $(PYTHON) -m venv $(VENV)
	$(RUN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	touch $@

# The image's dependencies and what builds the wheel, with hashes and without any index address.
pins:
	$(PYTHON) -m venv build/pins
	build/pins/bin/python -m pip install --quiet pip-tools
	CUSTOM_COMPILE_COMMAND="make pins" build/pins/bin/pip-compile --quiet --generate-hashes --strip-extras \
		--no-emit-index-url --no-emit-find-links \
		--extra fast --extra metrics --extra rich --extra search --extra mcp --extra answer \
		--output-file deploy/requirements.txt pyproject.toml
	CUSTOM_COMPILE_COMMAND="make pins" build/pins/bin/pip-compile --quiet --generate-hashes --strip-extras \
		--no-emit-index-url --no-emit-find-links --build-deps-for wheel --only-build-deps \
		--output-file deploy/docker/build-requirements.txt pyproject.toml

# Known vulnerabilities of the pins. It asks an advisory service on the network, so it is no part of CI.
audit:
	$(PYTHON) -m venv build/audit
	build/audit/bin/python -m pip install --quiet pip-audit
	build/audit/bin/pip-audit --strict --require-hashes --disable-pip --requirement deploy/requirements.txt || \
		{ echo "audit failed: a pin is vulnerable, or no advisory service answered for it and nothing is known" >&2; exit 1; }

# What the image is made of, as CycloneDX.
sbom:
	$(PYTHON) -m venv build/sbom
	build/sbom/bin/python -m pip install --quiet cyclonedx-bom
	build/sbom/bin/cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible \
		--output-file build/sbom.json deploy/requirements.txt

clean:
	rm -rf $(VENV) build dist

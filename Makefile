PYTHON ?= python3
BIN := .venv/bin
# Three workers for two cores: some tests wait for other processes. Most files stay on one worker, so that their fixtures
# are set up once.
PARALLEL := -n 3 --dist worksteal
# Of autoloaded plugins, pytest rewrites the assertions: those of Hypothesis take seconds in every worker.
PLUGINS := -p xdist -p hypothesispytest

.PHONY: test test-fast coverage lowest reproduce bench docs dist browser format clean

test: .venv/ready  ## check format, lint and types, and run all tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	@mkdir -p build
	$(BIN)/mypy >build/mypy.log & types=$$!; \
	PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 $(BIN)/python -m pytest $(PLUGINS) $(PARALLEL); tests=$$?; \
	wait $$types; types=$$?; cat build/mypy.log; exit $$((tests || types))

test-fast: .venv-fast/ready  ## run the tests of the library alone, without the slow ones
	.venv-fast/bin/python -m pytest -q $(PARALLEL) --library -m "not slow"

coverage: .venv-fast/ready  ## measure the coverage of the library by its tests
	.venv-fast/bin/python -m pytest -q -n 2 --dist loadfile --library --cov --cov-report=term --cov-report=xml

lowest: .venv-lowest/ready  ## run the fast tests on the lowest supported torch
	.venv-lowest/bin/python -m pytest -q $(PARALLEL) --library -m "not slow"

reproduce: .venv/lab  ## run the paper's four synthetic studies: tables, claims and figures, on a CPU and without data
	$(BIN)/counterpoise reproduce

bench: .venv/ready  ## run every benchmark that needs no data and write the tables of benchmarks/README.md
	$(BIN)/python benchmarks/loss_space.py
	$(BIN)/python benchmarks/loss_space_forms.py
	$(BIN)/python benchmarks/checks.py
	$(BIN)/python benchmarks/gradient_scale.py
	$(BIN)/python benchmarks/gradient_space.py
	$(BIN)/python benchmarks/gram_solvers_peer.py
	$(BIN)/python benchmarks/supports.py
	$(BIN)/python benchmarks/passes.py
	$(BIN)/python benchmarks/transformer.py
	$(BIN)/python benchmarks/stacked.py
	$(BIN)/python benchmarks/diagnostics.py
	PYTHONPATH=tests $(BIN)/python benchmarks/report.py
	$(BIN)/python benchmarks/render.py

docs: .venv/ready  ## build the site in build/docs, with warnings as errors, and check its internal links
	$(BIN)/python -m sphinx -q -W --keep-going -c docs . build/docs
	$(BIN)/python docs/links.py build/docs
	@echo "build/docs/index.html"

dist: .venv/release  ## build the source distribution and the wheel in dist, and check their metadata
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*

browser:  ## install Chromium for the tests of HTML pages (apt, as root); without it they are skipped
	@command -v chromium chromium-browser google-chrome >/dev/null \
	|| { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq \
	     && apt-get install -y -qq --no-install-recommends chromium >/dev/null; } \
	|| echo "Cannot install Chromium here. The tests of HTML pages will be skipped."

format: .venv/ready  ## fix format and lint
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/ready: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/pip install --quiet -c constraints.txt -e ".[dev]"
	touch $@

.venv/lab: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/pip install --quiet -c constraints.txt -e ".[lab]"
	touch $@

.venv/release: constraints.txt | .venv/bin/python
	$(BIN)/pip install --quiet -c constraints.txt build twine
	touch $@

.venv-fast/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-fast
	.venv-fast/bin/pip install --quiet -c constraints.txt -e ".[test]"
	touch $@

.venv-lowest/ready: pyproject.toml
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/pip install --quiet -e ".[test]" torch==2.4.0 "numpy<2"
	touch $@

clean:
	rm -rf .venv .venv-fast .venv-lowest build dist

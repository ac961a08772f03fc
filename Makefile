PYTHON ?= python3
BIN := .venv/bin

.PHONY: test lowest reproduce bench docs browser format clean

test: .venv/ready browser  ## format, lint, types, tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n 2

lowest: .venv-lowest/ready  ## the core on the lowest torch that is supported, and nothing but torch beside the test tools
	PYTHONPATH=src .venv-lowest/bin/python -m pytest -q -o addopts=--import-mode=importlib \
	    tests/weighting tests/gradients tests/functional tests/test_inputs.py --ignore=tests/functional/test_torchjd.py \
	    --ignore=tests/gradients/test_retained.py --ignore=tests/weighting/test_compile.py --ignore=tests/weighting/test_definitions.py

reproduce: .venv/lab  ## the paper's four synthetic studies: tables, claims and figures, on a CPU and without data
	$(BIN)/counterpoise reproduce

bench: .venv/ready  ## every benchmark that needs no data, and the tables of benchmarks/README.md
	$(BIN)/python benchmarks/loss_space.py
	$(BIN)/python benchmarks/gradient_space.py
	$(BIN)/python benchmarks/passes.py
	$(BIN)/python benchmarks/stacked.py
	$(BIN)/python benchmarks/doctor.py
	PYTHONPATH=tests $(BIN)/python benchmarks/report.py
	$(BIN)/python benchmarks/render.py

docs: .venv/ready  ## the site in build/docs: warnings are errors, links within it are checked
	$(BIN)/python -m sphinx -q -W --keep-going -c docs . build/docs
	$(BIN)/python docs/links.py build/docs
	@echo "build/docs/index.html"

browser:  ## Chromium, for the tests of pages: installed where it is missing and can be; they are skipped without it
	@command -v chromium chromium-browser google-chrome >/dev/null \
	|| { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq \
	     && apt-get install -y -qq --no-install-recommends chromium >/dev/null; } \
	|| echo "no Chromium, and no way to install it here: the tests of pages are skipped"

format: .venv/ready
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

.venv-lowest/ready: Makefile
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/pip install --quiet torch==2.4.0 "numpy<2" hypothesis mpmath pytest scipy
	touch $@

clean:
	rm -rf .venv .venv-lowest build dist

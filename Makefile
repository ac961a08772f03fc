PYTHON ?= python3
BIN := .venv/bin

.PHONY: test reproduce bench format clean

test: .venv/ready  ## format, lint, types, tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n 2

reproduce: .venv/ready  ## the pure-rescaling study of the paper, about three minutes on a CPU
	$(BIN)/python examples/rescaling.py

bench: .venv/ready  ## every benchmark, and the tables of benchmarks/README.md
	$(BIN)/python benchmarks/loss_space.py
	$(BIN)/python benchmarks/render.py

format: .venv/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -c constraints.txt -e ".[dev]"
	touch $@

clean:
	rm -rf .venv build dist

PYTHON ?= python3
BIN := .venv/bin
JOBS ?= 2

.PHONY: demo test test-slow check bench theory ground-truth real-problems safety-dial multiplier-rules torture clean

demo: .venv/run
	$(BIN)/apdo train apdo point-gather --preset demo

test: .venv/test .venv/browser
	$(BIN)/python -m pytest -n 2

test-slow: .venv/test
	$(BIN)/python -m pytest -m slow

check: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

bench: .venv/run
	$(BIN)/python -m benchmarks.speed
	$(BIN)/python -m benchmarks.exact
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[gymnasium]'
	$(BIN)/python -m benchmarks.bridge

theory: .venv/run
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m benchmarks.theory

# Every algorithm against the exact optimum; the tables of docs/ground-truth.md.
ground-truth: .venv/run
	$(BIN)/python -m benchmarks.ground_truth

# Learned policies against hand-written controllers; docs/wind-turbine.md and docs/queueing.md.
real-problems: .venv/run
	$(BIN)/python -m benchmarks.real_problems

# What the safety dial trades, and that it is forgotten in the end; picture and table of docs/safety-dial.md.
safety-dial: .venv/run
	$(BIN)/python -m benchmarks.safety_dial

# The curve of each multiplier rule on problems with a known λ*; docs/multiplier-rules.md.
multiplier-rules: .venv/run
	$(BIN)/python -m benchmarks.multiplier_rules

# Kills, damaged files, full disks, random command lines, long runs; results in docs/reliability.md.
torture: .venv/run
	JAX_PLATFORMS=cpu $(BIN)/python -m benchmarks.torture --jobs $(JOBS)

clean:
	rm -rf .venv

# One virtual environment, in three fillings; each is made again when the dependencies change.
.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "apdo needs Python 3.11 or newer; say which: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv .venv

.venv/run: .venv/bin/python pyproject.toml
	$(BIN)/pip install --quiet --disable-pip-version-check --editable .
	@touch $@

.venv/test: .venv/run
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[test]'
	@touch $@

# The report page is tested in a real browser; without one, those tests say why they are skipped.
.venv/browser: .venv/test
	@command -v chromium >/dev/null || \
	  { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -qq -y chromium >/dev/null; } || \
	  echo "no Chromium here, and it cannot be installed without root: its tests will be skipped"
	@touch $@

.venv/dev: .venv/test
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

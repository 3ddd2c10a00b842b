PYTHON ?= python3
PYTHON311 ?= python3.11
TORCH ?= torch
BIN := .venv/bin
JOBS ?= 2

.PHONY: demo test test-slow test-mujoco test-safety-gymnasium test-bullet test-stable-baselines3 test-ray check bench theory \
  ground-truth real-problems benchmarks-safety dual-estimation sample-efficiency safety-dial multiplier-rules transfer \
  torture torture-sweeps clean

# The same number of samples for each; what is there already is not trained again.
demo: .venv/run
	$(BIN)/apdo train pdo point-gather --preset demo --out runs/demo/pdo --resume
	$(BIN)/apdo train cpo point-gather --preset demo --out runs/demo/cpo --resume
	$(BIN)/apdo train apdo point-gather --preset demo --out runs/demo/apdo --resume
	$(BIN)/apdo plot runs/demo/pdo runs/demo/cpo runs/demo/apdo --out runs/demo/curves.png --title "150,000 samples each"

test: .venv/test .venv/browser
	$(BIN)/python -m pytest -n 2

test-slow: .venv/test
	$(BIN)/python -m pytest -m slow

# The velocity tasks and users' own models; MuJoCo and what it brings take 120 MB, so that `make test` does without.
test-mujoco: .venv/mujoco
	$(BIN)/python -m pytest tests/envs/test_mujoco_package.py tests/envs/test_mujoco_threads.py tests/envs/test_velocity.py \
	  tests/test_docs.py

# Safety-Gymnasium's tasks, and the bridge with the old Gymnasium that they need.
test-safety-gymnasium: .venv-safety/ready
	.venv-safety/bin/python -m pytest tests/safety/test_safety_gymnasium.py tests/safety/test_safety_benchmark.py \
	  tests/safety/test_point_steps.py tests/safety/test_velocity_steps.py \
	  tests/envs/test_safety.py tests/envs/test_host.py

# The JAX-native environments before stable-baselines3's checker.
test-stable-baselines3: .venv-sb3/ready
	.venv-sb3/bin/python -m pytest tests/envs/test_native.py -k stable_baselines

# Bullet-Safety-Gym's, with a new one.
test-bullet: .venv-bullet/ready
	.venv-bullet/bin/python -m pytest tests/safety/test_bullet.py

# Sweeps and environments on Ray with nodes that die, sweeps on Slurm, and the mirrors of metrics with the packages that they are for.
test-ray: .venv-ray/ready
	.venv-ray/bin/python -m pytest tests/ray tests/experiment/test_callbacks.py

check: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

bench: .venv/run
	$(BIN)/python -m benchmarks.speed
	$(BIN)/python -m benchmarks.second_start
	$(BIN)/python -m benchmarks.exact
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[gymnasium]'
	$(BIN)/python -m benchmarks.bridge

# What the off-policy estimate is made of, and how near it comes; docs/dual-estimation.md.
dual-estimation: .venv/run
	$(BIN)/python -m benchmarks.dual_estimation

# Samples to a target, by arm; docs/sample-efficiency.md.
sample-efficiency: .venv/run
	$(BIN)/python -m benchmarks.sample_efficiency

theory: .venv/run
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m benchmarks.theory

# Every algorithm against the exact optimum; the tables of docs/ground-truth.md.
ground-truth: .venv/run
	$(BIN)/python -m benchmarks.ground_truth

# Learned policies against hand-written controllers; docs/wind-turbine.md and docs/queueing.md.
real-problems: .venv/run
	$(BIN)/python -m benchmarks.real_problems

# APDO, PDO, CPO and TRPO on Safety-Gymnasium's tasks; the tables and figures of docs/benchmarks.md.
benchmarks-safety: .venv-safety/ready
	.venv-safety/bin/python -m benchmarks.safety --jobs $(JOBS)

# What the safety dial trades, and that it is forgotten in the end; picture and table of docs/safety-dial.md.
safety-dial: .venv/run
	$(BIN)/python -m benchmarks.safety_dial

# The curve of each multiplier rule on problems with a known λ*; docs/multiplier-rules.md.
multiplier-rules: .venv/run
	$(BIN)/python -m benchmarks.multiplier_rules

# Problems that nobody tuned for, given their limits and nothing else; docs/transfer.md.
transfer: .venv/run
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[mujoco]'
	$(BIN)/python -m benchmarks.transfer --jobs $(JOBS)

# Kills, damaged files, full disks, random command lines, long runs; results in docs/reliability.md.
torture: .venv/run
	JAX_PLATFORMS=cpu $(BIN)/python -m benchmarks.torture --jobs $(JOBS)

# Sweeps whose drivers, processes and Ray nodes are killed at random.
torture-sweeps: .venv-ray/ready
	.venv-ray/bin/python -m benchmarks.torture.sweeps --jobs $(JOBS)

clean:
	rm -rf .venv .venv-safety .venv-bullet .venv-sb3 .venv-ray

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

.venv/mujoco: .venv/test
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[test,mujoco]'
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

# Environments of their own: these packages need Python 3.11, and pip is told to overlook pins that no longer fit.
.venv-safety/ready: pyproject.toml
	@$(PYTHON311) --version >/dev/null || { echo "Safety-Gymnasium needs Python 3.11: make PYTHON311=... $@"; exit 1; }
	$(PYTHON311) -m venv .venv-safety
	.venv-safety/bin/pip install --quiet --disable-pip-version-check --editable '.[safety-gymnasium-pip]' pytest beartype
	.venv-safety/bin/pip install --quiet --disable-pip-version-check --no-deps safety-gymnasium==1.0.0 gymnasium-robotics==1.2.2
	@touch $@

.venv-bullet/ready: pyproject.toml
	@$(PYTHON311) --version >/dev/null || { echo "PyBullet has wheels for Python 3.11: make PYTHON311=... $@"; exit 1; }
	$(PYTHON311) -m venv .venv-bullet
	.venv-bullet/bin/pip install --quiet --disable-pip-version-check --editable '.[gymnasium]' pybullet pytest beartype
	.venv-bullet/bin/pip install --quiet --disable-pip-version-check --no-deps bullet-safety-gym==1.4.0
	@touch $@

.venv-ray/ready: pyproject.toml
	$(PYTHON) -m venv .venv-ray
	.venv-ray/bin/pip install --quiet --disable-pip-version-check --editable '.[ray,slurm,tensorboard,wandb,gymnasium]' pytest beartype
	@touch $@

.venv-sb3/ready: pyproject.toml
	$(PYTHON) -m venv .venv-sb3
	.venv-sb3/bin/pip install --quiet --disable-pip-version-check '$(TORCH)' stable-baselines3 pytest beartype --editable '.[gymnasium]'
	@touch $@

PYTHON ?= python3
PYTHON311 ?= python3.11
PYTHONS ?= python3.11 python3.12 python3.13
MUJOCOS ?= 3.3.0 3.17.0
ISAS ?= SSE4_2 AVX2 own
TORCH ?= torch
BIN := .venv/bin
JOBS ?= 2
# Each worker begins with half of the tests in their order, so that few files are in both and compiled in both.
PYTEST = -m pytest -n 2 --dist worksteal

.PHONY: demo test test-slow test-optimised test-isa test-random test-pythons test-all test-mujoco test-mujoco-versions test-safety-gymnasium test-bullet test-stable-baselines3 test-ray test-wheel check docs test-docs bench bench-peers theory \
  ground-truth real-problems benchmarks-safety comparison dual-estimation sample-efficiency safety-dial multiplier-rules robots transfer \
  algorithm-pages torture torture-sweeps ray-speed clean

# The same number of samples for each; what is there already is not trained again.
demo: .venv/run
	$(BIN)/apdo train pdo point-gather --preset demo --out runs/demo/pdo --resume
	$(BIN)/apdo train cpo point-gather --preset demo --out runs/demo/cpo --resume
	$(BIN)/apdo train apdo point-gather --preset demo --out runs/demo/apdo --resume
	$(BIN)/apdo plot runs/demo/pdo runs/demo/cpo runs/demo/apdo --out runs/demo/curves.png --title "150,000 samples each"

# What users run; unless a level is given the tests ask the compiler to be quick instead.
OPTIMISED := --xla_backend_optimization_level=3

# Everything but learning outcomes. What XLA compiled is kept in build/jax for the next time.
test: .venv/test .venv/browser
	$(BIN)/python $(PYTEST)

test-slow: .venv/test
	XLA_FLAGS=$(OPTIMISED) $(BIN)/python $(PYTEST) -m slow

# As users run it, which takes three times as long.
test-optimised: .venv/test .venv/browser
	XLA_FLAGS=$(OPTIMISED) $(BIN)/python $(PYTEST)

# With less than the machine's instructions sums are added in another order: a test's tolerance must have room for that.
test-isa: .venv/test .venv/browser
	@failed=0; for isa in $(ISAS); do \
	  flags="$$XLA_FLAGS"; [ $$isa = own ] || flags="$$flags --xla_cpu_max_isa=$$isa"; \
	  echo "== instructions: $$isa"; XLA_FLAGS="$$flags" $(BIN)/python $(PYTEST) || failed=1; \
	done; exit $$failed

# Twice, each with a seed of its own; modules are shuffled, and the tests within each.
test-random: .venv/test .venv/browser
	@failed=0; for i in 1 2; do \
	  seed=$$(od -An -N3 -tu4 /dev/urandom | tr -d ' '); \
	  echo "== --random-order-seed=$$seed"; $(BIN)/python $(PYTEST) --random-order-seed=$$seed || failed=1; \
	done; exit $$failed

# On each Python that is there, in an environment of its own.
test-pythons:
	@tried=0; failed=0; for python in $(PYTHONS); do \
	  $$python --version >/dev/null 2>&1 || { echo "$$python is not here, and not tried"; continue; }; \
	  name=build/$$(basename $$python); echo "== $$python"; \
	  $$python -m venv $$name && \
	  $$name/bin/pip install --quiet --disable-pip-version-check --editable '.[test]' && \
	  $$name/bin/python $(PYTEST) || failed=1; \
	  tried=$$((tried + 1)); \
	done; [ $$tried -gt 0 ] && exit $$failed

# Every target that tests something, once a week; what came of each is in results/tests/last.md, to be committed.
test-all: .venv/dev
	$(BIN)/python -m tests.targets

# The velocity tasks and users' own models; MuJoCo and what it brings take 120 MB, so that `make test` does without.
MUJOCO_TESTS := tests/envs/test_mujoco_package.py tests/envs/test_mujoco_threads.py tests/tasks/test_velocity.py tests/test_safety_report.py tests/test_docs.py
test-mujoco: .venv/mujoco
	$(BIN)/python -m pytest $(MUJOCO_TESTS)

# The same with the oldest and the newest release that `pyproject.toml` allows.
test-mujoco-versions:
	@failed=0; for version in $(MUJOCOS); do \
	  name=build/mujoco-$$version; echo "== MuJoCo $$version"; \
	  $(PYTHON) -m venv $$name && \
	  $$name/bin/pip install --quiet --disable-pip-version-check --editable '.[test,mujoco]' mujoco==$$version && \
	  $$name/bin/python -m pytest $(MUJOCO_TESTS) || failed=1; \
	done; exit $$failed

# Safety-Gymnasium's tasks, and the bridge with the old Gymnasium that they need.
test-safety-gymnasium: .venv-safety/ready
	.venv-safety/bin/python -m pytest tests/safety/test_safety_gymnasium.py \
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

# The wheel in a bare environment of each Python that is there: nothing of the checkout is in reach.
test-wheel:
	rm -rf build/wheel build/lib build/wheel-*
	$(PYTHON) -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir build/wheel .
	@tried=0; for python in $(PYTHONS); do \
	  $$python --version >/dev/null 2>&1 || { echo "$$python is not here, and not tried"; continue; }; \
	  name=build/wheel-$$(basename $$python); \
	  $$python -m venv $$name && \
	  $$name/bin/pip install --quiet --disable-pip-version-check build/wheel/*.whl && \
	  (cd $$name && bin/python -I ../../tests/wheel_check.py bin/apdo) || exit 1; \
	  rm -rf $$name; tried=$$((tried + 1)); \
	done; [ $$tried -gt 0 ]

check: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

# The documentation site, in build/docs/index.html; a warning is an error.
docs: .venv/docs
	$(BIN)/python -m sphinx -W --keep-going -q -b html -d build/doctrees docs build/docs
	@echo "the site: build/docs/index.html"

# The built site in a real browser: pages on a desktop and a phone, links, search, the console.
test-docs: docs .venv/browser
	$(BIN)/python -m pytest tests/test_site.py

bench: .venv/run
	$(BIN)/python -m benchmarks.speed
	$(BIN)/python -m benchmarks.second_start
	$(BIN)/python -m benchmarks.exact
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[gymnasium]'
	$(BIN)/python -m benchmarks.bridge

# Next to OmniSafe, FSRL and stable-baselines3, for a quarter of an hour; nothing else may use the cores. docs/performance.md.
# A peer that cannot be installed is left out.
bench-peers: .venv/mujoco
	-$(MAKE) .venv-omnisafe/ready
	-$(MAKE) .venv-fsrl/ready
	-$(MAKE) .venv-sb3-safety/ready
	$(BIN)/python -m benchmarks.peers_speed --again

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

# Names, options and metrics in docs/algorithms.md and docs/algorithms/, as the code has them.
algorithm-pages: .venv/run
	$(BIN)/python -m benchmarks.algorithm_pages

# Learned policies against hand-written controllers; docs/wind-turbine.md and docs/queueing.md.
real-problems: .venv/run
	$(BIN)/python -m benchmarks.real_problems

# The field's benchmark at full length; the tables and pictures of docs/benchmarks.md. What was stopped goes on.
benchmarks-safety: .venv/mujoco
	$(BIN)/python -m benchmarks.safety --jobs $(JOBS)

# Every algorithm on three tasks with one set of defaults; tables and pictures of docs/comparison.md. What was stopped goes on.
comparison: .venv/mujoco
	$(BIN)/python -m benchmarks.comparison --jobs $(JOBS)

# What the safety dial trades, and that it is forgotten in the end; picture and table of docs/safety-dial.md.
safety-dial: .venv/run
	$(BIN)/python -m benchmarks.safety_dial

# The curve of each multiplier rule on problems with a known λ*; docs/multiplier-rules.md.
multiplier-rules: .venv/run
	$(BIN)/python -m benchmarks.multiplier_rules

# Samples to a policy within the limit on long tasks, off-policy and on-policy; the table of docs/sample-efficiency.md.
robots: .venv/mujoco
	$(BIN)/python -m benchmarks.robots

# Problems that nobody tuned for, given their limits and nothing else; docs/transfer.md.
transfer: .venv/run
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[mujoco]'
	$(BIN)/python -m benchmarks.transfer --jobs $(JOBS)

# Kills, damaged files, full disks, random command lines, long runs; results in docs/reliability.md.
torture: .venv/run
	JAX_PLATFORMS=cpu $(BIN)/python -m benchmarks.torture --jobs $(JOBS)

# A sweep of 40 short runs on Ray against one in processes, for some minutes; nothing else may use the cores.
ray-speed: .venv-ray/ready
	.venv-ray/bin/python -m benchmarks.ray_speed

# Sweeps whose drivers, processes and Ray nodes are killed at random.
torture-sweeps: .venv-ray/ready
	.venv-ray/bin/python -m benchmarks.torture.sweeps --jobs $(JOBS)

clean:
	rm -rf .venv .venv-safety .venv-bullet .venv-sb3 .venv-ray .venv-omnisafe .venv-fsrl .venv-sb3-safety build/jax

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

.venv/docs: .venv/run
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[docs]'
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

# Peers to be timed, each with Safety-Gymnasium as above, a PyTorch and its own further needs; pins are overlooked too.
PEER_TORCH ?= torch==2.13.0
define peer
	@$(PYTHON311) --version >/dev/null || { echo "Safety-Gymnasium needs Python 3.11: make PYTHON311=... $@"; exit 1; }
	$(PYTHON311) -m venv $(@D)
	$(@D)/bin/pip install --quiet --disable-pip-version-check --editable '.[safety-gymnasium-pip]' '$(PEER_TORCH)' $(1)
	$(@D)/bin/pip install --quiet --disable-pip-version-check --no-deps safety-gymnasium==1.0.0 gymnasium-robotics==1.2.2 $(2)
	@touch $@
endef

.venv-omnisafe/ready: pyproject.toml
	$(call peer,tensorboard wandb moviepy typer seaborn pandas gdown,omnisafe==0.5.0)

.venv-fsrl/ready: pyproject.toml
	$(call peer,tensorboard wandb numba h5py packaging tqdm prettytable pyrallis==0.3.1,fast-safe-rl==0.1.0 tianshou==0.5.0)

.venv-sb3-safety/ready: pyproject.toml
	$(call peer,pandas cloudpickle,stable-baselines3==2.3.2)

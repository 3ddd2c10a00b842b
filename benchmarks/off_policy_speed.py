"""Gradient steps per second of sac-lag's learner, compared with stable-baselines3's SAC on the same machine.

    python -m benchmarks.off_policy_speed                                    ours alone
    python -m benchmarks.off_policy_speed --sb3 .venv-sb3/bin/python         and theirs, in a process of its own

The problem has HalfCheetah's shape: 17 numbers in an observation, 6 in an action. Networks are 256 × 256 with ReLU,
minibatches 256. Both learn from a filled buffer without an environment. Theirs has two critics. Ours has two for the
reward and `--costs` for the cost, so that its step is so much more work. Several learners share their kernels
(`--learners`). Each figure is one JSON line with the median and the best of several repetitions after compilation.
Nothing else may use the cores. PyTorch's threads wait by spinning, as by default: without spinning they are half as
fast.
"""

import argparse
import dataclasses
import json
import statistics
import subprocess

import jax
import jax.numpy as jnp
from jax import random

from apdo.core import replay
from apdo.core.data import Transition
from apdo.off_policy import sac, sac_online
from apdo.off_policy.units import empty_buffer
from apdo.problem import Problem
from benchmarks.speed import report, timed

SEEN, DONE, ROWS = 17, 6, 20_000
THEIRS = """
import json, statistics, sys, time
import gymnasium, numpy as np, torch
from stable_baselines3 import SAC

class Blank(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, ({seen},), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, ({done},), np.float32)
    def reset(self, seed=None, options=None):
        return self.observation_space.sample(), {{}}
    def step(self, action):
        return self.observation_space.sample(), float(action[0]), False, False, {{}}

torch.set_num_threads({threads})
shape = dict(net_arch=[256, 256])
model = SAC("MlpPolicy", Blank(), batch_size=256, policy_kwargs=shape, learning_starts={rows}, buffer_size={rows})
model.learn(2000)
seconds = []
for _ in range({repetitions} + 1):
    began = time.perf_counter()
    model.train(gradient_steps={steps}, batch_size=256)
    seconds.append((time.perf_counter() - began) / {steps})
print(json.dumps({{"seconds": seconds[1:], "torch": torch.__version__}}))
"""


def filled(problem: Problem, rows: int) -> replay.Replay:
    """A buffer of random transitions."""
    keys = random.split(random.key(0), 5)
    batch = Transition(
        observation=random.normal(keys[0], (rows, SEEN)),
        action=random.uniform(keys[1], (rows, DONE), minval=-1.0),
        reward=random.normal(keys[2], (rows,)),
        cost=random.uniform(keys[3], (rows, 1)),
        next_observation=random.normal(keys[4], (rows, SEEN)),
        terminated=jnp.zeros(rows, dtype=bool),
        truncated=jnp.zeros(rows, dtype=bool),
        step=jnp.arange(rows, dtype=jnp.int32) % problem.horizon,
    )
    return replay.insert(empty_buffer(problem, rows), batch)


def ours(costs: int, learners: int, iterations: int, repetitions: int) -> float:
    """Our gradient steps per second, over all learners."""
    problem = Problem(
        observation_size=SEEN,
        action_size=DONE,
        batch=ROWS,
        limits=(25.0,),
        discount=0.99,
        cost_discount=1.0,
        horizon=1000,
        truncates=True,
    )
    config = dataclasses.replace(sac_online.ONLINE, costs=costs, dual_rate=0.0)
    buffer = filled(problem, ROWS)
    state = jax.vmap(lambda key: sac.start(config, problem, key))(random.split(random.key(1), learners))

    def learn(state: sac.State, buffer: replay.Replay) -> sac.State:
        one = lambda own: sac.learn(config, problem, own, buffer, jnp.asarray(iterations))  # noqa: E731
        if learners == 1:
            alone = one(jax.tree.map(lambda leaf: leaf[0], state))
            return jax.tree.map(lambda leaf: leaf[None], alone)
        return jax.vmap(one)(state)

    compiled = jax.jit(learn)
    jax.block_until_ready(compiled(state, buffer))
    seconds, _ = timed(compiled, state, buffer, repetitions=repetitions)
    each = [learners * iterations / s for s in seconds]
    report("sac-lag gradient steps", statistics.median(each), "1/s", best=max(each), costs=costs, learners=learners)
    return statistics.median(each)


def theirs(python: str, threads: int, iterations: int, repetitions: int) -> float:
    """The gradient steps per second of stable-baselines3."""
    code = THEIRS.format(seen=SEEN, done=DONE, rows=ROWS, threads=threads, steps=iterations, repetitions=repetitions)
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    said = json.loads(done.stdout.strip().splitlines()[-1])
    each = [1.0 / s for s in said["seconds"]]
    report("stable-baselines3 SAC gradient steps", statistics.median(each), "1/s", best=max(each), torch=said["torch"])
    return statistics.median(each)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--costs", type=int, nargs="*", default=[4, 2])
    parser.add_argument("--learners", type=int, nargs="*", default=[1])
    parser.add_argument("--iterations", type=int, default=200)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--sb3", default="", help="a Python with stable-baselines3")
    parser.add_argument("--threads", type=int, default=2, help="threads of theirs")
    given = parser.parse_args()
    found = [ours(c, n, given.iterations, given.repetitions) for c in given.costs for n in given.learners]
    if given.sb3:
        other = theirs(given.sb3, given.threads, given.iterations, given.repetitions)
        for costs, own in zip(given.costs, found, strict=False):
            report("sac-lag against stable-baselines3, steps per second", own / other, "times", costs=costs)


if __name__ == "__main__":
    main()

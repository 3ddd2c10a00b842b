"""FSRL's and OmniSafe's algorithms, with their own defaults, on the problems of benchmarks.transfer.

    python -m benchmarks.peers_transfer --only 'pendulum/fsrl-.*' --seeds 0     a part: PROBLEM/ALGORITHM as a pattern
    python -m benchmarks.peers_transfer --only 'point-gather-0.2/.*'            docs/comparison.md: all algorithms
    python -m benchmarks.peers_transfer --samples 20000 --out /tmp/try          a short trial

They support continuous actions and one cost, and constrain the total of an episode. They are given the limit and the
number of samples, and otherwise use their defaults. There are two exceptions. FSRL stops as soon as a return of 450 is
reached, which means nothing here. OmniSafe asks for 16 threads.

FSRL ends with the first batch of 20 episodes that reaches the number of samples, and all of these are one of its
epochs. Its own epochs of 10,000 samples end with a whole batch each, which would double the samples if episodes are
long. OmniSafe leaves out the last epoch if it would not be whole: 240,000 samples of 250,000. Both play the 1,000
episodes with the policy as it was trained, which is stochastic like ours. The return of its mode in 100 episodes is
filed too. Results go to results/transfer/peers. A run that breaks down is filed as failed.

Both packages live in one environment of their own, with Python 3.11, in spite of the old versions that they pin:

    pip install torch==2.13.0+cpu 'numpy<2.3' gymnasium==1.4.0 jax==0.10.2 tensorboard numba==0.68.1 h5py packaging \\
        pyyaml rich typer tqdm moviepy -e '.[mujoco]'
    pip install --no-deps fast-safe-rl==0.1.0 tianshou==0.5.0 omnisafe==0.5.0

Packages that they import for other purposes (loggers, plots, other environments) are replaced by stubs if absent.
"""

import argparse
import dataclasses
import datetime
import functools
import importlib
import importlib.util
import json
import os
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from importlib import metadata
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any
from unittest import mock

import gymnasium
import numpy as np

from apdo.envs import expressions
from apdo.options import override
from benchmarks import transfer, transfer_problems
from benchmarks.transfer import EPISODES, FRESH, RESULTS, Job
from benchmarks.transfer_problems import CASES, COSTS, REWARDS, Case

PROBLEMS = [
    name
    for name, case in CASES.items()
    if case.environment
    in ("point-gather", "navigation", "Pendulum-v1", "MountainCarContinuous-v0", "halfcheetah-velocity")
]
COPIES = 10
"""The number of environments side by side in FSRL, as in its own example."""
PLAYED = 50
"""The number of environments side by side in evaluations."""
MODE_EPISODES = 100
BROKEN = (ValueError, RuntimeError, AssertionError, ArithmeticError)
"""The errors that are raised when a peer's numbers are no longer finite."""
FSRL = {
    "ppo-lag": "PPOLagAgent",
    "trpo-lag": "TRPOLagAgent",
    "cpo": "CPOAgent",
    "focops": "FOCOPSAgent",
    "sac-lag": "SACLagAgent",
}
"""The agents of the algorithms that FSRL and we have."""
WITHOUT_MULTIPLIER = {"cpo": "CPO", "pcpo": "PCPO", "p3o": "P3O", "ipo": "IPO", "crpo": "OnCRPO"}
OMNISAFE = {
    "ppo-lag": "PPOLag",
    "trpo-lag": "TRPOLag",
    "cppo-pid": "CPPOPID",
    "trpo-pid": "TRPOPID",
    "rcpo": "RCPO",
    "focops": "FOCOPS",
    "cup": "CUP",
} | WITHOUT_MULTIPLIER
"""The agents of the on-policy algorithms that OmniSafe and we have, without wrappers."""
CHUNK = 10_000
"""The number of samples whose episodes make one point of a training curve."""
ABSENT = ("wandb", "safety_gymnasium", "seaborn", "pandas", "gdown", "bullet_safety_gym", "pyrallis")
PACKAGES = ("torch", "numpy", "gymnasium", "mujoco", "jax", "fast-safe-rl", "tianshou", "omnisafe")

Act = Callable[[np.ndarray, bool], np.ndarray]
"""(observations, whether to take the mode) ↦ actions of the environment."""


@dataclasses.dataclass
class Book:
    """Return and cost of every episode that ended, and the samples of all environments until then."""

    samples: int = 0
    ends: list[tuple[int, float, float]] = dataclasses.field(default_factory=list)

    def curve(self) -> dict[str, np.ndarray]:
        """Means over the episodes that ended within each chunk of samples."""
        ends = np.asarray(self.ends)
        chunks = ((ends[:, 0] - 1) // CHUNK).astype(int)
        there = np.unique(chunks)
        mean = np.array([ends[chunks == chunk, 1:].mean(axis=0) for chunk in there])
        samples = np.minimum((there + 1) * CHUNK, self.samples)
        return {"samples": samples, "return": mean[:, 0], "costs": mean[:, 1:]}


class Booked(gymnasium.Wrapper):
    """Puts the cost of a step into `info["cost"]`, seeds the first reset, and records episodes in the book."""

    def __init__(self, env: Any, book: Book, cost: Callable[..., float], seed: int, units: float = 1.0) -> None:
        super().__init__(env)
        self.book, self.cost, self.units = book, cost, units
        self._seed: int | None = seed
        self._before: Any = None
        self._totals = np.zeros(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode, the first one with this wrapper's own seed."""
        self._before, info = self.env.reset(seed=self._seed if seed is None else seed, options=options)
        self._seed, self._totals = None, np.zeros(2)
        return self._before, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take one step."""
        after, reward, terminated, truncated, info = self.env.step(action)
        reward, cost = self.units * float(reward), self.cost(self._before, action, after, info)
        self._before = after
        self.book.samples += 1
        self._totals += (reward, cost)
        if terminated or truncated:
            self.book.ends.append((self.book.samples, float(self._totals[0]), float(self._totals[1])))
        return after, reward, terminated, truncated, info | {"cost": cost}


def environment(case: Case, book: Book, seed: int) -> gymnasium.Env[Any, Any]:
    """One copy of a problem's environment."""
    name, task = transfer_problems.task_of(case)
    if name in ("point-gather", "navigation"):
        factor, units = (1.0, 1.0) if case.units_of is None else (COSTS, REWARDS)
        return Booked(native(name), book, lambda *step: factor * step[3]["cost"], seed, units)
    costs, _ = override(task(), case.options).own_costs()
    return Booked(task.make(), book, _cost(costs[0]), seed)


def native(name: str) -> gymnasium.Env[Any, Any]:
    """A JAX environment with one compiled call for each step; bit for bit the same as `NativeEnv`."""
    from apdo.envs.native import NativeEnv

    reset_all, step_all = _compiled(name)

    class Compiled(NativeEnv):
        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:  # noqa: ARG002
            gymnasium.Env.reset(self, seed=seed)
            self._state, observation, self._key = reset_all(np.int32(self.np_random.integers(2**31)))
            self._steps = 0
            return np.asarray(observation), {}

        def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
            given = np.asarray(action, dtype=np.float32).reshape(self.task.action_size)
            self._state, told = step_all(self._state, given, self._key, np.int32(self._steps))
            self._steps += 1
            *_, reward, cost, over = (told := np.asarray(told))
            at_horizon = self._steps >= self.task.horizon
            terminated = bool(over) or (at_horizon and self.task.horizon_terminates)
            return told[:-3], float(reward), terminated, at_horizon and not terminated, {"cost": float(cost)}

    return Compiled(name)


@functools.cache
def _compiled(name: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The reset and the step of a JAX environment; all copies share them."""
    import jax
    import jax.numpy as jnp

    from apdo import envs

    task = envs.find(name)()

    def reset(number: Any) -> Any:
        episode, steps = jax.random.split(jax.random.key(number))
        state = task.reset(episode)
        return state, task.observe(state), jax.random.key_data(steps)

    def step(state: Any, action: Any, key: Any, steps: Any) -> Any:
        outcome = task.step(state, action, jax.random.fold_in(jax.random.wrap_key_data(key), steps))
        numbers = jnp.stack([outcome.reward, outcome.cost.sum(), outcome.terminated])
        return outcome.state, jnp.concatenate([outcome.observation, numbers])

    return jax.jit(reset), jax.jit(step)


def _cost(given: Any) -> Callable[..., float]:
    """A cost of one step, (observation, action, next observation, info) ↦ number, from a function or an expression."""
    if not isinstance(given, str):
        return lambda *step: float(given(*step))
    parsed = expressions.parse(given)

    def cost(before: Any, action: Any, after: Any, info: dict[str, Any]) -> float:  # noqa: ARG001
        data = {"obs": before, "action": action, "next_obs": after}
        return float(parsed({name: np.atleast_2d(np.asarray(value)) for name, value in data.items()})[0])

    return cost


def stand_in() -> None:
    """Make packages importable that are absent and not needed here."""
    for name in ABSENT:
        if name not in sys.modules and importlib.util.find_spec(name) is None:
            sys.modules[name] = mock.MagicMock()
            sys.modules[name].__spec__ = ModuleSpec(name, None)
    numba = loaded("numba")
    numba.njit = functools.partial(numba.njit, cache=True)  # compiled once, not once a run


def loaded(name: str) -> Any:
    """Import a module that only the peers' environment has."""
    return importlib.import_module(name)


def limit_of(case: Case) -> float:
    """The only limit of a case."""
    assert case.limits is not None
    [limit] = case.limits
    return limit


def fsrl(case: Case, algorithm: str, seed: int, samples: int, book: Book) -> tuple[Act, dict[str, Any]]:
    """Train one of FSRL's agents."""
    torch, tianshou = loaded("torch"), loaded("tianshou")
    kind = getattr(loaded("fsrl.agent"), FSRL[algorithm])
    limit = limit_of(case)
    threads = torch.get_num_threads()
    agent = kind(environment(case, Book(), seed), cost_limit=limit, seed=seed, thread=threads)
    vector = tianshou.env.DummyVectorEnv
    train = vector([lambda i=i: environment(case, book, 1000 * seed + i) for i in range(COPIES)])
    agent.learn(train, epoch=1, step_per_epoch=samples, reward_threshold=np.inf, verbose=False, show_progress=False)

    def act(observations: np.ndarray, mode: bool) -> np.ndarray:
        agent.policy.train(not mode)
        with torch.no_grad():
            chosen = agent.policy(tianshou.data.Batch(obs=observations, info={})).act
        return np.asarray(agent.policy.map_action(np.asarray(chosen)))

    return act, {"agent": kind.__name__, "cost_limit": limit, "step_per_epoch": samples, "copies": COPIES}


def omnisafe(case: Case, algorithm: str, seed: int, samples: int, book: Book) -> tuple[Act, dict[str, Any]]:
    """Train one of OmniSafe's agents."""
    torch = loaded("torch")
    loaded("omnisafe.envs.core").env_register(_omnisafe_environment(case, book, seed))
    name = OMNISAFE[algorithm]
    where = "algo_cfgs" if algorithm in WITHOUT_MULTIPLIER else "lagrange_cfgs"
    with tempfile.TemporaryDirectory() as folder:
        given = {
            "seed": seed,
            "train_cfgs": {"total_steps": samples, "torch_threads": torch.get_num_threads()},
            "logger_cfgs": {"use_wandb": False, "use_tensorboard": False, "log_dir": folder},
            where: {"cost_limit": limit_of(case)},
        }
        wrapped = loaded("omnisafe").Agent(name, "Transfer-v0", custom_cfgs=given)
        wrapped.agent.learn()
    agent = wrapped.agent
    normaliser = agent._env.save().get("obs_normalizer")
    space = environment(case, Book(), 0).action_space
    assert isinstance(space, gymnasium.spaces.Box)

    def act(observations: np.ndarray, mode: bool) -> np.ndarray:
        with torch.no_grad():
            seen = torch.as_tensor(observations, dtype=torch.float32)
            if normaliser is not None:
                seen = torch.clamp((seen - normaliser.mean) / normaliser.std, -normaliser._clip, normaliser._clip)
            chosen = agent._actor_critic.actor.predict(seen, deterministic=mode).numpy()
        return space.low + (space.high - space.low) * (chosen + 1.0) / 2.0

    return act, _without_folder(json.loads(json.dumps(wrapped.cfgs.todict(), default=str)))


def _without_folder(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration without the temporary folder of the logs."""
    kept = {name: value for name, value in config.items() if name != "log_dir"}
    return {name: _without_folder(value) if isinstance(value, dict) else value for name, value in kept.items()}


def _omnisafe_environment(case: Case, book: Book, seed: int) -> type[Any]:
    """A problem in the form of OmniSafe's environments."""
    torch = loaded("torch")

    class Transfer(loaded("omnisafe.envs.core").CMDP):
        need_auto_reset_wrapper, need_time_limit_wrapper = True, False
        _support_envs = ["Transfer-v0"]  # noqa: RUF012
        _num_envs = 1

        def __init__(self, env_id: str, **kwargs: Any) -> None:  # noqa: ARG002
            super().__init__(env_id)
            self._env = environment(case, book, 1000 * seed)
            self._observation_space, self._action_space = self._env.observation_space, self._env.action_space
            self._metadata = {}

        def step(self, action: Any) -> Any:
            after, reward, terminated, truncated, info = self._env.step(action.detach().cpu().numpy())
            numbers = (reward, info["cost"], terminated, truncated)
            seen = torch.as_tensor(np.asarray(after), dtype=torch.float32)
            return seen, *(torch.as_tensor(number, dtype=torch.float32) for number in numbers), {}

        def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            observed, info = self._env.reset(seed=seed, options=options)
            return torch.as_tensor(np.asarray(observed), dtype=torch.float32), info

        def set_seed(self, seed: int) -> None:
            self.reset(seed=seed)

        @property
        def max_episode_steps(self) -> int:
            return case.horizon

        def render(self) -> None:
            return None

        def close(self) -> None:
            self._env.close()

    return Transfer


def played(case: Case, act: Act, seed: int, mode: bool, episodes: int = EPISODES) -> dict[str, Any]:
    """Return and cost over fresh episodes, the same number in each copy."""
    from apdo.experiment.evaluation import Estimate

    books = [Book() for _ in range(PLAYED)]
    copies = [environment(case, book, FRESH + 1000 * seed + i) for i, book in enumerate(books)]
    observations = np.stack([np.asarray(copy.reset()[0], dtype=np.float32) for copy in copies])
    quota = episodes // PLAYED
    while any(len(book.ends) < quota for book in books):
        actions = act(observations, mode)
        for i, copy in enumerate(copies):
            if len(books[i].ends) < quota:
                after, _, terminated, truncated, _ = copy.step(actions[i])
                observations[i] = copy.reset()[0] if terminated or truncated else after
    ends = np.array([book.ends for book in books])[..., 1:].reshape(-1, 2)
    if not np.isfinite(ends).all():
        raise FloatingPointError("returns or costs of the policy are not finite")
    earned, cost = (dataclasses.asdict(Estimate.of(values)) for values in ends.T)
    return {"return": earned, "costs": [cost], "total_costs": [cost]}


PEERS = {"fsrl": fsrl, "omnisafe": omnisafe}
ALGORITHMS = [f"{peer}-{algorithm}" for peer in PEERS for algorithm in ("ppo-lag", "trpo-lag", "cpo")]
COMPARED = "point-gather-0.2"
"""The problem of docs/comparison.md, on which peers run all that they share with us."""


def algorithms(problem: str) -> list[str]:
    """The peers' algorithms on a problem."""
    further = [f"fsrl-{name}" for name in FSRL] + [f"omnisafe-{name}" for name in OMNISAFE]
    return list(dict.fromkeys(ALGORITHMS + further)) if problem == COMPARED else ALGORITHMS


def train(job: Job, samples: int) -> dict[str, Any]:
    """The result of one seed of a peer, in the form of the study's own results."""
    torch = loaded("torch")
    stand_in()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    case, seed, book = CASES[job.case], job.seeds[0], Book()
    peer, _, algorithm = job.algorithm.partition("-")
    limits, config = np.asarray(case.limits), {}
    made = {
        "device": f"cpu, torch {torch.__version__}",
        "threads": torch.get_num_threads(),
        "versions": versions(),
        "commit": _commit(),
    }
    began = time.perf_counter()
    try:
        act, config = PEERS[peer](case, algorithm, seed, samples or case.samples, book)
        seconds = time.perf_counter() - began
        curve = book.curve()
        found = played(case, act, seed, mode=False) | {
            "mode": played(case, act, seed, mode=True, episodes=MODE_EPISODES),
            "samples": book.samples,
            "best_epoch": transfer.best_epoch(curve, limits, (transfer.WITHIN - 1.0) * limits),
            "curve": transfer.thinned(curve),
            "seconds": round(seconds, 1),
        }
    except BROKEN as failure:
        traceback.print_exc()
        found = {"failed": f"{type(failure).__name__}: {failure}", "samples": book.samples}
    found |= made | {"finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")}
    posed = {"limits": list(limits), "cost_names": ["cost"], "cost_discount": 1.0, "horizon": case.horizon}
    return {"posed": posed, "config": config, "seeds": {str(seed): found}}


def versions() -> dict[str, str]:
    """The versions of everything that a peer's result depends on."""
    there = {name: metadata.version(name) for name in PACKAGES if importlib.util.find_spec(_module(name)) is not None}
    return {"python": sys.version.split()[0]} | there


def _module(package: str) -> str:
    return {"fast-safe-rl": "fsrl"}.get(package, package)


def _commit() -> str:
    from apdo.experiment import records

    return records.commit()


def jobs(given: argparse.Namespace) -> list[Job]:
    """The seeds that are still missing."""
    found = []
    for problem in PROBLEMS:
        for algorithm in algorithms(problem):
            if given.only and not re.fullmatch(given.only, f"{problem}/{algorithm}"):
                continue
            whole = Job("peers", problem, algorithm, given.seeds)
            there = {} if given.again else transfer.read(transfer.path_of(whole, given.out)).get("seeds", {})
            found += [dataclasses.replace(whole, seeds=(seed,)) for seed in given.seeds if str(seed) not in there]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--only", help="a pattern for PROBLEM/ALGORITHM")
    parser.add_argument("--seeds", default=transfer.SEEDS, type=lambda text: tuple(map(int, text.split(","))))
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--again", action="store_true", help="also what is there already")
    parser.add_argument("--samples", type=int, default=0, help="of a run; 0: the problem's, for trials in --out")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--job", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.job:
        job = transfer.taken_up(given.job[0])
        Path(given.job[1]).write_text(json.dumps(train(job, given.samples)), encoding="utf-8")
        return
    if given.samples and given.out == RESULTS:
        parser.error("--samples is for trials: give a folder of their own with --out")
    given.passed_on = [f"--samples={given.samples}"]
    given.changes = []
    transfer.run_all(jobs(given), given)


if __name__ == "__main__":
    main()

"""One training that continues by one batch whenever it is told to; `benchmarks.peers_speed` runs it in each Python.

    python benchmarks/peers_speed_runs.py SOCKET '{"system": "fsrl", "task": "point-goal-1", "algorithm": "cpo", ...}'

Every system has its own defaults for networks, batch and learning, and is called as its users call it, without
TensorBoard and similar tools. Only the vectorisation of environments and the number of PyTorch's threads can be chosen.
After each batch the process sends a line with the batch's seconds and samples, and waits for the next "go". So
trainings can take turns on a machine without starting again. The time covers collecting and learning, from the "go" to
the beginning of the next batch.
"""

import functools
import importlib
import json
import os
import platform
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import metadata
from typing import Any

IDS = {"halfcheetah-velocity": "SafetyHalfCheetahVelocity{}-v1", "point-goal-1": "SafetyPointGoal1{}-v0"}
"""Safety-Gymnasium's ids. With "Gymnasium" in them, steps return five values and the cost is in `info`."""
LIMIT = 25.0
BATCHES = 1000
"""More batches than are ever asked for."""
PACKAGES = {
    "apdo": ("jax", "jaxlib", "numpy", "mujoco", "gymnasium"),
    "omnisafe": ("omnisafe", "torch", "numpy", "safety-gymnasium", "gymnasium", "mujoco"),
    "fsrl": ("fast-safe-rl", "tianshou", "torch", "numba", "numpy", "safety-gymnasium", "gymnasium", "mujoco"),
    "sb3": ("stable-baselines3", "torch", "numpy", "safety-gymnasium", "gymnasium", "mujoco"),
}

Given = dict[str, Any]


class Turns:
    """Called between two batches: sends the facts of the last one, and waits for the next "go"."""

    def __init__(self, address: str, about: Given) -> None:
        self._address, self._about = address, about
        self._line: Any = None
        self._began, self._samples = 0.0, 0

    def __call__(self, samples: int, **facts: object) -> None:
        """Report that so many samples have been learned from since the start."""
        ended = time.perf_counter()
        if self._line is None:
            link = socket.socket(socket.AF_UNIX)
            link.connect(self._address)
            self._line = link.makefile("rw")
            told = self._about | facts
        else:
            told = {"seconds": ended - self._began, "samples": samples - self._samples}
        self._line.write(json.dumps(told) + "\n")
        self._line.flush()
        if self._line.readline().strip() != "go":
            raise SystemExit
        self._samples, self._began = samples, time.perf_counter()


def apdo(given: Given, turn: Turns) -> None:
    """Our own training, on the library's own task."""
    jax, jnp = loaded("jax"), loaded("jax.numpy")
    hosted, loop = loaded("apdo.hosted"), loaded("apdo.loop")
    opening, settings = loaded("apdo.experiment.opening"), loaded("apdo.experiment.settings")
    experiment = settings.make_experiment(given["algorithm"], given["task"], {"batch": given["batch"]})
    training = opening.training_of(experiment)
    advance = hosted.Advance(training) if hosted.is_hosted(training) else loop.make_advance(training)
    state, batch = loop.start(training, [0]), training.problem.batch
    shape = {
        "batch": batch,
        "networks": list(experiment.describe()["algorithm_config"]["policy.hidden"]),
        "envs": training.environments,
    }
    for i in range(BATCHES):
        turn(i * batch, **shape)
        state = jax.block_until_ready(advance(state, jnp.int32(1))).state


def omnisafe(given: Given, turn: Turns) -> None:
    """OmniSafe's training: copies in processes of their own (`vector_env_nums`), or agents that share gradients."""
    safety = environments()
    if given.get("vector") == "sync":
        safety.vector.make = functools.partial(safety.vector.make, asynchronous=False)
    name = {"pdo": "TRPOLag", "cpo": "CPO"}[given["algorithm"]]
    train = {"torch_threads": given["threads"], "vector_env_nums": given["envs"], "parallel": given.get("parallel", 1)}
    with tempfile.TemporaryDirectory() as folder:
        options: Given = {
            "train_cfgs": train,
            "logger_cfgs": {"use_wandb": False, "use_tensorboard": False, "log_dir": folder},
            "lagrange_cfgs" if name == "TRPOLag" else "algo_cfgs": {"cost_limit": LIMIT},
        }
        if given.get("steps"):
            options.setdefault("algo_cfgs", {})["steps_per_epoch"] = given["steps"]
        wrapped = loaded("omnisafe").Agent(name, IDS[given["task"]].format(""), custom_cfgs=options)
        batch, networks = wrapped.cfgs.algo_cfgs.steps_per_epoch, wrapped.cfgs.model_cfgs.actor.hidden_sizes
        together = _in_step(functools.partial(turn, batch=batch, networks=list(networks)))
        adapter = wrapped.agent._env
        collect, done = adapter.rollout, iter(range(0, BATCHES * batch, batch))

        def rollout(**rest: Any) -> None:
            together(next(done))
            collect(**rest)

        adapter.rollout = rollout
        wrapped.agent.learn()


def _in_step(turn: Callable[[int], None]) -> Callable[[int], None]:
    """For several agents: the first one reports and waits, and the others wait for it."""
    together = loaded("torch").distributed
    if not together.is_initialized():
        return turn

    def both(samples: int) -> None:
        if together.get_rank() == 0:
            turn(samples)
        together.barrier()

    return both


def fsrl(given: Given, turn: Turns) -> None:
    """FSRL's training, with either kind of tianshou's vectorised environments; an epoch is one batch."""
    environments()
    gymnasium, kinds = loaded("gymnasium"), loaded("tianshou.env")
    logger = loaded("fsrl.utils").BaseLogger
    kind = getattr(loaded("fsrl.agent"), {"pdo": "TRPOLagAgent", "cpo": "CPOAgent"}[given["algorithm"]])
    vector = {"dummy": kinds.DummyVectorEnv, "subproc": kinds.SubprocVectorEnv, "shmem": kinds.ShmemVectorEnv}
    make = functools.partial(gymnasium.make, IDS[given["task"]].format("Gymnasium"))

    warm = False

    class Telling(logger):
        def write(self, step: int, *rest: Any, **others: Any) -> None:
            super().write(step, *rest, **others)
            if warm:
                turn(int(step))

    agent = kind(make(), logger=Telling(), cost_limit=LIMIT, thread=given["threads"])
    copies = vector[given["vector"]]([make for _ in range(given["envs"])])
    rest = {"reward_threshold": float("inf"), "verbose": False, "show_progress": False, "step_per_epoch": 1}
    agent.learn(copies, epoch=1, episode_per_collect=1, **rest)  # tianshou compiles its loops
    warm = True
    turn(0, batch=1000 * (given.get("episodes") or 20), networks=[128, 128], warm=True)
    size = {"episode_per_collect": given["episodes"]} if given.get("episodes") else {}
    agent.learn(copies, epoch=BATCHES, **rest, **size)


def sb3(given: Given, turn: Turns) -> None:
    """PPO of stable-baselines3. The cost is a number in `info`, which it does not read."""
    environments()
    torch, vector = loaded("torch"), loaded("stable_baselines3.common.vec_env")
    callbacks, gymnasium = loaded("stable_baselines3.common.callbacks"), loaded("gymnasium")
    torch.set_num_threads(given["threads"])
    make = functools.partial(gymnasium.make, IDS[given["task"]].format("Gymnasium"))
    makers = [make for _ in range(given["envs"])]
    copies = (
        vector.DummyVecEnv(makers)
        if given["vector"] == "dummy"
        else vector.SubprocVecEnv(makers, start_method="fork")  # the tasks are registered in this process
    )

    class Telling(callbacks.BaseCallback):
        def _on_rollout_start(self) -> None:
            turn(self.num_timesteps, batch=model.n_steps * model.n_envs, networks=[64, 64])

        def _on_step(self) -> bool:
            return True

    model = loaded("stable_baselines3").PPO("MlpPolicy", copies, device="cpu")
    model.learn(BATCHES * model.n_steps * model.n_envs, callback=Telling())


def environments() -> Any:
    """Import Safety-Gymnasium, with a repair so that Python 3.11 can import it."""
    safety = loaded("apdo.envs.safety")
    return safety.load(safety.SAFETY_GYMNASIUM)


def loaded(name: str) -> Any:
    """Import a module that only one of the environments has."""
    return importlib.import_module(name)


def versions(system: str) -> dict[str, str]:
    """The versions of the packages that a system's speed depends on."""
    return {"python": platform.python_version()} | {name: metadata.version(name) for name in PACKAGES[system]}


SYSTEMS = {"apdo": apdo, "omnisafe": omnisafe, "fsrl": fsrl, "sb3": sb3}


def main() -> None:
    address, given = sys.argv[1], json.loads(sys.argv[2])
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    SYSTEMS[given["system"]](given, Turns(address, {"versions": versions(given["system"])}))


if __name__ == "__main__":
    main()

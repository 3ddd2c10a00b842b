"""Episodes of a policy as a video, with return and cost written on it."""

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

import jax
import numpy as np
from jax import random
from jaxtyping import Array, PRNGKeyArray, PyTree

from apdo import files, hosted, loop, rollout
from apdo.core.data import Transition
from apdo.envs import OBJECT, gymnasium_tasks
from apdo.envs.environment import Environment
from apdo.envs.gymnasium_tasks import GymnasiumTask
from apdo.errors import InvalidInput, StorageFailure
from apdo.experiment.evaluation import EVALUATION_STREAM
from apdo.policy import Policy
from apdo.tasks import drawing

MOST_FRAMES = 160
MOST_EPISODES = 6
PAUSE = 5
"""For how many frames the end of an episode is shown."""


def check(path: Path, environment: object) -> None:
    """Raise InvalidInput before any work if the film cannot be made."""
    if path.suffix.lower() not in (".gif", ".mp4"):
        raise InvalidInput(f"a video is a .gif or an .mp4 file, and {str(path)!r} ends in neither.")
    if path.suffix.lower() == ".mp4" and shutil.which("ffmpeg") is None:
        raise InvalidInput("an .mp4 needs the program ffmpeg, which is not there; install it, or give a .gif file.")
    if not path.parent.is_dir():
        raise InvalidInput(f"the folder {path.parent} for {path.name} does not exist.")
    if isinstance(environment, GymnasiumTask):
        gymnasium_tasks.drawing(environment).close()
    elif not drawing.can_draw(environment):
        raise InvalidInput(f"there is no picture of {type(environment).__name__}, so that no video can be made.")


def film(policy: Policy, training: loop.Training, path: Path, deterministic: bool = False, seed: int = 0) -> int:
    """Write a film of a few fresh episodes, and return how many."""
    check(path, training.environment)
    stream = random.fold_in(random.key(seed), EVALUATION_STREAM)
    episodes = max(1, min(MOST_EPISODES, MOST_FRAMES // training.environment.horizon))
    keys = [random.fold_in(stream, number) for number in range(episodes)]
    if isinstance(training.environment, GymnasiumTask):
        shown, rate = _of_the_host(training.environment, policy, training, keys, deterministic)
    else:
        # Any other environment that can be drawn is one of ours.
        environment = cast(Environment, training.environment)
        shown, rate = _of_ours(environment, policy, keys, deterministic), 5 if environment.horizon <= 30 else 12
    if path.suffix.lower() == ".gif":
        _write_gif(shown, path, rate)
    else:
        _write_mp4(shown, path, rate)
    return episodes


def _of_ours(
    environment: Environment, policy: Policy, keys: Sequence[PRNGKeyArray], deterministic: bool
) -> list[np.ndarray]:
    def act(memory: tuple[()], observation: Array, key: PRNGKeyArray) -> tuple[Array, tuple[()]]:
        distribution = policy.network(observation)
        return distribution.mode() if deterministic else distribution.sample(key), memory

    play = jax.jit(lambda key: rollout.watch(environment, act, (), key))
    shown = []
    for number, key in enumerate(keys):
        states, steps = jax.device_get(play(key))
        shown += frames(environment, states, steps, f"episode {number + 1}")
    return shown


def _of_the_host(
    task: GymnasiumTask, policy: Policy, training: loop.Training, keys: Sequence[PRNGKeyArray], deterministic: bool
) -> tuple[list[np.ndarray], int]:
    """The frames that the environment itself draws, at most `MOST_FRAMES` of an episode, and the frames per second."""
    env, name = gymnasium_tasks.drawing(task), type(task).name.removeprefix(OBJECT)
    every = -(-task.horizon // MOST_FRAMES)
    shown = []
    for number, key in enumerate(keys):
        drawn: list[tuple[np.ndarray, int, float, np.ndarray]] = []
        for t, gained, spent, over in hosted.watch(training, policy.network, env, key, deterministic):
            if t % every == 0 or over:
                drawn.append((gymnasium_tasks.picture(env, name), t, gained, spent))
        length = drawn[-1][1]
        drawn += [drawn[-1]] * (PAUSE - 1)
        shown += [
            drawing.captioned(picture, _caption(f"episode {number + 1}", t, length, gained, task.cost_names, spent))
            for picture, t, gained, spent in drawn
        ]
    rate = getattr(env, "metadata", {}).get("render_fps") or 12
    env.close()
    return shown, round(min(30, max(5, rate / every)))


def _caption(name: str, t: int, length: int, gained: float, costs: Sequence[str], spent: np.ndarray) -> tuple[str, str]:
    """The step of an episode, with its return and costs so far."""
    paid = ", ".join(f"{cost} {value:.3g}" for cost, value in zip(costs, spent, strict=True))
    return f"{name}, step {t} of {length}: return {gained:.4g}", f"cost: {paid}"


def frames(environment: Environment, states: PyTree, steps: Transition, name: str) -> Iterator[np.ndarray]:
    """The frames of an episode from `rollout.watch`; a long episode is thinned to at most `MOST_FRAMES`."""
    length = int(np.argmax(steps.terminated | steps.truncated)) + 1
    gained = np.concatenate([[0.0], np.cumsum(steps.reward[:length])])
    spent = np.concatenate([np.zeros((1, steps.cost.shape[1])), np.cumsum(steps.cost[:length], axis=0)])
    for t in [*range(0, length, -(-length // MOST_FRAMES)), *([length] * PAUSE)]:
        caption = _caption(name, t, length, gained[t], environment.cost_names, spent[t])
        yield drawing.draw(environment, jax.tree.map(lambda leaf, t=t: leaf[t], states), caption)


def _write_gif(shown: list[np.ndarray], path: Path, rate: int) -> None:
    from PIL import Image

    pictures = [Image.fromarray(frame).quantize(64) for frame in shown]
    with files.replacing(path) as file:
        pictures[0].save(
            file, format="GIF", save_all=True, append_images=pictures[1:], duration=1000 // rate, loop=0, optimize=False
        )


def _write_mp4(shown: list[np.ndarray], path: Path, rate: int) -> None:
    height, width = shown[0].shape[:2]
    source = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", str(rate), "-i", "-"]
    coding = ["-an", "-c:v", "libx264", "-pix_fmt", "yuv420p", "-f", "mp4"]
    done = subprocess.run(
        ["ffmpeg", "-loglevel", "error", "-y", *source, *coding, str(path)],
        input=b"".join(np.ascontiguousarray(frame).tobytes() for frame in shown),
        capture_output=True,
        check=False,
    )
    if done.returncode != 0:
        reason = " ".join(done.stderr.decode(errors="replace").split())[:200]
        raise StorageFailure(f"{path} could not be made by ffmpeg: {reason}.")

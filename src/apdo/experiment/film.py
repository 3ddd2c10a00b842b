"""Episodes of a policy as a moving picture, with return and cost on it."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
from jax import random
from jaxtyping import Array, PRNGKeyArray

from apdo import files, loop, rollout
from apdo.envs import drawing
from apdo.errors import InvalidInput, StorageFailure
from apdo.experiment.evaluation import EVALUATION_STREAM
from apdo.policy import Policy

MOST_FRAMES = 160
MOST_EPISODES = 6
PAUSE = 5
"""Frames for which an episode's end stands still."""


def check(path: Path, environment: object) -> None:
    """Raise InvalidInput for a film that cannot be made, before any work."""
    if path.suffix.lower() not in (".gif", ".mp4"):
        raise InvalidInput(f"a video is a .gif or an .mp4 file, and {str(path)!r} ends in neither.")
    if path.suffix.lower() == ".mp4" and shutil.which("ffmpeg") is None:
        raise InvalidInput("an .mp4 needs the program ffmpeg, which is not there; install it, or give a .gif file.")
    if not path.parent.is_dir():
        raise InvalidInput(f"the folder {path.parent} for {path.name} does not exist.")
    if not drawing.can_draw(environment):
        raise InvalidInput(f"there is no picture of {type(environment).__name__}, so that no video can be made.")


def film(policy: Policy, training: loop.Training, path: Path, deterministic: bool = False, seed: int = 0) -> int:
    """Write a film of a few fresh episodes; returns how many."""
    check(path, training.environment)
    horizon = training.environment.horizon
    episodes = max(1, min(MOST_EPISODES, MOST_FRAMES // horizon))
    shown = [frame for i in range(episodes) for frame in _episode(policy, training, deterministic, seed, i)]
    rate = 5 if horizon <= 30 else 12
    if path.suffix.lower() == ".gif":
        _write_gif(shown, path, rate)
    else:
        _write_mp4(shown, path, rate)
    return episodes


def _episode(
    policy: Policy, training: loop.Training, deterministic: bool, seed: int, number: int
) -> Iterator[np.ndarray]:
    """The frames of one episode; long ones are told in at most `MOST_FRAMES`."""
    environment = training.environment

    def act(memory: tuple[()], observation: Array, key: PRNGKeyArray) -> tuple[Array, tuple[()]]:
        distribution = policy.network(observation)
        return distribution.mode() if deterministic else distribution.sample(key), memory

    key = random.fold_in(random.fold_in(random.key(seed), EVALUATION_STREAM), number)
    states, steps = jax.device_get(jax.jit(lambda key: rollout.watch(environment, act, (), key))(key))
    over = np.asarray(steps.terminated | steps.truncated)
    length = int(np.argmax(over)) + 1
    gained = np.concatenate([[0.0], np.cumsum(steps.reward[:length])])
    spent = np.concatenate([np.zeros((1, steps.cost.shape[1])), np.cumsum(steps.cost[:length], axis=0)])
    every = -(-length // MOST_FRAMES)
    for t in [*range(0, length, every), *([length] * PAUSE)]:
        costs = ", ".join(f"{name} {value:.3g}" for name, value in zip(environment.cost_names, spent[t], strict=True))
        caption = (f"episode {number + 1}, step {t} of {length}: return {gained[t]:.4g}", f"cost: {costs}")
        yield drawing.draw(environment, jax.tree.map(lambda leaf, t=t: leaf[t], states), caption)


def _write_gif(frames: list[np.ndarray], path: Path, rate: int) -> None:
    from PIL import Image

    pictures = [Image.fromarray(frame).quantize(64) for frame in frames]
    with files.replacing(path) as file:
        pictures[0].save(
            file, format="GIF", save_all=True, append_images=pictures[1:], duration=1000 // rate, loop=0, optimize=False
        )


def _write_mp4(frames: list[np.ndarray], path: Path, rate: int) -> None:
    height, width = frames[0].shape[:2]
    source = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", str(rate), "-i", "-"]
    coding = ["-an", "-c:v", "libx264", "-pix_fmt", "yuv420p", "-f", "mp4"]
    done = subprocess.run(
        ["ffmpeg", "-loglevel", "error", "-y", *source, *coding, str(path)],
        input=b"".join(np.ascontiguousarray(frame).tobytes() for frame in frames),
        capture_output=True,
        check=False,
    )
    if done.returncode != 0:
        reason = " ".join(done.stderr.decode(errors="replace").split())[:200]
        raise StorageFailure(f"{path} could not be made by ffmpeg: {reason}.")

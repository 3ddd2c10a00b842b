"""Films of episodes."""

import itertools
import shutil
import subprocess

import jax
import numpy as np
import pytest
from PIL import Image, ImageSequence

from apdo.core import networks
from apdo.core.deterministic import Policy as Network
from apdo.errors import InvalidInput, StorageFailure
from apdo.experiment import film, opening, settings
from apdo.policy import Policy
from apdo.tasks import drawing
from apdo.tasks.point_gather import PointGather
from problems import Reach


@pytest.fixture(scope="module")
def training():
    return opening.training_of(settings.make_experiment("pdo", "point-gather", {"batch": 15}))


@pytest.fixture(scope="module")
def policy():
    return Policy(Network(mean=networks.mlp(jax.random.key(0), 29, (4,), 2)), 29)


def test_a_gif_has_every_step_of_its_episodes_and_the_frames_move(training, policy, monkeypatch, tmp_path):
    monkeypatch.setattr(film, "MOST_EPISODES", 2)
    episodes = film.film(policy, training, tmp_path / "film.gif")
    picture = Image.open(tmp_path / "film.gif")
    # Ends that stand still may be stored as one long frame.
    count = sum(1 for _ in ImageSequence.Iterator(picture))
    assert episodes * (PointGather.horizon + 1) <= count <= episodes * (PointGather.horizon + film.PAUSE)
    assert picture.size == (drawing.WIDTH, drawing.HEIGHT + drawing.CAPTION)
    frames = []
    for i in range(5):
        picture.seek(i)
        frames.append(np.asarray(picture.convert("RGB")))
    assert all(not np.array_equal(a, b) for a, b in itertools.pairwise(frames))


def test_the_last_caption_tells_the_episode_s_return_and_cost(training, policy, monkeypatch, tmp_path):
    captions = []

    def note(environment, state, caption):
        captions.append(caption)
        return np.zeros((4, 4, 3), np.uint8)

    monkeypatch.setattr(drawing, "draw", note)
    monkeypatch.setattr(film, "MOST_EPISODES", 1)
    film.film(policy, training, tmp_path / "film.gif", deterministic=True)
    assert len(captions) == PointGather.horizon + film.PAUSE
    assert captions[0][0].endswith("step 0 of 15: return 0")
    assert all(caption[1].startswith("cost: bombs ") for caption in captions)
    assert captions[-1][0].startswith("episode 1, step 15 of 15: return ")


def test_what_cannot_be_filmed_is_refused_before_any_work(training, monkeypatch, tmp_path):
    for name, said in (("film.avi", "neither"), ("nowhere/film.gif", "does not exist")):
        with pytest.raises(InvalidInput, match=said):
            film.check(tmp_path / name, training.environment)
    with pytest.raises(InvalidInput, match="Reach"):
        film.check(tmp_path / "film.gif", Reach())
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(InvalidInput, match="ffmpeg"):
        film.check(tmp_path / "film.mp4", training.environment)


def test_ffmpeg_gets_every_frame_and_its_failure_is_told(monkeypatch, tmp_path):
    """Without the program itself: what it is asked, and what becomes of its answer."""
    asked = {}

    def run(command, input, **_):
        asked.update(command=command, size=len(input))
        return subprocess.CompletedProcess(command, asked.get("answer", 0), b"", b"no such codec")

    monkeypatch.setattr(subprocess, "run", run)
    frames = [np.zeros((6, 8, 3), np.uint8)] * 3
    film._write_mp4(frames, tmp_path / "film.mp4", 5)
    assert asked["size"] == 3 * 6 * 8 * 3
    assert "8x6" in asked["command"]
    assert asked["command"][-1] == str(tmp_path / "film.mp4")
    asked["answer"] = 1
    with pytest.raises(StorageFailure, match="no such codec"):
        film._write_mp4(frames, tmp_path / "film.mp4", 5)

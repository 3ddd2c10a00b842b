"""Images from a Gymnasium environment to an exported policy."""

import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import apdo
from apdo.core import categorical, gaussian, networks
from apdo.errors import InvalidInput
from apdo.experiment import runner, settings
from apdo.policy import Policy
from apdo.report import runs

gymnasium = pytest.importorskip("gymnasium", reason="Gymnasium is not installed")

from apdo.envs import spaces  # noqa: E402
from image_environment import SIDE, Dots  # noqa: E402

IMAGE = (SIDE, SIDE, 3)
PIXELS = SIDE * SIDE * 3
DOCUMENT = Path(__file__).parents[1] / "docs" / "policies.md"
TINY: dict[str, Any] = {
    "primal__iterations": 2,
    "policy__hidden": (4,),
    "critic__hidden": (4,),
    "critic__passes": 1,
    "critic__minibatches": 1,
    "epochs": 1,
    "batch": 28,
    "environments": 2,
    "limits": 0.3,
    "max_episode_steps": 14,
    "quiet": True,
}


@pytest.mark.parametrize(
    ("space", "image"),
    [
        (gymnasium.spaces.Box(0, 255, (8, 9, 1), np.uint8), (8, 9, 1)),
        (gymnasium.spaces.Box(0, 255, (84, 84, 4), np.uint8), (84, 84, 4)),
        (gymnasium.spaces.Box(0, 255, (7, 9, 1), np.uint8), None),
        (gymnasium.spaces.Box(0, 255, (4, 84, 84), np.uint8), None),
        (gymnasium.spaces.Box(0, 1, (12, 12, 3), np.float32), None),
        (gymnasium.spaces.Box(0, 255, (12, 12), np.uint8), None),
        (gymnasium.spaces.Discrete(3), None),
    ],
)
def test_which_observations_are_images(space, image):
    assert spaces.image(space) == image


def reader():
    """The two classes that docs/policies.md shows, as they stand there."""
    space: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.S):
        if "class Policy" in block or "class ImagePolicy" in block:
            exec(block, space)
    return space["ImagePolicy"]


def made(kind, beside=0):
    network = networks.convolutional(jax.random.key(0), IMAGE, beside, (6,), 3)
    policy = gaussian.Policy(network, jax.numpy.zeros(3)) if kind == "gaussian" else categorical.Policy(network)
    return Policy(policy, PIXELS + beside, discrete=kind != "gaussian", image=IMAGE)


@pytest.mark.parametrize(("kind", "beside"), [("gaussian", 0), ("categorical", 2)])
def test_an_exported_policy_of_images_gives_the_same_numbers(kind, beside, tmp_path):
    policy = made(kind, beside)
    rng = np.random.default_rng(0)
    batch = np.concatenate([rng.integers(0, 256, (5, PIXELS)), rng.normal(size=(5, beside))], axis=1)
    batch = batch.astype(np.float32)
    policy.save(tmp_path / "policy.npz")
    read = reader()(tmp_path / "policy.npz")
    for given in (batch, batch[0]):
        np.testing.assert_allclose(read(given, deterministic=True), policy(given, deterministic=True), atol=1e-5)
        for name, values in policy.distribution(given).items():
            np.testing.assert_allclose(read.distribution(given)[name], values, atol=1e-5)
    pytest.importorskip("onnx", reason="the package onnx is not installed")
    runtime = pytest.importorskip("onnxruntime", reason="the package onnxruntime is not installed")
    policy.save(tmp_path / "policy.onnx")
    session = runtime.InferenceSession(tmp_path / "policy.onnx", providers=["CPUExecutionProvider"])
    assert session.get_inputs()[0].shape == ["batch", PIXELS + beside]
    for given in (batch, batch[:1]):
        named = zip([one.name for one in session.get_outputs()], session.run(None, {"observation": given}), strict=True)
        found = dict(named)
        np.testing.assert_allclose(found["action"], policy(given, deterministic=True), atol=1e-5)
        for name, values in policy.distribution(given).items():
            np.testing.assert_allclose(found[name], values, atol=1e-5)


def test_a_policy_takes_an_image_in_its_own_shape():
    policy = made("gaussian")
    images = np.random.default_rng(1).integers(0, 256, (4, *IMAGE)).astype(np.uint8)
    flat = policy(images.reshape(4, -1), deterministic=True)
    np.testing.assert_array_equal(policy(images, deterministic=True), flat)
    np.testing.assert_allclose(policy(images[1], deterministic=True), flat[1], atol=1e-6)
    with pytest.raises(InvalidInput, match="300 numbers"):
        policy(images[:, :9])


def specified(algorithm="pdo", **changes):
    from apdo import envs

    name, task, _ = envs.of_object(Dots)
    given = {"limits": 0.3, "max_episode_steps": 14, "epochs": 6} | changes
    return settings.make_experiment(algorithm, name, given, task=task)


def test_images_are_seen_by_convolutions_and_not_normalised_unless_that_is_switched_off():
    problem = specified().problem()
    assert (problem.image, problem.normalise, problem.observation_size) == (IMAGE, False, PIXELS)
    plain = specified(torso="none").problem()
    assert (plain.image, plain.normalise) == (None, True)
    wrapped = specified(wrap="saute").problem()
    assert (wrapped.image, wrapped.observation_size) == (IMAGE, PIXELS + 1)
    # A run from before there were convolutions goes on with the network that it has.
    told = specified().describe()
    del told["settings"]["torso"]
    task = type(specified().environment_config)
    assert settings.Experiment.restore(told, task).settings.torso == "none"


@pytest.mark.parametrize("algorithm", ["apdo", "pd-ddpg", "sac-lag"])
def test_algorithms_with_off_policy_critics_refuse_images_in_a_sentence(algorithm, tmp_path):
    with pytest.raises(InvalidInput, match=r"no convolutions for images: .*--torso none"):
        runner.run(specified(algorithm), tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_a_run_on_images_is_saved_resumed_and_loaded_without_its_environment(tmp_path):
    result = apdo.train("pdo", Dots, out=tmp_path / "run", **TINY)
    assert runs.read_description(result.path)["problem"]["image"] == list(IMAGE)
    after = apdo.resume(result.path, environment=Dots, epochs=2, quiet=True)
    loaded = apdo.load(result.path, newest=True)
    image = Dots().reset(seed=3)[0]
    np.testing.assert_array_equal(loaded(image, deterministic=True), after.newest[0](image, deterministic=True))
    assert np.isfinite(loaded.value(image))
    # And a policy of images is a start like any other.
    warm = apdo.train("pdo", Dots, out=tmp_path / "warm", start_from=loaded, **TINY)
    assert runs.read_description(warm.path)["started_from"]["values"] is True
    with pytest.raises(InvalidInput, match="built otherwise"):
        apdo.train(
            "pdo", Dots, out=tmp_path / "flat", start_from=loaded, **TINY | {"torso": "none", "normalise": False}
        )

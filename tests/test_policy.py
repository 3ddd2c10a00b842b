"""A learned policy gives the same numbers however it is used: called, read by numpy alone, or run as ONNX."""

import re
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import PyTree

from apdo import export
from apdo.algorithms import scaled
from apdo.core import categorical, deterministic, gaussian, networks, policies, squashed, statistics
from apdo.errors import InvalidInput
from apdo.policy import Policy

DOCUMENT = Path(__file__).parent.parent / "docs" / "policies.md"
SIZE, ACTIONS = 5, 3


def network(kind):
    layers = networks.mlp(jax.random.key(1), SIZE, (16, 8), ACTIONS)
    if kind == "gaussian":
        return gaussian.Policy(mean=layers, log_std=jnp.asarray([-1.0, 0.0, 0.5]))
    if kind == "bounded":
        return gaussian.Policy(mean=layers, log_std=jnp.asarray([-1.0, 0.0, 0.5]), bound=0.4)
    if kind == "squashed":
        wide = networks.mlp(jax.random.key(1), SIZE, (16, 8), 2 * ACTIONS, activation="relu")
        return squashed.Policy(network=wide, bound=2.0)
    return categorical.Policy(logits=layers) if kind in CHOOSING else deterministic.Policy(mean=layers)


CHOOSING = ("categorical", "several")
SEVERAL = np.array([[0, 5], [1, 5], [1, 7]])
"""The environment's actions, where each is two choices."""


NORMALISER = (np.linspace(-2, 2, SIZE), np.linspace(0.5, 3.0, SIZE))


def make(kind, normalised, seed=0):
    choices = SEVERAL if kind == "several" else None
    normaliser = NORMALISER if normalised else None
    return Policy(network(kind), SIZE, seed, discrete=kind in CHOOSING, choices=choices, normaliser=normaliser)


class Mapped(eqx.Module):
    """A wrapper of another kind: normalises with a clip, and maps actions to a range."""

    network: PyTree

    def __call__(self, observation):
        return self.network(jnp.clip((observation - 1.0) / 2.0, -0.5, 0.5))

    def around(self):
        rows = {"action_shift": 0.1, "action_scale": 2.0, "action_low": -0.2, "action_high": 0.3}
        mean, std = np.full(SIZE, 1.0, np.float32), np.full(SIZE, 2.0, np.float32)
        return {"observation_mean": mean, "observation_std": std, "observation_clip": np.asarray(0.5, np.float32)} | {
            name: np.full(ACTIONS, value, np.float32) for name, value in rows.items()
        }


def documented_reader():
    """The class that docs/policies.md shows, as it stands there."""
    code = next(
        block for block in re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.S) if "class Policy" in block
    )
    assert len(code.strip().splitlines()) <= 48
    assert set(re.findall(r"^(?:import|from) (\w+)", code, re.M)) == {"numpy"}
    space = {}
    exec(code, space)
    return space["Policy"]


@pytest.fixture
def observations():
    return np.random.default_rng(0).normal(size=(50, SIZE)).astype(np.float32)


KINDS = [
    (kind, normalised)
    for kind in ("gaussian", "bounded", "categorical", "several", "deterministic", "squashed")
    for normalised in (False, True)
]


@pytest.mark.parametrize(("kind", "normalised"), KINDS)
def test_the_reader_in_the_documentation_gives_the_policy_s_numbers(kind, normalised, observations, tmp_path):
    policy = make(kind, normalised)
    policy.save(tmp_path / "policy.npz")
    read = documented_reader()(tmp_path / "policy.npz")
    for given in (observations, observations[0]):
        np.testing.assert_allclose(read(given, deterministic=True), policy(given, deterministic=True), atol=1e-6)
        ours, theirs = policy.distribution(given), read.distribution(given)
        assert ours.keys() == theirs.keys()
        for name, values in ours.items():
            assert values.shape == theirs[name].shape
            np.testing.assert_allclose(theirs[name], values, atol=1e-6)


@pytest.mark.parametrize("kind", ["gaussian", "categorical"])
def test_the_reader_s_draws_follow_the_policy_s_distribution(kind, observations, tmp_path):
    policy = make(kind, True)
    policy.save(tmp_path / "policy.npz")
    read, one = documented_reader()(tmp_path / "policy.npz"), np.tile(observations[:1], (20_000, 1))
    for act in (policy, read):
        drawn, found = act(one), policy.distribution(observations[0])
        if kind == "gaussian":
            np.testing.assert_allclose(drawn.mean(axis=0), found["mean"], atol=0.05)
            np.testing.assert_allclose(drawn.std(axis=0), found["std"], rtol=0.03)
        else:
            np.testing.assert_allclose(
                np.bincount(drawn, minlength=ACTIONS) / 20_000, found["probabilities"], atol=0.015
            )


@pytest.mark.parametrize(("kind", "normalised"), KINDS)
def test_onnx_gives_the_policy_s_numbers(kind, normalised, observations, tmp_path):
    pytest.importorskip("onnx", reason="the package onnx is not installed")
    runtime = pytest.importorskip("onnxruntime", reason="the package onnxruntime is not installed")
    policy = make(kind, normalised)
    policy.save(tmp_path / "policy.onnx")
    session = runtime.InferenceSession(tmp_path / "policy.onnx", providers=["CPUExecutionProvider"])
    for batch in (observations, observations[:1]):
        named = dict(
            zip([o.name for o in session.get_outputs()], session.run(None, {"observation": batch}), strict=True)
        )
        np.testing.assert_allclose(named["action"], policy(batch, deterministic=True), atol=1e-6)
        for name, values in policy.distribution(batch).items():
            assert named[name].shape == values.shape
            np.testing.assert_allclose(named[name], values, atol=1e-6)


def test_a_clip_and_a_range_of_actions_survive_every_way_out(observations, tmp_path):
    policy = Policy(Mapped(network("gaussian")), SIZE)
    inner = np.asarray(jax.vmap(lambda o: policy.network(o).mean)(jnp.asarray(observations)))
    wanted = np.clip(0.1 + 2.0 * inner, -0.2, 0.3)
    policy.save(tmp_path / "policy.npz")
    read = documented_reader()(tmp_path / "policy.npz")
    np.testing.assert_allclose(read(observations, deterministic=True), wanted, atol=1e-6)
    drawn = read(observations)
    assert np.all((drawn >= -0.2 - 1e-6) & (drawn <= 0.3 + 1e-6))
    assert np.unique(drawn).size > 3  # and not only the ends
    pytest.importorskip("onnx", reason="the package onnx is not installed")
    runtime = pytest.importorskip("onnxruntime", reason="the package onnxruntime is not installed")
    policy.save(tmp_path / "policy.onnx")
    session = runtime.InferenceSession(tmp_path / "policy.onnx", providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(["action"], {"observation": observations})[0], wanted, atol=1e-6)


def test_normalising_is_the_network_at_normalised_observations(observations):
    raw, normalised = make("gaussian", False), make("gaussian", True)
    scaled = (observations - NORMALISER[0]) / NORMALISER[1]
    np.testing.assert_allclose(normalised(observations, True), raw(scaled, True), atol=1e-6)
    np.testing.assert_allclose(normalised(observations), raw(scaled), atol=1e-5)


@pytest.mark.parametrize(
    "normaliser",
    [(np.zeros(SIZE), np.zeros(SIZE)), (np.zeros(3), np.ones(3)), (np.full(SIZE, np.nan), np.ones(SIZE))],
)
def test_a_normaliser_that_divides_by_nothing_or_does_not_fit_is_refused(normaliser):
    with pytest.raises(InvalidInput, match="normaliser"):
        Policy(network("gaussian"), SIZE, normaliser=normaliser)


def test_an_ending_that_is_no_format_and_a_folder_that_is_not_there_are_refused(tmp_path):
    policy = make("gaussian", False)
    with pytest.raises(InvalidInput, match="npz or"):
        policy.save(tmp_path / "policy.pt")
    with pytest.raises(InvalidInput, match="does not exist"):
        policy.save(tmp_path / "nowhere" / "policy.npz")
    assert list(tmp_path.iterdir()) == []


def test_without_the_extra_onnx_one_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    with pytest.raises(InvalidInput, match=r"pip install 'apdo\[onnx\]'"):
        export.onnx_model(make("gaussian", False).arrays())


def test_what_training_normalises_and_maps_is_exported_with_the_policy(observations, tmp_path):
    """The policy of a Gymnasium task: statistics of what was seen before the network, the action's range behind it."""
    seen = statistics.Statistics.of(jnp.asarray(3.0 * observations + np.array([0, 1, 2, 3, 4], np.float32)))
    rows = ([0.5, 0.0, -1.0], [2.0, 1.0, 0.5], [-0.3, -1.0, -1.2], [0.9, 1.0, -0.9])
    meaning = scaled.ActionMeaning(*(jnp.asarray(row) for row in rows))
    policy = Policy(scaled.RawPolicy(policies.Normalised(network("gaussian"), seen), meaning), SIZE)
    policy.save(tmp_path / "policy.npz")
    read = documented_reader()(tmp_path / "policy.npz")
    expected = policy(observations, deterministic=True)
    np.testing.assert_allclose(read(observations, deterministic=True), expected, atol=1e-5)
    assert (expected >= np.asarray(rows[2], np.float32)).all()
    bare = Policy(scaled.RawPolicy(network("gaussian"), None), SIZE)
    assert set(bare.arrays()) == set(make("gaussian", False).arrays())

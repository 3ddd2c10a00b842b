"""Each primal step improves its surrogate, within its own bounds."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import random
from jax.flatten_util import ravel_pytree

from apdo.algorithms import overshoot, primal_steps
from apdo.core import annealing, policies, trust_region


@pytest.fixture(scope="module")
def policy():
    return policies.init(policies.Config(hidden=(8, 8), output_scale=1.0), random.key(0), 3, 2, discrete=False)


@pytest.fixture(scope="module")
def samples(policy):
    """Actions of the policy itself; the advantage prefers the first entry of the action to follow the observation.

    Some samples count more than others, 1 on average.
    """
    observation = random.normal(random.key(1), (1000, 3))
    action = jax.vmap(lambda o, k: policy(o).sample(k))(observation, random.split(random.key(2), 1000))
    advantage = -jnp.square(action[:, 0] - observation[:, 0]) + 0.1 * random.normal(random.key(3), (1000,))
    weight = random.uniform(random.key(5), (1000,), minval=0.2, maxval=2.0)
    return primal_steps.Samples(
        observation, action, (advantage - advantage.mean()) / advantage.std(), weight / weight.mean()
    )


def improve(config, policy, samples):
    step = jax.jit(primal_steps.improve, static_argnums=0)
    return step(config, policy, primal_steps.init(config, policy), samples, random.key(4))


def test_trpo_stays_within_its_radius_and_improves_the_surrogate(policy, samples):
    for radius in (0.001, 0.01, 0.1):
        new, _, metrics = improve(primal_steps.Trpo(radius=radius), policy, samples)
        surrogate = primal_steps.Surrogate.at(policy, samples)
        assert 0.3 * radius < float(surrogate.kl(new)) <= radius
        weighted = samples.weight * samples.advantage
        assert float(jnp.mean(surrogate.ratio(new) * weighted)) > float(jnp.mean(weighted))
        assert float(metrics["step_accepted"]) == 1.0


def test_trpo_keeps_the_old_policy_when_no_step_is_acceptable(policy, samples):
    """With advantages of zero no step improves anything."""
    idle = primal_steps.Samples(samples.observation, samples.action, jnp.zeros(1000), samples.weight)
    new, _, metrics = improve(primal_steps.Trpo(), policy, idle)
    np.testing.assert_array_equal(ravel_pytree(new)[0], ravel_pytree(policy)[0])
    assert float(metrics["step_accepted"]) == 0.0


def test_trpo_shortens_a_step_that_leaves_the_trust_region(policy, samples):
    """Far from quadratic: a huge radius makes the model wrong, and the first steps must be refused."""
    config = primal_steps.Trpo(radius=2.0)
    surrogate = primal_steps.Surrogate.at(policy, samples)
    full = primal_steps.natural_step(config, surrogate, policy)
    parameters, unravel = ravel_pytree(policy)
    assert not float(surrogate.kl(unravel(parameters + full))) <= config.radius
    new, _, _ = improve(config, policy, samples)
    assert float(surrogate.kl(new)) <= config.radius


def test_trpo_carries_a_cost_through_its_limit_no_further_than_is_allowed_and_otherwise_goes_to_the_edge(
    policy, samples
):
    """The cost falls (or rises) where the advantage rises, so that a full step changes it much."""
    step = jax.jit(primal_steps.improve, static_argnums=0)
    surrogate, config = primal_steps.Surrogate.at(policy, samples), primal_steps.Trpo(radius=0.005)
    half = jnp.ones((2, 1000))
    full = float(improve(config, policy, samples)[2]["surrogate_gain"])
    for side in (1.0, -1.0):
        cost = (-side * samples.advantage * samples.weight / 1000.0)[:, None]

        def moved(allowed, side=side, cost=cost):
            excess = jnp.asarray([side * 0.3 * full])
            crossing = overshoot.Crossing(cost, half, excess, jnp.asarray([allowed * full]))
            new, _, metrics = step(config, policy, (), samples, random.key(4), crossing)
            change = float(((surrogate.ratio(new) - 1.0) @ cost)[0])
            return 0.3 + side * change / full, float(metrics["kl"])

        free, farthest = moved(100.0)
        np.testing.assert_allclose(free, 0.3 - 1.0, rtol=1e-3)
        kept, nearer = moved(0.2)
        np.testing.assert_allclose(kept, -0.2, atol=0.05)
        np.testing.assert_allclose(nearer / farthest, 0.5**2, rtol=0.2)


def test_a_step_that_only_pleases_the_samples_noise_is_not_believed_to_change_a_cost(policy, samples):
    """Rewards and costs of pure noise: the whole batch promises a large change, and one half says the other errs."""
    noise = random.normal(random.key(9), (1000,))
    idle = primal_steps.Samples(samples.observation, samples.action, noise, jnp.ones(1000))
    surrogate, cost = primal_steps.Surrogate.at(policy, idle), (-noise / 1000.0)[:, None]
    apart = jnp.stack([jnp.arange(1000) % 2 == 0, jnp.arange(1000) % 2 == 1]) * 2.0
    config = primal_steps.NaturalGradient(radius=0.02)
    product = primal_steps.fisher(config, policy, idle.observation)
    gradient = ravel_pytree(jax.grad(surrogate.gain)(policy))[0]
    factor = trust_region.factor_to_edge(product, trust_region.conjugate_gradient(product, gradient, 10), 0.02)
    natural = lambda v: factor * trust_region.conjugate_gradient(product, v, 10)  # noqa: E731
    promised = float(jnp.vdot(natural(gradient), gradient))

    def share(half):
        crossing = overshoot.Crossing(cost, half, jnp.asarray([0.1 * promised]), jnp.asarray([0.1 * promised]))
        return float(crossing.share(surrogate, policy, natural))

    np.testing.assert_allclose(share(jnp.ones((2, 1000))), 0.2, rtol=1e-3)
    assert share(apart) > 0.5


def test_the_natural_step_is_the_dense_solution_scaled_to_the_radius(policy, samples):
    config = primal_steps.NaturalGradient(fraction=1.0, iterations=200, damping=1e-3)
    surrogate = primal_steps.Surrogate.at(policy, samples)
    parameters, unravel = ravel_pytree(policy)
    weighted = samples.weight * samples.advantage
    gradient = jax.grad(lambda p: jnp.mean(surrogate.ratio(unravel(p)) * weighted))(parameters)
    fisher = jax.hessian(lambda p: surrogate.kl(unravel(p)))(parameters) + config.damping * jnp.eye(parameters.size)
    direction = np.linalg.solve(np.asarray(fisher, np.float64), np.asarray(gradient, np.float64))
    exact = direction * np.sqrt(2 * config.radius / (direction @ np.asarray(fisher) @ direction))
    step = primal_steps.natural_step(config, surrogate, policy)
    cosine = step @ exact / np.linalg.norm(step) / np.linalg.norm(exact)
    assert cosine > 0.999
    assert np.linalg.norm(step) == pytest.approx(np.linalg.norm(exact), rel=0.02)


def test_the_natural_gradient_step_is_taken_whole(policy, samples):
    config = primal_steps.NaturalGradient()
    surrogate = primal_steps.Surrogate.at(policy, samples)
    new, _, _ = improve(config, policy, samples)
    step = primal_steps.natural_step(config, surrogate, policy)
    # Two programs for conjugate gradient: where the condition is some 10³, a rounding of 10⁻⁷ becomes one of 10⁻⁴.
    rounding = 1e-4 * float(jnp.abs(step).max())
    np.testing.assert_allclose(ravel_pytree(new)[0], ravel_pytree(policy)[0] + step, rtol=1e-5, atol=rounding)


def test_the_likelihood_ratio_step_follows_the_score_function_gradient(policy, samples):
    """Adam's first step is the rate times the sign of the gradient of E[w · log π · A]."""
    new, _, _ = improve(primal_steps.LikelihoodRatio(rate=1e-3), policy, samples)

    def score(p):
        log_prob = jax.vmap(lambda o, a: p(o).log_prob(a))(samples.observation, samples.action)
        return jnp.mean(log_prob * samples.weight * samples.advantage)

    gradient = ravel_pytree(jax.grad(score)(policy))[0]
    moved = ravel_pytree(new)[0] - ravel_pytree(policy)[0]
    clear = np.abs(gradient) > 1e-4
    assert clear.sum() > 20
    np.testing.assert_allclose(moved[clear], 1e-3 * np.sign(gradient[clear]), rtol=0.02)


def test_ppo_improves_the_surrogate_and_its_clip_holds_the_ratios_back(policy, samples):
    surrogate, spread = primal_steps.Surrogate.at(policy, samples), {}
    for clip in (0.1, 100.0):
        new, _, metrics = improve(primal_steps.Ppo(clip=clip, minibatches=4, rate=3e-3), policy, samples)
        assert float(metrics["surrogate_gain"]) > 0.02
        spread[clip] = float(surrogate.kl(new))
    assert spread[0.1] < 0.7 * spread[100.0]


def test_steps_are_half_as_long_after_as_many_epochs_of_gradient_steps_as_annealing_is_told(policy):
    config = primal_steps.Ppo(passes=3, minibatches=5, anneal=20.0)
    state = primal_steps.init(config, policy)

    @jax.jit
    def bounds(epochs):
        found = primal_steps.annealed(config, optax.tree_utils.tree_set(state, count=15 * epochs))
        return found.rate, found.clip

    for epochs, length in ((0, 1.0), (20, 0.5), (60, 0.25)):
        np.testing.assert_allclose(bounds(epochs), (length * config.rate, length * config.clip), rtol=1e-6)
    assert primal_steps.annealed(primal_steps.Ppo(), state) == primal_steps.Ppo()


@pytest.mark.parametrize(
    "config", [primal_steps.NaturalGradient(anneal=20.0), primal_steps.NaturalGradient(anneal=20.0, rate=0.01)]
)
def test_a_natural_step_of_a_later_epoch_is_the_first_ones_times_the_length_told(policy, samples, config):
    """The same whether the rate or the region's edge ends it."""

    @jax.jit
    def move(epochs):
        new, *_ = primal_steps.improve(config, policy, (), samples, random.key(4), epochs=epochs)
        return ravel_pytree(new)[0] - ravel_pytree(policy)[0]

    for epochs, length in ((20, 0.5), (60, 0.25)):
        np.testing.assert_allclose(move(epochs), length * move(0), rtol=1e-3, atol=1e-6)


def test_trpos_trust_region_shrinks_as_its_steps_do(policy, samples):
    """A share of the length is its square of the divergence, which also bounds the search along the step."""
    config = primal_steps.Trpo(anneal=20.0)
    step = jax.jit(lambda epochs: primal_steps.improve(config, policy, (), samples, random.key(4), epochs=epochs)[2])
    for epochs, length in ((0, 1.0), (20, 0.5), (180, 0.1)):
        found = step(epochs)
        assert found["step_accepted"] == 1.0
        assert 0.3 * length**2 * config.radius < found["kl"] <= length**2 * config.radius


def test_without_annealing_the_steps_of_every_epoch_are_the_first_ones_bit_for_bit(policy, samples):
    step = jax.jit(
        lambda epochs: primal_steps.improve(
            primal_steps.Trpo(rate=0.3), policy, (), samples, random.key(4), epochs=epochs
        )[0]
    )
    np.testing.assert_array_equal(ravel_pytree(step(900))[0], ravel_pytree(step(0))[0])


def test_the_length_of_a_step_may_be_an_argument_of_the_program_and_nothing_for_some_of_its_runs():
    length = jax.jit(annealing.length)
    assert length(0.0, 30) == annealing.length(0.0, 30) == 1.0
    np.testing.assert_allclose(length(10.0, 30), annealing.length(10.0, 30), rtol=1e-6)
    np.testing.assert_allclose(length(10.0, 30), 0.25, rtol=1e-6)


@pytest.mark.parametrize("discrete", [True, False])
def test_the_worth_of_entropy_adds_its_gradient_to_the_surrogates(discrete):
    """The gradient of the sum by finite differences of the mean entropy."""
    policy = policies.init(policies.Config(hidden=(4,), output_scale=1.0), random.key(0), 3, 2, discrete=discrete)
    observation = random.normal(random.key(1), (50, 3))
    action = jax.vmap(lambda o, k: policy(o).sample(k))(observation, random.split(random.key(2), 50))
    weight = random.uniform(random.key(5), (50,), minval=0.2, maxval=2.0)
    samples = primal_steps.Samples(observation, action, random.normal(random.key(3), (50,)), weight)
    theta, unravel = ravel_pytree(policy)

    def gradient(entropy):
        surrogate = primal_steps.Surrogate.at(policy, samples)
        return jax.grad(lambda p: primal_steps.clipped_gain(primal_steps.Ppo(entropy=entropy), surrogate, unravel(p)))(
            theta
        )

    @jax.jit
    def mean_entropy(parameters):
        entropies = jax.vmap(lambda o: unravel(parameters)(o).entropy())(observation)
        return jnp.mean(weight * entropies)

    added = gradient(0.5) - gradient(0.0)
    for i in range(0, theta.shape[0], 5):
        along = jnp.zeros_like(theta).at[i].set(3e-3)
        slope = float(mean_entropy(theta + along) - mean_entropy(theta - along)) / 6e-3
        assert float(added[i]) == pytest.approx(0.5 * slope, rel=0.01, abs=2e-4)


def test_what_entropy_is_worth_falls_with_the_steps(policy):
    config = primal_steps.Ppo(passes=3, minibatches=5, anneal=20.0, entropy=0.4)
    late = optax.tree_utils.tree_set(primal_steps.init(config, policy), count=15 * 60)
    np.testing.assert_allclose(primal_steps.annealed(config, late).entropy, 0.1, rtol=1e-6)


def test_the_clips_edge_is_reached_however_slow_the_steps_are_and_annealing_draws_it_in(policy, samples):
    """PPO goes as far as it may, however small the advantage: a lower rate alone is no shorter step."""
    kl = {
        name: float(improve(config, policy, samples)[2]["kl"])
        for name, config in {
            "plain": primal_steps.Ppo(passes=40, most_kl=0.0),
            "slow": primal_steps.Ppo(passes=40, most_kl=0.0, rate=3e-4),
            "near": primal_steps.Ppo(passes=40, most_kl=0.0, clip=0.02),
        }.items()
    }
    assert kl["slow"] > 0.5 * kl["plain"]
    assert kl["near"] < 0.1 * kl["plain"]


def test_a_narrow_policy_is_moved_no_further_than_a_wide_one_and_its_gradient_steps_become_shorter():
    """One pass at a rate that suits a wide policy takes a narrow one far beyond where passes are meant to end."""
    config = primal_steps.Ppo(rate=3e-3, most_kl=0.02, clip=100.0)
    narrow = policies.init(policies.Config(hidden=(8, 8), log_std=-5.0), random.key(0), 3, 2, discrete=False)
    observation = random.normal(random.key(1), (1000, 3))
    action = jax.vmap(lambda o, k: narrow(o).sample(k))(observation, random.split(random.key(2), 1000))
    drawn = primal_steps.Samples(observation, action, random.normal(random.key(3), (1000,)), jnp.ones(1000))
    step = jax.jit(primal_steps.improve, static_argnums=0)
    free = improve(primal_steps.Ppo(rate=3e-3, most_kl=0.0, clip=100.0, passes=1), narrow, drawn)[2]["kl"]
    assert free > 10 * config.most_kl
    walk, paces = primal_steps.init(config, narrow), []
    for _ in range(12):
        _, walk, metrics = step(config, narrow, walk, drawn, random.key(4))
        assert isinstance(walk, primal_steps.Walk)
        # The divergence is not quite a square of the step, so that a shortened step may be a little longer than that.
        assert metrics["kl"] < 3 * config.most_kl
        paces.append(float(walk.pace))
    assert 0.01 < paces[-1] < 0.5


def test_steps_that_stay_near_keep_their_rate_and_a_pace_that_was_lost_comes_back(policy, samples):
    config = primal_steps.Ppo(rate=1e-5)
    fresh = primal_steps.init(config, policy)
    assert isinstance(fresh, primal_steps.Walk)
    slowed = fresh._replace(pace=jnp.asarray(0.5))
    step = jax.jit(primal_steps.improve, static_argnums=0)
    paces = [float(step(config, policy, walk, samples, random.key(4))[1].pace) for walk in (fresh, slowed)]
    assert paces[0] == 1.0
    assert 0.5 < paces[1] < 0.6


def test_a_sample_of_twice_the_weight_counts_as_two(policy, samples):
    """The gradient of the surrogate, with weights of 0, 1, 2 and 3, is that of samples repeated so often."""
    times = np.arange(1000) % 4
    rows = np.repeat(np.arange(1000), times)
    weight = jnp.asarray(times / times.mean(), jnp.float32)
    weighted = primal_steps.Samples(samples.observation, samples.action, samples.advantage, weight)
    repeated = primal_steps.Samples(
        samples.observation[rows], samples.action[rows], samples.advantage[rows], jnp.ones(len(rows))
    )
    ours, theirs = (
        ravel_pytree(jax.grad(primal_steps.Surrogate.at(policy, each).gain)(policy))[0] for each in (weighted, repeated)
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    "config", [primal_steps.Trpo(), primal_steps.LikelihoodRatio(), primal_steps.Ppo(minibatches=1)]
)
def test_samples_without_weight_do_not_count(config, policy, samples):
    """Whatever the advantages of half of the samples are: their weight is 0."""
    half = jnp.arange(1000) % 2 == 0
    found = []
    for other in (0.0, 50.0):
        advantage = jnp.where(half, samples.advantage, other * samples.advantage)
        quiet = primal_steps.Samples(samples.observation, samples.action, advantage, 2.0 * half.astype(jnp.float32))
        found.append(ravel_pytree(improve(config, policy, quiet)[0])[0])
    np.testing.assert_array_equal(*found)
    assert not np.array_equal(found[0], ravel_pytree(policy)[0])


def test_ppo_ends_its_passes_once_the_policy_has_moved_too_far(policy, samples):
    """Four steps of Adam in each pass: the first is always made, and one that leads too far is the last."""

    def passes(most_kl):
        config = primal_steps.Ppo(minibatches=4, rate=3e-3, most_kl=most_kl)
        new, optimiser, metrics = improve(config, policy, samples)
        steps = int(optax.tree_utils.tree_get(optimiser, "count"))
        assert float(primal_steps.Surrogate.at(policy, samples).kl(new)) == pytest.approx(
            float(metrics["kl"]), rel=1e-3
        )
        return steps / 4, float(metrics["kl"])

    every, far = passes(0.0)
    assert every == 10
    assert passes(1e-9)[0] == 1
    assert passes(2.0 * far)[0] == 10
    some, stopped = passes(0.3 * far)
    assert 1 < some < 10
    assert stopped > 0.3 * far
    # Every pass but the last kept within the bound.
    assert passes(1.001 * stopped)[0] > some


def test_the_fisher_matrix_is_estimated_on_the_configured_share_of_the_batch(policy, samples):
    observation = samples.observation.at[1::5].set(100.0)
    vector = jnp.ones_like(ravel_pytree(policy)[0])
    fifth = primal_steps.fisher(trust_region.Curvature(fraction=0.2), policy, samples.observation)(vector)
    untouched = primal_steps.fisher(trust_region.Curvature(fraction=0.2), policy, observation)(vector)
    whole = primal_steps.fisher(trust_region.Curvature(fraction=1.0), policy, observation)(vector)
    np.testing.assert_array_equal(fifth, untouched)
    assert not np.allclose(fifth, whole, rtol=1e-2)

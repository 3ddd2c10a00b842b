"""The best policy of a training: the rule, its freedom from units, and whose batch speaks of whom."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from apdo import best, loop
from apdo.algorithms import pd_ddpg, pdo
from problems import Reach, advance_of, problem_of, training_of
from test_loop import CONFIGS

LIMITS = (0.5, -2.0)


def problem(limits=LIMITS, cost_discount=1.0):
    made = problem_of(Reach(costs=len(limits)), 200, limits)
    return dataclasses.replace(made, cost_discount=cost_discount)


def history(rng, epochs=40, limits=LIMITS, near=1.0):
    """Costs around their limits, as a batch would report them; the policy of an epoch is the epoch's number."""
    sizes = np.abs(np.asarray(limits))
    cost = np.asarray(limits) + near * sizes * rng.normal(0.3, 1.0, size=(epochs, len(limits)))
    return [
        {
            "return": rng.normal(),
            "discounted_return": rng.normal(),
            "return_error": rng.uniform(0.0, 0.5),
            "cost": cost[k],
            "cost_error": rng.uniform(0.0, 0.2, size=len(limits)) * sizes,
        }
        for k in range(epochs)
    ]


def follow(rows, problem, episodes=50, reward=1.0, cost=1.0):
    """The best after each epoch, with rewards and costs in other units."""
    units = {"return": reward, "discounted_return": reward, "return_error": reward, "cost": cost, "cost_error": cost}
    scaled = dataclasses.replace(problem, limits=tuple(cost * limit for limit in problem.limits))
    kept, seen = best.start({"weight": jnp.asarray(-1.0)}, scaled), []
    for k, row in enumerate(rows):
        metrics = {name: jnp.asarray(units[name] * np.asarray(value, np.float32)) for name, value in row.items()}
        policy = {"weight": jnp.asarray(float(k))}
        kept = best.update(kept, scaled, policy, metrics, jnp.asarray(episodes), jnp.asarray(k, dtype=jnp.int32))
        seen.append(kept)
    return seen


def believed(rows, name, episodes=50):
    """The rows as the filter has them: a twin of `best.Belief`, one value at a time; and how each cost has varied."""
    values = [np.concatenate([[row[name]], row["cost"]]) for row in rows]
    noises = [np.concatenate([[row["return_error"]], row["cost_error"]]) ** 2 for row in rows]
    mean, variance, drift, average, told = values[0], noises[0], noises[0], noises[0], []
    for k, (value, own) in enumerate(zip(values, noises, strict=True)):
        noise, average = np.maximum(own, (average + own) / 2), (average + own) / 2
        expected, surprise = np.maximum(variance + drift, 0.25 * noise), (value - mean) ** 2
        if k == 0 or any(surprise > 9.0 * (expected + noise)):
            mean, variance, drift, average = value, own, own, own
        else:
            learned = 0.8 * drift + 0.2 * (surprise - variance - noise)
            mean = (noise * mean + expected * value) / (expected + noise)
            variance, drift = expected * noise / (expected + noise), np.maximum(learned, 0.05 * noise)
        error = np.sqrt(variance)
        lowest = np.min([0.0 * value, *values[: k + 1]], axis=0)[1:]
        spread = [(np.sqrt(episodes * noise), least) for noise, least in zip(own[1:], lowest, strict=True)]
        told.append(
            {name: mean[0], "return_error": error[0], "cost": mean[1:], "cost_error": error[1:], "spread": spread}
        )
    return told


def relative_size(cost, limit, deviation, lowest):
    """What an excess counts in: two deviations of an episode, or less where cost and limit are small and positive."""
    whole = max(abs(cost), abs(limit))
    signed = lowest < 0 or limit < 0
    return max(2 * deviation if signed else min(2 * deviation, whole), whole / 10)


def by_hand(rows, limits, name):
    """The best after each epoch, by the rule as it is told: the epoch, and whether it is known to keep the limits."""

    def upper(row):
        return [cost + 1.645 * error for cost, error in zip(row["cost"], row["cost_error"], strict=True)]

    def known(k):
        return all(u <= d for u, d in zip(upper(rows[k]), limits, strict=True))

    def earns(k):
        return rows[k][name] - 1.645 * rows[k]["return_error"]

    def size(k, i):
        return relative_size(rows[k]["cost"][i], limits[i], *rows[now]["spread"][i])

    def worst(k, other):
        over = [max(u - d, 0.0) for u, d in zip(upper(rows[k]), limits, strict=True)]
        return max(one / max(size(k, i), size(other, i)) for i, one in enumerate(over))

    best, told = 0, []
    for now in range(len(rows)):
        if known(now) != known(best):
            best = now if known(now) else best
        elif known(now):
            best = now if earns(now) >= earns(best) else best
        elif worst(now, best) < worst(best, now):
            best = now
        told.append((best, known(best)))
    return told


@pytest.mark.parametrize("cost_discount", [1.0, 0.9])
@pytest.mark.parametrize("limits", [LIMITS, (0.5,), (3.0, 1.0, -0.1)])
def test_the_best_of_every_epoch_is_what_the_rule_names(limits, cost_discount):
    name, kinds = "discounted_return" if cost_discount < 1 else "return", set()
    for seed in range(12):
        rows = history(np.random.default_rng(seed), limits=limits)
        followed, rows = follow(rows, problem(limits, cost_discount)), believed(rows, name)
        for kept, (epoch, known) in zip(followed, by_hand(rows, limits, name), strict=True):
            assert (int(kept.epoch), bool(kept.known)) == (epoch, known)
            assert float(kept.policy["weight"]) == epoch
            np.testing.assert_allclose(kept.cost, rows[epoch]["cost"], rtol=1e-4)
            np.testing.assert_allclose(kept.cost_error, rows[epoch]["cost_error"], rtol=1e-4)
            assert float(kept.returned) == pytest.approx(rows[epoch][name], rel=1e-4, abs=1e-5)
            kinds.add(known)
    assert kinds == {True, False}


@pytest.mark.parametrize(("reward", "cost"), [(2.0**20, 1.0), (1.0, 2.0**-30), (2.0**-40, 2.0**35)])
def test_units_that_are_powers_of_two_change_no_bit(reward, cost):
    rows = history(np.random.default_rng(3))
    for one, other in zip(follow(rows, problem()), follow(rows, problem(), reward=reward, cost=cost), strict=True):
        assert (int(one.epoch), bool(one.known)) == (int(other.epoch), bool(other.known))
        assert float(other.returned) == reward * float(one.returned)
        np.testing.assert_array_equal(other.cost, cost * one.cost)


def test_a_limit_of_nothing_is_kept_by_no_cost_and_exceeded_least_by_the_least():
    rows = history(np.random.default_rng(0), epochs=3, limits=(1.0,))
    for row, value in zip(rows, (0.5, 0.0, 0.25), strict=True):
        row["cost"], row["cost_error"] = np.array([value]), np.array([0.1 * value])
    kept = follow(rows, problem((0.0,)))
    assert [(int(one.epoch), bool(one.known)) for one in kept] == [(0, False), (1, True), (1, True)]


@pytest.mark.parametrize("limit", [0.0, -1.0, 0.01])
def test_a_limit_that_no_batch_can_show_to_be_kept_is_exceeded_least_by_the_lowest_upper_bound(limit):
    """Relative to themselves, 0.04 ± 0.02 is above 0 by 1.8, and 1.5 ± 0.2 by 1.2; an episode of the latter varies."""
    rows = history(np.random.default_rng(0), epochs=6, limits=(limit,))
    shown = [(1.2, 0.2), (1.5, 0.2), (0.3, 0.06), (0.04, 0.02), (0.2, 0.02), (0.05, 0.03)]
    for row, (cost, error) in zip(rows, shown, strict=True):
        row |= {"cost": np.array([cost]), "cost_error": np.array([error])}
    chosen = [int(one.epoch) for one in follow(rows, problem((limit,)))]
    bounds = [row["cost"][0] + 1.645 * row["cost_error"][0] for row in believed(rows, "return")]
    assert chosen == [int(np.argmin(bounds[: k + 1])) for k in range(6)]
    assert chosen[3] == 3
    assert [int(one.epoch) for one in follow(rows, problem((limit,)), cost=2.0**-30)] == chosen


def test_beside_a_limit_of_nothing_another_limit_still_counts():
    """The first cost is as far above 0 in both epochs; the second is within its limit of 1 in the later one."""
    rows = history(np.random.default_rng(0), epochs=2, limits=(0.0, 1.0))
    for row, second in zip(rows, (3.0, 0.5), strict=True):
        row |= {"cost": np.array([0.5, second]), "cost_error": np.array([0.1, 0.01])}
    assert [int(one.epoch) for one in follow(rows, problem((0.0, 1.0)))] == [0, 1]


def test_a_drift_near_its_limit_of_zero_exceeds_it_less_than_a_cost_that_hardly_varies_exceeds_its_own():
    """A drift of -0.1 ± 0.25 may exceed 0 by three times its size, a power of 1.56 exceeds 1.5 by 4 %."""
    rows = history(np.random.default_rng(0), epochs=3, limits=(0.0, 1.5))
    rows[0] |= {"cost": np.array([-0.9, 1.56]), "cost_error": np.array([0.25, 0.004])}
    for row in rows[1:]:
        row |= {"cost": np.array([-0.1, 1.45]), "cost_error": np.array([0.25, 0.004])}
    assert int(follow(rows, problem((0.0, 1.5)))[1].epoch) == 1


def test_of_two_that_earn_the_same_the_later_is_better_since_more_batches_speak_of_it():
    rows = history(np.random.default_rng(0), epochs=3, limits=(1.0,))
    for row in rows:
        row |= {"return": -500.0, "return_error": 0.0, "cost": np.array([0.5]), "cost_error": np.array([0.1])}
    assert [int(one.epoch) for one in follow(rows, problem((1.0,)))] == [0, 1, 2]


def test_one_episode_says_nothing_of_how_much_episodes_differ():
    rows = history(np.random.default_rng(0), epochs=1)
    rows[0] |= {"cost": np.asarray(LIMITS) - 1.0, "cost_error": np.zeros(2)}
    assert bool(follow(rows, problem(), episodes=2)[0].known)
    assert not bool(follow(rows, problem(), episodes=1)[0].known)


def walks(drift, slope=0.0, runs=400, epochs=60):
    """Values that drift, what batches show of them with an error of 1, and what is believed after each."""
    rng = np.random.default_rng(0)
    truth = np.cumsum(rng.normal(0.0, drift, size=(runs, epochs)), axis=1) + slope * np.arange(epochs)
    shown = truth + rng.normal(size=truth.shape)

    def follow(belief, value):
        belief = belief.observe(value[None], jnp.ones(1))
        return belief, (belief.mean[0], jnp.sqrt(belief.variance[0]))

    told = jax.vmap(lambda values: jax.lax.scan(follow, best.Belief.none(1), values)[1])(jnp.asarray(shown))
    return truth, *map(np.asarray, told)


@pytest.mark.parametrize("drift", [0.0, 0.1, 0.3, 1.0, 3.0])
def test_a_bound_of_95_percent_covers_what_drifts_however_fast_it_does(drift):
    """Within 4 % of the 95 that are promised: how fast a value drifts is itself learned from few batches."""
    truth, mean, error = walks(drift)
    for side in (1.0, -1.0):
        assert np.mean(side * (truth - mean) < best.CONFIDENCE * error) > 0.91


def test_of_a_policy_that_stands_still_many_batches_say_more_than_one():
    truth, mean, error = walks(0.0)
    assert np.std((truth - mean)[:, 10:]) < 0.55
    assert np.mean(error[:, 10:]) < 0.65


def test_batches_without_a_rare_event_are_not_surer_than_one_with_it():
    """One batch in four shows a cost of 4 ± 4, the others none ± 0: a limit of 0.5 is not known to be kept."""
    belief = best.Belief.none(1)
    for k in range(40):
        event = 4.0 * (k % 4 == 0)
        belief = belief.observe(jnp.asarray([event]), jnp.asarray([event]))
        if k >= 8:
            assert float(belief.mean[0]) + best.CONFIDENCE * float(jnp.sqrt(belief.variance[0])) > 0.5


def test_batches_at_the_most_that_can_be_earned_are_doubted_by_one_that_earns_less():
    """Thirty batches of 500 ± 0, as of a pole that never falls, and then one of 366 ± 60, of a policy that drops it."""
    rows = history(np.random.default_rng(0), epochs=31, limits=(1.0,))
    for k, row in enumerate(rows):
        earned = {"return": 366.0, "return_error": 60.0} if k == 30 else {"return": 500.0, "return_error": 0.0}
        row |= earned | {"cost": np.array([0.0]), "cost_error": np.array([0.0])}
    followed = follow(rows, problem((1.0,)))
    assert int(followed[-1].epoch) == 29
    assert float(followed[-1].returned) == 500.0


def test_with_the_least_drift_the_filter_comes_to_the_least_doubt_that_it_may_have():
    belief = best.Belief.none(1)
    for _ in range(200):
        belief = belief.observe(jnp.asarray([1.0]), jnp.asarray([2.0]))
    expected = float(belief.variance[0] + belief.drift[0])
    assert expected == pytest.approx(0.25 * 2.0**2, rel=1e-4)


def test_after_a_jump_only_the_batches_since_then_count():
    """Costs of 5 before, of 1 since: what is believed is what one batch alone would say."""
    belief = best.Belief.none(2)
    for _ in range(20):
        belief = belief.observe(jnp.asarray([2.0, 5.0]), jnp.asarray([0.1, 0.1]))
    jumped = belief.observe(jnp.asarray([2.0, 1.0]), jnp.asarray([0.1, 0.1]))
    alone = best.Belief.none(2).observe(jnp.asarray([2.0, 1.0]), jnp.asarray([0.1, 0.1]))
    for ours, theirs in zip(jax.tree.leaves(jumped), jax.tree.leaves(alone), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_the_batch_of_an_epoch_speaks_of_the_policy_before_its_step():
    """A limit that anything keeps: the best is that of the highest lower bound, and its policy the one that acted."""
    training = training_of(pdo, CONFIGS["pdo"][1], limits=(100.0,))
    advance, one = advance_of(training), jnp.asarray(1, dtype=jnp.int32)
    state, policies, rows = loop.start(training, [3, 4]), [], []
    for _ in range(5):
        policies.append(jax.tree.map(np.array, training.algorithm.learned_policy(state.algorithm)))
        chunk = advance(state, one)
        state, row = chunk.state, jax.tree.map(lambda leaf: np.asarray(leaf[0]), chunk.metrics)
        rows.append({name: row[name] for name in ("discounted_return", "return_error", "cost", "cost_error")})
    kept = state.best
    assert kept is not None
    for s in (0, 1):
        own = believed([{name: values[s] for name, values in row.items()} for row in rows], "discounted_return")
        bounds = [row["discounted_return"] - 1.645 * row["return_error"] for row in own]
        assert int(kept.epoch[s]) == int(np.argmax(bounds))
    assert np.asarray(kept.known).all()
    for s in (0, 1):
        acted = policies[int(kept.epoch[s])]
        for ours, theirs in zip(jax.tree.leaves(kept.policy), jax.tree.leaves(acted), strict=True):
            np.testing.assert_array_equal(ours[s], theirs[s])


def test_an_epoch_that_breaks_leaves_the_best_as_it_was():
    """The reward is NaN: the epoch does not count, and is nobody's best."""
    sound, broken = (training_of(pdo, CONFIGS["pdo"][1], task) for task in (Reach(), Reach(reward_after=3)))
    two = jnp.asarray(2, dtype=jnp.int32)
    state = advance_of(sound)(loop.start(sound, [0]), two).state
    before = jax.tree.map(np.array, state.best)
    chunk = loop.make_advance(broken)(state, two)
    assert int(chunk.done) == 0
    for ours, theirs in zip(jax.tree.leaves(chunk.state.best), jax.tree.leaves(before), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_noise_that_a_policy_has_not_makes_no_best_of_it():
    training = training_of(pd_ddpg, CONFIGS["pd-ddpg"][1])
    assert loop.start(training, [0]).best is None

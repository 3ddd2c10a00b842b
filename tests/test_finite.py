"""A finite CMDP is what its arrays say, or is refused in one sentence; a folded horizon is the recursion over time."""

import itertools

import numpy as np
import pytest
import scipy.sparse

from apdo import exact
from apdo.errors import InvalidInput
from apdo.finite import FiniteCMDP, fold_time
from finite_problems import random_cmdp, two_states


def arrays(**changes):
    moves = np.asarray([[[0.5, 0.5], [1.0, 0.0]], [[0.0, 1.0], [0.25, 0.75]]])
    given = {
        "transition": moves,
        "reward": np.ones((2, 2)),
        "cost": np.ones((1, 2, 2)),
        "start": [1.0, 0.0],
        "discount": 0.9,
        "limits": [1.0],
    }
    return given | changes


def moved(index, value):
    moves = arrays()["transition"].copy()
    moves[index] = value
    return moves


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"transition": moved((1, 0, 0), 0.1)}, "sum to 1.1 at state 1, action 0"),
        ({"transition": moved((0, 1), [1.5, -0.5])}, "negative, and is -0.5 at state 0, action 1"),
        ({"transition": moved((1, 1, 0), np.nan)}, "transition must be finite"),
        ({"transition": np.ones((2, 2, 3)) / 3}, "shape [2, 2, 2]"),
        ({"transition": scipy.sparse.eye_array(3)}, "shape [4, 2]"),
        ({"transition": [["a"]]}, "array of numbers"),
        ({"reward": np.ones(2)}, "reward must have 2 axes"),
        ({"reward": np.ones((0, 2))}, "needs a state"),
        ({"reward": [[1, np.inf], [0, 0]]}, "inf at index [0, 1]"),
        ({"cost": np.ones((1, 2, 3))}, "cost must have shape [M, 2, 2]"),
        ({"limits": [1.0, 2.0]}, "1 costs and 2 limits"),
        ({"start": [0.5, 0.6]}, "start must sum to 1, and sums to 1.1"),
        ({"start": [1.5, -0.5]}, "start must not be negative"),
        ({"start": [1.0]}, "each of 2 states"),
        ({"discount": 1.1}, "between 0 and 1"),
        ({"discount": np.nan}, "between 0 and 1"),
        ({"discount": 1.0}, "from state 0 one never ends (2 of 2 states)"),
        ({"ending": np.full((2, 2), 0.1)}, "sum to 1.1 at state 0, action 0"),
        ({"ending": np.full((2, 2), -0.1)}, "ending must not be negative"),
        ({"ending": np.ones((2, 1))}, "ending must have reward's shape"),
        ({"cost_names": ["a", "b"]}, "2 names"),
    ],
)
def test_what_is_no_cmdp_is_refused_in_one_sentence(changes, said):
    with pytest.raises(InvalidInput) as error:
        FiniteCMDP.of(**arrays(**changes))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_rows_that_nearly_sum_to_one_are_made_to():
    cmdp = FiniteCMDP.of(**arrays(transition=moved((0, 0), [0.5, 0.5 + 5e-7])))
    np.testing.assert_allclose(cmdp.dense().sum(axis=2), 1.0, rtol=0, atol=1e-15)


def test_a_sparse_transition_is_the_dense_one_and_its_duplicates_are_added():
    dense = FiniteCMDP.of(**arrays())
    rows, columns = np.asarray([0, 0, 1, 2, 3, 3, 0]), np.asarray([0, 1, 0, 1, 0, 1, 1])
    data = np.asarray([0.5, 0.25, 1.0, 1.0, 0.25, 0.75, 0.25])
    sparse = FiniteCMDP.of(**arrays(transition=scipy.sparse.coo_array((data, (rows, columns)), shape=(4, 2))))
    np.testing.assert_array_equal(dense.dense(), sparse.dense())


def test_what_was_checked_cannot_be_changed_afterwards():
    given = arrays()
    cmdp = FiniteCMDP.of(**given)
    given["reward"][0, 0] = 7.0
    assert cmdp.reward[0, 0] == 1.0
    with pytest.raises(ValueError, match="read-only"):
        cmdp.reward[0, 0] = 7.0


def never_ends(cmdp_arrays):
    """By brute force: whether some deterministic policy has a closed set of states that it never leaves."""
    moves, ending = cmdp_arrays["transition"], cmdp_arrays["ending"]
    states, actions, _ = moves.shape
    for chosen in itertools.product(range(actions), repeat=states):
        chain = moves[np.arange(states), list(chosen)]
        reach = np.linalg.matrix_power((chain > 0).astype(int) + np.eye(states, dtype=int), states) > 0
        leaves = ending[np.arange(states), list(chosen)] > 0
        if any(not leaves[reach[s]].any() for s in range(states)):
            return True
    return False


def test_discount_one_is_allowed_exactly_where_every_policy_ends():
    rng = np.random.default_rng(0)
    answers = []
    for _ in range(150):
        moves = rng.dirichlet(np.ones(4), (4, 2)) * (rng.uniform(size=(4, 2, 4)) < 0.4)
        ending = (rng.uniform(size=(4, 2)) < 0.55).astype(float) + (moves.sum(axis=2) == 0)
        total = moves.sum(axis=2) + ending
        given = arrays(
            transition=moves / total[..., None],
            ending=ending / total,
            reward=np.ones((4, 2)),
            cost=np.ones((1, 4, 2)),
            start=np.full(4, 0.25),
            discount=1.0,
        )
        answers.append(never_ends(given))
        if answers[-1]:
            with pytest.raises(InvalidInput, match="never ends"):
                FiniteCMDP.of(**given)
        else:
            FiniteCMDP.of(**given)
    assert 20 < sum(answers) < 130


def by_recursion(cmdp, policy, horizon, discount, signal):
    """The sum of a signal over time, layer by layer from the last."""
    value = np.zeros(cmdp.states)
    for t in reversed(range(horizon)):
        value = np.sum(policy[t] * (signal + discount * cmdp.dense() @ value), axis=1)
    return cmdp.start @ value


@pytest.mark.parametrize(
    ("discount", "cost_discount"), [(None, None), (1.0, None), (1.0, 0.7), (0.6, 0.95), (0.0, 0.5)]
)
def test_a_folded_horizon_gives_the_sums_of_the_recursion_over_time(discount, cost_discount):
    cmdp, horizon = random_cmdp(1, constraints=2, ends=True), 5
    policy = np.random.default_rng(2).dirichlet(np.ones(3), (horizon, 4))
    folded = fold_time(cmdp, horizon, discount=discount, cost_discount=cost_discount)
    found = exact.evaluate(folded, policy.reshape(-1, 3))
    of_reward = 0.9 if discount is None else discount
    of_cost = of_reward if cost_discount is None else cost_discount
    np.testing.assert_allclose(found.value, by_recursion(cmdp, policy, horizon, of_reward, cmdp.reward), rtol=1e-12)
    for i in range(2):
        expected = by_recursion(cmdp, policy, horizon, of_cost, cmdp.cost[i])
        np.testing.assert_allclose(found.costs[i], expected, rtol=1e-12)


def test_the_best_policy_of_a_folded_problem_is_that_of_backward_induction():
    cmdp, horizon = random_cmdp(3).with_limits([1e6]), 6
    value = np.zeros(4)
    for _ in range(horizon):
        value = (cmdp.reward + 0.9 * cmdp.dense() @ value).max(axis=1)
    np.testing.assert_allclose(exact.solve(fold_time(cmdp, horizon)).value, cmdp.start @ value, rtol=1e-12)


def test_folding_a_single_step_leaves_a_single_choice():
    folded = fold_time(two_states(), 1)
    assert folded.transition.nnz == 0
    assert exact.solve(folded).value == pytest.approx(1.0)
    with pytest.raises(InvalidInput, match="at least one step"):
        fold_time(two_states(), 0)

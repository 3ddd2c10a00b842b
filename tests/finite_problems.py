"""Small finite CMDPs for tests."""

import numpy as np
import scipy.sparse

from apdo.finite import FiniteCMDP


def random_cmdp(seed, *, states=4, actions=3, constraints=1, discount=0.9, ends=False, tightness=0.5):
    """A random CMDP whose limits lie between the costs of the best policy and the least costs."""
    from apdo import exact

    rng = np.random.default_rng(seed)
    moves = rng.dirichlet(np.full(states, 0.5), (states, actions))
    ending = rng.uniform(0.05, 0.3, (states, actions)) if ends else np.zeros((states, actions))
    cmdp = FiniteCMDP.of(
        moves * (1 - ending)[..., None],
        rng.uniform(size=(states, actions)),
        rng.uniform(size=(constraints, states, actions)),
        rng.dirichlet(np.ones(states)),
        discount,
        np.full(constraints, 1e6),
        ending=ending,
    )
    greedy = exact.lagrangian(cmdp, np.zeros(constraints)).costs
    careful = exact.lagrangian(cmdp, np.full(constraints, 100.0)).costs
    return cmdp.with_limits(greedy + tightness * (careful - greedy))


def garnet(seed, *, states, actions=10, branches=5, constraints=2, discount=0.99):
    """A random sparse CMDP in which each action leads to a few states, with binding limits."""
    rng = np.random.default_rng(seed)
    rows = states * actions
    to = rng.integers(0, states, (rows, branches))
    weights = rng.dirichlet(np.ones(branches), rows)
    moves = scipy.sparse.coo_array(
        (weights.reshape(-1), (np.repeat(np.arange(rows), branches), to.reshape(-1))), shape=(rows, states)
    )
    return FiniteCMDP.of(
        moves,
        rng.uniform(size=(states, actions)),
        rng.uniform(size=(constraints, states, actions)),
        np.full(states, 1 / states),
        discount,
        np.full(constraints, 0.33) / (1 - discount),
    )


def two_states(limit=1.0, discount=0.8):
    """Work or rest, in closed form.

    State 0: action 0 (rest) stays, earns 0, costs 0; action 1 (work) moves to state 1, earns 1, costs 1. State 1: both
    actions lead back to state 0 for nothing. Let x be the discounted number of times that work is chosen. The return
    and the cost are both x, and x lies between 0 and 1 + γ² + γ⁴ + ... = 1 / (1 - γ²). So the optimal return is
    min(d, 1 / (1 - γ²)) and λ* = 1 below that limit, 0 above.
    """
    moves = np.zeros((2, 2, 2))
    moves[0, 0, 0] = moves[0, 1, 1] = moves[1, :, 0] = 1.0
    work = np.asarray([[0.0, 1.0], [0.0, 0.0]])
    return FiniteCMDP.of(moves, work, work[None], [1.0, 0.0], discount, [limit])

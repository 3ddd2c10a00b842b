"""Finite constrained Markov decision processes, as arrays.

Maximise over policies π the return  E Σ_t γ^t r(s_t, a_t)  subject to  E Σ_t γ^t c_i(s_t, a_t) ≤ d_i  for every i, from
a start distribution. The step (s, a) ends the episode with probability `ending[s, a]` and otherwise moves to s' with
probability `transition[s·A + a, s']`; the two sum to one. Nothing is earned after the end.

A `FiniteCMDP` is made by `FiniteCMDP.of`, which checks everything, or by `fold_time`, which turns a problem with a
horizon into one without. `apdo.exact` solves it, and `apdo.tasks.tabular` has environments for it.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike, NDArray

from apdo.errors import InvalidInput

Floats = NDArray[np.float64]

TOLERANCE = 1e-6
"""The largest allowed deviation of a sum of probabilities from one. Probabilities are divided by their sum."""
ROUNDING = 1e-12
"""Sums of probabilities that deviate from one by less than this are not rescaled."""


@dataclasses.dataclass(frozen=True, eq=False)
class FiniteCMDP:
    """A finite CMDP of S states, A actions and M constraints. Use `FiniteCMDP.of`; the constructor checks nothing."""

    transition: scipy.sparse.csr_array
    """[S·A, S]: row s·A + a has the probability of each next state."""
    reward: Floats
    """[S, A]: r."""
    cost: Floats
    """[M, S, A]: c."""
    start: Floats
    """[S]: the distribution of the first state."""
    discount: float
    """γ in [0, 1], for both reward and costs. It may be 1 only if every policy ends every episode."""
    limits: Floats
    """[M]: d, in the same discounted sums as the costs."""
    ending: Floats
    """[S, A]: the probability that the episode ends with this step."""
    cost_names: tuple[str, ...]
    """The name of each cost."""

    @classmethod
    def of(
        cls,
        transition: ArrayLike | scipy.sparse.sparray | scipy.sparse.spmatrix,
        reward: ArrayLike,
        cost: ArrayLike,
        start: ArrayLike,
        discount: float,
        limits: ArrayLike,
        *,
        ending: ArrayLike | None = None,
        cost_names: Sequence[str] | None = None,
    ) -> "FiniteCMDP":
        """A checked CMDP. `transition` is dense [S, A, S] or sparse [S·A, S]; without `ending`, episodes never end."""
        gains = _numbers("reward", reward, 2)
        states, actions = gains.shape
        if states == 0 or actions == 0:
            raise InvalidInput(f"a CMDP needs a state and an action, and reward has shape {gains.shape}.")
        costs = _numbers("cost", cost, 3)
        if costs.shape[1:] != gains.shape:
            raise InvalidInput(
                f"cost must have shape [M, {states}, {actions}] to go with reward's, and has {list(costs.shape)}."
            )
        bounds = _numbers("limits", limits, 1)
        if bounds.shape[0] != costs.shape[0]:
            raise InvalidInput(f"there are {costs.shape[0]} costs and {bounds.shape[0]} limits; give one for each.")
        ends = np.zeros_like(gains) if ending is None else _numbers("ending", ending, 2)
        if ends.shape != gains.shape:
            raise InvalidInput(f"ending must have reward's shape {list(gains.shape)}, and has {list(ends.shape)}.")
        moves, ends = _stochastic(_sparse(transition, states, actions), ends)
        checked = cls(
            transition=moves,
            reward=_frozen(gains),
            cost=_frozen(costs),
            start=_frozen(_distribution(start, states)),
            discount=_discount("discount", discount),
            limits=_frozen(bounds),
            ending=_frozen(ends),
            cost_names=_names(cost_names, costs.shape[0]),
        )
        if checked.discount == 1:
            _check_ends(checked)
        return checked

    @property
    def states(self) -> int:
        """S, the number of states."""
        return self.reward.shape[0]

    @property
    def actions(self) -> int:
        """A, the number of actions."""
        return self.reward.shape[1]

    @property
    def constraints(self) -> int:
        """M, the number of constraints."""
        return self.cost.shape[0]

    def dense(self) -> Floats:
        """The transition probabilities as [S, A, S]."""
        return self.transition.toarray().reshape(self.states, self.actions, self.states)

    def with_limits(self, limits: ArrayLike) -> "FiniteCMDP":
        """The same problem with other limits."""
        bounds = _numbers("limits", limits, 1)
        if bounds.shape[0] != self.constraints:
            raise InvalidInput(f"there are {self.constraints} costs and {bounds.shape[0]} limits; give one for each.")
        return dataclasses.replace(self, limits=_frozen(bounds))


def fold_time(
    cmdp: FiniteCMDP, horizon: int, *, discount: float | None = None, cost_discount: float | None = None
) -> FiniteCMDP:
    """The problem with episodes of at most H = `horizon` steps, and with the time in the state.

    It has S·H states; state t·S + s is state s at time t. Steps from the last layer always end the episode. A policy
    [S·H, A] of the result, reshaped to [H, S, A], has the policy for each time.

    `discount` and `cost_discount` replace the problem's own, and may be 1 because every episode ends. If the two are
    equal, the result has this discount and unchanged rewards. If they differ, the rewards of layer t are multiplied by
    γ^t and its costs by γ_c^t, and the result's discount is 1. These factors are at most one, whereas scaling only the
    costs by (γ_c / γ)^t could overflow.
    """
    if horizon < 1:
        raise InvalidInput(f"the horizon must be at least one step, and is {horizon}.")
    of_reward = _discount("discount", cmdp.discount if discount is None else discount)
    of_cost = _discount("cost_discount", of_reward if cost_discount is None else cost_discount)
    shared = of_reward == of_cost
    time = np.zeros((horizon, 1, 1)) if shared else np.arange(horizon).reshape(horizon, 1, 1)
    folded = (horizon * cmdp.states, cmdp.actions)
    later = scipy.sparse.eye_array(horizon, k=1, format="csr")
    ending = np.broadcast_to(cmdp.ending, (horizon, *cmdp.ending.shape)).copy()
    ending[-1] = 1.0
    start = np.zeros(folded[0])
    start[: cmdp.states] = cmdp.start
    return FiniteCMDP(
        transition=scipy.sparse.csr_array(scipy.sparse.kron(later, cmdp.transition, format="csr")),
        reward=_frozen((of_reward**time * cmdp.reward).reshape(folded)),
        cost=_frozen((of_cost**time * cmdp.cost[:, None]).reshape(cmdp.constraints, *folded)),
        start=_frozen(start),
        discount=of_reward if shared else 1.0,
        limits=cmdp.limits,
        ending=_frozen(ending.reshape(folded)),
        cost_names=cmdp.cost_names,
    )


# Checks.


def _numbers(name: str, given: ArrayLike, axes: int) -> Floats:
    """A copy as floats; InvalidInput if it has another number of axes or is not finite."""
    try:
        array = np.array(given, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidInput(f"{name} must be an array of numbers.") from None
    if array.ndim != axes:
        raise InvalidInput(f"{name} must have {axes} axes, and has shape {list(array.shape)}.")
    if not np.isfinite(array).all():
        where = np.argwhere(~np.isfinite(array))[0].tolist()
        raise InvalidInput(f"{name} must be finite, and is {array[tuple(where)]} at index {where}.")
    return array


def _sparse(given: Any, states: int, actions: int) -> scipy.sparse.csr_array:  # noqa: ANN401 - numpy's or scipy's
    """The transition as a canonical sparse array of finite numbers, one row for each state and action."""
    if scipy.sparse.issparse(given):
        expected, shape = [states * actions, states], list(given.shape)
        moves = given
    else:
        moves = _numbers("transition", given, 3)
        expected, shape = [states, actions, states], list(moves.shape)
        moves = moves.reshape(-1, moves.shape[-1])
    if shape != expected:
        raise InvalidInput(f"transition must have shape {expected} to go with reward's, and has {shape}.")
    canonical = scipy.sparse.csr_array(moves, dtype=np.float64, copy=True)
    canonical.sum_duplicates()
    canonical.eliminate_zeros()
    if not np.isfinite(canonical.data).all():
        row = _row_of(canonical, ~np.isfinite(canonical.data))
        raise InvalidInput(f"transition must be finite, and is not at {_place(row, actions)}.")
    return canonical


def _stochastic(moves: scipy.sparse.csr_array, ending: Floats) -> tuple[scipy.sparse.csr_array, Floats]:
    """Transition and ending with rows that sum to exactly one.

    InvalidInput if a probability is negative, or if a row's sum is not one up to the tolerance.
    """
    actions = ending.shape[1]
    if (moves.data < 0).any():
        row = _row_of(moves, moves.data == moves.data.min())
        raise InvalidInput(f"transition must not be negative, and is {moves.data.min():g} at {_place(row, actions)}.")
    if (ending < 0).any():
        row = int(np.argmin(ending))
        raise InvalidInput(f"ending must not be negative, and is {ending.min():g} at {_place(row, actions)}.")
    total = np.asarray(moves.sum(axis=1)).reshape(-1) + ending.reshape(-1)
    off = np.abs(total - 1) > TOLERANCE
    if off.any():
        row = int(np.argmax(off))
        raise InvalidInput(
            f"the probabilities of the next states and of the end must sum to 1, and sum to {total[row]:.9g} at "
            f"{_place(row, actions)}."
        )
    # Sums that are one up to rounding are not rescaled, so that checking a checked problem again changes nothing.
    total[np.abs(total - 1) < ROUNDING] = 1.0
    scaled = moves.copy()
    scaled.data /= np.repeat(total, np.diff(moves.indptr))
    return scaled, ending / total.reshape(ending.shape)


def _distribution(given: ArrayLike, states: int) -> Floats:
    start = _numbers("start", given, 1)
    if start.shape[0] != states:
        raise InvalidInput(f"start must have a probability for each of {states} states, and has {start.shape[0]}.")
    if (start < 0).any():
        raise InvalidInput(f"start must not be negative, and is {start.min():g} at state {int(np.argmin(start))}.")
    if abs(start.sum() - 1) > TOLERANCE:
        raise InvalidInput(f"start must sum to 1, and sums to {start.sum():.9g}.")
    return start if abs(start.sum() - 1) < ROUNDING else start / start.sum()


def _discount(name: str, given: float) -> float:
    if not 0 <= given <= 1:
        raise InvalidInput(f"{name} must be between 0 and 1, and is {given}.")
    return float(given)


def _names(given: Sequence[str] | None, constraints: int) -> tuple[str, ...]:
    if given is None:
        return ("cost",) if constraints == 1 else tuple(f"cost {i}" for i in range(constraints))
    if len(given) != constraints:
        raise InvalidInput(f"there are {constraints} costs and {len(given)} names for them; give one for each.")
    return tuple(given)


def _check_ends(cmdp: FiniteCMDP) -> None:
    """For discount 1: raise InvalidInput if some policy never ends an episode, and name a state where it does not.

    States are removed if every action may end the episode or may lead to a removed state, until no more can be removed.
    Each remaining state has an action that keeps the episode among the remaining states for ever. If no state remains,
    there is no end component. Every endless episode would end up in one, so every policy ends with probability one.
    """
    states, actions = cmdp.states, cmdp.actions
    into = scipy.sparse.csc_array(cmdp.transition)
    lasting = cmdp.ending == 0
    alive = lasting.any(axis=1)
    removed = np.flatnonzero(~alive)
    while removed.size:
        rows = np.concatenate([into.indices[into.indptr[s] : into.indptr[s + 1]] for s in removed])
        lasting[rows // actions, rows % actions] = False
        still = lasting.any(axis=1)
        removed = np.flatnonzero(alive & ~still)
        alive = still
    if alive.any():
        raise InvalidInput(
            f"discount 1 needs every policy to end every episode, and from state {int(np.argmax(alive))} one never "
            f"ends ({int(alive.sum())} of {states} states); lower the discount or fold a horizon into the state "
            "(fold_time)."
        )


def _row_of(moves: scipy.sparse.csr_array, entries: NDArray[np.bool_]) -> int:
    """The row of the first of the marked entries."""
    return int(np.searchsorted(moves.indptr, np.argmax(entries), side="right")) - 1


def _place(row: int, actions: int) -> str:
    return f"state {row // actions}, action {row % actions}"


def _frozen(array: Floats) -> Floats:
    array.setflags(write=False)
    return array

"""CPO's small problem against brute force."""

import itertools
from decimal import Decimal, localcontext

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

from apdo.core import constrained_step
from apdo.errors import InvalidInput

solve = jax.jit(constrained_step.solve)


class Geometry:
    """A random problem in few dimensions, with H known, so that a move can be judged in full."""

    def __init__(self, rng, constraints, cost_scale, radius, dimensions=6):
        root = rng.normal(size=(dimensions, dimensions))
        self.h = root @ root.T + 0.1 * np.eye(dimensions)
        self.inverse = np.linalg.inv(self.h)
        self.g = rng.normal(size=dimensions)
        self.b = rng.normal(size=(constraints, dimensions))
        self.c = rng.normal(size=constraints) * cost_scale
        self.radius = radius

    def numbers(self):
        g, b, inverse = self.g, self.b, self.inverse
        values = (g @ inverse @ g, b @ inverse @ g, b @ inverse @ b.T, self.c)
        return tuple(jnp.asarray(value, dtype=jnp.float32) for value in values)

    def move(self, solution):
        along = np.asarray(solution.along_constraint, dtype=np.float64)
        return float(solution.along_objective) * self.inverse @ self.g + along @ self.b @ self.inverse

    def kl(self, x):
        return 0.5 * x @ self.h @ x

    def violation(self, x):
        return np.maximum(self.c + self.b @ x, 0.0)

    def least_distance(self):
        """min xᵀHx/2 within the constraints, by a general solver."""
        found = minimize(
            self.kl,
            np.zeros(len(self.g)),
            jac=lambda x: self.h @ x,
            constraints=[{"type": "ineq", "fun": lambda x: -(self.c + self.b @ x), "jac": lambda x: -self.b}],
            method="SLSQP",
            options={"maxiter": 500, "ftol": 1e-14},
        )
        return found.fun

    def best_gain(self, start):
        """max gᵀx by a general solver, from a feasible start."""
        found = minimize(
            lambda x: -self.g @ x,
            start,
            jac=lambda x: -self.g,
            constraints=[
                {"type": "ineq", "fun": lambda x: self.radius - self.kl(x), "jac": lambda x: -self.h @ x},
                {"type": "ineq", "fun": lambda x: -(self.c + self.b @ x), "jac": lambda x: -self.b},
            ],
            method="SLSQP",
            options={"maxiter": 500, "ftol": 1e-13},
        )
        return -found.fun


def random_problems(constraints, count, seed=0):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        yield Geometry(rng, constraints, 10 ** rng.uniform(-4, 0.5), 0.01 * 10 ** rng.uniform(-1, 2))


@pytest.mark.parametrize("constraints", [1, 2, 3])
def test_the_move_is_optimal_and_feasible_in_every_case(constraints):
    cases = {"free": 0, "constrained": 0, "recovering": 0, "on the edge": 0}
    for problem in random_problems(constraints, 150):
        distance = problem.least_distance()
        if abs(distance / problem.radius - 1.0) < 1e-3:
            cases["on the edge"] += 1
            continue
        solution = solve(*problem.numbers(), problem.radius)
        x = problem.move(solution)
        assert problem.kl(x) <= problem.radius * 1.001
        assert bool(solution.recovering) == (distance > problem.radius)
        if solution.recovering:
            cases["recovering"] += 1
            continue
        cases["constrained" if solution.constrained else "free"] += 1
        assert np.all(problem.violation(x) < 2e-4 * (1.0 + np.abs(problem.c)))
        best = problem.best_gain(x)
        assert problem.g @ x >= best - 1e-3 * abs(best) - 1e-5
    assert min(cases[name] for name in ("free", "constrained", "recovering")) >= 5, cases


def test_the_four_cases_of_one_constraint_are_each_met():
    """c < 0 or c > 0, and the trust region wholly feasible, partly, or not at all."""
    met = set()
    for problem in random_problems(1, 200, seed=1):
        solution = solve(*problem.numbers(), problem.radius)
        met.add((bool(problem.c[0] > 0), bool(solution.constrained), bool(solution.recovering)))
    assert met == {
        (False, False, False),
        (False, True, False),
        (True, True, False),
        (True, True, True),
        (True, False, False),
    }


def test_the_multiplier_is_what_one_more_unit_of_slack_is_worth():
    rng = np.random.default_rng(2)
    checked = 0
    while checked < 20:
        problem = Geometry(rng, 2, 0.05, 0.05)
        solution = solve(*problem.numbers(), problem.radius)
        if solution.recovering or not np.all(solution.multiplier > 0.05):
            continue
        x = problem.move(solution)
        for i in range(2):
            slack, h = problem.c.copy(), 1e-3
            gains = []
            for sign in (1, -1):
                problem.c = slack.copy()
                problem.c[i] -= sign * h
                gains.append(problem.best_gain(x))
            problem.c = slack
            assert (gains[0] - gains[1]) / (2 * h) == pytest.approx(float(solution.multiplier[i]), rel=0.05)
        checked += 1


@pytest.mark.parametrize("c", [0.0, 1e-12, -1e-12, 1e-7, -1e-7, 1e-4, -1e-4])
def test_near_a_cost_excess_of_zero_the_move_stays_finite_and_feasible(c):
    rng = np.random.default_rng(3)
    for _ in range(20):
        problem = Geometry(rng, 1, 1.0, 0.01)
        problem.c = np.array([c])
        solution = solve(*problem.numbers(), problem.radius)
        x = problem.move(solution)
        assert np.all(np.isfinite(x))
        assert np.all(problem.violation(x) < 1e-4)
        assert problem.g @ x >= problem.best_gain(x) - 1e-4


def test_recovery_heads_straight_for_less_cost_and_uses_the_whole_trust_region():
    rng = np.random.default_rng(4)
    problem = Geometry(rng, 1, 1.0, 0.01)
    problem.c = np.array([50.0])
    solution = solve(*problem.numbers(), problem.radius)
    x = problem.move(solution)
    steepest = -problem.inverse @ problem.b[0]
    assert bool(solution.recovering)
    assert problem.kl(x) == pytest.approx(problem.radius, rel=1e-4)
    assert x @ steepest / np.linalg.norm(x) / np.linalg.norm(steepest) == pytest.approx(1.0, abs=1e-5)


def test_recovery_from_two_violations_reduces_both():
    rng = np.random.default_rng(5)
    for _ in range(50):
        problem = Geometry(rng, 2, 1.0, 0.01)
        problem.c = np.array([20.0, 30.0])
        solution = solve(*problem.numbers(), problem.radius)
        toward = problem.b @ problem.move(solution)
        assert bool(solution.recovering)
        assert np.max(toward) <= 1e-4 * np.abs(toward).max()


def test_a_constraint_without_a_gradient_leaves_the_unconstrained_step():
    problem = Geometry(np.random.default_rng(6), 1, 1.0, 0.01)
    problem.b = np.zeros_like(problem.b)
    for c in (-1.0, 0.0, 1.0):
        problem.c = np.array([c])
        solution = solve(*problem.numbers(), problem.radius)
        x = problem.move(solution)
        free = problem.inverse @ problem.g * np.sqrt(2 * problem.radius / (problem.g @ problem.inverse @ problem.g))
        assert not bool(solution.recovering)
        np.testing.assert_allclose(x, free, rtol=1e-4)


def test_two_equal_constraints_act_as_one():
    rng = np.random.default_rng(7)
    for _ in range(30):
        single = Geometry(rng, 1, 0.1, 0.01)
        double = Geometry(rng, 2, 0.1, 0.01)
        double.h, double.inverse, double.g = single.h, single.inverse, single.g
        double.b, double.c = np.vstack([single.b, single.b]), np.concatenate([single.c, single.c])
        one = single.move(solve(*single.numbers(), 0.01))
        two = double.move(solve(*double.numbers(), 0.01))
        np.testing.assert_allclose(two, one, rtol=2e-3, atol=2e-4)


def test_more_constraints_than_can_be_enumerated_are_refused():
    with pytest.raises(InvalidInput, match="at most 10"):
        constrained_step.solve(jnp.ones(()), jnp.ones(11), jnp.eye(11), jnp.ones(11), 0.01)


class Exact:
    """The small problem in 50 digits: every set of active faces, judged by the conditions of optimality."""

    def __init__(self, g, b, c, radius):
        self.q = _dot(g, g)
        self.r = [_dot(row, g) for row in b]
        self.s = [[_dot(row, other) for other in b] for row in b]
        self.c, self.radius = [Decimal(float(value)) for value in c], Decimal(float(radius))

    def on_faces(self, active):
        """(α, β) of the point that is best on these faces, or None if the trust region does not reach them."""
        s = [[self.s[i][j] for j in active] for i in active]
        face_r, face_c = _solve(s, [self.r[i] for i in active]), _solve(s, [self.c[i] for i in active])
        free = self.q - sum((self.r[i] * x for i, x in zip(active, face_r, strict=True)), Decimal(0))
        room = 2 * self.radius - sum((self.c[i] * x for i, x in zip(active, face_c, strict=True)), Decimal(0))
        if room <= 0 or free <= 0:
            return None
        reach = (room / free).sqrt()
        beta = [Decimal(0)] * len(self.r)
        for i, x, y in zip(active, face_r, face_c, strict=True):
            beta[i] = -reach * x - y
        return reach, beta

    def gain(self, alpha, beta):
        return alpha * self.q + _dot(beta, self.r)

    def excess(self, alpha, beta):
        """c + bᵀx for each constraint."""
        return [c + alpha * r + _dot(row, beta) for c, r, row in zip(self.c, self.r, self.s, strict=True)]

    def kl(self, alpha, beta):
        inner = [_dot(row, beta) for row in self.s]
        return (alpha**2 * self.q + 2 * alpha * _dot(beta, self.r) + _dot(beta, inner)) / 2

    def best(self):
        """The largest gain within all constraints; None where there is no feasible point on any set of faces."""
        best = None
        for count in range(len(self.r) + 1):
            for active in itertools.combinations(range(len(self.r)), count):
                found = self.on_faces(active)
                if found is None or any(
                    e > Decimal("1e-30") * (1 + abs(c)) for e, c in zip(self.excess(*found), self.c, strict=True)
                ):
                    continue
                gain = self.gain(*found)
                best = gain if best is None else max(best, gain)
        return best


def _dot(x, y):
    return sum((Decimal(a) * Decimal(b) for a, b in zip(map(_plain, x), map(_plain, y), strict=True)), Decimal(0))


def _plain(value):
    return value if isinstance(value, Decimal) else float(value)


def _solve(matrix, right):
    """Gaussian elimination with pivoting."""
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    n = len(rows)
    for i in range(n):
        pivot = max(range(i, n), key=lambda k: abs(rows[k][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        for k in range(n):
            if k != i:
                factor = rows[k][i] / rows[i][i]
                rows[k] = [x - factor * y for x, y in zip(rows[k], rows[i], strict=True)]
    return [rows[i][n] / rows[i][i] for i in range(n)]


@pytest.mark.parametrize("constraints", [1, 2, 3])
def test_the_solve_agrees_with_fifty_digits_whatever_the_units(constraints):
    """H is the identity here; rewards and each cost have units of their own, from 1e-5 to 1e5."""
    rng = np.random.default_rng(constraints)
    met = {"free": 0, "constrained": 0, "recovering": 0}
    with localcontext() as context:
        context.prec = 50
        for _ in range(250):
            units = 10.0 ** rng.uniform(-5, 5, size=constraints)
            g = rng.normal(size=5) * 10.0 ** rng.uniform(-5, 5)
            b = rng.normal(size=(constraints, 5)) * units[:, None]
            radius = 10.0 ** rng.uniform(-4, 0)
            c = rng.normal(size=constraints) * units * np.sqrt(radius) * 10.0 ** rng.uniform(-2, 1)
            exact = Exact(g, b, c, radius)
            numbers = (g @ g, b @ g, b @ b.T, c)
            move = solve(*(jnp.asarray(value, dtype=jnp.float32) for value in numbers), radius)
            assert np.all(np.isfinite(np.asarray(move.along_constraint)))
            assert np.all(np.asarray(move.multiplier) >= 0.0)
            alpha = Decimal(float(move.along_objective))
            beta = [Decimal(float(value)) for value in move.along_constraint]
            assert exact.kl(alpha, beta) <= exact.radius * Decimal("1.002")
            best, tighter, wider = (
                exact.best(),
                Exact(g, b, c, radius * 0.98).best(),
                Exact(g, b, c, radius * 1.02).best(),
            )
            if move.recovering:
                met["recovering"] += 1
                assert tighter is None
                continue
            assert wider is not None
            if best is None:
                continue
            met["constrained" if move.constrained else "free"] += 1
            reach = np.sqrt(2 * radius)
            for excess, unit, own in zip(exact.excess(alpha, beta), np.linalg.norm(b, axis=1), c, strict=True):
                assert float(excess) <= 2e-3 * (reach * unit + abs(own))
            assert float(exact.gain(alpha, beta)) >= float(best) - 5e-3 * reach * np.linalg.norm(g)
    assert min(met.values()) >= 10, met


def test_a_constraint_in_small_units_beside_one_in_large_units_is_kept():
    """Both bind: neither may be taken for one without a gradient."""
    b = np.asarray([[1e5, 0.0, 0.0], [0.0, 1e-5, 0.0]])
    g, c = np.asarray([1.0, 1.0, 0.1]), np.asarray([-1e3, -1e-7])
    numbers = (g @ g, b @ g, b @ b.T, c)
    move = solve(*(jnp.asarray(value, dtype=jnp.float32) for value in numbers), 0.5)
    x = float(move.along_objective) * g + np.asarray(move.along_constraint, dtype=np.float64) @ b
    np.testing.assert_allclose(b @ x, -c, rtol=5e-3)
    assert np.all(np.asarray(move.multiplier) > 0.0)

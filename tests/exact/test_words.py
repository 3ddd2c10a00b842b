"""`apdo solve` as a user meets it, and what it says of prices."""

import dataclasses

import numpy as np
import pytest

from apdo import exact
from command_line import call
from finite_problems import garnet, random_cmdp, two_states


@pytest.fixture
def problem(tmp_path):
    exact.save(two_states(limit=1.0), tmp_path / "problem.npz")
    return tmp_path / "problem.npz"


def test_solve_prints_the_optimum_and_writes_results_and_pictures(capsys, problem, tmp_path):
    status, out, err = call(capsys, "solve", str(problem), "--out", str(tmp_path / "sub" / "best"))
    assert (status, err) == (0, "")
    assert "optimal return 1," in out
    assert "cost: 1 of at most 1 (binds), λ = 1" in out
    assert "one more unit of limit is worth 1 in return" in out
    assert "state 0: action 0 with 0.7619, action 1 with 0.2381" in out
    assert "certificate: holds" in out
    results = np.load(tmp_path / "sub" / "best.npz", allow_pickle=False)
    np.testing.assert_allclose(results["multipliers"], [1.0])
    np.testing.assert_allclose(results["policy"].sum(axis=1), 1.0)
    assert results["certificate_gap"] == pytest.approx(0, abs=1e-9)
    assert (tmp_path / "sub" / "best.svg").read_text().startswith("<?xml")
    assert (tmp_path / "sub" / "best.png").read_bytes()[:4] == b"\x89PNG"


def test_solve_takes_other_limits_and_puts_results_beside_the_problem(capsys, problem, tmp_path):
    status, out, _ = call(capsys, "solve", str(problem), "--limits", "100")
    assert status == 0
    assert "(slack), λ = 0" in out
    assert "worth nothing" in out
    assert (tmp_path / "problem-optimum.npz").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "needs a file"),
        (["--limits", "1"], "needs a file"),
        (["none.npz"], "cannot be read"),
        (["PROBLEM", "--limits", "-1"], "cost can be 0 at the least (limit -1); raise the limit by 1 or more"),
        (["PROBLEM", "--limits", "1,2"], "1 costs and 2 limits"),
        (["PROBLEM", "--limits", "x"], "numbers with commas"),
        (["PROBLEM", "--limits", "nan"], "limits must be finite"),
        (["PROBLEM", "--limit", "1"], "did you mean '--limits'"),
        (["PROBLEM", "--out", "PREFIX"], "would replace the problem"),
    ],
)
def test_mistakes_are_answered_in_one_sentence(capsys, problem, arguments, said):
    names = {"PROBLEM": str(problem), "PREFIX": str(problem.with_suffix(""))}
    status, _, err = call(capsys, "solve", *(names.get(word, word) for word in arguments))
    assert status == 2
    assert said in err
    assert err.count("\n") == 1


def test_solve_explains_itself(capsys):
    status, out, _ = call(capsys, "solve", "--help")
    assert status == 0
    assert "--limits" in out
    assert "apdo solve FILE" in call(capsys, "--help")[1]


def test_an_optimum_that_is_not_proved_is_a_failure(capsys, problem, monkeypatch):
    real = exact.solve

    def wrong(cmdp):
        found = real(cmdp)
        return dataclasses.replace(found, certificate=dataclasses.replace(found.certificate, gap=1.0))

    monkeypatch.setattr(exact, "solve", wrong)
    status, out, err = call(capsys, "solve", str(problem))
    assert status == 3
    assert "DOES NOT HOLD" in out
    assert "not proved" in err


def test_a_price_that_is_not_unique_is_told_by_its_two_ends():
    cmdp = random_cmdp(3, states=6)
    twice = dataclasses.replace(
        cmdp, cost=np.repeat(cmdp.cost, 2, axis=0), limits=np.repeat(cmdp.limits, 2), cost_names=("a", "b")
    )
    lines = "\n".join(exact.describe(twice, exact.solve(twice)))
    assert lines.count("(not unique)") == 2
    assert "worth nothing, one unit less costs" in lines
    free = cmdp.with_limits([-exact.lagrangian(dataclasses.replace(cmdp, reward=-cmdp.cost[0]), [0.0]).gain])
    edge = "\n".join(exact.describe(free, exact.solve(free)))
    assert "or more (not unique)" in edge
    assert "with any less no policy keeps the limits" in edge


def test_a_large_policy_is_summed_up():
    cmdp = garnet(0, states=40, actions=3)
    lines = exact.describe(cmdp, exact.solve(cmdp))
    assert any("40 states are visited" in line for line in lines)
    assert not any("state 0:" in line for line in lines)

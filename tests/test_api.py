"""What a program calls besides training: evaluation, films, draws, and options with types."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageSequence

import apdo
from apdo.algorithms import cpo, pdo, ppo_steps
from apdo.experiment import film, settings
from apdo.policy import Policy
from apdo.tasks import drawing
from host_environments import Counting

SMALL: dict[str, Any] = {"policy.hidden": (4,), "critic.hidden": (4,), "critic.passes": 1, "critic.minibatches": 2}
SMALL |= {"epochs": 1, "batch": 60, "environments": 4, "max_episode_steps": 10, "quiet": True}


class Drawn(Counting):
    """Counts its steps in the brightness of its picture."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(self, render_mode=None):
        super().__init__(length=4)
        self.render_mode = render_mode

    def render(self) -> Any:
        return np.full((30, 60, 3), 50 * self.steps, np.uint8)


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return apdo.train("pdo", Drawn, limits=(5.0,), out=tmp_path_factory.mktemp("runs") / "drawn", **SMALL)


def test_an_evaluation_counts_what_each_episode_brings_and_judges_every_limit(result):
    """Four steps: rewards 1 to 4, costs of half of that."""
    found = apdo.evaluate(result, episodes=20)
    assert (found.undiscounted_return.mean, found.undiscounted_return.deviation) == (10.0, 0.0)
    assert found.constrained_cost[0].mean == 5.0
    assert [verdict.holds for verdict in found.verdicts] == ["yes"]
    assert repr(found).splitlines()[:2] == [
        "<Evaluation: 20 fresh episodes, stochastic, 95 % intervals",
        "  return: 10.000 [10.000, 10.000]",
    ]
    assert "cost (limit 5): 5.000 [5.000, 5.000]" in repr(found)
    assert "<td>cost (limit 5)</td><td>5.000 [5.000, 5.000]</td>" in found._repr_html_()
    again = apdo.evaluate(result.path, episodes=20, deterministic=True, newest=True, environment=Drawn)
    assert "20 fresh episodes, deterministic" in repr(again)


def test_a_folder_of_a_run_on_an_object_asks_for_it(result):
    with pytest.raises(apdo.InvalidInput, match=r"environment=\.\.\., costs=\.\.\. of apdo.resume, apdo.evaluate"):
        apdo.evaluate(result.path)


def test_a_film_of_a_gymnasium_environment_is_what_it_draws_itself_step_by_step(result, tmp_path, monkeypatch):
    monkeypatch.setattr(film, "MOST_EPISODES", 2)
    captions = []
    real = drawing.captioned
    monkeypatch.setattr(drawing, "captioned", lambda shown, said: captions.append(said) or real(shown, said))
    path = apdo.film(result, tmp_path / "episode.gif", environment=Drawn)
    picture = Image.open(path)
    assert picture.size == (drawing.WIDTH, drawing.WIDTH // 2 + drawing.CAPTION)
    shown = [np.asarray(frame.convert("RGB"))[-20, 20] for frame in ImageSequence.Iterator(picture)]
    # Pictures that stand still at an episode's end may be stored as one long frame.
    steps = [round(float(pixel.mean()) / 50) for pixel in shown]
    assert [step for i, step in enumerate(steps) if i == 0 or step != steps[i - 1]] == [0, 1, 2, 3, 4] * 2
    assert captions[0] == ("episode 1, step 0 of 4: return 0", "cost: cost 0")
    assert captions[-1] == ("episode 2, step 4 of 4: return 10", "cost: cost 5")


def test_an_environment_that_does_not_draw_itself_is_told_so_before_anything_is_played(result, tmp_path):
    with pytest.raises(apdo.InvalidInput, match=r"does not draw itself: a video needs .* render_mode='rgb_array'"):
        apdo.film(result, tmp_path / "episode.gif", environment=lambda: Drawn())
    with pytest.raises(apdo.InvalidInput, match=r"is a \.gif or an \.mp4 file"):
        apdo.film(result, tmp_path / "episode.txt", environment=Drawn)

    class Flat(Drawn):
        def render(self) -> Any:
            return np.zeros((30, 60))

    with pytest.raises(apdo.InvalidInput, match=r"render\(\) must give \[height, width, 3\] bytes, not float64 \(30,"):
        apdo.film(result, tmp_path / "episode.gif", environment=Flat)
    assert not (tmp_path / "episode.gif").exists()


def test_a_draw_with_a_seed_is_the_same_whenever_it_is_asked_for_and_leaves_the_others_alone(result):
    policy, twin = (Policy(result.policy.network, 2, seed=5) for _ in range(2))
    s = np.zeros((3, 2))
    first = policy.sample(s, seed=1)
    np.testing.assert_array_equal(policy(s), twin(s))
    np.testing.assert_array_equal(policy.sample(s, seed=1), first)
    assert not np.array_equal(policy.sample(s, seed=2), first)
    np.testing.assert_array_equal(policy.sample(s), twin.sample(s))


def specified(config=None, plan=None, **changes):
    known = settings.typed("pdo", config, plan) | {name.replace("__", "."): value for name, value in changes.items()}
    return settings.make_experiment("pdo", "point-gather", known)


def test_typed_options_are_the_options_that_are_named():
    typed = specified(pdo.Config(primal=ppo_steps.Ppo(clip=0.1), margin=0.5), settings.Settings(epochs=3, seeds=2))
    named = specified(primal="ppo", primal__clip=0.1, margin=0.5, epochs=3, seeds=2)
    assert typed == named
    assert typed.settings.seeds == 2


def test_what_typed_options_leave_open_is_left_to_what_suits_the_task():
    """Point-gather's short episodes have a wider trust region, whatever else of the step is chosen."""
    own: Any = pdo.Config().primal
    plain, damped = specified(), specified(pdo.Config(primal=dataclasses.replace(own, damping=0.2)))
    assert plain.algorithm_config.primal.radius != own.radius
    assert damped.algorithm_config.primal.radius == plain.algorithm_config.primal.radius
    assert damped.algorithm_config.primal.damping == 0.2


def test_a_default_that_is_written_down_is_meant_where_another_suits_the_task():
    """Gymnasium's tasks constrain the total and normalise unless they are told not to."""
    for plan, expected in (
        (settings.Settings(epochs=2), ("total", True)),
        (settings.Settings(epochs=2, constrain="discounted", normalise=False), ("discounted", False)),
    ):
        known = settings.typed("pdo", None, plan) | {"cost": "obs[0] > 9", "limits": (1.0,)}
        found = settings.make_experiment("pdo", "Pendulum-v1", known).settings
        assert (found.constrain, found.normalise, found.epochs) == (*expected, 2)


def test_options_that_are_named_count_before_typed_ones():
    assert specified(pdo.Config(margin=0.5), margin=0.25).algorithm_config.margin == 0.25


def test_typed_options_of_another_algorithm_and_misspelt_ones_are_errors_before_anything_runs(tmp_path):
    with pytest.raises(apdo.InvalidInput, match=r"config of pdo must be apdo\.algorithms\.pdo\.Config, not Config"):
        apdo.train("pdo", "two-state", config=cpo.Config(), out=tmp_path / "run")
    with pytest.raises(apdo.InvalidInput, match=r"settings must be apdo\.experiment\.settings\.Settings, not Config"):
        apdo.train("pdo", "two-state", settings=pdo.Config(), out=tmp_path / "run")  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="epoch"):
        apdo.Settings(epoch=3)  # pyright: ignore[reportCallIssue]
    assert not (tmp_path / "run").exists()

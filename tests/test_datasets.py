"""A dataset comes back from its file as it went in; a log that contradicts itself is refused in one sentence."""

import io
import json
import zipfile
from typing import Any

import numpy as np
import pytest

from apdo import datasets
from apdo.datasets import Dataset
from apdo.errors import InvalidInput
from logged_data import random_log, two_state_log


def written(path, **changes):
    """A file of a valid log with some arrays changed, or left out where they are None."""
    np.savez(path, **{name: array for name, array in (random_log() | changes).items() if array is not None})
    return path


def assert_same(one, other):
    for name in (*datasets.NEEDED, "choices", "cost_names"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)


def changed(name, index, value):
    """The log's array with one entry changed."""
    array = np.array(random_log()[name])
    array[index] = value
    return {name: array}


@pytest.mark.parametrize("log", [random_log(), random_log(choices=3, costs=1), two_state_log(episodes=3)])
def test_what_is_saved_is_loaded(tmp_path, log):
    dataset = Dataset.of(**log)
    datasets.save(dataset, tmp_path / "log.npz")
    assert_same(datasets.load(tmp_path / "log.npz"), dataset)


def test_plain_arrays_of_numpy_are_a_dataset(tmp_path):
    loaded = datasets.load(written(tmp_path / "log.npz"))
    assert_same(loaded, Dataset.of(**random_log()))
    assert loaded.cost_names == ("cost 0", "cost 1")
    one = datasets.load(written(tmp_path / "one.npz", cost=np.ones(18), limits=np.ones(1)))
    assert one.cost.shape == (18, 1)
    assert one.cost_names == ("cost",)


def test_rows_may_come_in_any_order():
    log = random_log()
    order = np.random.default_rng(0).permutation(len(log["reward"]))
    rows: dict[str, Any] = {name: np.asarray(log[name])[order] for name in datasets._ROWS}
    assert_same(Dataset.of(**(log | rows)), Dataset.of(**log))


def test_choices_are_one_hot_vectors():
    log = random_log(choices=3)
    dataset = Dataset.of(**log)
    np.testing.assert_array_equal(np.argmax(dataset.action, axis=1), log["action"])
    np.testing.assert_array_equal(dataset.action.sum(axis=1), 1.0)


def test_discounted_sums_are_those_of_a_loop():
    log = random_log()
    expected = {}
    for i, episode in enumerate(log["episode"]):
        total = expected.setdefault(episode, np.zeros(3))
        t = log["step"][i]
        total += [0.9**t * log["reward"][i], *(0.8**t * log["cost"][i])]
    np.testing.assert_allclose(Dataset.of(**log).discounted(), list(expected.values()), rtol=1e-6)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"reward": None}, "the array reward is missing"),
        ({"horizon": None}, "the array horizon is missing"),
        ({"rewards": np.ones(2)}, "did you mean 'reward'"),
        ({"reward": np.asarray([None], dtype=object)}, "must hold real numbers"),
        ({"reward": np.ones(17)}, "18 observations, and 17 rows of reward"),
        ({"cost": np.ones((17, 2))}, "18 observations, and 17 rows of cost"),
        ({"cost": np.ones((18, 0)), "limits": np.ones(0)}, "there is no cost"),
        ({"observation": np.zeros((0, 3))}, "rows of cost"),
        ({"limits": np.ones(3)}, "2 costs and 3 limits"),
        ({"limits": np.asarray([np.nan, 1.0])}, "limits must be finite"),
        (changed("reward", 4, np.nan), "reward must be finite in 32 bits, and is nan at index [4]"),
        ({"reward": np.full(18, 1e300)}, "finite in 32 bits"),
        ({"next_observation": np.zeros((18, 2))}, "must have observation's shape [18, 3]"),
        (changed("next_observation", (1, 0), 9.0), "is another in episode 0 at step 1 (1 of 13 steps)"),
        (changed("step", 2, 5), "where step 2 should be, is step 3"),
        (changed("step", 0, -1), "must not be negative"),
        (changed("episode", 0, 99), "where step 0 should be, is step 1"),
        ({"episode": np.zeros(18, dtype=int), "step": np.arange(18), "horizon": 18}, "there is only 1 episode"),
        (changed("terminated", 1, True), "episode 0 goes on after step 1"),
        (changed("truncated", 1, True), "episode 0 goes on after step 1"),
        (changed("terminated", 3, False), "episode 0 is not terminated there"),
        ({"terminated": np.full(18, 2)}, "terminated must be true or false"),
        ({"terminated": np.zeros(18)}, "must hold true and false"),
        ({"horizon": 3}, "the horizon is 3 steps, and episode 0 has 4"),
        ({"horizon": 0}, "horizon must be a whole number from 1"),
        ({"discount": 1.5}, "discount must be a number between 0 and 1"),
        ({"cost_discount": np.nan}, "cost_discount must be a number between 0 and 1"),
        ({"action": np.zeros(18)}, "give them as whole numbers [B]"),
        ({"action": np.zeros(18, dtype=int)}, "say in `choices` how many"),
        ({"action": np.full(18, 3), "choices": 3}, "actions are 0 to 2"),
        ({"action": np.zeros((18, 2)), "choices": 3}, "with 3 choices, action must be whole numbers"),
        ({"choices": -1}, "choices must be a whole number"),
        ({"cost_names": np.asarray(["one"])}, "a word for each of 2 costs"),
        ({"cost_names": np.asarray([1, 2])}, "must hold text"),
    ],
)
def test_a_log_that_contradicts_itself_is_refused_in_one_sentence(tmp_path, changes, said):
    with pytest.raises(InvalidInput) as error:
        datasets.load(written(tmp_path / "log.npz", **changes))
    assert said in str(error.value)
    assert "log.npz" in str(error.value)
    assert "\n" not in str(error.value)


def test_one_episode_is_too_few():
    rows: dict[str, Any] = {name: np.asarray(random_log()[name])[:4] for name in datasets._ROWS}
    with pytest.raises(InvalidInput, match="only 1 episode"):
        Dataset.of(**(random_log() | rows))


def test_an_episode_at_the_end_of_the_log_may_be_neither_terminated_nor_cut_off():
    log = random_log()
    log["truncated"][:] = False
    assert Dataset.of(**log).episodes == 5


def test_arrays_that_declare_more_than_they_hold_are_refused_before_they_are_made(tmp_path):
    file = written(tmp_path / "log.npz", observation=None)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (10**9, 10**9)})
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("observation.npy", header.getvalue())
    with pytest.raises(InvalidInput, match="declares 4000000000000000"):
        datasets.load(file)


def test_a_compressed_file_is_refused_with_the_way_to_write_it(tmp_path):
    np.savez_compressed(tmp_path / "log.npz", **random_log())
    with pytest.raises(InvalidInput, match="not savez_compressed"):
        datasets.load(tmp_path / "log.npz")


def test_damage_anywhere_is_an_answer_or_a_sentence_and_never_a_traceback(tmp_path):
    whole = written(tmp_path / "log.npz").read_bytes()
    rng = np.random.default_rng(0)
    torn, refused = tmp_path / "torn.npz", 0
    for _ in range(150):
        raw = bytearray(whole)
        for place in rng.integers(0, len(raw), 3):
            raw[place] = rng.integers(256)
        torn.write_bytes(raw[: rng.integers(1, len(raw))] if rng.uniform() < 0.3 else raw)
        try:
            assert datasets.load(torn).reward.shape == random_log()["reward"].shape
        except InvalidInput:
            refused += 1
    assert refused > 30


@pytest.mark.parametrize("name", ["log.csv", "log", "nowhere/log.npz"])
def test_a_file_of_another_kind_or_place_is_refused(tmp_path, name):
    with pytest.raises(InvalidInput):
        datasets.save(Dataset.of(**random_log()), tmp_path / name)
    with pytest.raises(InvalidInput):
        datasets.load(tmp_path / name)


def test_names_of_costs_are_one_line_each():
    assert Dataset.of(**random_log(), cost_names=["a\nb\x1b[2J", "c"]).cost_names == ("a b [2J", "c")


class TestParquet:
    @pytest.fixture(autouse=True)
    def _arrow(self):
        self.arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
        self.parquet = pytest.importorskip("pyarrow.parquet")

    def written(self, path, about=None, **changes):
        columns = {name: random_log()[name] for name in datasets._ROWS} | changes
        columns = {name: column for name, column in columns.items() if column is not None}
        numbers = {name: np.asarray(random_log()[name]).tolist() for name in datasets._ABOUT} | (about or {})
        table = self.arrow.table({name: list(column) for name, column in columns.items()})
        metadata = {"apdo": json.dumps(numbers)} if about != {} else None
        self.parquet.write_table(table.replace_schema_metadata(metadata), path)
        return path

    @pytest.mark.parametrize("choices", [0, 3])
    def test_what_is_saved_is_loaded(self, tmp_path, choices):
        dataset = Dataset.of(**random_log(choices=choices), cost_names=["a", "b"])
        datasets.save(dataset, tmp_path / "log.parquet")
        assert_same(datasets.load(tmp_path / "log.parquet"), dataset)

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"reward": None}, "the column reward is missing"),
            ({"rewards": np.ones(18)}, "did you mean 'reward'"),
            ({"about": {}}, "no entry 'apdo'"),
            ({"about": {"horizont": 3}}, "did you mean 'horizon'"),
            ({"about": {"limits": [[1.0]]}}, "limits must have"),
            ({"about": {"horizon": "x"}}, "horizon must be a whole number"),
            ({"about": {"discount": None}}, "discount must be a number"),
            ({"reward": [None] * 18}, "18 empty entries"),
            ({"action": [[1.0]] * 17 + [[1.0, 2.0]]}, "between 1 and 2 entries"),
            ({"action": ["a"] * 18}, "action must have shape"),
            ({"reward": ["a"] * 18}, "must hold numbers"),
        ],
    )
    def test_a_table_that_is_no_log_is_refused_in_one_sentence(self, tmp_path, changes, said):
        with pytest.raises(InvalidInput) as error:
            datasets.load(self.written(tmp_path / "log.parquet", **changes))
        assert said in str(error.value)
        assert "\n" not in str(error.value)

    def test_damage_is_an_answer_or_a_sentence(self, tmp_path):
        whole = self.written(tmp_path / "log.parquet").read_bytes()
        torn = tmp_path / "torn.parquet"
        for cut in (1, 4, len(whole) // 2, len(whole) - 3):
            torn.write_bytes(whole[:cut])
            with pytest.raises(InvalidInput, match="not an undamaged Parquet file"):
                datasets.load(torn)


def test_without_pyarrow_a_sentence_says_how_to_get_it(tmp_path, monkeypatch):
    import importlib

    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    (tmp_path / "log.parquet").write_bytes(b"PAR1")
    for act in (datasets.load, lambda path: datasets.save(Dataset.of(**random_log()), path)):
        with pytest.raises(InvalidInput, match=r"pip install 'apdo\[parquet\]'"):
            act(tmp_path / "log.parquet")

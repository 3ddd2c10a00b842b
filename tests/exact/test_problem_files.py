"""A CMDP comes back from its file as it went in; a damaged or malicious file is refused in one sentence."""

import io
import struct
import zipfile

import numpy as np
import pytest

from apdo import exact
from apdo.errors import InvalidInput
from finite_problems import garnet, random_cmdp


def written(path, **changes):
    """A file of a small valid problem with some arrays changed, or left out where they are None."""
    cmdp = random_cmdp(0, states=3, actions=2)
    arrays = {
        "transition": cmdp.dense(),
        "reward": cmdp.reward,
        "cost": cmdp.cost,
        "start": cmdp.start,
        "discount": cmdp.discount,
        "limits": cmdp.limits,
    }
    np.savez(path, **{name: array for name, array in (arrays | changes).items() if array is not None})
    return path


def sparse_parts(cmdp):
    return {f"transition_{name}": getattr(cmdp.transition, name) for name in ("data", "indices", "indptr")}


def header(shape, dtype="<f8"):
    """A .npy file that declares a shape and holds nothing."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
    return file.getvalue()


def test_what_is_saved_is_loaded(tmp_path):
    cmdp = garnet(0, states=30, actions=3)
    exact.save(cmdp, tmp_path / "problem.npz")
    back = exact.load(tmp_path / "problem.npz")
    for name in ("reward", "cost", "start", "discount", "limits", "ending", "cost_names"):
        np.testing.assert_array_equal(getattr(back, name), getattr(cmdp, name))
    np.testing.assert_array_equal(back.dense(), cmdp.dense())


def test_dense_and_sparse_files_hold_the_same_problem(tmp_path):
    cmdp = random_cmdp(0, states=3, actions=2)
    dense = exact.load(written(tmp_path / "dense.npz"))
    sparse = exact.load(written(tmp_path / "sparse.npz", transition=None, **sparse_parts(cmdp)))
    np.testing.assert_array_equal(dense.dense(), sparse.dense())
    assert exact.solve(dense).value == exact.solve(sparse).value


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"reward": None}, "the array reward is missing"),
        ({"discount": None}, "the array discount is missing"),
        ({"rewards": np.ones(2)}, "did you mean 'reward'"),
        ({"reward": np.ones((3, 2), dtype=complex)}, "must hold real numbers"),
        ({"reward": np.full((3, 2), "a")}, "must hold real numbers"),
        ({"reward": np.asarray([[None, None]], dtype=object)}, "must hold real numbers"),
        ({"reward": np.ones(3)}, "must have 2 axes"),
        ({"reward": np.full((3, 2), np.nan)}, "must be finite"),
        ({"discount": np.asarray([0.9])}, "must have 0 axes"),
        ({"discount": np.asarray(np.nan)}, "between 0 and 1"),
        ({"limits": np.asarray([np.inf])}, "must be finite"),
        ({"transition": np.full((3, 2, 3), 0.3)}, "sum to 0.9 at state 0, action 0"),
        ({"transition": None}, "given once"),
        ({"transition_data": np.ones(2)}, "given once"),
        ({"transition": None, "transition_data": np.ones(6)}, "transition_indices is missing"),
        ({"cost_names": np.asarray([1])}, "must hold text"),
        ({"cost_names": np.asarray(["a", "b"])}, "2 names"),
    ],
)
def test_a_file_that_is_no_cmdp_is_refused_in_one_sentence(tmp_path, changes, said):
    file = written(tmp_path / "problem.npz", **changes)
    with pytest.raises(InvalidInput) as error:
        exact.load(file)
    assert said in str(error.value)
    assert "problem.npz" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "index", "value", "said"),
    [
        ("indices", 0, 3, "0 to 2"),
        ("indices", 0, -1, "0 to 2"),
        ("indptr", 1, 100, "must rise from 0"),
        ("indptr", 0, 1, "must rise from 0"),
        ("indptr", -1, 5, "must rise from 0"),
        ("data", 0, np.nan, "finite"),
    ],
)
def test_sparse_parts_that_point_elsewhere_are_refused(tmp_path, name, index, value, said):
    parts = {key: part.copy() for key, part in sparse_parts(random_cmdp(0, states=3, actions=2)).items()}
    parts[f"transition_{name}"][index] = value
    with pytest.raises(InvalidInput, match=said):
        exact.load(written(tmp_path / "problem.npz", transition=None, **parts))


def test_sparse_parts_of_other_lengths_or_of_floats_are_refused(tmp_path):
    parts = sparse_parts(random_cmdp(0, states=3, actions=2))
    for changed, said in [
        ({"transition_indices": parts["transition_indices"][:-1]}, "transition_indices"),
        ({"transition_indptr": parts["transition_indptr"][:-1]}, "one more than there are rows"),
        ({"transition_indices": parts["transition_indices"].astype(float)}, "whole numbers"),
    ]:
        with pytest.raises(InvalidInput, match=said):
            exact.load(written(tmp_path / "problem.npz", transition=None, **(parts | changed)))


def test_an_array_that_declares_more_than_it_holds_is_refused_before_it_is_made(tmp_path):
    file = written(tmp_path / "problem.npz", reward=None)
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("reward.npy", header((10**9, 10**9)))
    with pytest.raises(InvalidInput, match="declares 8000000000000000"):
        exact.load(file)


def test_compressed_members_and_pickles_and_doubles_are_refused(tmp_path):
    squeezed = tmp_path / "squeezed.npz"
    np.savez_compressed(squeezed, reward=np.zeros((1000, 1000)))
    with pytest.raises(InvalidInput, match="not savez_compressed"):
        exact.load(squeezed)
    double = written(tmp_path / "double.npz")
    with zipfile.ZipFile(double, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("reward.npy", header((0, 0)))
    with pytest.raises(InvalidInput, match="there twice"):
        exact.load(double)


def test_a_member_that_claims_to_be_larger_than_the_file_is_refused(tmp_path):
    file = written(tmp_path / "problem.npz")
    raw = bytearray(file.read_bytes())
    entry = raw.rindex(b"PK\x01\x02")  # the last member's entry in the directory: sizes are at 20 and 24
    raw[entry + 20 : entry + 28] = struct.pack("<II", 2**31, 2**31)
    file.write_bytes(bytes(raw))
    with pytest.raises(InvalidInput, match=r"larger than the file|not an undamaged"):
        exact.load(file)


def test_files_cut_short_or_with_flipped_bytes_are_refused_or_read_as_they_were(tmp_path):
    file = written(tmp_path / "problem.npz")
    raw, whole = file.read_bytes(), exact.load(file)
    rng = np.random.default_rng(0)
    refused = 0
    for trial in range(300):
        damaged = bytearray(raw)
        if trial % 3 == 0:
            damaged = damaged[: rng.integers(0, len(raw))]
        else:
            damaged[rng.integers(0, len(raw))] ^= 1 << rng.integers(0, 8)
        file.write_bytes(bytes(damaged))
        try:
            back = exact.load(file)
        except InvalidInput:
            refused += 1
        else:  # a byte that says nothing, such as a date
            np.testing.assert_array_equal(back.dense(), whole.dense())
            np.testing.assert_array_equal(back.reward, whole.reward)
    assert refused > 200


def test_missing_files_and_other_files_are_refused(tmp_path):
    with pytest.raises(InvalidInput, match="cannot be read"):
        exact.load(tmp_path / "none.npz")
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(InvalidInput, match="not an undamaged"):
        exact.load(tmp_path / "text.npz")
    with pytest.raises(InvalidInput, match="cannot be"):
        exact.load(tmp_path)
    with pytest.raises(InvalidInput, match="cannot be written"):
        exact.save(random_cmdp(0), tmp_path)

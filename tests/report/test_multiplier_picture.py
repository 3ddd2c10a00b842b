"""The picture of an estimate."""

import numpy as np

from apdo.report import multipliers


def found(high):
    return {
        "supported": high[0] is not None,
        "multiplier": [1.0, 2.0],
        "low": [0.5, 1.5],
        "high": high,
        "members": [[0.9, 2.1], [1.1, 1.9]],
        "iterations": [100, 200, 300],
        "path": np.arange(12.0).reshape(3, 2, 2).tolist(),
        "limits": [0.1, 0.2],
        "cost_names": ["bombs", "noise"],
    }


def test_each_constraint_has_its_paths_and_beside_them_their_interval():
    picture = multipliers.figure(found([1.5, 2.5]), "title")
    paths, ends, *_ = picture.axes
    assert len(picture.axes) == 4
    assert [np.asarray(line.get_ydata()).tolist() for line in paths.lines] == [[0.0, 4.0, 8.0], [2.0, 6.0, 10.0]]
    assert paths.get_title(loc="left") == "bombs, limit 0.1"
    assert ends.get_ylim() == paths.get_ylim()
    assert len(ends.collections) == 1
    assert picture.get_suptitle() == "title"


def test_an_answer_without_interval_or_support_says_so():
    picture = multipliers.figure(found([None, None]), "title")
    assert not picture.axes[1].collections
    assert picture.axes[1].get_title(loc="left") == "a single learner"
    assert "unsupported" in picture.get_suptitle()

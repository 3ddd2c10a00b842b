"""MuJoCo, the package: missing, too old or wrong, it is refused in one sentence; its notices are not printed."""

import sys
import types

import pytest

from apdo.envs import gymnasium_tasks, mujoco_package
from apdo.errors import InvalidInput

NOTICE = '<mujoco><compiler settotalmass="14"/><worldbody><body><joint/><geom size="1"/></body></worldbody></mujoco>'
"""A model with what newer releases call deprecated."""


@pytest.mark.parametrize(
    ("version", "says"),
    [
        ("4.0.0", "arm needs MuJoCo, and release 4.0.0, which is installed, computes some contacts wrongly"),
        ("3.2.7", "arm needs MuJoCo 3.3 or newer, and 3.2.7 is installed: pip install 'apdo"),
        (None, "arm needs MuJoCo, which is not installed: pip install 'apdo"),
    ],
)
def test_a_release_that_cannot_be_relied_upon_is_refused_in_one_sentence(version, says, monkeypatch):
    package = None if version is None else types.SimpleNamespace(__version__=version)
    monkeypatch.setitem(sys.modules, "mujoco", package)
    with pytest.raises(InvalidInput, match=says) as raised:
        mujoco_package.load("arm")
    assert len(str(raised.value).splitlines()) == 1


@pytest.mark.parametrize("version", ["3.3.0", "3.17.0", "4.0.1", "10.0.0"])
def test_every_other_release_is_taken(version, monkeypatch):
    package = types.ModuleType("mujoco")
    vars(package)["__version__"] = version
    monkeypatch.setitem(sys.modules, "mujoco", package)
    assert mujoco_package.load("arm") is package


def test_gymnasiums_own_robots_are_refused_with_it_too(monkeypatch):
    pytest.importorskip("gymnasium", reason="Gymnasium is not installed")
    monkeypatch.setitem(sys.modules, "mujoco", types.SimpleNamespace(__version__="4.0.0"))
    with pytest.raises(InvalidInput, match=r"HalfCheetah-v5 needs MuJoCo, and release 4\.0\.0"):
        gymnasium_tasks.make_registered("HalfCheetah-v5")


def test_what_is_deprecated_is_neither_printed_nor_logged_and_other_warnings_are_told(tmp_path, monkeypatch, capfd):
    mujoco = pytest.importorskip("mujoco", reason="MuJoCo is not installed")
    monkeypatch.chdir(tmp_path)
    before = mujoco.get_mju_user_warning()
    model = mujoco_package.compiled(mujoco, NOTICE, "arm")
    assert model.body_mass.sum() == pytest.approx(14.0)
    with mujoco_package.without_notices(mujoco):
        mujoco.get_mju_user_warning()("this attribute is deprecated")
    with pytest.warns(UserWarning, match="geoms overlap"), mujoco_package.without_notices(mujoco):
        mujoco.get_mju_user_warning()("geoms overlap")
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []
    assert mujoco.get_mju_user_warning() is before


def test_the_copies_of_a_gymnasium_robot_are_made_in_silence(tmp_path, monkeypatch, capfd):
    for package in ("gymnasium", "mujoco", "imageio"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    monkeypatch.chdir(tmp_path)
    gymnasium_tasks.make_registered("HalfCheetah-v5").close()
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("<mujoco><worldbody><bone/></worldbody></mujoco>", "MuJoCo cannot read the model: .*unrecognized element"),
        ("<mujoco><worldbody>", "MuJoCo cannot read the model: XML parse error"),
        ("nowhere.xml", "there is no file 'nowhere.xml'"),
    ],
)
def test_a_malformed_model_is_refused_in_one_sentence(source, says):
    mujoco = pytest.importorskip("mujoco", reason="MuJoCo is not installed")
    with pytest.raises(InvalidInput, match=f"arm: {says}") as raised:
        mujoco_package.compiled(mujoco, source, "arm")
    assert len(str(raised.value).splitlines()) == 1

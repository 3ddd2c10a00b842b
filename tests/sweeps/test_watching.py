"""Runs followed from outside: on the terminal, and on a page."""

import json
import urllib.error
import urllib.request

import pytest

from apdo.errors import InvalidInput
from apdo.experiment import records
from apdo.report import runs
from apdo.report.following import Follower
from apdo.sweeps import plan, watching
from command_line import call
from hands import write


@pytest.fixture
def folder(tmp_path):
    """A sweep with a run that is over, one that has failed and one that has just begun."""
    options = {"epochs": 3, "batch": 200}
    made = plan.expand(plan.parse({"algorithms": "trpo", "environments": "two-state", "options": options}))[0]
    write(tmp_path / "runs" / "a" / "seeds-000-000", made.with_seeds(0, 1))
    write(tmp_path / "runs" / "b" / "seeds-000-000", made.with_seeds(0, 1), "failed", error="it broke <b>")
    write(tmp_path / "runs" / "c" / "seeds-000-000", made.with_seeds(0, 1), "running")
    with records.lock(tmp_path / "runs" / "c" / "seeds-000-000"):
        yield tmp_path


def test_the_terminal_tells_of_every_run(capsys, folder):
    status, out, _ = call(capsys, "watch", str(folder), "--once")
    assert status == 0
    assert "1 of 3 runs done, 1 running, 1 failed" in out
    assert "a/seeds-000-000: finished, epoch 3/3  return 0.200  cost 0.280" in out
    assert "c/seeds-000-000: running, epoch 3/3" in out
    status, _, err = call(capsys, "watch", str(folder / "none"))
    assert (status, err) == (2, f"apdo: there is no folder {folder / 'none'}.\n")
    (folder / "empty").mkdir()
    with pytest.raises(InvalidInput, match="is not a run folder, and holds none"):
        watching.Watcher(folder / "empty")


def test_a_run_at_which_no_process_works_is_not_called_running(folder):
    path = folder / "runs" / "c" / "seeds-000-000"
    assert Follower(path).look().status == "running"
    (path / "lock").unlink()
    records.lock(path).close()
    assert Follower(path).look().status == "killed"
    with records.lock(path):  # a look leaves the lock free
        assert Follower(path).look().status == "running"


def get(server, path, host=None):
    port = server.server_address[1]
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"Host": host or f"127.0.0.1:{port}"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.read()


def test_the_page_follows_the_runs_and_answers_to_this_machine_only(folder):
    server = watching.serve(watching.Watcher(folder), 0)
    try:
        assert b"<!doctype html>" in get(server, "/")
        told = json.loads(get(server, "/data"))
        assert [run["name"] for run in told["runs"]] == [f"{name}/seeds-000-000" for name in "cab"]
        assert told["runs"][0]["returns"] == [0.0, 0.1, 0.2]
        assert told["runs"][2]["error"] == "it broke <b>"
        file = folder / "runs" / "c" / "seeds-000-000" / runs.METRICS
        file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:1]))
        assert json.loads(get(server, "/data"))["runs"][0]["returns"] == [0.0]
        for path, host, code in (("/../secret", None, 404), ("/data", "elsewhere.example", 403)):
            with pytest.raises(urllib.error.HTTPError) as caught:
                get(server, path, host)
            assert caught.value.code == code
    finally:
        server.shutdown()
        server.server_close()

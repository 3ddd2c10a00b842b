"""Copies of an environment in actors of Ray, on all machines of a cluster: `--workers ray:N`. Extra: apdo[ray].

An actor steps its share through `host.Slice`, as a worker process does, so the results are the same. An actor that
dies, alone or with its machine, is replaced. The new actor starts the collection again with the same seeds, and
receives the same actions and the same episodes to give up. This restores the state of an environment if it always does
the same after a reset with the same seed.
"""

import contextlib
import importlib
import os
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from typing import Any

import numpy as np

from apdo.envs import host
from apdo.envs.host import Arrays, Fault, Plan, Slice
from apdo.errors import InvalidInput

PREFIX = "ray:"
MOST_DEATHS = 3
"""How often in a row an actor may die in the same step; an environment that ends its process ends every actor."""
_BACK = ("observation", "next_observation", "reward", "cost", "terminated", "truncated", "step")


def package() -> Any:  # noqa: ANN401
    """Import Ray; InvalidInput says if it is not installed."""
    for name, value in {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}.items():
        os.environ.setdefault(name, value)
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise InvalidInput("Ray is not installed; get it with: pip install 'apdo[ray]'") from None


Work = tuple[str, np.ndarray]
"""For each copy: `_STEP` with its action, or `_RESTART` with whether its episode is given up."""
_STEP, _RESTART = "step", "restart"


class Share:
    """The code of an actor, which steps some of the copies. Arguments and results are plain values; so are faults."""

    def __init__(self, plan: bytes, first: int, last: int, count: int, search: Sequence[str] = ()) -> None:
        """`plan` is a `host.Plan`, serialised by cloudpickle; `search` are folders where the run finds modules."""
        self._made = plan, first, last, count
        sys.path += [folder for folder in search if folder not in sys.path]
        self._own: Slice | None = None

    def open(self) -> dict[str, Any]:
        """Make the environments."""
        return self._result_or_fault(self._make)

    def _make(self) -> None:
        self._slice()

    def _slice(self) -> Slice:
        if self._own is None:
            import cloudpickle

            payload, first, last, count = self._made
            plan: Plan = cloudpickle.loads(payload)
            self._own = Slice(plan, first, last, Arrays(plan, count))
        return self._own

    def play(self, entropy: Sequence[int] | None, given: Sequence[Work], last: bool) -> dict[str, Any]:
        """Begin a collection unless `entropy` is None, do the given work, and return the copies' state after it."""
        return self._result_or_fault(lambda: self._play(entropy, given, last))

    def _play(self, entropy: Sequence[int] | None, given: Sequence[Work], last: bool) -> dict[str, Any]:
        own = self._slice()
        arrays, mine = own.arrays, slice(own.first, own.last)
        if entropy is not None:
            arrays.entropy[:] = entropy
            own.reset()
        for t, (word, value) in enumerate(given):
            if word == _STEP:
                arrays.action[mine] = value
                own.step(last=last and t + 1 == len(given))
            else:
                arrays.given_up[mine] = value
                own.restart()
        return {name: np.array(getattr(arrays, name)[mine]) for name in _BACK}

    def _result_or_fault(self, work: Callable[[], dict[str, Any] | None]) -> dict[str, Any]:
        try:
            return {"version": metadata.version("apdo")} | (work() or {})
        except InvalidInput as error:
            return {"invalid": str(error)}
        except ImportError as error:
            return {"invalid": f"the node {socket.gethostname()} lacks what the environment needs: {error}."}
        except Fault as error:
            said = (error.environment, error.step, error.what)
            return {"fault": said, "numerical": error.numerical, "trace": error.trace}


class RayWorkers:
    """N copies in actors, which step their shares at the same time. An actor that dies is replaced."""

    def __init__(self, plan: Plan, count: int, workers: int, step_seconds: float = 0.0) -> None:
        self._ray = ray = package()
        import cloudpickle  # comes with Gymnasium

        self.step_seconds = step_seconds
        self.arrays = Arrays(plan, count)
        workers = min(workers, count)
        bounds = [count * w // workers for w in range(workers + 1)]
        self._shares = [slice(bounds[w], bounds[w + 1]) for w in range(workers)]
        self._entropy: list[int] = []
        self._done: list[Work] = []
        """The work of all copies since the collection began."""
        self._begun_here = not ray.is_initialized()
        self.replaced = 0
        """The number of actors that have died so far."""
        try:
            self._payload = cloudpickle.dumps(plan)
        except Exception as error:
            raise InvalidInput(f"the environment cannot be sent to Ray's actors ({error}); use workers=0.") from None
        if self._begun_here:
            _join(ray)
        there = int(ray.cluster_resources().get("CPU", 0))
        if there < workers:
            self.close()
            raise InvalidInput(f"--workers ray:{workers} needs {workers} CPUs, and the Ray cluster has {there}.")
        self._kind = ray.remote(num_cpus=1, max_restarts=0, scheduling_strategy="SPREAD")(Share)
        self.actors: list[Any] = []
        try:
            self.actors = [self._start(share) for share in self._shares]
            for w, begun in enumerate([actor.open.remote() for actor in self.actors]):
                self._take(w, begun, host.START_SECONDS, lambda w: self.actors[w].open.remote())
        except BaseException:
            self.close()
            raise

    def _start(self, share: slice) -> Any:  # noqa: ANN401
        search = [entry or os.getcwd() for entry in sys.path]
        return self._kind.remote(self._payload, share.start, share.stop, self.arrays.count, search)

    def reset(self, entropy: Sequence[int]) -> None:
        """Begin an episode in each copy."""
        self.arrays.entropy[:] = entropy
        self._entropy, self._done = [int(word) for word in entropy], []
        self._all(last=False, begins=True)

    def step(self, *, last: bool) -> None:
        """Step each copy once."""
        self._done.append((_STEP, self.arrays.action.copy()))
        self._all(last=last, begins=False)

    def restart(self, which: np.ndarray) -> None:
        """Give up the episodes of some copies, and begin their next ones."""
        self._done.append((_RESTART, np.array(which)))
        self._all(last=False, begins=False)

    def _all(self, *, last: bool, begins: bool) -> None:
        def ask(w: int) -> Any:  # noqa: ANN401
            given = [] if begins else self._given(w)[-1:]
            return self.actors[w].play.remote(self._entropy if begins else None, given, last)

        def again(w: int) -> Any:  # noqa: ANN401
            """Ask for everything since the collection began, for an actor that is new."""
            return self.actors[w].play.remote(self._entropy, self._given(w), last)

        seconds = self.step_seconds and self.step_seconds * max(s.stop - s.start for s in self._shares)
        for w, asked in enumerate([ask(w) for w in range(len(self.actors))]):
            found = self._take(w, asked, seconds, again)
            for name in _BACK:
                getattr(self.arrays, name)[self._shares[w]] = found[name]

    def _given(self, w: int) -> list[Work]:
        """The work of one actor's copies since the collection began."""
        return [(word, value[self._shares[w]]) for word, value in self._done]

    def _take(self, w: int, asked: Any, seconds: float, again: Callable[[int], Any]) -> dict[str, Any]:  # noqa: ANN401
        """An actor's answer. If the actor has died, it is replaced, and `again` asks the new one."""
        errors, first = self._ray.exceptions, self._shares[w].start
        at = (first, int(self.arrays.step[first]))
        for _ in range(MOST_DEATHS):
            try:
                found = self._ray.get(asked, timeout=seconds or None)
            except errors.GetTimeoutError:
                raise Fault(*at, f"its actor has not answered for {seconds:g} seconds") from None
            except errors.RayActorError as error:
                if "ModuleNotFoundError" in str(error):
                    raise InvalidInput(f"a node has not the same apdo installed: {_last_line(error)}") from None
                self.replaced += 1
                self.actors[w] = self._start(self._shares[w])
                asked = again(w)
                # The new actor needs time to start and to catch up.
                seconds = seconds and host.START_SECONDS + seconds * (1 + len(self._done))
                continue
            return _checked(found)
        raise Fault(*at, f"its actor has died {MOST_DEATHS} times in a row")

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Do nothing: actors are watched in every step."""
        yield

    def close(self) -> None:
        """End the actors, and leave the cluster if it was joined for them."""
        for actor in getattr(self, "actors", []):
            self._ray.kill(actor)
        self.actors = []
        if self._begun_here:
            self._ray.shutdown()


def _join(ray: Any) -> None:  # noqa: ANN401
    """Join the cluster that RAY_ADDRESS names, or the one on this machine; start one if there is none."""
    try:
        ray.init(log_to_driver=False, logging_level="ERROR", include_dashboard=False)
    except ValueError:  # an existing cluster does not accept these settings
        ray.init(log_to_driver=False, logging_level="ERROR")
    except Exception as error:
        where = os.environ.get("RAY_ADDRESS", "this machine")
        raise InvalidInput(f"Ray could not be reached at {where}: {_last_line(error)}") from None


def _checked(found: dict[str, Any]) -> dict[str, Any]:
    if "invalid" in found:
        raise InvalidInput(found["invalid"])
    if "fault" in found:
        raise Fault(*found["fault"], numerical=found["numerical"], trace=found["trace"])
    if found["version"] != (own := metadata.version("apdo")):
        raise InvalidInput(f"a node has apdo {found['version']}, and the run was started with {own}.")
    return found


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:300]

"""`apdo watch`: follows the runs of a folder from another process, in the terminal and on a small local web page.

It only reads. The runs may be on other machines if the folder is shared with them.
"""

import functools
import json
import math
import threading
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from typing import Any

from apdo.errors import InvalidInput
from apdo.report import following
from apdo.report.following import Follower, Sight
from apdo.sweeps import display

_EVERY = 2.0
_POINTS = 120
"""The most points of a curve on the page."""
_HERE = ("127.0.0.1", "localhost")
OVER = ("finished", "stopped", "failed", "interrupted")


class Watcher:
    """Follows the runs of a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._followers: dict[Path, Follower] = {}
        self._sights: dict[Path, Sight] = {}
        self._lock = threading.Lock()
        if not self.look():
            raise InvalidInput(f"{folder} is not a run folder, and holds none.")

    def look(self) -> list[tuple[str, Sight]]:
        """The present state of every run by name, running ones first. Runs that are over are read only once."""
        with self._lock:
            for path in following.below(self.folder):
                follower = self._followers.setdefault(path, Follower(path))
                if path not in self._sights or self._sights[path].status not in OVER:
                    self._sights[path] = follower.look()
            found = [(self._name(path), sight) for path, sight in self._sights.items()]
        return sorted(found, key=lambda one: (one[1].status != "running", one[0]))

    def _name(self, path: Path) -> str:
        within = path.relative_to(self.folder).parts
        return "/".join(part for part in within if part != "runs") or path.name

    def head(self, sights: list[tuple[str, Sight]]) -> str:
        """The state of all runs in one line."""
        status = [sight.status for _, sight in sights]
        done = sum(status.count(how) for how in ("finished", "stopped"))
        return display.summary(done, status.count("running"), status.count("failed"), len(status), None)

    def plain(self) -> dict[str, Any]:
        """The data that the page shows."""
        sights = self.look()
        by_name = {self._name(path): follower for path, follower in self._followers.items()}
        runs = [_plain(name, sight, by_name[name]) for name, sight in sights]
        return {"title": str(self.folder), "head": self.head(sights), "runs": runs}


def _plain(name: str, sight: Sight, follower: Follower) -> dict[str, Any]:
    points = follower.points
    points = points[:: max(1, -(-len(points) // _POINTS))]
    costs = [point.cost[0] for point in points if point.cost]
    return {
        "name": name,
        "status": sight.status,
        "error": sight.error,
        "done": sight.done,
        "epochs": sight.epochs,
        "limits": list(sight.limits),
        "returned": _finite(sight.last.returned) if sight.last else None,
        "cost": [cost for cost in (sight.last.cost if sight.last else ()) if math.isfinite(cost)],
        "returns": [point.returned for point in points if math.isfinite(point.returned)],
        "costs": [cost for cost in costs if math.isfinite(cost)],
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


class _Handler(BaseHTTPRequestHandler):
    """Serves the page and its data, to this machine only."""

    def __init__(self, watcher: Watcher, *given: Any) -> None:  # noqa: ANN401
        self._watcher = watcher
        super().__init__(*given)

    def do_GET(self) -> None:
        """Answer with the page, or with its data."""
        if (self.headers.get("Host") or "").split(":")[0] not in _HERE:
            self.send_error(403)
        elif self.path == "/":
            page = resources.files("apdo.report") / "watch.html"
            self._answer(page.read_bytes(), "text/html; charset=utf-8")
        elif self.path == "/data":
            self._answer(json.dumps(self._watcher.plain()).encode(), "application/json")
        else:
            self.send_error(404)

    def _answer(self, content: bytes, kind: str) -> None:
        self.send_response(200)
        headers: Mapping[str, str] = {
            "Content-Type": kind,
            "Content-Length": str(len(content)),
            "Cache-Control": "no-store",
            "Content-Security-Policy": "default-src 'self'; style-src 'unsafe-inline'; script-src 'unsafe-inline'",
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: ANN401
        """Print nothing, because the terminal shows the runs."""


def serve(watcher: Watcher, port: int) -> ThreadingHTTPServer:
    """Serve the page on a port of this machine, or on any free port for 0, until the server is shut down."""
    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), functools.partial(_Handler, watcher))
    except OSError as error:
        raise InvalidInput(f"port {port} cannot be used ({error.strerror}); try another with --page.") from None
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def watch(folder: Path, port: int | None = None, once: bool = False) -> None:
    """Show the runs of a folder until all are over, or until Ctrl-C."""
    watcher = Watcher(folder)
    server = None if port is None else serve(watcher, port)
    if server is not None:
        print(f"page: http://127.0.0.1:{server.server_address[1]}/", flush=True)
    try:
        with display.Display(str(folder)) as shown:
            while True:
                sights = watcher.look()
                shown.show(watcher.head(sights), sights)
                if once or all(sight.status in OVER for _, sight in sights):
                    break
                time.sleep(_EVERY)
        for name, sight in sights:
            print(display.line(name, sight))
    finally:
        if server is not None:
            server.shutdown()
            server.server_close()

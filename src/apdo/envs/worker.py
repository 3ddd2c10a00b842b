"""A worker process of `apdo.envs.host.Workers`: `python -m apdo.envs.worker`, with the numbers listed in `NAMES`."""

import sys

from apdo.envs.host import serve

NAMES = ("memory", "worker", "first", "last", "count", "command", "answer")

if __name__ == "__main__":
    serve(dict(zip(NAMES, map(int, sys.argv[1:]), strict=True)))

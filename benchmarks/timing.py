"""Times commands of apdo from their start to their end, in processes of their own."""

import os
import subprocess
import sys
import time
from pathlib import Path


def timed(words: list[str], cache: Path) -> float:
    """The seconds that `apdo WORDS` takes, with compiled programs kept only in this folder."""
    environment = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    environment |= {"XDG_CACHE_HOME": str(cache)}
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "apdo.cli", *words], check=True, env=environment, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began

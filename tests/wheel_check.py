"""What an installed wheel must do without the checkout; `make test-wheel` runs it in bare environments.

python -I wheel_check.py path/to/apdo
"""

import importlib.resources
import subprocess
import sys
import tempfile
from pathlib import Path

import apdo


def main(command: str) -> None:
    """Train, load, export and report with the installed package."""
    package = Path(str(importlib.resources.files(apdo)))
    assert "site-packages" in package.parts, f"this is not the installed package: {package}"
    for name in ("py.typed", "report/page.css", "report/page.js", "report/watch.html"):
        assert (package / name).is_file(), f"{name} is not in the wheel"
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        result = apdo.train("pdo", "two-state", epochs=2, batch=600, out=run, quiet=True)
        assert result.metrics["cost"].shape == (1, 2, 1)
        assert apdo.load(run)([[1.0, 0.0], [0.0, 1.0]]).shape == (2,)
        for arguments in (
            ["--version"],
            ["list"],
            ["export", run, run / "p.npz"],
            ["report", run, "--out", run / "p.html"],
        ):
            subprocess.run([command, *map(str, arguments)], check=True, capture_output=True)
        assert (run / "p.npz").stat().st_size > 0
        assert "<svg" in (run / "p.html").read_text() or "<script" in (run / "p.html").read_text()
    print(f"apdo {apdo.__version__} works on Python {sys.version.split()[0]} from its wheel")


if __name__ == "__main__":
    main(str(Path(sys.argv[1]).resolve()))

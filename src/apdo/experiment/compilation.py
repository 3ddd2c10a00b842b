"""Compiled programs are kept between runs, so that a second run of the same shape starts at once."""

import os
from pathlib import Path

import jax


def keep_compiled_programs() -> None:
    """Turn JAX's persistent compilation cache on, unless the user has chosen where it is or switched it off.

    The folder is `apdo/jax` in the user's cache folder; JAX_COMPILATION_CACHE_DIR names another, and an empty value or
    JAX_ENABLE_COMPILATION_CACHE=false switches it off.
    """
    if "JAX_COMPILATION_CACHE_DIR" in os.environ or jax.config.jax_compilation_cache_dir:  # type: ignore[attr-defined]
        return
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    jax.config.update("jax_compilation_cache_dir", str(home / "apdo" / "jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

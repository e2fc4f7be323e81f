"""Setup of every test: eight virtual CPU devices, exact float32 products, a compile cache."""

import ctypes
import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

# Before JAX is imported. JSPEC_TEST_PLATFORM=cuda runs the tests on a GPU.
os.environ["JAX_PLATFORMS"] = os.environ.get("JSPEC_TEST_PLATFORM", "cpu")
# No test may download anything.
os.environ["HF_HUB_OFFLINE"] = "1"
# Each of eight virtual devices may wait for others in several exchanges at once, in a thread each.
# With as many threads as devices all can be waiting, which XLA ends the process over.
os.environ.setdefault("NPROC", "32")
# The benches are not part of the package. At the end: an installed jspec stays the one tested.
sys.path.append(str(Path(__file__).resolve().parents[1]))

import checked
import jax
import numpy as np
import pytest

# Before jspec is imported, which `tiny` does: its annotations are checked while it is traced.
checked.install()
import compiling  # noqa: E402
import tiny  # noqa: E402


def pytest_configure(config: pytest.Config) -> None:
    # By JAX's options, which no command that a test starts inherits.
    jax.config.update("jax_num_cpu_devices", 8)
    # Nearly all of a run is XLA compiling what then runs for milliseconds.
    jax.config.update("jax_disable_most_optimizations", True)
    jax.config.update("jax_default_matmul_precision", "highest")
    if jax.config.jax_compilation_cache_dir is None:
        jax.config.update("jax_compilation_cache_dir", str(config.rootpath / ".jax_cache"))
    # Most of a run is many small programs; JAX's own threshold is a second.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    # Tracing makes many objects and few cycles: at Python's own threshold, a tenth of a run.
    gc.set_threshold(20_000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XLA_FLAGS", compiling.XLA_FLAGS, prepend=" ")
        jax.devices()  # XLA reads its flags now, and never again


def pytest_xdist_auto_num_workers() -> int:
    """One worker for each core, as far as there are 2 GB of free memory for each."""
    known = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if known else os.cpu_count() or 1
    told = Path("/proc/meminfo")
    if told.exists():
        free = int(told.read_text().partition("MemAvailable:")[2].split()[0]) * 1024
    else:
        free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    return max(1, min(cores, free // 2_000_000_000))


def resident() -> int:
    """Bytes of memory that this process holds, or 0 where Linux does not say."""
    told = Path("/proc/self/statm")
    return int(told.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if told.exists() else 0


MOST = 1_400_000_000
"""Bytes above which compiled programs are dropped: a test may take a few hundred MB more."""
kept = 0
"""Bytes that were left when programs were last dropped."""


@pytest.fixture(autouse=True)
def little_memory() -> Iterator[None]:
    """Drops compiled programs when the process has grown. They come back from the cache on disk,
    but are traced again, so that what a drop does not free must not lead to the next one.
    """
    global kept
    yield
    if resident() > max(MOST, kept + 300_000_000):
        jax.clear_caches()
        gc.collect()
        # What was freed is given back to the system only when glibc is asked to: gigabytes.
        getattr(ctypes.CDLL(None), "malloc_trim", int)(0)
        kept = resident()


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with pre-trained models and text that are not part of the repository."""
    folder = Path(os.environ.get("JSPEC_SHARED", Path(__file__).resolve().parents[2] / "shared"))
    if not (folder / "models").is_dir():
        pytest.skip(f"{folder} holds no models; set JSPEC_SHARED to the folder that does")
    return folder


@pytest.fixture(scope="session")
def target():
    model = tiny.model()
    return model, tiny.params(model)


@pytest.fixture(scope="session")
def next_logits(target):
    """The target's logits after a text of at most 64 tokens, by forward passes without a cache."""
    known = {}

    def score(tokens):
        if (key := tuple(tokens)) not in known:
            # One forward pass gives every prefix; later lookups are nearly free.
            logits = tiny.plain_logits(*target, np.pad(key, (0, 64 - len(key))))
            for size in range(1, len(key) + 1):
                known.setdefault(key[:size], logits[size - 1])
        return known[key]

    return score

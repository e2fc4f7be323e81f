"""A pytest plugin: what tests may cost, in CPU seconds, and which part of the slow ones
runs.

JSPEC_CPU="700 4" fails a run that takes more than 700, or in which one test takes more than 4 by
half: what a test takes hangs on what its worker has compiled before it.
JSPEC_PART="2/6" keeps the sixth of the tests whose names have this remainder.
"""

import os
import resource
import statistics
import time
import zlib
from collections.abc import Iterator

import pytest

REFERENCE = 0.092
"""CPU seconds of `_work` on the two EPYC cores for which the limits are written."""
WIDER = {"class", "module", "package", "session"}


def _cpu() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _work() -> float:
    """Measures the compilation of a fixed program, which tells how slow this processor is."""
    import jax
    import jax.numpy as jnp

    factor = time.monotonic()  # another program each time

    def program(x):
        for level in range(4):
            sorted_x = jnp.take_along_axis(x, jnp.argsort(x, axis=-1), axis=-1)
            x = jnp.where(x > level, sorted_x * factor, jax.nn.softmax(x))
        return x

    began = time.process_time()
    jax.jit(program).lower(jnp.ones((4, 8))).compile()
    return time.process_time() - began


class Worker:
    """Measures each test where it runs; fixtures that several tests share count by themselves."""

    def __init__(self) -> None:
        self.shared, self.depth, self.began, self.last = 0.0, 0, 0.0, 0.0
        self.speeds: list[float] = []

    @pytest.hookimpl(hookwrapper=True)
    def pytest_fixture_setup(self, fixturedef) -> Iterator[None]:
        began, outermost = _cpu(), fixturedef.scope in WIDER and not self.depth
        self.depth += outermost
        yield
        if outermost:
            self.depth, self.shared = 0, self.shared + _cpu() - began

    def pytest_runtest_logstart(self) -> None:
        self.began, self.shared = _cpu(), 0.0

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item) -> Iterator[None]:
        outcome = yield
        report = outcome.get_result()
        if report.when != "teardown":
            return
        own = _cpu() - self.began - self.shared
        slow = item.get_closest_marker("slow") is not None
        slowness = 1.0
        # Again after a long test: a neighbour may have had the processor for as long as it took.
        if time.monotonic() - self.last > 15 or own > 4:
            self.speeds.append(_work())
            self.last = time.monotonic()
            slowness = self.speeds[-1] / REFERENCE
        report.user_properties.append(("cpu", (own, self.shared, slow, slowness)))

    def pytest_sessionfinish(self, session) -> None:
        usage = (_cpu(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, self.speeds)
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["usage"] = usage
        else:
            session.config.pluginmanager.get_plugin("budget-controller").usages.append(usage)


class Controller:
    """Adds up what workers measured, prints it, and fails a run that is over its limits."""

    def __init__(self, limits: list[float]) -> None:
        self.limits = limits
        self.tests: list[tuple[float, float, bool, float, str]] = []
        self.usages: list[tuple[float, float, list[float]]] = []
        self.wrong: list[str] = []

    def pytest_runtest_logreport(self, report) -> None:
        measured = dict(report.user_properties).get("cpu")
        if report.when == "teardown" and measured:
            self.tests.append((*measured, report.nodeid))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node) -> None:
        if usage := getattr(node, "workeroutput", {}).get("usage"):
            self.usages.append(usage)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session) -> None:
        speeds = [speed for usage in self.usages for speed in usage[2]] or [REFERENCE]
        self.slowness = max(1.0, statistics.median(speeds) / REFERENCE)
        used = sum(usage[0] for usage in self.usages)
        # Where there are workers, this process has its own time, of collecting.
        own = time.process_time() if session.config.getoption("numprocesses", None) else 0.0
        self.total = (used + own) / self.slowness
        if self.limits:
            whole, one = self.limits
            if self.total > whole:
                self.wrong.append(f"the run took {self.total:.0f} CPU seconds, over {whole:g}")
            self.wrong += [
                f"{name} took {own / slower:.1f} CPU seconds, over {one:g}"
                for own, _, slow, here, name in self.tests
                if own / (slower := max(self.slowness, here)) > 1.5 * one and not slow
            ]
        if self.wrong and session.exitstatus == 0:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter) -> None:
        held = max((usage[1] for usage in self.usages), default=0.0)
        terminalreporter.section("what the tests took, in CPU seconds")
        terminalreporter.line(
            f"{self.total:7.1f}  all of them; a worker held {held:.1f} GB at most; compiling "
            f"took {self.slowness:.2f} times as long as on the reference machine"
        )
        for own, shared, _, _, name in sorted(self.tests, reverse=True)[:10]:
            fixtures = f" (and {shared:.1f} for fixtures that others share)" if shared > 1 else ""
            terminalreporter.line(f"{own / self.slowness:7.1f}  {name}{fixtures}")
        for sentence in self.wrong:
            terminalreporter.line(f"FAILED {sentence}", red=True)


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        config.pluginmanager.register(Worker(), "budget-worker")
    if not hasattr(config, "workerinput"):
        limits = [float(part) for part in os.environ.get("JSPEC_CPU", "").split()]
        config.pluginmanager.register(Controller(limits), "budget-controller")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if part := os.environ.get("JSPEC_PART"):
        number, parts = map(int, part.split("/"))
        left = [item for item in items if zlib.crc32(item.nodeid.encode()) % parts != number]
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in set(left)]

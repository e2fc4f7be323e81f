"""The example of Ray Serve on this machine: a conversation's replica, and one that dies."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import compiling
import pytest
from test_hosts import free_port

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "ray_serve.py"
FLEET = {
    "method": "autoregressive",
    "settings": {"rows": 4, "max_logprobs": -1, "penalties": False, "grammar_states": 0,
                 "prefix_megabytes": 64},
}  # fmt: skip
BEGINS = ("Once upon a time", "The little dog", "Tom had", "One day", "The sun", "Lily saw")


def test_without_ray_the_example_is_a_sentence():
    code = "import runpy, sys; sys.modules['ray'] = None; runpy.run_path(sys.argv[1])"
    run = subprocess.run([sys.executable, "-c", code, EXAMPLE], capture_output=True, text=True)
    assert run.returncode == 1
    assert re.fullmatch(
        r"this example needs Ray \(.*\); pip install 'jspec-jax\[ray\]'\n", run.stderr
    )


class Fleet:
    """A fleet of two replicas, in a session of its own."""

    def __init__(self, log):
        self.port, self.log = free_port(), log
        quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_COLOR_PREFIX": "0", "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(
            [sys.executable, EXAMPLE, "--port", str(self.port), "--fleet", json.dumps(FLEET)],
            stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            env=compiling.environment(JAX_PLATFORMS="cpu", **quiet),
        )  # fmt: skip
        self.answered("Once", max_tokens=1)
        while len(self.replicas()) < 2:
            time.sleep(0.1)

    def replicas(self):
        """The pids of the replicas that live."""
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended meanwhile
                is_one = b"ServeReplica:default:Engine" in (place / "cmdline").read_bytes()
                if is_one and os.getsid(int(place.name)) == self.process.pid:
                    found.append(int(place.name))
        return found

    def ask(self, prompt, session="", **body):
        """The answer, or None where there is none."""
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        asked = {"model": "jspec-800k", "prompt": prompt, "seed": 5, **body}
        try:
            head = {"x-session-id": session} if session else {}
            link.request("POST", "/v1/completions", json.dumps(asked), head)
            response = link.getresponse()
            return json.load(response) if response.status == 200 else None
        except (OSError, http.client.HTTPException):
            return None

    def answered(self, prompt, session="", **body):
        """The answer of a client that asks until there is one."""
        deadline = time.monotonic() + 300
        while (got := self.ask(prompt, session, **body)) is None:
            log = Path(self.log.name).read_text("utf-8")
            assert self.process.poll() is None and time.monotonic() < deadline, log[-3000:]
            time.sleep(0.5)
        return got


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    with open(tmp_path_factory.mktemp("fleet") / "log", "w") as log:
        made = Fleet(log)
        try:
            yield made
        finally:
            made.process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                made.process.wait(60)
            with suppress(ProcessLookupError):
                os.killpg(made.process.pid, signal.SIGKILL)


needs_ray = pytest.mark.skipif(
    find_spec("ray") is None, reason="Ray is not installed; pip install 'jspec-jax[ray]'"
)


@pytest.mark.slow
@needs_ray
def test_a_replica_that_dies_is_replaced(fleet):
    """The same texts as before, whichever replica answers."""
    asked = [dict(prompt=begin, session=begin, max_tokens=200) for begin in BEGINS]
    before, pids = [fleet.answered(**one)["choices"] for one in asked], fleet.replicas()
    os.kill(pids[0], signal.SIGKILL)
    assert [fleet.answered(**one)["choices"] for one in asked] == before
    deadline = time.monotonic() + 120
    while len(now := fleet.replicas()) < 2 and time.monotonic() < deadline:
        time.sleep(0.5)
    assert len(now) == 2 and pids[0] not in now

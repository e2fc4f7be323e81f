"""The examples of Ray on this machine: replicas that die, and a run that is killed."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import compiling
import pytest
from test_hosts import free_port

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
FLEET = {
    "method": "autoregressive",
    # Slow streams of many events, so that there is time to kill who writes them.
    "settings": {"rows": 4, "rounds": 1, "max_logprobs": 1, "penalties": False,
                 "grammar_states": 0, "prefix_megabytes": 64},
}  # fmt: skip
BEGINS = ("Once upon a time", "The little dog", "Tom had", "One day", "The sun", "Lily saw")

needs_ray = pytest.mark.skipif(
    find_spec("ray") is None, reason="Ray is not installed; pip install 'jspec-jax[ray]'"
)


def started(script, *arguments, log):
    """An example as a process of its own, and of its own group."""
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_COLOR_PREFIX": "0", "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        [sys.executable, EXAMPLES / script, *map(str, arguments)],
        stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        env=compiling.environment(JAX_PLATFORMS="cpu", **quiet),
    )  # fmt: skip


@pytest.mark.parametrize("script", ["ray_serve.py", "ray_data.py"])
def test_without_ray_an_example_is_a_sentence(script):
    code = "import runpy, sys; sys.modules['ray'] = None; runpy.run_path(sys.argv[1])"
    run = subprocess.run(
        [sys.executable, "-c", code, EXAMPLES / script], capture_output=True, text=True
    )
    assert run.returncode == 1
    assert re.fullmatch(
        r"this example needs Ray \(.*\); pip install 'jspec-jax\[ray\]'\n", run.stderr
    )


class Fleet:
    """A fleet of two replicas, and the pids of its processes."""

    def __init__(self, log):
        self.port, self.log = free_port(), log
        self.process = started(
            "ray_serve.py", "--port", self.port, "--fleet", json.dumps(FLEET), log=log
        )
        deadline = time.monotonic() + 300
        while not self.answers():
            assert self.process.poll() is None and time.monotonic() < deadline, self.said()[-3000:]
            time.sleep(0.5)
        pids, number = set(), 0
        while len(pids) < 2:  # the second one may start later, which moves conversations
            number += 1
            pids.add(self.ask(f"Number {number}", max_tokens=1)[1])

    def said(self):
        return Path(self.log.name).read_text("utf-8")

    def answers(self):
        try:
            link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
            link.request("GET", "/health")
            return link.getresponse().status == 200
        except OSError:
            return False

    def ask(self, prompt, chunks=None, stream=False, **body):
        """The response's lines, each handed to `chunks` as it comes; and the replica's pid."""
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        asked = {"model": "jspec-800k", "prompt": prompt, "stream": stream, "seed": 5, **body}
        link.request("POST", "/v1/completions", json.dumps(asked))
        response = link.getresponse()
        assert response.status == 200, response.read()
        pid, lines = int(response.headers["x-replica"].split()[-1]), []
        for line in response:
            lines.append(line)
            if chunks is not None:
                chunks(pid, lines)
        return lines, pid

    def text(self, prompt, chunks=None, stream=False, **body):
        lines, pid = self.ask(prompt, chunks, stream, **body)
        if not stream:
            return json.loads(lines[0])["choices"][0]["text"], pid
        events = [json.loads(line[6:]) for line in lines if line.startswith(b"data: {")]
        assert lines[-2] == b"data: [DONE]\n", lines[-3:]
        assert len({event["id"] for event in events}) == 1
        return "".join(one["text"] for event in events for one in event["choices"]), pid


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


@pytest.mark.slow
@needs_ray
def test_a_conversation_stays_at_one_replica(fleet):
    told = "Once upon a time there was a little dog who liked to play in the park. " * 3
    pids = set()
    for turn in range(4):
        lines, pid = fleet.ask(told, max_tokens=8, temperature=0)
        usage = json.loads(lines[0])["usage"]
        # What two prompts have in common is kept, and found by the third.
        assert turn < 2 or usage["prompt_tokens_details"]["cached_tokens"] >= 32
        pids.add(pid)
        told += json.loads(lines[0])["choices"][0]["text"] + " And then?"
    assert len(pids) == 1
    others = {fleet.ask(f"{begin} {n}", max_tokens=1)[1] for n in range(4) for begin in BEGINS}
    assert len(others) == 2, "other conversations go to both"


@pytest.mark.slow
@needs_ray
def test_a_replica_that_dies_loses_no_request(fleet):
    """Streams in the middle, and whole answers: the same texts as of replicas that live."""
    asked = [
        dict(prompt=begin, stream=number % 3 < 2, max_tokens=700, ignore_eos=True)
        for number, begin in enumerate(BEGINS)
    ]
    wanted = [fleet.text(**one) for one in asked]
    victim = wanted[0][1]
    assert fleet.said().count("a replica died") == 0
    got, killed = {}, threading.Event()

    def chunks(pid, lines):
        if pid == victim and len(lines) > 40 and not killed.is_set():
            killed.set()
            os.kill(victim, signal.SIGKILL)

    def run(number):
        got[number] = fleet.text(chunks=chunks, **asked[number])

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(asked))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    assert killed.is_set()
    assert [got[number][0] for number in range(len(asked))] == [text for text, _ in wanted]
    # The first stream at least was cut: it had most of its text to come.
    assert fleet.said().count("a replica died") >= 1


def rows_of(folder):
    """The texts by id; none is there twice."""
    rows = [
        json.loads(line)
        for part in sorted((folder / "rows").glob("*.json"))
        for line in part.read_text("utf-8").splitlines(keepends=True)
        if line.endswith("\n")  # the process may have been killed in the middle of a line
    ]
    texts = {row["id"]: row["text"] for row in rows}
    assert len(texts) == len(rows), "a row was written twice"
    return texts


@pytest.mark.slow
@needs_ray
def test_a_run_that_is_killed_goes_on(tmp_path):
    """Killed after its first rows, and then finished by another number of replicas."""
    prompts, log = tmp_path / "prompts.jsonl", open(tmp_path / "log", "w")  # noqa: SIM115
    rows = [{"id": 3 * n, "prompt": f"{BEGINS[n % 6]} {n}"} for n in range(64)]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    run = started("ray_data.py", prompts, cut, "--replicas", 2, log=log)
    while not list((cut / "written").glob("*[!g].parquet")):
        assert run.poll() is None, Path(log.name).read_text("utf-8")[-3000:]
        time.sleep(0.01)
    os.killpg(run.pid, signal.SIGKILL)
    run.wait()
    before = rows_of(cut)
    assert 0 < len(before) < len(rows)
    for folder, replicas in ((cut, 1), (whole, 2)):
        run = started("ray_data.py", prompts, folder, "--replicas", replicas, log=log)
        assert run.wait(300) == 0, Path(log.name).read_text("utf-8")[-3000:]
    log.close()
    texts = rows_of(cut)
    assert texts == rows_of(whole) and [*sorted(texts)] == [row["id"] for row in rows]
    assert {row: texts[row] for row in before} == before

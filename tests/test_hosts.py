"""Several processes on this machine as hosts of one run: the example, and what goes wrong."""

import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import compiling
import pytest

import jspec
from jspec._validate.errors import InputError
from jspec._xla import hosts

SCRIPT = Path(__file__).resolve().parents[1] / "examples" / "several_hosts.py"
QUITS = "import jspec, os, time; jspec.hosts.join({!r}, 2, {}, 20); {}"


def free_port():
    """One of two that are free side by side."""
    while True:
        with socket.create_server(("", 0)) as door:
            port = door.getsockname()[1]
            if port < 65535:
                try:
                    socket.create_server(("", port + 1)).close()
                except OSError:
                    continue
                return port


def start(*command, devices=1):
    more = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices), "NPROC": "8"}
    return subprocess.Popen(
        [sys.executable, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=compiling.environment(**more),
    )


def rows_of(count, devices):
    """What a run of so many processes prints, by row."""
    address = f"localhost:{free_port()}"
    runs = [
        start(SCRIPT, "--coordinator", address, f"--processes={count}", f"--process={number}",
              devices=devices)
        for number in range(count)
    ]  # fmt: skip
    said = [run.communicate(timeout=120) for run in runs]
    assert [run.returncode for run in runs] == [0] * count, said[0][1][-2000:]
    return [dict(re.findall(r"row (\d+): (.*)", out)) for out, _ in said]


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
def test_processes_write_what_one_does(count):
    many = rows_of(count, devices=1)
    assert [sorted(rows) for rows in many] == [[str(2 * n), str(2 * n + 1)] for n in range(count)]
    if count == 2:
        # Rows 0 and 1 of a run of one process, whose weights are spread over two devices.
        assert many[0] == rows_of(1, devices=2)[0]
    texts = {text for rows in many for text in rows.values()}
    assert len(texts) == 2 * count  # each row draws its own noise


def test_a_missing_process_is_a_sentence():
    with pytest.raises(InputError, match=r"process 1, 2 of 3 did not come within 0\.2 seconds"):
        jspec.hosts.join(f"localhost:{free_port()}", 3, 0, timeout=0.2)
    with pytest.raises(InputError, match=r"process 1 heard nothing of process 0 .* 0\.2 seconds"):
        jspec.hosts.join(f"localhost:{free_port()}", 3, 1, timeout=0.2)


@pytest.mark.parametrize("says", [b"GET / HTTP/1.1", b"", b"\0\0\0\0", b"\0\0\0\7", None])
def test_a_stranger_is_none_of_the_processes(says):
    """Who connects and says something else, or nothing, is not counted, and stops nobody."""
    port = free_port()
    found = []

    def call():
        deadline = time.monotonic() + 20
        found.append(hosts._call_roll(("localhost", port), 2, deadline, 20))

    roll = threading.Thread(target=call)
    roll.start()
    with connected(port) as stranger, connected(port) as other:
        if says is not None:
            stranger.sendall(says)
        if says == b"":
            stranger.close()
        other.sendall((1).to_bytes(4, "big"))
        roll.join(timeout=20)
        assert [*found[0]] == [1] and other.recv(1) == b"g"
        found[0][1].close()


def connected(port):
    while True:
        try:
            return socket.create_connection(("localhost", port), timeout=20)
        except OSError:
            time.sleep(0.02)


def test_a_port_that_is_taken_is_a_sentence():
    port = free_port()
    with (
        socket.create_server(("", port + 1)),
        pytest.raises(InputError, match=f"port {port + 1}, the one after the coordinator's"),
    ):
        jspec.hosts.join(f"localhost:{port}", 2, 0, timeout=5)


@pytest.mark.parametrize(
    ("coordinator", "process", "sentence"),
    [
        ("here", 0, "pass host:port"),
        ("localhost:65535", 0, "the port in 1 .. 65534"),
        ("localhost:1", 2, "process is 2"),
    ],
)
def test_wrong_arguments_are_sentences(coordinator, process, sentence):
    with pytest.raises(InputError, match=sentence):
        jspec.hosts.join(coordinator, 2, process)


@pytest.mark.slow
@pytest.mark.parametrize("dying", [1, 0])
def test_a_process_that_dies_is_a_sentence(dying):
    address = f"localhost:{free_port()}"
    ends = ["time.sleep(60)", "time.sleep(60)"]
    ends[dying] = "os._exit(9)"
    runs = [start("-c", QUITS.format(address, number, ends[number])) for number in range(2)]
    said = runs[1 - dying].communicate(timeout=30)[1]
    assert f"process {dying} of 2 ended before the others" in said
    assert runs[1 - dying].returncode != 0
    runs[dying].communicate(timeout=30)

"""Several processes on this machine as hosts of one run."""

import re
import socket
import subprocess
import sys
from pathlib import Path

import compiling
import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "examples" / "several_hosts.py"


def free_port():
    with socket.create_server(("", 0)) as door:
        return door.getsockname()[1]


def start(*command, devices):
    more = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices), "NPROC": "8"}
    return subprocess.Popen(
        [sys.executable, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=compiling.environment(**more),
    )


def rows_of(count, devices):
    """Returns what a run of so many processes prints, by row."""
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

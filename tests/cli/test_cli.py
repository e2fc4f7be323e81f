import json
import signal
import subprocess
import sys

import compiling
import jax.numpy as jnp
import pytest

import jspec
import jspec.models
from jspec.methods import METHODS, Method

# A shell starts what runs in the background with SIGINT ignored, and Python then leaves it so.
START = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from jspec.cli import main
{more}
main.main()
"""
CHATTER = """
import time
@main.app.command()
def chatter():
    while True:
        print("{}", flush=True)
        time.sleep(0.001)  # so that no write waits for room in the pipe
"""


def test_help_names_the_commands_and_the_version_is_that_of_the_package(command):
    for arguments in ([], ["--help"]):
        ran = command(*arguments)
        assert ran.code == 0 and all(name in ran.out for name in ("generate", "methods", "train"))
    ran = command("generate", "--help")
    assert ran.code == 0 and "--speculative-config" in ran.out and "--version" not in ran.out
    assert command("--version") == (0, f"jspec {jspec.__version__}\n", "")


def test_the_table_holds_every_method_and_option(command, monkeypatch):
    ran = command("methods")
    assert ran.code == 0 and ran.err == ""
    for method in METHODS.values():
        assert method.name in ran.out
        assert all(option.name in ran.out for option in method.options)
    line = next(line for line in ran.out.splitlines() if "prompt_lookup " in line)
    assert line.split()[:4] == ["prompt_lookup", "none", "none", "yes"]
    line = next(line for line in ran.out.splitlines() if "coupled_tree " in line)
    assert line.split()[:4] == ["coupled_tree", "needed", "none", "yes"]
    assert "draft model of the bundled jspec-7m is jspec-800k" in ran.out


def test_an_error_that_is_not_the_users_keeps_its_traceback(command, folder, monkeypatch):
    def jax_error(models):
        jnp.zeros(2) + jnp.zeros(3)

    def python_error(models):
        raise KeyError("x")

    def stop(models):
        raise jspec._validate.errors.RunStopped("the disk is full;\nmake room")

    def run(build):
        monkeypatch.setitem(METHODS, "wrong", Method("wrong", "", build))
        return command("generate", "Once", "--model", folder, "--method", "wrong")

    for build, error in ((jax_error, (ValueError, TypeError)), (python_error, KeyError)):
        with pytest.raises(error):
            run(build)
    assert run(stop) == (1, "", "jspec: the disk is full; make room\n")


def started(code, *arguments) -> subprocess.Popen:
    command = [sys.executable, "-c", START.replace("{more}", code), *map(str, arguments)]
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    return subprocess.Popen(command, env=compiling.environment(), **pipes)


def left(ran):
    assert json.loads(ran.stdout.readline()) is not None
    ran.stdout.close()
    assert (ran.wait(60), ran.stderr.read()) == (141, b"")


def interrupted(ran):
    ran.stdout.readline()
    ran.send_signal(signal.SIGINT)
    out, err = ran.communicate(timeout=60)
    assert (ran.returncode, err) == (130, b"")
    assert all(json.loads(line) is not None for line in out.splitlines())


def test_a_reader_that_leaves_or_an_interrupt_ends_a_command_quietly():
    left(started(CHATTER, "chatter"))
    interrupted(started(CHATTER, "chatter"))

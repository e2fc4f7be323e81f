"""The commands of `jspec train`: help without JAX, and options of other kinds."""

import os
import subprocess
import sys

import pytest

from jspec.cli import train_settings

HELP = {
    "draft": {option.argument: option for option in train_settings.DRAFT},
    "head": {
        option.argument: option for options in train_settings.HEADS.values() for option in options
    },
}


@pytest.mark.parametrize("command", HELP)
def test_help_names_every_setting_without_jax(command):
    code = (
        "import sys, jspec.cli.main as cli; "
        f"cli.run(['train', '{command}', '--help']); assert 'jax' not in sys.modules"
    )
    environment = os.environ | {"COLUMNS": "300", "TERM": "dumb"}
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    for argument, setting in HELP[command].items():
        flag = f"--{argument.replace('_', '-')} "
        (line,) = (line for line in ran.stdout.splitlines() if flag in line)
        assert setting.told in line


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "no --kind was given; use one of eagle, lyanna, medusa, ngrams"),
        (["--kind", "block"], "--kind is 'block'; use one of eagle"),
        (["--kind", "eagle", "--rank", 3], "--rank does not apply to --kind eagle; leave it out"),
        (["--kind", "medusa", "--unroll", 3], "--unroll does not apply to --kind medusa"),
        (["--kind", "ngrams", "--lr", 3], "--lr does not apply to --kind ngrams"),
        (["--kind", "ngrams", "--begin-with", "x"], "--begin-with does not apply to --kind ngr"),
    ],
)
def test_options_of_other_kinds_are_refused(train, given, message):
    code, output = train("head", "--out", "run", *given)
    assert code == 2 and message in output

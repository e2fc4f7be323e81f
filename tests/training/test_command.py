"""The commands of `jspec train`: help without JAX, and options of other kinds."""

import os
import subprocess
import sys

from jspec.cli import train_settings

HELP = {
    "draft": {option.argument: option for option in train_settings.DRAFT},
    "head": {
        option.argument: option for options in train_settings.HEADS.values() for option in options
    },
}


def test_help_names_every_setting_without_jax():
    code = (
        "import sys, jspec.cli.main as cli; "
        "[(print('of', name), cli.run(['train', name, '--help'])) for name in ('draft', 'head')]; "
        "assert 'jax' not in sys.modules"
    )
    environment = os.environ | {"COLUMNS": "300", "TERM": "dumb"}
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    for command, said in zip(HELP, ran.stdout.split("of head\n"), strict=True):
        for argument, setting in HELP[command].items():
            flag = f"--{argument.replace('_', '-')} "
            (line,) = (line for line in said.splitlines() if flag in line)
            assert setting.told in line

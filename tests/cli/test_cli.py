import json
import os
import re
import signal
import subprocess
import sys

import compiling
import jax.numpy as jnp
import pytest

import jspec
import jspec.models
from jspec.methods import LLM, METHODS, Method
from jspec.sessions import json_output

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


def test_the_command_line_is_there_before_jax():
    heavy = "{'jax', 'flax', 'numpy', 'tokenizers', 'transformers', 'optax'}"
    code = f"import sys, jspec.cli.main as cli; cli.run([]); print({heavy} & {{*sys.modules}})"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "set()"


def test_help_names_the_commands(command):
    for arguments in ([], ["--help"]):
        ran = command(*arguments)
        assert ran.code == 0 and all(name in ran.out for name in ("generate", "methods", "train"))
    ran = command("generate", "--help")
    assert ran.code == 0 and "--speculative-config" in ran.out


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


def refused(ran, said):
    """`said`: words of the one sentence; `...` stands for any."""
    assert ran.code == 2 and ran.out == ""
    assert ran.err.startswith("jspec: ") and ran.err.count("\n") == 1, ran.err
    assert re.search(".*".join(map(re.escape, said.split("..."))), ran.err), ran.err


REFUSED = [
    (["--methd", "x"], "--method"),
    (["--method", "token_recyclin"], "'token_recyclin' is unknown; did you mean token_recycling?"),
    (["--speculative-config", '{"max": 3}'], "'max' is unknown"),
    (["--speculative-config", '{"k": "3"}'], "k is '3'; pass an integer"),
    (["--speculative-config", '{"k": 999}'], "k is 999; pass an integer in 1 .. 290"),
    (
        ["--speculative-config", '{"method": "token_recycling", "template": [[8]]}'],
        "rank 8 and the matrix holds",
    ),
    (["--speculative-config", '{"widths": [3, 0]}'], "give rising numbers of drafted nodes"),
    (["--max-new-tokens", 0], "--max-new-tokens is 0; pass at least 1"),
    (["--drop", "oldest"], "--drop is oldest, and turns are dropped of a conversation"),
    (["--max-new-tokens", "x"], "'--max-new-tokens': 'x' is not an integer"),
    (["--temperature", "nan"], "temperature is nan"),
    (["--temperature", "warm"], "'warm' is not a number"),
    (
        ["--temperature", 1e9],
        "temperature is 1000000000.0; pass a number x with 0 <= x <= 1000000, 0 is greedy",
    ),
    (["--top-p", 1.5], "top_p is 1.5; pass a number x with 1e-06 <= x <= 1, 1 is off"),
    (["--dtype", "float7"], "'float7' is unknown; use one of"),
    (
        ["--draft-model", "x", "--method", "suffix"],
        "uses none; leave it out (choose one of auto, speculative_decoding, ",
    ),
    (
        ["--method", "speculative_decoding"],
        "_decoding needs a draft model and none was given",
    ),
    (["--batch-file", "x"], "a prompt and --batch-file were both given"),
    (["--model", "/absent/folder"], "/absent/folder is not a folder"),
    (["--model", os.curdir], "no config.json"),
]


def test_bad_input_is_one_sentence(command, folder):
    for number, (arguments, said) in enumerate(REFUSED):
        flags = ["--json"] if number % 2 else []
        model = [] if "--model" in arguments else ["--model", folder]
        refused(command("generate", "Once", *model, *arguments, *flags), said)


def test_a_bad_prompt_is_one_sentence(command, folder):
    for prompt, said in (
        ("", "the prompt is empty"),
        ("猫" * 99, "tokens and the model's context is 64; shorten"),
    ):
        refused(command("generate", prompt, "--model", folder), said)
        ran = command("generate", "-", "--model", folder, stdin=prompt)
        refused(ran, said.split("prompt")[-1])


def test_a_bad_line_is_found_before_anything_runs(command, folder, tmp_path):
    file = tmp_path / "prompts.txt"
    for line, said in (
        ("", "line 2 of ... is empty"),
        ("[1, 290]", "line 2 of ... token id 290, outside the vocabulary of 290; use ids 0 .. 289"),
        ("猫" * 99, "line 2 of ... context is 64; shorten"),
    ):
        file.write_text(f"good\n{line}\ngood\n")
        refused(command("generate", "--json", "--model", folder, "--batch-file", file), said)


def test_a_damaged_checkpoint_is_one_sentence(command, folder, tmp_path):
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    refused(command("generate", "Once", "--model", tmp_path), "model.safetensors")


def test_a_draft_model_has_the_targets_vocabulary(command, folder, stranger, monkeypatch):
    def build(models):
        assert models.draft.model.vocab_size == models.target.model.vocab_size
        return LLM(models.target, drafter=jspec.Autoregressive())

    # One entry is all that a new method needs.
    monkeypatch.setitem(METHODS, "two", Method("two", "", build, needs_draft_model=True))
    arguments = ("generate", "Once", "--model", folder, "--method", "two", "--max-new-tokens", 12)
    refused(command(*arguments), "two needs a draft model and none was given; pass --draft-model")
    # A vocabulary of the first 280 of its 290 tokens serves it, too.
    assert command(*arguments, "--draft-model", stranger, "--json").code == 0
    assert command(*arguments, "--draft-model", folder, "--json").code == 0
    assert "two" in command("methods").out


def test_the_bundled_target_brings_its_draft_model(command, folder, draft, monkeypatch):
    load, sessions = jspec.models.load, []
    folders = {"jspec-7m": folder, "jspec-800k": draft}
    monkeypatch.setattr(jspec.models, "load", lambda name, *_, **__: load(folders[name]))
    monkeypatch.setattr(json_output, "write", lambda session, *_: sessions.append(session))
    ran = command("generate", "Once", "--method", "coupled_tree", "--json")
    assert (ran.code, ran.err) == (0, "")
    (session,) = sessions
    assert session.target.model == load(folder).model
    assert session.llm.drafter == jspec.CoupledTree(load(draft).model)


def test_an_unfit_draft_model_is_refused_in_one_sentence(command, folder, draft):
    models = ("--model", folder, "--draft-model", draft, "--max-new-tokens", 12, "--json")

    def asked(method, given):
        return command(
            "generate", "Once", *models, "--method", method, "--speculative-config", given
        )

    refused(asked("rsd_s", '{"beam": 291}'), "beam is 291; pass an integer in 1 .. 290")
    refused(
        asked("dyspec", '{"threshold": 1}'),
        "threshold is 1; pass a number x with 0 <= x < 1",
    )
    refused(asked("sequoia", '{"acceptance": [0.9, 0.9]}'), "acceptance sums to 1.8")


def test_an_error_that_is_not_the_users_keeps_its_traceback(command, folder, monkeypatch):
    def jax_error():
        jnp.zeros(2) + jnp.zeros(3)

    def python_error():
        raise KeyError("x")

    for fails, error in ((jax_error, (ValueError, TypeError)), (python_error, KeyError)):
        build = Method("wrong", "", lambda models, fails=fails: fails())
        monkeypatch.setitem(METHODS, "wrong", build)
        with pytest.raises(error):
            command("generate", "Once", "--model", folder, "--method", "wrong")


def test_a_run_that_stops_says_why(command, folder, monkeypatch):
    def build(models):
        raise jspec._validate.errors.RunStopped("the disk is full;\nmake room")

    monkeypatch.setitem(METHODS, "wrong", Method("wrong", "", build))
    ran = command("generate", "Once", "--model", folder, "--method", "wrong")
    assert (ran.code, ran.err) == (1, "jspec: the disk is full; make room\n")


def test_the_version_is_that_of_the_package(command):
    ran = command("--version")
    assert (ran.code, ran.out, ran.err) == (0, f"jspec {jspec.__version__}\n", "")
    assert command("generate", "--help").out.find("--version") == -1, "it is not of a command"


def started(code, *arguments) -> subprocess.Popen:
    command = [sys.executable, "-c", START.replace("{more}", code), *map(str, arguments)]
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    return subprocess.Popen(command, env=compiling.environment(), **pipes)


def decoding(folder, tmp_path) -> subprocess.Popen:
    """A command that has long to write, and a computation under way."""
    file = tmp_path / "prompts.txt"
    file.write_text("Once upon\n" * 2000)
    options = ["--ignore-eos", "--batch-file", file, "--model", folder]
    return started("", "generate", "--json", *options, "--method", "prompt_lookup")


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


@pytest.mark.slow
@pytest.mark.parametrize("end", [left, interrupted])
def test_so_does_one_that_decodes(folder, tmp_path, end):
    end(decoding(folder, tmp_path))

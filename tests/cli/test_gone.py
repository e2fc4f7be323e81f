"""Commands and options that are gone name what to use instead."""

from jspec.cli.gone import GONE, replacement


def test_each_answers_in_one_sentence(command):
    for name, instead in GONE.items():
        ran = command(*name.split())
        assert (ran.code, ran.err) == (2, f"jspec: jspec {name} is gone; {instead}\n")


def test_other_mistakes_keep_their_message(command):
    assert "--no-such" in command("plan", "--no-such").err
    assert replacement(["bench", "--device", "v5e"]) is None

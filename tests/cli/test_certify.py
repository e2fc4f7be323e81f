"""`jspec certify` as its user runs it: the report, the JSON, and the exit code."""

import json

import pytest

import jspec
from jspec._xla import native
from jspec.testing import Certificate
from jspec.testing.certification.bitwise import Bits
from jspec.testing.certification.parity import Parity
from jspec.testing.certification.rounding import Rounding

LINES = ["Once upon", "[5, 6, 7, 8, 9, 10, 11]", "She"]


@pytest.fixture
def prompts(tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_text("\n".join(LINES))
    return file


@pytest.fixture
def certify(command, folder):
    def run(*arguments):
        return command("certify", "--model", folder, "--max-new-tokens", 12, *arguments)

    return run


def test_a_certificate_is_shown_and_is_the_exit_code(certify, prompts, monkeypatch):
    """With a certificate that is made up, of the prompts and settings that were given."""
    asked = []
    none = Parity(3, 36, ())
    rounding = Rounding("float32", 2**-23, 3, 36, 1e-5, 1e-5, 0.6, 1.0)

    def made_up(*given, prompts, **settings):
        asked.append((prompts, settings))
        return Certificate({"device": "cpu"}, none, none, None, rounding)

    monkeypatch.setattr(jspec.testing, "certify", made_up)
    ran = certify("--prompts", prompts, "--method", "suffix", "--batch-size", 2, "--draws", 99)
    ((ids, settings),) = asked
    assert ids[1] == [5, 6, 7, 8, 9, 10, 11] and len(ids) == 3
    assert [settings[name] for name in ("max_new_tokens", "batch_size", "num_draws")] == [12, 2, 99]
    head, *_, verdict = ran.out.splitlines()
    assert head.endswith(", float32, suffix (scheme coupled), cpu: 3 prompts, 12 tokens each")
    assert ran.code == 1 and verdict.startswith("Verdict: undecided, rounding swaps the two")
    ran = certify("--prompts", prompts, "--method", "suffix", "--json")
    assert ran.code == 1 and json.loads(ran.out)["settings"]["method"] == "suffix"


def test_one_shape_bit_by_bit(certify, prompts, monkeypatch):
    shape = ("--prompts", prompts, "--bitwise", "--limit", 1, "--max-new-tokens", 4)
    shape += ("--batch-invariant", 4)
    with native.disable():
        ran = certify(*shape)
        assert ran.code == 0 and "(XLA's products, cpu, 4 tokens)" in ran.out
        # Of two that differ the exit code says so, too.
        unequal = Bits(9, 99, 2, (1, 2), 1, None)
        monkeypatch.setattr(jspec.testing, "check_bits", lambda *_, **__: unequal)
        ran = certify(*shape, "--json")
    assert ran.code == 1 and json.loads(ran.out)["num_different"] == 2

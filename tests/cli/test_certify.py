"""`jspec certify` as its user runs it: the report, the JSON, and the exit code."""

import json

import pytest

import jspec
from jspec._xla import native
from jspec.methods import LLM, METHODS, Method
from jspec.testing import Certificate
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
    ran = certify("--prompts", prompts, "--method", "suffix", "--batch-size", 2)
    ((ids, settings),) = asked
    assert ids[1] == [5, 6, 7, 8, 9, 10, 11] and len(ids) == 3
    assert (settings["max_new_tokens"], settings["batch_size"]) == (12, 2)
    head, *_, verdict = ran.out.splitlines()
    assert head.endswith(", float32, suffix (scheme coupled), cpu: 3 prompts, 12 tokens each")
    assert ran.code == 1 and verdict.startswith("Verdict: undecided, rounding swaps the two")
    ran = certify("--prompts", prompts, "--method", "suffix", "--json")
    assert ran.code == 1 and json.loads(ran.out)["settings"]["method"] == "suffix"


@pytest.mark.slow
def test_the_certificate_as_json(certify, prompts, folder):
    ran = certify(*("--prompts", prompts, "--method", "prompt_lookup", "--batch-size", 2, "--json"))
    found = json.loads(ran.out)
    assert ran.code == 0 and ran.out.count("\n") == 1 and ran.err == ""
    assert found["verdict"] == "lossless" and found["model"] == str(folder)
    assert found["settings"]["method"] == "prompt_lookup" and found["greedy"]["num_equal"] == 3
    assert found["sampled"]["num_equal"] == 3 and found["rounding"]["dtype"] == "float32"


@pytest.mark.slow
def test_the_certificate_as_text(certify, prompts):
    ran = certify("--prompts", prompts, "--method", "prompt_lookup", "--batch-size", 2)
    assert ran.code == 0 and ran.err == "", ran.err
    head, *_, verdict = ran.out.splitlines()
    assert head.endswith(
        ", float32, prompt_lookup (scheme coupled), cpu: 3 prompts, 12 tokens each"
    )
    assert "Greedy: 3 of 3 texts" in ran.out and "Sampled: 3 of 3 texts" in ran.out
    assert verdict == "Verdict: lossless."


@pytest.mark.slow
@pytest.mark.skipif(native.instruction_set() is None, reason=str(native.missing()))
def test_bit_by_bit(certify, prompts, folder):
    shape = ("--prompts", prompts, "--bitwise", "--limit", 2)
    ran = certify(*shape, "--json")
    found = json.loads(ran.out)
    assert ran.code == 0 and found["model"] == str(folder) and found["num_different"] == 0
    assert found["num_nodes"] > 50 and found["kernels"] == native.instruction_set()
    with native.disabled():
        ran = certify(*shape)
    head, said, *_ = ran.out.splitlines()
    assert ", float32, cpu, jaxlib 0." in head and "(XLA's products, cpu)" in said
    assert ran.code == (0 if "no bit differs" in said else 1)


def test_one_shape_bit_by_bit(certify, prompts):
    shape = ("--prompts", prompts, "--bitwise", "--limit", 1, "--max-new-tokens", 4)
    with native.disabled():
        ran = certify(*shape, "--batch-invariant", 4)
    assert ran.code == 0 and "(XLA's products, cpu, 4 tokens)" in ran.out
    ran = certify(*shape, "--batch-invariant", 1)
    assert ran.code == 2 and "num_tokens is 1" in ran.err


@pytest.mark.slow
def test_draws_of_a_custom_rule_are_tested(certify, prompts, draft):
    given = '{"method": "speculative_decoding", "scheme": "recursive", "num_speculative_tokens": 2}'
    ran = certify(
        *("--prompts", prompts, "--draft-model", draft, "--speculative-config", given),
        *("--draws", 512, "--limit", 2, "--json"),
    )
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    assert found["draws"]["passed"] and found["draws"]["num_draws"] >= 512
    assert found["sampled"] is None and found["settings"]["num_prompts"] == 2


@pytest.mark.slow
def test_a_bug_is_exit_code_1(certify, prompts, monkeypatch):
    def accept_all(p, q, children, valid, noise):
        accept, residual = jspec.rules.coupled(p, q, children, valid, noise)
        return accept * 0 + 1, residual

    def build(models):
        lookup = jspec.PromptLookup(num_speculative_tokens=2, min_match=1)
        return LLM(models.target, drafter=jspec.with_verifier(lookup, accept_all))

    monkeypatch.setitem(METHODS, "broken", Method("broken", "", build))
    ran = certify("--prompts", prompts, "--method", "broken", "--draws", 128)
    assert ran.code == 1 and ran.err == ""
    assert ran.out.splitlines()[-1] == "Verdict: bug."


def test_bad_input_is_one_sentence(certify):
    for arguments, said in (
        (["--temperature", 0], "--temperature is 0; pass a number above 0"),
        (["--limit", 0], "--limit is 0; pass at least 1"),
        (["--draws", 0], "--draws is 0; pass at least 1"),
        (["--method", "suffx"], "did you mean suffix?"),
        (["--method", "suffix", "--head", "x"], "suffix's option 'head' is unknown"),
        (["--questions", "/absent"], "--questions /absent cannot be read"),
        (["--prompts", "/absent"], "--prompts /absent cannot be read"),
        (["--prompts", "a", "--questions", "b"], "were both given"),
        (["--max-new-tokens", 100000, "--limit", 1], "max_new_tokens is 100000"),
        (["--dtype", "float7"], "'float7' is unknown"),
    ):
        ran = certify(*arguments)
        assert ran.code == 2 and ran.out == "" and ran.err.count("\n") == 1, ran
        assert ran.err.startswith("jspec: ") and said in ran.err

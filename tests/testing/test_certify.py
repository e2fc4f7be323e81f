"""The certificate is given where all is right, and each check finds its planted fault."""

import json
from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np
import pytest
import tiny

import jspec
from jspec import sampling as samplings
from jspec._validate import seeds
from jspec.testing import Certificate, PrefixLM, certify
from jspec.testing.certification import forwards, parity
from jspec.testing.certification.goodness import GTest, g_test
from jspec.testing.certification.rounding import Rounding, ulp
from jspec.testing.certification.runs import CertifiedRun, CertifiedSubject
from jspec.verify.tree_verifier import TreeVerifier

MODEL = PrefixLM()
WEIGHTS = MODEL.init()
PROMPTS = [np.resize([3, 8, 1, 5][place:], size).tolist() for place, size in enumerate((12, 5, 12))]
# What it drafts is likely from the first round on.
LIKELY = jspec.TokenRecycling(
    MODEL.vocab_size, jspec.tree.branching([2, 1]), k=2, update_on_prefill=True
)
LOOKUP = jspec.PromptLookup(num_speculative_tokens=3)
SEEN = Rounding("float32", 2**-23, 1, 9, 1e-5, 1e-5, 0.0, 1.0)


def certified(drafter=LOOKUP, model=MODEL, params=WEIGHTS, **changes):
    ask = dict(prompts=PROMPTS, max_new_tokens=20, batch_size=2, num_draws=1024) | changes
    return certify(model, params, drafter, **ask)


def accept_first(p, q, children, valid, noise):
    """A rule that takes whatever was drafted first."""
    accept, residual = jspec.rules.coupled(p, q, children, valid, noise)
    return jnp.where(jnp.arange(len(children)) == 0, 1.0, accept), residual


def keep_residual(p, q, children, valid, noise):
    """A rule that is right where decoding is greedy, and draws refused tokens again."""
    accept, _ = jspec.rules.deterministic_proposal(p, q, children, valid, noise)
    return accept, p


@dataclass(frozen=True, eq=False)
class Impostor(TreeVerifier):
    """A verifier that passes for the coupled one."""

    def __eq__(self, other):
        return isinstance(other, TreeVerifier)

    def __hash__(self):
        return hash(jspec.schemes.COUPLED.verifier) + 1


@dataclass(frozen=True)
class Jittery(tiny.Wrapper):
    """A model with logits on a grid, for many ties that move with the width as its weights say."""

    def apply(self, params, tokens, positions, mask, cache, *nodes):
        output = self.inner.apply(params, tokens, positions, mask, cache, *nodes)
        moved = params["by"] * jnp.sin(1 + tokens.shape[1] * jnp.arange(self.inner.vocab_size))
        return replace(output, logits=jnp.round(output.logits) + moved)


def jittery(by=1e-4):
    return dict(model=Jittery(MODEL), params=WEIGHTS | {"by": jnp.float32(by)})


def test_plain_decoding_needs_no_yardstick():
    found = certified(jspec.Autoregressive())
    assert found.verdict == "lossless" and found.rounding.width == 1


def test_a_sound_drafter_is_certified():
    told = []
    found = certified(said=told.append)
    assert found.verdict == "lossless" and found.exit_code == 0
    for compared in (found.greedy, found.sampled):
        assert compared.num_equal == 3 and compared.num_tokens == 60
    assert found.draws is None and found.rounding.width == 4
    assert found.rounding.blind == 0 and found.rounding.equal_bits == 1  # sums of integers
    assert {line.split(":")[0] for line in told} == {"greedy", "rounding", "sampled"}
    written = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert written["verdict"] == "lossless" and written["settings"]["widths"] == [3]
    assert str(found).splitlines()[-1] == "Verdict: lossless."


@pytest.mark.slow
def test_a_rule_that_draws_is_tested_by_its_distribution():
    found = certified(jspec.with_verifier(LIKELY, jspec.rules.deterministic_proposal))
    assert found.verdict == "lossless" and found.sampled is None and found.draws.passed
    assert found.draws.test.freedom > 20 and len(found.draws.prompts) == 2
    assert "Law: kept" in str(found)

    # Right where decoding is greedy, wrong where it draws: only the G-test can see it.
    found = certified(jspec.with_verifier(LIKELY, keep_residual))
    assert found.greedy.bugs == () and not found.draws.passed
    assert found.verdict == "bug" and found.exit_code == 1
    assert "Law: BROKEN" in str(found)
    json.dumps(found.as_dict(), allow_nan=False)


@pytest.mark.slow
def test_a_verifier_that_accepts_too_much_is_a_bug_in_both_parities():
    found = certified(jspec.with_verifier(LOOKUP, Impostor(accept_first)))
    assert found.verdict == "bug" and found.exit_code == 1
    assert found.greedy.bugs and found.sampled.bugs
    one = found.greedy.bugs[0]
    assert one.gap > 1e3 * found.rounding.bound and one.verdict == "bug"
    assert f"prompt {one.prompt + 1}, place {one.position + 1}" in str(found)
    written = found.as_dict()["greedy"]["divergences"][0]
    assert (written["plain"], written["drafted"]) == (one.plain, one.drafted)


@pytest.mark.slow
def test_a_tie_is_called_a_tie_and_a_bug_a_bug():
    found = certified(**jittery())
    assert found.greedy.divergences and not found.greedy.bugs
    for one in found.greedy.divergences:
        assert one.gap <= 2e-4 and one.bounds <= 1
    assert found.verdict == "lossless" and 0 < found.rounding.blind < 0.5
    assert found.greedy.nearest == max(one.bounds for one in found.greedy.divergences)
    assert f"(up to {found.greedy.nearest:.2g} of rounding)" in str(found)
    found = certified(jspec.with_verifier(LOOKUP, Impostor(accept_first)), **jittery())
    assert found.greedy.bugs and found.verdict == "bug"


def test_a_model_whose_rounding_hides_too_much_is_undecided():
    none = parity.Parity(3, 60, ())
    found = Certificate({}, none, none, None, replace(SEEN, blind=0.6))
    assert found.verdict == "undecided" and found.exit_code == 1
    assert "in 60% of all places" in str(found).splitlines()[-1]


def subject(**changes):
    ask = dict(
        model=MODEL, params=WEIGHTS, prompts=PROMPTS, max_new_tokens=20, batch_size=2,
        stopping=jspec.Stopping(), key=0, said=print,
    )  # fmt: skip
    return CertifiedSubject(**(ask | changes))


def test_a_text_that_ends_elsewhere_or_otherwise_is_a_bug():
    plain = CertifiedRun([[1, 2, 3], [4], [5, 6]], [2, 2, 2])
    drafted = CertifiedRun([[1, 2], [4], [5, 6, 7]], [2, 3, 2])
    found = parity.compare(subject(), plain, drafted, None, SEEN)
    assert [one.verdict for one in found.divergences] == ["bug"] * 3
    ends = [(one.position, one.plain, one.drafted) for one in found.divergences]
    assert ends == [(2, 3, None), (1, None, None), (2, None, 7)]


def test_a_filters_edge_counts_as_near():
    """Token 2 is left out by a hair: a change of its logit by a few units lets it in."""
    logits = np.log(np.array([0.5, 0.3, 0.2], np.float32))
    cut = jspec.Sampling(temperature=1.0, top_p=0.8)
    unit = ulp(1.0, 2**-23)
    keys = samplings.row_keys(seeds.to_key(0), jnp.arange(200))
    noises = samplings.gumbel(keys, jnp.full(200, 7), 3)
    drawn = np.asarray(logits + noises).argmax(-1)
    noise = noises[int(np.flatnonzero(drawn == 2)[0])]
    assert parity._least_change(logits, 2, cut, noise, unit) < 1e-5
    logits = np.log(np.array([0.6, 0.3, 0.1], np.float32))
    assert 0.1 < parity._least_change(logits, 2, cut, noise, unit) < 10
    assert parity._least_change(logits, 2, jspec.Sampling(), noise, unit) < 2


def test_the_widths_are_the_rounds_widths():
    ask = subject().request([0], None)
    assert forwards.widths_of(drafter=LOOKUP, **ask) == (4,)
    assert forwards.widths_of(drafter=jspec.Autoregressive(), **ask) == (1,)


def test_the_g_test_is_scipys():
    from scipy import stats  # takes a second

    rng = np.random.default_rng(3)
    probs = rng.dirichlet(np.full(12, 2.0))
    counts = rng.multinomial(4000, probs)
    assert (4000 * probs > 5).all()
    found = g_test(counts, probs)
    wanted = stats.power_divergence(counts, 4000 * probs, lambda_="log-likelihood")
    assert found.statistic == pytest.approx(wanted.statistic)
    assert found.p_value == pytest.approx(wanted.pvalue) and found.freedom == 11
    assert g_test(np.array([9, 1]), np.array([1.0, 0.0])).p_value == 0
    assert g_test(np.array([9]), np.array([1.0])).p_value == 1
    both = found + GTest(3.0, 2, 50)
    assert both.freedom == 13 and both.num_draws == 4050
    # Rare cells are one, and even together too rare they belong to the least of the others.
    thin = np.array([0.5, 0.487, 0.006, 0.004, 0.003])
    assert g_test((1000 * thin).round().astype(int), thin).freedom == 3
    assert g_test(np.array([500, 498, 1, 1]), np.array([0.5, 0.498, 0.001, 0.001])).freedom == 1


def test_bad_input_is_one_sentence():
    for changes, said in (
        (dict(prompts=[]), "there are 0 prompts"),
        (dict(prompts=[[1], []]), "none of them empty"),
        (dict(batch_size=0), "batch_size is 0"),
        (dict(num_draws=0), "num_draws is 0"),
        (dict(request=None), "request is None"),
        (dict(request=jspec.Request()), "temperature is 0.0; pass a number above"),
        (dict(prompts=[[1, 99]]), "outside the vocabulary of 23"),
        (dict(max_new_tokens=0), "max_new_tokens is 0"),
        (dict(request=jspec.Request(min_tokens=3)), "request has min_tokens=3; pass one of"),
        (dict(drafter=jspec.PromptLookup), "pass an instance"),
    ):
        with pytest.raises(jspec.InputError, match=said):
            certified(**changes)

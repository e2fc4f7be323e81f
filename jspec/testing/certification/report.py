"""A certificate in sentences, for people."""

from collections.abc import Iterator

from jspec.testing.certification.certificate import LOSSLESS, UNDECIDED, Certificate
from jspec.testing.certification.goodness import ALARM, POWER
from jspec.testing.certification.parity import Divergence, Parity

_SHOWN = 10
"""Divergences of each kind that are shown."""


def lines(certificate: Certificate) -> Iterator[str]:
    """The lines of a report; the last one is the verdict."""
    rounding = certificate.rounding
    yield from _parity("Greedy", certificate.greedy)
    if certificate.sampled is not None:
        yield from _parity("Sampled, same key", certificate.sampled)
    yield from _draws(certificate)
    yield (
        f"Rounding: {rounding.dtype}; a unit in the last place of the largest logits is "
        f"{rounding.ulp:.2g}."
    )
    for noise in rounding.noises:
        yield (
            f"  Forwards of {noise.width} tokens change the gap of the two best logits by "
            f"{noise.mean:.2g} (root mean square) and at most by {noise.largest:.2g}, among the "
            f"eight best by {noise.largest_of_best:.2g}, in {rounding.num_places} places."
        )
    yield (
        f"  Gaps up to {rounding.bound:.2g} count as ties ({rounding.drawn_bound:.2g} where tokens "
        f"are drawn); {rounding.blind:.1%} of all places have one, and a bug that shows nowhere "
        "else would look like a tie."
    )
    yield from _matched(certificate)
    yield f"Speed: {certificate.speed:.2f} times plain decoding, greedy, one run of each."
    yield certificate.metrics.log_line()
    for reason in certificate.skipped:
        yield f"Not tested: {reason}."
    if certificate.compiler is not None:
        yield f"Warning: {certificate.compiler}."
    yield _verdict(certificate)


def _parity(kind: str, parity: Parity) -> Iterator[str]:
    ties = len(parity.divergences) - len(parity.bugs)
    yield (
        f"{kind}: {parity.num_equal} of {parity.num_prompts} texts are those of plain decoding "
        f"({parity.num_tokens} tokens); ties {ties}, bugs {len(parity.bugs)}."
    )
    shown = sorted(parity.divergences, key=lambda one: one.verdict)[:_SHOWN]
    for one in shown:
        yield f"  {_divergence(one)}"
    if (more := len(parity.divergences) - len(shown)) > 0:
        yield f"  and {more} more; --json has them all"


def _divergence(one: Divergence) -> str:
    def name(token: int | None) -> str:
        return "the end" if token is None else f"token {token}"

    where = f"{one.verdict}: prompt {one.prompt + 1}, place {one.position + 1}: "
    what = f"{name(one.drafted)} instead of {name(one.plain)}"
    if one.plain is None or one.drafted is None:
        return f"{where}{what}"
    return (
        f"{where}{what}; gap {one.gap:.2g}, which is {one.ulps:.3g} units in the last place and "
        f"{one.bounds:.2g} times what rounding explains (top two: {one.top_two_gap:.2g})"
    )


def _draws(certificate: Certificate) -> Iterator[str]:
    if (draws := certificate.draws) is None:
        return
    test = draws.test
    yield (
        f"Draws: G = {test.statistic:.1f} with {test.freedom} degrees of freedom over "
        f"{test.num_draws} draws of {draws.num_tokens} tokens; p = {draws.p_value:.2g} "
        f"({'passed' if draws.passed else 'FAILED'} at {ALARM:g})."
    )
    yield (
        f"  Power: a total variation of {test.detectable:.2g} and more between the bins is found "
        f"with {POWER:.0%} chance. Rounding alone moves {draws.rounding:.2g}."
    )


def _matched(certificate: Certificate) -> Iterator[str]:
    if (matched := certificate.matched) is None:
        return
    rounding = certificate.rounding
    yield (
        f"Plain decoding by forward passes of {matched.width} tokens: "
        f"{matched.num_equal_to_drafted} of {matched.num_prompts} texts are the drafted ones, "
        f"{matched.num_equal_to_plain} those of plain decoding; it takes "
        f"{matched.time_ratio:.2f} times as long."
    )
    if rounding.same_wide is not None and rounding.same_plain is not None:
        yield (
            "  The logits of a verified chain equal its logits to the last bit in "
            f"{rounding.same_wide:.1%} of places, and those of plain decoding by forward passes of "
            f"one token in {rounding.same_plain:.1%}."
        )


def _verdict(certificate: Certificate) -> str:
    if certificate.verdict == LOSSLESS:
        ties = [*certificate.greedy.divergences]
        if certificate.sampled is not None:
            ties += certificate.sampled.divergences
        but = f", but for {len(ties)} ties of rounding" if ties else ""
        return f"Verdict: lossless within what was tested{but}."
    if certificate.verdict == UNDECIDED:
        return (
            "Verdict: undecided; forward passes of different widths differ so much that they swap "
            f"the two best tokens in {certificate.rounding.blind:.0%} of all places. Take a wider "
            "dtype or matmul precision, or run jspec.testing.check_model on the model."
        )
    return f"Verdict: bug; {'; '.join(certificate.reasons)}."

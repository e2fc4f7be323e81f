"""The last sentence of a bench: the method to use here, or that plain decoding is best."""

from jspec.cli.bench.settings import PLAIN
from jspec.cli.bench.statistics import BenchReport, Summary

_ENOUGH = 5
"""Prompts below which two standard errors mean nothing."""

_UNSTEADY = 1.1
"""The ratio of the quartiles of repeats above which they should not be trusted."""


def sentence(report: BenchReport) -> str:
    """Returns the advice, from times that include reading the prompt."""
    ours = [one for one in report.summaries.values() if not one.is_peer and one.name != PLAIN]
    if not ours:
        return "Only plain decoding was measured, so there is no method to recommend."
    best = max(ours, key=lambda one: one.speedup)
    gain = f"{best.speedup:.2f} times plain decoding"
    bounds = f"{best.bounds[0]:.2f} .. {best.bounds[1]:.2f} within two standard errors"
    if best.num_prompts < _ENOUGH:
        few = f"{best.num_prompts} prompt{'s' if best.num_prompts > 1 else ''}"
        return (
            f"{best.name} was the fastest method, at {gain}, but {few} cannot tell that from "
            f"noise: ask {_ENOUGH} or more before you choose."
        )
    if best.bounds[0] > 1:
        return (
            f"Use {best.name} here: {gain} in the geometric mean of {best.num_prompts} prompts "
            f"({bounds}{_worst(report, best)}), {best.tokens_per_second:.1f} tokens per second "
            f"against {report.summaries[PLAIN].tokens_per_second:.1f}; {_tokens(best)}."
        )
    if best.speedup > 1:
        return (
            f"Plain decoding is as good here: {best.name} was fastest at {gain}, but that is "
            f"within the noise of {best.num_prompts} prompts ({bounds}); ask more to know."
        )
    return (
        f"Plain decoding is best here: {best.name}, the fastest method, ran at "
        f"{best.speedup:.2f} times its speed ({bounds})."
    )


def notes(report: BenchReport) -> list[str]:
    """Returns notes: differing tokens, unreliable times, faster peers."""
    found = []
    for one in report.summaries.values():
        if one.differing:
            question, place = one.differing[0]
            found.append(
                f"{one.name}: other tokens than plain decoding in {len(one.differing)} of "
                f"{one.num_prompts} prompts, first in question {question} at token {place + 1} "
                "(forward passes of different width or library round differently; float32 does so "
                "least)."
            )
    spreads = {one.name: one.repeats[1] / one.repeats[0] for one in report.summaries.values()}
    if unsteady := [name for name, spread in spreads.items() if spread > _UNSTEADY]:
        found.append(
            "The machine was busy: the speed-ups of one prompt differ by more than "
            f"{_UNSTEADY - 1:.0%} between the quartiles of its repeats for {', '.join(unsteady)}; "
            "measure again when it is idle."
        )
    peers = [one for one in report.summaries.values() if one.is_peer]
    ours = [one for one in report.summaries.values() if not one.is_peer]
    best = max(ours, key=lambda one: one.speedup, default=None)
    if best is not None and best.name != PLAIN:
        found += [
            f"Compared with {one.name}: {best.name} {best.speedup / one.speedup:.2f} times "
            f"as fast, plain decoding {1 / one.speedup:.2f} times "
            f"(geometric means of {one.num_prompts} prompts)."
            for one in peers
        ]
    if peers and ours:
        quick = max(peers, key=lambda one: one.speedup)
        if quick.speedup > max(one.speedup for one in ours):
            found.append(
                f"{quick.name} was faster than all of jspec: {quick.speedup:.2f} times jspec's "
                "plain decoding."
            )
    return found


def _worst(report: BenchReport, best: Summary) -> str:
    """Returns the class in which the best method loses most, if it loses in one."""
    gains = {kind: found[best.name].speedup for kind, found in report.by_class.items()
             if best.name in found}  # fmt: skip
    kind = min(gains, key=lambda name: gains[name])
    return f", but {gains[kind]:.2f} in {kind}" if gains[kind] < 1 else ""


def _tokens(best: Summary) -> str:
    if not best.differing:
        return "the tokens are the same" if best.compared else "the distribution is the same"
    return f"other tokens in {len(best.differing)} of {best.num_prompts} prompts"

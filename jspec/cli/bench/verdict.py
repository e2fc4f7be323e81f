"""The last sentence of a bench: the method to use here, or that plain decoding is best."""

from jspec.cli.bench.settings import PLAIN
from jspec.cli.bench.statistics import BenchReport, Summary

_ENOUGH = 5
"""Prompts below which two standard errors mean nothing."""

_UNSTEADY = 1.1
"""The ratio of the quartiles of repeats above which they should not be trusted."""


def sentence(report: BenchReport) -> str:
    """Returns the advice, from times that include reading the prompt."""
    ours = [
        summary
        for summary in report.summaries.values()
        if not summary.is_peer and summary.name != PLAIN
    ]
    if not ours:
        return "Only plain decoding was measured, so there is no method to recommend."
    best = max(ours, key=lambda summary: summary.speedup)
    gain = f"{best.speedup:.2f} times plain decoding"
    bounds = f"{best.bounds[0]:.2f} .. {best.bounds[1]:.2f} within two standard errors"
    if best.num_prompts < _ENOUGH:
        count = f"{best.num_prompts} prompt{'s' if best.num_prompts > 1 else ''}"
        return (
            f"{best.name} was the fastest method, at {gain}, but {count} cannot tell that from "
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
    lines = []
    for summary in report.summaries.values():
        if summary.differing:
            question, place = summary.differing[0]
            lines.append(
                f"{summary.name}: other tokens than plain decoding in {len(summary.differing)} of "
                f"{summary.num_prompts} prompts, first in question {question} at token {place + 1} "
                "(forward passes of different width or library round differently; float32 does so "
                "least)."
            )
    spreads = {
        summary.name: summary.repeats[1] / summary.repeats[0]
        for summary in report.summaries.values()
    }
    if unsteady := [name for name, spread in spreads.items() if spread > _UNSTEADY]:
        lines.append(
            "The machine was busy: the speed-ups of one prompt differ by more than "
            f"{_UNSTEADY - 1:.0%} between the quartiles of its repeats for {', '.join(unsteady)}; "
            "measure again when it is idle."
        )
    peers = [summary for summary in report.summaries.values() if summary.is_peer]
    ours = [summary for summary in report.summaries.values() if not summary.is_peer]
    best = max(ours, key=lambda summary: summary.speedup, default=None)
    if best is not None and best.name != PLAIN:
        lines += [
            f"Compared with {summary.name}: {best.name} {best.speedup / summary.speedup:.2f} times "
            f"as fast, plain decoding {1 / summary.speedup:.2f} times "
            f"(geometric means of {summary.num_prompts} prompts)."
            for summary in peers
        ]
    if peers and ours:
        quick = max(peers, key=lambda summary: summary.speedup)
        if quick.speedup > max(summary.speedup for summary in ours):
            lines.append(
                f"{quick.name} was faster than all of jspec: {quick.speedup:.2f} times jspec's "
                "plain decoding."
            )
    return lines


def _worst(report: BenchReport, best: Summary) -> str:
    """Returns the class in which the best method loses most, if it loses in one."""
    gains = {kind: summaries[best.name].speedup for kind, summaries in report.by_class.items()
             if best.name in summaries}  # fmt: skip
    kind = min(gains, key=lambda name: gains[name])
    return f", but {gains[kind]:.2f} in {kind}" if gains[kind] < 1 else ""


def _tokens(best: Summary) -> str:
    if not best.differing:
        return "the tokens are the same" if best.compared else "the distribution is the same"
    return f"other tokens in {len(best.differing)} of {best.num_prompts} prompts"

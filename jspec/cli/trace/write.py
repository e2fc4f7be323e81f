"""The work of `jspec trace`: record a generation, and write its page."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import jspec
from jspec._validate.whole_files import write_whole
from jspec.cli.trace.page import page
from jspec.sessions.batches import Runner, groups, interruptible
from jspec.sessions.run_settings import RunSettings
from jspec.sessions.session import Session


def run(
    session: Session,
    prompts: Sequence[list[int]],
    settings: RunSettings,
    described: Mapping[str, str],
    out: Path,
) -> str:
    """Writes the page of the first prompt, and returns what to say of it."""
    (group,) = groups(prompts[:1], settings)
    arguments = Runner(session, settings).arguments(group)
    trace = interruptible(lambda: jspec.trace(**arguments))
    html = page(trace, session.target.tokenizer, described)
    write_whole(out, html)
    tokens, rounds = len(trace.tokens), len(trace.rounds)
    return (
        f"{out}: {tokens} tokens in {rounds} rounds, {tokens / max(rounds, 1):.2f} a round "
        f"({len(html.encode()) / 1e6:.1f} MB)"
    )

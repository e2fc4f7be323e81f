"""`jspec bench` with other engines on the same weights: transformers and llama.cpp.

python -m benchmarks.peers --model smollm2-135m --methods auto --peers llama.cpp --limit 12
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from benchmarks import peers as known
from benchmarks.harness import command, console
from benchmarks.peers.contenders import PeerRun
from jspec.cli import options
from jspec.cli.bench import questions as asking
from jspec.cli.bench import run as runs
from jspec.cli.bench import settings as checks
from jspec.cli.bench.contenders import Contender
from jspec.cli.bench.ledger import Ledger
from jspec.methods import BUNDLED, BUNDLED_DRAFT
from jspec.models import Loaded, hub
from jspec.request import Request
from jspec.sessions import compilation
from jspec.sessions.run_settings import RunSettings


def main(
    model: options.Model = None,
    draft_model: options.DraftModel = None,
    methods: Annotated[str, typer.Option(help="of jspec, comma-separated")] = "auto",
    peers: Annotated[
        str, typer.Option(help=f"comma-separated, of {', '.join(known.PEERS)}; or all")
    ] = "all",
    questions: options.Questions = None,
    prompts: options.Prompts = None,
    limit: Annotated[int | None, typer.Option(min=1, help="questions, evenly over classes")] = None,
    turns: Annotated[int, typer.Option(min=1, help="most turns of a question")] = 1,
    max_new_tokens: options.MaxNewTokens = 128,
    temperature: options.Temperature = 0.0,
    batch_size: options.BatchSize = 1,
    repeats: Annotated[int, typer.Option(min=1, help="times that each prompt is measured")] = 3,
    dtype: options.Dtype = None,
    out: Annotated[Path, typer.Option(help="rows, figure and page")] = Path("jspec-bench"),
) -> None:
    """Measures jspec's methods and other engines in turn, and prints the bench's tables."""
    asked = known.choose(peers)
    chosen = checks.choices(methods, [], None, draft_model)
    draft = draft_model
    if draft is None and any(known.PEERS[name].needs_draft_model for name in asked):
        draft = BUNDLED_DRAFT if model in (None, BUNDLED) else None
    request = Request(temperature=temperature, seed=0)
    run = RunSettings(max_new_tokens, request, batch_size=batch_size)
    settings = checks.BenchSettings(run, repeats, limit, turns)
    found = asking.from_prompts(prompts) if prompts else asking.read(questions or asking.SAMPLE)

    def invite(target: Loaded, room: int) -> Mapping[str, Contender | str]:
        draft_path = None if draft is None else hub.find(draft)
        setting = PeerRun(hub.find(model or BUNDLED), draft_path, target, run, room)
        return start(asked, setting, draft)

    compilation.keep_on_disk()
    job = checks.BenchOptions(model, draft, None, dtype, None, chosen, settings)
    console.print(known.versions(asked))
    runs.run(job, found, Ledger(out / "rows.jsonl"), invite)


def start(
    names: tuple[str, ...], setting: PeerRun, draft_model: str | None
) -> Mapping[str, Contender | str]:
    """Starts peers; one that cannot take part has the reason in its place."""
    found: dict[str, Contender | str] = {}
    for name in names:
        peer = known.PEERS[name]
        if reason := peer.missing(draft_model, setting.run.batch_size):
            found[name] = reason
            continue
        try:
            found[name] = peer.start(setting)
        except Exception as error:  # other people's code: its column says what it said
            found[name] = f"it did not start: {type(error).__name__}: {error}"
    return found


if __name__ == "__main__":
    command(main)

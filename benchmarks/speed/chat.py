"""A chat as its user meets it: seconds to the first token, turn by turn, and what is compiled.

python -m benchmarks.speed.chat --model smollm2-135m
"""

import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Annotated

import typer
from rich.table import Table

from benchmarks import options
from benchmarks.harness import ROOT, command, console, headline, record
from jspec._validate.errors import InputError
from jspec.cli.chat_command import MODEL

QUESTIONS = (
    "What is the capital of France?",
    "And of Italy?",
    "Name three rivers of Europe.",
    "Which of them is the longest?",
    "Write one sentence about it.",
    "Say that in simpler words.",
    "What is a lake?",
    "Give me an example of one.",
    "Is it larger than a pond?",
    "Thank you. What did we talk about?",
)
_LONGEST = 300.0
"""Seconds that an answer may take."""
_LARGE = ("jit__prefill", "jit_decode_rounds", "jit__advance", "jit__forward_of", "jit_apply")
"""Programs that hold a pass of the model; all others are compiled in no time."""


@dataclass
class Session:
    """One run of `jspec chat`, and when what came."""

    first: list[float] = field(default_factory=list)
    """Seconds to the first text of each answer, from its question; that of the first from the
    command."""
    whole: list[float] = field(default_factory=list)
    """The same to its last."""
    programs: list[frozenset[Path]] = field(default_factory=list)
    """The programs in the folder of compiled code before the first question, at the end of each
    answer, and at the end of the command."""
    ended: float = 0.0
    """Seconds from the command to its end, which waits for what is compiled beside the answers."""

    def compiled(self, turn: int) -> str:
        """What was compiled up to the end of a turn, or after the last one: programs with a pass of
        the model by name, and how many others.
        """
        new = [file.name for file in self.programs[turn + 1] - self.programs[turn]]
        large = [name for name in new if name.startswith(_LARGE)]
        named = Counter(name.split("-")[0].removeprefix("jit_").lstrip("_") for name in large)
        parts = [f"{count} {name}" for name, count in sorted(named.items())]
        return ", ".join([*parts, *([f"{rest} small"] if (rest := len(new) - len(large)) else [])])


def main(
    model: Annotated[str, typer.Option(help="A chat model's name, folder, or file.")] = MODEL,
    method: Annotated[str | None, typer.Option(help="As of jspec chat.")] = None,
    turns: Annotated[int, typer.Option(min=1, max=len(QUESTIONS))] = len(QUESTIONS),
    new_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of an answer.")] = 48,
    out: options.Out = None,
) -> None:
    """Runs `jspec chat` twice, with empty folders for what it keeps, and then with full ones."""
    headline(f"jspec chat, {model}, answers of at most {new_tokens} tokens")
    _loading(model)
    asked = ["--model", model, "--max-new-tokens", str(new_tokens)]
    asked += [] if method is None else ["--method", method]
    table = Table("turn", *(f"{what}, {how}" for how in ("cold", "warm") for what in _COLUMNS))
    with tempfile.TemporaryDirectory() as kept:
        runs = {how: talk(asked, QUESTIONS[:turns], Path(kept)) for how in ("cold", "warm")}
    for turn in range(turns):
        cells = [
            cell
            for run in runs.values()
            for cell in (f"{run.first[turn]:.2f} s", f"{run.whole[turn]:.2f} s", run.compiled(turn))
        ]
        table.add_row(str(turn + 1), *cells)
    console.print(table)
    for how, run in runs.items():
        console.print(
            f"{how}: the command ended after {run.ended:.1f} s; compiled behind the last answer: "
            f"{run.compiled(turns) or 'nothing'}"
        )
        figures = dict(bench="chat", model=model, folders=how, first=run.first, whole=run.whole)
        record(out, figures | {"ended": run.ended})


_COLUMNS = ("first text", "whole answer", "programs compiled")


def talk(arguments: list[str], questions: tuple[str, ...], kept: Path) -> Session:
    """One conversation with `jspec chat` through its standard input and output.

    Args:
        arguments: of the command.
        questions: each is asked when the answer before has ended.
        kept: where compiled code and costs are kept.

    Raises:
        InputError: if the command ends before its last answer.
    """
    caches = {"JSPEC_CACHE": str(kept), "JAX_COMPILATION_CACHE_DIR": str(kept / "compiled")}
    environment: Mapping[str, str] = os.environ | caches | {"PYTHONPATH": _path()}
    start = "from jspec.cli.main import main; main()"
    pipe = subprocess.PIPE
    found, begin = Session(programs=[_programs(kept)]), time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-c", start, "chat", *arguments],
        stdin=pipe, stdout=pipe, stderr=pipe, env=environment, bufsize=0,
    ) as run:  # fmt: skip
        assert run.stdin and run.stdout and run.stderr
        arrived: queue.Queue[tuple[float, bool]] = queue.Queue()
        complaints: list[bytes] = []
        readers = [
            threading.Thread(target=_listen, args=(run.stdout, arrived, None), daemon=True),
            threading.Thread(target=_listen, args=(run.stderr, arrived, complaints), daemon=True),
        ]
        for reader in readers:
            reader.start()
        for turn, question in enumerate(questions):
            asked = begin if turn == 0 else time.perf_counter()
            run.stdin.write(question.encode() + b"\n")
            first = None
            while True:
                try:
                    when, is_end = arrived.get(timeout=_LONGEST)
                except queue.Empty:
                    run.kill()
                    raise InputError(f"no answer within {_LONGEST:g} s to {question!r}") from None
                if when < 0:
                    said = b"".join(complaints).decode().strip()
                    raise InputError(f"jspec chat ended before its answer: {said}")
                first = first or when
                if is_end:
                    break
            found.first.append(first - asked)
            found.whole.append(when - asked)
            found.programs.append(_programs(kept))
        run.stdin.close()
        for reader in readers:
            reader.join()
    found.ended = time.perf_counter() - begin
    found.programs.append(_programs(kept))
    return found


def _listen(
    stream: IO[bytes], arrived: queue.Queue[tuple[float, bool]], complaints: list[bytes] | None
) -> None:
    """Says when text comes, and whether it is the line of figures under an answer."""
    while piece := stream.read(4096):
        when = time.perf_counter()
        if complaints is None:
            if piece.strip():  # the line that ends an answer is no text of the next one
                arrived.put((when, False))
        else:
            complaints.append(piece)
            if b"tokens per forward" in piece:
                arrived.put((when, True))
    arrived.put((-1.0, False))


def _programs(kept: Path) -> frozenset[Path]:
    """The programs in the folder of compiled code."""
    return frozenset((kept / "compiled").glob("*-cache"))


def _loading(model: str) -> None:
    """Prints how long the model takes to load, in a process of its own."""
    program = (
        "import sys, time, jax; from jspec import models; begin = time.perf_counter();"
        "jax.block_until_ready(models.load(sys.argv[1]).params);"
        "print(time.perf_counter() - begin)"
    )
    environment = os.environ | {"PYTHONPATH": _path()}
    run = [sys.executable, "-c", program, model]
    took = [
        float(subprocess.run(run, env=environment, capture_output=True, check=True).stdout)
        for _ in range(3)
    ]
    console.print(f"loading: {min(took):.2f} s at best, {max(took):.2f} s at worst")


def _path() -> str:
    return os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])


if __name__ == "__main__":
    command(main)

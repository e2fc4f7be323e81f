"""Are the tokens the same? Every drafter against plain decoding, plain against `transformers`.

python -m benchmarks.exactness                  # needs the parity extra: torch
"""

from typing import Annotated, Any, NamedTuple

import jax
import numpy as np
import typer
from jaxtyping import Int
from rich.table import Table

import jspec
from benchmarks import model_pairs, options
from benchmarks.harness import SHARED, command, console, headline
from benchmarks.model_pairs import Subject
from benchmarks.registry import build_those_there, standalone
from benchmarks.texts import Prompts
from jspec.models import hub

SMALL = ("stories260k", "babyllama-target", "babyllama-draft")


class Decoding(NamedTuple):
    """A target with its prompts, decoded in several ways."""

    subject: Subject
    prompts: Prompts
    new_tokens: int

    def together(self, **request: Any) -> jspec.Result:
        """All prompts in one batch."""
        return self._decode(self.prompts, **request)

    def alone(self, **request: Any) -> tuple[Int[np.ndarray, "B T"], int]:
        """The tokens row by row, the drafter's memory carried over, and the number of rounds."""
        rows, rounds, state = [], 0, None
        for row in range(self.prompts.count):
            one = self.prompts.take([row])
            result = self._decode(one, ids=[row], drafter_state=state, **request)
            rows.append(result.tokens)
            rounds += int(result.stats.num_rounds[0])
            state = result.drafter_state
        return np.concatenate(rows), rounds

    def _decode(self, prompts: Prompts, **request: Any) -> jspec.Result:
        target = self.subject.target
        whole: dict[str, Any] = dict(
            model=target.model, params=target.params, max_new_tokens=self.new_tokens
        )
        return jspec.decode(prompt=prompts.tokens, lengths=prompts.lengths, **whole | request)


def main(
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="Folder, GGUF file, name, or hub id; may be repeated.",
            show_default="three of the shared ones",
        ),
    ] = None,
    methods: Annotated[
        str | None, typer.Option(help="Comma-separated.", show_default="all that need nothing else")
    ] = None,
    questions: options.Questions = None,
    prompts: options.Prompts = None,
    classes: options.Classes = "stories",
    count: options.Count = 20,
    prompt_tokens: options.PromptTokens = 24,
    new_tokens: options.NewTokens = 200,
    temperature: Annotated[
        float, typer.Option(min=0, help="Of the sampled texts, with top-p 0.9; 0: none are drawn.")
    ] = 0.8,
    seed: Annotated[int, typer.Option()] = 0,
) -> None:
    """Counts equal texts, in float32 at highest precision; leaves with 1 if any differs.

    Drafters are compared with plain decoding, and plain greedy decoding with `transformers`.
    """
    jax.config.update("jax_default_matmul_precision", "highest")
    headline(f"exactness: prompts of {prompt_tokens} tokens, {new_tokens} new ones each, float32")
    kinds: dict[str, dict[str, Any]] = {"greedy": {}}
    if temperature > 0:
        kinds["sampled"] = dict(sampling=jspec.Sampling(temperature, top_p=0.9), key=seed)
    shown = [f"{kind} {how}" for kind in kinds for how in ("alone", "in a batch")]
    wrong = 0
    for named in model or [str(SHARED / "models" / name) for name in SMALL]:
        table = Table("model", "method", *shown, "tokens a round, greedy")
        subject = model_pairs.subject(named, questions, prompts, classes)
        rows = subject.of_all_classes(count, prompt_tokens)
        run, total = Decoding(subject, rows, new_tokens), rows.count
        plain = {kind: run.alone(**how)[0] for kind, how in kinds.items()}
        theirs = _transformers(named, rows, new_tokens)
        counts = [
            sum(map(np.array_equal, ours, theirs))
            for ours in (plain["greedy"], np.asarray(run.together().tokens))
        ]
        cells = [f"{same}/{total}" for same in counts] + [""] * (len(shown) - 2)
        table.add_row(subject.name, "plain, and transformers", *cells, "1.00")
        wrong += sum(total - same for same in counts)
        names = standalone() if methods is None else methods.split(",")
        for method, built in build_those_there(names, subject.target).items():
            counts, rounds = [], 0
            for kind, how in kinds.items():
                request = built._asdict() | how
                tokens, taken = run.alone(**request)
                rounds = rounds or taken
                batch = np.asarray(run.together(**request).tokens)
                counts += [int((one == plain[kind]).all(-1).sum()) for one in (tokens, batch)]
            cells = [f"{same}/{total}" for same in counts]
            table.add_row(subject.name, method, *cells, f"{total * new_tokens / rounds:.2f}")
            wrong += sum(total - same for same in counts)
        console.print(table)
    raise typer.Exit(1 if wrong else 0)


def _transformers(named: str, prompts: Prompts, new_tokens: int) -> list[np.ndarray]:
    """The tokens that `transformers` writes from the same files, prompt by prompt."""
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    place = hub.find(named)
    where = dict(gguf_file=place.name) if place.is_file() else {}
    folder = place.parent if place.is_file() else place
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **where)
    # Not the checkpoint's own, which may add penalties; an end token ends nothing.
    reference.generation_config = GenerationConfig(
        max_new_tokens=new_tokens, do_sample=False, pad_token_id=0
    )
    found = []
    for row, size in zip(*prompts, strict=True):
        asked = torch.from_numpy(row[None, :size].astype(np.int64))
        written = reference.generate(asked, attention_mask=torch.ones_like(asked))
        found.append(written[0, size:].numpy())
    return found


if __name__ == "__main__":
    command(main)

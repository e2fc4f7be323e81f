"""Are the tokens the same? Every drafter against plain decoding, plain against `transformers`.

python -m benchmarks.exactness                  # needs the parity extra: torch
"""

from typing import Annotated

import jax
import numpy as np
import typer
from rich.table import Table

import jspec
from benchmarks import model_pairs, options
from benchmarks.harness import SHARED, command, console, headline
from benchmarks.registry import build_those_there, standalone
from jspec.models import hub

SMALL = ("stories260k", "babyllama-target", "babyllama-draft")
SAMPLING = jspec.Sampling(temperature=0.8, top_p=0.9)


def main(
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="Folder in Hugging Face layout, or hub id; may be repeated.",
            show_default="three of the shared ones",
        ),
    ] = None,
    questions: options.Questions = None,
    prompts: options.Prompts = None,
    classes: options.Classes = "stories",
    count: options.Count = 20,
    prompt_tokens: options.PromptTokens = 24,
    new_tokens: options.NewTokens = 200,
    seed: Annotated[int, typer.Option()] = 0,
) -> None:
    """Counts equal sequences, in float32 at highest precision; leaves with 1 if any differs."""
    import torch
    from transformers import AutoModelForCausalLM

    jax.config.update("jax_default_matmul_precision", "highest")
    headline(f"exactness: {count} prompts of {prompt_tokens}, {new_tokens} tokens each, float32")
    table = Table("model", "method", "greedy", "sampled alone", "sampled in a batch", "MAT greedy")
    wrong = 0
    for named in model or [str(SHARED / "models" / name) for name in SMALL]:
        subject = model_pairs.subject(named, questions, prompts, classes)
        name, loaded = subject.name, subject.target
        rows = subject.of_all_classes(count, prompt_tokens)
        total = rows.count

        def decode(asked=rows, model=loaded.model, params=loaded.params, rows=None, **request):
            return jspec.decode(
                model, params, *asked, rows=rows, max_new_tokens=new_tokens, **request
            )

        def alone(decode=decode, asked=rows, **request):
            """Row by row, with the drafter's state carried over."""
            results, state = [], None
            for row in range(asked.count):
                one = asked.take([row])
                results.append(decode(one, rows=[row], drafter_state=state, **request))
                state = results[-1].drafter_state
            return np.concatenate([result.tokens for result in results]), results

        sampled = dict(sampling=SAMPLING, key=seed)
        greedy, random = alone()[0], alone(**sampled)[0]
        folder = hub.find(named)
        reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        theirs = [
            reference.generate(
                torch.from_numpy(prompt[None].astype(np.int64)),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                max_new_tokens=new_tokens,
                min_new_tokens=new_tokens,
                do_sample=False,
                pad_token_id=0,
            )[0, len(prompt) :].numpy()
            for prompt in (row[:size] for row, size in zip(*rows, strict=True))
        ]
        # min_new_tokens bans the end token: compare up to where plain decoding would emit it.
        equal = sum(
            _agree(ours, other, loaded.eos) for ours, other in zip(greedy, theirs, strict=True)
        )
        table.add_row(name, "transformers", f"{equal}/{total}", "", "", "")
        wrong += total - equal
        for method, built in build_those_there(standalone(), loaded).items():
            request = built._asdict()
            tokens, results = alone(**request)
            counts = [
                _rows_equal(tokens, greedy),
                _rows_equal(alone(**request, **sampled)[0], random),
                _rows_equal(np.asarray(decode(**request, **sampled).tokens), random),
            ]
            calls = sum(int(result.stats.num_rounds[0]) for result in results)
            table.add_row(
                name,
                method,
                *(f"{same}/{total}" for same in counts),
                f"{total * new_tokens / calls:.2f}",
            )
            wrong += sum(total - same for same in counts)
    console.print(table)
    raise typer.Exit(1 if wrong else 0)


def _rows_equal(a: np.ndarray, b: np.ndarray) -> int:
    return int((a == b).all(-1).sum())


def _agree(ours: np.ndarray, theirs: np.ndarray, ends: tuple[int, ...]) -> bool:
    stops = np.flatnonzero(np.isin(ours, ends))
    size = stops[0] if stops.size else len(ours)
    return bool((ours[:size] == theirs[:size]).all())


if __name__ == "__main__":
    command(main)

"""Are the tokens the same? Every drafter against plain decoding, plain against `transformers`.

python -m benchmarks.exactness                  # needs the parity extra: torch
"""

from typing import Annotated

import jax
import numpy as np
import typer
from rich.table import Table

import jspec
from benchmarks.harness import SHARED, console, headline
from benchmarks.prompts import texts
from benchmarks.registry import build_those_there, standalone
from jspec.models import load

SAMPLING = jspec.Sampling(temperature=0.8, top_p=0.9)


def main(
    models: Annotated[str, typer.Option()] = "stories260k,babyllama-target,babyllama-draft",
    count: Annotated[int, typer.Option(min=1, help="prompts")] = 20,
    prompt_tokens: Annotated[int, typer.Option(min=1)] = 24,
    new_tokens: Annotated[int, typer.Option(min=1)] = 200,
    seed: Annotated[int, typer.Option()] = 0,
) -> None:
    """Counts equal sequences, in float32 at highest precision; leaves with 1 if any differs."""
    import torch
    from transformers import AutoModelForCausalLM

    jax.config.update("jax_default_matmul_precision", "highest")
    headline(f"exactness: {count} prompts of {prompt_tokens}, {new_tokens} tokens each, float32")
    table = Table("model", "method", "greedy", "sampled alone", "sampled in a batch", "MAT greedy")
    wrong = 0
    for name in models.split(","):
        folder = SHARED / "models" / name
        model, params, tokenizer = (loaded := load(folder))
        prompts = [tokenizer.encode(text).ids[:prompt_tokens] for text in texts("stories", count)]
        prompts = np.array(prompts)

        def decode(prompts=prompts, model=model, params=params, rows=None, **options):
            return jspec.decode(
                model, params, prompts, rows=rows, max_new_tokens=new_tokens, **options
            )

        def alone(decode=decode, prompts=prompts, **options):
            """Row by row, with the drafter's state carried over."""
            results, state = [], None
            for row in range(len(prompts)):
                results.append(decode(prompts[[row]], rows=[row], drafter_state=state, **options))
                state = results[-1].drafter_state
            return np.concatenate([result.tokens for result in results]), results

        sampled = dict(sampling=SAMPLING, key=seed)
        greedy, random = alone()[0], alone(**sampled)[0]
        reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        theirs = [
            reference.generate(
                torch.from_numpy(prompt[None]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                max_new_tokens=new_tokens,
                min_new_tokens=new_tokens,
                do_sample=False,
                pad_token_id=0,
            )[0, len(prompt) :].numpy()
            for prompt in prompts
        ]
        # min_new_tokens bans the end token: compare up to where plain decoding would emit it.
        equal = sum(
            _agree(ours, other, loaded.eos) for ours, other in zip(greedy, theirs, strict=True)
        )
        table.add_row(name, "transformers", f"{equal}/{count}", "", "", "")
        wrong += count - equal
        for method, built in build_those_there(standalone(), loaded).items():
            options = built._asdict()
            tokens, results = alone(**options)
            counts = [
                _rows_equal(tokens, greedy),
                _rows_equal(alone(**options, **sampled)[0], random),
                _rows_equal(np.asarray(decode(**options, **sampled).tokens), random),
            ]
            rounds = sum(int(result.stats.num_rounds[0]) for result in results)
            table.add_row(
                name,
                method,
                *(f"{same}/{count}" for same in counts),
                f"{count * new_tokens / rounds:.2f}",
            )
            wrong += sum(count - same for same in counts)
    console.print(table)
    raise typer.Exit(1 if wrong else 0)


def _rows_equal(a: np.ndarray, b: np.ndarray) -> int:
    return int((a == b).all(-1).sum())


def _agree(ours: np.ndarray, theirs: np.ndarray, ends: tuple[int, ...]) -> bool:
    stops = np.flatnonzero(np.isin(ours, ends))
    size = stops[0] if stops.size else len(ours)
    return bool((ours[:size] == theirs[:size]).all())


if __name__ == "__main__":
    typer.run(main)

"""The share of children that each rule keeps, on the distributions of two real models.

The rules are those of `benchmarks.rsd.verifiers`.

python -m benchmarks.rsd.node_verifiers --pair bundled
"""

from functools import partial
from pathlib import Path
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
import typer
from rich.table import Table

import jspec
from benchmarks import model_pairs
from benchmarks.harness import console, headline, record
from benchmarks.rsd.settings import TEMPERATURES
from jspec.drafters.draft_model import acceptance_vector
from jspec.verify import schemes

SCHEMES = {
    "multi-round": schemes.MULTI_ROUND,
    "K-SEQ": schemes.K_SEQ,
    "RRS": schemes.RECURSIVE,
    "coupled": schemes.COUPLED,
}


def main(
    pair: Annotated[str, typer.Option(help=", ".join(model_pairs.PAIRS))] = "bundled",
    children: Annotated[
        str, typer.Option(help="children K of a node, comma-separated")
    ] = "1,2,3,5",
    count: Annotated[int, typer.Option(min=2, help="prompts per class")] = 4,
    prompt_tokens: Annotated[int, typer.Option(min=1)] = 32,
    tokens: Annotated[int, typer.Option(min=1, help="new tokens a prompt")] = 64,
    draws: Annotated[int, typer.Option(min=1, help="draws of all children at each position")] = 2,
    out: Annotated[Path | None, typer.Option(help="append JSON lines here")] = None,
) -> None:
    """Draws children at the target's own samples; what a rule makes of them is exact."""
    loaded = model_pairs.find(pair)
    target, draft = loaded.target, loaded.draft
    prompts = [loaded.prompts(kind, count, prompt_tokens) for kind in loaded.classes]
    prompts = np.concatenate(prompts)
    headline(
        f"{pair}: the chance that one of K children is kept, at {tokens} tokens of "
        f"{len(prompts)} samples of the target"
    )

    @partial(jax.jit, static_argnames=("width", "scheme"))
    def trials(text, sampling, key, width, scheme):
        seen = acceptance_vector.trials(
            target.model, target.params, draft.model, draft.params, text,
            jnp.full(len(text), text.shape[1]), width=width, sampling=sampling, scheme=scheme,
            key=key,
        )  # fmt: skip
        # From the prompt's last token on; nothing follows the last sampled one.
        own = slice(prompt_tokens - 1, -1)
        return seen.kept[:, own].sum(-1).mean(-1), seen.chances[:, own, 0].mean()

    keys = [jax.random.key(seed) for seed in range(draws)]
    for temperature, top_p in TEMPERATURES:
        sampling = jspec.Sampling(temperature=temperature, top_p=top_p)
        own = jspec.decode(
            target.model, target.params, prompts, max_new_tokens=tokens, sampling=sampling, key=0
        )
        text = jnp.concatenate([jnp.asarray(prompts), own.tokens], axis=1)
        table = Table("K", *SCHEMES, "RRS over K-SEQ")
        equal = []
        for number in map(int, children.split(",")):
            kept = {}
            for name, scheme in SCHEMES.items():
                found = [trials(text, sampling, key, number, scheme) for key in keys]
                kept[name] = np.mean([each for each, _ in found], axis=0)
                if name == "RRS":
                    equal.append(np.mean([chance for _, chance in found]))
            lead = kept["RRS"] - kept["K-SEQ"]
            error = lead.std(ddof=1) / np.sqrt(len(lead))
            means = {name: float(each.mean()) for name, each in kept.items()}
            table.add_row(
                str(number),
                *(f"{mean:.3f}" for mean in means.values()),
                f"{lead.mean():+.4f} ± {error:.4f}",
            )
            record(
                out,
                {"bench": "node_verifiers", "pair": pair, "temperature": temperature}
                | {"top_p": top_p, "children": number, "kept": means, "error": float(error)},
            )
        console.print(
            f"temperature {temperature}, top-p {top_p}; two independent draws of the draft are "
            f"equal with {np.mean(equal):.2f}:",
            table,
        )
    console.print("±: standard error over texts.")


if __name__ == "__main__":
    typer.run(main)

"""The share of children that each rule keeps, on the distributions of two real models.

The rules are those of `benchmarks.rsd.verifiers`.

python -m benchmarks.rsd.node_verifiers
"""

from functools import partial
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
import typer
from rich.table import Table

import jspec
from benchmarks import model_pairs, options
from benchmarks.harness import command, console, headline, record
from benchmarks.rsd.settings import TEMPERATURES
from benchmarks.rsd.verifiers import optimal
from benchmarks.texts import continued
from jspec import sampling as samplings
from jspec.arrays.ragged import sequence
from jspec.drafters.draft_model import acceptance_vector
from jspec.verify import schemes

SCHEMES = {
    "multi-round": schemes.MULTI_ROUND,
    "K-SEQ": schemes.K_SEQ,
    "RRS": schemes.RECURSIVE,
    "coupled": schemes.COUPLED,
}


def main(
    model: options.Model = None,
    draft_model: options.DraftModel = None,
    questions: options.Questions = None,
    prompts: options.Prompts = None,
    classes: options.Classes = options.ALL_CLASSES,
    children: Annotated[
        str, typer.Option(help="children K of a node, comma-separated")
    ] = "1,2,3,5",
    count: Annotated[int, typer.Option(min=2, help="Prompts per class.")] = 4,
    prompt_tokens: options.PromptTokens = 32,
    new_tokens: options.NewTokens = 64,
    draws: Annotated[int, typer.Option(min=1, help="draws of all children at each position")] = 2,
    out: options.Out = None,
) -> None:
    """Draws children at the target's own samples; what a rule makes of them is exact."""
    loaded = model_pairs.pair(model, draft_model, questions, prompts, classes)
    target, draft = loaded.target, loaded.draft
    asked = loaded.of_all_classes(count, prompt_tokens)
    headline(
        f"{loaded.name}: the probability that one of K children is kept, at {new_tokens} tokens of "
        f"{asked.count} samples of the target"
    )

    @partial(jax.jit, static_argnames=("width", "scheme"))
    def trials(text, sampling, key, width, scheme):
        seen = acceptance_vector.trials(
            target.model, target.params, draft.model, draft.params, text.tokens,
            text.lengths, width=width, sampling=sampling, scheme=scheme, key=key,
        )  # fmt: skip
        own = sampled(text)
        kept = jnp.where(own, seen.kept.sum(-1), 0.0).sum(-1) / own.sum(-1)
        return kept, jnp.where(own, seen.child_probs[..., 0], 0.0).sum() / own.sum()

    def sampled(text):
        """Returns positions from the prompt's last token to the last but one."""
        place = jnp.arange(text.tokens.shape[1])
        return (place >= asked.lengths[:, None] - 1) & (place < text.lengths[:, None] - 1)

    @jax.jit
    def best(text, sampling, numbers):
        """Returns what no rule of K independent children can pass, by K."""
        place, causal = sequence(*text.tokens.shape)
        p, q = (
            samplings.node_probabilities(
                one.model.apply(one.params, text.tokens, place, causal, None).logits, sampling
            )
            for one in (target, draft)
        )
        own = sampled(text)
        at_text = jax.vmap(jax.vmap(optimal, (None, 0, 0)), (None, 0, 0))
        return [jnp.where(own, at_text(number, p, q), 0.0).sum() / own.sum() for number in numbers]

    keys = [jax.random.key(seed) for seed in range(draws)]
    for temperature, top_p in TEMPERATURES:
        sampling = jspec.Sampling(temperature=temperature, top_p=top_p)
        own = jspec.decode(
            target.model, target.params, *asked, max_new_tokens=new_tokens, sampling=sampling,
            key=0,
        )  # fmt: skip
        text = continued(asked, np.asarray(own.tokens))
        table = Table("K", *SCHEMES, "best for independent", "RRS over K-SEQ")
        rows = jax.tree.map(lambda one: jnp.full(asked.count, one), sampling)
        numbers = list(map(int, children.split(",")))
        bounds = map(float, best(text, rows, numbers))
        equal = []
        for number, bound in zip(numbers, bounds, strict=True):
            kept = {}
            for name, scheme in SCHEMES.items():
                found = [trials(text, sampling, key, number, scheme) for key in keys]
                kept[name] = np.mean([each for each, _ in found], axis=0)
                if name == "RRS":
                    equal.append(np.mean([probability for _, probability in found]))
            lead = kept["RRS"] - kept["K-SEQ"]
            error = lead.std(ddof=1) / np.sqrt(len(lead))
            means = {name: float(each.mean()) for name, each in kept.items()}
            table.add_row(
                str(number),
                *(f"{mean:.3f}" for mean in means.values()),
                f"{bound:.3f}",
                f"{lead.mean():+.4f} ± {error:.4f}",
            )
            record(
                out,
                {"bench": "node_verifiers", **loaded.about, "temperature": temperature}
                | {"top_p": top_p, "children": number, "kept": means, "optimal": bound}
                | {"error": float(error)},
            )
        console.print(
            f"temperature {temperature}, top-p {top_p}; two independent draws of the draft are "
            f"equal with {np.mean(equal):.2f}:",
            table,
        )
    console.print("±: standard error over texts.")


if __name__ == "__main__":
    command(main)

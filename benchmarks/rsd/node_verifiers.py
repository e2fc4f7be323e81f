"""The share of children that each rule keeps, by the entropy of a real draft model.

The rules are those of `benchmarks.rsd.verifiers`.

python -m benchmarks.rsd.node_verifiers --out FILE
"""

from functools import partial
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
import typer
from jax.scipy.special import entr

import jspec
from benchmarks import model_pairs, options
from benchmarks.harness import command, console, headline
from benchmarks.ledger import Ledger
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
EDGES = (0.5, 1.0, 2.0, 3.0)
"""Between the bins of the draft's entropy, in nats."""


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
    setting = dict(
        bench="node_verifiers", **loaded.about, classes=classes, count=count, draws=draws,
        prompt=prompt_tokens, new=new_tokens, edges=EDGES,
    )  # fmt: skip
    ledger = Ledger(out, setting)
    headline(f"{loaded.name}: one of K children is kept, at tokens of {asked.count} own samples")

    @partial(jax.jit, static_argnames=("number", "scheme"))
    def kept(text, sampling, key, number, scheme):
        seen = acceptance_vector.trials(
            target.model, target.params, draft.model, draft.params, text.tokens,
            text.lengths, width=number, sampling=sampling, scheme=scheme, key=key,
        )  # fmt: skip
        return seen.kept.sum(-1)

    @jax.jit
    def bounds(text, sampling, numbers):
        """Returns bins of the draft's entropy, P(two draws are equal), and the best rules, by K."""
        place, causal = sequence(*text.tokens.shape)
        p, q = (
            samplings.node_probabilities(
                one.model.apply(one.params, text.tokens, place, causal, None).logits, sampling
            )
            for one in (target, draft)
        )
        # From the prompt's last token to the last but one.
        own = (place >= asked.lengths[:, None] - 1) & (place < text.lengths[:, None] - 1)
        bins = jax.nn.one_hot(jnp.searchsorted(jnp.array(EDGES), entr(q).sum(-1)), len(EDGES) + 1)
        at_text = jax.vmap(jax.vmap(optimal, (None, 0, 0)), (None, 0, 0))
        best = [at_text(number, p, q) for number in numbers]
        return jnp.where(own[..., None], bins, 0.0), (q**2).sum(-1), best

    for temperature, top_p in TEMPERATURES:
        sampling = jspec.Sampling(temperature=temperature, top_p=top_p)
        own = jspec.decode(
            target.model, target.params, *asked, max_new_tokens=new_tokens, sampling=sampling,
            key=0,
        )  # fmt: skip
        text = continued(asked, np.asarray(own.tokens))
        rows = jax.tree.map(lambda one: jnp.full(asked.count, one), sampling)
        numbers = list(map(int, children.split(",")))
        bins, equal, best = bounds(text, rows, numbers)
        bins = np.asarray(bins, float)
        for number, optimum in zip(numbers, best, strict=True):
            found = {"equal": equal, "optimal": optimum}
            for name, scheme in SCHEMES.items():
                each = [kept(text, rows, jax.random.key(i), number, scheme) for i in range(draws)]
                found[name] = np.mean(each, axis=0)
            sums = {name: np.einsum("btn,bt->bn", bins, one) for name, one in found.items()}
            here = dict(temperature=temperature, top_p=top_p, children=number)
            if not ledger.find(**here):
                rounded = {name: one.round(4).tolist() for name, one in sums.items()}
                ledger.add(**here, positions=bins.sum(1).astype(int).tolist(), sums=rounded)
            means = {name: f"{one.sum() / bins.sum():.3f}" for name, one in sums.items()}
            console.print(f"temperature {temperature}, K {number}:", means)


if __name__ == "__main__":
    command(main)

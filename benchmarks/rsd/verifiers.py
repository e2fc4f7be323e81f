"""Each rule's probability to keep a drafted child: RSD (Jeon et al. 2024), Fig. 1; more.

python -m benchmarks.rsd.verifiers --out rsd_fig1.jsonl
"""

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
import typer
from jaxtyping import Array, Float, Int
from rich.table import Table

from benchmarks.harness import command, console, headline
from benchmarks.ledger import Ledger
from jspec.protocols import NodeRule
from jspec.verify import rules

Acceptance = Callable[[Float[Array, " V"], Float[Array, " V"]], Float[Array, ""]]
"""The probability that one of K children is kept, from p and q."""

NOISES = 4096
"""Draws of noise for the coupled rule, which has no finite sum; the error is at most 0.008."""

PUBLISHED = ((0.5, 0.5), (0.1, 0.9), (0.2, 0.6), (0.3, 0.8), (0.25, 0.75), (0.05, 0.5))
"""(draft, target) of the table: probabilities of the second of two tokens."""
DRAFTS = (0.1, 0.3, 0.5)
"""Drafts of the figure, each with targets from 0 to 1."""


def main(
    out: Annotated[
        Path | None, typer.Option(help="JSON lines; what is there is not written again")
    ] = None,
    pairs: Annotated[int, typer.Option(min=2, help="random pairs of distributions")] = 200,
    vocabulary: Annotated[int, typer.Option(min=4, max=10)] = 8,
    concentration: Annotated[
        float, typer.Option(help="concentration of their Dirichlet distribution")
    ] = 0.5,
) -> None:
    """Sums over all draws of the children, with jspec's own rules; only coupling is sampled."""
    headline("verifiers: the probability that one of K children is kept")
    grid = [(draft, round(target, 2)) for draft in DRAFTS for target in np.linspace(0, 1, 21)]
    asked = [*PUBLISHED, *grid]
    toy = np.array([[[1 - target, target], [1 - draft, draft]] for draft, target in asked])
    kept = {name: _over(rule, toy) for name, rule in verifiers(2, 2).items()}
    table = Table("draft, target", *kept)
    for row, pair in enumerate(PUBLISHED):
        table.add_row("Ber({}), Ber({})".format(*pair), *(f"{v[row]:.4f}" for v in kept.values()))
    console.print("K = 2 children of two tokens, as in the paper's figure 1:", table)
    setting = dict(bench="rsd_fig1", pairs=pairs, vocabulary=vocabulary)
    ledger = Ledger(out, setting | {"concentration": concentration})
    for row, pair in enumerate(asked):
        values = {name: round(float(each[row]), 5) for name, each in kept.items()}
        keep(ledger, values, toy=list(pair), in_table=row < len(PUBLISHED))

    distributions = np.random.default_rng(0).dirichlet(
        np.full(vocabulary, concentration), (pairs, 2)
    )
    children = (1, 2, 3, 4)
    by_number = [
        {name: _over(rule, distributions) for name, rule in verifiers(vocabulary, number).items()}
        for number in children
    ]
    table = Table("K", *by_number[0])
    for number, kept in zip(children, by_number, strict=True):
        table.add_row(str(number), *(f"{v.mean():.3f} ± {v.std():.3f}" for v in kept.values()))
        means = {name: round(float(each.mean()), 4) for name, each in kept.items()}
        keep(ledger, means, children=number)
    console.print(
        f"{pairs} random pairs over {vocabulary} tokens, mean ± standard deviation:", table
    )


def keep(ledger: Ledger, kept: dict[str, float], **row) -> None:
    """Adds a row, unless it is there."""
    if not ledger.find(**row):
        ledger.add(**row, kept=kept)


def verifiers(vocabulary: int, number: int) -> dict[str, Acceptance]:
    """Returns the five rules of the figure, list sampling with its bound, and jspec's coupling."""
    draws = jnp.array(list(itertools.product(range(vocabulary), repeat=number)))
    return {
        "multi-round": partial(summed, rules.multi_round, independent, draws),
        "K-SEQ": partial(summed, rules.k_seq, independent, draws),
        "optimal": partial(optimal, number),
        "RRS": partial(summed, rules.recursive, without_replacement, draws),
        "coupled": partial(coupled, number),
        "list": partial(gumbel_list, number),
        "list bound": partial(list_bound, number),
    }


def summed(
    rule: NodeRule,
    weigh: Callable[[Float[Array, " V"], Int[Array, " K"]], Float[Array, ""]],
    draws: Int[Array, "D K"],
    p: Float[Array, " V"],
    q: Float[Array, " V"],
) -> Float[Array, ""]:
    """Returns the probability summed over all draws of the children, each weighed by its own."""
    valid, noise = jnp.ones(draws.shape[1], bool), jnp.zeros_like(p)

    def refused(children):
        accept, _ = rule(p, q, children, valid, noise)
        weight = weigh(q, children)
        return jnp.where(weight > 0, weight * jnp.prod(1 - accept), 0.0)

    return 1 - jax.vmap(refused)(draws).sum()


def independent(q: Float[Array, " V"], children: Int[Array, " K"]) -> Float[Array, ""]:
    return jnp.prod(q[children])


def without_replacement(q: Float[Array, " V"], children: Int[Array, " K"]) -> Float[Array, ""]:
    def draw(left, child):
        total = left.sum()
        return left.at[child].set(0.0), left[child] / jnp.where(total > 0, total, 1.0)

    return jnp.prod(jax.lax.scan(draw, q, children)[1])


def optimal(number: int, p: Float[Array, " V"], q: Float[Array, " V"]) -> Float[Array, ""]:
    """Returns the best that any rule can do with K independent children: optimal transport.

    The least of 1 + p(A) - q(A)^K over all sets A of tokens (OTM; SpecTr, Sun et al. 2023), which
    Global Resolution attains (arXiv:2511.15898). Of two tokens: 1 - max(0, (1 - P)^2 - (1 - Q)) -
    max(0, P^2 - Q) at K = 2, P the draft's and Q the target's probability of one of them.

    x^K is convex, so the best set holds the tokens of largest q / p: V + 1 sets, not 2^V.
    """
    order = jnp.argsort(-(q / jnp.where(p > 0, p, jnp.finfo(p.dtype).tiny)))
    drawn = jnp.minimum(jnp.cumsum(q[order]), 1.0)
    return jnp.minimum((1 + jnp.cumsum(p[order]) - drawn**number).min(), 1.0)


def coupled(number: int, p: Float[Array, " V"], q: Float[Array, " V"]) -> Float[Array, ""]:
    """Returns the K largest of log q + noise, over draws of the target's own noise."""
    noises = jax.random.gumbel(jax.random.key(0), (NOISES, len(p)))

    def kept(noise):
        _, children = jax.lax.top_k(jnp.log(q) + noise, number)
        accept, _ = rules.coupled(p, None, children, jnp.ones(number, bool), noise)
        return 1 - jnp.prod(1 - accept)

    return jax.vmap(kept)(noises).mean()


def gumbel_list(number: int, p: Float[Array, " V"], q: Float[Array, " V"]) -> Float[Array, ""]:
    """Applies Gumbel-max list sampling (Rowan et al. 2025): the target takes K noises' maximum."""
    noises = jax.random.gumbel(jax.random.key(0), (NOISES, number, len(p)))

    def kept(noise):
        children = (jnp.log(q) + noise).argmax(-1)
        return (children == (jnp.log(p) + noise.max(0)).argmax()).any()

    return jax.vmap(kept)(noises).mean()


def list_bound(number: int, p: Float[Array, " V"], q: Float[Array, " V"]) -> Float[Array, ""]:
    """Returns the bound of their list matching lemma: list sampling keeps a child as often.

    The probability that the token j is the target's by noise k, and is child k too, is that of one
    exponential variable to be the least of a race; summed over j and k, each counts once.
    """
    ratio = jnp.maximum(p[None] / p[:, None], q[None] / q[:, None]).sum(-1)
    return jnp.nansum(number / (ratio + (number - 1) / p))


def _over(rule: Acceptance, distributions: np.ndarray) -> np.ndarray:
    """Returns a verifier on pairs [.., 2, V] of distributions, p first."""
    each = jax.jit(lambda distributions: jax.lax.map(lambda pair: rule(*pair), distributions))
    return np.asarray(each(jnp.asarray(distributions, jnp.float32)))


if __name__ == "__main__":
    command(main)

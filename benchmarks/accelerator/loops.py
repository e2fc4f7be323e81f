"""What control flow costs on the device: loops, branches, the walk down a tree, top-k."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.accelerator import forced, overhead
from benchmarks.accelerator.cells import Cells
from benchmarks.accelerator.rounds import Loop, per_round
from benchmarks.accelerator.shapes import Scale
from benchmarks.accelerator.timing import per_call
from benchmarks.harness import paired
from jspec import sampling as samplings
from jspec.arrays.top_k import top_k
from jspec.types import Frame
from jspec.verify.choice import verifier_of

SECTION = "loops"
PASSES = 256
FEW = 16
STEPS = (1, 2, 4)
"""Passes of an inner loop, as of a walk that accepts one token fewer."""
RANKS = 8


def measure(cells: Cells, scale: Scale) -> None:
    """One row for each piece of control flow."""
    for name, body in BODIES.items():
        cells.run(partial(_loop, body, scale.repeats), what="loop", body=name)
    cells.run(partial(_counted, scale.repeats), what="loop", body="one kernel, passes known")
    cells.run(partial(_host_loop, scale.repeats), what="loop", body="steps from the host")
    cells.run(partial(_host_loop, scale.repeats, True), what="loop", body="steps, each waited for")
    for name in overhead.standalone(scale, 1):
        cells.run(partial(_round, scale, name), what="round", of=name)
    for tokens in (1, *STEPS):
        cells.run(partial(_walk, scale, tokens), what="walk", tokens=tokens)
    for rows in (1, scale.nodes + 1):
        for name, choose in CHOICES.items():
            row = partial(_choice, choose, rows, scale)
            cells.run(row, what="choice", of=name, rows=rows)


# Loops. Each carries a vector that a pass changes in one kernel.


def _one(x: jax.Array) -> jax.Array:
    return x * 0.5 + 1.0


def _inner(passes: int, x: jax.Array) -> jax.Array:
    """So many passes, which the compiler cannot know."""
    bound = (passes + 0 * x[0]).astype(jnp.int32)
    return jax.lax.while_loop(
        lambda carry: carry[1] < bound, lambda carry: (_one(carry[0]), carry[1] + 1), (x, 0)
    )[0]


def _branch(x: jax.Array) -> jax.Array:
    index = (x[0] > 0).astype(jnp.int32) + 1
    return jax.lax.switch(index, [lambda x, k=k: x * 0.5 + k for k in range(4)], x)


BODIES: dict[str, Callable[[jax.Array], jax.Array]] = {
    "one kernel": _one,
    **{f"an inner loop of {count}": partial(_inner, count) for count in STEPS},
    "a switch of four": _branch,
}


def looped(body: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """A `while_loop` whose end only the device knows, of (what a pass changes, passes)."""

    def run(x: jax.Array, passes: jax.Array) -> jax.Array:
        return jax.lax.while_loop(
            lambda carry: carry[1] < passes,
            lambda carry: (body(carry[0]), carry[1] + 1),
            (x, jnp.int32(0)),
        )[0]

    return run


def _loop(body: Callable[[jax.Array], jax.Array], repeats: int) -> dict:
    """Seconds of a pass."""
    start, run = jnp.ones(1024), jax.jit(looped(body))
    return _difference(lambda passes: run(start, np.int32(passes)), repeats)


def _counted(repeats: int) -> dict:
    """Seconds of a pass of a loop whose end the compiler knows, so that nobody is asked."""
    start = jnp.ones(1024)
    run = jax.jit(
        lambda x, passes: jax.lax.fori_loop(0, passes, lambda _, x: _one(x), x), static_argnums=1
    )
    return _difference(lambda passes: run(start, passes), repeats)


def _host_loop(repeats: int, wait: bool = False) -> dict:
    """Seconds of a pass where Python starts each, as in a loop over `jspec.step`."""
    step = jax.jit(lambda x: _one(x), donate_argnums=0)

    def run(passes: int) -> jax.Array:
        x = jnp.ones(1024)
        for _ in range(passes):
            x = step(x)
            if wait:
                jax.block_until_ready(x)
        return x

    return _difference(run, repeats)


def _difference(run: Callable[[int], Any], repeats: int) -> dict:
    runs = {count: partial(run, count) for count in (FEW, FEW + PASSES)}
    seconds = paired(runs, repeats)
    return {"seconds": ((seconds[FEW + PASSES] - seconds[FEW]) / PASSES).tolist()}


# The walk, and choices among the vocabulary.


def _walk(scale: Scale, tokens: int) -> dict:
    """Seconds of the verdict on one tree that emits so many tokens."""
    vocab, batch = scale.config.vocab_size, 1
    drafter = forced.drafter(vocab, scale.nodes)
    frame = Frame(
        root=jnp.zeros(batch, jnp.int32),
        positions=jnp.zeros(batch, jnp.int32),
        keys=None,
        sampling=None,
        done=jnp.zeros(batch, bool),
    )
    memory = drafter.init(batch, scale.capacity, None)
    tree, _ = jax.jit(drafter.draft)(forced.script(batch, tokens), memory, frame)
    logits = jax.random.normal(jax.random.key(0), (*tree.tokens.shape, vocab))
    verdict = jax.jit(verifier_of(drafter).verdict)
    counts = verdict(tree, logits, frame).counts
    assert int(counts[0]) == tokens, f"the walk emits {counts} tokens"
    runs = {"walk": lambda: verdict(tree, logits, frame)}
    return {"seconds": per_call(runs, scale.repeats)["walk"]}


def _round(scale: Scale, name: str) -> dict:
    """Seconds of a whole round but for its forward, to compare settings of XLA with."""
    drafter, weights = overhead.standalone(scale, 1)[name]
    model = overhead.HollowModel(scale.config, scale.dtype)
    loop = Loop(model, model.init(jax.random.key(0)), drafter, weights, 1, scale)
    return per_round({name: (loop, None)}, scale)[name]


CHOICES: dict[str, Callable[[jax.Array], Any]] = {
    "argmax": partial(jnp.argmax, axis=-1),
    "jspec.sampling.argmax": samplings.argmax,
    "lax.top_k": lambda x: jax.lax.top_k(x, RANKS),
    "jspec.sampling.top_k": lambda x: top_k(x, RANKS),
}


def _choice(choose: Callable[[jax.Array], Any], rows: int, scale: Scale) -> dict:
    logits = jax.random.normal(jax.random.key(0), (rows, scale.config.vocab_size))
    run = jax.jit(choose)
    return {"seconds": per_call({"choice": lambda: run(logits)}, scale.repeats)["choice"]}

"""The sections: passes of a target, rounds in the loop of `decode`, bits, attention, answers.

Rounds have forced acceptance: a rule keeps the first child of a node with one probability at each
level, so that a round takes as many tokens as were counted on real text. Walk, commit and update
are the same as with a target that agrees; only the text is meaningless.
"""

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jspec
from benchmarks.accelerator.shapes import Shape, random_cache, random_state
from benchmarks.dyspec import kernel_times
from benchmarks.dyspec.blocks import ORDERS, recursive, reordered
from benchmarks.harness import paired
from jspec import models, testing

# The loop of `decode` by itself: its prefill would have to be compiled for every drafter.
from jspec.decoding import decode_rounds
from jspec.methods import device_defaults
from jspec.protocols import Drafter, Drafting, NodeRule
from jspec.types import PyTree
from jspec.verify.schemes import RECURSIVE, Scheme
from jspec.verify.tree_verifier import TreeVerifier

FEW = 2
"""Rounds of the shorter sample; the fixed cost of a call cancels in the difference."""
QUEUED = 10
"""Calls of a sample on an accelerator, the last of which is waited for."""
FORCED = {
    "token_recycling": {"SmolLM2": 2.45, "the paper, 7B": 2.70},
    "rsd_s 5x4": {"SmolLM2, T 0.3": 2.06, "the paper, XSum": 3.43},
    "speculative_decoding 4": {"SmolLM2, T 0.3": 1.45, "the paper, XSum": 2.73},
}
"""Tokens per round that are forced: those counted in benchmarks/results, and the papers'."""


class Cell(NamedTuple):
    """A row that is to be measured."""

    about: dict[str, Any]
    """Its names and sizes."""
    measure: Callable[[Any], dict[str, Any]]
    """Returns its values, of what `prepare` gave."""
    prepare: Callable[[], Any] = lambda: None
    """Compiles, in a thread."""


def passes(shape: Shape) -> Iterator[Cell]:
    """Yields a forward pass of N tokens of each of B rows, and its kernels by name."""
    model, params = shape.model(shape.target), shape.target_params
    for batch, widths in shape.widths.items():
        for width in widths:
            tokens = jnp.ones((batch, width), jnp.int32)
            positions = jnp.broadcast_to(shape.past + jnp.arange(width), tokens.shape)
            mask = jnp.broadcast_to(jnp.tri(width, dtype=bool), (batch, width, width))

            def prepare(given: Any = (tokens, positions, mask)) -> Any:
                cache = random_cache(model, len(given[0]), shape.past, shape.capacity)
                run = jax.jit(model.apply).lower(params, *given, cache).compile()
                return partial(run, params, *given, cache)

            def measure(run: Any) -> dict:
                count = 1 if jax.default_backend() == "cpu" else QUEUED
                taken = paired({"": lambda: [run() for _ in range(count)][-1]}, shape.repeats)[""]
                finite = bool(jnp.isfinite(run().logits).all())
                return {"seconds": (taken / count).tolist(), "finite": finite} | kernels_of(run)

            yield Cell({"batch": batch, "width": width}, measure, prepare)


def kernels_of(run: Callable[[], Any]) -> dict[str, Any]:
    """Profiles a call: the microseconds of its kernels, and those that take most by name."""
    spent, count = Counter(), Counter()
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready(run())
        (file,) = Path(folder).rglob("*.xplane.pb")
        for plane in jax.profiler.ProfileData.from_file(str(file)).planes:
            for line in plane.lines if "GPU" in plane.name else ():
                for event in line.events if line.name.startswith("Stream") else ():
                    spent[event.name] += event.duration_ns / 1e3
                    count[event.name] += 1
    most = [(name, round(us, 1), count[name]) for name, us in spent.most_common(14)]
    return {"busy_us": spent.total(), "launches": count.total(), "kernels": most}


def rounds(shape: Shape) -> Iterator[Cell]:
    """Yields the seconds and tokens of a round: plain, of methods, and of forced acceptance."""
    forced = [(name, told) for name, each in FORCED.items() for told in each]
    free = ("plain", *(f"dyspec {budget}" for budget in shape.budgets))
    for name, told in [(name, None) for name in free] + forced:
        tokens = None if told is None else FORCED[name][told]
        prepare = partial(_loop, shape, name, tokens)
        yield Cell({"method": name, "forced": told}, partial(_rounds, shape), prepare)


def _loop(shape: Shape, name: str, tokens: float | None) -> Callable[[int], Any]:
    """Returns a call that runs so many rounds from one place on."""
    rule = None
    if tokens is not None:
        found, _ = drafter(name, shape)
        rule = first_child(share_of(tokens, getattr(found, "template", found).depth))
    found, params = drafter(name, shape, rule)
    # Where tokens are drawn: greedily a rule's probabilities are 0 and 1.
    held = [random_state(shape, found, params, temperature=1.0)]
    drafting = Drafting(found, params, jspec.FixedWidth())
    model, weights = shape.model(shape.target), shape.target_params
    compiled = decode_rounds.lower(model, weights, held[0], drafting, np.int32(FEW)).compile()

    def run(count: int) -> Any:
        live = jnp.full(1, shape.past, jnp.int32)
        memory = replace(held[0].memory, lengths=live)
        none = jnp.zeros(1, jnp.int32)
        start = replace(held[0], memory=memory, positions=live + 0, lengths=none, status=none + 0)
        # Donated: the cache is held once, and the next call goes on with what this one returns.
        held[0] = compiled(weights, start, drafting, np.int32(count))
        return held[0].lengths

    return run


def _rounds(shape: Shape, run: Callable[[int], Any]) -> dict[str, Any]:
    many = shape.num_rounds + FEW
    seconds = paired({str(count): partial(run, count) for count in (FEW, many)}, shape.repeats)
    taken = (seconds[str(many)] - seconds[str(FEW)]) / shape.num_rounds
    return {"seconds": taken.tolist(), "tokens": float(run(many).mean()) / many} | kernels_of(
        partial(run, FEW)
    )


def first_child(share: float) -> NodeRule:
    """Makes a node rule that keeps the first child with a probability, and no other."""

    def rule(p, q, children, valid, noise):
        del q, noise
        first = valid & (jnp.arange(len(children)) == 0)
        return jnp.where(first, share, 0.0), p

    return rule


def share_of(tokens: float, depth: int) -> float:
    """Finds the probability per level with which rounds of a depth take so many tokens.

    Example:
        >>> round(share_of(1 + 0.5 + 0.25, 2), 6)
        0.5
    """
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        more = sum(middle**level for level in range(depth + 1)) > tokens
        low, high = (low, middle) if more else (middle, high)
    return low


def drafter(name: str, shape: Shape, rule: NodeRule | None = None) -> tuple[Drafter, PyTree]:
    """Makes a method and its weights; a rule, if given, decides about its drafts."""
    draft = shape.model(shape.draft)
    scheme = RECURSIVE if rule is None else Scheme(RECURSIVE.draw, TreeVerifier(rule))
    match name.split():
        case ["plain"]:
            return jspec.Autoregressive(), None
        case ["token_recycling"]:
            tree = device_defaults.token_recycling()
            found = jspec.TokenRecycling(shape.target.vocab_size, tree)
            return (found if rule is None else jspec.with_verifier(found, rule)), None
        case ["rsd_s", size]:
            beam, depth = map(int, size.split("x"))
            return jspec.RSDS(draft, beam=beam, max_depth=depth, scheme=scheme), shape.draft_params
        case ["dyspec", nodes]:
            tree = jspec.DySpec.published(draft, num_speculative_tokens=int(nodes))
            return tree, shape.draft_params
        case _:
            chain = jspec.SpeculativeDecoding(draft, int(name.split()[-1]), scheme=scheme)
            return chain, shape.draft_params


def attention(shape: Shape) -> Iterator[Cell]:
    """Yields the seconds of tree attention by order of the nodes: Table 5 and Fig. 8 of DySpec."""
    random = np.random.default_rng(0)
    sizes = (64, 128) if jax.default_backend() != "cpu" else (1, 16)
    timed = kernel_times.KERNELS if jax.default_backend() == "gpu" else ()
    for nodes in shape.masks:
        tree = recursive(random, nodes)
        for order in ("as grown", "depth first"):

            def measure(_: None, tree: Any = tree, order: str = order) -> dict:
                mask = reordered(tree, ORDERS[order])
                seconds, errors = kernel_times.measure(mask, *sizes, timed)
                return {"seconds": seconds, "errors": errors}

            yield Cell({"nodes": nodes, "order": order}, measure)


def bits(shape: Shape) -> Iterator[Cell]:
    """Yields how many nodes of random trees have the bits of their tokens in plain decoding."""
    for dtype in ("bfloat16", "float32"):
        for one_shape in (None, 16):

            def measure(_: None, dtype: str = dtype, one_shape: int | None = one_shape) -> dict:
                target: Any = models.load(shape.checkpoint, dtype=dtype, with_tokenizer=False)
                network = target.model
                if one_shape is not None:
                    network = network.clone(attention_impl=models.BatchInvariant(one_shape))
                texts = np.random.default_rng(0).integers(0, network.vocab_size, (2, shape.text))
                sizes = (1, 2, 8, 16) if one_shape is None else (2, one_shape)
                found = testing.check_bits(network, target.params, texts.tolist(), sizes=sizes)
                return {"nodes": found.num_nodes, "different": found.num_different_nodes}

            yield Cell({"dtype": dtype, "one_shape": one_shape}, measure)


def answers(shape: Shape) -> Iterator[Cell]:
    """Yields benches of real weights, next to `transformers`; questions have rows of their own."""
    from benchmarks.peers.__main__ import main as bench

    for batch in shape.widths:

        def measure(_: None, batch: int = batch) -> dict:
            out = Path(f"jspec-bench-{batch}")
            bench(
                model=shape.checkpoint, methods="auto,token_recycling", peers="transformers",
                limit=shape.questions, max_new_tokens=shape.text, batch_size=batch,
                repeats=shape.repeats, out=out,
            )  # fmt: skip
            return {"rows": str(out / "rows.jsonl")}

        yield Cell({"batch": batch}, measure)


SECTIONS = {
    "passes": passes, "rounds": rounds, "bits": bits, "attention": attention, "answers": answers,
}  # fmt: skip
"""The cells of each section, in the order in which they run."""

"""Are the tokens the same, to the last bit, and how far is one dtype from another?

python -m benchmarks.exactness tokens       # drafters against plain decoding (extra: parity)
python -m benchmarks.exactness bits --model jspec-7m --model smollm2-135m --nodes 50000
JSPEC_NATIVE=0 python -m benchmarks.exactness bits      # XLA's products, which do differ
JSPEC_NATIVE=0 python -m benchmarks.exactness bits --batch-invariant 82     # which do not
python -m benchmarks.exactness precision --model smollm2-135m --dtype int8 --classes articles
python -m benchmarks.exactness precision --model smollm2-135m --kv-dtype int8
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import typer
from jaxtyping import Array, Float, Int
from rich.table import Table

import jspec
from benchmarks import model_pairs, options
from benchmarks.harness import SHARED, command, console, headline, record
from benchmarks.model_pairs import Subject
from benchmarks.registry import build_those_there, standalone
from benchmarks.texts import Prompts
from jspec import models
from jspec._xla import native
from jspec.decoding import decode_rounds
from jspec.drafters.autoregressive import Autoregressive
from jspec.methods import LLM
from jspec.models import eight_bits, hub
from jspec.models import precision as precisions
from jspec.protocols import CausalLM, Drafting
from jspec.testing import check_bits
from jspec.types import PyTree

main = typer.Typer(help="Compare tokens, bits, or the distributions of two dtypes.")

Models = Annotated[
    list[str] | None, typer.Option(help="Folder, GGUF file, name or hub id; may be repeated.")
]

# Tokens.

SMALL = ("stories260k", "babyllama-target", "babyllama-draft")


class Decoding(NamedTuple):
    """A target with its prompts, decoded in several ways."""

    subject: Subject
    prompts: Prompts
    new_tokens: int

    def together(self, **request: Any) -> jspec.Result:
        """Returns all prompts in one batch."""
        return self._decode(self.prompts, **request)

    def alone(self, **request: Any) -> tuple[Int[np.ndarray, "B T"], int]:
        """Returns tokens by row, the drafter's memory carried over, and how many rounds."""
        rows, rounds, state = [], 0, None
        for row in range(self.prompts.count):
            one = self.prompts.take([row])
            result = self._decode(one, row_ids=[row], drafter_state=state, **request)
            rows.append(result.tokens)
            rounds += int(result.stats.num_rounds[0])
            state = result.drafter_state
        return np.concatenate(rows), rounds

    def _decode(self, prompts: Prompts, **request: Any) -> jspec.Result:
        target = self.subject.target
        whole: dict[str, Any] = dict(
            model=target.model, params=target.params, max_new_tokens=self.new_tokens
        )
        return jspec.decode(
            prompt=prompts.tokens, prompt_lengths=prompts.lengths, **whole | request
        )


@main.command()
def tokens(
    model: Models = None,
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
    """Counts equal texts, in float32 at highest precision; exit with 1 if any differs.

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
        table = Table("model", "method", *shown, "tokens per round, greedy")
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
                request = built.drafting | how | {"model": built.model}
                written, taken = run.alone(**request)
                rounds = rounds or taken
                batch = np.asarray(run.together(**request).tokens)
                counts += [int((one == plain[kind]).all(-1).sum()) for one in (written, batch)]
            cells = [f"{same}/{total}" for same in counts]
            table.add_row(subject.name, method, *cells, f"{total * new_tokens / rounds:.2f}")
            wrong += sum(total - same for same in counts)
        console.print(table)
    raise typer.Exit(1 if wrong else 0)


def _transformers(named: str, prompts: Prompts, new_tokens: int) -> list[np.ndarray]:
    """Returns the tokens that `transformers` writes from the same files, prompt by prompt."""
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


# Bits.

_SIZES = (1, 2, 5, 8, 16)
"""Tokens of a forward."""
_ROWS = 8
"""Of a forward pass: with 16 tokens each, as many rows as the kernels take."""
_DRAFTED = 4
"""Of a drafter: its rounds may be wider, and XLA multiplies more than 128 rows."""
_PROMPT, _MOST = 12, 60
"""Tokens of a prompt, and of a text. The families' small checkpoints place 64."""


@main.command()
def bits(
    model: Models = None,
    dtype: Annotated[str, typer.Option(help="Comma-separated.")] = "float32,bfloat16,int8",
    nodes: Annotated[int, typer.Option(min=1, help="Of trees, at least; for each dtype.")] = 10_000,
    texts: Annotated[int, typer.Option(min=1, help="Random ones.")] = 16,
    methods: Annotated[bool, typer.Option(help="Compare what drafters commit, too.")] = True,
    batch_invariant: Annotated[
        int | None, typer.Option(help="Tokens of all rounds, as many as the largest has.")
    ] = None,
    out: options.Out = None,
) -> None:
    """Counts tree nodes with other bits than in plain decoding; exits with 1 if one has.

    Random texts are fed as paths of random trees (`jspec.testing.check_bits`). Then every method
    that needs no training continues them, and its committed keys and values are compared with plain
    decoding's: they follow from the hidden states of every layer.
    """
    headline(f"bit by bit, {native.described()}")
    table = Table("model", "dtype", "how", "nodes", "numbers", "different")
    total = np.zeros(3, int)
    for name in model or ["jspec-800k"]:
        for kind in dtype.split(","):
            target = models.load(name, dtype=kind, with_tokenizer=False)
            if batch_invariant is not None:
                network: Any = target.model
                network = network.clone(attention_impl=models.BatchInvariant(batch_invariant))
                target = replace(target, model=network)
            draw = np.random.default_rng(0)
            size = (texts, min(_MOST, target.model.context or _MOST))
            drawn = draw.integers(0, target.model.vocab_size, size)
            ways: dict[str, Callable[[], tuple[int, int, int]]] = {
                "trees": lambda target=target, drawn=drawn: _trees(target, drawn, nodes)
            }
            if methods:
                built = build_those_there(standalone(), target)
                for method, one in built.items():
                    ways[method] = lambda target=target, drawn=drawn, one=one: _committed(
                        target, one, drawn[:_DRAFTED, :_PROMPT]
                    )
            for way, count in ways.items():
                with console.status(f"{name}, {kind}, {way}"):
                    found = count()
                total += found
                table.add_row(Path(name).name, kind, way, *(f"{number:,}" for number in found))
                held = {"bench": "bits", "model": name, "dtype": kind, "way": way}
                held |= {"batch_invariant": batch_invariant} if batch_invariant else {}
                record(out, held | dict(zip(("nodes", "numbers", "different"), found, strict=True)))
    console.print(table)
    console.print("{:,} nodes, {:,} numbers, {:,} different".format(*total))
    if total[2]:
        raise typer.Exit(1)


def _trees(target: models.Loaded, texts: np.ndarray, nodes: int) -> tuple[int, int, int]:
    """Returns nodes, numbers and different ones of random trees."""
    turns = -(-nodes // (texts.size * len(_SIZES)))
    found = check_bits(
        target.model, target.params, texts.tolist(), sizes=_SIZES * turns, batch_size=_ROWS
    )
    return found.num_nodes, found.num_numbers, found.num_different


def _committed(target: models.Loaded, built: LLM, prompts: np.ndarray) -> tuple[int, int, int]:
    """Returns tokens that a drafter committed, their keys and values, and how many differ from
    plain decoding's. A token that differs counts as one number.
    """
    plain = _written(target.model, target.params, Autoregressive(), None, prompts)
    drafted = _written(built.model, target.params, built.drafter, built.drafter_params, prompts)
    tokens = numbers = different = 0
    for row in range(len(prompts)):
        # A row's last token is not cached, and plain decoding may end at another one.
        count = min(int(state.positions[row]) for state in (plain, drafted))
        written = count - prompts.shape[1] + 1
        tokens += written
        different += int((plain.tokens[row, :written] != drafted.tokens[row, :written]).sum())
        for one, other in zip(_held(plain), _held(drafted), strict=True):
            ours, theirs = (
                np.ascontiguousarray(leaf[row, :, :count]).view(np.uint8) for leaf in (one, other)
            )
            width = one.dtype.itemsize
            numbers += ours.size // width
            same = (ours == theirs).reshape(-1, width).all(-1)
            different += int((~same).sum())
    return tokens, numbers, different


def _held(state: jspec.State) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in (*state.memory.keys, *state.memory.values)]


def _written(model: Any, params: Any, drafter: Any, weights: Any, prompts: np.ndarray) -> Any:
    """Returns the state in which a generation ends, sampled with one key."""
    state = jspec.prefill(
        model, params, prompts, drafter=drafter, drafter_params=weights, key=0,
        max_new_tokens=_MOST - _PROMPT, sampling=jspec.Sampling(temperature=0.8),
    )  # fmt: skip
    drafting = Drafting(drafter, weights, jspec.FixedWidth())
    return jax.device_get(decode_rounds(model, params, state, drafting, _MOST))


# Precision.

Pair = tuple[CausalLM, CausalLM]
Places = Float[Array, " N"] | Float[np.ndarray, " N"]


class Divergence(NamedTuple):
    """Two models' distributions at each place of a text."""

    surprise: Places
    """The first model's -log p of the token that comes next, in nats."""
    other_surprise: Places
    """The second one's."""
    divergence: Places
    """KL(first || second), in nats."""
    gap: Places
    """By how much the first model prefers its best token to the second's; 0 where they agree."""


@main.command()
def precision(
    model: Models = None,
    dtype: Annotated[str, typer.Option(help="What is compared with float32.")] = "bfloat16",
    kv_dtype: Annotated[
        str | None,
        typer.Option(help="Compare keys and values of this dtype, all else in float32."),
    ] = None,
    prompts: options.Prompts = None,
    classes: options.Classes = "stories,books,speeches,articles,addresses",
    count: options.Count = 8,
    tokens: Annotated[int, typer.Option(min=2, help="Of each text that are scored.")] = 128,
    out: options.Out = None,
) -> None:
    """Scores texts twice: with only the weights in a dtype, and with everything in it.

    The first says what rounding the weights alone does, the second what a user of that dtype has.
    In 8 bits there is no second. With --kv-dtype it scores them once, with weights in float32 too.
    """
    dtype = "float32" if kv_dtype else dtype
    compared = f"keys and values in {kv_dtype}" if kv_dtype else dtype
    headline(f"{compared} and float32: {count} texts of {tokens} tokens of each class")
    for named in model or ["jspec-7m"]:
        table = Table("model", "class", f"in {kv_dtype or dtype}", *_COLUMNS)
        subject = model_pairs.subject(named, None, prompts, classes)
        exact = subject.target
        if kv_dtype:
            _say_bytes(exact.model, kv_dtype)
        ways = (
            {"keys, values": "float32"}
            if kv_dtype
            else {"weights": "float32"}
            | ({} if eight_bits.low_precision(dtype) else {"all": dtype})
        )
        for what, sums in ways.items():
            other = models.load(named, sums, dtype, with_tokenizer=False, kv_dtype=kv_dtype)
            pair, weights = (exact.model, other.model), (exact.params, other.params)
            whole = []
            for kind in subject.classes:
                found = list(_read(pair, weights, subject.prompts(kind, count, tokens)))
                whole += found
                _add(table, out, subject.name, kind, what, found)
            _add(table, out, subject.name, "all", what, whole)
            table.add_section()
        console.print(table)


_COLUMNS = (
    "nats a token", "nats more", "mean KL", "99% below", "same best token", "largest gap where not"
)  # fmt: skip


def _say_bytes(model: Any, kv_dtype: str) -> None:
    """Prints the memory of 1,000 tokens of a row, here and in float32."""
    found = [
        sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(memory))
        for memory in (
            jax.eval_shape(partial(one.init_memory, 1, 1000))
            for one in (model, model.clone(kv_dtype=precisions.find_kv(kv_dtype)))
        )
    ]
    wide, narrow = (size / 1e6 for size in found)
    console.print(f"1,000 tokens take {wide:.2f} MB in float32, {narrow:.2f} MB in {kv_dtype}")


def _read(pair: Pair, params: tuple[PyTree, PyTree], prompts: Prompts) -> Iterator[Divergence]:
    for row in prompts.tokens:
        yield jax.device_get(_divergence(pair, params, jnp.asarray(row)))


@jax.jit(static_argnums=0)
def _divergence(pair: Pair, params: tuple[PyTree, PyTree], text: Int[Array, " N"]) -> Divergence:
    size = len(text)
    places = jnp.arange(size)[None]
    causal = jnp.tril(jnp.ones((1, size, size), bool))
    one, other = (
        jax.nn.log_softmax(model.apply(weights, text[None], places, causal, None).logits[0, :-1])
        for model, weights in zip(pair, params, strict=True)
    )
    follows = text[1:, None]
    chosen = other.argmax(-1)[:, None]
    return Divergence(
        surprise=-jnp.take_along_axis(one, follows, 1)[:, 0],
        other_surprise=-jnp.take_along_axis(other, follows, 1)[:, 0],
        divergence=(jnp.exp(one) * (one - other)).sum(-1),
        gap=one.max(-1) - jnp.take_along_axis(one, chosen, 1)[:, 0],
    )


def _add(
    table: Table, out: Path | None, name: str, kind: str, what: str, found: list[Divergence]
) -> None:
    every = Divergence(*(np.concatenate(part) for part in zip(*found, strict=True)))
    more = (every.other_surprise - every.surprise).mean()
    highest = np.quantile(every.divergence, 0.99)
    same = (every.gap == 0).mean()
    table.add_row(
        *(name, kind, what, f"{every.surprise.mean():.4f}", f"{more:+.5f}"),
        *(f"{every.divergence.mean():.1e}", f"{highest:.1e}", f"{same:.2%}"),
        f"{every.gap.max():.3f}",
    )
    figures = dict(
        nats=every.surprise.mean(), more=more, mean_kl=every.divergence.mean(), kl_99=highest,
        same=same, gap=every.gap.max(), tokens=every.gap.size,
    )  # fmt: skip
    row = {key: float(value) for key, value in figures.items()}
    record(out, dict(model=name, texts=kind, what=what) | row)


if __name__ == "__main__":
    command(main)

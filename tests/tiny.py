"""A model small enough to compile in a second, and the prompts that tests share."""

from dataclasses import asdict, dataclass, field
from functools import cache, partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from tokenizers import Tokenizer, decoders, pre_tokenizers, processors, trainers
from tokenizers.models import BPE

from jspec.models.heads import borrow
from jspec.models.heads.block import BlockConfig, BlockHead
from jspec.models.heads.eagle import EAGLEConfig, EAGLEHead
from jspec.models.heads.eagle3 import Eagle3Config, EAGLE3Head
from jspec.models.heads.lyanna import LyannaConfig, LyannaHead
from jspec.models.heads.medusa import MedusaConfig, MedusaHeads, fresh
from jspec.models.heads.mtp import MTPConfig, MTPHead
from jspec.models.llama import Layer, Llama, LlamaConfig
from jspec.models.rope import Rope

VOCAB = 23
PROMPTS = np.array([[5, 3, 9, 1, 7, 2, 5, 3], [4, 4, 0, 0, 0, 0, 0, 0], [8, 1, 6, 1, 6, 0, 0, 0]])
LENGTHS = np.array([8, 2, 5])


def model(**changes) -> Llama:
    shape = dict(
        vocab_size=VOCAB,
        hidden_size=16,
        intermediate_size=24,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=4,
        context=256,
    )
    return Llama(LlamaConfig(**(shape | changes)))


def draft(**changes) -> Llama:
    """`model` without its last layer: of the same seed, the rest of the weights is the same."""
    return model(**(dict(num_layers=1) | changes))


def params(model: nn.Module, seed: int = 0, scale: float = 12.0):
    """Random weights, scaled up from the initial 0.02: distributions are far from uniform."""
    return _drawn(model, seed, scale, None)


def _drawn(module: nn.Module, seed: int, scale: float, features: int | None):
    """Gives what `module.init` would, drawn by NumPy: compiling that takes longer than a test."""

    def leaf(path, shape):
        name = jax.tree_util.keystr(path)
        if shape.ndim < 2:
            constant = 0.0 if "bias" in name else 0.1 if "info" in name else 1.0
            return jnp.full(shape.shape, constant, shape.dtype)
        rng = np.random.default_rng([seed, *name.encode()])
        return jnp.asarray(rng.normal(0, 0.02 * scale, shape.shape), shape.dtype)

    return jax.tree_util.tree_map_with_path(leaf, _shapes(module, features))


@cache
def _shapes(module: nn.Module, features: int | None):
    """The variables of a model, or of a head for states of so many features."""
    tokens, mask = jnp.zeros((1, 2), jnp.int32), jnp.ones((1, 2, 2), bool)
    inputs = (tokens, tokens, mask, None)
    if features is not None:
        inputs = (jnp.zeros((1, 2, features)), tokens, tokens, mask)
    return jax.eval_shape(module.init, jax.random.key(0), *inputs)


def eagle(hot_tokens: int = 0) -> EAGLEHead:
    return EAGLEHead(EAGLEConfig(**asdict(draft().config), hot_tokens=hot_tokens))


def eagle3(**changes) -> EAGLE3Head:
    """Half as wide as the target, two of whose states it reads as one of 16."""
    shape = dict(taps=(0, 1), fc_norm=True, norm_output=True)
    return EAGLE3Head(Eagle3Config(**(asdict(draft(hidden_size=8).config) | shape | changes)))


def mtp() -> MTPHead:
    return MTPHead(MTPConfig(**(asdict(draft().config) | dict(layers=(Layer(Rope()),)))))


def block(**changes) -> BlockHead:
    shape = dict(taps=(1,), block_size=4, markov_rank=3, confidence_width=19)
    return BlockHead(BlockConfig(**(asdict(draft().config) | shape | changes)))


def lyanna(**changes) -> LyannaHead:
    return LyannaHead(LyannaConfig(**(asdict(draft().config) | dict(rank=5) | changes)))


def medusa(**changes) -> MedusaHeads:
    return MedusaHeads(MedusaConfig(VOCAB, 16, **changes))


HOT_IDS = np.sort(np.random.default_rng(5).permutation(VOCAB)[:11])


def medusa_variables(heads: MedusaHeads):
    """Random weights of heads for `model`. Hot tokens, if there are any, are `HOT_IDS`."""
    draw, target = np.random.default_rng(3), params(model())
    own = jax.tree.map(
        lambda leaf: jnp.asarray(0.5 * draw.normal(size=leaf.shape), jnp.float32),
        fresh(heads, target),
    )
    if not heads.config.hot_tokens:
        return {"params": own}
    return {"params": own, "target": borrow(heads, target), "scored": {"ids": jnp.asarray(HOT_IDS)}}


def variables(head: nn.Module, seed: int = 0, scale: float = 12.0):
    """Random weights of a head for `model` of its width, alongside what it borrows of that."""
    target = params(model(hidden_size=head.hidden_size))["params"]
    made = _drawn(head, seed, scale, head.features)
    own = {name: part for name, part in made.items() if name != "target"}
    return {**own, "target": {"embed": target["embed"], "head": target["head"]}}


def plain_logits(model: nn.Module, params, tokens) -> np.ndarray:
    """[N, V] logits of one sequence by one whole forward pass, without a cache."""
    return np.asarray(forward(model, params, [tokens]).logits[0], np.float64)


def forward(model: nn.Module, params, tokens):
    """The output of an ordinary forward pass over whole texts [B, N], without a cache."""
    tokens = tokens if isinstance(tokens, jax.Array) else np.asarray(tokens, np.int32)
    return _forward(model, params, tokens)


def causal(tokens):
    """Tokens, positions and mask of such a forward pass."""
    tokens = jnp.asarray(tokens, jnp.int32)
    batch, size = tokens.shape
    positions = jnp.broadcast_to(jnp.arange(size), (batch, size))
    return tokens, positions, jnp.broadcast_to(jnp.tri(size, dtype=bool), (batch, size, size))


@partial(jax.jit, static_argnums=0)
def _forward(model, params, tokens):
    return model.apply(params, *causal(tokens), None)


def equal(one, other) -> bool:
    """Returns whether two trees are of one structure and of equal arrays."""
    return jax.tree.structure(one) == jax.tree.structure(other) and jax.tree.all(
        jax.tree.map(np.array_equal, one, other)
    )


@dataclass(frozen=True)
class Wrapper:
    """A model that is another one in all that a subclass does not change."""

    inner: Any

    def __getattr__(self, name):
        return getattr(self.inner, name)


@dataclass(frozen=True)
class Counted(Wrapper):
    """Keeps the shapes of tokens that it is traced for; equal models share a program."""

    traces: list = field(default_factory=list, compare=False)

    def apply(self, params, tokens, *rest):
        self.traces.append(tokens.shape)
        return self.inner.apply(params, tokens, *rest)


def words(texts, size: int) -> Tokenizer:
    """A byte-level BPE of texts: token 0 begins and ends one, then bytes, then merges."""
    end, bytes_alone = "<|endoftext|>", pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = bytes_alone, decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=[end], initial_alphabet=bytes_alone.alphabet(),
        show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{end} $A", special_tokens=[(end, 0)]
    )
    return tokenizer

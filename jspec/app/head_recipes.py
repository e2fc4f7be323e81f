"""The kinds of draft heads that `jspec train` trains: module, objective and default settings."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import optax

from jspec.base import PyTree
from jspec.errors import InputError
from jspec.models.heads.block import BlockConfig, BlockHead, block_taps
from jspec.models.heads.eagle import EAGLEHead
from jspec.models.heads.lyanna import LyannaConfig, LyannaHead
from jspec.models.heads.medusa import MedusaConfig, MedusaHeads, fresh
from jspec.models.heads.registry import with_taps
from jspec.models.llama import LlamaConfig
from jspec.models.load import Loaded
from jspec.training.block import Blocks, WithLast
from jspec.training.head_jobs import HeadJob
from jspec.training.loop import Objective, Recipe
from jspec.training.medusa import Ahead
from jspec.training.unroll import Unrolled

STATE_LOSSES: Mapping[str, Callable[..., Any]] = {
    "squared": optax.losses.squared_error,
    "smooth": optax.losses.huber_loss,
}
"""The losses of states by name: the mean square, and EAGLE's smooth L1."""


@dataclass(frozen=True)
class Kind:
    """One kind of draft head, as it is trained.

    Args:
        job: its settings, where neither recipe nor options say otherwise.
        build: the module, from the target and the shape's settings.
        objective: from the target, the module and the loss's settings.
        begin: the weights to begin with, from the module and the target; None: random ones.
        memory: what to say of the memory that the trained head will take.
        source: the model whose states the objective reads, from the target's and the head.
    """

    job: HeadJob
    build: Callable[..., Any]
    objective: Callable[..., Objective]
    begin: Callable[[Any, PyTree], PyTree] | None = None
    memory: Callable[[Any], list[str]] = lambda head: []
    source: Callable[[Any, Any], Any] = lambda model, head: model


_SIZES = (
    *("vocab_size", "intermediate_size", "num_heads", "num_kv_heads", "head_dim", "context"),
    *("norm_eps", "rope_theta", "rope_scaling", "tied"),
)
"""What a head's layer takes over from a target; biases, windows and the like few families have."""


def _layer(target: Loaded) -> dict[str, Any]:
    """The target's own layer, one of it, without biases and norms that few families have."""
    model: Any = target.model
    config = model.config
    shape = {name: getattr(config, name) for name in _SIZES if hasattr(config, name)}
    attention = {"num_kv_heads": config.num_heads, "head_dim": config.head_dim}
    return {**attention, **shape, "num_layers": 1, "hidden_size": model.features}


def _eagle(target: Loaded) -> EAGLEHead:
    return EAGLEHead(LlamaConfig(**_layer(target)))


def _lyanna(target: Loaded, hot_tokens: int | None, **shape: Any) -> LyannaHead:
    vocab_size = target.model.vocab_size
    if hot_tokens is None:
        hot_tokens = _HOT if vocab_size > _LARGE else 0
    if hot_tokens > vocab_size:
        raise InputError(
            f"hot_tokens is {hot_tokens} and the target's vocabulary has {vocab_size}; use at "
            f"most that many, or 0 for all"
        )
    return LyannaHead(LyannaConfig(**_layer(target), **shape, hot_tokens=hot_tokens))


def _medusa(target: Loaded, **shape: Any) -> MedusaHeads:
    model: Any = target.model
    return MedusaHeads(MedusaConfig(model.vocab_size, model.features, **shape))


def _block(
    target: Loaded, num_taps: int, confidence: bool, markov_rank: int, **shape: Any
) -> BlockHead:
    layer = _layer(target) | shape
    layers = getattr(getattr(target.model, "config", None), "num_layers", 0)
    if num_taps > layers - 1:
        raise InputError(
            f"num_taps is {num_taps} and the target has {layers} layers, of which the first is not "
            f"tapped; use at most {layers - 1}"
        )
    read = layer["hidden_size"] + markov_rank if confidence else 0
    own: dict[str, Any] = {"qk_norm": True, "taps": block_taps(layers, num_taps)}
    return BlockHead(BlockConfig(**layer | own, markov_rank=markov_rank, confidence_width=read))


def _with_last(model: Any, head: BlockHead) -> WithLast:
    return WithLast(model, with_taps(model, head))


def _blocks(target: Loaded, head: BlockHead, **loss: Any) -> Objective:
    return Blocks(_with_last(target.model, head), head, **loss)


def _ahead(target: Loaded, head: Any, **loss: Any) -> Objective:
    model: Any = target.model
    return Ahead(model, head, **loss)


def _token_info(head: LyannaHead) -> list[str]:
    """The table of token info that decoding reads, before and after it is cut to hot tokens."""
    config, width = head.config, jnp.dtype(head.dtype).itemsize
    if not config.rank:
        return []
    whole = f"{config.vocab_size**2 * width / 2**20:,.0f} MiB for {config.vocab_size:,} tokens"
    if not config.hot_tokens:
        return [f"token info: {whole}"]
    hot = f"{config.hot_tokens**2 * width / 2**20:,.0f} MiB for the {config.hot_tokens:,} hot ones"
    return [f"token info: {whole}, {hot}"]


def _unrolled(target: Loaded, head: Any, unroll: int, state_loss: str, **loss: Any) -> Objective:
    if state_loss not in STATE_LOSSES:
        raise InputError(f"state_loss is {state_loss!r}; use one of {', '.join(STATE_LOSSES)}")
    model: Any = target.model
    return Unrolled(model, head, steps=unroll, state_loss=STATE_LOSSES[state_loss], **loss)


_UNROLLED = {
    "unroll": 3,
    "state_loss": "squared",
    "state_weight": 1.0,
    "token_weight": 0.1,
    "decay": 0.8,
}
_RECIPE = Recipe(steps=2000)
_LARGE, _HOT = 40_000, 32_000
"""Above so many tokens the paper gives token info to so many alone (section 6.1)."""

KINDS: Mapping[str, Kind] = {
    "eagle": Kind(HeadJob(_RECIPE, {}, _UNROLLED), _eagle, _unrolled),
    "lyanna": Kind(
        HeadJob(_RECIPE, {"rank": 64, "hot_tokens": None, "first_token": True}, _UNROLLED),
        _lyanna,
        _unrolled,
        memory=_token_info,
    ),
    "medusa": Kind(
        HeadJob(
            replace(_RECIPE, learning_rate=1e-3),
            {"num_heads": 4, "num_layers": 1},
            {"decay": 0.8},
        ),
        _medusa,
        _ahead,
        begin=fresh,
    ),
    "block": Kind(
        HeadJob(
            _RECIPE,
            {
                "num_layers": 2,
                "num_taps": 3,
                "block_size": 8,
                "causal": False,
                "markov_rank": 64,
                "confidence": True,
            },
            {
                "anchors": 32,
                "decay": 4.0,
                "token_weight": 0.1,
                "distance_weight": 0.9,
                "confidence_weight": 1.0,
            },
        ),
        _block,
        _blocks,
        source=_with_last,
    ),
}

"""The kinds of draft heads: what each reads, and what it borrows of its target."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.traverse_util import unflatten_dict

from jspec._validate.errors import InputError
from jspec.models import blocks
from jspec.models.heads.base import gather_hot
from jspec.models.heads.block import BlockHead
from jspec.models.heads.eagle import EAGLEHead
from jspec.models.heads.eagle3 import EAGLE3Head
from jspec.models.heads.lyanna import LyannaHead, collapse
from jspec.models.heads.medusa import MedusaHeads
from jspec.models.heads.mtp import MTPHead
from jspec.types import PyTree

TARGET = "target"
"""The collection of a head's variables that holds arrays of the target."""


def _as_they_are(head: Any, variables: PyTree) -> PyTree:
    del head
    return variables


@dataclass(frozen=True)
class HeadKind:
    """A kind of head: a Flax module with fields `config`, `dtype` and `param_dtype`."""

    module: Callable[..., Any]
    reads_tokens: bool = True
    """True where it reads pairs of state and token, as `jspec.DraftHead`; else states."""
    prepare: Callable[[Any, PyTree], PyTree] = _as_they_are
    """Computes, from the trained variables, those to decode with."""


HEAD_KINDS: Mapping[str, HeadKind] = {
    "block": HeadKind(BlockHead),
    "eagle": HeadKind(EAGLEHead, prepare=gather_hot),
    "eagle3": HeadKind(EAGLE3Head),
    "lyanna": HeadKind(LyannaHead, prepare=collapse),
    "medusa": HeadKind(MedusaHeads, reads_tokens=False, prepare=gather_hot),
    "mtp": HeadKind(MTPHead),
}


def kind_of(head: nn.Module) -> str:
    """Returns the name of a head's kind.

    Raises:
        InputError: if it is of none.

    Example:
        >>> from jspec.models.heads.medusa import MedusaConfig, MedusaHeads
        >>> kind_of(MedusaHeads(MedusaConfig(vocab_size=100, hidden_size=16)))
        'medusa'
    """
    for name, kind in HEAD_KINDS.items():
        if type(head) is kind.module:
            return name
    raise InputError(
        f"{type(head).__name__} is not a kind of head that can be saved; known: "
        f"{', '.join(HEAD_KINDS)}"
    )


def check_kind(source: str, kind: str, only: str | tuple[str, ...] | None) -> None:
    """Raises InputError if a head is of another kind than those wanted; None is any."""
    kinds = (only,) if isinstance(only, str) else only
    if kinds is not None and kind not in kinds:
        raise InputError(
            f"{source} holds a head of kind {kind} and one of kind {' or '.join(kinds)} is "
            "wanted; name such a folder, or choose the method of that head"
        )


def shapes(head: Any) -> PyTree:
    """Returns shape and dtype of every variable, by collection; nothing is computed."""
    state = jax.ShapeDtypeStruct((1, 1, head.features), head.dtype)
    inputs = (state,)
    if HEAD_KINDS[kind_of(head)].reads_tokens:
        tokens = jax.ShapeDtypeStruct((1, 1), jnp.int32)
        inputs = (state, tokens, tokens, jax.ShapeDtypeStruct((1, 1, 1), jnp.bool_))
    return jax.eval_shape(head.init, jax.random.key(0), *inputs)


def borrow(head: Any, target: PyTree) -> PyTree:
    """Returns the collection `target` of a head: arrays of the target itself.

    Args:
        head: the module.
        target: params of the model that it drafts for.

    Raises:
        InputError: if the target's embedding or head is of another shape than the head reads.
    """
    params = target["params"]
    tables = {"embed": params["embed"], "head": params.get("head", params["embed"])}
    lent = {}
    for path, leaf in leaves(shapes(head).get(TARGET, {})):
        array = blocks.table(tables[path[-1]], leaf.shape[-1])
        if array.shape != leaf.shape:
            raise InputError(
                f"the head reads the target's {path[-1]} as {list(leaf.shape)} and this target's "
                f"has shape {list(array.shape)}; load the model that the head was trained for"
            )
        lent[path] = array
    return unflatten_dict(lent)


def with_taps(model: Any, head: Any) -> Any:
    """Returns the target as the head reads it: its last state, or inputs of layers."""
    taps = getattr(head.config, "taps", None)
    if taps is None:
        return model
    if not hasattr(model, "taps"):
        raise InputError(
            f"the head reads what enters layers {list(taps)} of its target, which a "
            f"{type(model).__name__} does not hand out; load a target of the Llama family"
        )
    return model.clone(taps=taps)


def check_target(folder: str, head: Any, model: Any) -> None:
    """Raises InputError unless the head reads what the target gives."""
    if head.vocab_size != model.vocab_size:
        raise InputError(
            f"{folder} is of a head for a vocabulary of {head.vocab_size} tokens and the target "
            f"has {model.vocab_size}; load the target that it was trained for"
        )
    width = with_taps(model, head).features
    if head.features != width:
        raise InputError(
            f"{folder} is of a head that reads states of width {head.features} and the target's "
            f"have {width}; load the target that it was trained for"
        )


def leaves(tree: PyTree) -> list[tuple[tuple[str, ...], Any]]:
    """Returns each leaf and the keys that lead to it."""
    pairs = jax.tree_util.tree_leaves_with_path(tree)
    return [(tuple(key.key for key in path), leaf) for path, leaf in pairs]

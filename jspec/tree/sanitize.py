"""Checks of what drafters return: structure while a call is traced, values while it runs.

Structure that cannot work (a missing field, a shape, a dtype) is one sentence before anything is
compiled. Values cannot be refused inside a compiled loop, so malformed nodes are marked absent:
whatever a drafter proposes, the tokens stay the target's.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from jspec import tree as trees
from jspec._validate.errors import InputError
from jspec.types import NO_PARENT, PyTree, Tree


def sanitize(
    tree: Tree,
    root: Int[Array, " B"],
    vocab_size: int | Int[Array, ""] | None = None,
    grammar: Any = None,
) -> Tree:
    """Returns the tree with every malformed node marked absent.

    The root is written here. Absent are: nodes whose parent is not an earlier node, those deeper
    than `Tree.depth`, those below an absent node, ids that the target has not, values that are NaN,
    of equal siblings all but the first, and what the grammar does not allow. Siblings that were
    sampled (`Tree.q`) may be equal or forbidden: the rules count them.

    Args:
        tree: as drafted.
        root: the last emitted tokens.
        vocab_size: V of the target; None: ids are not looked at.
        grammar: `Frame.grammar`; None: everything is allowed.

    Example:
        >>> import jax.numpy as jnp, jspec
        >>> tree = jspec.tree.chain(3).fill(jnp.array([[9, 1, 99, 2]]))  # 99 is not a token of 23
        >>> sanitize(tree, jnp.array([5]), 23).valid.tolist()
        [[True, True, False, False]]
    """
    num_nodes = tree.tokens.shape[1]
    if num_nodes == 1:  # plain decoding: nothing but the root, which is written here
        only = trees.root_only(root)
        return replace(
            tree, tokens=only.tokens, parents=only.parents, valid=only.valid, width=only.width
        )
    nodes = jnp.arange(num_nodes, dtype=jnp.int32)
    is_root = nodes == 0
    tokens = jnp.where(is_root, root[:, None], tree.tokens)
    has_parent = (tree.parents >= 0) & (tree.parents < nodes[None])
    parents = jnp.where(is_root, NO_PARENT, jnp.where(has_parent, tree.parents, 0))
    valid = tree.valid & has_parent
    if vocab_size is not None:
        valid &= (tokens >= 0) & (tokens < vocab_size)
    if tree.value is not None:
        valid &= ~jnp.isnan(tree.value)
    if tree.q is None:
        siblings = (parents[:, :, None] == parents[:, None, :]) & valid[:, None, :]
        equal = (
            siblings
            & (tokens[:, :, None] == tokens[:, None, :])
            & (nodes[:, None] > nodes[None])[None]
        )
        valid &= ~equal.any(-1)
    valid |= is_root[None]
    plain = replace(
        tree,
        tokens=tokens.astype(jnp.int32),
        parents=parents.astype(jnp.int32),
        width=min(tree.width, num_nodes),
    )
    # Nodes too deep have no root among the ancestors that so many levels reach.
    mask = trees.ancestors(plain)
    valid &= mask[:, :, 0] & (valid[:, None, :] | ~mask).all(-1)
    if tree.depth == 0:
        valid &= is_root
    if grammar is not None and tree.q is None:
        valid &= grammar.allows(plain)
    return replace(
        plain,
        tokens=jnp.where(valid, plain.tokens, 0),
        valid=valid,
        value=None if tree.value is None else jnp.where(valid, tree.value, 0.0),
    )


def check_tree(drafter: str, tree: Any, batch: int) -> None:
    """Checks the structure of what a drafter's `draft` returned, traced or abstract."""
    if not isinstance(tree, Tree):
        raise InputError(
            f"{drafter}.draft returned a {type(tree).__name__} where its tree should be; it must "
            "return (jspec.Tree, state)"
        )
    for name, minimum in (("depth", 0), ("width", 1)):
        value = getattr(tree, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise InputError(
                f"{drafter}.draft returned a tree whose {name} is {value!r:.40}; it must be an "
                f"integer of at least {minimum}, known when the call is traced"
            )
    nodes = getattr(tree.tokens, "shape", ())[1:2]
    if nodes == (0,):
        raise InputError(f"{drafter}.draft returned a tree without nodes; node 0 is the root")
    q_rows = getattr(tree.q, "shape", (0, 0, 0))[1:2]
    layout = {
        "tokens": ((batch, *nodes), jnp.integer),
        "parents": ((batch, *nodes), jnp.integer),
        "valid": ((batch, *nodes), jnp.bool_),
        "q": ((batch, *q_rows, *getattr(tree.q, "shape", ())[2:]), jnp.floating),
        "q_row": ((batch, *nodes), jnp.integer),
        "value": ((batch, *nodes), jnp.floating),
    }
    for name, (shape, kind) in layout.items():
        field = getattr(tree, name)
        if field is None and name in ("q", "q_row", "value"):
            continue
        actual, dtype = getattr(field, "shape", None), getattr(field, "dtype", None)
        axes = {"tokens": 2, "q": 3}.get(name, len(shape))
        if actual is None or dtype is None:
            raise InputError(
                f"{drafter}.draft returned a tree whose {name} is {field!r:.40}; "
                "it must be an array"
            )
        if actual != shape or len(actual) != axes or not jnp.issubdtype(dtype, kind):
            axis_names = {"q": "[B, Q, V]"}.get(name, "[B, N]")
            raise InputError(
                f"{drafter}.draft returned a tree whose {name} has shape {actual} and dtype "
                f"{dtype}; it must be {axis_names} of {kind.__name__}, with B = {batch} "
                "and the N of tokens"
            )


def check_state(drafter: str, after: str, state: PyTree, before: str, reference: PyTree) -> None:
    """Checks that a drafter's state has kept its structure, shapes and dtypes."""
    new_structure, old_structure = jax.tree.structure(state), jax.tree.structure(reference)
    if new_structure != old_structure:
        raise InputError(
            f"{drafter}.{after} returned a state of structure {_short(new_structure)} where "
            f"{before} returned {_short(old_structure)}; a state keeps its structure from round "
            "to round"
        )
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(reference)]
    for path, new, old in zip(
        paths, jax.tree.leaves(state), jax.tree.leaves(reference), strict=True
    ):
        new, old = jax.typeof(new), jax.typeof(old)
        if (new.shape, new.dtype) != (old.shape, old.dtype):
            raise InputError(
                f"{drafter}.{after} returned a state whose leaf {path or 'of its own'} has shape "
                f"{new.shape} and dtype {new.dtype} where {before} returned {old.shape} and "
                f"{old.dtype}; a state keeps its shapes and dtypes from round to round"
            )


def _short(structure: Any) -> str:
    text = str(structure).removeprefix("PyTreeDef(").removesuffix(")")
    return text if len(text) <= 120 else text[:117] + "..."

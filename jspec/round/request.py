"""The edge: arguments in, checked arrays out. Everything wrong is said here, before tracing."""

import operator
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike
from jaxtyping import Array, Int

from jspec import sampling as samplings
from jspec._validate import seeds
from jspec._validate.arguments import check_integer, takes
from jspec._validate.errors import InputError
from jspec._validate.row_arguments import (
    ROWS,
    can_move,
    concrete_values,
    end_tokens,
    integers,
    library_of,
    of_ragged,
    on_host,
    put_like,
    to_array,
)
from jspec._xla import backend
from jspec._xla.manual_axes import default_row_ids
from jspec.protocols import CausalLM, Drafter, Drafting, WidthPolicy
from jspec.tree.sanitize import check_state
from jspec.types import Controls, PyTree, Sampling, State, Stopping
from jspec.verify.choice import takes_parts


class PreparedArrays(NamedTuple):
    """The arguments of a call that are data, so that other values recompile nothing."""

    prompt: Int[Array, "B T"]
    prompt_lengths: Int[Array, " B"]
    key: jax.Array | None
    row_ids: Int[Array, " B"]
    controls: Controls
    """Without the keys, which the program makes of `key` and `row_ids`."""


class Prepared(NamedTuple):
    """A call, padded to bucket sizes so that calls alike share one compiled program."""

    arrays: PreparedArrays
    size: int
    """The size of the output buffer; at or above what was asked for."""
    capacity: int
    """The most tokens that a row's memory holds."""
    chunk: int
    """Maximum number of tokens of a row that the target reads at once."""

    @property
    def end_tokens(self) -> Any:
        """The tokens that end rows, of all kinds: [B, X]."""
        eos, stop_token_ids = self.arrays.controls.eos, self.arrays.controls.stop_token_ids
        if stop_token_ids is None:
            return eos
        library = np if library_of(eos) is library_of(stop_token_ids) is np else jnp
        return library.concatenate([eos, stop_token_ids], axis=1)


def check_model(model: CausalLM, params: PyTree) -> None:
    """Raises InputError unless these look like a model and its weights."""
    names = "apply", "init_memory", "commit", "vocab_size", "context"
    missing = [name for name in names if not hasattr(model, name)]
    if isinstance(model, type) or missing:
        without = f", which has no {missing[0]}" if missing else ""
        raise InputError(
            f"model is {model!r:.80}{without}; pass a model such as the first of "
            "jspec.models.load(..), jspec.models.from_nnx(..) of an NNX module, "
            "jspec.models.FunctionModel of a function, or an object with what jspec.CausalLM lists"
        )
    _check_static("model", model)
    if params is None:
        raise InputError(
            "params is None; pass the model's weights, or () for a model that has none"
        )
    check_weights("params", params)


_FUNCTIONS = {
    "init": ("batch", "capacity", "earlier"),
    "prefill": ("params", "state", "chunk"),
    "draft": ("params", "state", "frame"),
    "update": ("params", "state", "aux", "feedback"),
}
"""A drafter's functions and what they take."""


def check_drafter(drafter: Drafter) -> None:
    """Raises InputError unless this is a drafter."""
    if not isinstance(drafter, Drafter):
        raise InputError(
            f"drafter is {drafter!r:.80}; pass an instance such as jspec.PromptLookup(), or derive "
            "yours from jspec.Drafter"
        )
    for name, arguments in _FUNCTIONS.items():
        if not takes(getattr(drafter, name), len(arguments)):
            raise InputError(
                f"drafter is {drafter!r:.80}, whose {name} does not take "
                f"({', '.join(arguments)}); see jspec.Drafter"
            )
    _check_static("drafter", drafter)


def check_policy(policy: WidthPolicy, drafter: Drafter) -> None:
    """Raises InputError unless this is a policy that the drafter's trees may be verified by."""
    if not isinstance(policy, WidthPolicy):
        raise InputError(
            f"policy is {policy!r:.80}; pass an instance such as jspec.FixedWidth() or "
            "jspec.Adaptive((0, 3, 7)), or derive yours from jspec.WidthPolicy"
        )
    _check_static("policy", policy)
    name, widths = type(policy).__name__, policy.widths
    for width in widths:
        check_integer(f"a width of {name}", width, 0, None)
    if not isinstance(widths, tuple) or tuple(sorted(set(widths))) != widths:
        raise InputError(
            f"{name} has widths {widths!r:.80}; give a tuple of rising numbers of drafted nodes, "
            "such as (0, 3, 7)"
        )
    if any(widths) and not takes_parts(drafter):
        raise InputError(
            f"{name} verifies parts of trees and {type(drafter).__name__}'s draws have a verifier "
            "of their own: a part of them would not be lossless; pass policy=jspec.FixedWidth(), "
            "or give the drafter scheme=jspec.schemes.COUPLED"
        )


def check_drafting(drafting: Drafting) -> None:
    """Raises InputError unless drafter and policy go together, and their params are arrays."""
    check_drafter(drafting.drafter)
    check_policy(drafting.policy, drafting.drafter)
    check_weights("drafter_params", drafting.drafter_params)
    check_weights("policy_params", drafting.policy_params)


def check_same_memory(drafting: Drafting, state: State) -> None:
    """Raises InputError if the state holds the memory of another drafter, or of another policy."""
    batch, capacity = len(state.root), state.capacity
    for what, part, memory in (
        ("drafter", drafting.drafter, state.drafter_state),
        ("policy", drafting.policy, state.policy_state),
    ):
        empty = jax.eval_shape(lambda part=part: part.init(batch, capacity, None))
        if what == "policy" and not jax.tree.leaves(empty):
            continue
        name = type(part).__name__
        try:
            check_state("The state", "prefill", memory, f"{name}.init", empty)
        except InputError as error:
            raise InputError(
                f"the state holds the memory of another {what} than this {name}, or of one of "
                f"other sizes; pass the {what} that prefill was given"
            ) from error


def check_weights(name: str, weights: PyTree) -> None:
    """Raises InputError unless these are arrays and numbers in a pytree."""
    for leaf in jax.tree.leaves(weights):
        if isinstance(leaf, jax.Array | np.ndarray | np.generic | bool | int | float | complex):
            continue
        inner = "its .params" if hasattr(leaf, "params") else "arrays in a pytree"
        raise InputError(
            f"{name} holds a {type(leaf).__name__}, which is not an array; pass {inner}"
        )


def check_alive(state: State) -> None:
    """Raises InputError if this is no state, or one that was donated to a call before."""
    if not isinstance(state, State):
        raise InputError(f"state is {state!r:.80}; pass what jspec.prefill or jspec.step returned")
    leaves = (leaf for leaf in jax.tree.leaves(state) if isinstance(leaf, jax.Array))
    if any(not isinstance(leaf, Tracer) and leaf.is_deleted() for leaf in leaves):
        raise InputError(
            "the state was given away to a call before, which donates it; pass what that call "
            "returned, or give such calls a copy of jspec.fork"
        )


def _check_static(name: str, value: Any) -> None:
    """Raises InputError unless equal values can share a program."""
    try:
        hash(value)
    except TypeError as error:
        raise InputError(
            f"{name} is {value!r:.80}, which cannot be hashed ({error}); it is a static argument: "
            "make it a frozen dataclass of hashable fields, and pass arrays as params"
        ) from error
    if type(value).__eq__ is object.__eq__:
        warnings.warn(
            f"{name} is a {type(value).__name__}, which is equal to itself alone, so that each new "
            "instance compiles its programs anew; make it a frozen dataclass",
            stacklevel=4,
        )


def check_stopping(stopping: Stopping) -> None:
    """Raises InputError unless this says where rows end."""
    if not isinstance(stopping, Stopping):
        raise InputError(
            f"stopping is {stopping!r:.80}; pass jspec.Stopping(max_tokens=.., eos=.., stop=..)"
        )


def check_earlier(name: str, state: PyTree) -> None:
    """Raises InputError unless this is a pytree of arrays, as `Result.drafter_state` is."""
    for leaf in jax.tree.leaves(state):
        if not hasattr(leaf, "shape") and not isinstance(leaf, bool | int | float):
            raise InputError(
                f"{name} holds {leaf!r:.40}, a {type(leaf).__name__}; pass the {name} of an "
                "earlier call's result, or None"
            )


def read_prompt(prompt: Any, prompt_lengths: Any) -> tuple[Any, Any]:
    """Returns a prompt as an array [B, T], and its lengths. Raises InputError if it is none."""
    prompt, prompt_lengths = of_ragged(prompt, prompt_lengths)
    tokens = to_array(prompt, "prompt", ROWS)
    if tokens.ndim != 2 or 0 in tokens.shape or not jnp.issubdtype(tokens.dtype, jnp.integer):
        raise InputError(
            f"prompt has shape {tokens.shape} and dtype {tokens.dtype}; pass integers [B, T] with "
            "at least one row and one token, padded on the right"
        )
    return tokens, prompt_lengths


def prepare(
    model: CausalLM,
    prompt: ArrayLike | Sequence[Any],
    prompt_lengths: ArrayLike | None,
    max_new_tokens: int,
    *,
    stopping: Stopping = Stopping(),
    sampling: Sampling | None = None,
    key: jax.Array | int | tuple[Any, ...] | None = None,
    row_ids: ArrayLike | None = None,
    capacity: int | None = None,
    earlier: State | None = None,
) -> Prepared:
    """Checks and casts the arguments of `prefill`. Shapes and types are checked always, values
    where they are known; inside a caller's `jit`, lengths, limits and settings are clamped to their
    bounds instead.
    """
    check_stopping(stopping)
    tokens, prompt_lengths = read_prompt(prompt, prompt_lengths)
    batch, padded = tokens.shape
    # What lies on a device is checked and padded here, and goes back to where it was.
    original, moved = tokens, can_move(tokens)
    tokens = on_host(original) if moved else original
    context = model.context
    limit = 2**31 - 1 - padded if context is None else context
    max_new_tokens = _size(max_new_tokens, limit)
    longest = padded if context is None else min(padded, context)
    minimum = 1
    why = "a row needs a token, and no more than the prompt and the model's context hold"
    if earlier is not None:
        # On first use: most calls begin a text, and need nothing of this.
        from jspec.round import continuation

        continuation.check_kept(model, earlier, batch, capacity)
        minimum, why = 0, "a row is given no more tokens than the prompt and the context hold"
    every = padded if prompt_lengths is None else prompt_lengths
    counts = integers(every, batch, "prompt_lengths", minimum, longest, why)
    _check_tokens(tokens, counts, model.vocab_size)
    why = "max_new_tokens; raise it or lower max_tokens"
    most_new = max_new_tokens if stopping.max_tokens is None else stopping.max_tokens
    allowed = integers(most_new, batch, "max_tokens", 0, max_new_tokens, why)
    sampling = samplings.by_row(sampling, batch)
    key = samplings.key_of(sampling, key)
    if isinstance(key, tuple):
        key = jnp.stack([jnp.asarray(seeds.to_key(row_key)) for row_key in key])
    else:
        key = seeds.to_key(key)
    if row_ids is None and sampling is not None:
        row_ids = default_row_ids(batch, tokens, key)
    tokens = tokens.astype(np.int32)
    if earlier is not None:
        # The root was emitted and not read: what follows the committed tokens begins there.
        root = concrete_values(earlier.root) if library_of(tokens) is np else None
        # On the host, where another length compiles nothing.
        join, root = (jnp, earlier.root) if root is None else (np, root)
        tokens, counts = join.concatenate([root[:, None], tokens], axis=1), counts + 1
        capacity, size = earlier.capacity, max(earlier.tokens.shape[1], max_new_tokens)
        continuation.check_capacity(earlier, counts, context)
    else:
        capacity = _capacity(capacity, tokens, counts, max_new_tokens, context)
        # Under a caller's jit shapes are final.
        size = max_new_tokens if isinstance(tokens, Tracer) else max(capacity, max_new_tokens)
    chunk = chunk_of(batch, capacity)
    if isinstance(tokens, Tracer):
        chunk = min(chunk, max(tokens.shape[1] - 1, 1))
    else:
        width = capacity + 1
        missing = max(width - tokens.shape[1], 0)
        tokens = library_of(tokens).pad(tokens[:, :width], ((0, 0), (0, missing)))
    arrays = PreparedArrays(
        prompt=tokens,
        prompt_lengths=counts,
        # A greedy call draws nothing: with another key, or none, it is the same program.
        key=None if sampling is None else key,
        row_ids=integers(
            np.arange(batch) if row_ids is None else row_ids,
            batch,
            "row_ids",
            -(2**31),
            2**31 - 1,
            "an id of 32 bits; two rows of the same id draw the same noise",
        ),
        controls=Controls(
            limits=allowed,
            eos=end_tokens(stopping.eos, batch, model.vocab_size, "eos"),
            stop_token_ids=None
            if stopping.stop_token_ids is None
            else end_tokens(stopping.stop_token_ids, batch, model.vocab_size, "stop_token_ids"),
            sampling=sampling,
            keys=None,
        ),
    )
    if moved:
        place = original.sharding if original.committed else None
        arrays = arrays._replace(prompt=jax.device_put(tokens, place))
    return Prepared(put_like(arrays, arrays.prompt), size, capacity, chunk)


def check_context(context: int | None, call: Prepared, earlier: State | None) -> None:
    """Raises InputError unless every row's text fits a drafter's context."""
    lengths, limits = (
        concrete_values(call.arrays.prompt_lengths),
        concrete_values(call.arrays.controls.limits),
    )
    longest = call.arrays.prompt.shape[1] if lengths is None else lengths
    before = None if earlier is None else concrete_values(earlier.positions)
    before = 0 if before is None else before
    need = int(np.max(before + longest + (call.size if limits is None else limits)))
    need = min(need, call.capacity)  # beyond, the target itself ends the row
    if context is not None and context < need:
        raise InputError(
            f"the drafter's context is {context} and a row may hold {need} tokens; shorten the "
            "prompt or max_new_tokens, or take a drafter of longer context"
        )


def bucket(size: int) -> int:
    """Returns the smallest of the sizes 128, 256, 512, .. that holds `size`."""
    return max(128, 1 << (size - 1).bit_length())


def chunk_of(batch: int, capacity: int) -> int:
    """Returns the number of tokens of each of so many rows that the target reads at once."""
    if backend.platform() != "cpu":
        upper, lower, together = 512, 64, 4096
    else:
        # Long texts have time to win back what wider products cost a short one.
        together = 128 if capacity > 1024 else 64
        upper, lower = together, 16
    return min(max(lower, min(upper, bucket_below(together // batch))), capacity)


def bucket_below(size: int) -> int:
    """Returns the largest power of two that is at most `size`, and 1 for nothing."""
    return 1 << max(size.bit_length() - 1, 0)


def _capacity(
    capacity: int | None, tokens: Any, counts: Any, max_new_tokens: int, context: int | None
) -> int:
    """Returns the capacity of a new memory: the requested one, or a bucket."""
    values = concrete_values(counts)
    longest = tokens.shape[1] if values is None else int(values.max())
    limit = 2**31 - 2 if context is None else context
    if capacity is not None:
        check_integer(
            "capacity", capacity, min(longest, limit), limit, "what the model's context holds"
        )
        return capacity
    need = longest + max_new_tokens
    return min(need if isinstance(tokens, Tracer) else bucket(need), limit)


def _size(value: int, limit: int) -> int:
    """Returns the value of `max_new_tokens` as an int."""
    try:
        size = -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        size = -1
    if not 1 <= size <= limit:
        raise InputError(
            f"max_new_tokens is {value!r}; pass an integer of at least 1 and at most {limit}, "
            "which is the model's context and holds the prompt as well"
        )
    return size


def _check_tokens(tokens: Any, counts: Any, vocab_size: int) -> None:
    values, lengths = concrete_values(tokens), concrete_values(counts)
    if values is None or lengths is None:
        return
    live = np.arange(values.shape[1]) < lengths[:, None]
    wrong = live & ((values < 0) | (values >= vocab_size))
    if wrong.any():
        row, place = (int(i) for i in np.argwhere(wrong)[0])
        raise InputError(
            f"prompt[{row}, {place}] is token {values[row, place]}, outside the vocabulary of "
            f"{vocab_size}: tokenise with this model's tokenizer"
        )


def check_vocabulary(name: str, size: int, target: int) -> None:
    """Raises InputError if a drafter was made for another vocabulary than the target's."""
    if size != target:
        raise InputError(
            f"{name} was made for a vocabulary of {size} and the target has {target}; "
            f"pass vocab_size={target}"
        )

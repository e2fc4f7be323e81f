"""Measures the acceptance vector of two models, for Sequoia.

It is measured over a given text, so one forward pass of each model does. Children are drawn as the
scheme draws them, and the rule's probabilities of taking them are averaged: nothing is drawn to
decide, so the variance is that of the draws alone.

W: children of a node.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jspec import _struct as struct
from jspec import sampling as samplings
from jspec._validate.arguments import check_integer
from jspec._validate.errors import InputError
from jspec.arrays.ragged import sequence
from jspec.protocols import CausalLM
from jspec.types import Frame, PyTree, Sampling
from jspec.verify.schemes import COUPLED, Scheme
from jspec.verify.tree_verifier import TreeVerifier


@struct.dataclass
class Trials:
    """The fate of W children at each token of a text."""

    child_probs: Float[Array, "B T W"]
    """The draft's probability of each child; 0 where no token was left to draw."""
    accept: Float[Array, "B T W"]
    """The probability that each child is taken if its earlier siblings were not."""
    kept: Float[Array, "B T W"]
    """The probability that the verifier goes to each child; of equal siblings, to the first."""
    target: Float[Array, "B T W"]
    """The target's probability of each child; 0 where no token was left to draw."""
    counted: Bool[Array, "B T"]
    """True at tokens of the text, False at padding."""


def measure(
    model: CausalLM,
    params: PyTree,
    draft: CausalLM,
    draft_params: PyTree,
    tokens: Int[Array, "B T"],
    lengths: Int[Array, " B"],
    *,
    width: int,
    sampling: Sampling | None,
    draft_sampling: Sampling | None = None,
    scheme: Scheme = COUPLED,
    key: jax.Array | int | None = None,
) -> Float[Array, " W"]:
    """Measures the acceptance vector: P(the child of each rank is the one that is kept).

    It is the mean over a text, which may be the target's own; what is missing to 1 is the
    probability that no child is kept. Sequoia's authors measure theirs so (Chen et al. 2024,
    section 4.1); here it serves every scheme that judges node by node. A pure function, compiled by
    whoever calls it.

    Args:
        model: the target, with its weights `params`.
        draft: the draft model, with its weights `draft_params`.
        tokens: the text, padded on the right.
        lengths: its tokens per row.
        width: W, children of a node.
        sampling: the target's; None is greedy.
        draft_sampling: the draft's own temperature and filters; None: the target's.
        scheme: how children are drawn and verified, see `jspec.schemes`.
        key: a random key or a seed, for random draws, which are `decode`'s in rows 0 .. B-1.

    Returns:
        One probability a rank, what `sequoia_tree.best_template` takes.

    Raises:
        InputError: if W is out of range, the scheme does not judge by node, or a key is missing.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from jspec.models.llama import Llama, LlamaConfig
        >>> model = Llama(LlamaConfig(8, 4, 4, 1, 1, 1, 4, 16))
        >>> text = jnp.array([[3, 1, 4, 1, 5]])
        >>> params = model.init(jax.random.key(0), text, text, jnp.ones((1, 5, 5), bool), None)
        >>> vector = measure(
        ...     model, params, model, params, text, jnp.array([5]), width=2, sampling=None
        ... )
        >>> vector.tolist()  # a model as its own draft: its first guess is always right
        [1.0, 0.0]
    """
    seen = trials(
        model, params, draft, draft_params, tokens, lengths, width=width, sampling=sampling,
        draft_sampling=draft_sampling, scheme=scheme, key=key,
    )  # fmt: skip
    total = jnp.where(seen.counted[..., None], seen.kept, 0.0).sum((0, 1))
    return total / jnp.maximum(seen.counted.sum(), 1)


def trials(
    model: CausalLM,
    params: PyTree,
    draft: CausalLM,
    draft_params: PyTree,
    tokens: Int[Array, "B T"],
    lengths: Int[Array, " B"],
    *,
    width: int,
    sampling: Sampling | None,
    draft_sampling: Sampling | None = None,
    scheme: Scheme = COUPLED,
    key: jax.Array | int | None = None,
) -> Trials:
    """Measures token by token what `measure` is the mean of. Arguments and errors as there."""
    check_integer("width", width, 1, draft.vocab_size, "the vocabulary")
    if not isinstance(scheme.verifier, TreeVerifier):
        raise InputError(
            f"{scheme.verifier!r} decides about whole paths, so that no child has a probability of "
            "its own; pass a scheme that judges node by node, such as jspec.schemes.RECURSIVE"
        )
    key = samplings.key_of(sampling, key)
    rule = scheme.verifier.rule
    batch, size = tokens.shape
    positions, causal = sequence(batch, size)
    keys = None
    if key is not None:
        key = jax.random.key(key) if isinstance(key, int) else key
        keys = samplings.row_keys(key, jnp.arange(batch))
    target = Sampling(temperature=0.0) if sampling is None else sampling
    target = jax.tree.map(lambda value: jnp.broadcast_to(jnp.asarray(value), batch), target)

    def score(model: CausalLM, params: PyTree) -> Float[Array, "B T V"]:
        return model.apply(params, tokens, positions, causal, None).logits

    def visit(
        target_logits: Float[Array, "B V"],
        draft_logits: Float[Array, "B V"],
        roots: Int[Array, " B"],
        positions: Int[Array, " B"],
    ):
        """Returns every row's token at one position as the root of a tree of depth 1."""
        frame_sampling = None if sampling is None else target
        frame = Frame(roots, positions, keys, frame_sampling, jnp.zeros(batch, bool))
        drawn = scheme.draw(draft_logits[:, None], draft_sampling, frame, 0, width)
        probs = samplings.probabilities(target_logits, target)
        noise = jnp.zeros_like(probs)
        if keys is not None:
            noise = samplings.gumbel(keys, positions, probs.shape[-1])
        q = None if drawn.q is None else drawn.q[:, 0]
        children, valid = drawn.tokens[:, 0], drawn.scores[:, 0] > -jnp.inf
        accept, _ = jax.vmap(rule)(probs, q, children, valid, noise)
        accept = jnp.where(valid, accept, 0.0)
        likely = jnp.where(valid, jnp.take_along_axis(probs, children, axis=1), 0.0)
        return drawn.child_probs[:, 0], accept, jax.vmap(_find_kept)(accept, children), likely

    columns = partial(jnp.moveaxis, source=1, destination=0)
    texts = score(model, params), score(draft, draft_params), tokens, positions
    # By position: all distributions of a text's draws at once would be W times its logits.
    by_position = jax.lax.map(lambda column: visit(*column), jax.tree.map(columns, texts))
    probabilities, accept, kept, likely = jax.tree.map(columns, by_position)
    return Trials(probabilities, accept, kept, likely, counted=positions < lengths[:, None])


def _find_kept(accept: Float[Array, " W"], children: Int[Array, " W"]) -> Float[Array, " W"]:
    """Returns the probability that each child is kept; of equal ones it is the first."""
    refused = jnp.cumprod(1 - accept)
    probs = accept * jnp.concatenate([jnp.ones_like(refused[:1]), refused[:-1]])
    first = (children[:, None] == children).argmax(-1)
    return jnp.zeros_like(probs).at[first].add(probs)

"""The text before the nodes of a tree: a row's text, and the drafted tokens on each path."""

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jspec import _struct as struct
from jspec._xla.manual_axes import vary
from jspec.arrays.ragged import append
from jspec.tree import paths
from jspec.types import Tree


@struct.dataclass
class Text:
    """The text of each row, with the count of each token."""

    tokens: Int[Array, "B text"]
    """Prompt and output; entries at or beyond the length are never read."""
    prompt_lengths: Int[Array, " B"]
    in_prompt: Int[Array, "B V"]
    """Counts of each token in the prompt."""
    in_output: Int[Array, "B V"]
    """Counts of each emitted token."""


@struct.dataclass
class History:
    """The tokens before each of N nodes' logits: prompt, output, and the node's own path.

    D is the depth of the tree.
    """

    text: Text
    lengths: Int[Array, " B"]
    """The number of tokens of `text`, the root the last of them."""
    drafted: Int[Array, "B N D"]
    """The drafted tokens from each node upwards, its own first; -1 where there is none."""
    end_tokens: Int[Array, "B X"]
    """The tokens that end a row; -1 fills up."""

    @property
    def num_output_tokens(self) -> Int[Array, "B N"]:
        """The number of tokens after the prompt, before each node's logits."""
        drafted = (self.drafted >= 0).sum(-1, dtype=jnp.int32)
        return (self.lengths - self.text.prompt_lengths)[:, None] + drafted

    def last(self, count: int) -> Int[Array, "B N count"]:
        """Returns the last tokens before each node's logits; -1 before the text begins."""
        depth = self.drafted.shape[-1]
        behind = jnp.arange(count, dtype=jnp.int32)[None, None]  # 0: the last token, the node's own
        path_length = (self.drafted >= 0).sum(-1, dtype=jnp.int32)[..., None]
        place = self.lengths[:, None, None] - 1 - (behind - path_length)
        tokens = self.text.tokens
        values = jax.vmap(lambda row, index: row[index])(
            tokens, jnp.clip(place, 0, tokens.shape[1] - 1)
        )
        before = jnp.where(place < 0, -1, values)
        near = jnp.pad(self.drafted, ((0, 0), (0, 0), (0, max(count - depth, 0))))[..., :count]
        return jnp.where(behind < path_length, near, before)[..., ::-1]

    def counts(self, vocab_size: int) -> Int[Array, "B N V"]:
        """Returns the count of each token before each node's logits. As large as the logits:
        where a change depends on a token's own counts alone, `by_counts` needs less.
        """
        before = (self.text.in_prompt + self.text.in_output)[:, None]
        hits = self.drafted[..., None] == jnp.arange(vocab_size)
        return before + hits.sum(-2, dtype=jnp.int32)

    def by_counts(
        self,
        logits: Float[Array, "B N V"],
        change: Callable[[Array, Array, Array], Array],
    ) -> Float[Array, "B N V"]:
        """Changes each token's logit by the token's count before it.

        Args:
            logits: of the nodes.
            change: from a logit, the token's occurrences in the prompt, and those in the output and
                on the node's path, to a logit. It gets arrays [B, N, V] or [B, 1, V], and for the
                drafted tokens once more [B, N, D].
        """
        prompt, output = self.text.in_prompt, self.text.in_output
        changed = change(logits, prompt[:, None], output[:, None])
        if not self.drafted.shape[-1]:
            return changed
        # The tables count what all nodes of a row have before them. A node's own path has a few
        # tokens more: only theirs is another count.
        path, size = self.drafted, logits.shape[-1]
        safe = jnp.maximum(path, 0)
        pick = jax.vmap(lambda row, index: row[index])
        repeats = (path[..., :, None] == path[..., None, :]).sum(-1, dtype=jnp.int32)
        right = change(
            jnp.take_along_axis(logits, safe, axis=-1),
            pick(prompt, safe),
            pick(output, safe) + repeats,
        )

        # A token that occurs twice on a path is written twice, with the same value.
        def write(node, tokens, values):
            return node.at[tokens].set(values, mode="drop")

        return jax.vmap(jax.vmap(write))(changed, jnp.where(path < 0, size, path), right)


def begin(prompt: Int[Array, "B T"], lengths: Int[Array, " B"], size: int, vocab_size: int) -> Text:
    """Returns the text before the first round."""
    mask = jnp.arange(prompt.shape[1])[None] < lengths[:, None]
    nothing = jnp.zeros((len(prompt), vocab_size), jnp.int32)
    return Text(
        tokens=jnp.pad(prompt, ((0, 0), (0, size))),
        prompt_lengths=lengths,
        in_prompt=_count(vary(nothing, prompt), prompt, mask),
        in_output=nothing,
    )


def go_on(
    text: Text,
    lengths: Int[Array, " B"],
    prompt: Int[Array, "B T"],
    counts: Int[Array, " B"],
) -> Text:
    """Returns the text before the first round of a call that goes on where another ended."""
    # The first token is known already.
    mask = (jnp.arange(prompt.shape[1]) > 0) & (jnp.arange(prompt.shape[1]) < counts[:, None])
    earlier = text.in_prompt + text.in_output
    return Text(
        tokens=append(text.tokens, lengths, prompt, counts),
        prompt_lengths=lengths + counts,
        in_prompt=_count(earlier, prompt, mask),
        in_output=jnp.zeros_like(text.in_output),
    )


def extend(
    text: Text,
    lengths: Int[Array, " B"],
    emitted: Int[Array, "B P"],
    counts: Int[Array, " B"],
) -> Text:
    """Returns the text with a round's tokens behind the first `lengths`."""
    mask = jnp.arange(emitted.shape[1])[None] < counts[:, None]
    return replace(
        text,
        tokens=append(text.tokens, lengths, emitted, counts),
        in_output=_count(text.in_output, emitted, mask),
    )


def of_nodes(
    text: Text, lengths: Int[Array, " B"], end_tokens: Int[Array, "B X"], tree: Tree
) -> History:
    """Returns the text before the nodes of a tree."""
    node = paths(tree.parents, tree.depth)[..., : tree.depth]
    token = jnp.take_along_axis(tree.tokens[:, None], jnp.maximum(node, 0), axis=2)
    return History(
        text=text,
        lengths=lengths,
        drafted=jnp.where(node > 0, token, -1),
        end_tokens=end_tokens,
    )


def _count(table: Int[Array, "B V"], tokens: Int[Array, "B P"], mask: Array) -> Int[Array, "B V"]:
    """Returns the table with the tokens that are there counted in.

    Mapped over rows, not indexed by them: a sharded batch then writes without communication.
    """
    return jax.vmap(lambda row, token, count: row.at[token].add(count))(
        table, tokens, mask.astype(jnp.int32)
    )

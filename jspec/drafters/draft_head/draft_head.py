"""The interface of draft heads to their drafters."""

from typing import Any, Protocol, runtime_checkable

from jaxtyping import Array, Bool, Float, Int

from jspec.memory import KVCache, TreeKV
from jspec.types import Output, PyTree


@runtime_checkable
class DraftHead(Protocol):
    """A small network over the target's hidden states: static, hashable and pure, as a CausalLM.

    It reads pairs: the target's state at position j, and the token that followed, at j + 1. From
    them it predicts the target's state at j + 1, and so the token at j + 2. A pair has its state's
    position. F is the width of the states it reads, which may be several side by side.
    """

    @property
    def vocab_size(self) -> int: ...

    @property
    def context(self) -> int | None: ...

    @property
    def hidden_size(self) -> int:
        """The width E of the states that the head predicts."""
        ...

    @property
    def features(self) -> int:
        """The width F of the target's states that the head reads."""
        ...

    def init_memory(self, batch: int, capacity: int) -> KVCache:
        """Returns an empty memory, for pairs."""
        ...

    def commit(
        self, memory: Any, tentative: Any, path: Int[Array, "B P"], counts: Int[Array, " B"], /
    ) -> Any:
        """As in `CausalLM`."""
        ...

    def until(self, memory: Any, lengths: Int[Array, " B"], /) -> Any:
        """Returns the memory with no more than so many pairs of each row."""
        ...

    def apply(
        self,
        params: PyTree,
        hidden: Float[Array, "B N F"] | Float[Array, "B N E"],
        tokens: Int[Array, "B N"] | None,
        positions: Int[Array, "B N"],
        mask: Bool[Array, "B N M+N"],
        memory: KVCache | None,
        nodes: TreeKV | None = None,
    ) -> Output:
        """Gives states and scores after N pairs of each row; memory, mask, nodes as in `CausalLM`.

        The states read may also be some [B, N, E] that the head itself predicted; a head that can
        go on without the token takes None for it.
        """
        ...

    def score(self, params: PyTree, hidden: Float[Array, "B N E"]) -> Float[Array, "B N V"]:
        """Returns the scores of states that the head predicted."""
        ...

    def inform(
        self, params: PyTree, logits: Float[Array, "B N V"], tokens: Int[Array, "B N"]
    ) -> Float[Array, "B N V"]:
        """Adds Lyanna's token info (Chen et al. 2026, section 5.1): scores, given the token before.

        The same scores where the states know that token.
        """
        ...

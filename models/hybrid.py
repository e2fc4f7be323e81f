"""Decoders in which most layers are recurrent, and the others attention."""

from collections.abc import Sequence
from itertools import chain
from typing import Any

from flax import struct
from jaxtyping import Array, Int

from jspec._validate.errors import InputError
from jspec.memory import KVCache, TreeKV, commit
from jspec.models import attention, recurrence
from jspec.models.llama import RotaryDecoder
from jspec.models.recurrence import RecurrentState, Updates


@struct.dataclass
class HybridMemory:
    """Keys and values of the layers of attention, and the states of the others."""

    attention: KVCache
    recurrent: tuple[RecurrentState, ...]


@struct.dataclass
class HybridTentative:
    """A tree's node states, for `Hybrid.commit`."""

    attention: TreeKV
    recurrent: tuple[Updates, ...]


class Hybrid(RotaryDecoder):
    """A decoder of recurrent layers and of attention: Qwen3-Next, Qwen3.5, Granite 4.

    A layer whose `Layer.mixer` is given has it in place of attention. In a tree the state after a
    node follows its own path, and `commit` computes the accepted path's; see
    `jspec.models.recurrence`. Such a memory cannot be cut back, so that the model has no `until`:
    it is a target, and no draft model.

    Args:
        config: its shape.
        dtype: dtype of activations and memory. Logits, softmax, norms and states are float32.
        param_dtype: dtype that weights are created in; loaded weights keep their own.
        kv_dtype: int8 or float8_e4m3fn, see `jspec.memory.Rounded`; None: `dtype`.
        attention_impl: how attention is computed; see `jspec.models.block_attention`.
        tp_size: devices that the columns of fused products are laid out for.
        scan_layers: True to scan layers that are alike; see `jspec.models.scanning`.
        taps: as in `jspec.models.Llama`.

    Raises:
        InputError: if no layer is attention, there is no such layer to tap, or `attention_impl` is
            a `jspec.models.BatchInvariant`.

    Example:
        >>> from jspec.models import DeltaNet, Hybrid, Layer, LlamaConfig, Rope
        >>> net = DeltaNet(num_key_heads=2, num_heads=4, key_dim=8, value_dim=8)
        >>> config = LlamaConfig(
        ...     vocab_size=100, hidden_size=16, intermediate_size=24, num_layers=2, num_heads=4,
        ...     num_kv_heads=2, head_dim=4, context=64,
        ...     layers=(Layer(None, mixer=net), Layer(Rope())),
        ... )
        >>> model = Hybrid(config)
        >>> model.init_memory(batch=3, capacity=32).recurrent[0].states.shape
        (3, 4, 8, 8)
        >>> hasattr(model, "until")
        False
    """

    def __post_init__(self):
        if all(layer.mixer is not None for layer in self.config.layers):
            raise InputError(
                "none of the layers is attention, and positions are counted there; make one of them"
            )
        if self.attention_impl.num_tokens > 1:
            raise InputError(
                f"attention_impl is {self.attention_impl} and the model has recurrent layers, "
                "which add along a tree in another order than along a text; leave it out"
            )
        super().__post_init__()

    def init_memory(self, batch: int, capacity: int) -> HybridMemory:
        """Returns empty keys and values of `capacity` tokens per row, and initial states."""
        ranges = list(chain.from_iterable(self.groups))
        mixers = [self.kinds[layers.start].mixer for layers in ranges]
        attending = [layers for layers, mixer in zip(ranges, mixers, strict=True) if mixer is None]
        return HybridMemory(
            self.empty_cache(batch, capacity, attending),
            tuple(
                recurrence.init(batch, mixer, len(layers), self.dtype)
                for layers, mixer in zip(ranges, mixers, strict=True)
                if mixer is not None
            ),
        )

    @staticmethod
    def commit(
        memory: HybridMemory,
        tentative: HybridTentative,
        path: Int[Array, "B P"],
        counts: Int[Array, " B"],
    ) -> HybridMemory:
        """Returns the memory after the first `counts` nodes of a path."""
        return HybridMemory(
            commit(memory.attention, tentative.attention, path, counts),
            tuple(
                recurrence.commit(state, updates, path, counts)
                for state, updates in zip(memory.recurrent, tentative.recurrent, strict=True)
            ),
        )

    def past_of(self, memory: HybridMemory | None, nodes: None, place: int) -> Any:
        """Returns what a range of layers holds of the committed tokens."""
        ranges = list(chain.from_iterable(self.groups))
        recurrent = [self.kinds[layers.start].mixer is not None for layers in ranges]
        number = sum(kind == recurrent[place] for kind in recurrent[:place])
        if not recurrent[place]:
            return attention.past(None if memory is None else memory.attention, nodes, number)
        return attention.Past(None, None) if memory is None else memory.recurrent[number]

    def tentative(
        self, added: Sequence[tuple[Any, ...]], memory: HybridMemory | None
    ) -> HybridTentative:
        pairs = [part for part in added if len(part) == 2]
        updates = tuple(part[0] for part in added if len(part) == 1)
        cache = None if memory is None else memory.attention
        return HybridTentative(super().tentative(pairs, cache), updates)

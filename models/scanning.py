"""Decoders whose layers run one after another, or alike ones as the steps of one scan."""

from collections.abc import Hashable, Sequence
from itertools import chain
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import traverse_util
from jaxtyping import Array, Float, Num

from jspec._xla import backend, native
from jspec._xla.manual_axes import vary
from jspec.memory import ROOM, KVCache, TreeKV, close, init
from jspec.models import attention, blocks, eight_bits, stacking
from jspec.models.decoder import Decoder, trace_once
from jspec.types import PyTree


def free() -> bool:
    """Returns whether scanned layers are as fast as others here.

    They compile sooner, since XLA sees one of them.
    """
    return jax.default_backend() == "cpu" and native.instruction_set() is not None


class Ran(NamedTuple):
    """The layers' output states."""

    x: Float[Array, "B N E"]
    tentative: PyTree
    """The layers' updates, for the memory to keep."""
    tapped: tuple[Float[Array, "B N E"], ...]
    """The states that entered the layers which were asked for."""


class LayeredDecoder(Decoder):
    """A decoder of equal layers, which may be scanned.

    With scanned layers a deep model compiles as quickly as a shallow one, and gives the same
    numbers. Their weights have an axis in front, see `jspec.models.stacking`. In the cache, the
    layers of a scan share one array, in which each head's layers are adjacent. A step of the
    scan reads its layer's slots there, and hands out the keys and values of the new tokens; they
    are committed behind the forward pass as always. So the cache is not part of what the scan
    changes, and is not copied.

    Args:
        config: its shape, a frozen dataclass.
        dtype: dtype of activations and cache. Logits, softmax and norms are float32.
        param_dtype: dtype that weights are created in; loaded weights keep their own.
        kv_dtype: int8 or float8_e4m3fn, see `jspec.memory.Rounded`; None: `dtype`.
        attention_impl: how attention is computed; see `jspec.models.block_attention`.
        tp_size: see `jspec.models.columns`.
        scan_layers: True to scan layers that are alike.
    """

    scan_layers: bool = False

    @property
    def kinds(self) -> tuple[Hashable, ...]:
        """The settings of each layer; layers that are alike are equal."""
        return (None,) * self.num_layers

    @property
    def groups(self) -> tuple[stacking.Group, ...]:
        """The layers that each scan runs over; a group of one layer is not scanned."""
        if self.scan_layers:
            return stacking.alike(self.kinds)
        return stacking.apart(self.num_layers)

    def keys_of(self, layer: int) -> int | None:
        """Returns the layer before whose keys and values a layer reads; None: it has its own.

        Layers that read others' come after all that have their own.
        """
        del layer
        return None

    def init_memory(self, batch: int, capacity: int) -> PyTree:
        """Returns empty keys and values of `capacity` tokens per row."""
        return self.empty_cache(batch, capacity, list(chain.from_iterable(self.groups)))

    def empty_cache(self, batch: int, capacity: int, ranges: Sequence[range]) -> KVCache:
        """Returns empty keys and values of ranges of layers, which share an array."""
        owners = [layers for layers in ranges if self.keys_of(layers.start) is None]
        sizes = [self.kept_sizes(layers.start) for layers in owners]
        room = ROOM if backend.platform() == "gpu" else 0
        parts = [
            init(
                *(
                    batch,
                    capacity + room,
                    1,
                    heads * len(layers),
                    dim,
                    self.memory_dtype,
                    value_dim,
                )
            )
            for layers, (heads, dim, value_dim) in zip(owners, sizes, strict=True)
        ]
        return KVCache(
            keys=tuple(part.keys[0] for part in parts),
            values=tuple(part.values[0] for part in parts),
            lengths=parts[0].lengths,
            room=room,
        )

    def through_layers(
        self,
        blocks: Sequence[nn.Module],
        x: Float[Array, "B N E"],
        arguments: Sequence[PyTree],
        memory: PyTree,
        nodes: TreeKV | None,
        taps: Sequence[int] = (),
        inputs: Float[Array, "L B N P"] | None = None,
    ) -> Ran:
        """Returns what the layers make of the states.

        Args:
            blocks: one for each layer, made with `parent=None`; called with the states, the
                arguments and the layer's past, it gives states, and what `tentative` gets.
            x: the states.
            arguments: arrays, or trees of them, that each block gets; the mask last.
            memory: of the committed tokens.
            nodes: the keys and values of nodes that were scored before.
            taps: layers whose inputs are handed out.
            inputs: what each layer gets of its own, last; None: nothing.
        """
        at_once = not self.scan_layers and self.attention_impl == attention.XLA
        memory = close(memory, at_once * attention.GPU_SCORES // self.config.num_heads)
        tapped, outputs = dict[int, Array](), list[tuple[Any, ...]]()
        for group in self.groups:
            pasts = [
                self._past(layers, memory, nodes, len(outputs) + phase, outputs)
                for phase, layers in enumerate(group)
            ]
            if len(group[0]) == 1:
                layer = group[0].start
                if layer in taps:
                    tapped[layer] = x
                extra = () if inputs is None else (inputs[layer],)
                new = self.apply_block(
                    blocks[layer], stacking.name(group[0]), x, *arguments, pasts[0], *extra
                )
                x, added = new[0], (new[1:],)
            else:
                x, added, entered = self._scan(blocks, group, x, arguments, pasts, taps, inputs)
                tapped |= entered
            outputs += added
        tentative = self.tentative(outputs, memory)
        return Ran(x, tentative, tuple(tapped[tap] for tap in taps))

    def past_of(self, memory: PyTree, nodes: TreeKV | None, place: int) -> Any:
        """Returns what a range of layers, the `place`-th, holds of tokens and nodes before."""
        return attention.past(memory, nodes, place)

    def _past(
        self,
        layers: range,
        memory: PyTree,
        nodes: TreeKV | None,
        place: int,
        outputs: Sequence[tuple[Any, ...]],
    ) -> Any:
        """Returns the `place`-th range of layers, or the layer whose keys they read."""
        source = self.keys_of(layers.start)
        if source is None:
            return self.past_of(memory, nodes, place)
        ranges = list(chain.from_iterable(self.groups))
        place = next(number for number, members in enumerate(ranges) if source in members)
        past = self.past_of(memory, nodes, place)._replace(own=outputs[place])
        of = ranges[place]
        return past if len(of) == 1 else past.of_layer(jnp.int32(of.index(source)), len(of))

    def tentative(self, added: Sequence[tuple[Any, ...]], memory: PyTree) -> PyTree:
        """Returns what `commit` gets, from what each range of layers gave."""
        pairs = [pair for pair in added if pair]
        in_slots = memory is not None and memory.behind is not None
        return TreeKV(tuple(k for k, _ in pairs), tuple(v for _, v in pairs), in_slots)

    def _scan(
        self,
        blocks: Sequence[nn.Module],
        group: stacking.Group,
        x: Float[Array, "B N E"],
        arguments: Sequence[PyTree],
        pasts: Sequence[Any],
        taps: Sequence[int],
        inputs: Float[Array, "L B N P"] | None,
    ) -> tuple[Array, list[tuple[Any, ...]], dict[int, Array]]:
        """Returns the states behind a group, what each of its ranges gives, and taps."""
        count = len(group[0])
        period = [blocks[layers.start] for layers in group]

        def own_of(layer: Array | int) -> tuple[Array, ...]:
            return () if inputs is None else (inputs[layer],)

        weights = [
            self._stack(block, layers, x, *arguments, past, *own_of(layers.start))
            for block, layers, past in zip(period, group, pasts, strict=True)
        ]
        inside = [tap for tap in taps if any(tap in layers for layers in group)]

        full, parts = zip(*(self._split_whole(x, stacks) for stacks in weights), strict=True)

        def run(carry, step):
            x, entered = carry
            number, parts = step
            added = []
            for n, (layers, block, past) in enumerate(zip(group, period, pasts, strict=True)):
                ones = {path: eight_bits.OneOf(stack, number) for path, stack in full[n].items()}
                params = traverse_util.unflatten_dict(parts[n] | ones)
                layer = layers.start + number * layers.step
                entered = {tap: jnp.where(tap == layer, x, old) for tap, old in entered.items()}
                reads = self.keys_of(layers.start) is not None  # the same layer's, in every step
                layer_past = past if reads else past.of_layer(number, count)
                x, *new = trace_once(block, params, x, *arguments, layer_past, *own_of(layer))
                added.append(tuple(new))
            return (x, entered), added

        begin = vary((x, {tap: jnp.zeros_like(x) for tap in inside}), arguments, pasts, weights)
        numbers = jnp.arange(count, dtype=jnp.int32)
        (x, entered), added = jax.lax.scan(run, begin, (numbers, parts))
        return x, jax.tree.map(_beside, added), entered

    def _split_whole(self, x: Float[Array, "B N E"], stacks: PyTree) -> tuple[PyTree, PyTree]:
        """Returns the weights of which the products take one layer themselves, and the other ones.

        XLA for a CPU would copy a layer's weights out of their stack before it multiplies.
        """
        flat: Any = traverse_util.flatten_dict(stacks)
        full = dict[eight_bits.Path, Array]()
        for path, stack in flat.items():
            *module, name = path
            weights = (*module, name.removesuffix(eight_bits.SUFFIX))
            if eight_bits.is_quantised(weights) and self._takes_layer(x, flat[weights]):
                full[path] = stack
        return full, {path: stack for path, stack in flat.items() if path not in full}

    def _takes_layer(self, x: Float[Array, "B N E"], weights: Num[Array, "L ..."]) -> bool:
        """Returns whether kernels take products by these layers."""
        if weights.dtype == jnp.uint8:
            if eight_bits.rounds_states(self.param_dtype):
                return native.takes_rounded_product(x, weights)
            kind = blocks.FORMATS[eight_bits.dtype_name(self.param_dtype)]
            return native.takes_block_product(x, weights, blocks.SIZES[kind])
        if not native.takes_product(x, weights):  # float8, which JAX promotes to nothing, is not
            return False
        return jnp.promote_types(weights.dtype, self.dtype) == jnp.dtype(self.dtype)

    def _stack(self, block: nn.Module, layers: range, *arguments: Any) -> PyTree:
        """Returns the weights of layers that are scanned, made at random where there are none."""

        def make(key: Array) -> PyTree:
            return jax.vmap(lambda layer_key: block.init(layer_key, *arguments)["params"])(
                jax.random.split(key, len(layers))
            )

        name = stacking.name(layers)
        if self.is_initializing():
            return self.param(name, make)
        return self.variables["params"][name]


def _beside(new: Num[Array, "L B H N D"]) -> Num[Array, "B H*L N D"]:
    """Returns a head's layers side by side, as in the cache."""
    layers, batch, heads, count, dim = new.shape
    return new.transpose(1, 2, 0, 3, 4).reshape(batch, heads * layers, count, dim)

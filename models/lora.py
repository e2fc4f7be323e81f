"""LoRA (Hu et al. 2021, arXiv 2106.09685): adapters of one base model, chosen row by row.

An adapter adds B A x to products W x of the base. All adapters of a product are one pair of
matrices, the A's stacked and the B's side by side; of A x a row keeps what its own adapter made. So
rows of a batch have different adapters in one program, and the choice is data. Files are those of
PEFT.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.core import Tracer
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from jspec._validate.errors import InputError
from jspec.models import hub, stacking
from jspec.models.huggingface import shards
from jspec.models.huggingface.config_json import read as read_settings
from jspec.models.huggingface.families import Family
from jspec.models.huggingface.weights import Weight, list_names
from jspec.models.linear import product
from jspec.types import Output, PyTree

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_TENSOR = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight")
_REFUSED = {
    "use_dora": "DoRA's magnitudes",
    "modules_to_save": "whole modules next to the adapter",
    "layer_replication": "layers that replace others",
    "alora_invocation_tokens": "an adapter that a token switches on",
    "use_qalora": "pooled inputs",
    "use_bdlora": "matrices of blocks on the diagonal",
    "velora_config": "VeLoRA",
    "monteclora_config": "sampled adapters",
    "arrow_config": "a choice of adapters for each token",
    "kasa_config": "KaSA",
    "target_parameters": "adapters of tensors that are not Linear, such as experts",
}
_INITS = (True, False, "gaussian", "eva", "orthogonal")
"""Values of `init_lora_weights` that leave the base's weights as they are."""


@struct.dataclass
class RowAdapters:
    """The adapters of one product.

    Axes: R the ranks of all adapters together, I and O inputs and outputs, L stacked layers.
    """

    down: Float[Array, "*L R I"]
    up: Float[Array, "*L O R"]
    owner: Int[Array, "*L R"]
    """The adapter, from 1 on, that each rank is of."""
    ids: Int[Array, "..."] | None = None
    """[B, N] or [B, 1], in a scan with the axis of layers: the adapter of each token; 0: none."""

    def __call__(self, x: Float[Array, "B N I"]) -> Float[Array, "B N O"]:
        """Returns what is added to the product of x."""
        assert self.ids is not None, "made by `LoRAModel.apply`"
        inner = product(x, self.down)
        mask = self.ids[..., None] == self.owner
        # What other adapters made of x is left out, whatever it is.
        return product(jnp.where(mask, inner, 0), self.up)


@struct.dataclass
class LoRAMemory:
    """The base model's memory, and which adapter each row was read with."""

    base: PyTree
    ids: Int[Array, " B"]


@dataclass(frozen=True)
class LoRAModel:
    """A model with adapters, of which each row has one or none. `jspec.models.load` makes it.

    Its params have, alongside the base's weights, `lora` and `ids`; `choose` sets the latter. What
    a row was read with stays in its memory, so that rows of an `Engine` come and go with their
    adapters, and only what reads a prompt has to choose.

    Args:
        base: the model.
        names: of the adapters; the first has the number 1.
    """

    base: Any
    names: tuple[str, ...]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "base":  # a copy that has no field yet
            raise AttributeError(name)
        return getattr(self.base, name)

    @property
    def vocab_size(self) -> int:
        """V of the base."""
        return self.base.vocab_size

    @property
    def context(self) -> int | None:
        """The number of positions that the base can place."""
        return self.base.context

    def clone(self, **changes: Any) -> "LoRAModel":
        """Returns the same with a base that differs in something."""
        return replace(self, base=self.base.clone(**changes))

    def choose(
        self, params: PyTree, adapters: str | Sequence[str | int | None] | ArrayLike
    ) -> PyTree:
        """Returns the params with an adapter for each row.

        Args:
            params: of `jspec.models.load(.., adapters=)`.
            adapters: [B] names, None for none; or their numbers from 1 on, 0 for none. An array may
                be traced, and is clipped then. A single one is that of all rows.

        Raises:
            InputError: if there is no such adapter.
        """
        count = len(self.names)
        ids: Any = adapters
        if isinstance(adapters, str):
            ids = self._number(adapters)
        elif isinstance(adapters, Sequence):
            ids = [
                adapter if _is_number(adapter) else self._number(adapter) for adapter in adapters
            ]
        if isinstance(ids, Tracer):
            ids = jnp.clip(ids, 0, count).astype(jnp.int32)
        else:
            numbers = np.asarray(ids)
            if numbers.ndim > 1 or numbers.dtype.kind not in "iu":
                raise InputError(
                    f"adapters has shape {numbers.shape} and dtype {numbers.dtype}; pass one "
                    "per row"
                )
            if (wrong := numbers[(numbers < 0) | (numbers > count)]).size:
                raise InputError(
                    f"adapters holds {wrong[0]}; pass 0 for none, or a number in 1 .. {count}"
                )
            ids = numbers.astype(np.int32)  # on the host: nothing is compiled for it
        return {**params, "ids": ids}

    def _number(self, name: Any) -> int:
        if name not in (names := (None, *self.names)):
            raise InputError(
                f"adapters holds {name!r:.80}; pass None for none, or one of "
                f"{', '.join(self.names)}"
            )
        return names.index(name)

    def init_memory(self, batch: int, capacity: int) -> LoRAMemory:
        """Returns the base's memory; no row has an adapter."""
        return LoRAMemory(self.base.init_memory(batch, capacity), jnp.zeros(batch, jnp.int32))

    def apply(
        self,
        params: PyTree,
        tokens: Int[Array, "B N"],
        positions: Int[Array, "B N"],
        mask: Bool[Array, "B N M+N"],
        memory: LoRAMemory | None,
        nodes: PyTree = None,
    ) -> Output:
        """Returns the base's forward pass with each row's adapter.

        Raises:
            InputError: if adapters were chosen for another number of rows, or nodes are scored
                level by level, as in a draft model.
        """
        if nodes is not None:
            raise InputError(
                "a model with adapters is not a draft model; load it without, or merge an adapter "
                "into its weights"
            )
        batch, ids = len(tokens), params["ids"]
        if ids is None:
            ids = jnp.zeros(batch, jnp.int32) if memory is None else memory.ids
        if ids.ndim == 0:
            ids = jnp.broadcast_to(ids, (batch,))
        if ids.shape != (batch,):
            raise InputError(
                f"adapters were chosen for {len(ids)} rows and there are {batch}; choose one for "
                "each, or leave it out where rows go on"
            )
        weights = {"params": _with_adapters(params, ids[:, None])}
        past = None if memory is None else memory.base
        output = self.base.apply(weights, tokens, positions, mask, past)
        return output.replace(tentative=LoRAMemory(output.tentative, ids))

    def commit(
        self,
        memory: LoRAMemory,
        tentative: LoRAMemory,
        path: Int[Array, "B P"],
        counts: Int[Array, " B"],
    ) -> LoRAMemory:
        """Returns the base's, and the adapter that the rows were scored with."""
        return LoRAMemory(
            self.base.commit(memory.base, tentative.base, path, counts), tentative.ids
        )

    def until(self, memory: LoRAMemory, lengths: Int[Array, " B"]) -> LoRAMemory:
        """Returns the base's."""
        return LoRAMemory(self.base.until(memory.base, lengths), memory.ids)


def _with_adapters(params: PyTree, ids: Int[Array, "B _"]) -> PyTree:
    """Returns the base's weights with the adapters alongside those that they add to."""
    weights = dict(params["params"])
    for name, kinds in params["lora"].items():
        layers = stacking.layers_of(name)
        layer_ids = ids if layers is None else jnp.broadcast_to(ids, (len(layers), *ids.shape))
        for kind, adapter in kinds.items():
            adapted = {**weights[name][kind], "adapters": adapter.replace(ids=layer_ids)}
            weights[name] = {**weights[name], kind: adapted}
    return weights


def _is_number(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


class _Module(NamedTuple):
    """A product of the base as PEFT names it."""

    path: tuple[str, ...]
    """Of ours."""
    begin: int
    """Its first output among ours."""
    inputs: int
    outputs: int


class _Part(NamedTuple):
    """An adapter of one module."""

    module: _Module
    down: np.ndarray
    up: np.ndarray
    """Scaled."""


def adapt(
    model: Any,
    params: PyTree,
    family: Family,
    table: Sequence[Weight],
    adapters: Mapping[str, str | Path],
) -> tuple[LoRAModel, PyTree]:
    """Returns a model with adapters, folders or hub ids by name, alongside its weights."""
    if not hasattr(model, "until"):
        raise InputError(
            f"adapters on a {type(model).__name__}, whose recurrent states cannot be cut back, are "
            "not implemented; merge the adapter into the weights"
        )
    modules = _modules(table)
    adapter_parts = [
        _read(hub.folder(path, (CONFIG, WEIGHTS)), family, modules) for path in adapters.values()
    ]
    layers: dict[str, Any] = {}
    for kind in sorted({part.module.path[1:] for parts in adapter_parts for part in parts}):
        # As wide in each layer, so that layers can be stacked.
        ranks = [_most(parts, kind) for parts in adapter_parts]
        for path in sorted({module.path for module in modules.values()}):
            if path[1:] == kind:
                layer_modules = [module for module in modules.values() if module.path == path]
                joint = _join(layer_modules, adapter_parts, ranks, model.dtype)
                layers.setdefault(path[0], {})[kind[0]] = joint
    lora = stacking.stack_layers({"params": layers}, model.groups)["params"]
    return LoRAModel(model, tuple(adapters)), {**params, "lora": lora, "ids": None}


def of_base(params: PyTree) -> PyTree:
    """Returns the base's weights alone; params of another model as they are."""
    if not isinstance(params, Mapping) or "lora" not in params:
        return params
    return {name: part for name, part in params.items() if name not in ("lora", "ids")}


def _modules(table: Sequence[Weight]) -> dict[str, _Module]:
    """Returns the products of the layers, by their names in Hugging Face's layout."""
    modules = {}
    for weight in table:
        *path, last = weight.path
        if last != "weight" or len(path) != 2 or weight.groups is not None:
            continue  # tables, vectors, and experts, whose products are not `Linear`
        begin = 0
        for name, shape in zip(weight.names, weight.shapes, strict=True):
            outputs, inputs = reversed(shape) if weight.transposed else shape
            modules[name.removesuffix(".weight")] = _Module(tuple(path), begin, inputs, outputs)
            begin += outputs
    return modules


def _read(folder: Path, family: Family, modules: Mapping[str, _Module]) -> list[_Part]:
    """Returns the parts of one adapter."""
    scale = _scale(folder)
    if not (folder / WEIGHTS).is_file():
        raise InputError(f"{folder} has no {WEIGHTS}; name a folder that PEFT saved")
    files = shards.open_file(folder / WEIGHTS)
    adapts = {tensor: _TENSOR.fullmatch(tensor) for tensor in files.files}
    weights = {f"{match[1]}.weight" for match in adapts.values() if match}
    ours = {theirs: name for name, theirs in family.names(weights).items()}
    halves: dict[str, dict[str, str]] = {}
    rest = [tensor for tensor, match in adapts.items() if match is None]
    for tensor, match in sorted(adapts.items()):
        if match is None or re.fullmatch(family.buffers, weight := f"{match[1]}.weight"):
            continue
        if ours.get(weight, weight).removesuffix(".weight") not in modules:
            rest.append(tensor)
        halves.setdefault(match[1], {})[match[2]] = tensor
    if rest or not halves:
        raise InputError(
            f"{folder} adapts {list_names(rest, 'tensor') if rest else 'nothing'}, for which this "
            "model has no place; jspec adapts the products of attention and MLP alone"
        )
    parts = []
    for name, pair in halves.items():
        module = modules[ours[f"{name}.weight"].removesuffix(".weight")]
        if missing := {"A", "B"} - set(pair):
            raise InputError(f"{folder} lacks lora_{min(missing)} of {name}; save it again")
        shapes = [files.shape(pair[half]) for half in "AB"]
        rank = max(shapes[0][0], 1) if shapes[0] else 1
        model_shapes = [(rank, module.inputs), (module.outputs, rank)]
        if shapes != model_shapes:
            raise InputError(
                f"{folder} has lora_A {list(shapes[0])} and lora_B {list(shapes[1])} of {name}, "
                f"and this model takes {list(model_shapes[0])} and {list(model_shapes[1])}; it was "
                "trained for another base, so load that one"
            )
        down, up = (files.read(pair[half]).astype(np.float32) for half in "AB")
        if not (np.isfinite(down).all() and np.isfinite(up).all()):
            raise InputError(
                f"{folder} holds no numbers in {name} (NaN or infinity); train it again"
            )
        parts.append(_Part(module, down, up * scale(name, rank)))
    return parts


def _scale(folder: Path) -> Callable[[str, int], float]:
    """Returns what an adapter is multiplied with, by its module and its rank."""
    if not (folder / CONFIG).is_file():
        raise InputError(f"{folder} has no {CONFIG}; name a folder that PEFT saved")
    settings = read_settings(folder / CONFIG)
    kind = settings.get("peft_type", "LORA")
    if kind != "LORA":
        raise InputError(f"{folder} is a {kind!r:.40} adapter; jspec implements LORA")
    for name, what in _REFUSED.items():
        if settings.get(name):
            raise InputError(
                f"{folder} has {name}: {what}, which jspec does not implement; merge it into the "
                "base's weights"
            )
    if (bias := settings.get("bias", "none")) != "none":
        raise InputError(
            f"{folder} has bias = {bias!r:.40}, which jspec does not implement; merge it into the "
            "base's weights"
        )
    if (init := settings.get("init_lora_weights", True)) not in _INITS:
        raise InputError(
            f"{folder} has init_lora_weights = {init!r:.40}, which changes the base's weights; "
            "save it again as plain LoRA, by path_initial_model_for_weight_conversion of PEFT"
        )
    alpha = settings.number("lora_alpha", 8)
    root = bool(settings.get("use_rslora"))
    patterns = settings.part("alpha_pattern")
    try:
        alphas = [(re.compile(rf"(.*\.)?({text})"), text) for text in patterns.values]
    except re.error as error:
        raise InputError(
            f"{patterns.source} has {error.pattern!r:.60}, which is not a regular expression "
            f"({error}); save the adapter again"
        ) from None

    def scale(name: str, rank: int) -> float:
        matches = (key for pattern, key in alphas if pattern.fullmatch(name))
        return patterns.number(next(matches, ""), alpha) / (math.sqrt(rank) if root else rank)

    return scale


def _most(parts: Sequence[_Part], kind: tuple[str, ...]) -> int:
    """Returns the most ranks that an adapter has in a product of this kind, of all layers."""
    ranks: dict[tuple[str, ...], int] = {}
    for part in parts:
        if part.module.path[1:] == kind:
            ranks[part.module.path] = ranks.get(part.module.path, 0) + len(part.down)
    return max(ranks.values(), default=0)


def _join(
    modules: Sequence[_Module],
    adapters: Sequence[Sequence[_Part]],
    ranks: Sequence[int],
    dtype: Any,
) -> RowAdapters:
    """Returns all adapters of one product of ours, of so many ranks: zeros fill up."""
    total = sum(ranks)
    down = np.zeros((total, modules[0].inputs), np.float32)
    up = np.zeros((max(module.begin + module.outputs for module in modules), total), np.float32)
    for parts, begin in zip(adapters, np.cumsum([0, *ranks]).tolist(), strict=False):
        for part in parts:
            if part.module.path == modules[0].path:
                place = slice(begin, begin := begin + len(part.down))
                down[place] = part.down
                up[part.module.begin : part.module.begin + part.module.outputs, place] = part.up
    owner = np.repeat(np.arange(1, len(ranks) + 1, dtype=np.int32), ranks)
    return RowAdapters(jnp.asarray(down, dtype), jnp.asarray(up, dtype), jnp.asarray(owner))

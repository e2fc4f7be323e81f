"""The config.json of published block heads: their layouts and differences.

The network is the same in all. What its tensors do not tell is in the config, in places of its own:

    z-lab, JetSpec  `dflash_config`; slot j is of the token at its own place; layers by their output
    deepseek-ai     at the top; slot j is of the token after its place; layers by their output
    speculators     at the top, the layers' shape in `transformer_layer_config`; slots by
                    `sample_from_anchor`; layers by their place in `hidden_states`, as taps are
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from jspec._validate.errors import InputError
from jspec.models.heads.block import BlockConfig, block_taps
from jspec.models.huggingface import config_json, llama
from jspec.models.huggingface.config_json import Settings

_STRANGE = ("attention_sink_bias", "final_logit_softcapping", "layer_adapter", "embedding_scale")
"""Fields of variants that are another network."""


@dataclass(frozen=True)
class _Layout:
    """The parts of a config that are in another place in every layout."""

    layers: Settings
    head: Settings
    markov: Settings
    taps: tuple[int, ...]
    first_slot: int
    causal: bool = False
    copies: Mapping[str, str] | None = None


def read(
    folder: Path, tensors: Mapping[str, Any], model: Any
) -> tuple[BlockConfig, Mapping[str, str]]:
    """Returns the config of a published block head, and its copies of the target's."""
    if not (folder / "config.json").is_file():
        raise InputError(f"{folder} has no config.json; download the head again, with its config")
    if (folder / "adapter").is_dir():
        raise InputError(
            f"{folder} has a folder adapter, which jspec does not implement; take a head without"
        )
    settings = config_json.read(folder / "config.json")
    layout = _layout(settings, tensors, model)
    layers, rank = layout.layers, _rank(layout.markov)
    _check(layers, layout.head, model)
    shape = replace(
        llama.qwen3(layers),
        tied=False,
        context=model.context,
        qk_norm="layers.0.self_attn.q_norm.weight" in tensors,
        qkv_bias="layers.0.self_attn.q_proj.bias" in tensors,
        output_bias="layers.0.self_attn.o_proj.bias" in tensors,
    )
    width = 0
    if layout.markov.flag("enable_confidence_head", False):
        with_token = layout.markov.flag("confidence_head_with_markov", False)
        if with_token and not rank:
            raise InputError(
                f"{layout.markov.source} has a confidence head that reads a Markov head and "
                "markov_rank = 0; correct one of them"
            )
        width = shape.hidden_size + (rank if with_token else 0)
    config = BlockConfig(
        **{**asdict(shape), "rope_scaling": shape.rope_scaling},
        taps=_check_taps(layout.taps, settings.source),
        block_size=_block_size(layout.head, settings),
        first_slot=layout.first_slot,
        causal=layout.causal,
        mask_token=_mask_token(layout.head, model),
        markov_rank=rank,
        confidence_width=width,
    )
    return config, layout.copies or {}


def _layout(settings: Settings, tensors: Mapping[str, Any], model: Any) -> _Layout:
    """Returns the parts of the config, wherever its layout has them."""
    names = " ".join(map(str, settings.get("architectures", [])))
    if settings.get("speculators_model_type") is not None:
        kind = settings.choice("speculators_model_type", ["dflash", "dspark"], None)
        from_anchor = settings.flag("sample_from_anchor", kind == "dspark")
        return _Layout(
            layers=settings.part("transformer_layer_config"),
            head=settings,
            markov=settings,
            taps=_numbers(settings, "aux_hidden_state_layer_ids"),
            first_slot=0 if from_anchor else 1,
            copies={"embed_tokens.weight": "embed"},
        )
    inner = settings.part("dflash_config")
    kind = inner.choice("projector_type", ["dflash", "dspark"], "dflash")
    if "DSpark" in names or settings.get("target_layer_ids") is not None or kind == "dspark":
        head = settings if settings.get("target_layer_ids") is not None else inner
        return _Layout(
            layers=settings,
            head=head,
            markov=head,
            taps=_after(_numbers(head, "target_layer_ids")),
            first_slot=0,
            copies={"embed_tokens.weight": "embed", "lm_head.weight": "head"},
        )
    inner.choice("draft_shift", [False], False)
    taps = block_taps(model.config.num_layers, settings.size("num_hidden_layers"))
    if inner.get("target_layer_ids") is not None:
        taps = _after(_numbers(inner, "target_layer_ids"))
    return _Layout(
        layers=settings,
        head=inner,
        markov=Settings({}, inner.source),
        taps=taps,
        first_slot=1,
        causal=inner.flag("causal_head", False),
    )


def _numbers(settings: Settings, name: str) -> tuple[int, ...]:
    values = settings.get(name)
    is_valid = isinstance(values, list) and all(type(value) is int for value in values)
    if not values or not is_valid:
        raise InputError(
            f"{settings.source} has {name} = {values!r}; it has to be a list of layers' numbers"
        )
    return tuple(values)


def _after(outputs: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the input layers (taps) of output layers; -1 is the embedding."""
    return tuple(number + 1 for number in outputs)


def _check_taps(taps: tuple[int, ...], source: str) -> tuple[int, ...]:
    if list(taps) != sorted(set(taps)):
        raise InputError(f"{source} reads layers {list(taps)}, which do not rise; correct them")
    return taps


def _rank(settings: Settings) -> int:
    rank = settings.get("markov_rank", 0)
    if type(rank) is not int or rank < 0:
        raise InputError(
            f"{settings.source} has markov_rank = {rank!r}; it has to be an integer of at least 0"
        )
    if rank:
        settings.choice("markov_head_type", ["vanilla"], "vanilla")
    return rank


def _block_size(head: Settings, settings: Settings) -> int:
    size = head.size("block_size", settings.get("block_size"))
    if size < 2:
        raise InputError(f"{head.source} has block_size = {size}; a block has at least 2 slots")
    return size


def _mask_token(head: Settings, model: Any) -> int:
    token = head.get("mask_token_id")
    if type(token) is not int or not 0 <= token < model.vocab_size:
        raise InputError(
            f"{head.source} has mask_token_id = {token!r} and the target's tokens are 0 .. "
            f"{model.vocab_size - 1}; load the target that the head was trained for"
        )
    return token


def _check(layers: Settings, head: Settings, model: Any) -> None:
    """Raises InputError for other networks, and for a target that is known to be another."""
    layers.choice("model_type", ["qwen3", "llama"], "qwen3")
    for part in (layers, head):
        part.choice("use_swa", [False], False)
        part.choice("is_neox_style", [True], True)
        for name in _STRANGE:
            part.choice(name, [None, False], None)
    if "sliding_attention" in layers.get("layer_types", []):
        raise InputError(
            f"{layers.source} has a layer of type 'sliding_attention', of which published heads "
            "disagree what it sees; take a head of full attention"
        )
    num_layers = layers.get("num_target_layers", head.get("num_target_layers"))
    if num_layers is not None and num_layers != model.config.num_layers:
        raise InputError(
            f"{layers.source} is of a head for a target of {num_layers} layers and this one has "
            f"{model.config.num_layers}; load the target that the head was trained for"
        )
    width = head.get("target_hidden_size", layers.size("hidden_size"))
    for size in (width, layers.size("hidden_size")):
        if size != model.hidden_size:
            raise InputError(
                f"{layers.source} is of a head for states {size} wide and the target's are "
                f"{model.hidden_size}; load the target that the head was trained for"
            )

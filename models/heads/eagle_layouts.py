"""config.json of published EAGLE-3, EAGLE-3.1 and EAGLE-4 heads.

The layouts are those that vLLM, SGLang, speculators and NeMo AutoModel read and write. EAGLE-4 is
known by its architecture, `LlamaForCausalLMEagle4`; its fields and tensors are those that the
package eagle-harness 0.1.3 reads. A field of EAGLE-4 that is not known here is refused, as there.
"""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from jspec._validate.errors import InputError
from jspec.models.heads.eagle3 import Eagle3Config
from jspec.models.huggingface import config_json, llama
from jspec.models.huggingface.config_json import Settings
from jspec.models.llama import Layer, LlamaConfig

EAGLE4 = "LlamaForCausalLMEagle4"
_TAPS = "eagle_aux_hidden_state_layer_ids"
_FIXED = {
    "use_aux_hidden_state": ([True], True),
    "attn_norm": ([False], False),
    "enable_post_mlp_norm": ([False], False),
    "enable_moe": ([False], False),
    "enable_2hs": ([False], False),
    "enable_defa": ([False], False),
    "input_fuse_type": (["concat"], "concat"),
    "use_rope": ([True], True),
    "position_embedding_type": (["rope"], "rope"),
    "partial_rotary_factor": ([1, 1.0], 1),
    "rope_is_neox_style": ([True], True),
    "parallel_drafting": ([False], False),
}
"""Fields of other networks: what is implemented, and what an absent one means."""
_FLAGS = {
    "fc_norm": ("fc_norm", "enable_fc_norm"),
    "norm_before_fc": ("norm_before_fc",),
    "norm_before_residual": ("norm_before_residual",),
    "norm_output": ("norm_output",),
}
"""The flags of our config, and what files call them."""
_STANDARD = """
architectures attention_bias attention_dropout bias bos_token_id draft_vocab_size dtype eagle_config
efficient_lm_head_config eos_token_id head_dim hidden_act hidden_size initializer_range
intermediate_size layer_types max_position_embeddings max_window_layers mlp_bias model_type
num_attention_heads num_aux_hidden_states num_hidden_layers num_key_value_heads pad_token_id
pretraining_tp rms_norm_eps rope_interleave rope_parameters rope_scaling rope_theta
share_draft_embedding_from_target sliding_window target_hidden_size tie_word_embeddings torch_dtype
transformers_version use_cache use_sliding_window vocab_size
"""
"""Fields of EAGLE-4 that are read here, or that change nothing of what a head computes."""


def shape(folder: Path, model: Any) -> LlamaConfig:
    """Returns config.json of an EAGLE head: one layer of the Llama family."""
    if not (folder / "config.json").is_file():
        raise InputError(f"{folder} has no config.json; download the head again, with its config")
    config = llama.llama(_layer(config_json.read(folder / "config.json")))
    # Angles are computed, so a head goes on beyond the positions it was trained on, as it does in
    # the authors' code; `tied` is about a head that it does not have.
    return replace(config, num_layers=1, tied=False, context=model.context)


def read(folder: Path, model: Any, qkv_bias: bool, draft_tokens: int) -> Eagle3Config:
    """Returns the config of an EAGLE-3, EAGLE-3.1 or EAGLE-4 head."""
    layer = shape(folder, model)
    settings = config_json.read(folder / "config.json")
    inner = settings.part("eagle_config")
    parts = (settings, inner, _layer(settings))
    is_fourth = EAGLE4 in settings.get("architectures", [])
    if is_fourth:
        _check_fields(settings)
    for part in parts:
        for name, (allowed, absent) in _FIXED.items():
            part.choice(name, allowed, absent)
    flags: dict[str, Any] = {
        ours: any(part.flag(name, False) for part in parts for name in names)
        for ours, names in _FLAGS.items()
    }
    rank, count = _candidates(settings)
    extra: dict[str, Any] = {"rope_scaling": layer.rope_scaling, "qkv_bias": qkv_bias}
    config = Eagle3Config(
        **asdict(layer) | extra | flags,
        taps=_taps(settings, inner, model.config.num_layers, is_fourth),
        draft_tokens=draft_tokens,
        candidate_rank=rank,
        num_candidates=count,
    )
    window = _window(_layer(settings), alone=is_fourth)
    return replace(config, layers=(Layer(config.rope, window),) if window else ())


def _layer(settings: Settings) -> Settings:
    """Returns the fields of the layer, which speculators has in a place of its own."""
    nested = settings.part("transformer_layer_config")
    return nested if nested.values else settings


def _check_fields(settings: Settings) -> None:
    fields = {*_STANDARD.split(), *_FIXED, *(name for names in _FLAGS.values() for name in names)}
    unknown = sorted(name for name in settings.values if name not in fields and name[:1] != "_")
    if unknown:
        raise InputError(
            f"{settings.source} has the field {unknown[0]!r}, which an EAGLE-4 head of jspec does "
            "not know; take a head without it"
        )


def _taps(settings: Settings, inner: Settings, num_layers: int, is_fourth: bool) -> tuple[int, ...]:
    """Returns the input layers; EAGLE-4 names output layers."""
    layers = inner.get(_TAPS) or settings.get(_TAPS)
    if layers is None:
        # As the authors tap them: early, in the middle, late.
        return (2, num_layers // 2, num_layers - 3)
    if not isinstance(layers, list) or not all(
        type(layer) is int and layer >= 0 for layer in layers
    ):
        raise InputError(
            f"{settings.source} has {_TAPS} = {layers!r:.60}; it has to be layer numbers"
        )
    return tuple(layer + is_fourth for layer in layers)


def _window(layer: Settings, alone: bool) -> int | None:
    """Returns the tokens that one sees, itself among them; None: all."""
    kinds = layer.get("layer_types")
    slides = llama.kinds(layer, [alone and layer.get("sliding_window") is not None])[0]
    if kinds is None:
        slides = layer.flag("use_sliding_window", slides) and (alone or slides)
    return layer.size("sliding_window") if slides else None


def _candidates(settings: Settings) -> tuple[int, int]:
    """Returns rank and number of the candidates; 0 and 0: all tokens are scored."""
    head = settings.part("efficient_lm_head_config")
    if not head.values:
        return 0, 0
    head.choice("type", ["low_rank", "weighted_low_rank"], None)
    if unknown := sorted(set(head.values) - {"type", "rank", "num_candidates", "smooth_factor"}):
        raise InputError(f"{head.source} has the field {unknown[0]!r}, which is not known")
    return head.size("rank"), head.size("num_candidates")

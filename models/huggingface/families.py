"""The architectures that can be loaded: one row each."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from jspec._validate.errors import InputError
from jspec.models.huggingface import (
    deepseek,
    gemma,
    gemma4,
    gpt2,
    gpt_neox,
    gpt_oss,
    hybrids,
    llama,
    mtp_tensors,
    opt,
    others,
    phi3,
    pictures,
    routed,
)
from jspec.models.huggingface.config_json import Settings
from jspec.models.huggingface.mtp_tensors import MTPLayout
from jspec.models.huggingface.weights import Weight
from jspec.models.hybrid import Hybrid
from jspec.models.learned_positions import LearnedPositionDecoder
from jspec.models.llama import Llama
from jspec.models.neox import GPTNeoX

HEAD = "lm_head.weight"


@dataclass(frozen=True)
class Family:
    """The way from one architecture of Hugging Face to one of ours."""

    architecture: str
    """Its name in config.json's `architectures`."""
    model_type: str
    """Its name in config.json's `model_type`, which decides where `architectures` is absent."""
    parse: Callable[[Settings], Any]
    """Makes our config from config.json."""
    build: Callable[..., Any]
    """Makes our module from our config, dtype and param_dtype."""
    weights: Callable[[Any], Iterator[Weight]]
    """Makes the table of weights from our config."""
    base: str = "model."
    """Prefix of the tensors below the head; checkpoints of the bare decoder leave it out."""
    buffers: str = r".*\.rotary_emb\.inv_freq"
    """Tensors of some checkpoints that are not weights, as a regular expression."""
    extra_layers: bool = False
    """True where layers may follow the last one in a checkpoint: draft heads, see `mtp`."""
    inner: str = ""
    """Prefixes of names, with `base`, where the decoder is a part of the model."""
    unread: Callable[[Any], str] | None = None
    """Makes of our config a regular expression of weights that files hold and the model has not;
    None: there are none."""
    mtp: MTPLayout | None = None
    """The names of the draft head that comes with the weights; None: there is none."""

    def names(self, tensors: Iterable[str]) -> dict[str, str]:
        """Returns tensors' names in a whole text model, and their names where they come from."""
        part = f"^({re.escape(self.base)})?{re.escape(self.inner)}" if self.inner else "(?!)"
        bare = {name: re.sub(part, "", name) for name in tensors}
        is_whole = not self.inner and any(name.startswith(self.base) for name in bare)
        return {
            ours
            if is_whole or ours == HEAD or ours.startswith(self.base)
            else self.base + ours: theirs
            for theirs, ours in bare.items()
        }


def _with_pictures(
    family: Family, architecture: str, model_type: str, usual: Mapping[str, Any] | None = None
) -> Iterator[Family]:
    """Yields a family, and its variant that reads pictures too, of which the text part is read."""
    yield family

    def parse(settings: Settings) -> Any:
        return family.parse(pictures.text(settings, family.model_type, usual or {}))

    yield replace(
        family,
        architecture=architecture,
        model_type=model_type,
        parse=parse,
        inner=pictures.INNER,
    )


_with_head = partial(
    Family, build=Llama, weights=deepseek.weights, extra_layers=True, mtp=mtp_tensors.NEXTN
)
"""A family of DeepSeek-V3's layout, whose draft head is behind the last layer."""

FAMILIES = (
    Family("LlamaForCausalLM", "llama", llama.llama, Llama, llama.weights),
    *_with_pictures(
        Family(
            "MistralForCausalLM",
            "mistral",
            llama.mistral,
            Llama,
            llama.weights,
            buffers=pictures.OTHERS,
        ),
        "Mistral3ForConditionalGeneration",
        "mistral3",
    ),
    Family("Qwen2ForCausalLM", "qwen2", llama.qwen2, Llama, llama.weights),
    Family("Qwen3ForCausalLM", "qwen3", llama.qwen3, Llama, llama.weights),
    Family("Gemma2ForCausalLM", "gemma2", gemma.gemma2, Llama, llama.weights),
    *_with_pictures(
        Family(
            "Gemma3ForCausalLM",
            "gemma3_text",
            gemma.gemma3,
            Llama,
            llama.weights,
            buffers=pictures.OTHERS,
        ),
        "Gemma3ForConditionalGeneration",
        "gemma3",
        pictures.GEMMA3,
    ),
    *(
        family
        for name, kind, parse in (
            ("Gemma4", "gemma4", gemma4.gemma4),
            ("Gemma4Unified", "gemma4_unified", gemma4.gemma4_unified),
        )
        for family in _with_pictures(
            Family(
                f"{name}ForCausalLM",
                f"{kind}_text",
                parse,
                Llama,
                gemma4.weights,
                buffers=pictures.OTHERS,
                unread=gemma4.unread,
            ),
            f"{name}ForConditionalGeneration",
            kind,
        )
    ),
    Family("Phi3ForCausalLM", "phi3", phi3.phi3, Llama, phi3.weights),
    Family("Olmo2ForCausalLM", "olmo2", others.olmo2, Llama, llama.weights),
    Family("SmolLM3ForCausalLM", "smollm3", others.smollm3, Llama, llama.weights),
    Family("MixtralForCausalLM", "mixtral", routed.mixtral, Llama, routed.mixtral_weights),
    Family("Qwen3MoeForCausalLM", "qwen3_moe", routed.qwen3_moe, Llama, routed.qwen3_moe_weights),
    Family("DeepseekV2ForCausalLM", "deepseek_v2", deepseek.deepseek_v2, Llama, deepseek.weights),
    _with_head("DeepseekV3ForCausalLM", "deepseek_v3", deepseek.deepseek_v3),
    _with_head("Glm4MoeForCausalLM", "glm4_moe", deepseek.glm4_moe),
    _with_head("Glm4MoeLiteForCausalLM", "glm4_moe_lite", deepseek.glm4_moe_lite),
    Family("GptOssForCausalLM", "gpt_oss", gpt_oss.gpt_oss, Llama, gpt_oss.weights),
    Family(
        "Qwen3NextForCausalLM",
        "qwen3_next",
        hybrids.qwen3_next,
        Hybrid,
        hybrids.qwen_weights,
        buffers=hybrids.QWEN3_NEXT_OTHERS,
        mtp=mtp_tensors.QWEN,
    ),
    *(
        family
        for name, kind, parse in (
            ("Qwen3_5", "qwen3_5", hybrids.qwen3_5),
            ("Qwen3_5Moe", "qwen3_5_moe", hybrids.qwen3_5_moe),
        )
        for family in _with_pictures(
            Family(
                f"{name}ForCausalLM",
                f"{kind}_text",
                parse,
                Hybrid,
                hybrids.qwen_weights,
                buffers=hybrids.QWEN3_5_OTHERS,
                mtp=mtp_tensors.QWEN,
            ),
            f"{name}ForConditionalGeneration",
            kind,
        )
    ),
    Family(
        "GraniteMoeHybridForCausalLM",
        "granitemoehybrid",
        hybrids.granite,
        Hybrid,
        hybrids.granite_weights,
    ),
    Family(
        "GPTNeoXForCausalLM",
        "gpt_neox",
        gpt_neox.gpt_neox,
        GPTNeoX,
        gpt_neox.weights,
        base="gpt_neox.",
        buffers=gpt_neox.BUFFERS,
    ),
    Family("OPTForCausalLM", "opt", opt.opt, LearnedPositionDecoder, opt.weights),
    Family(
        "GPT2LMHeadModel",
        "gpt2",
        gpt2.gpt2,
        LearnedPositionDecoder,
        gpt2.weights,
        base="transformer.",
        buffers=gpt2.BUFFERS,
    ),
)


def find(settings: Settings) -> Family:
    """Returns the family that a config.json names."""
    names = settings.list_of("architectures", str, [])
    name = names[0] if names else settings.get("model_type")
    for family in FAMILIES:
        if name in (family.architecture, family.model_type):
            return family
    raise InputError(
        f"{settings.source} names the architecture {name!r}; supported: "
        + ", ".join(family.architecture for family in FAMILIES)
    )

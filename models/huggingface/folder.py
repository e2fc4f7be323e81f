"""A folder in Hugging Face layout: config.json, safetensors, tokenizer.json."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from jspec._validate.errors import InputError
from jspec.models import chat_template, tokenizer
from jspec.models.chat_template import ChatTemplate
from jspec.models.huggingface import config_json, fused_experts, quantised, shards
from jspec.models.huggingface.families import Family
from jspec.models.huggingface.weights import Weight


@dataclass(frozen=True)
class Folder:
    """An open folder; files are read when they are asked for."""

    path: Path

    @cached_property
    def fields(self) -> config_json.Settings:
        """The fields of config.json."""
        if not (self.path / "config.json").is_file():
            raise InputError(
                f"{self.path} has no config.json; name a folder in Hugging Face layout"
            )
        fields = quantised.with_quantisation(self.path, config_json.read(self.path / "config.json"))
        quantised.reader(fields)  # refused before anything else is read
        return fields

    @cached_property
    def generation(self) -> config_json.Settings:
        """The fields of generation_config.json."""
        return config_json.read(self.path / "generation_config.json", required=False)

    def config(self, family: Family) -> Any:
        """Returns our config of the model."""
        return family.parse(self.fields)

    def tensors(self, table: Sequence[Weight]) -> shards.Shards | quantised.Dequantised:
        """Returns the weights by name, dequantised, and experts one by one if the table says so."""
        files = quantised.reader(self.fields)(shards.open_folder(self.path))
        return fused_experts.single(files, (name for weight in table for name in weight.names))

    def weight_format(self, alike: bool = False) -> str | None:
        """Returns the dtype of all weights if it is bfloat16, and None otherwise."""
        del alike  # as all weights are then
        files = shards.open_folder(self.path).files
        dtypes = {file.get_slice(name).get_dtype() for name, file in files.items()}
        return "bfloat16" if dtypes == {"BF16"} else None

    def tokenizer(self) -> Any:
        """Returns the tokenizer; see `jspec.models.tokenizer.read`."""
        return tokenizer.read(self.path)

    def chat(self, tokenizer: Any) -> ChatTemplate | None:
        """Returns the chat template; None if there is none."""
        return chat_template.read(self.path, tokenizer)

    def special_tokens(
        self, size: int, tokenizer: Any = None
    ) -> tuple[tuple[int, ...], int | None]:
        """Returns end tokens and first token; generation_config.json goes before config.json, and
        the tokenizer's own end is one more.
        """
        ids = []
        for name in ("eos_token_id", "bos_token_id"):
            value = self.generation.get(name, self.fields.get(name, ()))
            tokens = value if isinstance(value, list | tuple) else (value,)
            if not all(type(token) is int for token in tokens):
                raise InputError(f"{self.path} has {name} = {value!r}; it has to be token ids")
            ids.append(tuple(token for token in tokens if 0 <= token < size))
        eos, bos = ids
        if tokenizer is not None:
            text = chat_template.special_tokens(self.path).get("eos_token", "")
            end = tokenizer.token_to_id(text)
            eos = eos if end is None or end >= size or end in eos else (*eos, end)
        return eos, bos[0] if bos else None

    def mask_token_id(self) -> int | None:
        """Returns the mask token of a parallel draft model (PARD), if config.json names one."""
        return self.fields.token("pard_token")

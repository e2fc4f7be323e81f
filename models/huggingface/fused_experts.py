"""Files with fused experts, read as if each expert had its own matrices."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from jspec.models.huggingface.quantised import Dequantised
from jspec.models.huggingface.shards import Shards

_GATE_UP, _DOWN = "gate_up_proj", "down_proj"
_FUSED = re.compile(rf"(.*\.mlp\.experts\.)({_GATE_UP}|{_DOWN})")
_SINGLE = re.compile(r"(.*\.mlp\.experts\.)(\d+)\.(gate|up|down)_proj\.weight")


@dataclass(frozen=True)
class SingleExperts(Dequantised):
    """Single experts' matrices of Qwen3.5's fused tensors: [E, 2 F, H], gate first; [E, H, F]."""

    shards: Shards | Dequantised

    def list_tensors(self) -> Iterator[tuple[str, Any]]:
        for name, file in self.shards.files.items():
            if (match := _FUSED.fullmatch(name)) is None:
                yield name, file
                continue
            for expert in range(self.shards.shape(name)[0]):
                for part in ("gate", "up") if match[2] == _GATE_UP else ("down",):
                    yield f"{match[1]}{expert}.{part}_proj.weight", file

    def shape(self, name: str) -> tuple[int, ...]:
        if (place := self._place(name)) is None:
            return super().shape(name)
        tensor, _, half = place
        _, rows, *rest = self.shards.shape(tensor)
        return (rows if half is None else rows // 2, *rest)

    def rows(self, name: str, rows: slice) -> np.ndarray:
        if (place := self._place(name)) is None:
            return super().rows(name, rows)
        tensor, expert, half = place
        matrix = self.shards.rows(tensor, slice(expert, expert + 1))[0]
        return (matrix if half is None else np.split(matrix, 2)[half])[rows]

    def _place(self, name: str) -> tuple[str, int, int | None] | None:
        """Returns the fused tensor of a matrix, its expert and its half; None: not fused."""
        if (match := _SINGLE.fullmatch(name)) is None or name in self.shards.files:
            return None
        half = {"gate": 0, "up": 1, "down": None}[match[3]]
        return match[1] + (_DOWN if half is None else _GATE_UP), int(match[2]), half


def single(files: Shards | Dequantised, names: Iterable[str] | None = None) -> Shards | Dequantised:
    """Returns the files unchanged, or with fused experts one by one where that is wanted."""
    stacks = [name for name in files.files if _FUSED.fullmatch(name)]
    if not stacks or not (names is None or any(map(_SINGLE.fullmatch, names))):
        return files
    experts = SingleExperts(files)
    for name in stacks:
        shape = files.shape(name)
        if len(shape) != 3 or (name.endswith(_GATE_UP) and shape[1] % 2):
            raise experts.fail(name, f"has shape {list(shape)}, not [experts, outputs, inputs]")
    return experts

"""Pairs of a target and its draft model, by name."""

from dataclasses import dataclass
from functools import cached_property

import jax
import numpy as np

from benchmarks.harness import SHARED
from benchmarks.prompts import CLASSES, texts
from jspec.models import Loaded, load


@dataclass(frozen=True)
class Pair:
    """Two models of one vocabulary, and the prompts that they know something about."""

    name: str
    target: Loaded
    draft: Loaded
    classes: tuple[str, ...]

    @cached_property
    def ratio(self) -> float:
        """Parameters of the draft over those of the target: r of the memory-bound speed-up.

        RSD (Jeon et al. 2024), section 5, where the text has it upside down.
        """
        return _parameters(self.draft) / _parameters(self.target)

    def prompts(self, kind: str, count: int, tokens: int) -> np.ndarray:
        """[count, tokens] beginnings of texts of a class.

        Raises:
            ValueError: if the class has too few texts of that length.
        """
        # Many are asked for at first, since the short ones drop out.
        encoded = (self.target.tokenizer.encode(text).ids for text in texts(kind, 8 * count))
        long_enough = [ids[:tokens] for ids in encoded if len(ids) >= tokens]
        if len(long_enough) < count:
            raise ValueError(
                f"{len(long_enough)} of the prompts of class {kind!r} have {tokens} tokens and "
                f"{count} were asked for; ask for fewer or shorter ones"
            )
        return np.array(long_enough[:: len(long_enough) // count][:count])


PAIRS = {
    # Bundled; a target 8 times the size of its draft.
    "bundled": ("jspec-7m", "jspec-800k", CLASSES),
    # Trained by others on stories; equal in size, so for acceptance and not for speed.
    "babyllama": (
        SHARED / "models/babyllama-target",
        SHARED / "models/babyllama-draft",
        ("stories",),
    ),
}


def find(name: str) -> Pair:
    """Loads a pair.

    Raises:
        ValueError: if there is no pair of that name, or its models are not there.
    """
    if name not in PAIRS:
        raise ValueError(f"no pair {name!r}; there are {', '.join(PAIRS)}")
    target, draft, classes = PAIRS[name]
    return Pair(name, load(target), load(draft), classes)


def _parameters(loaded: Loaded) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(loaded.params))

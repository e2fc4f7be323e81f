"""Pairs of tokens as keys of 32 bits, and the places of keys in tables."""

import numpy as np
from jaxtyping import Int, UInt

from jspec.types import HostOrDevice

NONE = -1
"""No token."""
_MULTIPLIER = np.uint32(2654435769)
"""2^32 by the golden ratio: a key's product with it has well mixed high bits (Knuth, 6.4)."""


def pair_key(
    before: Int[HostOrDevice, "*S"], tokens: Int[HostOrDevice, "*S"], vocab_size: int
) -> UInt[HostOrDevice, "*S"]:
    """Returns the 32 bits by which pairs are told apart: `before * V + token` modulo 2^32."""
    return before.astype(np.uint32) * np.uint32(vocab_size) + tokens.astype(np.uint32)


def slot_of(keys: UInt[HostOrDevice, "*S"], slots: int) -> Int[HostOrDevice, "*S"]:
    """Returns the place of each key: the high bits of its product, as many as say which."""
    mixed = (keys * _MULTIPLIER) >> np.uint32(1)
    return (mixed >> np.uint32(32 - slots.bit_length())).astype(np.int32)

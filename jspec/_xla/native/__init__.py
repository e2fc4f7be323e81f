"""Products, attention, recurrences and top-k of a round on a CPU, in C++ behind the FFI.

A row of a product, and a token's attention, have the same bits whatever else is computed with them:
every sum has one order. So a token in a tree has the logits that it has in plain decoding.

The library is built when jspec is installed, where there is a C++ compiler. Where it is not there,
or the environment has JSPEC_NATIVE=0, XLA computes as on other devices.
"""

from jspec._xla.native.attention import attention, takes_attention
from jspec._xla.native.library import describe, disable, instruction_set, missing, on_one_device
from jspec._xla.native.pages import hold_in_large_pages
from jspec._xla.native.primitive import natively
from jspec._xla.native.product import (
    block_product,
    product,
    rounded_block_product,
    rounded_product,
    row_sums,
    takes_block_product,
    takes_product,
    takes_rounded_product,
)
from jspec._xla.native.recurrence import convolve, recur, replay, takes_recurrence
from jspec._xla.native.top import takes_top, top

__all__ = [
    "attention",
    "block_product",
    "convolve",
    "describe",
    "disable",
    "hold_in_large_pages",
    "instruction_set",
    "missing",
    "natively",
    "on_one_device",
    "product",
    "recur",
    "replay",
    "rounded_block_product",
    "rounded_product",
    "row_sums",
    "takes_attention",
    "takes_block_product",
    "takes_product",
    "takes_recurrence",
    "takes_rounded_product",
    "takes_top",
    "top",
]

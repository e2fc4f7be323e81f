"""Blocks of 256 weights, byte by byte as llama.cpp's ggml-common.h describes them."""

import numpy as np


def _half(block: bytes, at: int) -> float:
    return float(np.frombuffer(block[at : at + 2], np.float16)[0])


def q4_k(block: bytes) -> list[float]:
    """Weights of 144 bytes: super-scale, super-offset, 12 bytes of scales, 128 of pairs."""
    packed, found = block[4:16], []
    for part in range(8):
        if part < 4:
            scale, offset = packed[part] % 64, packed[part + 4] % 64
        else:
            scale = packed[part + 4] % 16 + 16 * (packed[part - 4] // 64)
            offset = packed[part + 4] // 16 + 16 * (packed[part] // 64)
        for i in range(32):
            both = block[16 + part // 2 * 32 + i]
            step = both // 16 if part % 2 else both % 16
            found.append(_half(block, 0) * scale * step - _half(block, 2) * offset)
    return found


def q6_k(block: bytes) -> list[float]:
    """Weights of 210 bytes: 128 of lower halves, 64 of upper pairs of bits, 16 scales, and one."""
    found = []
    for weight in range(256):
        half, i = divmod(weight, 128)
        low = block[64 * half + i % 64] // (16 if i >= 64 else 1) % 16
        high = block[128 + 32 * half + i % 32] // 4 ** (i // 32) % 4
        scale = (block[192 + weight // 16] + 128) % 256 - 128
        found.append(_half(block, 208) * scale * (low + 16 * high - 32))
    return found

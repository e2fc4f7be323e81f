"""Lossless speculative decoding for JAX as one pure function."""

"""Properties of a device at hand that programs depend on."""

from types import SimpleNamespace

import pytest

import jspec
from jspec.costs import devices


def test_memory_reserved_by_jax_is_not_reduced_twice(monkeypatch):
    """`bytes_limit` is the part of its memory that JAX took."""
    limit = 60_000_000_123
    gpu = SimpleNamespace(
        platform="gpu", device_kind="NVIDIA H100 80GB HBM3",
        memory_stats=lambda: {"bytes_limit": limit},
    )  # fmt: skip
    for fraction in ("", "0.9", "no number", "7"):
        monkeypatch.setenv(devices._GPU_FRACTION, fraction)
        found = devices.here(gpu)
        assert found.name == "H100" and devices.usable(found) == pytest.approx(limit, abs=1)
    tpu = SimpleNamespace(platform="tpu", device_kind="TPU v5", memory_stats=lambda: None)
    assert devices.usable(devices.here(tpu)) == devices.find("v5p").memory


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(jspec.InputError, match="device 'X1' is unknown; take one of TPU v5e"):
        devices.find("X1")

"""Lossless speculative decoding for JAX as one pure function: `jspec.decode`.

The public names are those of `__init__.pyi`. They are imported on first use: JAX takes a second to
import, and `jspec --help` shall not wait for it.
"""

from typing import Any

import lazy_loader

__version__ = "0.3.0"
_GONE = {
    "auto": "jspec.LLM(jspec.models.Loaded(model, params))",
    "adaptive": "policy=jspec.Adaptive(widths)",
    "AdaptiveParams": "drafter_params= for weights and policy_params= for costs",
    "Limits": "stopping=jspec.Stopping(max_tokens=.., stop_token_ids=..)",
    "Merge": "jspec.merge",
    "BudgetedMerge": "jspec.merge",
    "Verified": "jspec.with_verifier",
    "StopStrings": "jspec.stop_strings",
    "DynamicTokenRecycling": "jspec.Spine",
    "CalibratedDySpec": "jspec.CoupledTree",
    "InformedMedusa": "jspec.Medusa, or jspec.Spine, which needs no heads",
    "MultiPathBlockVerification": "jspec.schemes.TRAVERSAL, or K_SEQ of chains",
    "export": "jax.export.export of a function that calls jspec.decode (docs/plans.md)",
}
"""Names that 0.2 had and their replacements, kept for one version."""

_public, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    if name in _GONE:
        raise AttributeError(f"jspec.{name} is gone; use {_GONE[name]}")
    return _public(name)

"""Saves and loads cost curves, by a fingerprint of what the time of a round depends on."""

import hashlib
import json
import os
import platform
from pathlib import Path

import jax
import numpy as np

from jspec._validate import plain_json
from jspec._validate.errors import InputError
from jspec._validate.whole_files import write_whole
from jspec._xla import mesh_axes, native
from jspec.policies.cost_curve import CostCurve
from jspec.policies.fixed_width import FixedWidth
from jspec.protocols import CausalLM, Drafter, WidthPolicy
from jspec.types import PyTree


def fingerprint(
    model: CausalLM,
    params: PyTree,
    drafter: Drafter,
    policy: WidthPolicy = FixedWidth(),
    *,
    batch_size: int = 1,
    sampled: bool = False,
) -> str:
    """Returns 16 hexadecimal digits of all that the time of a round depends on, but for the size of
    the cache: a name for the file of a curve.

    It has the model, number and dtypes of its weights, drafter and policy; the kind of the device,
    of a CPU its cores and jspec's kernels; the mesh of the weights; the versions of jax and jspec.
    What requests may ask for alongside (log-probabilities, processors, grammars) is not in it.

    Args:
        model: the target.
        params: its weights.
        drafter: of the calls.
        policy: of the calls.
        batch_size: rows.
        sampled: whether tokens are sampled, which takes a little longer.

    Example:
        >>> import jspec
        >>> model = jspec.testing.PrefixLM()
        >>> len(fingerprint(model, model.init(), jspec.Suffix()))
        16
    """
    from jspec import __version__

    leaves = jax.tree.leaves(params)
    sizes = sum(int(np.prod(leaf.shape)) for leaf in leaves)
    device, mesh = jax.devices()[0], mesh_axes.mesh_of(params)
    kind: tuple[object, ...] = (device.platform, device.device_kind)
    if device.platform == "cpu":
        kind = _processor(), os.cpu_count(), native.instruction_set()
    parts = (
        *(type(model).__name__, model, sizes, sorted({str(leaf.dtype) for leaf in leaves})),
        *(drafter, policy, batch_size, sampled, kind, mesh and dict(mesh.shape)),
        *(jax.__version__, __version__),
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def save(curve: CostCurve, path: str | os.PathLike[str]) -> None:
    """Writes a curve.

    Args:
        curve: what was measured.
        path: of the file; its folder is made if it is not there.

    Raises:
        OSError: if it cannot be written.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(CostCurve.of({1: 0.020, 8: 0.034}), Path(folder) / "costs.json")
        ...     round(float(load(Path(folder) / "costs.json").at([8])[0]), 3)
        0.034
    """
    points = zip(np.asarray(curve.tokens).tolist(), np.asarray(curve.seconds).tolist(), strict=True)
    record = {"seconds": dict(points), "undrafted": float(curve.undrafted)}
    write_whole(path, json.dumps(record, indent=1))


def load(path: str | os.PathLike[str]) -> CostCurve:
    """Reads a curve.

    Args:
        path: of the file.

    Raises:
        InputError: if it is not a file of `save`.
        OSError: if it cannot be read.
    """
    text = Path(path).read_bytes()
    try:
        record = plain_json.parsed(text)
        points = {int(tokens): seconds for tokens, seconds in record["seconds"].items()}
        return CostCurve.of(points, record["undrafted"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path} is not a cost file of jspec ({error}); measure anew with jspec.costs.measure"
        ) from error


def _processor() -> str:
    """Returns the name of the CPU, as far as the system tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()

"""Saves and loads cost curves, each measured for a model, a device and a way to decode."""

import dataclasses
import hashlib
import json
import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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

_FORMAT = 5


@dataclass(frozen=True)
class CostSetting:
    """Everything that the time of a round depends on, except the cache's size.

    What requests may ask for alongside (log-probabilities, processors, grammars) is not in it:
    measure a curve of your own where rounds differ by that.

    Example:
        >>> import jspec
        >>> model = jspec.testing.PrefixLM()
        >>> here = jspec.costs.setting(model, model.init(), jspec.Suffix())
        >>> here.batch_size, here.platform
        (1, 'cpu')
    """

    model: str
    """The model's class and configuration."""
    params: str
    """Number of weights and their dtypes."""
    drafter: str
    policy: str
    batch_size: int
    sampled: bool
    platform: str
    device: str
    """Kind of the device; of a CPU the machine, its cores and our kernels."""
    mesh: str
    """Axes and sizes of the mesh that the weights lie on; empty: one device."""
    jax: str
    jspec: str

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits."""
        text = json.dumps(dataclasses.asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def setting(
    model: CausalLM,
    params: PyTree,
    drafter: Drafter,
    policy: WidthPolicy = FixedWidth(),
    *,
    batch_size: int = 1,
    sampled: bool = False,
) -> CostSetting:
    """Returns the setting of calls on the default device.

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
        >>> len(setting(model, model.init(), jspec.Suffix()).fingerprint)
        16
    """
    from jspec import __version__

    leaves = jax.tree.leaves(params)
    dtypes = sorted({str(leaf.dtype) for leaf in leaves})
    device, mesh = jax.devices()[0], mesh_axes.mesh_of(params)
    kind = device.device_kind
    if device.platform == "cpu":
        kernels = (
            f"{instructions} kernels"
            if (instructions := native.instruction_set())
            else "no kernels"
        )
        kind = f"{_processor()}, {os.cpu_count()} cores, {kernels}"
    return CostSetting(
        model=f"{type(model).__name__} {model!r}",
        params=f"{sum(int(np.prod(leaf.shape)) for leaf in leaves)} of {', '.join(dtypes)}",
        drafter=repr(drafter),
        policy=repr(policy),
        batch_size=batch_size,
        sampled=sampled,
        platform=device.platform,
        device=kind,
        mesh=", ".join(f"{name} {size}" for name, size in mesh.shape.items()) if mesh else "",
        jax=jax.__version__,
        jspec=__version__,
    )


def save(curve: CostCurve, where: CostSetting, path: str | os.PathLike[str]) -> None:
    """Writes a curve with the setting that it was measured in.

    Args:
        curve: what was measured.
        where: in which setting.
        path: of the file; its folder is made if it is not there.

    Raises:
        OSError: if it cannot be written.

    Example:
        >>> import jspec, tempfile
        >>> model = jspec.testing.PrefixLM()
        >>> here = setting(model, model.init(), jspec.Suffix())
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder) / f"{here.fingerprint}.json"
        ...     save(CostCurve.of({1: 0.020, 8: 0.034}), here, file)
        ...     round(float(load(file, here).at([8])[0]), 3)
        0.034
    """
    record = {
        "format": _FORMAT,
        "setting": dataclasses.asdict(where),
        "tokens": np.asarray(curve.tokens).tolist(),
        "seconds": np.asarray(curve.seconds, np.float64).tolist(),
        "undrafted": np.asarray(curve.undrafted, np.float64).tolist(),
    }
    write_whole(path, json.dumps(record, indent=1))


def load(path: str | os.PathLike[str], where: CostSetting) -> CostCurve:
    """Reads a curve that was measured in the same setting.

    Args:
        path: of the file.
        where: the setting that it is for.

    Raises:
        InputError: if it is not a cost file, or of another setting: with the first difference.
        OSError: if it cannot be read.

    Example:
        >>> import jspec, tempfile
        >>> model, prompt = jspec.testing.PrefixLM(), jspec.PromptLookup()
        >>> here = setting(model, model.init(), prompt)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder) / "costs.json"
        ...     save(CostCurve.of({1: 0.020}), here, file)
        ...     load(file, setting(model, model.init(), prompt, batch_size=4))
        Traceback (most recent call last):
            ...
        jspec.InputError: ... was measured with batch_size 1 and this is 4; measure anew...
    """
    text = Path(path).read_bytes()
    measure = "measure anew with jspec.costs.measure"
    try:
        record: dict[str, Any] = plain_json.parsed(text)
        if record["format"] != _FORMAT:
            raise InputError(
                f"{path} is a cost file of format {record['format']} and this jspec reads format "
                f"{_FORMAT}; {measure}"
            )
        arrays = [
            np.asarray(record[name], np.float32) for name in ("tokens", "seconds", "undrafted")
        ]
        theirs = CostSetting(**record["setting"])
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} is not a cost file of jspec ({error}); {measure}") from error
    for name, value in dataclasses.asdict(where).items():
        if (other := getattr(theirs, name)) != value:
            raise InputError(
                f"{path} was measured with {name} {other!r:.80} and this is {value!r:.80}; "
                f"{measure}"
            )
    tokens, seconds, undrafted = arrays
    rising = tokens.ndim == 1 and tokens.size and (np.diff(tokens) > 0).all()
    times = np.append(seconds, undrafted)
    positive = np.isfinite(times).all() and (times > 0).all()
    if not (rising and positive and (seconds.shape, undrafted.shape) == (tokens.shape, ())):
        raise InputError(f"{path} has no curve of positive seconds, one for each point; {measure}")
    return CostCurve(
        tokens=jax.numpy.asarray(tokens, np.int32),
        seconds=jax.numpy.asarray(seconds),
        undrafted=jax.numpy.asarray(undrafted),
    )


def _processor() -> str:
    """Returns the name of the CPU, as far as the system tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()

"""The nearest settings that fit a device's memory, for a plan that does not."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from jspec._validate.errors import InputError
from jspec.costs import devices
from jspec.planning import layout
from jspec.planning.memory import held
from jspec.planning.plan import Plan
from jspec.planning.setting import Setting

_MOST_DEVICES = 4096
_SLOTS = 128
"""A context is shortened by whole steps of so many tokens."""


def nearest(planned: Plan) -> list[Setting]:
    """The settings that fit and change one thing: fewer rows, a shorter context, more devices.

    Temporaries count as they were planned, for as many rows of a device in proportion.

    Args:
        planned: a plan that does not fit.

    Returns:
        One for each of the three that can be had.
    """
    setting = planned.setting
    ways = (_fewer_rows, _shorter, _more_devices)
    return [found for way in ways if (found := way(planned, setting)) is not None]


def _fits(planned: Plan, setting: Setting) -> bool:
    old = planned.setting
    rows = setting.rows / setting.data / (old.rows / old.data)
    # Scores and layers are split as the weights are.
    shares = setting.model_parallel / old.model_parallel
    taken = held(setting).total + planned.held.rest * rows + planned.temporaries * rows / shares
    return taken <= devices.usable(setting.device)


def _fewer_rows(planned: Plan, setting: Setting) -> Setting | None:
    most = setting.rows // setting.data - 1
    rows = _last(most, lambda each: _fits(planned, replace(setting, rows=each * setting.data)))
    return None if rows == 0 else replace(setting, rows=rows * setting.data)


def _shorter(planned: Plan, setting: Setting) -> Setting | None:
    def shorter(steps: int) -> Setting:
        capacity = steps * _SLOTS
        return replace(
            setting, capacity=capacity, max_new_tokens=min(setting.max_new_tokens, capacity // 2)
        )

    steps = _last((setting.capacity - 1) // _SLOTS, lambda each: _fits(planned, shorter(each)))
    return None if steps == 0 else shorter(steps)


def _more_devices(planned: Plan, setting: Setting) -> Setting | None:
    for data, model in _meshes(setting):
        try:
            wider = replace(setting, data=data, model_parallel=model)
        except InputError:  # the rows do not divide
            continue
        if _fits(planned, wider):
            return wider
    return None


def _meshes(setting: Setting) -> Iterator[tuple[int, int]]:
    """Meshes of more devices: first all for the weights, then for the rows too."""
    count = setting.num_devices * 2
    while count <= _MOST_DEVICES:
        model = setting.model_parallel * (count // setting.num_devices)
        while model >= setting.model_parallel:
            if _splits(setting, model):
                yield count // model, model
            model //= 2
        count *= 2


def _splits(setting: Setting, model: int) -> bool:
    """Whether more devices for the weights hold less of them each."""
    if model == setting.model_parallel:
        return True
    sizes = [
        layout.per_device(layout.spread(setting.params, layout.mesh_of(model=count)))
        for count in (model // 2, model)
    ]
    return sizes[1] < 0.75 * sizes[0]


def _last(most: int, holds: Callable[[int], bool]) -> int:
    """The largest number up to `most` of which something holds that holds of all smaller ones; 0:
    it holds of none.
    """
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low

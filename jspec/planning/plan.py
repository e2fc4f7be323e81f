"""The plan of a generation: what every device holds and does, before there are any weights."""

from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax

from jspec._xla import backend
from jspec.costs import devices, launching
from jspec.costs.devices import Device
from jspec.drafters.cost_curve import CostCurve
from jspec.planning import compiled, layout, memory, work
from jspec.planning.compiled import Compiled
from jspec.planning.layout import Held
from jspec.planning.reachable import Reached, reachable
from jspec.planning.setting import Setting
from jspec.planning.work import DeviceWork
from jspec.types import PyTree

if TYPE_CHECKING:
    from jspec.methods import Built

ESTIMATED, COMPILED = "estimated", "compiled"


@dataclass(frozen=True)
class PlannedRound:
    """One round of some width on one device."""

    width: int
    """Drafted nodes that it verifies; 0 is plain decoding."""
    work: DeviceWork
    seconds: float
    """Of the forward by the roofline, and of launches and waits on a GPU."""
    relative: float
    """t(N) / t(1): its seconds over those of plain decoding."""


@dataclass(frozen=True)
class Launching:
    """Seconds of a round that a GPU takes for launches and waits; 0 on other devices."""

    plain: float
    """Of plain decoding."""
    drafted: tuple[float, ...]
    """Of each width of the drafter, rising, with a draft."""
    rest: float
    """Of the smallest width without a draft; as in plain decoding if the drafter never backs
    off."""
    source: str
    """"estimated", or "compiled": from what XLA compiled; empty where there are none."""


@dataclass(frozen=True)
class Plan:
    """What every device holds and does; all figures are predicted, and none is measured.

    Example:
        >>> import jspec
        >>> target = jspec.models.shapes("llama-1b", dtype="bfloat16", num_layers=4)
        >>> built = jspec.methods.build("prompt_lookup", target)
        >>> one = plan(target, built, device="v5e", rows=2, capacity=1024)
        >>> one.fits, one.held.cache  # 4 layers, 2 rows, 8 heads of 64, keys and values
        (True, 16777224)
    """

    setting: Setting
    held: Held
    temporaries: int
    """Bytes besides what is held."""
    temporaries_are: str
    """"estimated", or "compiled": what XLA says of the compiled programs."""
    prefill: DeviceWork
    """One chunk of every row's prompt."""
    draft: DeviceWork
    rounds: tuple[PlannedRound, ...]
    """Of each width, and of plain decoding beside them."""
    widths: tuple[int, ...]
    """Drafted nodes that a round of the drafter may verify: those of one program."""
    programs: tuple[Reached, ...]
    launching: Launching
    notes: tuple[str, ...]
    """What does not divide over the mesh, or is no bucket of `jspec.decode`, and what it costs."""
    compiled: tuple[Compiled, ...] = ()

    @property
    def total(self) -> int:
        """Bytes of one device."""
        return self.held.total + self.temporaries

    @property
    def spare(self) -> int:
        """Bytes of its memory that are left; below 0 those that it lacks."""
        return devices.usable(self.setting.device) - self.total

    @property
    def fits(self) -> bool:
        return self.spare >= 0

    @property
    def draft_seconds(self) -> float:
        """Of a draft, by the roofline; 0 where nothing is multiplied."""
        return self.draft.seconds(self.setting.device) if self.draft.flops else 0.0

    @cached_property
    def costs(self) -> CostCurve:
        """The predicted cost curve, for `jspec.AdaptiveParams`.

        A round of width 0 drafts; what it takes in a back-off is the curve's `undrafted`.
        """
        setting, drafted = self.setting, dict(zip(self.widths, self.launching.drafted, strict=True))
        points = {
            setting.rows * (1 + each.width): each.work.seconds(setting.device)
            + drafted.get(each.width, self.launching.plain)
            + self.draft_seconds
            for each in self.rounds
        }
        resting = self.rounds[0].work.seconds(setting.device) + self.launching.rest
        return CostCurve.of(points, capacity=setting.capacity, undrafted=resting)

    def with_launching(self, launching: Launching) -> "Plan":
        """The plan with other launches, and the seconds of its rounds by them."""
        drafted = dict(zip(self.widths, launching.drafted, strict=True))
        times = [
            each.work.seconds(self.setting.device)
            + (drafted[each.width] if each.width else launching.plain)
            for each in self.rounds
        ]
        rounds = (
            replace(each, seconds=seconds, relative=seconds / times[0])
            for each, seconds in zip(self.rounds, times, strict=True)
        )
        return replace(self, rounds=tuple(rounds), launching=launching)

    def as_dict(self) -> dict[str, Any]:
        """All figures by name, as `jspec plan --json` writes them."""
        setting = self.setting
        return {
            "device": asdict(setting.device) | {"usable": devices.usable(setting.device)},
            "mesh": {"data": setting.data, "model": setting.model_parallel},
            "rows": setting.rows,
            "capacity": setting.capacity,
            "bytes_per_device": asdict(self.held)
            | {"temporaries": self.temporaries, "total": self.total},
            "temporaries_are": self.temporaries_are,
            "fits": self.fits,
            "spare_bytes": self.spare,
            "prefill": asdict(self.prefill),
            "draft": asdict(self.draft) | {"seconds": self.draft_seconds},
            "rounds": [
                asdict(each.work)
                | {"width": each.width, "seconds": each.seconds, "relative": each.relative}
                for each in self.rounds
            ],
            "launching": asdict(self.launching),
            "programs": [
                {"call": one.call, "function": one.function, **asdict(one.program)}
                for one in self.programs
            ],
            "notes": list(self.notes),
            "compiled": [asdict(one) for one in self.compiled],
        }


def plan(
    target: Any,
    built: "Built | None" = None,
    *,
    device: Device | str | None = None,
    rows: int = 1,
    capacity: int | None = None,
    max_new_tokens: int = 128,
    data: int = 1,
    model: int = 1,
) -> Plan:
    """What a generation will hold and take on every device, from shapes alone.

    Bytes of weights, cache and drafter follow from the shapes and the sharding table, exactly. Of
    the flops the matrix products count, read from the trace of the model. Seconds are those of
    a roofline: `jspec.costs.roofline`.

    Args:
        target: of `jspec.models.shapes`, or of `jspec.models.load`.
        built: the drafter, of `jspec.methods.build`; None: `auto`.
        device: a name of `jspec.costs.devices`, or figures; None: the default one.
        rows: that decode together.
        capacity: most tokens of a row, prompt and output; None: 2048, or the model's context. Of
            `jspec.Engine` they are the slots of its cache; `jspec.decode` has buckets, and a note
            says what the next one takes.
        max_new_tokens: of a call of `jspec.decode`, among these.
        data: devices over which the rows are split.
        model: devices over which the weights are split.

    Returns:
        The plan. `compile_plan` lets XLA say what is estimated here.

    Raises:
        InputError: if a number is out of range, the rows do not divide, or the drafter does not
            fit the model.

    Example:
        >>> import jspec
        >>> target = jspec.models.shapes("jspec-800k")
        >>> built = jspec.methods.build("prompt_lookup", target)
        >>> planned = plan(target, built, device="cpu", rows=2, capacity=256)
        >>> planned.held.weights == sum(leaf.size * 4 for leaf in jax.tree.leaves(target.params))
        True
    """
    from jspec import methods

    chosen = devices.find(device) if isinstance(device, str) else device or devices.here()
    with backend.planned(chosen.platform):
        built = built or methods.build("auto", target)
        most = min(target.model.context or 2048, 2048)
        weights, drafter_weights = _shapes(target.params, built.drafter_params)
        setting = Setting(
            built.model, weights, built.drafter, drafter_weights, chosen, rows,
            most if capacity is None else capacity, max_new_tokens, data, model,
        )  # fmt: skip
        return of_setting(setting)


def of_setting(setting: Setting) -> Plan:
    """The plan of a setting whose numbers are checked; see `plan`."""
    with backend.planned(setting.device.platform):
        mesh, model, drafter = setting.mesh, setting.model, setting.drafter
        params, drafter_params = setting.placed()
        call = compiled.call_of(model, setting.rows, setting.capacity, setting.max_new_tokens)
        state = compiled.state_of(model, params, drafter, drafter_params, call, mesh)
        kept = layout.memory_of(drafter, setting.rows, setting.capacity, mesh)
        widths = sorted({0, *state.stats.widths})
        works = [
            work.score(model, params, setting.rows, 1 + width, setting.capacity, mesh)
            for width in widths
        ]
        chunk = work.read_prompt(
            model, params, drafter, drafter_params, kept, setting.rows, call.chunk,
            setting.capacity, mesh,
        )  # fmt: skip
        launched = _launching(setting, state.stats.widths)
        programs = reachable(setting.rows, setting.capacity, setting.max_new_tokens, model.context)
        return Plan(
            setting=setting,
            held=memory.held(setting, state),
            temporaries=memory.estimated(setting, works[-1], chunk, params),
            temporaries_are=ESTIMATED,
            prefill=chunk,
            draft=work.draft(drafter, drafter_params, state, setting.capacity, mesh),
            rounds=tuple(
                PlannedRound(width, each, 0.0, 1.0)
                for width, each in zip(widths, works, strict=True)
            ),
            widths=state.stats.widths,
            programs=programs,
            launching=launched,
            notes=(
                *memory.notes(setting, params),
                *memory.notes_of_scanning(setting, params),
                *memory.notes_of_buckets(setting, programs),
            ),
        ).with_launching(launched)


def _launching(setting: Setting, widths: tuple[int, ...]) -> Launching:
    """What launches are guessed to take: those of plain decoding, and those of `auto`."""
    if setting.device.platform != "gpu":
        return Launching(0.0, (0.0,) * len(widths), 0.0, "")
    plain = launching.plain(setting.params)
    drafts = plain + launching.draft() if widths[-1] else plain
    # Who has one width, and that of more than no node, drafts in every round.
    rest = plain + launching.backoff() if len(widths) > 1 else plain
    return Launching(plain, (drafts,) * len(widths), rest, ESTIMATED)


def _shapes(*trees: PyTree) -> list[PyTree]:
    """The shapes of trees of arrays; an array that two of them share is one shape of both."""
    known: dict[int, jax.ShapeDtypeStruct] = {}

    def shape(leaf: Any) -> jax.ShapeDtypeStruct:
        return known.setdefault(id(leaf), jax.ShapeDtypeStruct(leaf.shape, leaf.dtype))

    return [jax.tree.map(shape, tree) for tree in trees]

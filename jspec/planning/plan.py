"""The plan of a generation: what every device holds and does, before there are any weights."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax

from jspec import backend
from jspec.arguments import check_integer
from jspec.base import PyTree, State
from jspec.cost_curve import CostCurve
from jspec.costs import devices
from jspec.costs.devices import Device
from jspec.errors import InputError
from jspec.planning import compiled, layout, work
from jspec.planning.compiled import Compiled
from jspec.planning.layout import Held
from jspec.planning.reachable import Reached, reachable
from jspec.planning.work import Work
from jspec.protocols import CausalLM, Drafter

if TYPE_CHECKING:
    from jspec.methods import Built

_SPARE = 1.25
"""Estimated temporaries over the largest arrays that stand side by side."""
ESTIMATED, COMPILED = "estimated", "compiled"


@dataclass(frozen=True)
class Setting:
    """What a plan is for.

    Args:
        model: the target.
        params: shapes of its weights.
        drafter: proposes the trees.
        drafter_params: shapes of its weights, or what else it has.
        device: of which the mesh is made.
        rows: that decode together.
        slots: most tokens of a row, prompt and output.
        max_new_tokens: of a call of `jspec.decode`, among these.
        data: devices over which rows are split.
        model_parallel: devices over which weights are split.

    Raises:
        InputError: if a number is out of range, or the rows do not divide.
    """

    model: CausalLM
    params: PyTree
    drafter: Drafter
    drafter_params: PyTree
    device: Device
    rows: int = 1
    slots: int = 2048
    max_new_tokens: int = 128
    data: int = 1
    model_parallel: int = 1

    def __post_init__(self):
        check_integer("rows", self.rows, 1, None)
        context = self.model.context
        check_integer("slots", self.slots, 2, context, "what the model's context holds")
        check_integer("max_new_tokens", self.max_new_tokens, 1, self.slots - 1, "what a row holds")
        layout.mesh_of(self.data, self.model_parallel)
        if self.rows % self.data:
            raise InputError(
                f"{self.rows} rows do not divide over data={self.data} devices; give a multiple "
                f"of {self.data} rows, such as {-(-self.rows // self.data) * self.data}"
            )

    @property
    def mesh(self) -> Any:
        """The devices as a mesh that need not exist."""
        return layout.mesh_of(self.data, self.model_parallel)

    @property
    def num_devices(self) -> int:
        return self.data * self.model_parallel


@dataclass(frozen=True)
class Round:
    """One round of some width on one device."""

    width: int
    """Drafted nodes that it verifies; 0 is plain decoding."""
    work: Work
    seconds: float
    """Of the forward, by the roofline."""
    relative: float
    """t(N) / t(1): its seconds over those of a round of width 0."""


@dataclass(frozen=True)
class Plan:
    """What every device holds and does; all figures are predicted, and none is measured.

    Example:
        >>> import jspec
        >>> target = jspec.models.shapes("llama-1b", dtype="bfloat16", num_layers=4)
        >>> built = jspec.methods.build("prompt_lookup", target)
        >>> one = plan(target, built, device="v5e", rows=2, slots=1024)
        >>> one.fits, one.held.cache  # 4 layers, 2 rows, 8 heads of 64, keys and values
        (True, 16777224)
    """

    setting: Setting
    held: Held
    temporaries: int
    """Bytes besides what is held."""
    temporaries_are: str
    """"estimated", or "compiled": what XLA says of the compiled programs."""
    prefill: Work
    """One piece of every row's prompt."""
    draft: Work
    rounds: tuple[Round, ...]
    """Of each width, and of plain decoding beside them."""
    widths: tuple[int, ...]
    """Drafted nodes that a round of the drafter may verify: those of one program."""
    programs: tuple[Reached, ...]
    notes: tuple[str, ...]
    """What does not divide over the mesh, and what that costs."""
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
        """The predicted cost curve, for `jspec.AdaptiveParams`."""
        setting = self.setting
        points = {
            setting.rows * (1 + each.width): each.seconds + self.draft_seconds
            for each in self.rounds
        }
        plain = self.rounds[0].seconds
        return CostCurve.of(points, slots=setting.slots, undrafted=plain)

    def as_dict(self) -> dict[str, Any]:
        """All figures by name, as `jspec plan --json` writes them."""
        setting = self.setting
        return {
            "device": asdict(setting.device) | {"usable": devices.usable(setting.device)},
            "mesh": {"data": setting.data, "model": setting.model_parallel},
            "rows": setting.rows,
            "slots": setting.slots,
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
    slots: int | None = None,
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
        slots: most tokens of a row, prompt and output; None: 2048, or the model's context.
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
        >>> planned = plan(target, built, device="cpu", rows=2, slots=256)
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
            most if slots is None else slots, max_new_tokens, data, model,
        )  # fmt: skip
        return of_setting(setting)


def of_setting(setting: Setting) -> Plan:
    """The plan of a setting whose numbers are checked; see `plan`."""
    with backend.planned(setting.device.platform):
        mesh, model, drafter = setting.mesh, setting.model, setting.drafter
        params, drafter_params = _placed(setting)
        call = compiled.call_of(model, setting.rows, setting.slots, setting.max_new_tokens)
        state = compiled.state_of(model, params, drafter, drafter_params, call, mesh)
        memory = layout.memory_of(drafter, setting.rows, setting.slots, mesh)
        widths = sorted({0, *state.stats.widths})
        works = [
            work.score(model, params, setting.rows, 1 + width, setting.slots, mesh)
            for width in widths
        ]
        piece = work.read_prompt(
            model, params, drafter, drafter_params, memory, setting.rows, call.chunk,
            setting.slots, mesh,
        )  # fmt: skip
        plain = works[0].seconds(setting.device)
        times = [each.seconds(setting.device) for each in works]
        return Plan(
            setting=setting,
            held=held(setting, state),
            temporaries=_estimated(setting, works[-1], piece, params),
            temporaries_are=ESTIMATED,
            prefill=piece,
            draft=work.draft(drafter, drafter_params, state, setting.slots, mesh),
            rounds=tuple(
                Round(width, each, seconds, seconds / plain)
                for width, each, seconds in zip(widths, works, times, strict=True)
            ),
            widths=state.stats.widths,
            programs=reachable(setting.rows, setting.slots, setting.max_new_tokens, model.context),
            notes=_notes(setting, params),
        )


def held(setting: Setting, state: State | None = None) -> Held:
    """The bytes that one device holds.

    Args:
        setting: of the plan.
        state: shapes of the generation's state; None: all but cache and drafter counts as nothing.
    """
    mesh = setting.mesh
    params, drafter_params = _placed(setting)
    cache = layout.per_device(layout.cache_of(setting.model, setting.rows, setting.slots, mesh))
    memory = layout.per_device(layout.memory_of(setting.drafter, setting.rows, setting.slots, mesh))
    rest = 0
    if state is not None:
        plain = layout.per_device(replace(state, cache=None, drafter_state=None))
        # The prompt, which is as long as a row.
        rest = plain + setting.rows // setting.data * (setting.slots + 1) * 4
    shared = {id(leaf) for leaf in jax.tree.leaves(setting.params)}
    own = [
        placed
        for leaf, placed in zip(
            jax.tree.leaves(setting.drafter_params), jax.tree.leaves(drafter_params), strict=True
        )
        if id(leaf) not in shared
    ]
    return Held(
        weights=layout.per_device(params),
        drafter_weights=layout.per_device(own),
        cache=cache,
        drafter_state=memory,
        rest=rest,
    )


def _placed(setting: Setting) -> tuple[PyTree, PyTree]:
    """The shapes of both models' weights, with their shardings."""
    return tuple(
        layout.spread(part, setting.mesh) for part in (setting.params, setting.drafter_params)
    )  # type: ignore[return-value]


def _shapes(*trees: PyTree) -> list[PyTree]:
    """The shapes of trees of arrays; an array that two of them share is one shape of both."""
    known: dict[int, jax.ShapeDtypeStruct] = {}

    def shape(leaf: Any) -> jax.ShapeDtypeStruct:
        return known.setdefault(id(leaf), jax.ShapeDtypeStruct(leaf.shape, leaf.dtype))

    return [jax.tree.map(shape, tree) for tree in trees]


def _estimated(setting: Setting, widest: Work, piece: Work, params: PyTree) -> int:
    """Temporaries without a compiler: the scores of all tokens, and the widest of the layers."""
    model: Any = setting.model
    shares = max(
        (
            layout.parts(leaf)
            for leaf in jax.tree.leaves(params)
            if leaf.shape and leaf.shape[0] == model.vocab_size
        ),
        default=1,
    )
    scores = 4 * widest.tokens * model.vocab_size / shares
    return int(_SPARE * max(scores + widest.widest, piece.widest))


def _notes(setting: Setting, params: PyTree) -> tuple[str, ...]:
    """What the mesh cannot split evenly, so that every device holds all of it."""
    count, model = setting.model_parallel, setting.model
    found = []
    if count == 1:
        return ()
    heads = getattr(getattr(model, "config", None), "num_kv_heads", count)
    if heads % count:
        found.append(
            f"the key-value heads ({heads}) do not divide over model={count} devices: each holds "
            f"the whole cache of its rows; take model={_largest_divisor(heads, count)}"
        )
    size = model.vocab_size
    whole = [
        leaf
        for leaf in jax.tree.leaves(params)
        if leaf.shape and leaf.shape[0] == size and layout.parts(leaf) == 1
    ]
    if whole and size % count:
        held = sum(map(layout.shard_bytes, whole))
        found.append(
            f"a vocabulary of {size} does not divide over model={count} devices: each holds all "
            f"{held / 1e6:.0f} MB of its weights and computes all scores; take "
            f"model={_largest_divisor(size, count)}"
        )
    return tuple(found)


def _largest_divisor(size: int, most: int) -> int:
    """The largest number of devices up to `most` over which a size divides."""
    return max(number for number in range(1, most + 1) if size % number == 0)


def compile_plan(planned: Plan, mesh: Any, layers: Sequence[Setting] = ()) -> Plan:
    """The plan with temporaries and flops of the compiled programs: prefill, and the rounds.

    Args:
        planned: the plan.
        mesh: of devices at hand, or of a `Topology`.
        layers: the same setting with two smaller numbers of layers, to compile in place of its own,
            whose figures are then on the line through theirs; empty: its own.

    Raises:
        InputError: if the compiler finds that a program does not fit the device's memory.
    """
    setting = planned.setting
    found = [_compiled(each, mesh) for each in layers or [setting]]
    programs = found[0]
    if len(found) > 1:
        total = getattr(setting.model, "num_layers", 0)
        programs = [
            compiled.extended(few, more, total) for few, more in zip(*found[:2], strict=True)
        ]
    most = max(program.temporaries for program in programs)
    return replace(planned, temporaries=most, temporaries_are=COMPILED, compiled=tuple(programs))


def _compiled(setting: Setting, mesh: Any) -> list[Compiled]:
    with backend.planned(setting.device.platform):
        model, drafter = setting.model, setting.drafter
        given = [layout.spread(part, mesh) for part in (setting.params, setting.drafter_params)]
        call = compiled.call_of(model, setting.rows, setting.slots, setting.max_new_tokens)
        state = compiled.state_of(model, given[0], drafter, given[1], call, mesh)
        try:
            return [
                compiled.prefill(model, given[0], drafter, given[1], call, mesh),
                compiled.rounds(model, given[0], drafter, given[1], state, mesh),
            ]
        except jax.errors.JaxRuntimeError as error:
            reason = " ".join(str(error).split())
            if "RESOURCE_EXHAUSTED" not in reason and "Ran out of memory" not in reason:
                raise
            raise InputError(
                f"the compiler finds no place for a program ({reason:.160}); take fewer rows or "
                "more devices, or plan without --compile for what is nearest"
            ) from error


__all__ = ["Plan", "Round", "Setting", "compile_plan", "held", "of_setting", "plan"]

"""Launches of a round, from XLA's own text of a program."""

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from jspec._xla import backend, in_place
from jspec.costs import devices
from jspec.planning import gpu_chips, launches
from jspec.planning.launches import Launches
from jspec.round import phases

STEPS = """\
001: kCopy         [source       | next=002 (1)] kCopy
002: kWhile        [prev=001 (1) | sink        ]
condition:
    003: kCustomKernel [source | sink] compare grid: [1, 1, 1]
  body:
    000: kCommandBuffer [source       | next=006 (1)]
        004: kCustomKernel [source       | next=005 (1)] gemm grid: [1, 1, 1]
        005: kCopy         [prev=004 (1) | sink        ] kCopy
    006: kWhile [prev=000 (1) | next=009 (1)]
condition:
        No thunks.      body:
        007: kCustomKernel [source       | next=008 (1)] halve grid: [1, 1, 1]
        008: kCustomKernel [prev=007 (1) | sink        ] add grid: [1, 1, 1]
    009: kWhile [prev=006 (1) | next=012 (1)]
condition:
        010: kCustomKernel [source | sink] going grid: [1, 1, 1]
      body:
        011: kCustomKernel [source | sink] visit grid: [1, 1, 1]
    012: kConditional [prev=009 (1) | sink]
      false_branch:
        013: kCustomKernel [source | sink] nothing grid: [1, 1, 1]
      true_branch:
        014: kCustomKernel [source | next=015 (1)] learn grid: [1, 1, 1]
        015: kCopy [prev=014 (1) | sink] kCopy
"""
HLO = """\
  %copy.5 = bf16[2,1024]{1,0} copy(%p)
  %copy.15 = (f32[8,16]{1,0}, pred[4]) copy-start(%p)
  %while.6 = (s32[]) while(%t), backend_config={"known_trip_count":{"n":"5"}}
  %while.9 = (s32[]) while(%t), condition=%c, body=%b
"""
NAMES = {1: "copy.1", 2: "while.2", 5: "copy.5", 6: "while.6", 9: "while.9", 15: "copy.15"}


def written(folder: Path) -> Path:
    (folder / "m.thunk_sequence.txt").write_text("not the last of them")
    (folder / "m.thunk_sequence_after_thunk_passes.txt").write_text(STEPS)
    (folder / "m.sm_9.0a_gpu_after_optimizations.txt").write_text(HLO)
    entries = (
        f'thunk_info {{\n    profile_annotation: "{name}"\n    thunk_id: {number}\n  }}\n'
        for number, name in NAMES.items()
    )
    (folder / "m.thunk_metadata.txt").write_text("".join(entries))
    return folder


def test_launches_of_a_round_are_those_of_its_loops_and_graphs(tmp_path):
    assert launches.of_rounds(written(tmp_path)) == Launches(
        # its condition, two in a graph, five passes of two, a pass of two, the larger branch
        kernels=1 + 2 + 5 * 2 + 2 + 2,
        alone=1 + 5 * 2 + 2 + 2,
        graphs=1,
        # its condition, a pass more than the loop of unknown length has, the conditional
        waits=1 + 2 + 1,
        largest_copy=2 * 1024 * 2,
    )


def test_a_program_in_one_graph_launches_nothing_more(tmp_path):
    folder = written(tmp_path)
    inside = "".join(f"    {line}\n" for line in STEPS.splitlines())
    inside = inside.replace("    condition:", "condition:")
    inside = inside.replace("No thunks.", "No thunks.    ")
    (folder / "m.thunk_sequence_after_thunk_passes.txt").write_text(
        "000: kCommandBuffer [source | sink]\n" + inside
    )
    found = launches.of_rounds(folder)
    # The wait is that of its end.
    assert (found.kernels, found.launched, found.waits) == (17, 0, 0)


SWITCH = """\
000: kWhile [source | sink]
condition:
    001: kCustomKernel [source | sink] going grid: [1, 1, 1]
  body:
    002: kWhile [source | next=005 (1)]
condition:
        003: kCustomKernel [source | sink] rests grid: [1, 1, 1]
      body:
        004: kCustomKernel [source | sink] plain grid: [1, 1, 1]
    005: kWhile [prev=002 (1) | sink]
condition:
        006: kCustomKernel [source | sink] awake grid: [1, 1, 1]
      body:
        007: kCustomKernel [source | next=008 (1)] draft grid: [1, 1, 1]
        008: kConditional [prev=007 (1) | sink]
          branch_0:
            009: kConditional [source | sink]
              false_branch:
                016: kCustomKernel [source | sink] nothing grid: [1, 1, 1]
              true_branch:
                017: kCustomKernel [source | sink] narrow grid: [1, 1, 1]
          branch_1:
            010: kCustomKernel [source | next=011 (1)] wide grid: [1, 1, 1]
            011: kAllReduce [prev=010 (1) | next=012 (1)] kAllReduce
            012: kAsyncStart [prev=011 (1) | next=014 (1)] async_id=12
                013: kAllGather [source | sink] kAllGather
            014: kCustomKernel [source | sink] overlapped grid: [1, 1, 1]
            015: kAsyncDone [prev=014 (1) | sink] async_id=12
"""
SWITCH_HLO = """\
  %while.0 = (s32[]) while(%t), condition=%c, body=%b, metadata={op_name="jit(f)/while"}
  %while.2 = (s32[]) while(%t), metadata={op_name="jit(f)/while/body/turn_of_rounds_0/while"}
  %while.5 = (s32[]) while(%t), metadata={op_name="jit(f)/while/body/turn_of_rounds_1/while"}
  %cond.8 = (s32[]) conditional(%i, %a, %b), branch_computations={%x, %y}, metadata={op_name="\
jit(f)/while/body/turn_of_rounds_1/while/body/switch_in_place/cond"}
  %cond.9 = (s32[]) conditional(%i, %a, %b), branch_computations={%x, %y}, metadata={op_name="\
jit(f)/while/body/turn_of_rounds_1/while/body/switch_in_place/branch_0_fun/cond"}
  %sum.11 = bf16[4,8]{1,0} all-reduce-start(%p)
  %parts.13 = (f32[2]{0}, f32[4]{0}) all-gather-start(%p)
"""


def switched(folder: Path, steps: str) -> Launches:
    written(folder)
    (folder / "m.thunk_sequence_after_thunk_passes.txt").write_text(steps)
    (folder / "m.sm_9.0a_gpu_after_optimizations.txt").write_text(SWITCH_HLO)
    names = {0: "while.0", 2: "while.2", 5: "while.5", 8: "cond.8", 9: "cond.9", 11: "sum.11"}
    names[13] = "parts.13"
    entries = (f'profile_annotation: "{name}"\n thunk_id: {id}\n' for id, name in names.items())
    (folder / "m.thunk_metadata.txt").write_text("".join(entries))
    return launches.of_rounds(folder)


def test_a_round_of_each_width_and_a_back_off_count_together(tmp_path):
    found = switched(tmp_path, SWITCH)
    # The back-off, the condition of the loop, the draft, and what both widths do.
    assert found.kernels == 2 + 1 + 1 + 1 + 4
    # Whether there is another round of either kind, which width it has, a condition in one.
    assert found.waits == 1 + 1 + 1 + 1
    assert (found.exchanges, found.exchanged, found.largest_exchange) == (2, 64 + 24, 64)
    # A drafter that is asked in every round has no loop for back-offs.
    lines = SWITCH.splitlines(keepends=True)
    alone = "".join(lines[:4] + [line[4:] if line[0] == " " else line for line in lines[13:]])
    assert switched(tmp_path, alone).kernels == 7


def test_searched_names_are_in_the_program():
    def run(index, x):
        carry = phases.run_rounds(
            lambda carry: carry[1] < 9, lambda asked, carry: (carry[0] - 1, carry[1] + 1 + asked),
            (x, x), lambda carry: carry[0] <= 3, "gpu",
        )  # fmt: skip
        branches = (lambda state, given: 2 * state), (lambda state, given: state + given)
        return carry, in_place.switch(index, branches, x, x, platform="gpu")

    with backend.plan_for("gpu"):
        lowered = jax.jit(run).lower(jnp.int32(1), jnp.int32(5))
    text = lowered.as_text(debug_info=True)
    for name in (f"{phases.TURN}0/while", f"{phases.TURN}1/while", f"{in_place.SWITCH}/"):
        assert f"/{name}" in text
    (memory, count), _ = lowered.compile()(jnp.int32(1), jnp.int32(5))
    assert (int(memory), int(count)) == (2, 9)  # 5, 6, 7, and then by two


def test_another_program_is_refused(tmp_path):
    with pytest.raises(ValueError, match="has 0 files"):
        launches.of_rounds(tmp_path)
    folder = written(tmp_path)
    (folder / "m.thunk_sequence_after_thunk_passes.txt").write_text(STEPS.splitlines()[0])
    with pytest.raises(ValueError, match="holds no loop"):
        launches.of_rounds(folder)


def test_a_chip_is_described_by_its_data_sheet():
    for name in gpu_chips.CHIPS:
        text, sheet = gpu_chips.description(name), devices.find(name)
        assert f"device_memory_size: {sheet.memory}\n" in text
        assert f"memory_bandwidth: {sheet.bandwidth:.0f}\n" in text
        assert text.count("{") == text.count("}")

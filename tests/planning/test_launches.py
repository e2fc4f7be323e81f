"""What a round launches, from XLA's own text of a program."""

from dataclasses import replace
from pathlib import Path

import jax
import pytest

from jspec import in_place
from jspec.costs import devices
from jspec.planning import gpu_chips, launches
from jspec.planning.launches import Launches

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
    assert launches.of_rounds(written(tmp_path)).each == Launches(
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
    found = launches.of_rounds(folder).each
    # The wait is that of its end.
    assert (found.kernels, found.launched, found.waits) == (17, 0, 0)


SWITCH = """\
000: kWhile [source | sink]
condition:
    001: kCustomKernel [source | sink] compare grid: [1, 1, 1]
  body:
    002: kConditional [source | next=005 (1)]
      true_branch:
        003: kCustomKernel [source | sink] nothing grid: [1, 1, 1]
      false_branch:
        004: kCustomKernel [source | next=005 (1)] draft grid: [1, 1, 1]
        005: kCustomKernel [source | next=006 (1)] more grid: [1, 1, 1]
    006: kWhile [prev=002 (1) | next=010 (1)]
condition:
        007: kCustomKernel [source | sink] chosen grid: [1, 1, 1]
      body:
        008: kCustomKernel [source | next=009 (1)] narrow grid: [1, 1, 1]
    010: kWhile [prev=006 (1) | sink]
condition:
        011: kCustomKernel [source | sink] chosen grid: [1, 1, 1]
      body:
        012: kCustomKernel [source | next=013 (1)] wide grid: [1, 1, 1]
        013: kAllReduce [prev=012 (1) | next=014 (1)] kAllReduce
        014: kAsyncStart [prev=013 (1) | next=016 (1)] stream=communication_stream[0], async_id=14
            015: kAllGather [source | sink] kAllGather
        016: kCustomKernel [source | sink] beside grid: [1, 1, 1]
        017: kAsyncDone [prev=016 (1) | sink] async_id=14
"""
SWITCH_HLO = """\
  %while.0 = (s32[]) while(%t), condition=%c, body=%b, metadata={op_name="jit(f)/while"}
  %while.6 = (s32[]) while(%t), metadata={op_name="jit(f)/while/body/branch_of_switch_0/while"}
  %while.10 = (s32[]) while(%t), metadata={op_name="jit(f)/while/body/branch_of_switch_1/while"}
  %sum.13 = bf16[4,8]{1,0} all-reduce-start(%p)
  %parts.15 = (f32[2]{0}, f32[4]{0}) all-gather-start(%p)
"""


def test_each_width_has_its_own_launches_and_a_rest_the_least(tmp_path):
    folder = written(tmp_path)
    (folder / "m.thunk_sequence_after_thunk_passes.txt").write_text(SWITCH)
    (folder / "m.sm_9.0a_gpu_after_optimizations.txt").write_text(SWITCH_HLO)
    names = {0: "while.0", 6: "while.6", 10: "while.10", 13: "sum.13", 15: "parts.15"}
    entries = (f'profile_annotation: "{name}"\n thunk_id: {id}\n' for id, name in names.items())
    (folder / "m.thunk_metadata.txt").write_text("".join(entries))
    found = launches.of_rounds(folder)
    narrow, wide = found.widths
    # Its condition, the draft, the conditions of both widths, and what one of them does.
    assert (narrow.kernels, wide.kernels) == (1 + 2 + 2 + 1, 1 + 2 + 2 + 4)
    # The round, the draft, a width that is taken (before it and behind), one that is not.
    assert narrow.waits == wide.waits == 1 + 1 + 2 + 1
    assert found.rest == replace(narrow, kernels=narrow.kernels - 1, alone=narrow.alone - 1)
    assert found.each.kernels == 1 + 2 + 2 + 1 + 4
    assert (narrow.exchanges, wide.exchanges, wide.beside) == (0, 2, 1)
    assert (wide.exchanged, wide.largest_exchange) == (64 + 24, 64)
    assert wide.seconds > narrow.seconds > found.rest.seconds


def test_a_switch_names_its_branches_in_the_program():
    def double(state, given):
        return 2 * state

    def add(state, given):
        return state + given

    switched = jax.jit(lambda index, x: in_place.switch(index, [double, add], x, x))
    text = switched.lower(1, 2.0).compile().as_text()
    for number in range(2):
        assert f"/{in_place.BRANCH}{number}/while" in text


def test_what_is_no_such_program_is_refused(tmp_path):
    with pytest.raises(ValueError, match="has 0 files"):
        launches.of_rounds(tmp_path)
    folder = written(tmp_path)
    (folder / "m.thunk_sequence_after_thunk_passes.txt").write_text(STEPS.splitlines()[0])
    with pytest.raises(ValueError, match="holds no loop"):
        launches.of_rounds(folder)


@pytest.mark.parametrize("name", gpu_chips.CHIPS)
def test_a_chip_is_described_by_its_data_sheet(name):
    text, sheet = gpu_chips.description(name), devices.find(name)
    assert f"device_memory_size: {sheet.memory}\n" in text
    assert f"memory_bandwidth: {sheet.bandwidth:.0f}\n" in text
    assert text.count("{") == text.count("}")

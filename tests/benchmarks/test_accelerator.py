"""The accelerator's bench, with a model of two layers on whatever device there is."""

import json
import re
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu

import jspec
from benchmarks.accelerator import __main__ as command
from benchmarks.accelerator import (
    ahead,
    attention,
    bits,
    cells,
    devices,
    forced,
    forwards,
    kernels,
    loops,
    methods,
    ordered,
    overhead,
    parity,
    report,
    rounds,
    sections,
    shapes,
    texts,
)
from benchmarks.accelerator.results import Results
from benchmarks.ledger import Ledger
from jspec import models
from jspec._xla import backend
from jspec.costs import devices as chips
from jspec.models.attention import XLA, Cached, Past, attend
from jspec.models.block_attention import BlockAttention, Triton, choice
from jspec.planning.launches import Launches, Rounds
from jspec.planning.topology import Topology

TINY = shapes.SCALES["tiny"]
ABOUT = {"bench": "accelerator", "section": "some"}
PLAIN = {"method": "plain", "batch": 1, "one_graph": False}


def some_cells(path: Path | None = None, seconds: float = 60.0) -> cells.Cells:
    return cells.Cells(Ledger(path), ABOUT, time.monotonic() + seconds)


# Cells.


def test_a_row_that_the_file_holds_is_not_measured_again(tmp_path):
    file = tmp_path / "rows.jsonl"
    some_cells(file).run(lambda: {"seconds": [1.0]}, batch=1)
    again = some_cells(file)
    again.run(lambda: pytest.fail("measured again"), batch=1)
    assert again.find(batch=1)[0]["seconds"] == [1.0]
    assert not again.left


def test_a_failure_is_a_row_and_the_others_go_on():
    def fail():
        raise RuntimeError("RESOURCE_EXHAUSTED: out of memory\nand more")

    section = some_cells()
    section.run(fail, batch=64)
    section.run(lambda: {"seconds": [1.0]}, batch=1)
    first, second = section.find()
    assert first["error"] == "RuntimeError: RESOURCE_EXHAUSTED: out of memory"
    assert second["seconds"] == [1.0]


def test_without_time_nothing_is_begun_and_what_is_left_is_said():
    section = some_cells(seconds=0.0)
    section.run(lambda: pytest.fail("begun"), way="scanned", batch=1)
    assert section.left == ["scanned, 1"]
    assert not section.find()


@pytest.mark.parametrize(("stopped", "measured"), [(False, False), (True, True)])
def test_what_keeps_ending_the_process_is_left_out_but_for_want_of_time(
    tmp_path, stopped, measured
):
    file = tmp_path / "rows.jsonl"
    for _ in range(cells.MOST_TRIES):
        with pytest.raises(SystemExit):
            some_cells(file).run(sys.exit, batch=1)
        if stopped:
            cells.note_stop(file)
    last = some_cells(file)
    last.run(lambda: {"seconds": [1.0]}, batch=1)
    assert ("seconds" in last.find()[0]) == measured


def test_half_a_line_is_removed_and_whole_ones_stay(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"a": 1}\n{"b": ', "utf-8")
    cells.mend(file)
    assert Ledger(file).rows == [{"a": 1}]
    cells.mend(file)
    assert Ledger(file).rows == [{"a": 1}]


def test_the_fingerprint_follows_the_sources():
    assert cells.fingerprint() == cells.fingerprint()
    assert len(cells.fingerprint()) == 12


# What is measured.


def test_all_ways_to_run_the_layers_are_one_function():
    given = forwards.inputs(TINY.model, 2, 4, TINY.past, TINY.capacity)
    found = [
        jax.tree.leaves(way(TINY.model, TINY.params, given).run())[0]
        for way in forwards.WAYS.values()
    ]
    assert found[0].shape == (2, 4, TINY.config.vocab_size)
    np.testing.assert_allclose(found[1], found[0], atol=1e-6)
    np.testing.assert_allclose(found[2], found[0], atol=1e-6)


def test_bytes_are_those_of_weights_and_cache():
    held = sum(leaf.nbytes for leaf in jax.tree.leaves(TINY.params))
    cache = TINY.model.init_memory(1, TINY.capacity)
    capacity = sum(leaf.nbytes for leaf in jax.tree.leaves((cache.keys, cache.values)))
    # Of the table of embeddings a token reads its row.
    row = 4 * TINY.config.hidden_size
    table = row * TINY.config.vocab_size
    assert forwards.read_bytes(TINY.config, 4, 1, 1, TINY.capacity) == held - table + row + capacity


def test_eight_billion_weights_are_what_the_name_says():
    config = shapes.SCALES["8B"].config
    weights = forwards.read_bytes(config, 1, 0, 0, 0) + config.vocab_size * config.hidden_size
    assert weights == 8_030_261_248  # Llama-3.1-8B


@pytest.mark.parametrize("tokens", rounds.TOKENS_PER_ROUND)
def test_forced_acceptance_emits_what_it_is_told(tokens):
    drafter = forced.drafter(TINY.config.vocab_size, TINY.nodes)
    result = jspec.decode(
        TINY.model, TINY.params, [[1, 2, 3]], drafter=drafter,
        drafter_params=forced.script(1, tokens), max_new_tokens=4 * tokens,
    )  # fmt: skip
    assert result.stats.num_rounds.tolist() == [4]


def test_a_hollow_model_is_a_target_of_the_same_shapes():
    model = overhead.HollowModel(TINY.config, TINY.dtype)
    tokens, mask = np.zeros((2, 3), np.int32), np.ones((2, 3, 3), bool)
    cache = TINY.model.init_memory(2, TINY.capacity)
    real = jax.eval_shape(TINY.model.apply, TINY.params, tokens, tokens, mask, cache)
    hollow = jax.eval_shape(model.apply, model.init(jax.random.key(0)), tokens, tokens, mask, cache)
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), hollow) == jax.tree.map(
        lambda leaf: (leaf.shape, leaf.dtype), real
    )


@pytest.mark.parametrize(
    ("memory", "name"), [(None, "9M"), (6 << 30, "1B"), (18 << 30, "3B"), (100 << 30, "8B")]
)
def test_the_shape_follows_the_memory(memory, name):
    assert shapes.fitting(memory).name == name


def test_every_scale_has_room_for_its_rounds():
    for scale in shapes.SCALES.values():
        most = scale.past + max(rounds.TOKENS_PER_ROUND) * (scale.num_rounds + rounds.FEW)
        assert most < scale.capacity, scale.name
        assert scale.past + max(scale.widths) <= scale.config.context


def test_every_data_sheet_has_figures_of_its_kind():
    for sheet in devices.DATA_SHEETS.values():
        assert 1e11 < sheet.bandwidth < 1e13 < sheet.peak < 1e16


HLO = """HloModule jit_f

%fused (p: f32[2]) -> f32[2] {
  %p = f32[2]{0} parameter(0)
  ROOT %add = f32[2]{0} add(%p, %p)
}

%inner_body (c: (f32[2], s32[])) -> (f32[2], s32[]) {
  %c = (f32[2]{0}, s32[]) parameter(0)
  %x = f32[2]{0} get-tuple-element(%c), index=0
  %y = f32[2]{0} fusion(%x), kind=kLoop, calls=%fused
  ROOT %t = (f32[2]{0}, s32[]) tuple(%y, %x)
}

%command_buffer (p: f32[2]) -> f32[2] {
  %p = f32[2]{0} parameter(0)
  %a = f32[2]{0} fusion(%p), kind=kLoop, calls=%fused
  ROOT %b = (f32[2]{0:T(8,128)}, s8[16]{0}) custom-call(%a, %p), custom_call_target="gemm"
}

%body (c: (f32[2], s32[])) -> (f32[2], s32[]) {
  %c = (f32[2]{0}, s32[]) parameter(0)
  %x = f32[2]{0} get-tuple-element(%c), index=0
  %called = f32[2]{0} call(%x), to_apply=%command_buffer
  %w = (f32[2]{0}, s32[]) while(%c), condition=%cond, body=%inner_body
  ROOT %copy = (f32[2]{0}, s32[]) copy(%w)
}

ENTRY %main (c: (f32[2], s32[])) -> (f32[2], s32[]) {
  %c = (f32[2]{0}, s32[]) parameter(0)
  %outside = f32[2]{0} fusion(%c), kind=kLoop, calls=%fused
  ROOT %w = (f32[2]{0}, s32[]) while(%c), condition=%cond, body=%body
}
"""


def test_kernels_of_a_round_are_counted_through_calls_and_loops():
    assert kernels.count(HLO) == {
        "round": 3,
        "kinds": {"fusion": 1, "custom-call": 1, "copy": 1},
        "inner": [1],
        "conditionals": 0,
        "command_buffers": 1,
    }
    assert kernels.count("") == {}
    # The loop inside, the round, and what stands before it.
    assert kernels.total(HLO) == 1 + 3 + 1


def test_the_programs_of_every_section_are_compiled_ahead_of_time(monkeypatch):
    monkeypatch.setattr(overhead, "METHODS", ("prompt_lookup",))
    found = list(ahead.programs(TINY))
    keys = [(each.section, *each.key.items()) for each in found]
    assert len(set(keys)) == len(keys)
    assert {each.section for each in found} == set(sections.MEASURES)
    (plain,) = [each for each in found if dict(each.key) == PLAIN]
    launched = Rounds(Launches(kernels=10), (Launches(kernels=10),), None)
    with backend.planned("gpu"):
        seconds = plain.predict(launched, chips.find("h100"))
    assert seconds["plain"] > Launches(kernels=10).seconds


def test_what_is_no_gpu_is_refused_before_anything_is_compiled(tmp_path):
    with pytest.raises(jspec.InputError, match=r"--compile-only is v5e:1x1; give one GPU"):
        ahead.write(Topology.of("v5e:1x1"), TINY, tmp_path / "rows.jsonl", 60)


def test_products_are_cut_by_their_weights_alone():
    sizes = bits.shapes_of(shapes.SCALES["8B"].config)
    assert sizes["gate, up"] == (28672, 4096) and all(bits.fits(*each) for each in sizes.values())
    parts = {name: bits.parts_of(*each) for name, each in sizes.items()}
    # So many that there are two programs or more for each multiprocessor.
    assert parts == {
        "queries, keys, values": 4, "output": 8, "gate, up": 1, "down": 8, "head": 1,
    }  # fmt: skip
    if not hasattr(mosaic_gpu, "InterpretGPUParams"):
        pytest.skip(f"JAX {jax.__version__} runs kernels of Mosaic on a GPU alone")
    draw = np.random.default_rng(0)
    x, weight = (jnp.asarray(draw.normal(size=(n, 512)), jnp.bfloat16) for n in (70, 128))
    found = bits.product(x, weight, jnp.float32, interpret=True)
    wanted = np.asarray(x, np.float64) @ np.asarray(weight, np.float64).T
    np.testing.assert_allclose(found, wanted, atol=1e-4)
    alone = bits.product(x[:1], weight, jnp.float32, interpret=True)
    np.testing.assert_array_equal(alone[0], found[0])


@pytest.mark.parametrize("length", [60, 64])
def test_a_node_attends_as_its_token_does_in_plain_decoding(length):
    """To the last bit, on both sides of the end of a block."""
    if not hasattr(mosaic_gpu, "InterpretGPUParams"):
        pytest.skip(f"JAX {jax.__version__} runs kernels of Mosaic on a GPU alone")
    draw, parents = np.random.default_rng(0), [-1, 0, 1, 2, 3, 4, 2]
    nodes, dim, capacity = len(parents), 64, 192

    def random(*shape):
        return jnp.asarray(draw.normal(size=(1, *shape)), jnp.bfloat16)

    q, k, v = random(nodes, 2, dim) / 8, random(1, nodes, dim), random(1, nodes, dim)
    keys, values = random(1, capacity, dim), random(1, capacity, dim)
    mask = np.eye(nodes, dtype=bool)
    for node, parent in enumerate(parents[1:], 1):
        mask[node] |= mask[parent]
    given = q, k, v, jnp.asarray(mask[None])
    found = ordered.attention(*given, Cached(keys, values, jnp.array([length])), True)
    wide = [x.astype(jnp.float32) for x in (8 * q, k, v)]  # which `attend` scales
    held = Cached(keys.astype(jnp.float32), values.astype(jnp.float32), jnp.array([length]))
    wanted = attend(*wide, given[3], Past(held, None)).reshape(q.shape)
    np.testing.assert_allclose(found.astype(jnp.float32), wanted, atol=0.01)
    for depth in range(6):  # the first path, token by token
        one = [q[:, depth : depth + 1], *(x[:, :, depth : depth + 1] for x in (k, v))]
        cached = Cached(keys, values, jnp.array([length + depth]))
        alone = ordered.attention(*one, jnp.ones((1, 1, 1), bool), cached, True)
        np.testing.assert_array_equal(alone[0, 0], found[0, depth])
        keys = keys.at[:, :, length + depth].set(k[:, :, depth])
        values = values.at[:, :, length + depth].set(v[:, :, depth])


def test_rows_unlike_that_of_one_are_said():
    seconds = {"1": [1e-5], "16": [2e-5]}
    kernel, xla = ({"seconds": seconds, "unlike one row": unlike} for unlike in ([], ["16"]))
    row = {**ABOUT, "section": "bits", "what": "product", "of": "down", "parts": 8}
    lines = report._bits(Results([{**row, "kernel": kernel, "XLA": xla}]))
    assert lines[-1] == "| down | 8 | 1: 10, 16: 20 | 1: 10, 16: 20 | none | 16 |"


def test_what_was_predicted_stands_beside_what_was_measured(monkeypatch):
    def launched(kernels):
        one = asdict(Launches(kernels=kernels, graphs=1, waits=2))
        return {"each": one, "widths": [one], "rest": None}

    def row(seconds, **more):
        about = {"section": "first", "kind": "H", "scale": "tiny", "jax": "0", "sources": "0"}
        return {**ABOUT, **about, **PLAIN, "kinds": {"plain": seconds}, "variant": "", **more}

    known = [row(0.004, launched=launched(90))]
    monkeypatch.setattr(ahead, "predicted", lambda kind, scale: known if kind == "H" else [])
    timed = {"trace_seconds": 1.0, "compile_seconds": 2.0}
    found = Results([row([0.005, 0.006, 0.007], launched=launched(95), **timed)])
    (line,) = [line for line in report._beside(found) if "| plain |" in line]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[3:6] == ["plain", "4.00", "6.00"]
    assert cells[8:] == ["plain: 90, 1, 2", "plain: 95, 1, 2"]
    assert not report._beside(Results([row([0.005], kind="other", launched=None, **timed)]))


def test_own_texts_make_prompts_without_the_shared_ones(monkeypatch):
    monkeypatch.setattr(texts, "SHARED", Path("nowhere"))
    prompts = texts.encoded(models.load("jspec-800k"), 10, methods.PROMPT_TOKENS)
    assert texts.source() == texts.OWN_TEXTS
    assert prompts.shape == (8, methods.PROMPT_TOKENS)


# The command.


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The rows of a run of the cheap sections."""
    place = tmp_path_factory.mktemp("accelerator")
    left = sections.run(
        ["device", "first", "forwards", "rounds"], place / "rows.jsonl", 300, TINY, ""
    )
    assert left == []
    return place


@pytest.mark.slow
def test_every_row_says_what_it_was_measured_with(folder):
    rows = [row for row in Ledger(folder / "rows.jsonl").rows if cells.BEGUN not in row]
    assert {row["section"] for row in rows} == {"device", "first", "forwards", "rounds"}
    assert not [row for row in rows if "error" in row]
    for row in rows:
        assert row.keys() >= {"date", "device", "jax", "python", "kind", "platform", "sources"}
    first_rows = [row["kinds"] for row in rows if row["section"] == "first"]
    plain, drafted = map(list, first_rows)
    assert plain == ["plain"]
    assert re.fullmatch(r"[1-9]\d* nodes", *drafted)  # how many, the costs of the device say
    forced_rows = [row for row in rows if row.get("method") == "forced"]
    assert [row["tokens_per_round"] for row in forced_rows] == [2.0, 3.0, 4.0, 5.0]
    assert all(row["finite"] for row in rows if row["section"] == "forwards")


@pytest.mark.slow
def test_the_summary_and_the_figures_are_made_of_rows_alone(folder, capsys):
    report.write(folder / "rows.jsonl", folder)
    assert (folder / "summary.md").read_text("utf-8").startswith("### ")
    assert "**Forced** acceptance" in (folder / "summary.md").read_text("utf-8")
    assert (folder / "forwards.png").is_file()
    assert (folder / "gains.png").is_file()
    assert "t(N)/t(1)" in capsys.readouterr().out


@pytest.mark.slow
def test_the_kernels_of_attention_are_rows_where_they_run_and_a_sentence_where_not(
    monkeypatch, capsys
):
    none = some_cells()
    attention.measure(none, TINY)
    assert none.find() == []
    assert none.skipped == ["the kernels of tree attention run on a GPU or a TPU"]
    kernel, broken = BlockAttention(past=Triton()), BlockAttention(nodes=Triton())

    def measure(where, mask, candidates, repeats):
        taken = 1e-3 if where.capacity > TINY.capacity else 4e-3
        seconds = {repr(XLA): 2e-3, repr(kernel): taken}
        return choice.AttentionTiming(mask.shape[1], seconds, {repr(broken): "no such layout"})

    monkeypatch.setattr(choice, "CANDIDATES", {"cpu": (kernel, broken)})
    monkeypatch.setattr(choice, "measure", measure)
    here = {"kind": "some", "jax": "0", "sources": "0", "scale": "tiny"}
    timed = cells.Cells(Ledger(None), ABOUT | here | {"section": "attention"}, time.monotonic() + 9)
    attention.measure(timed, TINY)
    assert len(timed.find()) == len(attention.plan(TINY))
    lines = report.summary(Results.of(timed.ledger))
    (longer,) = (line for line in lines if line.startswith("| 2, 8, 1024 |"))
    assert "| 2.0000 | 1.0000, " in longer and "| 2.00x | no such layout |" in longer
    (shorter,) = (line for line in lines if line.startswith("| 2, 8, 64 |"))
    assert "| XLA is used |" in shorter


@pytest.mark.slow
def test_a_second_run_measures_nothing(folder):
    before = (folder / "rows.jsonl").read_text("utf-8")
    assert sections.run(["device", "forwards"], folder / "rows.jsonl", 60, TINY, "") == []
    assert (folder / "rows.jsonl").read_text("utf-8") == before


@pytest.mark.slow
def test_the_other_sections_have_rows_without_errors(tmp_path, monkeypatch):
    # Few of many alike: what takes time here is compiling.
    monkeypatch.setattr(parity, "METHODS", ("prompt_lookup",))
    monkeypatch.setattr(overhead, "METHODS", ("prompt_lookup",))
    monkeypatch.setattr(loops, "BODIES", dict(list(loops.BODIES.items())[-2:]))
    rows = tmp_path / "rows.jsonl"
    names = ["methods", "parity", "overhead", "loops", "bits"]
    assert sections.run(names, rows, 300, TINY, "") == []
    found = [row for row in Ledger(rows).rows if cells.BEGUN not in row]
    assert not [row["error"] for row in found if "error" in row]
    assert {row["section"] for row in found} == set(names)
    assert next(row for row in found if row["section"] == "parity")["first_divergence"] == []
    assert next(row for row in found if row["section"] == "methods")["differing"] == 0
    # The 800k model has no trained head: `eagle` is skipped, and is no row.
    assert {row.get("method") for row in found} == {"prompt_lookup", "plain", "forced", None}
    report.write(rows, tmp_path)
    assert (tmp_path / "gains.png").is_file()


def test_a_model_that_is_not_there_is_skipped_with_a_sentence(tmp_path, capsys):
    left = sections.run(
        ["methods"],
        tmp_path / "rows.jsonl",
        60,
        replace(TINY, models=(str(tmp_path / "absent"),)),
        "",
    )
    assert left == []
    assert "skipped: absent" in " ".join(capsys.readouterr().out.split())


def test_groups_go_round_until_nothing_is_left(tmp_path, monkeypatch):
    rows, seen = tmp_path / "rows.jsonl", []

    def process(rows, group, seconds, remaining, options):
        seen.append(group.name)
        with rows.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"platform": "cpu"}) + "\n")
        return seen.count(group.name) < 2

    monkeypatch.setattr(command, "_process", process)
    assert command.conduct(rows, 100, []) == []
    # On a CPU without the groups that set flags of XLA for CUDA.
    assert seen == 2 * [group.name for group in sections.GROUPS if not group.variant]


def test_a_run_that_gets_nowhere_ends_and_says_what_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "_process", lambda *_: True)
    left = command.conduct(tmp_path / "rows.jsonl", 100, [])
    assert left == [group.name for group in sections.GROUPS if not group.variant]


def test_no_time_is_no_process(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "_process", lambda *_: pytest.fail("begun"))
    assert command.conduct(tmp_path / "rows.jsonl", 0, [])

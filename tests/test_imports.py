"""The architecture: who imports whom, read from the syntax trees of all modules."""

import ast
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import jspec

ROOT = Path(jspec.__file__).parent

# A module of the core imports only from modules before it.
CORE = [
    "jspec._validate.errors",
    "jspec._xla.backend",
    "jspec._xla.compiler",
    "jspec._validate.whole_files",
    "jspec._validate.plain_json",
    "jspec._validate.arguments",
    "jspec._validate.row_arguments",
    "jspec.types",
    "jspec.costs.metrics",
    "jspec.protocols",
    "jspec._xla.manual_axes",
    "jspec._xla.mesh_axes",
    "jspec._xla.explicit_axes",
    "jspec._xla.one_graph",
    "jspec._xla.ragged",
    "jspec.tree.template",
    "jspec.tree",
    "jspec._xla.in_place",
    "jspec.round.packed",
    "jspec.round.widths",
    "jspec.tree.admission",
    "jspec._xla.hosts",
    "jspec.drafters.cost_curve",
    "jspec._validate.seeds",
    "jspec.sampling",
    "jspec.processors.logprobs",
    "jspec.processors.history",
    "jspec.processors.logits",
    "jspec.processors.grammar.spelling",
    "jspec.processors.grammar.automaton",
    "jspec.processors.grammar.stops",
    "jspec.processors.grammar.regex_syntax",
    "jspec.processors.grammar.process_memory",
    "jspec.processors.grammar.byte_machine",
    "jspec.processors.grammar.references",
    "jspec.processors.grammar.ecma_patterns",
    "jspec.processors.grammar.branches",
    "jspec.processors.grammar.schema",
    "jspec.processors.grammar.compile",
    "jspec.processors.grammar.masks",
    "jspec.processors.control",
    "jspec.memory",
    "jspec.verify.rules",
    "jspec.verify.tree_verifier",
    "jspec.verify.whole_draft",
    "jspec.verify.block_verification",
    "jspec.verify.traversal_verification",
    "jspec.verify.proposals",
    "jspec.verify.schemes",
    "jspec.verify.functions",
    "jspec.round",
    "jspec.round.request",
    "jspec.round.chunked_prefill",
    "jspec._xla.rows",
    "jspec.drafters.memory_file",
    "jspec.round.turns",
    "jspec.decoding",
    "jspec.decoding.rows",
    "jspec.decoding.engine",
    "jspec.decoding.streaming",
    "jspec.decoding.programs",
    "jspec.testing.tracing",
    "jspec.public",
]
# What a part must not import, itself or anything below it; what it may is everything else.
FORBIDDEN = {
    "jspec.verify.rules": ["jspec.tree"],
    "jspec.drafters": [
        "jspec.decoding",
        "jspec.training",
        "jspec.models",
        "jspec.cli",
        "jspec.methods",
    ],
    "jspec.training": ["jspec.models", "jspec.cli"],
    "jspec.methods": ["jspec.decoding", "jspec.training", "jspec.cli", "jspec.serve"],
    "jspec.planning": ["jspec.drafters", "jspec.training", "jspec.cli", "jspec.serve"],
    "jspec.models": [
        "jspec.decoding",
        "jspec.drafters",
        "jspec.training",
        "jspec.cli",
        "jspec.serve",
    ],
    # What runs the rows knows nothing of HTTP.
    "jspec.serve.scheduler": ["starlette", "pydantic", "jspec.serve.service", "jax"],
    "jspec.serve.prefixes": ["jax"],
}
# Drafters that the core itself uses: the default of `decode`, and what records another drafter.
KNOWN_DRAFTERS = {
    "jspec.decoding": {"jspec.drafters.autoregressive"},
    "jspec.decoding.rows": {"jspec.drafters.autoregressive"},
    "jspec.decoding.engine": {"jspec.drafters.autoregressive"},
    "jspec.decoding.streaming": {"jspec.drafters.autoregressive"},
    "jspec.decoding.programs": {"jspec.drafters.autoregressive"},
    "jspec.testing.tracing": {
        "jspec.drafters",
        "jspec.drafters.autoregressive",
        "jspec.drafters.origins",
        "jspec.drafters.recorded",
    },
}
COMPILERS = {"jit", "pmap", "pjit"}


def below(name: str, part: str) -> bool:
    return name == part or name.startswith(part + ".")


def modules() -> dict[str, Path]:
    # os.walk and not rglob, which before Python 3.13 follows no link: models is one in a checkout.
    files = (
        Path(folder) / name
        for folder, _, names in os.walk(ROOT, followlinks=True)
        for name in names
        if name.endswith(".py")
    )
    found = {}
    for file in files:
        parts = file.relative_to(ROOT.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


MODULES = modules()
TREES = {name: ast.parse(path.read_text("utf-8")) for name, path in MODULES.items()}


def imports(name: str) -> Iterator[str]:
    """Full names of what a module imports, anywhere in it; modules where the name is of one."""
    package = name if MODULES[name].name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                source = ".".join([*above, source] if source else above)
            for alias in node.names:
                full = f"{source}.{alias.name}"
                yield full if full in MODULES else source


@pytest.mark.parametrize("name", sorted(MODULES))
def test_a_module_imports_what_is_below_it(name):
    for imported in imports(name):
        if name in CORE and imported in CORE:
            assert CORE.index(imported) < CORE.index(name), f"{name} imports {imported}"
        if name in CORE and name != "jspec.public" and below(imported, "jspec.drafters"):
            assert imported in KNOWN_DRAFTERS.get(name, ()), f"{name} imports {imported}"
        for part, others in FORBIDDEN.items():
            if below(name, part):
                wrong = [other for other in others if below(imported, other)]
                assert not wrong, f"{name} imports {imported}; {part} knows nothing of {wrong[0]}"


@pytest.mark.parametrize("name", sorted(MODULES))
def test_only_methods_and_the_application_know_the_models(name):
    # `jspec` itself hands out public modules by name, and is the command line where it is run. A
    # plan is of a model and a method, and runs neither.
    knowing = "jspec.models", "jspec.methods", "jspec.planning", "jspec.cli", "jspec.serve"
    if name in ("jspec", "jspec.__main__") or any(below(name, part) for part in knowing):
        return
    wrong = [imported for imported in imports(name) if below(imported, "jspec.models")]
    assert not wrong, f"{name} imports {wrong[0]}; only jspec.methods and jspec.cli know both"
    above = "jspec.cli", "jspec.serve"
    wrong = [imported for imported in imports(name) if any(below(imported, one) for one in above)]
    assert not wrong, f"{name} imports {wrong[0]}; nothing imports the application"


def test_every_module_of_the_core_has_its_place():
    top = {
        name
        for name, path in MODULES.items()
        if path.stem not in ("__init__", "__main__")
        and (
            name.count(".") == 1
            or below(name, "jspec.verify")
            or below(name, "jspec.processors.grammar")
        )
    }
    assert top == set(CORE), "give a new module of the core its place in CORE"


def test_models_are_imported_by_one_name():
    """A checkout on the path has them twice, as `models` and as `jspec.models`."""
    wrong = [n for n in MODULES for i in imports(n) if i.split(".")[0] in ("models", "tests")]
    assert not wrong


def test_only_the_engine_and_training_compile():
    for name, tree in TREES.items():
        # What tests other people's models compiles them as the engine would; an artefact is lowered
        # here and compiled where it runs; the blocks of a decoder, the layers of a cache, and a
        # draft and its shapes share a trace, which inside of a program is none of its own; stacked
        # weights are filled in place; what chooses an attention times some, and what looks for
        # XLA's mistakes runs two.
        compilers = (
            *("jspec.decoding", "jspec.decoding.rows", "jspec.decoding.engine", "jspec.training"),
            *("jspec.testing", "jspec.decoding.artefact", "jspec.memory", "jspec._xla.one_graph"),
            *("jspec.models.decoder", "jspec.models.stacking", "jspec.drafters.resting"),
            *("jspec.models.block_attention.choice", "jspec._xla.compiler"),
        )
        if any(below(name, part) for part in compilers):
            continue
        wrong = [
            node.lineno
            for node in ast.walk(tree)
            if (isinstance(node, ast.Attribute) and node.attr in COMPILERS)
            or (isinstance(node, ast.ImportFrom) and COMPILERS & {a.name for a in node.names})
        ]
        assert not wrong, f"{MODULES[name].name}:{wrong[0]} compiles; return a function instead"


def test_only_the_peers_of_a_bench_import_other_engines():
    engines = {"torch", "llama_cpp", "gguf"}
    # What reads GGUF files is as far from what others import.
    readers = ("jspec.cli.bench.peers", "jspec.models.gguf.file")
    wrong = [name for name in MODULES for i in imports(name) if i.split(".")[0] in engines]
    assert all(any(below(name, part) for part in readers) for name in wrong), wrong
    # Nor is one of them imported by what every bench needs.
    assert "jspec.cli.bench.peers" not in wrong


def test_names_say_what_a_module_holds():
    words = {"utils", "util", "helpers", "helper", "misc", "common"}
    wrong = [name for name in MODULES if words & set(name.rpartition(".")[2].split("_"))]
    assert not wrong


def test_the_walk_sees_everything():
    assert {"jspec.decoding", "jspec.models", "jspec.models.llama", "jspec.cli.main"} <= set(
        MODULES
    )
    assert "jspec.types" in set(imports("jspec.tree"))
    assert "jspec.round" in set(imports("jspec.decoding"))
    assert sys.modules["jspec"].__name__ in MODULES

"""The architecture: who imports whom, read from the syntax trees of all modules."""

import ast
import inspect
import os
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jspec

ROOT = Path(jspec.__file__).parent

# Packages, layer by layer: each imports only packages of the lines above its own.
LAYERS = [
    {"_validate"},
    {"_struct"},
    {"types"},
    {"_xla"},
    {"arrays"},
    {"memory"},
    {"protocols"},
    {"sampling", "tree"},
    {"processors", "verify"},
    {"request", "round"},
    {"models"},
    {"drafters"},
    {"policies"},
    {"decoding"},
    {"costs", "training"},
    {"methods", "testing"},
    {"integrations", "planning", "sessions"},
    {"serve"},
    {"cli"},
]
LAYER = {f"jspec.{name}": layer for layer, names in enumerate(LAYERS) for name in names}
# What a part must not import either, itself or anything below it.
FORBIDDEN = {
    "jspec.verify.rules": ["jspec.tree"],
    "jspec.drafters": ["jspec.models"],
    "jspec.training": ["jspec.models"],
    "jspec.testing": ["jspec.models"],
    "jspec.costs": ["jspec.models"],
    # What runs the rows knows nothing of HTTP.
    "jspec.serve.scheduler": ["starlette", "pydantic", "jspec.serve.service", "jax"],
    "jspec.serve.prefixes": ["jax"],
}
CLOSURE = 5_100
"""The most lines that `import jspec.decoding` reads of jspec."""


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


def package(name: str) -> str:
    return ".".join(name.split(".")[:2])


def test_every_package_has_its_layer():
    packages = {package(name) for name in MODULES} - {"jspec", "jspec.__main__"}
    assert packages == set(LAYER), "give a new package its line in LAYERS"


def test_modules_import_what_is_below_them():
    wrong = []
    for name in sorted(set(MODULES) - {"jspec", "jspec.__main__"}):
        own = package(name)
        for imported in imports(name):
            other = package(imported)
            if other in LAYER and other != own and LAYER[other] >= LAYER[own]:
                wrong.append(f"{name} imports {imported}, which is above it")
            for part, forbidden in FORBIDDEN.items():
                if below(name, part) and any(below(imported, other) for other in forbidden):
                    wrong.append(f"{name} imports {imported}, which {part} must not know")
    assert not wrong, "\n".join(wrong)


def test_decode_needs_few_lines():
    code = (
        "import sys, jspec.decoding; "
        "print(*(m.__file__ for n, m in sys.modules.items() if n.split('.')[0] == 'jspec'))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = sum(len(Path(file).read_text("utf-8").splitlines()) for file in run.stdout.split())
    assert lines <= CLOSURE


APPLICATIONS = "jspec.serve", "jspec.cli", "jspec.sessions", "jspec.training", "jspec._validate"


def test_applications_enter_by_the_doors():
    """Server, commands and training import public names, and the vocabulary of types."""
    pages = (Path(__file__).parents[1] / "docs/api").glob("*.md")
    names = {
        name for page in pages for name in re.findall(r"^::: (\S+)", page.read_text("utf-8"), re.M)
    }
    public = [pkgutil.resolve_name(name) for name in names]
    public += [getattr(jspec, name) for name in jspec.__all__]
    modules = {thing for thing in public if inspect.ismodule(thing)}
    public += [
        getattr(module, name) for module in modules for name in getattr(module, "__all__", ())
    ]
    doors = (*APPLICATIONS, "jspec.types", "jspec.protocols", *(one.__name__ for one in modules))
    identities = set(map(id, public))
    inner = {
        name.removeprefix("jspec.")
        for module, tree in TREES.items()
        if any(below(module, part) for part in APPLICATIONS[:4])
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and below(node.module or "", "jspec")
        for name in (f"{node.module}.{alias.name}" for alias in node.names)
        if not any(name == door or node.module == door for door in doors)
        and not any(below(name, part) for part in APPLICATIONS)
        and id(pkgutil.resolve_name(name)) not in identities
    }
    assert not inner


def test_models_are_imported_by_one_name():
    """A checkout on the path has them twice, as `models` and as `jspec.models`."""
    wrong = [n for n in MODULES for i in imports(n) if i.split(".")[0] in ("models", "tests")]
    assert not wrong


def test_only_what_reads_gguf_files_imports_other_engines():
    engines = {"torch", "llama_cpp", "gguf"}
    wrong = [name for name in MODULES for i in imports(name) if i.split(".")[0] in engines]
    assert all(below(name, "jspec.models.gguf.file") for name in wrong), wrong


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

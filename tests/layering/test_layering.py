"""A part imports from lower ranks only; every import counts, wherever it stands in a file."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = "hf_glm_curriculum"
ROOT = Path(__file__).resolve().parents[2] / PACKAGE

RANKS = {
    0: ["config", "models", "reporting"],
    1: ["kernels", "text", "data", "scaling", "attention"],
    2: ["signals"],
    3: ["lifespan", "losses"],
    4: ["curriculum", "migration", "rewards"],
    5: ["ppo"],
    6: ["evaluation"],
    7: ["commands"],
}
# What the rank-0 modules are made of, lowest first; each may import those before it.
FOUNDATION = [
    ["errors"],
    ["optional", "storage", "config_types", "segments", "run_scope", "checkpoints"],
    ["progress", "csv_dump", "config_dump", "figures"],
    ["embedded"],
]
ORDER: dict[str, float] = {
    "reporting_callback": 0.5,  # the base of every part's callbacks, over `reporting`
    **{part: place / 10 - 1 for place, parts in enumerate(FOUNDATION) for part in parts},
    **{part: rank for rank, parts in RANKS.items() for part in parts},
}


def part_of(file: Path) -> str:
    """The part a file belongs to: the first name below the package."""
    return file.relative_to(ROOT).parts[0].removesuffix(".py")


def imported_parts(tree: ast.AST, package: str) -> set[str]:
    """Parts that a module imports, at any depth; `package` is its own dotted package."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, base]).rstrip(".")
            names.add(base)
            names.update(f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            names.update(a.value for a in node.args if isinstance(a, ast.Constant))
    found = {name.split(".")[1] for name in names if name.startswith(f"{PACKAGE}.")}
    return found & ORDER.keys()


def violations(files: dict[str, str]) -> list[str]:
    """Imports that do not go down in rank; `files` maps paths below the package to sources."""
    found = []
    for path, source in sorted(files.items()):
        part = path.split("/")[0].removesuffix(".py")
        package = ".".join([PACKAGE, *path.split("/")[:-1]])
        for other in sorted(imported_parts(ast.parse(source), package)):
            if other != part and ORDER[other] >= ORDER[part]:
                found.append(f"{path} imports {other}")
    return found


def sources() -> dict[str, str]:
    """Every module of the package but the lazy exports, which name all parts."""
    files = sorted(ROOT.rglob("*.py"))
    return {
        file.relative_to(ROOT).as_posix(): file.read_text("utf-8")
        for file in files
        if file != ROOT / "__init__.py"
    }


def test_every_import_goes_down_in_rank():
    files = sources()
    assert len(files) > 10
    assert violations(files) == []


def test_every_part_has_a_rank():
    unknown = {part_of(file) for file in ROOT.rglob("*.py")} - ORDER.keys() - {"__init__"}
    assert unknown == set()


def test_no_empty_parts():
    folders = [folder for folder in ROOT.iterdir() if (folder / "__init__.py").exists()]
    assert [f.name for f in folders if len(list(f.glob("*.py"))) < 2] == []


def more_than_lazy_exports(source: str) -> list[str]:
    """Statements of an `__init__.py` besides its docstring, tables and lazy `__getattr__`."""
    allowed = (ast.Expr, ast.Assign, ast.AnnAssign, ast.If)
    found = []
    for node in ast.parse(source).body:
        text = ast.unparse(node).split("\n")[0]
        lazy = isinstance(node, ast.FunctionDef) and node.name in ("__getattr__", "__dir__")
        imports = isinstance(node, (ast.Import, ast.ImportFrom))
        outside = imports and PACKAGE not in text and not text.startswith("from .")
        if not (lazy or outside or isinstance(node, allowed)):
            found.append(text)
    return found


def test_packages_hold_lazy_exports_only():
    for file in ROOT.rglob("__init__.py"):
        assert more_than_lazy_exports(file.read_text("utf-8")) == [], file


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("data/index.py", "from hf_glm_curriculum.signals.ledger import SampleLedger"),
        ("data/index.py", "def f():\n    from hf_glm_curriculum import signals"),
        ("data/index.py", "import hf_glm_curriculum.text.language"),
        ("data/deep/index.py", "from ...text import language"),
        ("data/index.py", "from ..lifespan import callback"),
        ("data/index.py", "if TYPE_CHECKING:\n    from hf_glm_curriculum.signals import probe"),
        ("lifespan/callback.py", "from hf_glm_curriculum.losses.composite import CompositeLoss"),
        ("signals/probe.py", "importlib.import_module('hf_glm_curriculum.ppo.trainer')"),
        ("models.py", "from hf_glm_curriculum.reporting import RunReporter"),
        ("storage.py", "from hf_glm_curriculum.config import load_config"),
    ],
)
def test_a_wrong_import_is_seen(path, source):
    assert len(violations({path: source})) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("lifespan/callback.py", "from hf_glm_curriculum.signals.ledger import SampleLedger"),
        ("data/index.py", "from hf_glm_curriculum.data.content_id import content_ids"),
        ("data/index.py", "from .content_id import content_ids"),
        ("models.py", "from hf_glm_curriculum.errors import ModelError"),
        ("commands/main.py", "import hf_glm_curriculum"),
    ],
)
def test_a_right_import_passes(path, source):
    assert violations({path: source}) == []

"""The rules of the design that no number can show: which module imports which, and the language of formulas."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
from paths import TESTS, stored_rows
from strategies import LEAVES

import txcalc
from txcalc import ledger
from txcalc.parts import mechanisms, options, place

PACKAGE = Path(txcalc.__file__).parent

# From the bottom layer up: a module imports its own package and those above it.
LAYERS = (
    "errors", "frames", "num", "symbols", "notation", "units", "parts", "description", "ledger",
    "checkpoint", "model", "sources", "hardware", "planning", "program", "evidence", "algebra",
    "sweeps", "reference", "verification", "questions", "render", "cli",
)  # fmt: skip
# An answer names the type of its report.
LEVEL = {name: i for i, name in enumerate(LAYERS)} | {"render": LAYERS.index("questions")}
OUTSIDE = {
    "fvcore": {"verification"},
    "gguf": {"sources"},
    "huggingface_hub": {"sources"},
    "matplotlib": {"render"},
    "numpy": {"sweeps", "model"},
    "pandas": {"frames"},
    "plotille": {"render"},
    "polars": {"frames"},
    "pyarrow": {"frames", "sweeps"},
    "distributed": {"sweeps"},
    "rich": {"cli", "render"},
    "sympy": {"algebra", "verification"},
    "tomli_w": {"sources"},
    "torch": {"reference", "verification"},
    "transformers": {"verification"},
    "typer": {"cli"},
}
HEAVY = {
    "fvcore", "matplotlib", "numpy", "pandas", "plotille", "polars", "pyarrow", "pydantic", "sympy", "torch",
    "transformers",
}  # fmt: skip


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """All of a module's tree, the module first."""
    return tuple(ast.walk(ast.parse(path.read_text())))


def imports(path: Path) -> Iterator[str]:
    """Dotted names of everything a module imports, wherever in it."""
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path.name}: a relative import"
            yield from (
                [f"{node.module}.{a.name}" for a in node.names] if node.module == "txcalc" else [node.module or ""]
            )


def test_a_module_imports_only_those_above_it() -> None:
    for path in sorted(PACKAGE.rglob("*.py")):
        imports_upward_alone(path)


def imports_upward_alone(path: Path) -> None:
    module = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if module in ("__init__", "__main__"):
        return
    assert module in LAYERS, f"{module} has no place among the layers"
    for name in imports(path):
        first, *rest = name.split(".")
        if first != "txcalc":
            assert first in {*sys.stdlib_module_names, "msgspec"} or module in OUTSIDE.get(first, ()), (
                f"{path} imports {name}"
            )
        elif rest and rest[0] in LAYERS:
            assert LEVEL[rest[0]] <= LEVEL[module], f"{path} imports {name}"
        else:
            assert module == "cli", f"{path} imports txcalc's front door"


def test_the_page_on_the_architecture_lists_the_layers() -> None:
    """In their order, each with the packages that it alone may import."""
    text = (TESTS.parent / "docs" / "architecture.md").read_text("utf-8")
    listed = dict(re.findall(r"^\*\*`(\w+)(?:/|\.py)`\*\* (.*?)\n\n", text, re.M | re.S))
    assert tuple(listed) == LAYERS
    for layer, paragraph in listed.items():
        used = {package for package, layers in OUTSIDE.items() if layer in layers}
        assert {package for package in OUTSIDE if f"`{package}`" in paragraph} == used, layer


def circle(package: Path) -> list[str]:
    """Modules that import each other in a circle, wherever the imports stand: on top, for types alone, in a function.

    Only a front door may name the modules behind it in its functions, which load them when they are asked for.
    """
    paths = {
        ".".join((package.name, *path.relative_to(package).with_suffix("").parts)).removesuffix(".__init__"): path
        for path in package.rglob("*.py")
    }
    graph: dict[str, set[str]] = {}
    for name, path in paths.items():
        froms = {node for node in nodes(path) if isinstance(node, ast.ImportFrom)}
        if path.stem == "__init__":
            inside = {node for item in nodes(path) if isinstance(item, ast.FunctionDef) for node in ast.walk(item)}
            froms -= {node for node in froms & inside if (node.module or "").startswith(name)}
        names = {(node.module or "", alias.name) for node in froms for alias in node.names}
        graph[name] = {child if (child := f"{module}.{item}") in paths else module for module, item in names} & {*paths}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_imports_go_round_in_no_circle(tmp_path: Path) -> None:
    assert circle(PACKAGE) == []
    first, second = tmp_path / "one.py", tmp_path / "other.py"
    first.write_text(f"from {tmp_path.name}.other import Stack\nclass Part: pass\n")
    second.write_text(f"if TYPE_CHECKING:\n    from {tmp_path.name} import one\n")
    assert {*circle(tmp_path)} == {f"{tmp_path.name}.one", f"{tmp_path.name}.other"}


def test_no_module_shares_its_name_with_a_command() -> None:
    """An import of `txcalc.sweep` would put a module in place of the function."""
    assert modules().isdisjoint(txcalc.COMMANDS)


def modules() -> set[str]:
    """The modules and packages at the top; a folder of compiled files that a move left behind is none."""
    return {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}


def test_every_module_is_there() -> None:
    assert modules() - {"__init__", "__main__"} == set(LAYERS)


def loaded(code: str) -> set[str]:
    """Which heavy packages a fresh interpreter has after this."""
    script = f"{code}\nimport sys\nprint('loaded:', *({HEAVY!r} & set(sys.modules)))"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    return set(answer.splitlines()[-1].split()[1:])


LIGHT = [
    ["show", "gpt2"], ["presets"], ["compare", "gpt2", "llama-3.1-8b"], ["kv", "gemma-3-27b"], ["--help"],
    ["train", "gpt2", "--gpu", "h100:8", "--layout", "fsdp=8"], ["crossover", "gpt2", "--no-formulas"],
    ["fit", "gpt2", "--gpu", "h100"], ["deploy", "gpt2", "--gpu", "h100"],
]  # fmt: skip


def test_nothing_heavy_is_loaded_by_import_load_or_ledger() -> None:
    assert loaded("import txcalc; txcalc.load('gpt2').ledger(tokens=8).by_kind('flops')") == set()
    refused = "import txcalc\ntry: txcalc.verify('gpt2', oracles='nope')\nexcept txcalc.UnknownName: print()"
    assert loaded(refused) == set()


def test_nothing_heavy_is_loaded_by_commands_that_do_not_need_it() -> None:
    runs = f"""
        import sys, txcalc.cli
        for command in {LIGHT!r}:
            sys.argv = ["txcalc", *command]
            try:
                txcalc.cli.entry()
            except SystemExit as done:
                assert not done.code, command
    """
    assert loaded(textwrap.dedent(runs)) == set()


def private_names(text: str) -> set[str]:
    """Names with an underscore that a test imports, reads off another object, or patches by their text."""
    names = set[str]()
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.ImportFrom():
                names |= {part for alias in node.names for part in (*(node.module or "").split("."), alias.name)}
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                pass
            case ast.Attribute(attr=name):
                names.add(name)
            case ast.Call(func=ast.Attribute(attr="setattr"), args=args):
                names |= {str(arg.value).rpartition(".")[2] for arg in args if isinstance(arg, ast.Constant)}
    return {name for name in names if re.fullmatch(r"_[a-zA-Z]\w*", name)}


@pytest.mark.slow
def test_no_test_uses_a_private_name() -> None:
    """What is worth a test is public: a function that is one is renamed, what it does inside is tested from outside."""
    all_nodes = [node for path in PACKAGE.rglob("*.py") for node in nodes(path)]
    private = {getattr(node, "name", "") for node in all_nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    private |= {node.id for node in all_nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    private -= {"_replace", "_asdict", "_repr_html_", "_repr_svg_"}
    for path in [*TESTS.glob("*.py"), *TESTS.rglob("test_*.py")]:
        assert private_names(path.read_text()) & private == set(), path
    for planted in ("from txcalc.ledger import _find", "ledger._find()", 'monkeypatch.setattr(ledger, "_find", 1)'):
        assert private_names(planted) & private


# The language of formulas.

# All of `parts` but what decides only structure: how a part is made, described, shared out, frozen beside adapters.
NOT_FORMULAS = {"__init__", "adapters", "forms", "mechanisms", "options", "place", "projectors", "sharding", "structs"}
MODULES = [
    import_module(".".join(("txcalc", *path.relative_to(PACKAGE).with_suffix("").parts)))
    for path in sorted((PACKAGE / "parts").rglob("*.py"))
    if path.stem not in NOT_FORMULAS
]


@pytest.mark.parametrize("section", mechanisms.ALL)
def test_a_table_says_all_of_itself(section: str) -> None:
    """Its keys and what they build are in its options, which stand beside the part."""
    table = mechanisms.options(section)
    assert issubclass(table, place.Mechanism) == (section in mechanisms.PART_TABLES)
    if issubclass(table, place.Mechanism):
        assert table.kind in ledger.KINDS
        assert vars(table)["build"].__annotations__["return"] in vars(sys.modules[table.__module__])


# Variables that are no `self`, by the class they are of.
CLASSES = {
    "work": "Workload", "branch": "Branch", "group": "LayerGroup", "child": "Child", "place": "Place",
    "norm": "NormOptions", "places": "PositionsOptions", "embedding": "EmbeddingOptions", "vision": "VisionOptions",
    "at": "HeadInputs",
}  # fmt: skip
ASKS_STRUCTURE = {"absent"}  # of a number, whether it is a plain 0
FORBIDDEN = {"abs", "bool", "divmod", "float", "int", "max", "min", "pow", "round", "sum"}
Fields = dict[str, dict[str, str]]


@cache
def fields() -> Fields:
    """The annotations of every part, with its properties and what it inherits: {"Linear": {"d_in": "Num", …}, …}."""
    table: Fields = {}
    for module in (options, place, *MODULES):
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(node, ast.ClassDef):
                inherited = {key: kind for base in node.bases for key, kind in table.get(ast.unparse(base), {}).items()}
                annotated = {
                    item.target.id: ast.unparse(item.annotation)
                    for item in node.body
                    if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
                }
                properties = {
                    item.name: ast.unparse(item.returns)
                    for item in node.body
                    if isinstance(item, ast.FunctionDef) and item.returns and item.decorator_list
                }
                table[node.name] = {**inherited, **annotated, **properties}
    return table


class Reader(ast.NodeVisitor):
    """Collects what a formula must not say.

    Arithmetic is + - * and the helpers of `num`. A condition may ask about structure: a field that is a flag, a text or
    perhaps None; what type something is; whether it is None. It never asks about a number.
    """

    def __init__(self, fields_of: Fields) -> None:
        self.fields_of = fields_of
        self.faults: list[str] = []
        self.cls = ""
        self.structural: set[str] = set()  # local names bound to an answer about structure

    def fault(self, node: ast.expr) -> None:
        self.faults.append(f"line {node.lineno}: {ast.unparse(node)}, neither arithmetic nor about structure")

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.cls = node.name
        self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if node.name == "conflicts":  # a check of what a description says, which asks `num` of its numbers
            return
        args = (*node.args.args, *node.args.kwonlyargs)
        self.structural = {arg.arg for arg in args if arg.annotation and ast.unparse(arg.annotation) == "bool"}
        for statement in node.body:  # annotations and decorators are no formulas
            self.visit(statement)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value:
            self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        if self.is_structural(node.value):
            self.structural |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, float | complex):
            self.fault(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        literal = isinstance(node.left, ast.Constant) and isinstance(node.right, ast.Constant)  # 10**9
        union = isinstance(node.op, ast.BitOr) and all(name[0].isupper() for name in ast.unparse(node).split(" | "))
        if not (isinstance(node.op, ast.Add | ast.Sub | ast.Mult) or literal or union):
            self.fault(node)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if not isinstance(node.op, ast.Not):
            self.fault(node)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.faults.append(ast.unparse(node))

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id in FORBIDDEN:
            self.fault(node)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        if not self.is_structural(node):
            self.fault(node)
        self.generic_visit(node)

    def visit_tested(self, node: ast.If | ast.IfExp | ast.While | ast.Assert) -> None:
        self.check_condition(node.test)
        self.generic_visit(node)

    visit_If = visit_IfExp = visit_While = visit_Assert = visit_tested

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self.check_condition(test)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        for value in node.values[:-1]:  # the last is only a value
            self.check_condition(value)
        self.generic_visit(node)

    def check_condition(self, test: ast.expr) -> None:
        if not self.is_structural(test):
            self.fault(test)

    def is_structural(self, test: ast.expr) -> bool:
        if isinstance(test, ast.BoolOp):
            return all(map(self.is_structural, test.values))
        if isinstance(test, ast.UnaryOp):
            return isinstance(test.op, ast.Not) and self.is_structural(test.operand)
        if isinstance(test, ast.Compare):
            return self.compares_structure(test.left, test.ops[0], test.comparators[0])
        if isinstance(test, ast.Call):
            return ast.unparse(test.func) in ASKS_STRUCTURE
        if isinstance(test, ast.Name):
            return test.id in self.structural or test.id == "TYPE_CHECKING"
        kind = self.kind(test)
        return kind not in (None, "int") and not {"Any", "Num"} & {*(kind or "").split(" | ")}

    def compares_structure(self, left: ast.expr, how: ast.cmpop, right: ast.expr) -> bool:
        is_text = any(isinstance(side, ast.Constant) and isinstance(side.value, str) for side in (left, right))
        if isinstance(how, ast.Is | ast.IsNot):
            asks_type = isinstance(left, ast.Call) and ast.unparse(left.func) == "type"
            return asks_type or (isinstance(right, ast.Constant) and right.value is None)
        if isinstance(how, ast.In | ast.NotIn | ast.Eq | ast.NotEq):
            return is_text or (self.kind(left) or "").startswith("str") or ast.unparse(right).endswith(".__dict__")
        return False

    def kind(self, value: ast.expr) -> str | None:
        """The annotation of a field, if this is one."""
        if not (isinstance(value, ast.Attribute) and isinstance(value.value, ast.Name)):
            return None
        owner = self.cls if value.value.id == "self" else CLASSES.get(value.value.id, "")
        return self.fields_of.get(owner, {}).get(value.attr)


def faults(source: str, fields_of: Fields) -> list[str]:
    reader = Reader(fields_of)
    reader.visit(ast.parse(textwrap.dedent(source)))
    return reader.faults


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.rpartition(".")[2])
def test_formulas_are_arithmetic(module: ModuleType) -> None:
    assert faults(inspect.getsource(module), fields()) == []


@pytest.mark.parametrize("planted", stored_rows("refused.json", "formulas of leaves"))
def test_a_planted_formula_is_noticed(planted: str) -> None:
    body = "".join(f"        {line.strip()}\n" for line in planted.split(";"))
    assert faults(f"class Linear(Leaf):\n    def weights(self, work):\n{body}", fields())


@pytest.mark.parametrize("leaf", LEAVES, ids=lambda leaf: leaf.__name__)
def test_a_leaf_says_its_unit_and_its_source(leaf: type) -> None:
    labels = ("Shapes", "Unit", "Counts", "Omits", "Traffic", "Kept", "Source")
    lines = [line.split()[0] for line in (inspect.getdoc(leaf) or "").splitlines() if line and line[0].isupper()]
    ordered = [label for label in lines if label in labels]
    assert ordered == [label for label in labels if label in ordered], "in the usual order"
    assert {"Unit", "Source"} <= set(ordered)


def test_the_front_door_lists_what_it_offers() -> None:
    public = {name for name, value in vars(txcalc).items() if name[0] != "_" and not inspect.ismodule(value)}
    public -= {"CLASSES", "COMMANDS", "TYPE_CHECKING", "Any", "ModuleType", "cache", "import_module"}
    assert txcalc.__all__ == sorted(txcalc.__all__) == dir(txcalc)
    assert set(txcalc.__all__) == public | set(txcalc.COMMANDS) | set(txcalc.CLASSES)
    for name in [*txcalc.COMMANDS, *txcalc.CLASSES]:
        assert callable(getattr(txcalc, name)), name
    with pytest.raises(AttributeError, match="no attribute 'shows'"):
        txcalc.shows  # noqa: B018


def test_an_import_that_fails_leaves_the_search_for_garbage_on() -> None:
    """It is off while txcalc is imported, and stays off only where it was off before."""
    code = """
import gc, sys
sys.modules["txcalc.ledger"] = None
for before in (gc.enable, gc.disable):
    before()
    was = gc.isenabled()
    try:
        import txcalc
    except ImportError:
        assert gc.isenabled() == was
        continue
    raise SystemExit("txcalc was imported")
"""
    subprocess.run([sys.executable, "-c", code], check=True)

"""House rules that no linter knows: sizes, headers, which module may import what, the pure core.

Every rule is a function from a source (`Source`: path, text, syntax tree) to the findings in it.
`test_tidy_rules.py` plants violations that each rule must find, so that no rule can stop working
unnoticed. The rules see syntax and no types: a set that they do not recognize is forbidden
nevertheless.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("edgeagent", "protocols", "models")
PURE = ("protocols/", "edgeagent/planner/")

MAX_FUNCTION_LINES = 69
MAX_MODULE_LINES = 599
MAX_COLUMNS = 100

# fmt: off
PURE_STDLIB = frozenset({
    "__future__", "abc", "array", "base64", "binascii", "bisect", "collections", "copy",
    "dataclasses", "decimal", "enum", "fractions", "functools", "graphlib", "hashlib", "heapq",
    "hmac", "ipaddress", "itertools", "math", "numbers", "operator", "random", "re", "statistics",
    "string", "struct", "textwrap", "types", "typing", "zlib",
})
ORDER_MAKERS = frozenset({
    "deque", "dict", "enumerate", "filter", "iter", "list", "map", "sum", "tuple", "zip",
})
# fmt: on
ORDER_FREE = frozenset({"all", "any", "frozenset", "len", "set", "sorted"})
ORDER_METHODS = frozenset({"extend", "fromkeys", "join", "writelines"})
UNSAFE_MODULES = frozenset({"cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve"})
UNSAFE_CALLS = frozenset({"eval", "exec"})
IMPURE_CALLS = frozenset({"breakpoint", "hash", "id", "input", "open", "print"})
IMPURE_ATTRIBUTES = frozenset(
    {"time.time", "time.monotonic", "os.environ", "os.urandom", "np.random", "numpy.random"}
)
SET_TYPES = frozenset({"set", "frozenset", "Set", "FrozenSet", "AbstractSet", "MutableSet"})
SET_METHODS = frozenset({"union", "intersection", "difference", "symmetric_difference"})
VIEW_METHODS = frozenset({"keys", "items"})

Node = ast.AST
Finding = tuple[int, str]


@dataclass(frozen=True)
class Source:
    """One file: its path relative to the repository, its text and its syntax tree.

    `shared_sets` are names of attributes that are sets wherever the pure core annotates them.
    """

    path: str
    text: str
    shared_sets: frozenset[str] = frozenset()

    @property
    def tree(self) -> ast.Module:
        """The syntax tree, parsed once per text."""
        return _parse(self.text)


@cache
def _parse(text: str) -> ast.Module:
    return ast.parse(text)


Rule = Callable[[Source], Iterable[Finding]]


# Sizes and headers


def long_functions(source: Source) -> Iterator[Finding]:
    """Functions of 70 lines or more, decorators not counted."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > MAX_FUNCTION_LINES:
                yield node.lineno, f"{node.name} has {lines} lines"


def long_modules(source: Source) -> Iterator[Finding]:
    """Files of 600 lines or more."""
    lines = len(source.text.splitlines())
    if lines > MAX_MODULE_LINES:
        yield lines, f"{lines} lines"


def wide_lines(source: Source) -> Iterator[Finding]:
    """Lines of more than 100 columns."""
    for number, line in enumerate(source.text.splitlines(), 1):
        if len(line) > MAX_COLUMNS:
            yield number, f"{len(line)} columns"


def missing_headers(source: Source) -> Iterator[Finding]:
    """Files with content and no docstring that says what they are for."""
    if source.tree.body and not (ast.get_docstring(source.tree) or "").strip():
        yield 1, "no module docstring"


def machine_paths(source: Source) -> Iterator[Finding]:
    """Absolute paths that exist on one developer's machine only."""
    pattern = re.compile(r"(?<![\w.~}*-])/(?:" + "wor" + "k|roo" + r"t)(?![\w-])")
    for number, line in enumerate(source.text.splitlines(), 1):
        if pattern.search(line):
            yield number, f"machine path in {line.strip()!r}"


# Imports


def imports(source: Source) -> Iterator[tuple[int, str, bool]]:
    """(line, absolute module name, inside a function?) of every import in the file.

    `from a import b` counts as `a.b`, since `b` may be a module.
    """
    package = Path(source.path).parent.parts
    lazy = {
        id(inner)
        for node in ast.walk(source.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for inner in ast.walk(node)
    }
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, id(node) in lazy
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            parts = [*base, *([node.module] if node.module else [])]
            for alias in node.names:
                yield node.lineno, ".".join([*parts, alias.name]), id(node) in lazy


def _within(module: str, *packages: str) -> bool:
    return any(module == name or module.startswith(name + ".") for name in packages)


def _foreign(
    source: Source, stdlib: frozenset[str], *packages: str, but: tuple[str, ...] = ()
) -> Iterator[Finding]:
    for line, module, _ in imports(source):
        known = module.partition(".")[0] in stdlib or _within(module, *packages)
        if not known or _within(module, *but):
            yield line, f"imports {module}"


def protocol_imports(source: Source) -> Iterator[Finding]:
    """`protocols` knows the pure part of the standard library, msgpack and itself."""
    if source.path.startswith("protocols/"):
        yield from _foreign(source, PURE_STDLIB, "msgpack", "protocols")


def planner_imports(source: Source) -> Iterator[Finding]:
    """The planner knows the pure part of the standard library, numpy, `protocols` and itself."""
    if source.path.startswith("edgeagent/planner/"):
        known = ("numpy", "protocols", "edgeagent.planner")
        yield from _foreign(source, PURE_STDLIB, *known, but=("numpy.random",))


def torch_imports(source: Source) -> Iterator[Finding]:
    """In the agent only `edgeagent/trainer/` may load torch, also by way of another package."""
    if source.path.startswith("edgeagent/") and not source.path.startswith("edgeagent/trainer/"):
        for line, module, _ in imports(source):
            if _within(module, "torch", "safetensors.torch"):
                yield line, f"imports {module} outside edgeagent/trainer"


def model_imports(source: Source) -> Iterator[Finding]:
    """`models` knows torch, numpy, the standard library and itself."""
    if source.path.startswith("models/"):
        yield from _foreign(source, sys.stdlib_module_names, "torch", "numpy", "models")


def imports_of_models(source: Source) -> Iterator[Finding]:
    """The agent imports `models` nowhere but in functions of the built-in jobs."""
    if source.path.startswith(("edgeagent/", "protocols/")):
        for line, module, lazy in imports(source):
            job = source.path.startswith("edgeagent/trainer/jobs/")
            if _within(module, "models") and not (lazy and job):
                yield line, f"imports {module}, which may be the user's own"


# Calls


def _name(node: Node) -> str:
    """`a.b.c` for a chain of names, otherwise the empty string."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (base := _name(node.value)):
        return f"{base}.{node.attr}"
    return ""


def unsafe_loading(source: Source) -> Iterator[Finding]:
    """Anything in the packages that runs code found in data."""
    if not source.path.startswith(PACKAGES):
        return
    for line, module, _ in imports(source):
        if _within(module, *UNSAFE_MODULES, "torch.load"):
            yield line, f"imports {module}"
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Attribute) and _name(node) == "torch.load":
            yield node.lineno, "uses torch.load"
        if isinstance(node, ast.Call) and _name(node.func) in UNSAFE_CALLS:
            yield node.lineno, f"calls {_name(node.func)}"
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            harmless = isinstance(node.value, ast.Constant) and node.value.value is False
            yield from [] if harmless else [(node.value.lineno, "may allow pickle")]


def impurity(source: Source) -> Iterator[Finding]:
    """Clocks, files, the environment and the process's own state in the pure core."""
    if not source.path.startswith(PURE):
        return
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and _name(node.func) in IMPURE_CALLS:
            yield node.lineno, f"calls {_name(node.func)}"
        elif isinstance(node, ast.Attribute):
            name = _name(node)
            if name in IMPURE_ATTRIBUTES:
                yield node.lineno, f"uses {name}"
            elif _within(name, "random") and name != "random.Random":
                yield node.lineno, f"uses {name}, which draws from the global generator"
        elif isinstance(node, ast.Global):
            yield node.lineno, f"changes global {', '.join(node.names)}"
    for line, module, _ in imports(source):
        if _within(module, "random") and module not in ("random", "random.Random"):
            yield line, f"imports {module}"


# Sets


def is_set_annotation(node: Node | None) -> bool:
    """Does the annotation name a set, possibly `| None` or as a string?"""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return is_set_annotation(ast.parse(node.value, mode="eval").body)
    if isinstance(node, ast.BinOp):
        return is_set_annotation(node.left) or is_set_annotation(node.right)
    if isinstance(node, ast.Subscript):
        return is_set_annotation(node.value)
    return node is not None and _name(node).rpartition(".")[2] in SET_TYPES


class SetNames(ast.NodeVisitor):
    """Collects the names of a file's sets: variables per scope, attributes, results of functions.

    `SetOrders` visits the file a second time, so that it knows names that are used above their
    definition.
    """

    def __init__(self, shared: frozenset[str] = frozenset()) -> None:
        self.shared = shared
        self.scopes: dict[Node, dict[str, bool]] = {}
        self.attributes: dict[str, bool] = {}
        self.results: dict[str, bool] = {}
        self.stack: list[dict[str, bool]] = []

    def visit_Module(self, node: ast.Module) -> None:
        self._enter(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for part in node.body:
            if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                self._note(self.attributes, part.target.id, is_set_annotation(part.annotation))
        self._enter(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._function(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._assign(node.target, is_set_annotation(node.annotation))
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            if not isinstance(target, ast.Attribute) or target.attr not in self.attributes:
                self._assign(target, self.is_set(node.value))
        self.generic_visit(node)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._note(self.results, node.name, is_set_annotation(node.returns))
        if any(_name(decorator).endswith("property") for decorator in node.decorator_list):
            self._note(self.attributes, node.name, is_set_annotation(node.returns))
        self._enter(node)

    def _enter(
        self, node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    ) -> None:
        scope = self.scopes.setdefault(node, {})
        self.stack.append(scope)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            every = node.args
            for argument in [*every.posonlyargs, *every.args, *every.kwonlyargs]:
                scope[argument.arg] = is_set_annotation(argument.annotation)
        self.generic_visit(node)
        self.stack.pop()

    def _assign(self, target: Node, found: bool) -> None:
        if isinstance(target, ast.Name):
            self._note(self.stack[-1], target.id, found)
        elif isinstance(target, ast.Attribute):
            self._note(self.attributes, target.attr, found)

    @staticmethod
    def _note(names: dict[str, bool], name: str, found: bool) -> None:
        names[name] = names.get(name, False) or found

    def is_set(self, node: Node) -> bool:
        """Is the expression a set, as far as syntax and the names seen tell?"""
        if isinstance(node, ast.Set | ast.SetComp):
            return True
        if isinstance(node, ast.Name):
            known = [scope[node.id] for scope in self.stack if node.id in scope]
            return bool(known) and known[-1]
        if isinstance(node, ast.Attribute):
            return self.attributes.get(node.attr, node.attr in self.shared)
        if isinstance(node, ast.IfExp):
            return self.is_set(node.body) or self.is_set(node.orelse)
        if isinstance(node, ast.BoolOp):
            return any(map(self.is_set, node.values))
        if isinstance(node, ast.NamedExpr):
            return self.is_set(node.value)
        if isinstance(node, ast.BinOp) and isinstance(
            node.op, ast.BitAnd | ast.BitOr | ast.BitXor | ast.Sub
        ):
            return any(self.is_set(side) or _is_view(side) for side in (node.left, node.right))
        return isinstance(node, ast.Call) and self._is_set_call(node.func)

    def _is_set_call(self, function: Node) -> bool:
        if isinstance(function, ast.Name):
            return function.id in ("set", "frozenset") or self.results.get(function.id, False)
        if isinstance(function, ast.Attribute):
            if function.attr in SET_METHODS or self.results.get(function.attr, False):
                return True
            return function.attr == "copy" and self.is_set(function.value)
        return False


def _is_view(node: Node) -> bool:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in VIEW_METHODS
    return False


class SetOrders(SetNames):
    """Finds places where the order of a set's elements would come out."""

    def __init__(self, names: SetNames) -> None:
        super().__init__(names.shared)
        self.scopes = names.scopes
        self.attributes = names.attributes
        self.results = names.results
        self.findings: list[Finding] = []
        self.order_free: list[Node] = []

    def _check(self, node: ast.expr, how: str) -> None:
        if self.is_set(node):
            self.findings.append((node.lineno, f"{how} the set `{ast.unparse(node)}`"))

    def visit_For(self, node: ast.For) -> None:
        self._check(node.iter, "iterates")
        self.generic_visit(node)

    def visit_ListComp(self, node: ast.ListComp) -> None:
        self._comprehension(node)

    def visit_DictComp(self, node: ast.DictComp) -> None:
        self._comprehension(node)

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> None:
        self._comprehension(node)

    def _comprehension(self, node: ast.ListComp | ast.DictComp | ast.GeneratorExp) -> None:
        if node not in self.order_free:
            for generator in node.generators:
                self._check(generator.iter, "iterates")
        self.generic_visit(node)

    def visit_Starred(self, node: ast.Starred) -> None:
        self._check(node.value, "unpacks")
        self.generic_visit(node)

    def visit_YieldFrom(self, node: ast.YieldFrom) -> None:
        self._check(node.value, "yields from")
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if any(isinstance(target, ast.Tuple | ast.List) for target in node.targets):
            self._check(node.value, "unpacks")
        super().visit_Assign(node)

    def visit_Call(self, node: ast.Call) -> None:
        method = isinstance(node.func, ast.Attribute)
        name = node.func.attr if isinstance(node.func, ast.Attribute) else _name(node.func)
        keyed = any(keyword.arg == "key" for keyword in node.keywords)
        if not method and (name in ORDER_FREE or (name in ("max", "min") and not keyed)):
            self.order_free += node.args
        if name in (ORDER_METHODS if method else ORDER_MAKERS):
            for argument in node.args:
                self._check(argument, f"{name} takes")
        if isinstance(node.func, ast.Attribute) and name == "pop" and not node.args:
            self._check(node.func.value, "pops from")
        self.generic_visit(node)


def set_orders(source: Source) -> Iterator[Finding]:
    """Iteration over sets in the pure core.

    Allowed where order cannot come out: building another set, `sorted`, `any`, `all`, `len`, and
    `max` and `min` without a key.
    """
    if source.path.startswith(PURE):
        names = SetNames(source.shared_sets)
        names.visit(source.tree)
        orders = SetOrders(names)
        orders.visit(source.tree)
        yield from orders.findings


# The tree


def _read(path: Path) -> Source | None:
    try:
        return Source(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        return None


def shared_sets(sources: Iterable[Source]) -> frozenset[str]:
    """Attributes that are sets in every file of the pure core that annotates them."""
    seen: dict[str, list[bool]] = {}
    for source in sources:
        if source.path.startswith(PURE):
            names = SetNames()
            names.visit(source.tree)
            for name, found in names.attributes.items():
                seen.setdefault(name, []).append(found)
    return frozenset(name for name, found in seen.items() if all(found))


@cache
def all_sources() -> tuple[Source, ...]:
    """Every text file of the project."""
    paths = [path for path in ROOT.iterdir() if path.suffix in (".md", ".toml", ".txt")]
    for directory in (*PACKAGES, "examples", "scripts", "tests", ".ci"):
        paths += (ROOT / directory).rglob("*")
    files = [path for path in sorted(paths) if path.is_file() and path.parent.name != "__pycache__"]
    sources = [source for path in files if (source := _read(path)) is not None]
    shared = shared_sets(source for source in sources if source.path.endswith(".py"))
    return tuple(replace(source, shared_sets=shared) for source in sources)


RULES: tuple[Rule, ...] = (
    long_functions,
    long_modules,
    wide_lines,
    missing_headers,
    machine_paths,
    protocol_imports,
    planner_imports,
    torch_imports,
    model_imports,
    imports_of_models,
    unsafe_loading,
    impurity,
    set_orders,
)


def broken(rule: Rule, sources: Iterable[Source]) -> list[str]:
    """What the rule finds, as `path:line: finding`. Only `machine_paths` looks at other files than
    Python's."""
    return [
        f"{source.path}:{line}: {finding}"
        for source in sources
        if source.path.endswith(".py") or rule is machine_paths
        for line, finding in rule(source)
    ]


@pytest.mark.parametrize("rule", RULES)
def test_project_keeps_the_rule(rule: Rule) -> None:
    found = broken(rule, all_sources())
    assert not found, "\n".join([rule.__doc__ or rule.__name__, *found])


def test_the_project_was_found() -> None:
    found = {source.path.partition("/")[0] for source in all_sources()}
    assert found >= {*PACKAGES, "examples", "scripts", "tests", "pyproject.toml"}


def test_the_agent_process_never_loads_torch() -> None:
    names = [
        source.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for source in all_sources()
        if source.path.startswith(("edgeagent/", "protocols/")) and source.path.endswith(".py")
        if not source.path.startswith("edgeagent/trainer/") and "__main__" not in source.path
    ]
    script = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module(name)\n"
        "    assert 'torch' not in sys.modules, name + ' loads torch'\n"
    )
    command = [sys.executable, "-c", script, *names]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert ended.returncode == 0, ended.stderr

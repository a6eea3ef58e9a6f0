"""Each rule of `test_tidy` finds what it must find, and nothing else.

A case is one planted violation, which must be found exactly once. Every rule has at least one case.
"""

from __future__ import annotations

import pytest

from tests import test_tidy as tidy
from tests.test_tidy import Rule, Source

HOME, CORE, PLAN = "edgeagent/agent.py", "protocols/view.py", "edgeagent/planner/trees.py"
JOB, NET = "edgeagent/trainer/jobs/digits.py", "models/nets.py"

LONG_BODY = "def f():\n" + "    pass\n" * 69
SHORT_BODY = "@wraps(\n    g\n)\ndef f():\n" + "    pass\n" * 68

VIOLATIONS: list[tuple[Rule, str, str]] = [
    (tidy.long_functions, HOME, LONG_BODY),
    (tidy.long_functions, HOME, "class A:\n    async " + LONG_BODY.replace("\n", "\n    ")),
    (tidy.long_modules, HOME, "\n" * 600),
    (tidy.wide_lines, HOME, "x = '" + "." * 95 + "'"),
    (tidy.missing_headers, HOME, "import os\n"),
    (tidy.missing_headers, HOME, '"""   """\n'),
    (tidy.machine_paths, HOME, "x = '/" + "work/shared'"),
    (tidy.machine_paths, "README.md", "see `/" + "root`"),
    (tidy.protocol_imports, CORE, "import asyncio"),
    (tidy.protocol_imports, CORE, "def f():\n    import os.path"),
    (tidy.protocol_imports, CORE, "from time import monotonic"),
    (tidy.protocol_imports, CORE, "import numpy"),
    (tidy.protocol_imports, CORE, "from edgeagent.planner import trees"),
    (tidy.planner_imports, PLAN, "from threading import Lock"),
    (tidy.planner_imports, PLAN, "from .. import agent"),
    (tidy.planner_imports, PLAN, "from numpy.random import default_rng"),
    (tidy.planner_imports, PLAN, "import msgpack"),
    (tidy.torch_imports, HOME, "import torch"),
    (tidy.torch_imports, "edgeagent/dataplane/flat.py", "def f():\n    from torch import nn"),
    (tidy.torch_imports, HOME, "from safetensors.torch import save_file"),
    (tidy.model_imports, NET, "import protocols"),
    (tidy.model_imports, NET, "import torchvision"),
    (tidy.imports_of_models, HOME, "def f():\n    import models"),
    (tidy.imports_of_models, JOB, "from models.nets import digits_net"),
    (tidy.imports_of_models, "edgeagent/trainer/api.py", "def f():\n    from models import nets"),
    (tidy.unsafe_loading, HOME, "import pickle"),
    (tidy.unsafe_loading, NET, "from torch import load"),
    (tidy.unsafe_loading, JOB, "state = torch.load(path)"),
    (tidy.unsafe_loading, HOME, "eval('1')"),
    (tidy.unsafe_loading, HOME, "exec(code, {})"),
    (tidy.unsafe_loading, NET, "np.load(path, allow_pickle=True)"),
    (tidy.impurity, CORE, "now = time.time()"),
    (tidy.impurity, PLAN, "debug = os.environ['DEBUG']"),
    (tidy.impurity, CORE, "text = open('x').read()"),
    (tidy.impurity, CORE, "print('x')"),
    (tidy.impurity, CORE, "order = hash('x')"),
    (tidy.impurity, CORE, "def f():\n    global count"),
    (tidy.impurity, CORE, "x = random.random()"),
    (tidy.impurity, CORE, "from random import shuffle"),
    (tidy.impurity, PLAN, "x = np.random.rand()"),
]

ITERATIONS = [
    "for x in {1, 2}:\n    pass",
    "for x in set(y):\n    pass",
    "[x for x in frozenset(y)]",
    "{x: 1 for x in {z for z in y}}",
    "f(x for x in set(y))",
    "max((x for x in set(y)), key=len)",
    "def f(a: set[int]):\n    for x in a:\n        pass",
    "def f(*, a: 'frozenset[int] | None'):\n    return list(a)",
    "def f(a: typing.AbstractSet[int]):\n    return [*a]",
    "def f():\n    a = set()\n    for x in a:\n        pass",
    "def f():\n    a: Set[int] = g()\n    yield from a",
    "class A:\n    a: frozenset[int]\n    def f(self):\n        return tuple(self.a)",
    "class A:\n    def f(self):\n        iter(self.a)\n    def g(self):\n        self.a = set()",
    "class A:\n    @property\n    def a(self) -> set[int]: ...\ndef f(b: A):\n    return sum(b.a)",
    "def a() -> set[int]: ...\nfor x in a():\n    pass",
    "x, y = {1, 2}",
    "a = {1}\na.pop()",
    "a = {1}\n','.join(a)",
    "dict.fromkeys({1})",
    "for x in b.keys() & c:\n    pass",
    "for x in b.union(c):\n    pass",
    "a = {1}\nfor x in a | b:\n    pass",
    "for x in a or {1}:\n    pass",
    "for x in {1} if a else b:\n    pass",
    "for x in (a := {1}):\n    pass",
    "a = {1}\nfor x in a.copy():\n    pass",
]

ALLOWED: list[tuple[Rule, str, str]] = [
    (tidy.long_functions, HOME, SHORT_BODY),
    (tidy.long_modules, HOME, "\n" * 599),
    (tidy.wide_lines, HOME, "x = '" + "." * 94 + "'"),
    (tidy.missing_headers, "tests/__init__.py", ""),
    (tidy.machine_paths, HOME, "# the /worker, a team/work, ~/" + "work, /rooted trees"),
    (tidy.protocol_imports, CORE, "import msgpack\nfrom collections.abc import Set\nimport random"),
    (tidy.protocol_imports, HOME, "import asyncio"),
    (tidy.planner_imports, PLAN, "import numpy as np\nfrom protocols import view\nfrom . import a"),
    (tidy.torch_imports, "edgeagent/trainer/api.py", "import torch"),
    (tidy.torch_imports, HOME, "import safetensors"),
    (tidy.model_imports, NET, "import torch\nimport numpy\nimport gzip\nfrom models import idx"),
    (tidy.imports_of_models, JOB, "def f():\n    from models import nets"),
    (tidy.unsafe_loading, HOME, "model.eval()\nnp.load(path, allow_pickle=False)"),
    (tidy.unsafe_loading, "tests/test_x.py", "import pickle"),
    (tidy.impurity, CORE, "def f(now: float, rng: random.Random):\n    return rng.random()"),
    (tidy.impurity, HOME, "print(time.time(), open('x'))"),
    (tidy.set_orders, HOME, "for x in {1, 2}:\n    pass"),
    (tidy.set_orders, CORE, "for x in sorted({1, 2}):\n    pass"),
    (tidy.set_orders, CORE, "a = {1}\nb = frozenset(x for x in a)\nc = {x for x in a}\nlen(a)"),
    (tidy.set_orders, CORE, "a = {1}\nb = any(x > 0 for x in a) and max(x for x in a)\n1 in a"),
    (tidy.set_orders, CORE, "def f(a: set[int]): ...\ndef g(a: list[int]):\n    return list(a)"),
    (tidy.set_orders, CORE, "def f(a: dict[int, set[int]]):\n    for x in a:\n        a.pop(x)"),
    (tidy.set_orders, CORE, "for x in a - b:\n    pass\nfor y in d.keys():\n    pass"),
]


@pytest.mark.parametrize(("rule", "path", "text"), VIOLATIONS)
def test_violation_is_found(rule: Rule, path: str, text: str) -> None:
    assert len(tidy.broken(rule, [Source(path, text)])) == 1


@pytest.mark.parametrize("text", ITERATIONS)
def test_iteration_over_a_set_is_found(text: str) -> None:
    for path in (CORE, PLAN):
        assert len(tidy.broken(tidy.set_orders, [Source(path, text)])) == 1


@pytest.mark.parametrize(("rule", "path", "text"), ALLOWED)
def test_what_is_allowed_is_left_alone(rule: Rule, path: str, text: str) -> None:
    assert tidy.broken(rule, [Source(path, text)]) == []


def test_sets_are_known_across_files() -> None:
    definition = Source(CORE, "class View:\n    members: frozenset[int]\n    links: set[int]")
    other = Source(PLAN, "class Plan:\n    links: tuple[int, ...]")
    shared = tidy.shared_sets([definition, other])
    assert shared == {"members"}
    use = "def f(view: View):\n    for node in view.{}:\n        pass"
    assert tidy.broken(tidy.set_orders, [Source(PLAN, use.format("members"), shared)])
    assert not tidy.broken(tidy.set_orders, [Source(PLAN, use.format("links"), shared)])


def test_every_rule_is_tried() -> None:
    assert {rule for rule, _, _ in VIOLATIONS} | {tidy.set_orders} == set(tidy.RULES)

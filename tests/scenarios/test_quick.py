"""What spares the trainers of scenarios the import of PyTorch's compiler does so, and only that."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.scenarios.cluster import Cluster

PROGRAM = """
import sys
import torch

weight = torch.ones(3, requires_grad=True)
optimizer = torch.optim.AdamW([weight], lr=0.5)
weight.sum().backward()
optimizer.step()
optimizer.zero_grad()
print("torch._dynamo.symbolic_convert" in sys.modules, weight.tolist()[0] < 1.0)
double = torch.compile(lambda x: x * 2, backend="eager")
print("torch._dynamo.symbolic_convert" in sys.modules, double(torch.ones(1)).item())
"""


def test_the_compiler_is_loaded_only_where_it_is_used(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=Cluster(tmp_path).environment({}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.stdout.splitlines() == ["False True", "True 2.0"], ended.stderr

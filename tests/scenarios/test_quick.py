"""What spares the trainers of scenarios some parts of PyTorch does so, and only that."""

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
parts = "torch._dynamo.symbolic_convert", "torch.export.exported_program"
print(*(part in sys.modules for part in parts), weight.tolist()[0] < 1.0)
double = torch.compile(lambda x: x * 2, backend="eager")
print(*(part in sys.modules for part in parts), double(torch.ones(1)).item())
on_meta = torch.nn.Embedding(3, 2, device="meta")(torch.zeros(4, dtype=torch.long, device="meta"))
print(tuple(on_meta.shape), torch.export.export.__module__)
"""


def test_parts_are_loaded_only_where_they_are_used(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=Cluster(tmp_path).environment({}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.stdout.splitlines() == [
        "False False True",
        "True True 2.0",
        "(4, 2) torch.export",
    ], ended.stderr

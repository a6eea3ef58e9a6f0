"""Every script in `examples/` trains on two devices to one and the same model.

The scripts are what users are shown, so each is run as it is, with fewer steps.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scenarios.cluster import Agent, Cluster, free_ports
from tests.variants import variants

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
STEPS = 200  # of a few milliseconds each; the second device needs some of them to join
# Epochs of these have fewer than 200, and each round of local steps has 40 micro-batches.
FEWER = {"huggingface_trainer": 60, "local_steps": 60}
MOST_LINES = 10

Command = tuple[str, ...]  # the script and its arguments

RUNS: tuple[Command, ...] = (
    ("plain_loop",),
    ("ddp_ported", "--epochs", "15"),  # of 20 steps each
    ("huggingface_trainer",),
)
# What these show has scenarios of its own (local steps, subnets, workers) or tests of the trainer.
OTHERS: tuple[Command, ...] = (
    ("evaluation", "--evaluate"),
    ("mixed_precision", "--dtype", "float16"),
    ("mixed_precision", "--dtype", "bfloat16"),
    ("gradient_accumulation",),
    ("compiled_model", "--backend", "aot_eager"),
    ("workers_and_collate", "--workers", "1"),
    ("iterable_dataset",),
    ("local_steps",),
    ("subnets",),
    ("lightning_fit",),
)
ELSEWHERE = {"ddp_before"}  # has a test of its own


@pytest.fixture
def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Two agents that run an example."""
    with Cluster(tmp_path, fresh="compiled_model" in request.node.name) as cluster:
        yield cluster


def both(cluster: Cluster, script: str, *arguments: str) -> list[Agent]:
    """Start two agents; the second one joins in the first iterations of the first. It starts when
    the first can let it in, because one that was refused waits until it asks again, and the first
    might have ended by then."""
    job = str(EXAMPLES / f"{script}.py")
    steps = ("--steps", str(FEWER.get(script, STEPS)))
    founder = cluster.start("alice", *steps, job=job, script=arguments)
    founder.wait("joined")
    with founder.held():
        other = cluster.start(
            "bob", "--join-only", *steps, peers=[founder], job=job, script=arguments
        )
        other.wait_ready()
        other.wait("link_up")
    return [founder, other]


@pytest.mark.parametrize("command", variants(RUNS, long=OTHERS), ids=" ".join)
def test_two_devices_train_one_model(cluster: Cluster, command: Command) -> None:
    agents = both(cluster, *command)
    for agent in agents:
        assert agent.wait_exit() == 0, agent.describe()
    founder, other = agents
    last = FEWER.get(command[0], STEPS)
    assert founder.iteration == other.iteration == last
    assert max(e["members"] for e in other.all("step")) == 2
    assert sum(e["compute_s"] > 0 for e in other.all("step")) > 1
    shared = other.digests
    assert last in shared
    assert shared == {i: founder.digests[i] for i in shared}
    assert founder.save_path.read_bytes() == other.save_path.read_bytes()
    losses = founder.losses
    assert losses[last] < 0.95 * losses[1]
    assert not founder.said("Traceback")


@pytest.mark.long
def test_one_device_evaluates_each_epoch_while_the_other_trains_on(cluster: Cluster) -> None:
    job, steps = str(EXAMPLES / "evaluation.py"), ("--steps", "200")
    founder = cluster.start("alice", *steps, job=job)
    founder.wait("joined")
    with founder.held():
        other = cluster.start(
            "bob", "--join-only", *steps, peers=[founder], job=job, script=("--evaluate",)
        )
        other.wait_ready()
        other.wait("link_up")
    assert [agent.wait_exit() for agent in (founder, other)] == [0, 0], other.describe()
    assert not founder.all("evaluated")
    epochs = [e["iteration"] // 16 for e in other.all("evaluated")]
    assert len(epochs) > 3
    assert epochs == sorted(set(epochs)), "each epoch once"
    assert founder.save_path.read_bytes() == other.save_path.read_bytes()


def test_the_script_that_is_ported_runs_as_it_is(cluster: Cluster) -> None:
    (port,) = free_ports(1)
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    script = str(EXAMPLES / "ddp_before.py")
    agent = cluster.launch("before", [sys.executable, script, "--epochs", "2"], alone)
    assert agent.wait_exit() == 0, agent.log
    assert [line.split()[:3] for line in agent.said("epoch")] == [
        ["epoch", "0", "loss"],
        ["epoch", "1", "loss"],
    ]


def test_porting_it_changes_few_lines() -> None:
    before, after = (code(EXAMPLES / f"ddp_{name}.py") for name in ("before", "ported"))
    changed = [line for line in difflib.ndiff(before, after) if line[0] in "+-"]
    assert 0 < len(changed) <= MOST_LINES, changed


def code(path: Path) -> list[str]:
    """Return the lines of a file behind its docstring."""
    return path.read_text(encoding="utf-8").split('"""', 2)[2].splitlines()


def test_every_example_is_run_and_described() -> None:
    names = {path.stem for path in EXAMPLES.glob("*.py")}
    assert names == {script for script, *_ in (*RUNS, *OTHERS)} | ELSEWHERE
    readme = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert not [name for name in names if f"`{name}.py`" not in readme]

"""`--shard-optimizer`: as many devices as there are copies die at the worst moment, with kill -9.

The job's gradients have exact sums in any order of addition, so what is trained has to be, bit by
bit, what an undisturbed device trains alone, without a divided optimizer.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from safetensors.torch import load_file

from tests.scenarios.cluster import Agent, Cluster
from tests.scenarios.test_divided import survives

if TYPE_CHECKING:
    from collections.abc import Iterable

DYING = "tests.scenarios.dying_agent"
JOB = str(Path(__file__).parent / "scripts" / "whole_numbers.py")
LAYERS = 3
LAST = 300
OPTIONS = ("--steps", str(LAST))
OTHERS = [
    ("sums", 2, 1),
    ("results", 0, 1),
    ("results", 7, 1),
    ("results", 7, 2),
    ("sums", 2, 2),
    ("sums", 9, 2),
    ("results", 0, 2),
]
MILLISECONDS = "5"  # that a micro-batch takes


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the checkpoint of one device that has trained alone, with a whole optimizer."""
    with Cluster(tmp_path_factory.mktemp("alone"), job=JOB, options=OPTIONS) as cluster:
        alone = cluster.start("alone", script=["0"])
        assert alone.wait_exit() == 0, alone.describe()
        return alone.save_path


def weights(path: Path) -> dict[str, bytes]:
    """Return name -> bytes of the model's tensors in a checkpoint."""
    found = {k: v.numpy().tobytes() for k, v in load_file(path).items() if k.startswith("model.")}
    assert len(found) == LAYERS
    return found


def all_end_alike(agents: Iterable[Agent], undisturbed: Path) -> None:
    """Wait until all have trained to the end; check that nothing was lost on the way."""
    for agent in agents:
        assert agent.wait_exit() == 0, agent.describe()
        assert not agent.all("diverged")
        assert not agent.all("parts_missing")
        assert agent.iteration == LAST
        assert weights(agent.save_path) == weights(undisturbed), agent.describe()


def have_died(agents: Iterable[Agent]) -> None:
    for agent in agents:
        assert agent.wait_exit() == -signal.SIGKILL, agent.describe()


@pytest.mark.parametrize(
    ("moment", "after", "copies"),
    [
        ("sums", 9, 1),
        *(pytest.param(*rest, marks=pytest.mark.long) for rest in OTHERS),
    ],
)
def test_owners_die_in_the_middle_of(
    tmp_path: Path, undisturbed: Path, moment: str, after: int, copies: int
) -> None:
    die = tmp_path / "die"
    moments = {"DIES_AT": moment, "DIES_AFTER": str(after), "DIES_WHEN": str(die)}
    options = (*OPTIONS, "--shard-optimizer", "--copies", str(copies))
    with Cluster(tmp_path, job=JOB, options=options) as cluster:
        alice = cluster.start("alice", script=[MILLISECONDS])
        alice.wait("joined")
        with alice.held():
            names = ["bob", "carol", "dave"]
            others = [
                cluster.start(
                    name, script=[MILLISECONDS], peers=[alice], module=DYING, environment=moments
                )
                for name in names[:copies]
            ]
            others += [
                cluster.start(name, script=[MILLISECONDS], peers=[alice]) for name in names[copies:]
            ]
            for agent in others:
                agent.wait_ready()
        alice.wait_members("alice", *names)
        alice.wait_until("copies", lambda: survives(alice) == copies, 60)
        die.touch()
        have_died(others[:copies])
        left = [alice, *others[copies:]]
        alice.wait_members(*(agent.name for agent in left))
        wanted = min(copies, len(left) - 1)
        alice.wait_until("copies again", lambda: survives(alice) == wanted, 60)
        all_end_alike(left, undisturbed)


@pytest.mark.long
@pytest.mark.parametrize("moments", [("learns",), ("lends",), ("lends", "learns")])
def test_some_die_while_a_newcomer_learns(
    tmp_path: Path, undisturbed: Path, moments: tuple[str, ...]
) -> None:
    """As many as there are copies die: the newcomer, one that lends it its part, or both."""
    die, dead_file, copies = tmp_path / "die", tmp_path / "dead", len(moments)
    script = [MILLISECONDS, str(dead_file)]  # steps are slow until the death: it comes in time
    dying = {{"lends": "carol", "learns": "dave"}[moment]: moment for moment in moments}
    # Of a small part a lender may send no more than one frame, so it dies at the first one.
    after = "3" if moments == ("learns",) else "0"
    options = (*OPTIONS, "--shard-optimizer", "--copies", str(copies))
    with Cluster(tmp_path, job=JOB, options=options) as cluster:
        alice, bob = cluster.together("alice", "bob", script=script)
        agents = {"alice": alice, "bob": bob}

        def is_safe() -> bool:
            return survives(alice) == min(copies, len(agents) - 1)

        for name in ("carol", "dave"):
            alice.wait_until("copies", is_safe, 60)
            if name == "dave":
                die.touch()
            moment = dying.get(name)
            settings = {"DIES_AT": moment or "", "DIES_AFTER": after, "DIES_WHEN": str(die)}
            agents[name] = cluster.start(
                name,
                script=script,
                peers=[alice],
                module=DYING if moment else "edgeagent",
                environment=settings,
            )
            if name == "carol":
                agents[name].wait_members("alice", "bob", "carol")
        dead = [agents.pop(name) for name in dying]
        alice.wait_until("a death", lambda: any(a.process.poll() is not None for a in dead), 60)
        for agent in dead:  # the other one may not have been asked to lend yet
            agent.signal(signal.SIGKILL)
        have_died(dead)
        dead_file.touch()
        alice.wait_members(*agents)
        alice.wait_until("copies again", is_safe, 60)
        all_end_alike(agents.values(), undisturbed)

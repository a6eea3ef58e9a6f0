"""A job with a large training state, as a user would train it: what it costs, and that it holds.

The job is AlexNet with SGD and momentum (`large_job_script.py`), of which a joiner has to copy
466 MiB and whose gradients, 233 MiB, are summed in each step; or layers of any size, which are
trained or frozen (`large_layers_script.py`). Agents on loopback, one thread each:
`ada` trains alone, `bob` joins, both train, `bob` leaves with Ctrl+C and saves, `cyd` joins, `ada`
is killed, and `dan` resumes from the file of `bob` in a cluster of its own. Since `ada` went on
from the same state over the same samples, the losses of `dan` have to be those of `ada`.

The memory of each process is read five times a second, and the most that a device took is compared
with what `edgeagent run --dry-run` foretold.
"""

from __future__ import annotations

import json
import signal
import statistics
import subprocess
import threading
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeagent import memory
from edgeagent.launch import module_command
from tests.scenarios.cluster import Agent, Cluster
from tests.scenarios.processes import children

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ALEXNET = Path(__file__).with_name("large_job_script.py")
LAYERS = Path(__file__).with_name("large_layers_script.py")
LONG_S = 300.0  # for what may take minutes on a busy machine: starts, joins, saving
SAMPLE_S = 0.2
MIB = 1 << 20
MOST_DIFFERENCE = 1e-4  # of a loss: `ada` and `dan` add the same gradients, the kernels may differ


@dataclass(slots=True)
class Use:
    """The most memory, in bytes, that a device was seen to take: its agent and its trainer without
    what both map, what both map, and all of that at one time."""

    agent: int = 0
    trainer: int = 0
    shared: int = 0
    together: int = 0


class Sampler:
    """Reads the memory of agents and their trainers until it is closed."""

    def __init__(self) -> None:
        self.uses: dict[str, Use] = {}
        self._agents: list[Agent] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def watch(self, agent: Agent) -> None:
        """Read the memory of this device, too."""
        self.uses[agent.name] = Use()
        self._agents.append(agent)

    def close(self) -> None:
        """Stop reading."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(SAMPLE_S):
            for agent in list(self._agents):
                self._look(agent)

    def _look(self, agent: Agent) -> None:
        use, pid = self.uses[agent.name], agent.process.pid
        own = memory.usage(pid)
        trainers = [found for child in children(pid) if (found := memory.usage(child)) is not None]
        if own is None or not trainers:
            return
        theirs = sum(found.private for found in trainers)
        shared = max(found.shared for found in (own, *trainers))
        use.agent = max(use.agent, own.private)
        use.trainer = max(use.trainer, theirs)
        use.shared = max(use.shared, shared)
        use.together = max(use.together, own.private + theirs + shared)


@dataclass(slots=True)
class Found:
    """What was measured; seconds and bytes. `uses`: by device. `checks`: what must hold."""

    foretold: dict[str, Any]
    status: str = ""
    file_bytes: int = 0
    rows: list[tuple[str, str]] = field(default_factory=list)
    uses: dict[str, Use] = field(default_factory=dict)


def measure(
    folder: Path,
    steps: int,
    arguments: Sequence[str],
    say: Callable[[str], None],
    *,
    job: Path = ALEXNET,
) -> Found:
    """Play the story with `steps` steps in each part of it; raise `AssertionError` if it fails.

    `arguments` go to the script `job`.
    """
    found = Found(_foretold(folder, job, arguments))
    sampler = Sampler()
    try:
        with Cluster(folder, job=str(job), options=("--steps", "100000")) as cluster:
            _play(cluster, sampler, steps, arguments, found, say)
    finally:
        sampler.close()
    found.uses = sampler.uses
    return found


def _foretold(folder: Path, job: Path, arguments: Sequence[str]) -> dict[str, Any]:
    """Return what a dry run says."""
    command = [*module_command("edgeagent"), "run", str(job), "--threads", "1", "--dry-run"]
    ended = subprocess.run(
        [*command, "--json", "--", *arguments],
        env=Cluster(folder).environment({}),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LONG_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    report: dict[str, Any] = json.loads(ended.stdout)
    return report


def _play(
    cluster: Cluster,
    sampler: Sampler,
    steps: int,
    arguments: Sequence[str],
    found: Found,
    say: Callable[[str], None],
) -> None:
    def start(name: str, *options: str, peers: Sequence[Agent] = ()) -> Agent:
        say(f"{name} starts")
        agent = cluster.start(name, *options, peers=peers, script=arguments)
        sampler.watch(agent)
        return agent

    warm = 3 + steps  # the first three steps include page faults and caches
    ada = start("ada")
    _reach(ada, warm)
    found.rows.append(("step of one device", _step_text(ada, 4, warm)))
    bob = start("bob", peers=[ada])
    _joined(ada, bob, found)
    first = bob.iteration + 2
    _reach(bob, first + steps)
    _reach(ada, first + steps)
    found.rows.append(("step of two devices", _step_text(ada, first, first + steps)))
    found.status = cluster.command("status", "--name", "ada").stdout
    say("bob leaves")
    status, seconds = bob.interrupt(LONG_S)
    assert status == 0, bob.describe()
    last = bob.wait("left")
    found.rows.append(("Ctrl+C until the process has ended", f"{seconds:.1f} s"))
    found.rows.append(("... from its last step until the file is there", _saved(bob)))
    found.file_bytes = bob.save_path.stat().st_size
    _reach(ada, last["iteration"] + steps)
    cyd = start("cyd", peers=[ada])
    _joined(ada, cyd, found)
    _reach(cyd, cyd.iteration + 2)
    _killed(ada, cyd, steps, found, say)
    status, _ = cyd.interrupt(LONG_S)
    assert status == 0, cyd.describe()
    resumes = last["iteration"]
    at = resumes + 4  # once its first steps, which are slower, are over
    dan = start("dan", "--resume", str(bob.save_path), "--save-every", str(at))
    _resumed(dan, ada, resumes, steps, found)
    _saved_beside(dan, at, steps, found)


def _reach(agent: Agent, iteration: int) -> None:
    agent.wait_until(f"iteration {iteration}", lambda: agent.iteration >= iteration, LONG_S)


def _step_text(agent: Agent, first: int, last: int) -> str:
    """Return the median time of the steps `first` to `last`, and its parts."""
    steps = {e["iteration"]: e for e in agent.all("step")}
    whole = [steps[k]["t"] - steps[k - 1]["t"] for k in range(first, last + 1)]
    known = [steps[k] for k in range(first, last + 1)]
    compute = statistics.median(e["compute_s"] for e in known)
    summed = statistics.median(e["sync_s"] for e in known)
    return (
        f"{statistics.median(whole):.2f} s (median of {len(whole)}), "
        f"of that computing {compute:.2f} s, summing {summed:.2f} s"
    )


def _joined(ada: Agent, joiner: Agent, found: Found) -> None:
    """Wait for a join; note its pull, and how much longer than usual a step of `ada` took while the
    joiner copied the state, and in the first one after that."""
    event = joiner.wait("joined", LONG_S)
    state_bytes = found.foretold["parts"][0]["bytes"]
    assert event["bytes"] + event["spared_bytes"] >= state_bytes * 0.99
    rate = event["bytes"] / event["seconds"] / 1e6
    found.rows.append(
        (
            f"pull of {joiner.name}",
            f"{event['bytes'] / 1e6:.1f} MB in {event['seconds']:.2f} s, {rate:.0f} MB/s",
        )
    )
    _reach(ada, ada.iteration + 2)
    steps = ada.all("step")
    times = [after["t"] - before["t"] for before, after in pairwise(steps)]
    ends = [e["t"] for e in steps[1:]]
    first = next(k for k, t in enumerate(ends) if t > event["t"] - event["seconds"])
    last = next(k for k, t in enumerate(ends) if t > event["t"])
    around = max(times[max(0, first - 1) : last + 1])
    usual = statistics.median(times[max(0, first - 7) : max(1, first - 1)])
    found.rows.append(
        (
            f"longest step of ada while {joiner.name} joins",
            f"{around:.2f} s, usual {usual:.2f} s",
        )
    )


def _killed(ada: Agent, cyd: Agent, steps: int, found: Found, say: Callable[[str], None]) -> None:
    """Kill the founder and scheduler; note how long the step in which that happens takes."""
    say("ada is killed")
    before = cyd.all("step")[-1]
    ada.signal(signal.SIGKILL)
    ada.wait_exit()
    lost = cyd.wait("member_left", LONG_S, node="ada")
    assert lost["reason"] == "failure", cyd.describe()
    _reach(cyd, before["iteration"] + steps)
    done = [e["iteration"] for e in cyd.all("step")]
    assert done == list(range(done[0], done[-1] + 1)), "a step is missing or was done twice"
    following = next(e for e in cyd.all("step") if e["iteration"] == before["iteration"] + 1)
    found.rows.append(
        (
            "step in which the other device is killed",
            f"{following['t'] - before['t']:.2f} s, "
            f"stall {lost['stall_s'] if lost['stall_s'] is not None else float('nan'):.2f} s",
        )
    )


def _resumed(dan: Agent, ada: Agent, iteration: int, steps: int, found: Found) -> None:
    """Compare the losses of a run that was resumed with those of the run that went on."""
    _reach(dan, iteration + steps)
    went_on, resumed = ada.losses, dan.losses
    assert min(resumed) == iteration + 1, "the step after the saved one has to be the first"
    compared = [k for k in resumed if k in went_on]
    worst = max(abs(resumed[k] - went_on[k]) / abs(went_on[k]) for k in compared)
    assert worst < MOST_DIFFERENCE, f"losses after resuming differ by {worst:.1e}"
    found.rows.append(
        (
            "losses after --resume",
            f"steps {min(compared)} to {max(compared)} differ by {worst:.0e} from the run that"
            " went on",
        )
    )


def _saved_beside(agent: Agent, iteration: int, steps: int, found: Found) -> None:
    """Note how long the step after that of `iteration` took, when a file is begun, beside others of
    this device, and when the file was there."""
    _reach(agent, iteration + steps)
    file = agent.save_path.with_stem(f"{agent.save_path.stem}-step-{iteration:06d}")
    agent.wait_until("a file of --save-every", file.exists, LONG_S)
    at = {e["iteration"]: e["t"] for e in agent.all("step")}
    times = {k: at[k] - at[k - 1] for k in at if k - 1 in at and k > iteration - 2}
    usual, seconds = statistics.median(times.values()), file.stat().st_ctime - at[iteration]
    found.rows.append(
        (
            "step in which a file of --save-every is begun",
            f"{times[iteration + 1]:.2f} s, usual {usual:.2f} s; the file is there after "
            f"{seconds:.1f} s",
        )
    )


def _saved(agent: Agent) -> str:
    """Return the seconds from the last step of `agent` until its file had its name."""
    return f"{agent.save_path.stat().st_ctime - agent.all('step')[-1]['t']:.1f} s"


def table(found: Found) -> list[str]:
    """Return what was measured as two tables in Markdown."""
    told = {part["name"]: part["bytes"] for part in found.foretold["parts"]}
    sizes = [f"{name}: {size / MIB:.0f}" for name, size in told.items()]
    lines = ["| what | figure |", "|---|---|"]
    lines += [f"| {name} | {figure} |" for name, figure in found.rows]
    lines.append(f"| file of the training state | {found.file_bytes / 1e6:.1f} MB |")
    lines += ["", "| device | agent | trainer | shared by both | at one time | foretold |"]
    lines.append("|---|---|---|---|---|---|")
    need = found.foretold["need_bytes"]
    for name, use in found.uses.items():
        cells = (use.agent, use.trainer, use.shared, use.together, need)
        lines.append(f"| {name} | " + " | ".join(f"{n / MIB:.0f}" for n in cells) + " |")
    return [*lines, "", "MiB foretold: " + "; ".join(sizes)]

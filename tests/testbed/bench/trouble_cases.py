"""The cases of `scripts/bench trouble`: what goes wrong on one device, or between two.

A case begins with devices that train together, and ends when they do so again, or when nothing more
can be expected to happen. It calls `over` when its trouble has ended, if it ends.
"""

from __future__ import annotations

import os
import signal
import time
from functools import partial

from tests.scenarios.failure_times import stop_session
from tests.scenarios.processes import living
from tests.testbed.bench.trouble_stage import OFFLINE, ONE_WAY, Case, Stage
from tests.testbed.shaping import MBIT

THREE = ("alice", "bob", "carol")
NOTICED_S = 3.0  # after this the agents know that a trainer does not answer in time
BURST_S = 0.7
AGAIN_S = 45.0  # within this time agents have found one another again
BREAK_S = 20.0  # a pull is broken off for so long
DOWN_S = 15.0  # a network is down for so long
SPOILT_S = 15.0  # a link is bad for so long
FOR_EVER_S = 45.0  # a trouble that does not end is watched for so long


def lapse(stage: Stage, words: str, seconds: float) -> None:
    """Bob's script does something that takes `seconds`, and then goes on."""
    stage.order("bob", f"{words} {seconds:g}")
    time.sleep(seconds)
    stage.over()
    stage.together_again(AGAIN_S)


def loop(stage: Stage) -> None:
    """Bob's script never answers again."""
    stage.order("bob", "loop")
    time.sleep(FOR_EVER_S)


def stop_trainer(stage: Stage, seconds: float) -> None:
    """Bob's trainer stops, its agent lives."""
    trainer = stage.agents["bob"].trainer
    stage.began = time.time()
    os.kill(trainer, signal.SIGSTOP)
    time.sleep(seconds)
    os.kill(trainer, signal.SIGCONT)
    stage.over()
    stage.together_again(AGAIN_S)


def stop_device(stage: Stage, seconds: float) -> None:
    """Bob's agent and trainer stop, as when a lid is closed."""
    stage.began = time.time()
    stop_session(stage.agents["bob"], signal.SIGSTOP)
    time.sleep(seconds)
    stop_session(stage.agents["bob"], signal.SIGCONT)
    stage.over()
    stage.together_again(AGAIN_S)


def kill_agent(stage: Stage) -> None:
    """Bob's agent is killed while its trainer loops."""
    bob = stage.agents["bob"]
    trainer = bob.trainer
    stage.order("bob", "loop")
    time.sleep(NOTICED_S)
    bob.signal(signal.SIGKILL)
    killed = time.monotonic()
    stage.dead.append("bob")
    if stage.watch("end of the trainer", lambda: trainer not in pids(), 20.0):
        stage.note(f"the trainer ended {time.monotonic() - killed:.1f} s after its agent")
    stage.steps("alice", seconds=30.0)


def pids() -> list[int]:
    """Return the pids of all living processes."""
    return [process.pid for process in living()]


def leave(stage: Stage) -> None:
    """`edgeagent leave` on the device whose trainer loops."""
    stage.order("bob", "loop")
    time.sleep(NOTICED_S)
    stage.command("leave", "--name", "bob")
    stage.ends("bob", 20.0)
    stage.steps("alice", seconds=20.0)


def expel(stage: Stage) -> None:
    """`edgeagent expel` of the device whose trainer loops."""
    stage.order("bob", "loop")
    time.sleep(NOTICED_S)
    stage.command("expel", "bob", "--name", "alice")
    stage.ends("bob", 20.0)
    stage.steps("alice", seconds=20.0)


def bystander(stage: Stage) -> None:
    """Carol presses Ctrl+C twice while bob's trainer has just begun to loop."""
    stage.order("bob", "loop")
    time.sleep(0.5)
    for _ in range(2):
        stage.agents["carol"].signal(signal.SIGINT)
        time.sleep(0.5)
    stage.ends("carol", 20.0)
    stage.steps("alice", seconds=20.0)


def other_schedule(stage: Stage) -> None:
    """Bob joins with another schedule of the learning rate."""
    stage.began = time.time()
    stage.room.start("bob", peers=[stage.agents["alice"]], script=["64", "0.01"])
    stage.ends("bob", 40.0)
    stage.steps("alice", "carol", seconds=20.0)


def other_rate(stage: Stage) -> None:
    """Bob's script sets another learning rate than the others'."""
    stage.order("bob", "rate 0.02")
    stage.steps(*THREE, seconds=20.0)


def own_step(stage: Stage) -> None:
    """Bob's script has a step of the optimizer left over."""
    stage.order("bob", "step")
    stage.ends("bob", 20.0)
    stage.steps("alice", "carol", seconds=20.0)


def burst(stage: Stage, kind: str) -> None:
    """For a moment nothing passes between alice and bob."""
    stage.began = time.time()
    with stage.spoilt(kind):
        time.sleep(BURST_S)
    stage.over()
    stage.together_again(AGAIN_S)


def hole(stage: Stage) -> None:
    """From now on large packets between alice and bob are lost, without any ICMP message."""
    stage.began = time.time()
    stage.over()
    with stage.spoilt("mtu"):
        time.sleep(1.0)
        stage.watch("a link that was opened again", partial(is_new, stage), AGAIN_S)
        stage.together_again(AGAIN_S)


def is_new(stage: Stage) -> bool:
    """Whether both have closed their link and opened it again."""
    for name in stage.case.names:
        ends = [e["event"] for e in stage.agents[name].update() if e["t"] >= stage.began]
        ends = [event for event in ends if event in ("link_up", "link_down")]
        if "link_down" not in ends or ends[-1] != "link_up":
            return False
    return True


def spoil(stage: Stage, kind: str, seconds: float) -> None:
    """For a while what passes between alice and bob is lost, in part or in one direction."""
    stage.began = time.time()
    with stage.spoilt(kind):
        time.sleep(seconds)
    stage.over()
    stage.together_again(AGAIN_S)


def cut_bulk(stage: Stage) -> None:
    """Of the connections between alice and bob the one for large data dies, without a word."""
    stage.began = time.time()
    stage.cut_busiest("bob")
    stage.over()
    time.sleep(1.0)
    stage.together_again(AGAIN_S)


def new_address(stage: Stage) -> None:
    """Bob's network gives it another address in mid-training."""
    stage.began = time.time()
    stage.move("bob", "200")
    stage.over()
    time.sleep(1.0)
    stage.together_again(AGAIN_S)


def join_slowly(stage: Stage) -> None:
    """Bob wants to join over a link that is much too slow for its state."""
    stage.join()
    stage.over()
    stage.together_again(2 * AGAIN_S, count=3)


def break_pull(stage: Stage) -> None:
    """Bob joins; in the middle of its pull all that passes between the two is reset."""
    stage.join()
    stage.agents["bob"].wait("link_up")
    time.sleep(BURST_S)
    with stage.spoilt("rst"):
        time.sleep(BREAK_S)
    stage.over()
    stage.together_again(2 * AGAIN_S)


def late_network(stage: Stage) -> None:
    """Bob starts before its network is up."""
    with stage.spoilt("cable"):
        stage.join()
        time.sleep(DOWN_S)
    stage.over()
    stage.together_again(AGAIN_S)


def hang_up(stage: Stage) -> None:
    """The terminal in which bob runs is closed."""
    stage.began = time.time()
    stage.agents["bob"].signal(signal.SIGHUP)
    stage.ends("bob", 20.0)
    stage.steps("alice", seconds=20.0)


def kill_trainer(stage: Stage) -> None:
    """Bob's trainer is killed, as by the system for want of memory."""
    stage.began = time.time()
    os.kill(stage.agents["bob"].trainer, signal.SIGKILL)
    stage.ends("bob", 20.0)
    stage.steps("alice", seconds=20.0)


def _bursts() -> list[Case]:
    found = []
    titles = {
        "rst": "0.7 s in which everything is reset",
        "reject": "0.7 s in which everything is rejected",
        "drop": "0.7 s in which everything is dropped",
        "cable": "cable out for 0.7 s",
    }
    for policy in ("go-on", "pause"):
        for kind, title in titles.items():
            case = Case(
                f"{kind}-{policy}",
                f"{title}, of two, `{policy}`",
                partial(burst, kind=kind),
                others=("alice", "bob"),
                victim="",
                options=("--on-partition", policy),
                in_namespaces=True,
            )
            found.append(case)
    return found


ALL = [
    Case("away", "`away()` for 15 s, of two", partial(lapse, words="away", seconds=15.0)),
    Case("sleep", "20 s in one step, of two", partial(lapse, words="sleep", seconds=20.0)),
    Case(
        "sleep-large",
        "60 s in one step, 41 MB of state, of three",
        partial(lapse, words="sleep", seconds=60.0),
        names=THREE,
        others=("alice", "carol"),
        script=("1800",),
    ),
    Case("loop", "a loop without end, of two", loop),
    Case("stop-trainer", "SIGSTOP of a trainer, 20 s, of two", partial(stop_trainer, seconds=20.0)),
    Case("stop-device", "SIGSTOP of a device, 5 s, of two", partial(stop_device, seconds=5.0)),
    Case(
        "lid",
        "a lid closed for 30 s (SIGSTOP of a device), of three",
        partial(stop_device, seconds=30.0),
        names=THREE,
        others=("alice", "carol"),
    ),
    Case(
        "lid-of-two",
        "a lid closed for 30 s (SIGSTOP of a device), of two",
        partial(stop_device, seconds=30.0),
    ),
    Case(
        "offline",
        "bob without a network for 60 s, of three",
        partial(spoil, kind=OFFLINE, seconds=60.0),
        names=THREE,
        others=("alice", "carol"),
        in_namespaces=True,
    ),
    Case(
        "offline-of-two",
        "bob without a network for 60 s, of two",
        partial(spoil, kind=OFFLINE, seconds=60.0),
        in_namespaces=True,
    ),
    Case("kill-agent", "`kill -9` of an agent whose trainer loops, of two", kill_agent),
    Case("leave", "`edgeagent leave` where the trainer loops, of two", leave),
    Case("expel", "`edgeagent expel` of whose trainer loops, of two", expel),
    Case(
        "bystander",
        "a bystander's second Ctrl+C while a trainer loops, of three",
        bystander,
        names=THREE,
    ),
    Case(
        "other-schedule",
        "a third comes with another schedule",
        other_schedule,
        names=("alice", "carol"),
        others=("alice", "carol"),
        script=("64", "0"),
    ),
    Case(
        "other-rate",
        "one of three sets another learning rate",
        other_rate,
        names=THREE,
        others=("alice", "carol"),
    ),
    Case(
        "own-step",
        "one of three calls `optimizer.step()`",
        own_step,
        names=THREE,
        others=("alice", "carol"),
    ),
    *_bursts(),
    Case(
        "mtu-hole",
        "packets above 1200 bytes vanish, of two",
        hole,
        others=("alice", "bob"),
        victim="",
        in_namespaces=True,
    ),
    Case(
        "loss",
        "15 s in which 5 % of all packets are lost, of two",
        partial(spoil, kind="loss", seconds=SPOILT_S),
        others=("alice", "bob"),
        victim="",
        in_namespaces=True,
    ),
    Case(
        "one-way",
        "15 s in which nothing of alice's arrives at bob, of two",
        partial(spoil, kind=ONE_WAY, seconds=SPOILT_S),
        others=("alice", "bob"),
        victim="",
        in_namespaces=True,
    ),
    Case(
        "bulk-cut",
        "the connection for large data dies, of two",
        cut_bulk,
        others=("alice", "bob"),
        victim="",
        in_namespaces=True,
    ),
    Case(
        "new-address",
        "bob has another IP address from now on, of two",
        new_address,
        others=("alice", "bob"),
        victim="",
        in_namespaces=True,
        moves=True,
    ),
    Case(
        "slow-join",
        "bob wants to join with 41 MB of state over 5 Mbit/s, for 90 s",
        join_slowly,
        names=("alice",),
        newcomer="bob",
        victim="",
        script=("1800",),
        in_namespaces=True,
        rate=5 * MBIT,
    ),
    Case(
        "broken-pull",
        "bob joins with 41 MB of state; its pull is reset for 20 s",
        break_pull,
        names=("alice",),
        newcomer="bob",
        victim="",
        script=("1800",),
        in_namespaces=True,
        rate=50 * MBIT,
    ),
    Case(
        "late-network",
        "bob starts 15 s before its network is up",
        late_network,
        names=("alice",),
        newcomer="bob",
        victim="",
        in_namespaces=True,
    ),
    Case("hang-up", "bob's terminal is closed (SIGHUP), of two", hang_up),
    Case("kill-trainer", "`kill -9` of bob's trainer, of two", kill_trainer),
]
CASES = {case.name: case for case in ALL}

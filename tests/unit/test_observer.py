"""What one agent's events say about the others, and about the cost of a departure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from edgeagent.observer import FAREWELL_SECONDS, Observer
from protocols.rounds.control_word import ControlWord
from tests.simulation.virtual.world import Recorder, Silence

WORD = ControlWord(1, 1, b"\x01", b"", 1.0, b"", b"", True)


class Quiet(Silence):
    """Shows nothing at the end either."""

    def settle(self) -> None: ...


class Bench:
    """An observer with a clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        self.recorder = Recorder(lambda: self.now)
        self.observer = Observer("me", "room", self.recorder, Quiet(), lambda: self.now)
        self.steps = 0

    def step(self, seconds: float) -> None:
        """Let a step take `seconds`."""
        self.now += seconds
        self.steps += 1
        self.observer.stepped(self.steps, 100, WORD, 32, 3, False)

    def left(self, name: str = "bob") -> None:
        self.observer.report("member_left", {"node": name, "reason": "leave", "stall_s": 0.0})

    def all(self, event: str) -> list[dict[str, Any]]:
        return [e for e in self.recorder.events if e["event"] == event]


@pytest.fixture
def bench() -> Bench:
    """Return the observer of a founder."""
    bench = Bench()
    bench.observer.report("scheduler", {"node": "me", "term": 1, "why": "founded"})
    bench.observer.report("joined", {"term": 1, "members": ["me"], "updates": 0})
    return bench


def test_a_departure_costs_what_a_step_took_longer(bench: Bench) -> None:
    for _ in range(30):
        bench.step(0.1)
    bench.left()
    assert not bench.all("member_left")  # the step after it is not done
    bench.step(0.35)
    bench.step(0.1)
    (event,) = bench.all("member_left")
    assert event["stall_s"] == pytest.approx(0.25)
    assert (event["node"], event["reason"]) == ("bob", "leave")


def test_an_update_from_others_has_waited_for_nobody(bench: Bench) -> None:
    bench.now = 5000.0  # of a clock that did not begin with the agent
    bench.observer.apply_sent()
    bench.step(0.1)
    assert [(e["sync_s"], e["stall_s"]) for e in bench.all("step")] == [(0.0, 0.0)]
    bench.observer.contributed(0.1, 4)
    bench.now += 2.0
    bench.observer.reduced()
    bench.now += 0.5
    bench.observer.apply_sent()
    bench.step(0.1)
    event = bench.all("step")[1]
    assert (event["sync_s"], event["stall_s"]) == (pytest.approx(2.0), pytest.approx(0.5))


def test_the_step_before_counts_as_well(bench: Bench) -> None:
    for seconds in (0.1, 0.1, 0.1, 0.1, 0.6):
        bench.step(seconds)
    bench.left()
    bench.step(0.1)
    assert bench.all("member_left")[0]["stall_s"] == pytest.approx(0.5)


def test_a_departure_without_steps_has_no_stall(bench: Bench) -> None:
    bench.left()
    bench.step(1.0)
    assert bench.all("member_left")[0]["stall_s"] is None
    bench.left("carol")
    bench.observer.event("left", iteration=1, seconds=1.0)
    kinds = [e["event"] for e in bench.recorder.events]
    assert kinds[-2:] == ["member_left", "left"]


def test_who_is_gone_is_written_even_if_no_step_follows(bench: Bench) -> None:
    bench.step(0.1)
    bench.step(0.1)
    bench.left()
    for seconds in (FAREWELL_SECONDS - 0.5, 0.5):
        assert not bench.all("member_left")
        bench.now += seconds
        bench.observer.report("delay", {"id": b"x", "seconds": 0.001})
    assert bench.all("member_left")[0]["stall_s"] == 0.0


def test_who_is_gone_is_written_by_a_timer_if_nothing_else_happens(bench: Bench) -> None:
    timers: list[tuple[float, Callable[[], None]]] = []
    bench.observer = Observer(
        "me",
        "room",
        bench.recorder,
        Quiet(),
        lambda: bench.now,
        lambda seconds, call: timers.append((seconds, call)),
    )
    bench.observer.report("joined", {"term": 1, "members": ["me", "bob"], "updates": 0})
    bench.left()
    ((seconds, call),) = timers
    bench.now += seconds
    call()
    assert [e["node"] for e in bench.all("member_left")] == ["bob"]
    call()
    assert len(bench.all("member_left")) == 1


def test_a_figure_of_the_script_is_shown_unless_it_shows_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(Quiet, "say", lambda self, text: said.append(text))
    bench.observer.evaluated(20, "accuracy", 0.96875, quiet=False)
    bench.observer.evaluated(30, "accuracy", 0.97, quiet=True)
    assert said == ["accuracy 0.96875 after step 20"]
    assert [e["value"] for e in bench.all("evaluated")] == [0.96875, 0.97]


def test_a_member_that_joins_again_counts_its_steps_anew(bench: Bench) -> None:
    bench.step(0.1)
    bench.step(0.1)
    bench.left()
    bench.now += 20.0
    bench.observer.report("pull_begins", {"total_bytes": 10})
    assert [e["node"] for e in bench.all("member_left")] == ["bob"]
    bench.observer.report("joined", {"term": 2, "members": ["bob", "me"], "updates": 0})
    bench.step(0.1)
    bench.step(0.1)
    bench.left()
    bench.step(0.1)
    assert bench.all("member_left")[1]["stall_s"] == pytest.approx(0.0)
    assert bench.observer.samples_per_second == pytest.approx(320.0)


def test_that_training_waits_for_others_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(Silence, "say", lambda _, text: said.append(text))
    bench = Bench()
    for here in (1, 2, 3, 4):
        bench.observer.assembling(3, here)
    assert [(e["wanted"], e["here"]) for e in bench.all("assembling")] == [
        (3, 1),
        (3, 2),
        (3, 3),
        (3, 4),
    ]
    assert said == [
        "waiting for 2 more devices (1 of 3) before training begins",
        "waiting for 1 more device (2 of 3) before training begins",
        "3 devices are here: training begins",
        "4 devices are here: training begins",
    ]


def test_standing_by_is_an_event(bench: Bench) -> None:
    bench.observer.stands_by("slow links", "this device stands by: slow links")
    assert [e["reason"] for e in bench.all("standby")] == ["slow links"]


def test_that_another_device_stands_by_is_told_once_until_it_joins(bench: Bench) -> None:
    for reason in ("slow links", "slower links"):
        bench.observer.report("member_standby", {"node": "bob", "reason": reason})
    assert [(e["node"], e["reason"]) for e in bench.all("member_standby")] == [
        ("bob", "slow links")
    ]
    bench.observer.report("member_joined", {"node": "bob"})
    bench.observer.report("member_standby", {"node": "bob", "reason": "again"})
    assert len(bench.all("member_standby")) == 2


def test_a_joiner_tells_of_the_others_from_its_own_entry_on() -> None:
    bench = Bench()
    bench.observer.report("pull_begins", {"total_bytes": 10})
    bench.observer.report("member_joined", {"node": "carol"})
    bench.left("dan")
    bench.observer.shard_arrived("al", 10)
    bench.observer.report("joined", {"term": 1, "members": ["al", "carol", "me"], "updates": 0})
    bench.observer.report("member_joined", {"node": "eve"})
    bench.step(0.1)
    assert [e["node"] for e in bench.all("member_joined")] == ["eve"]
    assert not bench.all("member_left")
    (joined,) = bench.all("joined")
    assert joined["bytes"] == 10
    assert joined["lower_bound_s"] is None


def test_a_joiner_for_which_nobody_waited_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(Quiet, "say", lambda self, text: said.append(text))
    bench = Bench()
    bench.observer.report("pull_begins", {"total_bytes": 10})
    bench.observer.shard_arrived("al", 10)
    bench.observer.report("joined", {"term": 1, "members": ["al", "me"], "updates": 7})
    assert bench.all("joined")[-1]["updates"] == 7
    assert said[-1].endswith("; the others have gone on meanwhile, by 7 updates")


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (("al",), None),
        (("al", "zoe"), "no member is called zoe, as --neighbours says: this device is linked to"),
        (("yan", "zoe"), "no member is called yan or zoe, as --neighbours says: this device is"),
    ],
)
def test_names_of_neighbours_that_no_member_has_are_told(
    names: tuple[str, ...], told: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(Quiet, "say", lambda self, text: said.append(text))
    bench = Bench()
    bench.observer.neighbours = names
    bench.observer.report("pull_begins", {"total_bytes": 10})
    bench.observer.shard_arrived("al", 10)
    bench.observer.report("joined", {"term": 1, "members": ["al", "me"], "updates": 0})
    assert said[-1].startswith(told or "joined 1 other")


def test_a_founder_after_a_failed_join_has_no_sources(bench: Bench) -> None:
    bench.observer.report("pull_begins", {"total_bytes": 10})
    bench.observer.report("scheduler", {"node": "me", "term": 1, "why": "founded"})
    bench.observer.report("joined", {"term": 1, "members": ["me"], "updates": 0})
    assert [e["sources"] for e in bench.all("joined")] == [[], []]


def test_a_trainer_that_does_not_keep_up_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(Quiet, "say", lambda self, text: said.append(text))
    bench = Bench()
    late = {"node": "bob", "away": False}
    bench.observer.report("member_late", late)
    assert not said, "what happens among the others before the own entry is not told"
    bench.observer.report("joined", {"term": 1, "members": ["me", "bob"], "updates": 0})
    bench.observer.report("member_late", late)
    bench.observer.report("member_late", {"node": "me", "away": True})
    bench.now += 12.0
    bench.observer.report("member_back", {"node": "bob", "seconds": None})
    assert said == [
        "the trainer of bob does not answer in time: the others compute its share",
        "the trainer here is away: the others compute its share",
        "the trainer of bob is back after 12 s",
    ]
    assert [e["node"] for e in bench.all("member_late")] == ["bob", "me"]
    assert [e["seconds"] for e in bench.all("member_back")] == [None]


def test_who_alone_has_a_part_of_the_optimizer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(Quiet, "say", lambda self, text: said.append(text))
    bench = Bench()
    for survives in (1, 2, 0):
        bench.observer.report("copies", {"survives": survives})
    assert said == [
        "the optimizer's state survives the loss of 1 member",
        "the optimizer's state survives the loss of 2 members",
        "the optimizer's state survives no loss for now",
    ]
    assert [e["survives"] for e in bench.all("copies")] == [1, 2, 0]
    said.clear()
    bench.observer.report("parts_missing", {"nodes": ["bob", "eve"], "then": "wait"})
    bench.observer.report("parts_complete", {"seconds": 2.5})
    assert said[0].startswith("waiting for bob, eve: only there is a part of the optimizer's state")
    assert said[0].endswith("go on from files (--resume)")
    assert said[1] == "all parts of the optimizer's state are in reach again"
    bench.observer.report("handing_on", {"parts": 1})
    assert said.pop() == "before it leaves, this device hands on 1 part of the optimizer's state"
    assert [e["parts"] for e in bench.all("handing_on")] == [1]
    for then in ("stop", "fresh", "end"):
        bench.observer.report("parts_missing", {"nodes": ["bob"], "then": then})
    assert said[2].endswith("within 30 s this device stops without it")
    assert said[3].endswith("within 30 s that part begins anew without it")
    assert said[4].endswith("the last step is done, so within 30 s this device ends without it")
    bench.observer.report("parts_anew", {"parts": [1, 3], "of": 128, "iteration": 40})
    assert said[5].startswith("2 of 128 parts of the optimizer's state are lost")
    assert [e["parts"] for e in bench.all("parts_anew")] == [[1, 3]]
    said.clear()
    bench.observer.report("rounding", {"groups": [["bob", "eve"], ["ann"], ["mac"]]})
    bench.observer.report("rounding", {"groups": [["mac"]]})
    assert said[0].startswith("ann, mac round updates otherwise than bob, eve: each result")
    assert said[1].startswith("all devices round updates alike now")
    assert [e["groups"] for e in bench.all("rounding")][1:] == [[["mac"]]]
    assert [e["nodes"] for e in bench.all("parts_missing")][:1] == [["bob", "eve"]]
    assert [e["seconds"] for e in bench.all("parts_complete")] == [2.5]


def test_how_long_a_trainer_was_late_begins_anew_with_a_membership(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(Quiet, "say", lambda self, text: said.append(text))
    late = {"node": "bob", "away": False}
    bench.observer.report("member_late", late)
    bench.left()
    bench.now += 100.0
    bench.observer.report("member_late", late)
    bench.now += 12.0
    bench.observer.report("member_back", {"node": "bob", "seconds": None})
    assert said[-1] == "the trainer of bob is back after 12 s"


def test_states_that_differ_are_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(Quiet, "say", lambda self, text: said.append(text))
    bench = Bench()
    bench.observer.report("diverged", {"node": "bob", "iteration": 3})
    assert not said
    bench.observer.report("joined", {"term": 1, "members": ["me", "bob"], "updates": 0})
    bench.observer.report("diverged", {"node": "bob", "iteration": 9})
    bench.observer.report("diverged", {"node": "me", "iteration": 9})
    bench.observer.report("first_difference", {"iteration": 9, "where": "the tensor a"})
    assert said == [
        "the training state of bob differs from that of the others before step 10: it leaves and "
        "pulls theirs",
        "the training state of this device differs from that of the others before step 10: this "
        "device leaves and pulls theirs",
        "the training state here differs in: the tensor a",
    ]
    assert [e["node"] for e in bench.all("diverged")] == ["bob", "me"]


def test_a_round_of_local_steps_tells_how_many_this_device_has_taken(bench: Bench) -> None:
    bench.step(1.0)
    bench.observer.local_steps = 20
    bench.observer.contributed(0.5, 13)
    bench.step(1.0)
    bench.step(1.0)  # without a share
    told = [step.get("local_steps") for step in bench.all("step")]
    assert told == [None, 13, 0]


def test_a_round_of_subnets_tells_what_was_dropped(bench: Bench) -> None:
    bench.observer.local_steps, bench.observer.in_cells = 20, True
    bench.observer.contributed(0.5, 13, 7)
    bench.step(1.0)
    bench.step(1.0)
    told = [(step["cells"], step["dropped_cells"]) for step in bench.all("step")]
    assert told == [(13, 7), (0, 0)]


def test_the_local_step_of_the_running_round_is_shown(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []
    monkeypatch.setattr(Quiet, "training", lambda self, line: shown.append(line.text()))
    bench.observer.local_steps = 20
    bench.observer.progressed(10, 0.5)  # nothing was shown before the first round
    assert not shown
    assert bench.observer.local_step == (5, 10)
    bench.step(1.0)
    bench.observer.progressed(10, 0.5)
    assert "of 20 local steps, step 5 of 10 of the next one" in shown[-1]
    bench.observer.in_cells = True
    bench.observer.progressed(10, 0.5)
    assert bench.observer.local_step == (10, 20)
    bench.observer.contributed(0.5, 13)
    assert bench.observer.local_step is None

"""What a user gets to know: events, lines on the console, and the figures of `status`.

The observer only watches; nothing it does changes what the agent does. Names and units of events
are those of the README.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol, TypedDict

from edgeagent.logs import log_error
from edgeagent.planner.bounds import fluid_bound
from edgeagent.terminal.console import JoinLine, SourceLine, TrainingLine
from edgeagent.terminal.text import bytes_text, clean, plural, seconds_text
from protocols import limits
from protocols.cluster.stripes import OnLost

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from edgeagent.event_file import EventWriter
    from edgeagent.terminal.console import Console
    from protocols.rounds.control_word import ControlWord

RATE_STEPS = 50  # samples/s are averaged over at most this many steps
RATE_SECONDS = 10.0  # samples/s are averaged over the steps of at most this time
USUAL_STEPS = 20  # a stall is the time beyond the median of this many steps
# The departure of a member is written with the stall that it caused, which is known once the next
# step is done. If no step follows, it is written after this time.
FAREWELL_SECONDS = 10.0
# What follows if devices do not come back that alone have a part of the optimizer's state.
_AFTER_LOSS: dict[str, str] = {
    OnLost.WAIT: "unless it is there again, end with Ctrl+C, and go on from files (--resume)",
    OnLost.STOP: f"within {limits.PARTS_WAIT_SECONDS:.0f} s this device stops without it",
    OnLost.FRESH: f"within {limits.PARTS_WAIT_SECONDS:.0f} s that part begins anew without it",
    "end": f"the last step is done, so within {limits.PARTS_WAIT_SECONDS:.0f} s this device ends"
    " without it",
}
# Reports about members, which are not written before this device is a member itself.
_OF_MEMBERS = ("member_joined", "member_left", "member_late", "diverged")
# Reports about the parts of a divided optimizer state.
_OF_PARTS = ("copies", "handing_on", "parts_missing", "parts_complete", "parts_anew", "rounding")
_FAREWELLS = {
    "leave": "has left",
    "failure": "is lost; going on without it",
    "expelled": "was expelled",
}


class PulledFrom(TypedDict):
    """What one neighbour has sent, `seconds` after the first request to any of them."""

    node: str
    bytes: int
    seconds: float


class PullMeter:
    """How much of the training state has come from which source, and how long that took."""

    def __init__(self, total_bytes: int, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._started = clock()
        self._bytes: dict[str, int] = {}
        self._rates: dict[str, float | None] = {}
        self._last: dict[str, float] = {}
        self.total_bytes = total_bytes
        self.spared_bytes = 0

    def spares(self, size: int) -> None:
        """Note that `size` bytes of the state need not be pulled, because they are here already."""
        self.total_bytes -= size
        self.spared_bytes += size

    def arrived(self, name: str, size: int, rate: float | None = None) -> None:
        """Count a shard of `size` bytes from `name`, whose link has `rate` bytes/s at present."""
        self._rates[name] = rate
        self._bytes[name] = self._bytes.get(name, 0) + size
        self._last[name] = self._clock()

    @property
    def bytes(self) -> int:
        """Bytes pulled so far."""
        return sum(self._bytes.values())

    @property
    def seconds(self) -> float:
        """Seconds from the first request to the last shard so far."""
        return max(self._last.values(), default=self._started) - self._started

    @property
    def elapsed(self) -> float:
        """Seconds since the first request."""
        return self._clock() - self._started

    @property
    def lower_bound_s(self) -> float | None:
        """The shortest time (s) that the sources' links allow, the fluid bound, by their rates at
        the end; None if a rate is not known."""
        rates = [self._rates.get(name) for name in self._bytes]
        known = [rate for rate in rates if rate]
        if not known or len(known) < len(rates):
            return None
        return round(fluid_bound(self.total_bytes, known, [0.0] * len(known)), 6)

    @property
    def sources(self) -> list[PulledFrom]:
        """Bytes of each source, and seconds until its last shard."""
        return [
            {"node": name, "bytes": size, "seconds": round(self._last[name] - self._started, 6)}
            for name, size in self._bytes.items()
        ]


class Listener(Protocol):
    """Who wants to hear what happens to an agent. What it raises would end the agent."""

    def event(self, event: str, values: Mapping[str, Any]) -> None:
        """Hear of an event as it is written to the event file, without its time."""

    def line(self, text: str) -> None:
        """Hear of a line as the terminal shows it."""


class Observer:
    """Writes down what happens to one agent."""

    def __init__(
        self,
        name: str,
        cluster: str,
        events: EventWriter,
        console: Console,
        clock: Callable[[], float],
        later: Callable[[float, Callable[[], None]], object] | None = None,
    ) -> None:
        """`clock` returns seconds. `later` calls a function after so many seconds; without it a
        departure that no step follows is written when the next thing happens."""
        self._name = name
        self._cluster = cluster
        self._listeners: list[Listener] = []
        self._events = events
        self._console = console
        self._clock = clock
        self._later = later
        self._iteration: int | None = None  # the last step, None before the first
        self._late_since: dict[str, float] = {}  # whose trainer is late or away, since when
        self._steps_seen: deque[tuple[float, int]] = deque(maxlen=RATE_STEPS)
        self._given = self._contributed = self._apply_sent = 0.0
        self._reduced: float | None = None  # None before this device has been in a round
        self._compute = 0.0
        # Micro-batches in this device's last sum, and those that count as done and change nothing,
        # because their device was lost in the middle of a round of subnets; until its step is
        # written.
        self._computed = self._dropped = 0
        # Local steps of the running round that this device has taken, and has to take.
        self.local_step: tuple[int, int] | None = None
        self.local_steps = 0  # how many global batches a round of local steps has, 0 without rounds
        self._line: TrainingLine | None = None  # the last one that was shown
        self.in_cells = False  # a micro-batch is a cell of a round of subnets
        self._inside = False  # this device is a member
        self._gone: list[tuple[float, dict[str, Any]]] = []  # departures: (time, event's values)
        self._reachable = False  # others can join; an agent without a token trains alone
        self.neighbours: tuple[str, ...] = ()  # the members that the user named with --neighbours
        self.members: tuple[str, ...] = ()
        self.loss: float | None = None
        self.skipped = 0
        self.delays: dict[bytes, float] = {}
        self.pull: PullMeter | None = None
        self.pause = ""  # why this device pauses, in words
        self._paused_since: float | None = None
        self._standing_by: dict[str, None] = {}  # devices of which this was told

    def subscribe(self, listener: Listener) -> None:
        """Tell `listener`, too, what is written and shown from now on."""
        self._listeners.append(listener)

    def say(self, text: str) -> None:
        """Show one line."""
        self._console.say(text)
        for listener in self._listeners:
            listener.line(text)

    def _write(self, event: str, **values: Any) -> None:
        self._events.write(event, **values)
        for listener in self._listeners:
            listener.event(event, values)

    def event(self, event: str, **values: Any) -> None:
        """Write one event."""
        if event == "left":
            self._write_farewells()
        self._write(event, **values)
        if event == "started":
            self._reachable = bool(values["address"])
        elif event == "left":
            self._console.settle()

    def paused(self, reasons: list[str], text: str) -> None:
        """Note why this device pauses: `reasons` as words for programs, `text` for people; none and
        "" if it does not. What people see of the device says so, too."""
        now, since = self._clock(), self._paused_since
        if reasons:
            self._paused_since = now if since is None else since
            self._write("paused", reasons=reasons)
            self.say(f"paused: {text}")
        elif since is not None:
            self._paused_since = None
            self._write("resumed", seconds=round(now - since, 6))
            self.say(f"no longer paused, after {seconds_text(now - since)}")
        self.pause = text

    def assembling(self, wanted: int, here: int) -> None:
        """Tell how many devices are here of those that training waits for."""
        self._write("assembling", wanted=wanted, here=here)
        if here < wanted:
            more = plural(wanted - here, "more device")
            self.say(f"waiting for {more} ({here} of {wanted}) before training begins")
        else:
            self.say(f"{here} devices are here: training begins")

    def stands_by(self, reason: str, text: str) -> None:
        """Note that this device has begun to stand by, for `reason`; people are told `text`."""
        self._write("standby", reason=reason)
        self.say(text)

    def error(self, message: str) -> None:
        """Write an error that has ended this agent's part in the training."""
        self._write("error", message=message)
        log_error(self._name, message, self._iteration)

    def evaluated(self, iteration: int, name: str, value: float, *, quiet: bool) -> None:
        """Write a figure that the script has reported, and show it unless `quiet`."""
        self._write("evaluated", iteration=iteration, name=name, value=value)
        if not quiet:
            self.say(f"{clean(name)} {value:.6g} after step {iteration}")

    # --- the iteration --------------------------------------------------------------------------

    def work_given(self) -> None:
        """Note that the trainer begins to compute."""
        self._given = self._clock()
        self.local_step = None

    @property
    def compute_seconds(self) -> float:
        """Seconds that the trainer took for its last share, 0 before the first."""
        return self._compute

    def progressed(self, micro_batches: int, part: float) -> None:
        """Note that the trainer has taken `part` (0 to 1) of the local steps of the running round,
        for which it has so many micro-batches, and show it."""
        steps = self.local_steps if self.in_cells else micro_batches
        self.local_step = (min(steps, round(steps * part)), steps)
        if self._line is not None:
            self._console.training(replace(self._line, local_step=self.local_step))

    def contributed(self, compute_seconds: float, micro_batches: int, dropped: int = 0) -> None:
        """Note that the trainer has computed its share, which was so many micro-batches, beside
        `dropped` ones that count as done."""
        self._contributed = self._clock()
        self._compute = compute_seconds
        self._computed, self._dropped = micro_batches, dropped
        self.local_step = None

    def reduced(self) -> None:
        """Note that the round is complete on this node."""
        self._reduced = self._clock()

    def apply_sent(self) -> None:
        """Note that the trainer may apply the update."""
        self._apply_sent = self._clock()

    def stepped(
        self,
        iteration: int,
        steps: int,
        word: ControlWord,
        samples: int,
        members: int,
        skipped: bool,
    ) -> None:
        """Write a step: `iteration` updates are done now."""
        now, self._iteration = self._clock(), iteration
        self.local_step = None
        self.loss = word.loss_sum / word.weight if word.weight else None
        self.skipped += skipped
        self._steps_seen.append((now, samples))
        self._write_farewells()
        # A joiner applies updates that others have reduced before it is in a round itself.
        reduced = self._reduced
        stall = max(0.0, self._apply_sent - reduced) if reduced is not None else 0.0
        sync = max(0.0, reduced - self._contributed) if reduced is not None else 0.0
        own = {}
        if self.local_steps:
            own["cells" if self.in_cells else "local_steps"] = self._computed
            if self.in_cells:
                own["dropped_cells"] = self._dropped
        self._computed = self._dropped = 0
        self._write(
            "step",
            iteration=iteration,
            loss=self.loss,
            samples=samples,
            members=members,
            compute_s=round(self._compute, 6),
            sync_s=round(sync, 6),
            stall_s=round(stall, 6),
            **own,
        )
        if skipped:
            self.say(
                f"step {iteration} skipped on every device: gradients not finite "
                f"({self.skipped} so far)"
            )
        if word.stop:
            self.say(f"a script has called stop(): step {iteration} is the last one")
        shown_steps = 0 if steps == limits.MAX_INTEGER else steps
        rate, local = self.samples_per_second, self.local_steps
        self._line = TrainingLine(iteration, shown_steps, self.loss, rate, members, local)
        self._console.training(self._line)

    @property
    def samples_per_second(self) -> float:
        """Samples per second of the cluster over the last steps."""
        if len(self._steps_seen) < 2:
            return 0.0
        now = self._steps_seen[-1][0]
        recent = [(t, n) for t, n in self._steps_seen if now - t <= RATE_SECONDS]
        seconds = now - recent[0][0]
        return sum(n for _, n in recent[1:]) / seconds if seconds > 0 else 0.0

    # --- joins ------------------------------------------------------------------------------------

    def shard_arrived(self, name: str, size: int, rate: float | None = None) -> None:
        """Count a shard from `name`, whose link has `rate` bytes/s, and show how far the pull
        is."""
        if (pull := self.pull) is not None:
            pull.arrived(name, size, rate)
            done = min(pull.bytes, pull.total_bytes)
            seconds = pull.elapsed
            sources = tuple(
                SourceLine(s["node"], s["bytes"], s["bytes"] / seconds if seconds > 0 else 0.0)
                for s in pull.sources
            )
            self._console.joining(JoinLine(done, pull.total_bytes, sources, seconds))

    # --- reports of the node ----------------------------------------------------------------------

    def report(self, event: str, values: dict[str, Any]) -> None:
        """Write and show what the node reports of the cluster."""
        match event:
            case "delay":
                self.delays[values["id"]] = values["seconds"] / 2
                self._write_old_farewells()
            case "joined":
                self._joined(values)
            case "pull_begins":
                self.pull = PullMeter(values["total_bytes"], self._clock)
                self._inside = False
                self._line = self.local_step = None
                self._write_farewells()
                self._late_since.clear()
                self._steps_seen.clear()  # so that the time of the pull does not count as a step
            case "pull_spares":
                if self.pull is not None:
                    self.pull.spares(values["spared_bytes"])
            case _ if event in _OF_MEMBERS and not self._inside:
                pass
            case "diverged":
                self._diverged(event, values)
            case "first_difference":
                self._write(event, **values)
                self.say(f"the training state here differs in: {values['where']}")
            case "member_late" | "member_back":
                self._told_of_trainer(event, values)
            case _ if event in _OF_PARTS:
                self._told_of_parts(event, values)
            case "wrong_source":
                self._write(event, **values)
                self.say(
                    f"{values['node']} has sent a state that others contradict; copying from the "
                    "others (its memory or disk may be broken)"
                )
            case "member_standby":
                if values["node"] not in self._standing_by:
                    if len(self._standing_by) >= limits.MAX_MEMBERS:
                        self._standing_by.clear()
                    self._standing_by[values["node"]] = None
                    self._write(event, **values)
                    self.say(f"{values['node']} stands by: {values['reason']}")
            case "member_joined":
                self._standing_by.pop(values["node"], None)
                self._write(event, **values)
                self.say(f"{values['node']} has joined")
            case "member_left":
                self._gone.append((self._clock(), values))
                self._late_since.pop(values["node"], None)  # it may join again, and be late then
                if self._later is not None:
                    self._later(FAREWELL_SECONDS, self._write_old_farewells)
                how = _FAREWELLS.get(values["reason"], "has left")
                self.say(f"{values['node']} {how}")
            case "accused":
                self._write(event, **values)
                self.say(
                    f"{values['by']} has ended its link to {values['node']}, which broke the "
                    f"protocol: {values['reason']}"
                )
            case "scheduler":
                self._write(event, **values)
                if values["why"] == "founded":
                    self.pull = None  # it belonged to a join that has failed
                else:
                    self.say(f"{values['node']} is the scheduler now")
            case _:
                self._write(event, **values)

    def _told_of_trainer(self, event: str, values: dict[str, Any]) -> None:
        """Tell that a trainer, here or elsewhere, does not keep up, or does so again."""
        ours = values["node"] == self._name
        who = "the trainer here" if ours else f"the trainer of {values['node']}"
        self._write(event, **values)
        since = self._late_since.pop(values["node"], None)
        if event == "member_late":
            self._late_since[values["node"]] = self._clock() if since is None else since
        if event == "member_back":
            after = "" if since is None else f" after {seconds_text(self._clock() - since)}"
            self.say(f"{who} is back{after}")
        elif values["away"]:
            self.say(f"{who} is away: the others compute its share")
        else:
            self.say(f"{who} does not answer in time: the others compute its share")

    def _told_of_parts(self, event: str, values: dict[str, Any]) -> None:
        """Tell how safe the parts of a divided optimizer state are."""
        self._write(event, **values)
        if event == "copies":
            lost = values["survives"]
            what = f"the loss of {plural(lost, 'member')}" if lost else "no loss for now"
            self.say(f"the optimizer's state survives {what}")
        elif event == "handing_on":
            parts = plural(values["parts"], "part")
            self.say(f"before it leaves, this device hands on {parts} of the optimizer's state")
        elif event == "parts_missing":
            self.say(
                f"waiting for {', '.join(values['nodes'])}: only there is a part of the optimizer's"
                f" state; {_AFTER_LOSS[values['then']]}"
            )
        elif event == "rounding":
            most, *others = values["groups"]
            if others:
                who = [name for group in others for name in group]
                rounds = "rounds" if len(who) == 1 else "round"
                self.say(
                    f"{', '.join(who)} {rounds} updates otherwise than {', '.join(most)}: each"
                    " result is computed by one device, and taken over by all"
                )
            else:
                self.say(
                    "all devices round updates alike now; slots of which others had made the last"
                    " steps may differ from theirs in the last bits"
                )
        elif event == "parts_anew":
            lost = len(values["parts"])
            are, begin = ("is", "it begins") if lost == 1 else ("are", "they begin")
            self.say(
                f"{lost} of {values['of']} parts of the optimizer's state {are} lost:"
                f" {begin} anew after step {values['iteration']}"
            )
        else:
            self.say("all parts of the optimizer's state are in reach again")

    def _diverged(self, event: str, values: dict[str, Any]) -> None:
        """Tell that a member's training state differs from that of most others."""
        self._write(event, **values)
        ours = values["node"] == self._name
        whose = "of this device" if ours else f"of {values['node']}"
        pulls = "this device" if ours else "it"
        self.say(
            f"the training state {whose} differs from that of the others before step "
            f"{values['iteration'] + 1}: {pulls} leaves and pulls theirs"
        )

    def _write_old_farewells(self) -> None:
        """Write the departures if the step after the first of them is waited for no longer."""
        if self._gone and self._clock() - self._gone[0][0] >= FAREWELL_SECONDS:
            self._write_farewells()

    def _write_farewells(self) -> None:
        """Write the departures, now that the step after them is done or none will follow."""
        gone, self._gone = self._gone, []
        for left, values in gone:
            stall = self._stall_around(left)
            rounded = None if stall is None else round(stall, 6)
            self._write("member_left", **{**values, "stall_s": rounded})

    def _stall_around(self, then: float) -> float | None:
        """Return by how many seconds the longer of the steps before and after `then` exceeded the
        usual time of a step; None if too few steps were seen."""
        ends = [t for t, _ in self._steps_seen]
        gaps = [later - earlier for earlier, later in pairwise(ends)]
        before = [g for g, end in zip(gaps, ends[1:], strict=True) if end <= then]
        after = [g for g, end in zip(gaps, ends[1:], strict=True) if end > then]
        if not before and not after:
            return None
        longest = max(*before[-1:], *after[:1], 0.0)
        return max(0.0, longest - statistics.median(gaps[-USUAL_STEPS:]))

    def _joined(self, values: dict[str, Any]) -> None:
        self._inside = True
        pull = self.pull
        self._write(
            "joined",
            cluster=self._cluster,
            term=values["term"],
            members=values["members"],
            updates=values["updates"],
            bytes=pull.bytes if pull else 0,
            spared_bytes=pull.spared_bytes if pull else 0,
            seconds=round(pull.seconds, 6) if pull else 0.0,
            sources=pull.sources if pull else [],
            lower_bound_s=pull.lower_bound_s if pull else None,
        )
        if pull is None:
            if self._reachable:
                self.say(f"founded cluster {self._cluster!r}; others can join at any time")
            return
        parts = ", ".join(f"{s['node']} {bytes_text(s['bytes'])}" for s in pull.sources)
        spared = bytes_text(pull.spared_bytes)
        here = f"; {spared} of the state were here already" if pull.spared_bytes else ""
        if values["updates"]:
            here += f"; the others have gone on meanwhile, by {plural(values['updates'], 'update')}"
        self.say(
            f"joined {plural(len(values['members']) - 1, 'other')}: pulled "
            f"{bytes_text(pull.bytes)} in {seconds_text(pull.seconds)} from "
            f"{plural(len(pull.sources), 'source')} ({parts}){here}"
        )
        missing = [clean(name) for name in self.neighbours if name not in values["members"]]
        if missing:
            others = len(missing) < len(self.neighbours)
            linked = (
                "only the others that it names" if others else "members of the cluster's choice"
            )
            self.say(
                f"no member is called {' or '.join(missing)}, as --neighbours says: this device is "
                f"linked to {linked}"
            )

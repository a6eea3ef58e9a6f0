"""Replays a trace: a fresh node with the same configuration gets the same calls.

A node is deterministic, so its effects must be those of the trace. The first ones that differ show
where the node that was recorded and this version of the code diverge. On the command line:

    python -m tests.simulation.replay trace.jsonl

Only the calls of the trace reach the node. Effects are compared as plain values, the form in which
they were written.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgeagent.planner.shares import ShareRule
from edgeagent.planner.standard import StandardPlanner
from edgeagent.planner.work_cost import WorkCost
from edgeagent.trace import Line, Trace, read_trace
from protocols.member.node import Node
from protocols.member.plain import to_plain
from protocols.member.recorder import FoundCalled, JoinCalled, PingCalled, Recorder

if TYPE_CHECKING:
    from protocols.cluster.ancestry import Past
    from protocols.cluster.view import Member
    from protocols.effects import Effect
    from protocols.events import Event
    from protocols.scheduler.planning import Planner


@dataclass(frozen=True, slots=True)
class Difference:
    """The first entry whose effects differ now. If `now_wanted` is None, the node raised
    `error`."""

    line: Line
    now_wanted: list[Any] | None
    error: str

    def __str__(self) -> str:
        lines = [f"entry {self.line.number}, {to_plain(self.line.call)}"]
        lines += [f"  then: {x}" for x in self.line.effects or [self.line.error]]
        lines += [f"  now:  {x}" for x in self.now_wanted or [self.error]]
        return "\n".join(lines)


def replay(trace: Trace, planner: Planner | None = None) -> Difference | None:
    """Replay what can be replayed of a trace; return where it first differs, None if nowhere.

    `planner`: the one that was recorded, if it was not the standard one. Raises `ValueError` if the
    trace can only be read: something that belongs to the node's beginning was dropped.
    """
    start = trace.replays_from
    if start is None:
        raise ValueError("this trace can only be read: the node's beginning is not in it")
    inputs = trace.header["planner"]
    if planner is None and inputs["custom"]:
        raise ValueError("this trace needs the policy that planned")
    if planner is None:
        sizes = (inputs["payload_bytes"], inputs["chunk_bytes"])
        cost = WorkCost(inputs["fixed"], inputs["square"])
        rule = ShareRule(cost, inputs["least"], inputs["least_gain"])
        planner = StandardPlanner(*sizes, trees=inputs["trees"], rule=rule)
    node: Node | None = None
    for line in trace.lines:
        if line.number < start:
            continue
        if isinstance(line.call, FoundCalled | JoinCalled):
            router = None if line.call.is_fresh or node is None else node.context.router
            node = Node(line.call.config, planner, router)
        assert node is not None, "a trace that begins in the middle"
        wanted, error = _call(node, line)
        if (wanted, error) != (line.effects, line.error):
            return Difference(line, wanted, error)
    return None


def _call(node: Node, line: Line) -> tuple[list[Any] | None, str]:
    try:
        wanted = _effects(node, line)
    except Exception as error:  # the node that was recorded may have raised the same
        return None, f"{type(error).__name__}: {error}"
    plain: list[Any] = to_plain(wanted)
    return plain, ""


def _effects(node: Node, line: Line) -> list[Effect]:
    match line.call:
        case FoundCalled(_, _, lineage, past, meta, commit):
            return node.found(line.now, lineage, past, meta, commit)
        case JoinCalled(_, _, sponsor):
            return node.join(line.now, sponsor)
        case PingCalled():
            return node.ping(line.now)
        case None:
            raise AssertionError("an entry that was shortened cannot be replayed")
        case _:
            return node.handle(line.now, line.call)


class Recorded:
    """A node for hosts of the small world, of which all calls are recorded."""

    def __init__(self, node: Node, recorder: Recorder) -> None:
        self._node = node
        self._recorder = recorder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node, name)

    def found(
        self, now: float, lineage: bytes, past: Past, meta: bytes, commit: bytes = bytes(32)
    ) -> list[Effect]:
        return self._recorder.found(self._node, now, lineage, past, meta, commit)

    def join(self, now: float, sponsor: Member) -> list[Effect]:
        return self._recorder.join(self._node, now, sponsor)

    def ping(self, now: float) -> list[Effect]:
        return self._recorder.ping(self._node, now)

    def handle(self, now: float, event: Event) -> list[Effect]:
        return self._recorder.handle(self._node, now, event)


def main(path: str) -> int:
    """Replay the trace in a file and print the result; return the exit status: 0 for the same
    effects, 1 for a difference, 2 for a trace that cannot be replayed."""
    try:
        with open(path, encoding="utf-8") as file:
            trace = read_trace(file)
        difference = replay(trace)
    except ValueError as error:
        print(f"{path}: {error}", file=sys.stderr)
        return 2
    print(difference or f"replayed from entry {trace.replays_from}: the effects are the same")
    return 0 if difference is None else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

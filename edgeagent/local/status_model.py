"""The shape of what a running agent says of itself: `GET /status` and `edgeagent status --json`.

Law: names and units here are an interface, only added to. Times are in the unit that the name ends
in (`_ms`, `seconds`), sizes in bytes, names of nodes are their `--name`.
"""

from __future__ import annotations

from typing import Literal, TypedDict, get_args

Phase = Literal["starting", "founding", "joining", "training", "leaving"]
PHASES: tuple[Phase, ...] = get_args(Phase)


class MemberStatus(TypedDict):
    """One member of the cluster; `id` is hexadecimal, `share` a number of micro-batches."""

    name: str
    id: str
    share: int
    scheduler: bool
    me: bool


class LinkStatus(TypedDict):
    """One open link of this node; `delay_ms` is one way, None while not measured."""

    peer: str
    delay_ms: float | None
    sent_bytes: int
    received_bytes: int


class TreeStatus(TypedDict):
    """The tree along which gradients are summed: child name -> parent name."""

    root: str
    parents: dict[str, str]


class PendingStatus(TypedDict):
    """A change under negotiation: its kind (for example scale-out), node and phase."""

    kind: str
    node: str
    phase: str


class SourceStatus(TypedDict):
    """What one neighbour has sent of the training state so far."""

    node: str
    bytes: int
    seconds: float


class JoiningStatus(TypedDict):
    """How far this node's own pull of the training state is."""

    sources: list[SourceStatus]
    bytes: int
    total_bytes: int


class Status(TypedDict):
    """Everything `edgeagent status` shows. `loss` is None before the first iteration; `tasks`
    counts what the agent's loop has under way, for whoever looks for leaks."""

    node: str
    id: str
    cluster: str
    phase: Phase
    scheduler: str
    term: int
    view: int
    policy: int
    iteration: int
    steps: int
    loss: float | None
    samples_per_second: float
    members: list[MemberStatus]
    links: list[LinkStatus]
    tree: TreeStatus
    pending: list[PendingStatus]
    joining: JoiningStatus | None
    tasks: int

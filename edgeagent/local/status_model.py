"""The shape of what a running agent says of itself: `GET /status` and `edgeagent status --json`.

Law: names and units here are an interface, only added to. Times are in the unit that the name ends
in (`_ms`, `seconds`), sizes in bytes, rates in Mbit/s of payload, names of nodes are their
`--name`. None: not measured yet.
"""

from __future__ import annotations

from typing import Literal, TypedDict, get_args

Phase = Literal["starting", "founding", "joining", "training", "leaving"]
PHASES: tuple[Phase, ...] = get_args(Phase)


class MemberStatus(TypedDict):
    """One member of the cluster; `id` is hexadecimal, `share` a number of micro-batches, of which
    one takes `micro_batch_ms`. `compute_ms` and `sync_ms` (waiting for the round) are those of its
    last iteration. `trainer`: "prompt", "slow" (the others wait for it), "late" (they do its work)
    or "away" (the same, and its script has said so); `owes_s`: for how many seconds the trainer has
    not answered, 0 if it is prompt."""

    name: str
    id: str
    share: int
    scheduler: bool
    me: bool
    micro_batch_ms: float | None
    compute_ms: float | None
    sync_ms: float | None
    trainer: str
    owes_s: float


class LinkStatus(TypedDict):
    """One open link of this node; `delay_ms` is one way (half of a round trip); `in_mbit_s` from
    the peer, `out_mbit_s` to it."""

    peer: str
    delay_ms: float | None
    sent_bytes: int
    received_bytes: int
    in_mbit_s: float | None
    out_mbit_s: float | None


class PairStatus(TypedDict):
    """One link of the cluster, between members `a` and `b`: rates from a to b and back."""

    a: str
    b: str
    delay_ms: float | None
    there_mbit_s: float | None
    back_mbit_s: float | None
    in_tree: bool


class TreeStatus(TypedDict):
    """The tree along which gradients are summed: child name -> parent name."""

    root: str
    parents: dict[str, str]


class PendingStatus(TypedDict):
    """A change under negotiation: its kind (for example scale-out), node and phase. Only the
    scheduler knows it. `pull`: how far a scale-out's pull is, as the joiner says every second while
    it lasts; None before it begins."""

    kind: str
    node: str
    phase: str
    pull: PullStatus | None


class SourceStatus(TypedDict):
    """What one neighbour has sent of the training state so far. `seconds` since the first request
    to any of them."""

    node: str
    bytes: int
    seconds: float
    mbit_s: float | None


class PullStatus(TypedDict):
    """How far a pull of the training state is."""

    sources: list[SourceStatus]
    bytes: int
    total_bytes: int
    seconds: float
    seconds_left: float | None


class WaitingStatus(TypedDict):
    """Whom the members wait for. `cause`: "computing", "link", "silence", "joiner" or "unknown".
    `seconds`: of each step, if `step_s` says how long one takes, else of the running one so far.
    With a link `peer` is its other end, `mbit_s` what its slower direction carries, `delay_ms` its
    delay one way, `shared` whether it is as much that one's as `node`'s, `late` whether its delay
    costs more time than its rate. `trainer`: the trainer of `node` has not answered. `more`: so
    many others are waited for likewise. `text`: all of it in words."""

    cause: str
    node: str
    seconds: float
    step_s: float
    peer: str
    mbit_s: float | None
    delay_ms: float | None
    shared: bool
    late: bool
    trainer: bool
    more: int
    text: str


class AdviceStatus(TypedDict):
    """Members that cost more than they give: without `left_out` a step would take about `without_s`
    instead of `step_s`. `alone`: the device that would even by itself be faster (`alone_s`) than
    with all `others`, "" if there is none. `text`: in words, and what would help."""

    left_out: list[str]
    step_s: float
    without_s: float
    alone: str
    alone_s: float
    others: int
    text: str


class Status(TypedDict):
    """Everything `edgeagent status` shows. `loss` is None before the first iteration; `reason` says
    why the policy in force is as it is; `waiting` tells whom the members wait for, None for nobody,
    and `holds_up` names that one, "" for nobody; `advice` is None where no device costs more than
    it gives, as far as is known; `tasks` counts what the agent's loop has under way, for whoever
    looks for leaks.
    """

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
    mesh: list[PairStatus]
    tree: TreeStatus
    reason: str
    holds_up: str
    waiting: WaitingStatus | None
    advice: AdviceStatus | None
    pending: list[PendingStatus]
    joining: PullStatus | None
    tasks: int

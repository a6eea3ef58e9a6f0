"""The shape of what a running agent says of itself: `GET /status` and `edgeagent status --json`.

Users' programs read these names and units, so fields are only ever added. Times are in the unit
that the name ends in (`_ms`, `_s`, `seconds`), sizes in bytes, rates in Mbit/s of payload, and
nodes are called by their `--name`. None means that something is not measured yet.
"""

from __future__ import annotations

from typing import Literal, TypedDict, get_args

Phase = Literal["starting", "founding", "joining", "standby", "waiting", "training", "leaving"]
PHASES: tuple[Phase, ...] = get_args(Phase)


class MemberStatus(TypedDict):
    """One member of the cluster.

    `id` is hexadecimal; `share` is a number of micro-batches, each of which takes `micro_batch_ms`.
    `compute_ms` and `sync_ms` (waiting for the round) are those of its last iteration. `trainer` is
    "prompt", "slow" (the others wait for it), "late" (the others do its work) or "away" (the same,
    because its script has said so). `owes_s` says for how many seconds the trainer has not
    answered, 0 if it is prompt. `most_out_mbit_s` and `most_in_mbit_s`: what the device can send
    and receive over all its links together, None if no limit is known.
    """

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
    most_out_mbit_s: float | None
    most_in_mbit_s: float | None


class LinkStatus(TypedDict):
    """One open link of this node. `delay_ms` is one way (half of a round trip), `in_mbit_s` the
    rate from the peer, `out_mbit_s` the rate to it."""

    peer: str
    delay_ms: float | None
    sent_bytes: int
    received_bytes: int
    in_mbit_s: float | None
    out_mbit_s: float | None


class PairStatus(TypedDict):
    """One link of the cluster, between members `a` and `b`, with rates from a to b and back.
    `in_tree`: sums travel along it, in the tree or in one of the ways in force; `part`: which part
    of the gradients crosses it, from 0 to 1, None if that is not known."""

    a: str
    b: str
    delay_ms: float | None
    there_mbit_s: float | None
    back_mbit_s: float | None
    in_tree: bool
    part: float | None


class TreeStatus(TypedDict):
    """The tree along which gradients are summed: `parents` maps each child's name to its
    parent's."""

    root: str
    parents: dict[str, str]


class PendingStatus(TypedDict):
    """A change under negotiation: its kind (for example scale-out), node and phase. The kind
    "standby" is a device that follows from outside, for as long as it likes.

    Only the scheduler's own agent shows it. `pull` says how far the pull of a scale-out is, as its
    joiner tells every second while it lasts; None before it begins.
    """

    kind: str
    node: str
    phase: str
    pull: PullStatus | None


class SourceStatus(TypedDict):
    """What one neighbour has sent of the training state, `seconds` after the first request to any
    of them."""

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
    """Whom the members wait for.

    `cause` is "computing", "link", "silence", "joiner" or "unknown". `seconds` is the time lost in
    each step if `step_s` tells how long a step takes, else in the running step so far. If the cause
    is a link, `peer` is its other end, `mbit_s` the rate of its slower direction, `delay_ms` its
    delay one way, `shared` says that it is as much the peer's link as `node`'s, and `late` that its
    delay costs more time than its rate. `trainer` says that the trainer of `node` has not answered.
    `more` counts others that are waited for in the same way. `text` is all of this in words.
    """

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
    """Members that cost more than they give.

    Without `left_out` a step would take about `without_s` instead of `step_s`. `alone` is a device
    that would even by itself be faster (`alone_s`) than together with all `others`, "" if there is
    none. `text` is this in words, with what would help.
    """

    left_out: list[str]
    step_s: float
    without_s: float
    alone: str
    alone_s: float
    others: int
    text: str


class DividedStatus(TypedDict):
    """The optimizer's state where it is divided (`--shard-optimizer`).

    It consists of `parts`, each of which is on one member and on `copies` others if all is well.
    `survives` is how many members can be lost at once, whichever they are, and `fatal` has the
    names of the members that must not be lost together: all sets of one member more with which a
    part would be lost. `learning` is on how many members parts are being copied. `held` has the
    names of members and how many parts each has. `missing` are the members without which the
    others cannot go on, because they alone had some part.
    """

    parts: int
    copies: int
    survives: int
    fatal: list[list[str]]
    learning: int
    held: dict[str, int]
    missing: list[str]


class AssemblingStatus(TypedDict):
    """For how many devices training waits before it begins (`wanted`), and how many are `here`,
    this one included."""

    wanted: int
    here: int


class LocalStepStatus(TypedDict):
    """How many local steps this device has taken in the running round (`done`), and how many it
    has to take (`of`)."""

    done: int
    of: int


class Status(TypedDict):
    """Everything `edgeagent status` shows.

    `local_steps` is 0, or an iteration is a round of local steps, which has the samples of so many
    global batches; `local_step` is how far this device is in the running one, None if it has not
    told yet. `loss` is None before the first iteration. `reason` says why the policy in force
    is as it is. `waiting` tells whom the members wait for, None if for nobody, and `holds_up` is
    the name of that member, "" if there is none. `advice` is None if no device is known to cost
    more than it gives. `paused` says why this device pauses, "" if it does not, and `standby` why
    it stands by. `assembling` is None unless training has not begun because too few devices are
    there. `let_in` says that the others have let this device in, which copies the state once their
    running step is done. `divided` is None unless the optimizer's state is divided. `tasks` counts
    the tasks on the agent's loop, which helps to find leaks.
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
    local_steps: int
    local_step: LocalStepStatus | None
    loss: float | None
    samples_per_second: float
    members: list[MemberStatus]
    links: list[LinkStatus]
    mesh: list[PairStatus]
    tree: TreeStatus
    reason: str
    paused: str
    holds_up: str
    waiting: WaitingStatus | None
    advice: AdviceStatus | None
    pending: list[PendingStatus]
    joining: PullStatus | None
    standby: str
    assembling: AssemblingStatus | None
    let_in: bool
    divided: DividedStatus | None
    tasks: int

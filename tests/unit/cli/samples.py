"""Statuses and events that several tests here use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgeagent.demo.report import Event
    from edgeagent.local.status_model import (
        AdviceStatus,
        LinkStatus,
        MemberStatus,
        PairStatus,
        Status,
        WaitingStatus,
    )


def member(
    name: str,
    share: int,
    *,
    scheduler: bool = False,
    me: bool = False,
    times: tuple[float | None, float | None, float | None] = (None, None, None),
) -> MemberStatus:
    """Return one member's entry; `times`: of one micro-batch, computing, waiting, in ms."""
    each, compute, sync = times
    return {
        "name": name,
        "id": name * 4,
        "share": share,
        "scheduler": scheduler,
        "me": me,
        "micro_batch_ms": each,
        "compute_ms": compute,
        "sync_ms": sync,
        "trainer": "prompt",
        "owes_s": 0.0,
        "most_out_mbit_s": None,
        "most_in_mbit_s": None,
    }


def pair(
    a: str,
    b: str,
    delay_ms: float | None = None,
    there: float | None = None,
    back: float | None = None,
    *,
    in_tree: bool = False,
    part: float | None = None,
) -> PairStatus:
    """Return one link of the cluster; rates in Mbit/s. All of the sums cross it if it is in the
    tree, unless a `part` is given."""
    return {
        "a": a,
        "b": b,
        "delay_ms": delay_ms,
        "there_mbit_s": there,
        "back_mbit_s": back,
        "in_tree": in_tree,
        "part": float(in_tree) if part is None else part,
    }


def link(
    peer: str,
    delay_ms: float | None = None,
    inward: float | None = None,
    outward: float | None = None,
) -> LinkStatus:
    """Return one link of the node itself; rates in Mbit/s."""
    return {
        "peer": peer,
        "delay_ms": delay_ms,
        "sent_bytes": 12_345_678,
        "received_bytes": 999,
        "in_mbit_s": inward,
        "out_mbit_s": outward,
    }


def waiting(**changes: Any) -> WaitingStatus:
    """Return that all wait for the link of laptop3, without its text."""
    found: WaitingStatus = {
        "cause": "link",
        "node": "laptop3",
        "seconds": 12.0,
        "step_s": 0.0,
        "peer": "alice",
        "mbit_s": 1.92,
        "delay_ms": 80.0,
        "shared": False,
        "late": False,
        "trainer": False,
        "more": 0,
        "text": "",
    }
    return {**found, **changes}  # type: ignore[typeddict-item]


def advice(**changes: Any) -> AdviceStatus:
    """Return that laptop3 costs more than it gives, without its text."""
    found: AdviceStatus = {
        "left_out": ["laptop3"],
        "step_s": 0.88,
        "without_s": 0.018,
        "alone": "",
        "alone_s": 0.0,
        "others": 2,
        "text": "",
    }
    return {**found, **changes}  # type: ignore[typeddict-item]


REASON = (
    "fastest aggregation paths, rooted at bob, of depth 1; left out as slower than all in use: "
    "alice-carol (20 Mbit/s); 16 micro-batches over 3 devices by speed: 0.0421 s, 6% of it lost "
    "to granularity"
)


def sample_status(**changes: Any) -> Status:
    """Return the status of alice in a cluster of three."""
    status: Status = {
        "node": "alice",
        "id": "aa" * 32,
        "cluster": "default",
        "phase": "training",
        "scheduler": "bob",
        "term": 3,
        "view": 5,
        "policy": 7,
        "iteration": 120,
        "steps": 400,
        "local_steps": 0,
        "local_step": None,
        "loss": 0.34123,
        "samples_per_second": 5120.4,
        "members": [
            member("alice", 6, me=True, times=(7.0125, 42.075, 7.925)),
            member("bob", 5, scheduler=True, times=(6.5, 32.5, 12.0)),
            member("carol", 5),
        ],
        "links": [link("bob", 0.42, 93.3, 47.1), link("carol", 1.5)],
        "mesh": [
            pair("alice", "bob", 0.42, 47.1, 93.3, in_tree=True),
            pair("bob", "carol", in_tree=True),
            pair("carol", "alice", None, 20.0, 19.5),
        ],
        "tree": {"root": "bob", "parents": {"carol": "bob", "alice": "bob"}},
        "reason": REASON,
        "paused": "",
        "standby": "",
        "assembling": None,
        "let_in": False,
        "divided": None,
        "holds_up": "alice",
        "waiting": waiting(
            cause="computing",
            node="alice",
            text="waiting 9.6 ms of each 50 ms step for alice: it computes longest",
        ),
        "advice": None,
        "pending": [],
        "joining": None,
        "tasks": 9,
    }
    return {**status, **changes}  # type: ignore[typeddict-item]


def event(kind: str, t: float = 0.0, **values: Any) -> Event:
    """Return one event."""
    return {"t": t, "event": kind, **values}


def good_events() -> dict[str, list[Event]]:
    """Return what the agents of a demo that went well wrote."""
    sources = [
        {"node": "alice", "bytes": 600_000, "seconds": 0.11},
        {"node": "bob", "bytes": 500_000, "seconds": 0.10},
    ]
    digests = [event("digest", iteration=i, state=f"d{i}") for i in (10, 20, 30)]
    left = event("left", iteration=30, seconds=0.2)
    return {
        "alice": [
            event("joined", members=1, sources=[]),
            *digests,
            event("member_left", node="carol", reason="leave", stall_s=0.0004),
            event("evaluated", iteration=20, name="accuracy", value=0.5),
            event("evaluated", iteration=30, name="accuracy", value=0.97),
            event("step", iteration=30),
            left,
        ],
        "bob": [
            event("digest", iteration=10, state="of a cluster of its own"),
            event("joined", members=2, bytes=9, seconds=0.1, sources=sources[:1]),
            *digests[1:],
            event("member_left", node="carol", reason="leave", stall_s=0.0009),
            event("evaluated", iteration=30, name="accuracy", value=0.97),
            left,
        ],
        "carol": [event("joined", members=3, sources=[]), digests[0]],
        "dave": [
            event(
                "joined",
                members=4,
                bytes=1_100_000,
                seconds=0.12,
                lower_bound_s=0.1,
                sources=sources,
            ),
            *digests[1:],
            left,
        ],
    }

"""What an agent tells Prometheus: counters of its events, and figures of its status, as text.

There is no I/O here. Names, labels and units are those of docs/metrics.md; dashboards and alerts
rely on them. Every name begins with `edgeagent_` and ends with its unit; counters end with `_total`
and only grow while the agent lives. The text is Prometheus' exposition format 0.0.4.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

from edgeagent import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from edgeagent.local.status_model import Status

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MAX_REPORTED = 256  # names of `report()` that are kept; a script might make up one in each step
_BYTES_PER_MBIT = 125_000.0
_PARTS = ("compute", "sync", "stall")

Labels = tuple[tuple[str, str], ...]
Sample = tuple[Labels, float]

HELP: Mapping[str, tuple[str, str]] = {
    "info": ("gauge", "Always 1; node, cluster and version are labels."),
    "iteration": ("gauge", "Updates that are done."),
    "steps": ("gauge", "Updates after which the training ends, 0 if it has no end."),
    "loss": ("gauge", "Mean loss over the last global batch."),
    "samples_per_second": ("gauge", "Samples that the cluster trains a second, over 10 seconds."),
    "samples_total": ("counter", "Samples of the steps that this agent has taken part in."),
    "step_seconds_total": ("counter", "Seconds of these steps, by part: compute, sync, stall."),
    "seen_steps_total": ("counter", "Steps that this agent has taken part in."),
    "members": ("gauge", "Members of the cluster."),
    "scheduler": ("gauge", "1 if this agent is the scheduler, else 0."),
    "term": ("gauge", "Number of the scheduler's tenure."),
    "joins_total": ("counter", "Members that have joined."),
    "departures_total": ("counter", "Members that are gone, by reason."),
    "restarts_total": ("counter", "Rounds that went on after a failure."),
    "late_members": ("gauge", "Members whose trainers do not keep up or are away."),
    "member_share": ("gauge", "Micro-batches of an iteration, by member."),
    "waiting_seconds": ("gauge", "Seconds that all wait for a node, in each step or so far."),
    "link_delay_seconds": ("gauge", "Delay one way, by peer."),
    "link_rate_bytes_per_second": ("gauge", "Measured rate of a link, by peer and direction."),
    "link_bytes_total": ("counter", "Bytes over a link since it opened, by peer and direction."),
    "pull_bytes": ("gauge", "Bytes of the training state that a join of this agent has pulled."),
    "pull_size_bytes": ("gauge", "Bytes of the training state that this join has to pull."),
    "reported": ("gauge", "The last figure of this name that the script has reported."),
}


class Metrics:
    """Counts what has happened, and writes it down together with a status."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._seconds = dict.fromkeys(_PARTS, 0.0)
        self._departures: Counter[str] = Counter()
        self._reported: dict[str, float] = {}

    def note(self, event: str, values: Mapping[str, Any]) -> None:
        """Count one event, with the fields of the README's table."""
        if event == "step":
            self._counts["seen_steps"] += 1
            self._counts["samples"] += values["samples"]
            for part in _PARTS:
                self._seconds[part] += values[f"{part}_s"]
        elif event == "member_joined":
            self._counts["joins"] += 1
        elif event == "member_left":
            self._departures[values["reason"]] += 1
        elif event == "restarted":
            self._counts["restarts"] += 1
        elif event == "evaluated":
            name = values["name"]
            if name in self._reported or len(self._reported) < MAX_REPORTED:
                self._reported[name] = values["value"]

    def text(self, status: Status) -> str:
        """Return everything as text for Prometheus."""
        found = {**self._counted(), **_of_status(status), **_of_links(status)}
        lines: list[str] = []
        for name, (kind, about) in HELP.items():
            if samples := list(found.get(name, ())):
                lines += (f"# HELP edgeagent_{name} {about}", f"# TYPE edgeagent_{name} {kind}")
                lines += (_line(name, labels, value) for labels, value in samples)
        return "\n".join(lines) + "\n"

    def _counted(self) -> dict[str, Iterable[Sample]]:
        counts = self._counts
        return {
            "samples_total": [((), counts["samples"])],
            "seen_steps_total": [((), counts["seen_steps"])],
            "joins_total": [((), counts["joins"])],
            "restarts_total": [((), counts["restarts"])],
            "step_seconds_total": [((("part", p),), s) for p, s in self._seconds.items()],
            "departures_total": [((("reason", r),), n) for r, n in self._departures.items()],
            "reported": [((("name", name),), v) for name, v in self._reported.items()],
        }


def _of_status(status: Status) -> dict[str, Iterable[Sample]]:
    who = (("node", status["node"]), ("cluster", status["cluster"]), ("version", __version__))
    members = status["members"]
    waiting, pull, loss = status["waiting"], status["joining"], status["loss"]
    late = sum(member["trainer"] in ("late", "away") for member in members)
    return {
        "info": [(who, 1)],
        "iteration": [((), status["iteration"])],
        "steps": [((), status["steps"])],
        "loss": [] if loss is None else [((), loss)],
        "samples_per_second": [((), status["samples_per_second"])],
        "members": [((), len(members))],
        "scheduler": [((), any(m["me"] and m["scheduler"] for m in members))],
        "term": [((), status["term"])],
        "late_members": [((), late)],
        "member_share": [((("member", m["name"]),), m["share"]) for m in members],
        "waiting_seconds": []
        if waiting is None
        else [((("node", waiting["node"]), ("cause", waiting["cause"])), waiting["seconds"])],
        "pull_bytes": [] if pull is None else [((), pull["bytes"])],
        "pull_size_bytes": [] if pull is None else [((), pull["total_bytes"])],
    }


def _of_links(status: Status) -> dict[str, Iterable[Sample]]:
    delays: list[Sample] = []
    rates: list[Sample] = []
    carried: list[Sample] = []
    for link in status["links"]:
        peer = ("peer", link["peer"])
        if link["delay_ms"] is not None:
            delays.append(((peer,), link["delay_ms"] / 1000))
        ways = (
            ("in", link["in_mbit_s"], link["received_bytes"]),
            ("out", link["out_mbit_s"], link["sent_bytes"]),
        )
        for direction, rate, size in ways:
            labels = (peer, ("direction", direction))
            carried.append((labels, size))
            if rate is not None:
                rates.append((labels, rate * _BYTES_PER_MBIT))
    return {
        "link_delay_seconds": delays,
        "link_rate_bytes_per_second": rates,
        "link_bytes_total": carried,
    }


def _line(name: str, labels: Labels, value: float) -> str:
    shown = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels)
    return (
        f"edgeagent_{name}{{{shown}}} {_number(value)}"
        if shown
        else (f"edgeagent_{name} {_number(value)}")
    )


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(int(value)) if value == int(value) else repr(float(value))

"""Time dilation: devices with processors faster than those of the machine that plays them all.

Links and computing N times as slow, delays and agents' own times N times as long, and all times
divided by N before they are reported: what is left is what devices do whose processors are N times
as fast. (Gupta et al., "To infinity and beyond: time-warped network emulation", NSDI 2006.) TCP's
own timers stay as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edgeagent.config import DEFAULT_JOIN_STALL

if TYPE_CHECKING:
    import argparse

MODULE = "tests.testbed.bench.dilated_agent"
VARIABLE = "DILATE"  # of the environment: how many times as long the agent's times are


def add_option(parser: argparse.ArgumentParser) -> None:
    """Add `--dilate`."""
    parser.add_argument(
        "--dilate",
        type=float,
        default=1.0,
        metavar="N",
        help="play processors N times as fast: all takes N times as long, and is divided by N (1)",
    )


def started(times: float) -> dict[str, Any]:
    """Return the arguments of `Lab.start` for an agent that is dilated so many times."""
    if times == 1.0:
        return {}
    stall = {"EDGEAGENT_JOIN_STALL": f"{DEFAULT_JOIN_STALL * times:.0f}"}
    return {"module": MODULE, "variables": {VARIABLE: f"{times:g}", **stall}}

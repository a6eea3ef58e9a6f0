"""`edgeagent demo`: the whole story on one machine.

With --json, stdout carries exactly one JSON object and everything for people goes to stderr, so
that a program can read the report.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeagent.commands.options import add_command, positive, present_folder

if TYPE_CHECKING:
    import argparse

    from edgeagent.commands.options import Commands

DESCRIPTION = """\
Train a small network on real handwritten digits with real agents, on this
machine alone: three start, a fourth joins in mid-training and pulls the state
from several of them at once, one leaves, and the scheduler is killed (kill -9).
No network, no download. Shows what happens live, then checks it: the accuracy,
who saw whom go, and that every replica is the same to the last bit.
"""
EXAMPLES = """\
  edgeagent demo
  edgeagent demo --shard-optimizer
  edgeagent demo --json > report.json
"""


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    parser = add_command(
        commands,
        "demo",
        execute,
        summary="see the whole story on this one machine, without a network",
        description=DESCRIPTION,
        examples=EXAMPLES,
    )
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object")
    parser.add_argument("--steps", metavar="N", type=positive, help="training steps")
    parser.add_argument(
        "--shard-optimizer",
        action="store_true",
        help="divide the optimizer's state among the devices, with one copy of each part",
    )


def execute(args: argparse.Namespace) -> int:
    """Run the demo; return the exit status."""
    present_folder()
    from edgeagent.demo.story import DEFAULT_STEPS, run_demo

    return run_demo(
        steps=args.steps or DEFAULT_STEPS, as_json=args.json, divided=args.shard_optimizer
    )

"""The options of `edgeagent run` about the cluster: which one, how this device and others get into
it, and what this device plans while it is the scheduler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeagent.commands.options import add_interface_option, devices, node_name, whole
from edgeagent.config import (
    DEFAULT_JOIN_STALL,
    DEFAULT_ROTATE_EVERY,
    GO_ON,
    JOIN_WAYS,
    PAUSE,
    STANDBY,
    TREES,
)

if TYPE_CHECKING:
    import argparse


def add_cluster_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which cluster it is, and how this device gets into it."""
    group = parser.add_argument_group("cluster")
    group.add_argument(
        "--cluster", metavar="NAME", type=node_name, help='the cluster\'s name (default "default")'
    )
    token = group.add_mutually_exclusive_group()
    token.add_argument(
        "--token-file",
        metavar="FILE",
        help="file that holds the token (else EDGEAGENT_TOKEN, "
        "else the one that `edgeagent join` has kept for this cluster's name)",
    )
    token.add_argument(
        "--token", metavar="TOKEN", help="the token itself; visible in ps, so warned"
    )
    group.add_argument(
        "--name", metavar="NAME", type=node_name, help="this node's name (default host name)"
    )
    group.add_argument(
        "--listen",
        metavar="[HOST:]PORT",
        help="where to listen, without HOST at every address; takes PORT+1 as well if it is free "
        "(default every address, first free port from 7430)",
    )
    add_interface_option(group)
    group.add_argument(
        "--peer",
        metavar="HOST[:PORT]",
        action="append",
        default=[],
        help="address of a node to try; repeatable (default PORT 7430)",
    )
    _add_join_options(group)
    group.add_argument("--no-mdns", action="store_true", help="neither look nor be seen by mDNS")
    group.add_argument(
        "--neighbours",
        metavar="N|all|NAMES",
        help="link to at most N members, to all of them, or only to those with these names, comma "
        "separated (default: to all members while there are up to 12, to 8 of more than that)",
    )
    group.add_argument(
        "--on-partition",
        choices=(GO_ON, PAUSE),
        help="what members do that can reach no quorum of the cluster for 10 s: go on under a new "
        "lineage (default), or stay paused until they can",
    )


def _add_join_options(group: argparse._ArgumentGroup) -> None:
    """Add the options for how devices come in, and for those that had better stay outside."""
    group.add_argument(
        "--join-only",
        action="store_true",
        help="found no cluster: wait for one to join, for as long as it takes",
    )
    group.add_argument(
        "--wait-for",
        metavar="N",
        type=devices,
        help="if this device founds the cluster, begin to train when N devices are there, this one "
        "included; the first steps let the others in, and from the first step on N has no effect "
        "any more (default 1, begin at once)",
    )
    group.add_argument(
        "--join",
        choices=JOIN_WAYS,
        help="how newcomers copy the state while this agent is the scheduler: from a snapshot and "
        "the updates since then, so that nobody waits (log); while the others hold their update "
        "(pause); or log where it saves time and the newcomer's links can keep up (auto, default)",
    )
    group.add_argument(
        "--standby",
        choices=STANDBY,
        help="whether this device stands by while the others are much faster without it, because "
        "its links are slow, and while it is the scheduler has newcomers do the same (auto, "
        "default), or not (never); always: it only follows the others from outside, so that what "
        "they have trained is here, too, and goes on from that if they are lost",
    )
    group.add_argument(
        "--join-stall",
        metavar="SECONDS",
        type=whole,
        help="longest that a newcomer may stop the others while it copies the state, or a few of "
        f"their steps if that is longer (default {DEFAULT_JOIN_STALL}, 0 no limit)",
    )


def add_planning_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that matter while this device is the scheduler."""
    group = parser.add_argument_group("plans (while this device is the scheduler)")
    group.add_argument(
        "--policy",
        metavar="NAME",
        help="plan trees and shares by the policy that an installed package registers under this "
        "name in the group edgeagent.policies",
    )
    group.add_argument(
        "--trees",
        choices=TREES,
        help="how gradients travel: along one tree, or cut into parts that travel along several "
        "at once; packed (default) chooses one tree or several, whichever is faster with the "
        "links as measured",
    )
    group.add_argument(
        "--rotate-every",
        metavar="STEPS",
        type=whole,
        help="steps after which the scheduler hands its role to another member "
        f"(default {DEFAULT_ROTATE_EVERY}, 0 never)",
    )

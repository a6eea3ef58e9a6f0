"""`edgeagent verify A B`: says whether two saved training states are equal, and where they part.

This needs neither an agent nor a cluster.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from edgeagent.commands.options import add_command, existing_file
from edgeagent.terminal.text import bytes_text, clean

if TYPE_CHECKING:
    import argparse

    from edgeagent.commands.options import Commands
    from edgeagent.trainer.comparison import Comparison, TensorDifference

DESCRIPTION = """\
Compare two training states that edgeagent has saved, bit by bit: the tensors
and all scalars, such as steps and learning rates. Devices that have trained
together save equal states at the same step.

The exit status is 0 if the states are equal, 1 if they differ, and 2 if one of
the files is no training state. The first difference of each kind is named.
"""
EXAMPLES = """\
  edgeagent verify alice/edgeagent-train.safetensors bob/edgeagent-train.safetensors
"""
SHOWN = 5  # tensors that differ, and names that only one file has, are listed up to so many


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    parser = add_command(
        commands,
        "verify",
        execute,
        summary="compare two saved training states, and say where they part",
        description=DESCRIPTION,
        examples=EXAMPLES,
    )
    parser.add_argument("first", metavar="A", help="file of a training state")
    parser.add_argument("second", metavar="B", help="file to compare it with")


def execute(args: argparse.Namespace) -> int:
    """Compare and print; return the exit status."""
    first, second = existing_file("A", args.first), existing_file("B", args.second)
    from edgeagent.trainer.comparison import compare_states

    found = compare_states(first, second)
    for line in report(found, *short_names(args.first, args.second)):
        print(line)
    return 0 if found.equal else 1


def short_names(first: str, second: str) -> tuple[str, str]:
    """Return the files' names, with their folders if the names are the same."""
    a, b = os.path.basename(first), os.path.basename(second)
    return (clean(first), clean(second)) if a == b else (clean(a), clean(b))


def report(found: Comparison, first: str, second: str) -> list[str]:
    """Return the lines that say what a comparison has found; the files are called so."""
    if found.equal:
        size = bytes_text(found.bytes)
        return [f"equal: step {found.iterations[0]}, {found.tensors} tensors, {size}, all bits"]
    lines = [f"different: {first} and {second}"]
    if found.iterations[0] != found.iterations[1]:
        lines.append(f"  steps: {found.iterations[0]} and {found.iterations[1]}")
    elif found.scalar:
        lines.append(f"  {found.scalar}")
    for names, where in zip(found.missing, (second, first), strict=True):
        lines += _listed(names, f"only in {where}")
    lines += _listed(found.unlike, "of another shape or type")
    if found.different:
        lines.append(f"  {len(found.different)} of {found.tensors} tensors differ:")
        lines += [f"    {tensor_line(tensor)}" for tensor in found.different[:SHOWN]]
        if (more := len(found.different) - SHOWN) > 0:
            lines.append(f"    and {more} more")
    elif found.tensors:
        lines.append(f"  the {found.tensors} tensors that both have are equal")
    return lines


def _listed(names: list[str], what: str) -> list[str]:
    """Return a line with the first of `names`, none if there are none."""
    if not names:
        return []
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return [f"  {what}: {', '.join(map(clean, names[:SHOWN]))}{more}"]


def tensor_line(tensor: TensorDifference) -> str:
    """Return in words how a tensor differs."""
    place = f"[{', '.join(map(str, tensor.place))}]" if tensor.place else ""
    here, there = tensor.values
    values = f"{here:.9g} and {there:.9g}"
    largest = f"largest difference {tensor.largest:.3g}, largest value {tensor.scale:.3g}"
    return f"{clean(tensor.name)}{place}: {values}; {tensor.elements} elements differ, {largest}"

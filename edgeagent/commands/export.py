"""`edgeagent export STATE MODEL`: writes the model of a training state to a file for plain torch.

This needs neither an agent nor a cluster, and edgeagent is not needed to read the result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeagent.commands.options import add_command, existing_file

if TYPE_CHECKING:
    import argparse

    from edgeagent.commands.options import Commands

DESCRIPTION = """\
Write the model alone out of a training state that edgeagent has saved: its
parameters and buffers under the keys of its own state_dict(), tied weights
included. The file needs no edgeagent to be read.

STATE is a file that --save, --save-every or trainer.save() wrote. The name of
MODEL says what it becomes: .safetensors, or .pt and .pth for torch.save's
format. A file that is there is replaced.
"""
EXAMPLES = """\
  edgeagent export edgeagent-train.safetensors model.safetensors
  edgeagent export edgeagent-train-step-000300.safetensors model.pt
"""


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    parser = add_command(
        commands,
        "export",
        execute,
        summary="write the model alone out of a saved training state, for plain torch",
        description=DESCRIPTION,
        examples=EXAMPLES,
    )
    parser.add_argument("state", metavar="STATE", help="file of a training state")
    parser.add_argument("model", metavar="MODEL", help="file to write, .safetensors, .pt or .pth")


def execute(args: argparse.Namespace) -> int:
    """Write the model; return the exit status."""
    existing_file("STATE", args.state)
    from edgeagent.trainer.export import export_model

    count = export_model(args.state, args.model)
    print(f"{args.model}: {count} tensors")
    return 0

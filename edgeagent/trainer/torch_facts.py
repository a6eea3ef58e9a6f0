"""What torch is installed and what it can compute on, as one line of JSON.

The agent's side never imports torch, so `edgeagent doctor` runs this module as a process.
"""

from __future__ import annotations

import json

import torch


def main() -> None:
    """Print the version of torch, and its devices beside the CPU, in words."""
    devices = [
        f"cuda:{k} ({torch.cuda.get_device_name(k)})" for k in range(torch.cuda.device_count())
    ]
    if torch.backends.mps.is_available():
        devices.append("mps")
    print(json.dumps({"version": torch.__version__, "devices": devices}))


if __name__ == "__main__":
    main()

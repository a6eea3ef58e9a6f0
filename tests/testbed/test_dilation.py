"""Dilated agents: all of their times are longer, and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys

from protocols import limits
from protocols.member import fellows
from tests.testbed.bench import dilation

# In a process of its own, because it changes the constants of all modules.
SCRIPT = """
import json
from protocols import limits
from protocols.member import fellows
from tests.testbed.bench.dilated_agent import dilate
changed = dilate(4.0)
here = {"changed": changed, "members": limits.MAX_MEMBERS, "beat": limits.HEARTBEAT_SECONDS}
print(json.dumps({**here, "tell": fellows.TELL_SECONDS, "bytes": limits.PROBE_FRAME_BYTES}))
"""


def test_times_are_longer_and_sizes_are_not() -> None:
    output = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, check=True).stdout
    found = json.loads(output)
    assert found["changed"] > 100
    assert found["beat"] == 4 * limits.HEARTBEAT_SECONDS
    assert found["tell"] == 4 * fellows.TELL_SECONDS
    assert found["members"] == limits.MAX_MEMBERS
    assert found["bytes"] == limits.PROBE_FRAME_BYTES


def test_agents_are_started_as_usual_unless_they_are_dilated() -> None:
    assert dilation.started(1.0) == {}
    how = dilation.started(4.0)
    assert how["module"] == dilation.MODULE
    stall = {"EDGEAGENT_JOIN_STALL": "120"}
    assert how["variables"] == {dilation.VARIABLE: "4", **stall}

"""`edgeagent run JOB --dry-run` on real jobs, and a job that no device can hold."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from edgeagent.memory import room
from tests.scenarios.cluster import SCRIPTS, Cluster

TOO_LARGE = str(SCRIPTS / "too_large.py")


def test_the_memory_that_is_foretold_is_what_a_run_takes(tmp_path: Path) -> None:
    with Cluster(tmp_path, options=("--steps", "1000000")) as cluster:
        ended = cluster.command("run", "digits", "--dry-run", "--json", "--threads", "1")
        assert ended.returncode == 0, ended.stderr
        report = json.loads(ended.stdout)
        assert report["fits"]
        assert report["measured"]
        assert report["parameters"] == 38_330
        parts = {part["name"].partition(" (")[0]: part["bytes"] for part in report["parts"]}
        alice = cluster.start("alice")
        alice.wait_iteration(20)
        resident = status_bytes(alice.trainer, "RssAnon") + status_bytes(alice.trainer, "RssFile")
        most = parts["trainer process"] + max(
            parts["gradients of a micro-batch"] + parts["activations and workspace beyond them"],
            parts["update: mean gradients and workspace"],
        )
        assert parts["trainer process"] * 0.8 < resident < most * 1.2
        assert not (tmp_path / "home" / "digits").exists()
        alice.interrupt()


@pytest.mark.long
def test_people_get_a_table_and_a_script_goes_no_further_than_one_update(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    text = (SCRIPTS / "ten_lines.py").read_text()
    script.write_text(f"{text}\nraise SystemExit('the script went on')\n")
    with Cluster(tmp_path) as cluster:
        ended = cluster.command("run", str(script), "--dry-run")
        assert ended.returncode == 0, ended.stderr
        assert "went on" not in ended.stderr
        assert re.search(r"^training state .* computed +always", ended.stdout, re.MULTILINE)
        assert ended.stdout.splitlines()[-1].startswith("fits: the job needs ")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["job.py"]
        fails = cluster.command("run", str(SCRIPTS / "fails.py"), "--dry-run")
        assert fails.returncode == 1
        assert "its memory is not known" in fails.stderr.splitlines()[-1]
        alone = cluster.command("run", "digits", "--json")
        assert alone.returncode == 2
        assert "--json goes with --dry-run" in alone.stderr


def test_a_job_that_does_not_fit_is_told_so_in_one_line(tmp_path: Path) -> None:
    most = room().with_swap
    assert most is not None
    with Cluster(tmp_path, job=TOO_LARGE) as cluster:
        weights = str(most // 3)  # weights, own sum and two sums of the cluster
        ended = cluster.command("run", TOO_LARGE, "--dry-run", "--", weights)
        assert ended.returncode == 1
        assert ended.stdout.splitlines()[-1].startswith("does not fit: the job needs at least ")
        alice = cluster.start("alice", script=[weights])
        assert alice.wait_exit() == 1
        assert len(alice.said("this device cannot hold the job: ")) == 1
        assert not alice.said("Traceback")


def status_bytes(pid: int, name: str) -> int:
    """Return a figure of /proc/PID/status in bytes."""
    text = Path(f"/proc/{pid}/status").read_text()
    found = re.search(rf"^{name}:\s+(\d+) kB$", text, re.MULTILINE)
    assert found
    return int(found[1]) * 1024

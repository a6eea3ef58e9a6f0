"""State directories: one agent each, private, with growing incarnations and usable sockets."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from edgeagent.config import default_name
from edgeagent.errors import UsageError
from edgeagent.local import state_dir
from edgeagent.local.state_dir import claim_state_dir, running_agents


def test_a_folder_that_is_made_is_private_and_one_that_was_there_stays(tmp_path: Path) -> None:
    shared, made = tmp_path / "shared", tmp_path / "made"
    shared.mkdir(mode=0o755)
    for root in (shared, made):
        claim_state_dir(str(root), "room").release()
    assert stat.S_IMODE(shared.stat().st_mode) == 0o755
    assert stat.S_IMODE(made.stat().st_mode) == 0o700


def test_agents_of_one_host_get_slots_names_and_keys_of_their_own(tmp_path: Path) -> None:
    first = claim_state_dir(str(tmp_path), "room")
    second = claim_state_dir(str(tmp_path), "room")
    other = claim_state_dir(str(tmp_path), "other", "bench")
    assert (first.slot, second.slot, other.slot) == (1, 2, 1)
    assert first.name == default_name()
    assert second.name == f"{default_name()}-2"
    assert other.name == "bench"
    assert len({first.path, second.path, other.path}) == 3
    for claimed in (first, second, other):
        for folder in (claimed.path, os.path.dirname(claimed.path)):
            assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    first.release()
    first.release()
    again = claim_state_dir(str(tmp_path), "room")
    assert again.slot == 1
    for claimed in (again, second, other):
        claimed.release()


def test_no_two_agents_of_a_cluster_have_one_name(tmp_path: Path) -> None:
    first = claim_state_dir(str(tmp_path), "room", f"{default_name()}-2")
    with pytest.raises(UsageError, match=f"process {os.getpid()}.*another --name"):
        claim_state_dir(str(tmp_path), "room", first.name)
    elsewhere = claim_state_dir(str(tmp_path), "attic", first.name)
    second = claim_state_dir(str(tmp_path), "room")
    assert second.name == f"{default_name()}-3"
    first.release()
    again = claim_state_dir(str(tmp_path), "room", first.name)
    for claimed in (elsewhere, second, again):
        claimed.release()


def test_running_agents_are_those_that_hold_their_lock(tmp_path: Path) -> None:
    assert running_agents(str(tmp_path / "nothing")) == ()
    first = claim_state_dir(str(tmp_path), "room", "anna")
    second = claim_state_dir(str(tmp_path), "attic", "ben")
    found = running_agents(str(tmp_path))
    assert [(a.cluster, a.name, a.slot, a.pid) for a in found] == [
        ("attic", "ben", 1, os.getpid()),
        ("room", "anna", 1, os.getpid()),
    ]
    assert found[1].socket_path == first.socket_path
    first.release()
    assert [a.name for a in running_agents(str(tmp_path))] == ["ben"]
    Path(second.path, "agent.json").write_text("{}")
    assert running_agents(str(tmp_path)) == ()
    second.release()


def test_a_killed_agent_leaves_its_slot_free(tmp_path: Path) -> None:
    script = (
        "import sys; from edgeagent.local.state_dir import claim_state_dir\n"
        "claim = claim_state_dir(sys.argv[1], 'room', 'anna')\n"
        "print(claim.incarnation, flush=True); sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        incarnation = int(process.stdout.readline())
        assert [agent.pid for agent in running_agents(str(tmp_path))] == [process.pid]
        process.kill()
    assert running_agents(str(tmp_path)) == ()
    claimed = claim_state_dir(str(tmp_path), "room", "anna")
    assert claimed.slot == 1
    assert claimed.incarnation > incarnation
    claimed.release()


def test_incarnations_grow_even_when_the_clock_goes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    for now in (5_000_000_000, 3_000_000_000, 3_000_000_000, 9_000_000_000):
        monkeypatch.setattr(time, "time_ns", now.__int__)
        claimed = claim_state_dir(str(tmp_path), "room")
        seen.append(claimed.incarnation)
        claimed.release()
    assert seen == [5000, 5001, 5002, 9000]


def test_a_damaged_counter_is_survived(tmp_path: Path) -> None:
    claimed = claim_state_dir(str(tmp_path), "room")
    claimed.release()
    Path(claimed.path, "incarnation").write_text("what?")
    again = claim_state_dir(str(tmp_path), "room")
    assert again.incarnation >= claimed.incarnation
    again.release()


@pytest.mark.parametrize("depth", [0, 3, 8])
def test_the_command_socket_can_always_be_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, depth: int
) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    root = tmp_path.joinpath(*["a-rather-long-folder-name"] * depth)
    claimed = claim_state_dir(str(root), "room")
    assert len(os.fsencode(claimed.socket_path)) <= 100
    assert stat.S_IMODE(os.stat(os.path.dirname(claimed.socket_path)).st_mode) == 0o700
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(claimed.socket_path)
        assert running_agents(str(root))[0].socket_path == claimed.socket_path
    path = claimed.socket_path
    claimed.release()
    assert not os.path.exists(path)


def test_a_short_folder_prepared_by_somebody_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as short_enough:  # unlike `tmp_path`, perhaps
        refuse_prepared(tmp_path, Path(short_enough), monkeypatch)


def refuse_prepared(tmp_path: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`runtime` has a link where the agent's folder should be."""
    (runtime / f"edgeagent-{os.getuid()}").symlink_to(tmp_path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    root = tmp_path.joinpath(*["a-rather-long-folder-name"] * 8)
    short = f"/tmp/edgeagent-{os.getuid()}"
    with pytest.raises(UsageError, match="not a folder of this user") as caught:
        claim_state_dir(str(root), "room")
    assert short not in str(caught.value)


@pytest.mark.parametrize("cluster", ["..", "a/b", "x" * 300, "ä ö", "", "c-", "."])
def test_any_cluster_name_gives_a_folder_inside_the_root(tmp_path: Path, cluster: str) -> None:
    claimed = claim_state_dir(str(tmp_path), cluster)
    assert Path(claimed.path).resolve().parent.parent == tmp_path.resolve()
    assert running_agents(str(tmp_path))[0].cluster == cluster
    claimed.release()


def test_a_root_that_is_a_file_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="state directory"):
        claim_state_dir(str(tmp_path / "file"), "room")


def test_the_number_of_slots_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_dir, "MAX_SLOTS", 1)
    claimed = claim_state_dir(str(tmp_path), "room")
    with pytest.raises(UsageError, match="run here already"):
        claim_state_dir(str(tmp_path), "room")
    claimed.release()


def test_an_agent_that_begins_anew_has_a_larger_incarnation(tmp_path: Path) -> None:
    claimed = claim_state_dir(str(tmp_path), "room")
    first = claimed.incarnation
    assert claimed.begin_anew() == claimed.incarnation > first
    second = claimed.incarnation
    claimed.release()
    assert claim_state_dir(str(tmp_path), "room").incarnation > second

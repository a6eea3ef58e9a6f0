"""Pairing with real processes: from nothing to a common cluster by `invite` and `join`.

On loopback the inviting device is named with --peer; it is found by multicast DNS where two devices
have network namespaces of their own.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from edgeagent.launch import module_command
from edgeagent.transport.pairing_code import PairingCode, parse_code
from tests.scenarios.cluster import SMALL, Cluster
from tests.scenarios.processes import kill_session
from tests.testbed.namespaces import missing
from tests.testbed.network import MBIT, Link, Network

WAIT_S = 60.0
POLL_S = 0.01


def settings(home: Path) -> dict[str, str]:
    """Return the environment of a device whose state is in `home`."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("EDGEAGENT_")}
    return {**kept, "EDGEAGENT_HOME": str(home)}


def edgeagent(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the device whose state is in `home`, to its end."""
    return subprocess.run(
        [*module_command("edgeagent"), *arguments],
        env=settings(home),
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_S,
    )


class Invite:
    """A running `edgeagent invite`, with its code and address."""

    def __init__(self, home: Path, arguments: Sequence[str]) -> None:
        self.out, self.err = home / "invite.out", home / "invite.err"
        command = [*module_command("edgeagent"), "invite", "--listen", "127.0.0.1:0", "--no-mdns"]
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                [*command, *arguments], env=settings(home), stdout=out, stderr=err
            )
        deadline = time.monotonic() + WAIT_S
        while "\n" not in self.out.read_text():
            assert self.process.poll() is None, self.said
            assert time.monotonic() < deadline, self.said
            time.sleep(POLL_S)
        self.code = self.out.read_text().strip()
        self.address = self.said.partition("--peer ")[2].split()[0]

    @property
    def said(self) -> str:
        """What it has told the user so far."""
        return self.err.read_text()

    @property
    def wrong(self) -> str:
        """A code of this invitation's channel that is not its code."""
        code = parse_code(self.code)
        return PairingCode(code.channel, f"{(int(code.secret) + 1) % 10**7:07}").text

    def end(self) -> int:
        """Wait for the exit status."""
        return self.process.wait(WAIT_S)


@contextmanager
def invite(home: Path, *arguments: str) -> Iterator[Invite]:
    """Run `edgeagent invite` until the block ends."""
    home.mkdir(exist_ok=True)
    running = Invite(home, arguments)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.wait()


def test_a_code_hands_the_token_over_and_then_it_is_used_up(tmp_path: Path) -> None:
    a, b, c = (tmp_path / name for name in "abc")
    with invite(a, "--cluster", "the lab") as inviting:
        peer = ("--peer", inviting.address)
        wrong = edgeagent(b, "join", inviting.wrong, *peer)
        assert (wrong.returncode, wrong.stdout) == (1, "")
        assert "the code is wrong" in wrong.stderr
        right = edgeagent(b, "join", inviting.code.replace("-", ""), *peer)
        assert right.returncode == 0, right.stderr
        assert right.stdout == "edgeagent run JOB --cluster 'the lab'\n"
        assert inviting.end() == 0
        assert "tried a wrong code (1 of 3, then it is void)" in inviting.said
        assert "has the token of cluster 'the lab' now" in inviting.said
        late = edgeagent(c, "join", inviting.code, *peer)
        assert (late.returncode, late.stdout) == (1, "")
    shown = [edgeagent(home, "token", "show", "--cluster", "the lab") for home in (a, b)]
    assert shown[0].stdout == shown[1].stdout
    assert "whoever sees this token" in shown[0].stderr
    assert shown[0].stdout.strip() not in inviting.said + right.stderr
    (kept,) = b.rglob("token")
    assert kept.stat().st_mode & 0o777 == 0o600
    with invite(tmp_path / "d", "--cluster", "the lab") as inviting:
        peer = ("--peer", inviting.address)
        other = edgeagent(b, "join", inviting.code, *peer)
        assert other.returncode == 1
        assert "--replace" in other.stderr
        assert edgeagent(b, "join", inviting.code, *peer, "--replace").returncode == 0
        assert inviting.end() == 0
    again = edgeagent(b, "token", "show", "--cluster", "the lab")
    assert again.stdout != shown[1].stdout


def test_three_wrong_codes_void_it_and_ctrl_c_takes_it_back(tmp_path: Path) -> None:
    with invite(tmp_path / "a") as inviting:
        for _ in range(3):
            wrong = edgeagent(tmp_path / "b", "join", inviting.wrong, "--peer", inviting.address)
            assert wrong.returncode == 1
        assert inviting.end() == 1
        assert "the code is void: somebody tried too often" in inviting.said
    with invite(tmp_path / "a") as inviting:
        inviting.process.send_signal(signal.SIGINT)
        assert inviting.end() == 1
        assert inviting.said.endswith("edgeagent: stopped by Ctrl+C\n")
        gone = edgeagent(tmp_path / "b", "join", inviting.code, "--peer", inviting.address)
        assert "cannot be reached" in gone.stderr
    assert not list((tmp_path / "b").rglob("token"))


@pytest.mark.slow
@pytest.mark.long
def test_an_agent_that_runs_is_joined_and_a_new_token_is_kept(tmp_path: Path) -> None:
    """The newcomer's device has nothing but a code, and no token is in any environment."""
    with Cluster(tmp_path, job=SMALL) as cluster:
        made = edgeagent(tmp_path / "first", "token", "new").stdout.strip()
        alice = cluster.start("alice", token=made)
        alice.wait("joined")
        with invite(cluster.home) as inviting:
            home = tmp_path / "bob's"
            paired = edgeagent(home, "join", inviting.code, "--peer", inviting.address)
            assert paired.returncode == 0, paired.stderr
            assert paired.stderr.startswith("edgeagent: alice lets this device into cluster")
        kept = {"EDGEAGENT_HOME": str(home)}
        bob = cluster.start("bob", peers=[alice], token="", environment=kept)
        assert sorted(bob.wait("joined")["members"]) == ["alice", "bob"]
        rotated = cluster.command("token", "rotate", "--name", "alice")
        assert rotated.returncode == 0, rotated
        bob.wait_said("the cluster has a new token")
        assert (home / "c-default" / "token").read_text() == rotated.stdout
        assert not (cluster.home / "c-default" / "token").exists(), "alice has it from elsewhere"
        shown = edgeagent(home, "token", "show")
        assert shown.stdout == rotated.stdout
        assert json.dumps(rotated.stdout.strip()) not in bob.log + alice.log


@pytest.mark.slow
@pytest.mark.long
def test_a_paired_device_trains_what_the_cluster_trains(tmp_path: Path) -> None:
    """The newcomer's device has a code, and neither the token nor the script."""
    with Cluster(tmp_path, job=SMALL) as cluster:
        made = edgeagent(tmp_path / "first", "token", "new").stdout.strip()
        alice = cluster.start("alice", token=made)
        alice.wait("joined")
        home = tmp_path / "bob's"
        with invite(cluster.home) as inviting:
            paired = edgeagent(home, "join", inviting.code, "--peer", inviting.address, "--no-run")
            assert paired.returncode == 0, paired.stderr
        asking = ("join", "--peer", alice.address)
        refused = edgeagent(home, *asking)
        assert refused.returncode == 1
        assert "alice trains a script of its own: small.py" in refused.stderr
        digest = refused.stderr.partition(", digest ")[2].split()[0].rstrip(",")
        shown = edgeagent(home, *asking, "--show")
        assert shown.stdout.strip() == Path(SMALL).read_text().strip()
        own = {"EDGEAGENT_NAME": "bob", "EDGEAGENT_LISTEN": "127.0.0.1", "EDGEAGENT_NO_MDNS": "1"}
        bob = subprocess.Popen(
            [*module_command("edgeagent"), *asking, "--accept", digest],
            env={**settings(home), **own},
            cwd=home,
            stdin=subprocess.DEVNULL,
        )
        try:
            alice.wait_members("alice", "bob")
            bob.send_signal(signal.SIGINT)
            assert bob.wait(WAIT_S) == 0
            alice.wait_members("alice")
        finally:
            bob.kill()
            bob.wait()
        assert list(home.glob("edgeagent-small.safetensors"))


@pytest.mark.netns
@pytest.mark.slow
def test_three_commands_take_two_devices_from_nothing_to_training_together(tmp_path: Path) -> None:
    """Invite, run and join, in two network namespaces: nothing but the code is typed."""
    if why := missing():
        pytest.skip(why)
    running: list[subprocess.Popen[bytes]] = []
    with Network(("a", "b"), default=Link(50 * MBIT, 0.001)) as net:

        def start(node: str, *arguments: str) -> Path:
            home, log = tmp_path / node, tmp_path / f"{arguments[0]}.log"
            home.mkdir(exist_ok=True)
            own = {"EDGEAGENT_NAME": node, "EDGEAGENT_EVENTS": str(tmp_path / f"{node}.events")}
            with log.open("wb") as output:
                command = [*module_command("edgeagent"), *arguments]
                running.append(
                    net.popen(
                        node,
                        command,
                        cwd=home,
                        env={**settings(home), **own, "OMP_NUM_THREADS": "1"},
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                    )
                )
            return log

        def wait(log: Path, pattern: str) -> str:
            deadline = time.monotonic() + WAIT_S
            while not log.exists() or not (found := re.search(pattern, log.read_text())):
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(POLL_S)
            return found[0]

        try:
            code = wait(start("a", "invite"), r"\d\d-\d{4}-\d{4}")
            wait(start("a", "run", "digits", "--steps", "100000"), "founded cluster")
            said = start("b", "join", code)
            joined = json.loads(wait(tmp_path / "b.events", r'\{[^}]*"joined"[^}]*\}.*'))
            assert sorted(joined["members"]) == ["a", "b"], said.read_text()
            assert "a trains digits; the same here: edgeagent run digits" in said.read_text()
        finally:
            for process in running:
                if process.poll() is None:
                    kill_session(net.session(process))
                process.wait()

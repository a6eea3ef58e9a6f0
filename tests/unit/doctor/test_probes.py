"""The doctor's probes where they need no network, its text for people, and its JSON."""

from __future__ import annotations

import asyncio
import io
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from zeroconf import DNSOutgoing, IPVersion  # type: ignore[attr-defined] # as in multicast.py
from zeroconf.asyncio import AsyncServiceInfo

from edgeagent import cli
from edgeagent.command_line import parse
from edgeagent.commands import doctor
from edgeagent.doctor import device, echo, examination, firewalls, multicast
from edgeagent.doctor.device import look_at_folder, look_at_networks, look_at_torch
from edgeagent.doctor.facts import Announced, Facts, Firewall, Networks
from edgeagent.doctor.findings import Finding, Verdict
from edgeagent.doctor.firewalls import closes_ports, find_firewalls
from edgeagent.errors import UsageError
from edgeagent.terminal.doctor_view import print_findings, render
from edgeagent.terminal.status_view import rich_console
from edgeagent.transport.discovery import SERVICE
from edgeagent.transport.token import new_token
from tests.unit.doctor.test_findings import DEVICE, PEER

PORTS = (7430, 7431)
OPEN = "*filter\n:INPUT ACCEPT [0:0]\n"


@pytest.mark.parametrize(
    ("rules", "closed"),
    [
        (OPEN, False),
        (":INPUT DROP [0:0]\n", True),
        (":INPUT DROP [0:0]\n-A INPUT -p tcp -m tcp --dport 7000:8000 -j ACCEPT\n", False),
        (":INPUT DROP [0:0]\n-A INPUT -p tcp -m tcp --dport 7430 -j ACCEPT\n", True),
        (OPEN + "-A INPUT -p tcp -m tcp --dport 7431 -j REJECT --reject-with tcp-reset\n", True),
        (OPEN + "-A INPUT -p tcp -m multiport --dports 80,7430 -j DROP\n", True),
        (OPEN + "-A INPUT -p tcp -m tcp --dport 80 -j DROP\n", False),
        (OPEN + "-A INPUT -p udp -m udp --dport 7430 -j DROP\n", False),
        (OPEN + "-A INPUT -m conntrack --ctstate INVALID -j DROP\n", False),
        (OPEN + "-A INPUT -s 192.0.2.1/32 -j DROP\n", False),
        (OPEN + "-A INPUT -j ACCEPT\n-A INPUT -j DROP\n", False),
        (OPEN + "-A INPUT -i lo -j ACCEPT\n-A INPUT -j DROP\n", True),
        (OPEN + "-A INPUT -m length --length 1000:65535 -j DROP\n", False),
    ],
)
def test_rules_are_read(rules: str, closed: bool) -> None:
    assert closes_ports(rules, PORTS) is closed


def test_filters_that_anybody_can_see(tmp_path: Path) -> None:
    ufw, folder = tmp_path / "ufw.conf", tmp_path / "firewalld"
    nothing = find_firewalls(*PORTS, lambda: None, str(ufw), str(folder))
    assert nothing is None, "an empty answer would mean that the rules were read"
    assert find_firewalls(*PORTS, lambda: OPEN, str(ufw), str(folder)) == ()
    ufw.write_text("# ENABLED=yes\nENABLED=yes\n")
    folder.mkdir()
    found = find_firewalls(*PORTS, lambda: None, str(ufw), str(folder))
    assert found is not None
    assert [(one.name, one.closes) for one in found] == [("ufw", None), ("firewalld", None)]
    assert "7430:7431/tcp" in found[0].opens
    ufw.write_text("ENABLED=no\n")
    closed = find_firewalls(*PORTS, lambda: ":INPUT DROP [0:0]\n", str(ufw), "no/such")
    assert closed == (
        Firewall("iptables", True, "sudo iptables -I INPUT -p tcp --dport 7430:7431 -j ACCEPT"),
    )
    assert find_firewalls(*PORTS, lambda: OPEN, str(ufw), "no/such") == ()


def test_rules_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    assert firewalls.read_rules() is None


def test_echoes_are_told_from_other_packets() -> None:
    sent = echo._echo(b"12345678abc")
    assert echo._sum(sent) == 0, "the checksum of a right packet"
    answer = b"\0" + sent[1:]
    assert echo._is_answer(answer, b"12345678abc", raw=False)
    assert echo._is_answer(b"\x45" + bytes(19) + answer, b"12345678abc", raw=True)
    assert not echo._is_answer(sent, b"12345678abc", raw=False), "our own question"
    assert not echo._is_answer(answer, b"87654321abc", raw=False)
    assert not echo._is_answer(b"", b"", raw=True)


def test_an_agent_is_known_by_what_it_announces() -> None:
    info = AsyncServiceInfo(
        SERVICE,
        f"00ff.{SERVICE}",
        port=7430,
        properties={b"v": b"1", b"tag": b"ab" * 8},
        server="00ff.local.",
        parsed_addresses=["192.0.2.1"],
    )
    packet = DNSOutgoing(0x8400)
    packet.add_answer_at_time(info.dns_text(), 0)
    for record in info.dns_addresses(version=IPVersion.V4Only):
        packet.add_answer_at_time(record, 0)
    data = packet.packets()[0]
    assert multicast.announced("h", data, "ab" * 8) == Announced("h", ours=True)
    assert multicast.announced("h", data, "cd" * 8) == Announced("h", ours=False)
    assert multicast.announced("h", data, "") == Announced("h", ours=None)
    for junk in (b"", b"\xff" * 40, data[:20], multicast._question()):
        assert multicast.announced("h", junk, "ab" * 8) is None


def test_folders_and_networks(tmp_path: Path) -> None:
    there = look_at_folder(str(tmp_path / "not" / "yet"), "models")
    assert there.problem == ""
    assert there.free is not None
    assert look_at_folder("/proc/1", "x").problem or look_at_folder("/proc/1", "x").free == 0
    only = look_at_networks("lo")
    assert {name for name, _ in only.order} == {"lo"}
    assert isinstance(look_at_networks(""), Networks)


def test_a_python_without_torch_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('no torch for this Python')\n")
    environment = {"PYTHONPATH": str(tmp_path)}
    found = asyncio.run(look_at_torch(environment))
    assert found.problem.endswith("ImportError: no torch for this Python")
    monkeypatch.setattr(device, "module_command", lambda module: (str(tmp_path), module))
    found = asyncio.run(look_at_torch(environment))
    assert found.problem.endswith("cannot be started: Permission denied")


FINDINGS = [
    Finding("interfaces", Verdict.OK, "192.168.1.20 on eth0 is told first (wired)"),
    Finding("multicast", Verdict.WARNING, "nobody answers", "Look again, from another device."),
    Finding("peer: reached", Verdict.FAILED, "x\x1b[2Jy " * 30, "Open the port."),
]


@pytest.mark.parametrize("width", [40, 80, 100])
def test_findings_fit_the_terminal(width: int) -> None:
    text = io.StringIO()
    console = rich_console(text)
    console.width = width
    console.print(render(FINDINGS, width))
    lines = text.getvalue().splitlines()
    assert max(len(line) for line in lines) <= width
    assert "\x1b" not in text.getvalue()
    joined = " ".join(text.getvalue().split())
    assert "-> Look again, from another device." in joined
    assert "warning" in joined


def test_findings_are_plain_where_there_is_no_terminal() -> None:
    text = io.StringIO()
    print_findings(FINDINGS, text)
    assert text.getvalue().startswith("ok       interfaces     192.168.1.20 on eth0")
    assert text.getvalue().endswith("\n1 failed, 1 warning, 1 ok\n")
    unknown = Finding("memory", Verdict.UNKNOWN, "the system does not say")
    print_findings([unknown], text)
    assert text.getvalue().endswith("0 failed, 0 warnings, 0 ok, 1 not known\n")


def wanted(*options: str, **environment: str) -> examination.Wanted:
    return doctor.resolve(parse(["doctor", *options]), environment)


def test_what_is_looked_at_follows_options_and_variables() -> None:
    token = new_token()
    environment = {"EDGEAGENT_TOKEN": token, "EDGEAGENT_CLUSTER": "room"}
    found = wanted("digits", "--peer", "10.0.0.1", "--interface", "eth9", **environment)
    assert (found.cluster, found.peer, found.interface) == ("room", "10.0.0.1", "eth9")
    assert found.job is not None
    assert found.job.problem == ""
    assert found.secret is not None
    assert token not in repr(found.token)
    assert wanted(EDGEAGENT_INTERFACE="eth1").interface == "eth1"
    nothing = wanted()
    assert (nothing.token.given, nothing.secret, nothing.job) == (False, None, None)
    typo = wanted(EDGEAGENT_TOKEN=token[:-1] + ("a" if token[-1] != "a" else "b"))
    assert typo.secret is None
    assert typo.token.problem.startswith("the token has a typo")
    missing = wanted("no/such.py", "--token-file", "nowhere")
    assert missing.job is not None
    assert missing.job.problem.startswith("there is no script no/such.py")
    assert missing.token.problem == "No such file or directory"
    for wrong in ("--peer", "--listen"):
        with pytest.raises(UsageError, match="is no address"):
            wanted(wrong, "x:y")


@pytest.mark.parametrize("reached", [True, False])
def test_the_exit_status_and_json(
    reached: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def examine(_wanted: object, _environment: object) -> Facts:
        memory = 1 << 34 if reached else 0
        return Facts(replace(DEVICE, memory=memory), (1,), PEER)

    monkeypatch.setattr(examination, "examine", examine)
    token = new_token()
    monkeypatch.setenv("EDGEAGENT_TOKEN", token)
    assert cli.main(["doctor", "--json"]) == (0 if reached else 1)
    said = capsys.readouterr().out
    report = json.loads(said)
    assert report["ok"] is reached
    assert report["findings"][0].keys() == {"check", "verdict", "seen", "advice"}
    assert report["facts"]["peer"]["asked"]["name"] == "bob"
    assert token not in said
    assert cli.main(["doctor"]) == (0 if reached else 1)
    assert "peer: token" in capsys.readouterr().out

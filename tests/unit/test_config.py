"""Names and addresses, wherever they come from."""

from __future__ import annotations

import argparse
import socket

import pytest

from edgeagent.commands.options import node_name
from edgeagent.config import (
    JOIN_WAYS,
    MOST_COPIES,
    MOST_WAITED_FOR,
    ON_LOST,
    agent_config_from_environment,
    default_name,
    is_name,
    listen_address,
    split_address,
)
from edgeagent.errors import UsageError
from protocols import limits
from protocols.cluster.stripes import OnLost
from protocols.scheduler.join_cost import JoinWay

LONGEST = "ü" * (limits.MAX_NAME_BYTES // 2)
BAD_NAMES = ("", " a", "a\n", "\x1b[2J", "x" * (limits.MAX_NAME_BYTES + 1), "ü" + LONGEST, "\udc80")


@pytest.mark.parametrize("name", ["a", "Anna's Pi 4", LONGEST])
def test_names_that_are_taken(name: str) -> None:
    assert node_name(name) == name
    environment = {"EDGEAGENT_NAME": name, "EDGEAGENT_CLUSTER": name}
    config = agent_config_from_environment(environment)
    assert (config.name, config.cluster) == (name, name)


@pytest.mark.parametrize("name", BAD_NAMES)
def test_names_that_are_refused(name: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="64 bytes"):
        node_name(name)
    for variable in ("EDGEAGENT_NAME", "EDGEAGENT_CLUSTER"):
        if name:
            with pytest.raises(UsageError, match=variable):
                agent_config_from_environment({variable: name})


@pytest.mark.parametrize("host", ["h" * 64, "pi", "ü" * 40, "\x1b" * 9, "", ".local"])
def test_the_hosts_name_leaves_room_for_a_slot(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: host)
    assert is_name(f"{default_name()}-64")


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("EDGEAGENT_NO_MDNS", "yes"),
        ("EDGEAGENT_JOIN_ONLY", "true"),
        ("EDGEAGENT_PEERS", "10.0.0.1:1,a..b"),
        ("EDGEAGENT_LISTEN", "h:x"),
        ("EDGEAGENT_ON_PARTITION", "stop"),
        ("EDGEAGENT_ROTATE_EVERY", "-1"),
        ("EDGEAGENT_JOIN_STALL", "1.5"),
        ("EDGEAGENT_WAIT_FOR", "0"),
        ("EDGEAGENT_WAIT_FOR", "-1"),
        ("EDGEAGENT_WAIT_FOR", "three"),
        ("EDGEAGENT_WAIT_FOR", str(MOST_WAITED_FOR + 1)),
        ("EDGEAGENT_WAIT_FOR", "9" * 5000),
        ("EDGEAGENT_TREES", "oak"),
        ("EDGEAGENT_STANDBY", "perhaps"),
        ("EDGEAGENT_LOG_LEVEL", "loud"),
    ],
)
def test_a_variable_that_is_wrong_is_named(variable: str, value: str) -> None:
    with pytest.raises(UsageError, match=f"^{variable}: "):
        agent_config_from_environment({variable: value})


def test_flags_in_the_environment() -> None:
    for text, yes in (("1", True), ("0", False), ("", False)):
        config = agent_config_from_environment(
            {"EDGEAGENT_NO_MDNS": text, "EDGEAGENT_JOIN_ONLY": text}
        )
        assert (not config.mdns, config.join_only) == (yes, yes)


@pytest.mark.parametrize(
    "address", ["a..b:1", ".a:1", "x" * 64 + ":1", "a b:1", "a\0b:1", "h:٣", "h:" + "9" * 5000]
)
def test_addresses_that_no_resolver_takes_are_refused(address: str) -> None:
    with pytest.raises(UsageError, match="is no address"):
        split_address(address)


def test_addresses_that_are_taken() -> None:
    assert split_address("müller.local:1") == ("müller.local", 1)
    assert split_address("[fe80::1%eth0.5]:7430") == ("fe80::1%eth0.5", 7430)
    assert split_address("pi.local.") == ("pi.local.", 7430)


def test_a_port_alone_is_every_address_to_listen_at_and_no_peer() -> None:
    assert listen_address("7611") == listen_address(":7611") == ("", 7611)
    assert listen_address("127.0.0.1:7611") == ("127.0.0.1", 7611)
    assert agent_config_from_environment({"EDGEAGENT_LISTEN": "7611"}).listen == "7611"
    for wrong in ("99999", ":", "a..b"):
        with pytest.raises(UsageError, match="write PORT for every address of this device"):
            listen_address(wrong)
    with pytest.raises(UsageError, match=r"'7611' is a number and no host: write HOST:PORT"):
        split_address("7611")
    with pytest.raises(UsageError, match="EDGEAGENT_PEERS: '7611' is a number and no host"):
        agent_config_from_environment({"EDGEAGENT_PEERS": "h:1,7611"})


def test_choices_are_those_of_the_protocols() -> None:
    # The command line names them before it imports `protocols`, which may be another package.
    assert tuple(OnLost) == ON_LOST
    assert MOST_COPIES == limits.MAX_HOLDERS - 1
    assert MOST_WAITED_FOR == limits.MAX_OPEN_JOINS + 1
    assert tuple(JoinWay) == JOIN_WAYS

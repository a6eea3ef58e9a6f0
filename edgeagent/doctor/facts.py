"""What the probes have seen, before anybody judges it.

Every text of a peer in here was cut to a name's length by the code that has read it. A token is
never part of a fact. Times are in seconds, sizes in bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgeagent.transport.interface_ranking import Interface


@dataclass(frozen=True, slots=True)
class Networks:
    """The interfaces of this device.

    `order`: all addresses that are told to others, best first, as (name of the interface, host).
    `default`: the hosts from which the default routes start. `only`: the value of `--interface`, ""
    if there is none.
    """

    interfaces: tuple[Interface, ...]
    order: tuple[tuple[str, str], ...]
    default: tuple[str, ...] = ()
    only: str = ""


@dataclass(frozen=True, slots=True)
class Announced:
    """An agent that has answered a question by multicast: from which host, and whether what it
    announces belongs to our cluster and token (None without a token)."""

    host: str
    ours: bool | None


@dataclass(frozen=True, slots=True)
class Multicast:
    """What came of a question by multicast DNS through one interface.

    `problem`: why it could not be sent, "" if it was. `looped`: it came in again on this device.
    `hosts`: other devices that have answered or asked anything. `agents`: those of them that are
    agents.
    """

    interface: str
    host: str
    problem: str = ""
    looped: bool = False
    hosts: tuple[str, ...] = ()
    agents: tuple[Announced, ...] = ()


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports that an agent started now would get; 0 and a `problem` if it would get none.
    `usual`: the one that it would have if nobody else had it. `agents`: the names of those of this
    user that run here now."""

    join: int = 0
    links: int = 0
    usual: int = 0
    problem: str = ""
    agents: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Firewall:
    """A packet filter that is on. `closes`: its rules drop or reject what comes in to our ports;
    None where only its administrator may read them. `opens`: the command that opens the ports."""

    name: str
    closes: bool | None
    opens: str


@dataclass(frozen=True, slots=True)
class TokenFact:
    """Where the token was looked for, and what is wrong with it, "" if nothing is."""

    source: str
    given: bool
    problem: str = ""


@dataclass(frozen=True, slots=True)
class JobFact:
    """The job as it was typed, and why it cannot be started, "" if it can."""

    typed: str
    problem: str = ""


@dataclass(frozen=True, slots=True)
class TorchFact:
    """What torch said in a process of its own; `problem` if it cannot be imported. `devices`: what
    a model can be put on beside the CPU, each in words."""

    version: str = ""
    devices: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder that an agent writes to: what for, how much is free there, and why it cannot be
    written to, "" if it can."""

    path: str
    use: str
    free: int | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Device:
    """Everything that can be seen without another device. `now`: Unix time by its own clock.
    `firewalls`: those that are on, None where that cannot be seen. `memory`: what can be taken
    without swapping, None if the system does not say."""

    networks: Networks
    multicast: tuple[Multicast, ...]
    ports: Ports
    firewalls: tuple[Firewall, ...] | None
    now: float
    token: TokenFact
    job: JobFact | None
    torch: TorchFact
    folders: tuple[Folder, ...]
    memory: int | None


class Reach(StrEnum):
    """What came of a TCP connection."""

    ANSWERED = "answered"
    REFUSED = "refused"  # the device is there, and nobody listens
    SILENT = "silent"  # nothing comes back: the packets are dropped, or the device is off
    UNREACHABLE = "unreachable"  # the network says that there is no way
    UNKNOWN_NAME = "unknown name"


class Answer(StrEnum):
    """What came of asking whoever listens at the peer's address."""

    AGENT = "agent"  # it has proven our token
    OTHER_VERSION = "other version"
    OTHER_TOKEN = "other token"
    OURSELVES = "ourselves"
    BUSY = "busy"
    NO_AGENT = "no agent"
    NOTHING = "nothing"
    NOT_ASKED = "not asked"  # there is no token to prove, or nothing answers


@dataclass(frozen=True, slots=True)
class Asked:
    """The peer's answer. `segment`: the payload of the segments with which it came about, None for
    as many as the system chooses. `vain`: longer segments were sent again and again before, and
    never acknowledged. `versions`: the protocol versions that it speaks, as far as it said so.
    `started`: when it was started, by its own clock, in Unix time."""

    answer: Answer
    detail: str = ""
    segment: int | None = None
    vain: bool = False
    versions: tuple[int, ...] = ()
    name: str = ""
    phase: str = ""
    members: int = 0
    started: float | None = None


@dataclass(frozen=True, slots=True)
class Echoes:
    """ICMP echoes, which come back as large as they went. `small`: one of `small_size` came back;
    `large`: one of `large_size`, not to be cut into fragments, did. None: could not be tried.
    Sizes are of whole packets."""

    small: bool | None = None
    large: bool | None = None
    small_size: int = 0
    large_size: int = 0


@dataclass(frozen=True, slots=True)
class Rates:
    """What the agent of this device has measured of its link with the peer, in Mbit/s and ms."""

    agent: str
    there: float | None
    back: float | None
    delay_ms: float | None


@dataclass(frozen=True, slots=True)
class Peer:
    """What was seen of the peer at `address`.

    `through`: the interface and the own host from which it was reached, "" if it was not.
    `round_trips`: how long connections to it took. `links`: the addresses that it tells for links,
    each with what came of a connection. `called_back`: after how many seconds it has connected to
    this device, None if it has not. `heard`: hosts of this peer from which a multicast came.
    """

    address: str
    reach: Reach
    detail: str = ""
    through: tuple[str, str] = ("", "")
    hosts: tuple[str, ...] = ()
    round_trips: tuple[float, ...] = ()
    asked: Asked = Asked(Answer.NOT_ASKED)
    links: tuple[tuple[str, Reach], ...] = ()
    called_back: float | None = None
    heard: tuple[str, ...] = ()
    echoes: Echoes = Echoes()
    rates: Rates | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that was looked at; `peer` is None without `--peer`. `versions`: the protocol
    versions that this edgeagent speaks."""

    device: Device
    versions: tuple[int, ...]
    peer: Peer | None = None

"""What one run was asked to do: the resolved options of `edgeagent run` and of `Trainer()`.

Options are resolved once (flag, then environment, then default) and cannot be changed afterwards,
so that all parts see the same. The trainer process receives its part as JSON in the environment
variable `EDGEAGENT_RUN`.
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

from edgeagent.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from edgeagent.recipe import Recipe

RUN_VARIABLE = "EDGEAGENT_RUN"
# How gradients travel: as they are, rounded to bfloat16, or as integers, whose sums do not depend
# on the order of addition.
WIRES = ("full", "bf16", "exact")
# What a device trains: the whole model, or a part of it that is another one in each round.
MODES = ("whole", "subnets")
# By what a subnet multiplies what a divided layer gives to the next one: the inverse of the part of
# the layer that it has, the root of that, or nothing.
SUBNET_SCALES = ("inverse", "sqrt", "none")
OUTERS = ("average", "nesterov")  # how the cluster steps after a round of local steps
SOCKET_VARIABLE = "EDGEAGENT_SOCKET"  # descriptor of the hand-over socket, in the trainer
TOKEN_VARIABLE = "EDGEAGENT_TOKEN"
# By which libraries of other programs, torch among them, are told how many threads to use.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
DEFAULT_CLUSTER = "default"
DEFAULT_PORT = 7430
# Where an invitation waits: behind the two ports of an agent, which may start while it waits.
PAIRING_PORT = DEFAULT_PORT + 2
GO_ON, PAUSE = "go-on", "pause"  # what members do if they reach no quorum
DEFAULT_ROTATE_EVERY = 1000
DEFAULT_JOIN_STALL = 30  # seconds
# The shapes along which gradients can travel; `planner/ways/named.py` makes them.
TREES = ("one", "star", "kary", "mst", "ring", "fapt", "fapt-aux", "packed")
STANDBY = ("auto", "never", "always")  # whether a device that slows the others down stands by
JOIN_WAYS = ("auto", "log", "pause")  # how newcomers copy the state: `join_cost.JoinWay`
ON_LOST = ("wait", "stop", "fresh")  # `protocols.cluster.stripes.OnLost`
MOST_COPIES = 7  # of each part of a divided optimizer: `protocols.limits.MAX_HOLDERS` - its owner
# For so many devices a founder can wait: itself and `protocols.limits.MAX_OPEN_JOINS` newcomers.
MOST_WAITED_FOR = 33
LOG_LEVELS = ("debug", "info", "warning", "error")
COUNT_RULE = "a whole number from 0 to 2^31 - 1"
WAITED_FOR_RULE = f"a whole number from 1 to {MOST_WAITED_FOR}, this device included"


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """The options of the agent process.

    With `token` None it trains alone, without listening or discovery. `on_partition` is `GO_ON` or
    `PAUSE` and says what to do if no quorum can be reached. `rotate_every` is the number of steps
    after which this agent hands on the scheduler's role, 0 for never. `policy` is the name of an
    installed policy that plans trees and shares while this agent is the scheduler, and `trees` the
    shape (of `TREES`) along which it lets gradients travel meanwhile. With `join_only` it never
    founds a cluster but waits for one. `join_way` (of `JOIN_WAYS`) is how newcomers copy the state
    while this agent is the scheduler. `standby` (of `STANDBY`) says whether this device stands by
    while the others are much faster without it, and has newcomers do the same; with "always" this
    device takes part only if there is nobody else. `join_stall` is for
    how many seconds a join may stop the others while this agent is the scheduler, 0 for no limit.
    If this agent founds the cluster, training begins when `wait_for` devices are there, this one
    included.
    """

    cluster: str = DEFAULT_CLUSTER
    token: str | None = None
    name: str = ""
    job: str = "script"
    command: tuple[str, ...] = ()  # JOB and the script's arguments as they were typed; () = plain
    listen: str = ""  # [HOST:]PORT; "" = every address, first free port from DEFAULT_PORT
    interface: str = ""  # network interface to keep to; "" = all, the best of them told first
    peers: tuple[str, ...] = ()
    mdns: bool = True
    neighbours: tuple[str, ...] = ()
    most_links: int = 0  # that this device should have; 0 = the cluster chooses
    events: str = ""  # file, "-" = stdout, "" = none
    state_dir: str = ""
    quiet: bool = False
    on_partition: str = GO_ON
    rotate_every: int = DEFAULT_ROTATE_EVERY
    policy: str = ""  # "" = the standard one
    trees: str = "packed"
    join_way: str = "auto"
    standby: str = "auto"
    join_only: bool = False
    wait_for: int = 1
    recipe: Recipe | None = None  # of the job, for devices that want to run the same
    join_stall: int = DEFAULT_JOIN_STALL
    log_level: str = ""  # of LOG_LEVELS, "" = no log
    log_file: str = ""  # "" = stderr
    log_dir: str = ""  # folder for CSV and TensorBoard, "" = none
    metrics: str = ""  # [HOST:]PORT of /metrics, "" = none
    pause_on_battery: bool = False
    pause_on_activity: int = 0  # seconds since the device was last used, 0 = never pause for that
    pause_on_metered: bool = False
    takes_batch: bool = False  # whether it may end to begin again with the cluster's batch


@dataclass(frozen=True, slots=True)
class TrainerConfig:
    """The options of the trainer process; None leaves the choice to the arguments of
    `Trainer()`."""

    job: str = "script"
    steps: int | None = None
    global_batch: int | None = None
    micro_batch: int | None = None
    seed: int | None = None
    wire: str | None = None  # of WIRES
    overlap: bool | None = None  # gradients leave while others are computed
    local_steps: int | None = None  # a round has the samples of so many iterations, 0 = no rounds
    outer: str | None = None  # of OUTERS
    mode: str | None = None  # of MODES
    subnet_scale: str | None = None  # of SUBNET_SCALES
    subnet_minimum: float | None = None  # the smallest part of the model that a device gets
    subnet_period: int | None = None  # rounds after which the parts are drawn anew
    subnet_ewma: float | None = None  # how much the last round counts in a device's speed
    shard_optimizer: bool | None = None  # no device keeps all of the optimizer's state
    copies: int | None = None  # of each part of it beside the owner's
    on_lost: str | None = None  # of ON_LOST
    device: str = ""  # "" = where the script puts its model
    save: str = ""  # path; "" = do not save
    save_every: int | None = None  # iterations from one numbered file to the next, 0 = no such file
    keep: int | None = None  # how many of these files are kept, 0 = all
    resume: str = ""
    continues: bool = False  # from the file of `save`, as a service that was started again
    more_parts: tuple[str, ...] = field(default=())  # checkpoints with the rest of what is divided
    threads: int = 0  # torch threads; 0 = leave as it is
    data: str = ""
    dry_run: bool = False  # compute one micro-batch and one update, report their memory, end
    arguments: tuple[str, ...] = field(default=())


def trainer_config_from(environment: Mapping[str, str]) -> TrainerConfig | None:
    """Return the configuration `edgeagent run` left in `environment`, None for a plain script."""
    text = environment.get(RUN_VARIABLE)
    if text is None:
        return None
    values = json.loads(text)
    values["arguments"] = tuple(values["arguments"])
    values["more_parts"] = tuple(values["more_parts"])
    return TrainerConfig(**values)


def trainer_config_text(config: TrainerConfig) -> str:
    """Return `config` as the value of `RUN_VARIABLE`."""
    return json.dumps(asdict(config))


def saving_from_environment(environment: Mapping[str, str]) -> tuple[int | None, int | None]:
    """Return EDGEAGENT_SAVE_EVERY (iterations) and EDGEAGENT_KEEP (files); None where unset."""
    found: list[int | None] = []
    for variable in ("EDGEAGENT_SAVE_EVERY", "EDGEAGENT_KEEP"):
        text = environment.get(variable) or None
        if text is not None and not is_count(text):
            raise UsageError(f"{variable}: {text!r} is not {COUNT_RULE}")
        found.append(None if text is None else int(text))
    return found[0], found[1]


def default_name() -> str:
    """Return the host's short name, cut so that it is still a valid name with "-64" after it."""
    letters = [c for c in socket.gethostname().split(".")[0] if c.isprintable()]
    name = "".join(letters).strip()
    while not is_name(f"{name}-64") and name:
        name = name[:-1]
    return name or "node"


def is_name(text: str) -> bool:
    """Return whether `text` can name a node or a cluster: short, printable, no outer blanks."""
    from protocols import limits  # not before the command line has checked whose package this is

    if not text or not text.isprintable() or text != text.strip():
        return False
    return len(text.encode()) <= limits.MAX_NAME_BYTES


def name_rule() -> str:
    """Return in words what `is_name` asks for."""
    from protocols import limits

    return f"1 to {limits.MAX_NAME_BYTES} bytes of printable text, without spaces at its ends"


def is_count(text: str) -> bool:
    """Return whether `text` is a whole number from 0 to 2^31 - 1; see `COUNT_RULE`."""
    return text.isascii() and text.isdecimal() and len(text) <= 10 and int(text) < 1 << 31


def can_be_waited_for(text: str) -> bool:
    """Return whether `text` is how many devices a founder can wait for; see `WAITED_FOR_RULE`."""
    return is_count(text) and 1 <= int(text) <= MOST_WAITED_FOR


def _name_from(environment: Mapping[str, str], variable: str, default: str) -> str:
    text = environment.get(variable, "") or default
    if text and not is_name(text):
        raise UsageError(f"{variable}: {text!r} is no name: use {name_rule()}")
    return text


def _flag_from(environment: Mapping[str, str], variable: str) -> bool:
    text = environment.get(variable, "")
    if text not in ("", "0", "1"):
        raise UsageError(f"{variable}: {text!r} is neither 1 (yes) nor 0 (no)")
    return text == "1"


def state_root(environment: Mapping[str, str]) -> str:
    """Return the folder that holds keys and sockets of all agents of this user."""
    if home := environment.get("EDGEAGENT_HOME"):
        return home
    if state := environment.get("XDG_STATE_HOME"):
        return os.path.join(state, "edgeagent")
    return os.path.join(os.path.expanduser("~"), ".local", "state", "edgeagent")


def agent_config_from_environment(environment: Mapping[str, str]) -> AgentConfig:
    """Return the agent's configuration for a script started as plain `python script.py`.

    Variables: EDGEAGENT_TOKEN (none: train alone), EDGEAGENT_CLUSTER, EDGEAGENT_NAME,
    EDGEAGENT_LISTEN, EDGEAGENT_INTERFACE, EDGEAGENT_PEERS (comma separated), EDGEAGENT_NO_MDNS=1,
    EDGEAGENT_EVENTS, EDGEAGENT_ON_PARTITION (go-on or pause), EDGEAGENT_ROTATE_EVERY (steps, 0 for
    never), EDGEAGENT_POLICY, EDGEAGENT_JOIN_ONLY=1, EDGEAGENT_WAIT_FOR (devices),
    EDGEAGENT_JOIN_STALL (seconds, 0 for no limit), EDGEAGENT_JOIN (of `JOIN_WAYS`),
    EDGEAGENT_STANDBY (of `STANDBY`), EDGEAGENT_TREES (of `TREES`), EDGEAGENT_LOG_LEVEL (of
    `LOG_LEVELS`), EDGEAGENT_LOG_FILE, EDGEAGENT_LOG_DIR, EDGEAGENT_METRICS ([HOST:]PORT),
    EDGEAGENT_PAUSE_ON_BATTERY=1, EDGEAGENT_PAUSE_ON_ACTIVITY (seconds),
    EDGEAGENT_PAUSE_ON_METERED=1.
    """
    on_partition = environment.get("EDGEAGENT_ON_PARTITION") or GO_ON
    if on_partition not in (GO_ON, PAUSE):
        raise UsageError(f"EDGEAGENT_ON_PARTITION: {on_partition!r} is neither {GO_ON} nor {PAUSE}")
    rotate_every = environment.get("EDGEAGENT_ROTATE_EVERY") or str(DEFAULT_ROTATE_EVERY)
    if not is_count(rotate_every):
        raise UsageError(f"EDGEAGENT_ROTATE_EVERY: {rotate_every!r} is not {COUNT_RULE}")
    join_stall = environment.get("EDGEAGENT_JOIN_STALL") or str(DEFAULT_JOIN_STALL)
    if not is_count(join_stall):
        raise UsageError(f"EDGEAGENT_JOIN_STALL: {join_stall!r} is not {COUNT_RULE}")
    wait_for = environment.get("EDGEAGENT_WAIT_FOR") or "1"
    if not can_be_waited_for(wait_for):
        raise UsageError(f"EDGEAGENT_WAIT_FOR: {wait_for!r} is not {WAITED_FOR_RULE}")
    activity = environment.get("EDGEAGENT_PAUSE_ON_ACTIVITY") or "0"
    if not is_count(activity):
        raise UsageError(f"EDGEAGENT_PAUSE_ON_ACTIVITY: {activity!r} is not {COUNT_RULE}")
    peers = tuple(p for p in environment.get("EDGEAGENT_PEERS", "").split(",") if p)
    listen = environment.get("EDGEAGENT_LISTEN", "")
    for peer in peers:
        try:
            split_address(peer)
        except UsageError as error:
            raise UsageError(f"EDGEAGENT_PEERS: {error}") from None
    try:
        listen_address(listen or "0")
    except UsageError as error:
        raise UsageError(f"EDGEAGENT_LISTEN: {error}") from None
    return AgentConfig(
        cluster=_name_from(environment, "EDGEAGENT_CLUSTER", DEFAULT_CLUSTER),
        token=environment.get(TOKEN_VARIABLE) or None,
        name=_name_from(environment, "EDGEAGENT_NAME", ""),
        listen=listen,
        interface=environment.get("EDGEAGENT_INTERFACE", ""),
        peers=peers,
        mdns=not _flag_from(environment, "EDGEAGENT_NO_MDNS"),
        events=environment.get("EDGEAGENT_EVENTS", ""),
        on_partition=on_partition,
        rotate_every=int(rotate_every),
        policy=environment.get("EDGEAGENT_POLICY", ""),
        trees=_choice_from(environment, "EDGEAGENT_TREES", TREES, "packed"),
        join_way=_choice_from(environment, "EDGEAGENT_JOIN", JOIN_WAYS, "auto"),
        standby=_choice_from(environment, "EDGEAGENT_STANDBY", STANDBY, "auto"),
        join_only=_flag_from(environment, "EDGEAGENT_JOIN_ONLY"),
        wait_for=int(wait_for),
        join_stall=int(join_stall),
        log_level=_choice_from(environment, "EDGEAGENT_LOG_LEVEL", LOG_LEVELS, ""),
        log_file=environment.get("EDGEAGENT_LOG_FILE", ""),
        log_dir=environment.get("EDGEAGENT_LOG_DIR", ""),
        metrics=environment.get("EDGEAGENT_METRICS", ""),
        pause_on_battery=_flag_from(environment, "EDGEAGENT_PAUSE_ON_BATTERY"),
        pause_on_activity=int(activity),
        pause_on_metered=_flag_from(environment, "EDGEAGENT_PAUSE_ON_METERED"),
    )


def _choice_from(
    environment: Mapping[str, str], variable: str, choices: Sequence[str], default: str
) -> str:
    """Return what `variable` says, `default` if it is empty or missing; raise `UsageError` if that
    is none of `choices`."""
    value = environment.get(variable) or default
    if value not in (default, *choices):
        raise UsageError(f"{variable}: {value!r} is none of {', '.join(choices)}")
    return value


def split_address(text: str, default_port: int = DEFAULT_PORT) -> tuple[str, int]:
    """Split "HOST:PORT", "[V6]:PORT" or "HOST" (`default_port`); raise `UsageError` otherwise.

    A number alone is refused: resolvers take it for an address, and people mean a port.
    """
    if text.isascii() and text.isdecimal():
        raise UsageError(
            f"{text!r} is a number and no host: write HOST:PORT, for example 192.168.1.20:7430"
        )
    host, colon, port = text.rpartition(":")
    if not colon or (text.count(":") > 1 and not text.startswith("[")):
        host, port = text, str(default_port)
    if text.startswith("[") and text.endswith("]"):
        host, port = text, str(default_port)
    host = host.removeprefix("[").removesuffix("]")
    if not _is_host(host) or not _is_port(port):
        raise UsageError(f"{text!r} is no address: write HOST:PORT, for example 192.168.1.20:7430")
    return host, int(port)


def listen_address(text: str) -> tuple[str, int]:
    """Split the address to listen at; PORT and :PORT mean every address, for which the host is
    "". Raises `UsageError` if it is none."""
    port = text.removeprefix(":")
    if _is_port(port):
        return "", int(port)
    try:
        return split_address(text)
    except UsageError:
        raise UsageError(
            f"{text!r} is no address to listen at: write PORT for every address of this device, or"
            " HOST:PORT"
        ) from None


def _is_host(text: str) -> bool:
    """Whether the resolver accepts `text`: it raises an error for "a..b" and for NUL."""
    try:
        text.encode("idna")
    except UnicodeError:
        return False
    return bool(text) and text.isprintable() and " " not in text


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 5 and int(text) < 65536


def join_address(host: str, port: int) -> str:
    """Return "HOST:PORT", with brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


__all__ = [
    "COUNT_RULE",
    "DEFAULT_CLUSTER",
    "DEFAULT_JOIN_STALL",
    "DEFAULT_PORT",
    "DEFAULT_ROTATE_EVERY",
    "GO_ON",
    "JOIN_WAYS",
    "LOG_LEVELS",
    "MOST_COPIES",
    "MOST_WAITED_FOR",
    "ON_LOST",
    "OUTERS",
    "PAIRING_PORT",
    "PAUSE",
    "RUN_VARIABLE",
    "SOCKET_VARIABLE",
    "TOKEN_VARIABLE",
    "TREES",
    "WAITED_FOR_RULE",
    "AgentConfig",
    "TrainerConfig",
    "agent_config_from_environment",
    "can_be_waited_for",
    "default_name",
    "is_count",
    "is_name",
    "join_address",
    "listen_address",
    "name_rule",
    "replace",
    "saving_from_environment",
    "split_address",
    "state_root",
    "trainer_config_from",
    "trainer_config_text",
]

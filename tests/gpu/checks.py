"""The checks of `scripts/gpu-check`, by name.

A check returns what it saw, raises `Skip` if this machine cannot show it, and fails by any other
exception. On the CPU (`--device cpu`) the same checks rehearse the same code, with a training state
that is kept apart from the shared memory.
"""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from edgeagent.errors import UsageError
from edgeagent.trainer.block_steps import steps_of
from edgeagent.trainer.checkpoint import load_checkpoint, save_checkpoint
from edgeagent.trainer.devices import place_on, usable_device
from edgeagent.trainer.fingerprint import update_digest
from edgeagent.trainer.image import CPU
from edgeagent.trainer.numerics import numeric_fields, rounding
from edgeagent.trainer.slots import discover_slots
from edgeagent.trainer.staging import Staging
from edgeagent.trainer.streams import RandomStreams
from tests.gpu.replica import OPTIMIZERS, Replica, network, step
from tests.scenarios.cluster import Agent, Cluster
from tests.unit.trainer import divided

ITERATIONS = 5
STEPS = "60"
START_S = 180.0  # torch, CUDA and the first kernels may take so long on a slow device
MOST_COPIES = 5  # copies to the host in an iteration: the sum, losses, batch norm's counters


class Skip(Exception):
    """Raised by a check that this machine cannot run; the text says why."""


def device_is_usable(device: torch.device) -> str:
    """The device computes, and one that there is not is refused in one line."""
    assert usable_device(str(device)) == device
    refusal = ""
    try:
        usable_device("cuda:99")
    except UsageError as error:
        refusal = str(error)
    assert refusal, "cuda:99 was accepted"
    assert "\n" not in refusal
    about = "; ".join(text for _, text in numeric_fields(device))
    return f"{about}; {refusal}"


def copies_are_pinned_and_exact(device: torch.device) -> str:
    """What goes to the device comes back the same, at a speed that is said."""
    staging = Staging(device, piece_bytes=8 << 20)
    source = torch.arange(6 << 20, dtype=torch.float32)
    there, back = torch.empty_like(source, device=device), torch.empty_like(source)
    began = time.monotonic()
    staging.copy(source, there)
    staging.copy(there, back)
    seconds = time.monotonic() - began
    assert torch.equal(source, back)
    assert staging.copies == 6
    pinned = staging._pinned
    assert device.type != "cuda" or (pinned is not None and pinned.is_pinned())
    return f"2 x 24 MiB in {1000 * seconds:.1f} ms, pinned: {pinned is not None}"


def slots_are_on_the_device(device: torch.device) -> str:
    """Every optimizer's memory lies beside its parameter, made or loaded before `Trainer()`."""
    for kind in OPTIMIZERS:
        for loaded in (False, True):
            replica = Replica(device, kind, loaded=loaded)
            update_digest(replica.optimizer)
            names = {p: n for n, p in replica.model.named_parameters()}
            where = {s.slot: s.device for s in discover_slots(replica.optimizer, names)}
            wrong = {k: d for k, d in where.items() if d != device and k != "step"}
            assert not wrong, f"{kind}: {wrong}"
    return ", ".join(OPTIMIZERS)


def script_model_is_moved(device: torch.device) -> str:
    """`--device` moves a model whose optimizer was made, and has stepped, on the CPU."""
    for kind, make in OPTIMIZERS.items():
        model = network()
        optimizer = make(model.parameters())
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        place_on(model, optimizer, device)
        for parameter in model.parameters():
            assert parameter.device == device, kind
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    return ", ".join(OPTIMIZERS)


def random_streams_are_the_devices(device: torch.device) -> str:
    """Dropout follows from the micro-batch's number; the script's own stream goes on."""
    streams = RandomStreams(5, [device])

    def draw(number: int) -> list[float]:
        streams.enter(0, number)
        found: list[float] = torch.rand(4, device=device).tolist()
        streams.leave()
        return found

    torch.rand(1, device=device)
    assert draw(1) == draw(1) != draw(2)
    torch.manual_seed(1)
    alone = [torch.rand(4, device=device).tolist() for _ in range(2)]
    torch.manual_seed(1)
    first = torch.rand(4, device=device).tolist()
    draw(3)
    assert alone == [first, torch.rand(4, device=device).tolist()]
    return "reproducible, and the script's own stream is restored"


def second_device_has_its_own_stream(device: torch.device) -> str:
    """A model on another device than the current one is seeded all the same."""
    if device.type != "cuda" or torch.cuda.device_count() < 2:
        raise Skip("there is no second CUDA device")
    return random_streams_are_the_devices(torch.device("cuda:1"))


def replicas_are_equal(device: torch.device) -> str:
    """Two replicas, one of which joins in mid-training, stay equal to the last bit."""
    for kind in OPTIMIZERS:
        one, two = Replica(device, kind), Replica(device, kind)
        for _ in range(ITERATIONS):
            step([one])
        two.adopt(one)
        for _ in range(ITERATIONS):
            step([one, two])
            assert one.bytes() == two.bytes(), kind
            assert one.state.meta() == two.state.meta(), kind
    return f"{', '.join(OPTIMIZERS)}; {2 * ITERATIONS} iterations each"


def mixed_precision_replicas_are_equal(device: torch.device) -> str:
    """The same under autocast with bf16, with fp16 and a GradScaler, and with bf16 parameters."""
    kinds: list[tuple[str, torch.dtype | None, torch.dtype]] = [
        ("autocast bf16", torch.bfloat16, torch.float32),
        ("bf16 parameters", None, torch.bfloat16),
    ]
    if device.type == "cuda":
        kinds.append(("autocast fp16", torch.float16, torch.float32))
    for name, amp, dtype in kinds:
        pair = [Replica(device, "AdamW", amp=amp, dtype=dtype) for _ in range(2)]
        for _ in range(ITERATIONS):
            step(pair)
            assert pair[0].bytes() == pair[1].bytes(), name
    return ", ".join(name for name, _, _ in kinds)


def seldom_read_state_is_the_same(device: torch.device) -> str:
    """A state that stays on the device for some iterations is that which is read after each."""
    often, seldom = Replica(device), Replica(device)
    for _ in range(ITERATIONS):
        totals = [r.share(range(4)) for r in (often, seldom)]
        total = often.memory.contribution.array("float32").copy()
        for replica, said in zip((often, seldom), totals, strict=True):
            replica.apply(total, said, said.loss_sum, is_read=replica is often)
    before = seldom.state.image.staging.copies
    assert often.bytes() == seldom.bytes()
    assert seldom.state.image.staging.copies == before + 1
    return f"{ITERATIONS} iterations, then one copy"


def few_copies_in_an_iteration(device: torch.device) -> str:
    """The profiler sees a handful of copies between device and host, however many tensors."""
    if device.type != "cuda":
        raise Skip("the profiler counts copies of CUDA devices only")
    replica = Replica(device)
    step([replica])
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as seen:
        step([replica], is_read=False)
        torch.cuda.synchronize()
    names = [event.name for event in seen.events() or [] if "Memcpy" in event.name]
    home = [name for name in names if "DtoH" in name]
    if not names:
        raise Skip("the profiler shows no copies here (no CUPTI?)")
    assert len(home) <= MOST_COPIES, f"{len(home)} copies to the host: {home}"
    return f"{len(home)} to the host; {len(names)} with the batches and on the device"


def state_on_two_devices(device: torch.device) -> str:
    """A frozen parameter that stays on the CPU is part of the state like the others."""
    one, two = Replica(device, table=True), Replica(device, table=True)
    step([one])
    table = one.model.get_parameter("table")
    assert table.device == CPU
    assert table.detach().numpy().tobytes() in one.bytes()
    with torch.no_grad():
        two.model.get_parameter("table").zero_()
    two.adopt(one)
    assert torch.equal(two.model.get_parameter("table"), table)
    return f"{len(one.state._strays())} tensors copied beside the image"


def updates_in_blocks_are_the_processors(device: torch.device) -> str:
    """A whole optimizer that is stepped block by block leaves the bits that it leaves on the
    CPU."""
    kinds = [(k, o) for k, o in divided.OPTIMIZERS if steps_of(k([_parameter()], **o), CPU)]
    return ", ".join(_updated_alike(device, *kind, shards=False) for kind in kinds)


def divided_updates_are_the_processors(device: torch.device) -> str:
    """With a divided optimizer a model on the device gets the bits that one on the CPU gets."""
    return ", ".join(_updated_alike(device, *kind, shards=True) for kind in divided.OPTIMIZERS)


def _parameter() -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.zeros(3))


def _updated_alike(
    device: torch.device, kind: type[torch.optim.Optimizer], options: Any, *, shards: bool
) -> str:
    """Make some updates of a model on `device` and of one on the CPU; return the optimizer's name.
    Fails if their bits differ."""
    there = divided.Device(kind, options, shards=shards, at=device, mirror=True)
    here = divided.Device(kind, options, shards=shards)
    for seed in range(ITERATIONS):
        said = there.compute(seed)
        result = there.memory.contribution.array("float32").copy()
        squares = divided.squares_of(result, there.state.vector.chunk_elements)
        if shards:
            for each in (there, here):
                each.put_sums(result)
            result, other = (each.publish(said, squares) for each in (there, here))
            assert np.array_equal(result, other), kind.__name__
        for each in (there, here):
            each.apply(said, squares, result)
    there.state.bring_home()
    same = bytes(there.memory.state.view()) == bytes(here.memory.state.view())
    assert same, kind.__name__
    for a, b in zip(there.model.parameters(), here.model.parameters(), strict=True):
        assert torch.equal(a.detach().cpu(), b.detach()), kind.__name__
    return kind.__name__


def files_go_between_devices(device: torch.device) -> str:
    """A file that is saved from the device is resumed on the CPU, and the other way."""
    there, here = Replica(device), Replica(CPU)
    step([there])
    with tempfile.TemporaryDirectory() as folder:
        for source, target in ((there, here), (here, Replica(device))):
            path = str(Path(folder) / "state.safetensors")
            meta = source.state.meta()
            data = source.bytes()
            save_checkpoint(path, source.state.layout, source.memory.state.view(), meta)
            found = load_checkpoint(path, target.state.layout, target.memory.state.view())
            target.state.adopt(*found)
            assert target.bytes() == data
            assert target.state.meta() == meta
    return "saved and resumed both ways"


def update_is_compared_with_the_processors(device: torch.device) -> str:
    """Says whether this device can train with others that compute on the processor."""
    said = []
    for kind, make in OPTIMIZERS.items():
        digests = [update_digest(make(network().to(d).parameters())) for d in (device, CPU)]
        said.append(f"{kind} {'alike' if digests[0] == digests[1] else 'differently'}")
    ours, theirs = rounding(device).split(", "), rounding(CPU).split(", ")
    other = [a.rpartition(" ")[0] for a, b in zip(ours, theirs, strict=True) if a != b]
    return f"rounds as the CPU: {', '.join(said)}; other operations: {', '.join(other) or 'none'}"


def one_agent_trains(device: torch.device) -> str:
    """`edgeagent run digits --device` trains to its end and is accurate."""
    with tempfile.TemporaryDirectory() as folder, Cluster(Path(folder)) as cluster:
        alice = cluster.start("alice", "--steps", "150", "--device", str(device))
        assert alice.wait_exit(START_S) == 0, alice.log
        accuracy: float = alice.all("evaluated")[-1]["value"]
        assert accuracy > 0.9, accuracy
        return f"accuracy {100 * accuracy:.1f} % after 150 steps"


def two_agents_on_one_device(device: torch.device) -> str:
    """Two agents share the device; the second joins in mid-training; all digests are equal."""
    options = ("--steps", STEPS, "--device", str(device))
    with tempfile.TemporaryDirectory() as folder, Cluster(Path(folder)) as cluster:
        alice = cluster.start("alice", *options)
        alice.wait("joined", START_S)
        with alice.held():
            bob = cluster.start("bob", *options, peers=[alice])
            bob.wait_until("its trainer", lambda: bob.said("global batch"), START_S)
        assert [a.wait_exit(START_S) for a in (alice, bob)] == [0, 0], alice.log + bob.log
        return _equal_digests(alice, bob)


def agents_on_device_and_processor(device: torch.device) -> str:
    """An agent on the CPU trains with one on the device, or is told in words why not."""
    if device == CPU:
        raise Skip("there is one device only")
    with tempfile.TemporaryDirectory() as folder, Cluster(Path(folder)) as cluster:
        alice = cluster.start("alice", "--steps", STEPS, "--device", str(device))
        alice.wait("joined", START_S)
        with alice.held():
            bob = cluster.start("bob", "--steps", STEPS, "--device", "cpu", peers=[alice])
            bob.wait_until(
                "its trainer", lambda: bob.said("global batch") or bob.said("cannot"), START_S
            )
        statuses = [alice.wait_exit(START_S), bob.wait_exit(START_S)]
        if statuses == [0, 0]:
            return "they train together: " + _equal_digests(alice, bob)
        (line,) = bob.said("cannot train with this device")
        assert statuses[0] == 0, alice.log
        return line


def divided_agents_on_device_and_processor(device: torch.device) -> str:
    """With --shard-optimizer an agent on the device trains with two on the CPU, one of which is
    killed, and then goes on alone."""
    options = ("--steps", "500", "--shard-optimizer")
    with tempfile.TemporaryDirectory() as folder, Cluster(Path(folder), options=options) as cluster:
        bob = cluster.start("bob", "--device", "cpu")
        bob.wait("joined", START_S)
        with bob.held():
            alice = cluster.start("alice", "--device", str(device), peers=[bob])
            carol = cluster.start("carol", "--device", "cpu", peers=[bob])
            for agent in (alice, carol):
                agent.wait_until("its trainer", partial(agent.said, "global batch"), START_S)
        bob.wait_members("alice", "bob", "carol")
        alice.wait_members("alice", "bob", "carol")
        alice.wait_steps(10)
        carol.signal(signal.SIGKILL)
        bob.wait_members("alice", "bob")
        alice.wait_steps(10)
        assert bob.interrupt()[0] == 0, bob.log
        assert alice.wait_exit(START_S) == 0, alice.log
        return f"{_equal_digests(alice, bob)}, then alone to step {alice.iteration}"


def _equal_digests(one: Agent, other: Agent) -> str:
    shared = one.digests.keys() & other.digests.keys()
    assert shared, "there is no digest that both have taken"
    assert all(one.digests[i] == other.digests[i] for i in shared)
    return f"{len(shared)} equal digests"


CHECKS: dict[str, Callable[[torch.device], str]] = {
    check.__name__.replace("_", "-"): check
    for check in (
        device_is_usable,
        copies_are_pinned_and_exact,
        slots_are_on_the_device,
        script_model_is_moved,
        random_streams_are_the_devices,
        second_device_has_its_own_stream,
        replicas_are_equal,
        mixed_precision_replicas_are_equal,
        seldom_read_state_is_the_same,
        few_copies_in_an_iteration,
        state_on_two_devices,
        updates_in_blocks_are_the_processors,
        divided_updates_are_the_processors,
        files_go_between_devices,
        update_is_compared_with_the_processors,
        one_agent_trains,
        two_agents_on_one_device,
        agents_on_device_and_processor,
        divided_agents_on_device_and_processor,
    )
}

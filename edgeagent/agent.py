"""The agent process: its life from the first line to the exit status.

    claim a slot -> listen -> (trainer says Hello) -> search: join or found -> train -> depart

This module starts, connects and stops the parts; `protocols` decides about the training. However
the agent ends, the trainer is told, every link is flushed and closed, and one line says why.
"""

from __future__ import annotations

import asyncio
import os
import platform
import signal
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from edgeagent import advice, handover
from edgeagent.administration import Administration
from edgeagent.admission import Admission
from edgeagent.config import PAUSE, split_address
from edgeagent.dataplane.shards import state_digest
from edgeagent.errors import EdgeAgentError, JobMismatch, UsageError
from edgeagent.event_file import EventWriter
from edgeagent.late_listener import LateListener
from edgeagent.local.api import LocalApi
from edgeagent.local.state_dir import claim_state_dir
from edgeagent.local.status import phase_of, status_of
from edgeagent.local.token_store import renew_token
from edgeagent.logs import start_logging, stop_logging
from edgeagent.membership import OTHER_BATCH, Membership
from edgeagent.network import NoNetwork, standing_of
from edgeagent.observer import Observer
from edgeagent.page.server import PageServer
from edgeagent.pausing.watch import watch_pauses
from edgeagent.recorders import Recorders
from edgeagent.runtime import agent_runner
from edgeagent.same_device import watch_same_device
from edgeagent.search import Search
from edgeagent.shell import Owner, Shell, options_of
from edgeagent.terminal.console import console_for
from edgeagent.terminal.text import seconds_text, shown_path
from edgeagent.trace import keep_trace
from edgeagent.trainer_end import SAVE_SECONDS, TrainerEnd
from edgeagent.trainer_link import TrainerLink, exit_status
from edgeagent.transport.addresses import watch_addresses
from edgeagent.transport.api import PeerInfo, Standing
from edgeagent.transport.complaints import LimitedLog
from edgeagent.transport.discovery import Discovery
from edgeagent.transport.identity import load_identity, renew_identity
from edgeagent.transport.job import script_difference
from edgeagent.transport.rounding import numeric_class
from edgeagent.transport.sockets import own_hosts
from edgeagent.transport.tcp import TcpTransport
from edgeagent.transport.token import TOKEN_BYTES, discovery_tag, parse_token, token_text
from protocols import limits
from protocols.cluster.ancestry import NOTHING, Past
from protocols.cluster.view import Member
from protocols.errors import RemoteProtocolError

if TYPE_CHECKING:
    import socket
    from collections.abc import Coroutine

    from edgeagent.config import AgentConfig
    from edgeagent.launch import OwnChild
    from edgeagent.local.status_model import Phase, Status
    from edgeagent.shared_memory import SharedMemory

END_HEARD_SECONDS = 30.0  # a trainer may take this long to answer that the end has come
HUNG_END_HEARD_SECONDS = 5.0  # the time for that answer if the trainer was late already
STOP_SECONDS = 0.5  # the transport may take this long; its links are flushed before


def run_agent(config: AgentConfig, trainer_socket: socket.socket, trainer: OwnChild | None) -> int:
    """Run an agent for the trainer at the other end of `trainer_socket`; return the exit status.

    `trainer` is the trainer's process if this agent's process has started it. Raises
    `EdgeAgentError` for errors that the user can correct, `JobMismatch` if it may begin again with
    the batch of the cluster.
    """
    with agent_runner() as runner:
        agent = Agent(config, trainer_socket, trainer)
        status: int = runner.run(agent.run())
    if agent.other_batch is not None:
        raise agent.other_batch
    return status


@dataclass(frozen=True, slots=True)
class Ending:
    """Why and how an agent ends. `told` says that the user has seen `message` already."""

    why: str
    message: str
    status: int
    told: bool


class Agent:
    """One agent. Implements `Host` for the user's requests."""

    def __init__(
        self, config: AgentConfig, trainer_socket: socket.socket, trainer: OwnChild | None
    ) -> None:
        self._config = config
        self.token = None if config.token is None else parse_token(config.token)
        self._trainer_socket = trainer_socket
        self._child = trainer
        self.state_dir = claim_state_dir(config.state_dir, config.cluster, config.name)
        self._identity = load_identity(self.state_dir.path)
        self._name = self.state_dir.name
        self._console = console_for(config)
        self._events = EventWriter(config.events)
        self._recorders = Recorders(config, self._name, self._events, self.status)
        start_logging(config.log_level, config.log_file)
        self.transport: TcpTransport | None = None
        self._discovery: Discovery | None = None
        self.search: Search | None = None
        self.hello: handover.Hello | None = None
        self.memory: SharedMemory | None = None
        self.origin = NOTHING  # history of the state with which the trainer has begun
        self._listener = LateListener()
        self.admission = Admission(self, config.recipe)
        self.trainer_status = 0
        self.takes_batch = config.takes_batch
        self.other_batch: JobMismatch | None = None  # set if it ends to begin again with that
        self.shell: Shell | None = None
        self._administration = Administration(self)
        self.trainer_link = TrainerLink(self._from_trainer, self._trainer_ended)
        self._trainer_end = TrainerEnd(trainer)
        self._departure: asyncio.Future[Ending] | None = None
        self._renewing = False
        self._where = ""  # the best address of the join listener
        self.membership = Membership(
            self, goes_on=config.on_partition != PAUSE, waits=config.wait_for > 1
        )
        self._life = self.membership.life
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._searching: list[asyncio.Task[None]] = []

    # --- life -------------------------------------------------------------------------------------

    async def run(self) -> int:
        """Run until the agent has departed; return the exit status."""
        loop = asyncio.get_running_loop()
        self._departure = loop.create_future()
        self.observer = Observer(
            self._name,
            self._config.cluster,
            self._events,
            self._console,
            loop.time,
            loop.call_later,
        )
        self.observer.neighbours = self._config.neighbours
        self._lines = LimitedLog(self.observer.say, loop.time)
        loop.set_exception_handler(self._internal_error)
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._interrupted)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # `nohup` has it ignored
            loop.add_signal_handler(signal.SIGHUP, self._hung_up)
        folder = self.state_dir.path
        page = PageServer(self._administration, self.observer, folder, self._page_host)
        api = LocalApi(self.state_dir.socket_path, self._administration, page.open)
        started = loop.time()
        status = 1
        try:
            self.trainer_link.expect(self._trainer_socket)
            await api.start()
            await self._recorders.start(self.observer.say)
            await self._listen()
            self.spawn(self._serve_trainer())
            self.spawn(watch_pauses(self._config, self))
            self.spawn(watch_same_device(self._config.state_dir, self.trainer_link))
            status = await self._depart(await self._departure, started)
        finally:
            await self._stop()
            await page.close()
            await api.close()
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                loop.remove_signal_handler(number)
            await self._recorders.close()
            self._console.close()
            self._events.close()
            stop_logging()
            self.state_dir.release()
        return status

    def _page_host(self) -> str:
        """Return the host at which a browser on another device reaches this agent, "" if none."""
        if self._where:
            return split_address(self._where)[0]
        return next(iter(own_hosts(self._config.interface)), "")

    async def _listen(self) -> None:
        """Open the ports and begin to look for others, unless this agent trains alone."""
        config = self._config
        if self.token is None:
            self.observer.event("started", node=self._name, address="")
            self.observer.say(
                "no token: training alone on this device (set EDGEAGENT_TOKEN to let others join)"
            )
            return
        self.transport = transport = TcpTransport(
            self._identity,
            self.state_dir.incarnation,
            self.token,
            config.cluster,
            self._name,
            self._listener,
            self.admission,
            self.observer.say,
        )
        addresses = await transport.start(config.listen, config.interface)
        if not addresses:
            raise UsageError(
                f"--interface {config.interface}: it has no address: is it up, and connected?"
            )
        self._where = addresses[0]
        self.observer.event("started", node=self._name, address=addresses[0])
        self.observer.say(f"{self._name} listens at {addresses[0]}, cluster {config.cluster!r}")
        self.search = Search(
            transport,
            config.peers,
            config.mdns,
            self.membership,
            self.observer.say,
            lambda: advice.nobody_found(config, addresses[0]),
            self.spawn,
            join_only=config.join_only,
            patient=config.on_partition == PAUSE,
        )
        if config.mdns:
            tag = discovery_tag(self.token, config.cluster)
            self._discovery = Discovery(
                tag,
                addresses,
                self.search.hint,
                self.observer.say,
                listen=config.listen,
                interface=config.interface,
            )
            await self._discovery.start()
        watching = watch_addresses(transport.renew_addresses, self._moved)
        self._searching = [self.spawn(self.search.run()), self.spawn(watching)]

    async def _moved(self, addresses: tuple[str, ...]) -> None:
        """Tell everybody concerned that this device has new addresses."""
        where = addresses[0] if addresses else "no address, so nobody reaches it"
        if where != self._where:  # otherwise only an address of less use has come or gone
            self._where = where
            self.observer.say(f"{self._name} is now at {where}")
        if self._discovery is not None:
            await self._discovery.use_addresses(addresses)
        if self.search is not None:
            self.search.moved()

    async def _serve_trainer(self) -> None:
        """Wait until the trainer has told its job, then join or found."""
        try:
            hello, memory = await self.trainer_link.open(self._trainer_socket)
        except (EOFError, EdgeAgentError) as error:
            await self._trainer_failed(error)
            return
        if hello.iteration:  # the state's digest is its history: equal for equal resumed files
            name = await asyncio.to_thread(state_digest, memory.state.view(), hello.meta)
            self.origin = Past(hello.iteration, bytes.fromhex(name)[: limits.LINEAGE_BYTES])
        self.hello, self.memory = hello, memory
        if hello.lacking and self.search is not None:
            self.search.only_join()
        if self.transport is None:
            self.membership.found_cluster()

    def make_shell(self, hello: handover.Hello, memory: SharedMemory) -> Shell:
        """Build the shell; from here on others know this device by its present key."""
        transport = self.transport
        peer = transport.me if transport is not None else self._lonely_peer()
        me = Member(
            peer.node,
            peer.incarnation,
            peer.name,
            numeric_class(hello.job, f"{platform.machine()} {platform.system()}"),
            peer.addresses,
            peer.certificate,
            sparse=bool(self._config.neighbours),
            most_links=self._config.most_links,
        )
        config = self._config
        owner = Owner(
            self.trainer_link.send,
            self.membership.departed,
            self.membership.join_failed,
            self.membership.stands_by,
            self._use_token,
            self.spawn,
        )
        network, options = transport or NoNetwork(), options_of(config)
        self.shell = shell = Shell(me, hello, memory, network, self.observer, owner, options)
        shell.trainer.begins_from(self.origin)
        if hello.slots:  # a part of the optimizer's state is nothing to found a cluster from
            self.membership.life.goes_on = False
        self._listener.shell = shell
        self._administration.watch(shell)
        return shell

    async def _depart(self, ending: Ending, started: float) -> int:
        """Tell the trainer, let it save, close the links; return the exit status."""
        loop = asyncio.get_running_loop()
        shell, node = self.shell, self.shell.node if self.shell else None
        iteration = node.context.iteration if node else 0
        if ending.message and ending.why != OTHER_BATCH:
            self.observer.error(ending.message)
        whole = shell is None or shell.is_whole
        if not self._life.trainer_gone:  # the job's last output must come below the live line
            self._console.settle()
            await asyncio.to_thread(self._console.flush)
        self.trainer_link.send(handover.End(ending.why, ending.message, ending.status, whole))
        stopped = asyncio.gather(self._stop_looking(), *([shell.close()] if shell else []))
        if self._life.trainer_gone:
            await stopped  # first: while this process saves in its place nothing is sent
        failure = await self._trainer_finishes()
        await stopped
        if failure and ending.status == 0:
            ending = Ending("error", failure, 1, told=False)
            self.observer.error(failure)
        seconds = loop.time() - started
        self.observer.event("left", iteration=iteration, seconds=round(seconds, 6))
        if ending.message and not ending.told:
            self._console.fail(ending.message)
        elif ending.why == "steps":
            self.observer.say(f"done: {iteration} steps in {seconds_text(seconds)}")
        elif not ending.message:
            self.observer.say(f"left after step {iteration}")
        if told := self._trainer_end.told_path:
            self.observer.say(f"model saved in {shown_path(told)}")
        return ending.status

    async def _trainer_finishes(self) -> str:
        """Let the trainer save; return what went wrong, "" if nothing did."""
        if self.hello is None and self._life.leaving and self._child is not None:
            self._child.dismiss()  # it is still starting, and has nothing to save
        end = self._trainer_end
        if self.hello is None:
            return ""
        if self._life.trainer_gone:
            if end.was_silent:  # that it ended is said already; here is what became of its model
                self._console.fail(f"the trainer has ended; {self._end_trainer()[0]}")
            return ""
        if not await end.is_heard(self._answer_seconds()):
            about, well = self._end_trainer()
            line = f"the trainer does not answer and was ended; {about}"
            if well:
                self.observer.say(line)
            return "" if well else line
        if not await end.saves():
            return f"the trainer did not end within {SAVE_SECONDS:.0f} s; its model may be unsaved"
        if end.was_silent:
            about, _ = self._end_trainer()
            return f"the trainer ended before it said that its model is saved; {about}"
        presses = "Ctrl+C" if self._life.leaving else "Ctrl+C twice"
        await end.script_ends(lambda: self._console.say(advice.script_goes_on(end.path, presses)))
        return end.error

    def _answer_seconds(self) -> float:
        """Return how long to wait for the trainer's answer: the time of a micro-batch and more."""
        slow = limits.TRAINER_FACTOR * self.observer.compute_seconds
        node = self.shell.node if self.shell is not None else None
        hangs = node is not None and node.debt.is_behind  # it was given that time already
        hangs = hangs or self._life.is_hung
        return HUNG_END_HEARD_SECONDS if hangs else max(END_HEARD_SECONDS, slow)

    def _end_trainer(self) -> tuple[str, bool]:
        """End the trainer, save what it has trained; return (what became of that, is all well)."""
        own, side = self.membership.whole_state, self.shell.trainer if self.shell else None
        kept, owed = (side.kept_state, side.owed.step) if side is not None else (None, None)
        return self._trainer_end.rescue(self.hello, self.memory, own, kept, owed)

    async def _stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._stop_listening()
        self.trainer_link.close()

    async def _stop_looking(self) -> None:
        """Stop asking others, and withdraw this agent's announcement from the network."""
        for task in self._searching:
            task.cancel()
        await asyncio.gather(*self._searching, return_exceptions=True)
        if self.search is not None:
            await self.search.stop()
        if self._discovery is not None:
            await self._discovery.stop()

    async def _stop_listening(self) -> None:
        await self._stop_looking()
        if self.transport is not None:
            await self.transport.stop(STOP_SECONDS)

    def end(self, why: str, message: str = "", status: int = 0, *, told: bool = False) -> None:
        self._life.ended()
        if not self.departing and self._departure is not None:
            self._departure.set_result(Ending(why, message, status, told))

    @property
    def departing(self) -> bool:
        return self._departure is None or self._departure.done()

    # --- people -----------------------------------------------------------------------------------

    def _interrupted(self) -> None:
        """Handle Ctrl+C: the first leaves gracefully, the second ends at once."""
        if self._life.leaving:
            self._console.say("ending at once")
            if self._trainer_end.path:
                self._console.say(f"model saved in {shown_path(self._trainer_end.path)}")
            elif self._trainer_end.may_be_rescued:
                self._console.say(f"the trainer has ended; {self._end_trainer()[0]}")
            self._recorders.flush()
            self._console.close()
            self._events.close()
            stop_logging()
            os._exit(1)
        node = self.shell.node if self.shell else None
        if self.departing:
            self.membership.leave()
            self._console.say("training is over here already; Ctrl+C again ends at once")
            return
        hangs = self._life.is_hung
        waits = advice.leaving_waits_for(self._phase(), node, hangs=hangs)
        self.observer.say(f"leaving{waits}; Ctrl+C again ends at once")
        self.membership.leave()

    def _hung_up(self) -> None:
        """Leave because the terminal was closed; the signal may come more than once."""
        if not self._life.leaving:
            self.observer.say("the terminal was closed: leaving")
            self.membership.leave()

    def status(self) -> Status:
        """Return what `edgeagent status` shows."""
        cluster = self._config.cluster
        node_id = self._identity.node
        return status_of(
            self._name,
            node_id,
            cluster,
            self._phase(),
            self.shell,
            self.observer,
            self._life.standby,
        )

    async def leave(self) -> None:
        """Leave as `edgeagent leave` asks."""
        if not self._life.leaving:
            self.observer.say("leaving, as `edgeagent leave` asks")
            self.membership.leave()

    def _phase(self) -> Phase:
        node = self.shell.node if self.shell else None
        must_join = self.search is not None and self.search.must_join
        waits = self.shell is not None and self.shell.trainer.kept_work.assembly.waits
        known = self.hello is not None
        return phase_of(self._life, node, job_known=known, must_join=must_join, waits=waits)

    # --- the trainer ------------------------------------------------------------------------------

    def _from_trainer(self, message: handover.Message) -> None:
        match message:
            case handover.Finished(error, path, newest):
                self._trainer_end.received(message)
                if error and not self.departing:
                    node = self.shell.node if self.shell else None
                    then = "" if path else advice.after_failure(newest, node)
                    self._leave_for_trainer(error, then)
            case handover.SavedAside(path, error):
                self.membership.saved(path, error)
            case handover.EndHeard() | handover.Saved():
                self._trainer_end.received(message)
            case handover.ExitRequested() if not self._life.leaving:
                self.membership.leave()
            case _ if self.shell is not None:
                self.shell.trainer.received(message)

    def _trainer_ended(self) -> None:
        """Note that the trainer's end of the hand-over is closed, and leave if that was early."""
        self._trainer_end.closed()
        if self.departing:
            return
        said = self._trainer_end.is_finished
        message = "" if said else "the trainer ended in mid-training; this device leaves"
        self._leave_for_trainer(message)

    def _leave_for_trainer(self, message: str, then: str = "") -> None:
        """Hand back the work of a trainer that takes no more, and let the others go on. `then` is
        what to tell the user beside `message`."""
        if self._life.trainer_gone:
            return
        if message:
            self._console.fail(message + then)
            self.observer.error(message)
            self.trainer_status = 1
        self.membership.leave(trainer_gone=True)

    async def _trainer_failed(self, error: Exception) -> None:
        """End the agent, because the trainer ended or broke the hand-over before training began."""
        if isinstance(error, EdgeAgentError):
            self.end("error", str(error), error.exit_status)
            return
        status = await exit_status(self._child) if self._child is not None else None
        told = status == UsageError.exit_status  # the trainer has told the user what is wrong
        message = advice.ended_too_early(self._config.job, status)
        self.end("error", message, UsageError.exit_status if told else 1, told=told)

    # --- the node ---------------------------------------------------------------------------------

    def _use_token(self, token: bytes) -> None:
        """Take over the cluster's new token, as all members do; links that are up stay."""
        if len(token) != TOKEN_BYTES:
            raise RemoteProtocolError("a token of a length that none has")
        if token == self.token or self.token is None or self.transport is None:
            return
        old, self.token = token_text(self.token), token
        renew_token(self._config.state_dir, self._config.cluster, old, token_text(token))
        self.transport.use_token(token)
        if self._discovery is not None:
            self._discovery.use_tag(discovery_tag(token, self._config.cluster))
        self.observer.say("the cluster has a new token: whoever starts from now on needs it")

    def same_identity(self, standing: Standing, address: str) -> None:
        """Take a new key if a copy of this device's key is in use elsewhere and came first."""
        if standing.me.incarnation > self.state_dir.incarnation or self.shell is not None:
            return
        if self._renewing:
            return
        self._renewing = True
        self.observer.say(
            f"{standing.me.name} at {address} holds a copy of this device's key (a cloned disk?): "
            "making a new one"
        )
        self.spawn(self._renew())

    async def _renew(self) -> None:
        """Take a new key and begin to listen again."""
        self._identity = renew_identity(self.state_dir.path)
        await self._stop_listening()
        await self._listen()
        self._renewing = False

    # --- what others are told ---------------------------------------------------------------------

    def compare_scripts(self, name: str, theirs: bytes) -> None:
        """Warn if `name` runs a script that differs from this device's."""
        ours = self.hello.script if self.hello is not None else ()
        if (where := script_difference(ours, theirs)) is not None:
            line = f"warning: {name} runs another script than this device: it differs {where}"
            self._lines.say("script", line)

    def standing(self) -> Standing:
        """Return what to tell a proven joiner."""
        me = self.transport.me if self.transport is not None else self._lonely_peer()
        elder = self.search.elder if self.search is not None else me.node
        node = self.shell.node if self.shell is not None else None
        return replace(standing_of(me, node, elder), script=self.admission.script())

    # --- small things -----------------------------------------------------------------------------

    def _lonely_peer(self) -> PeerInfo:
        return PeerInfo(self._identity.node, self.state_dir.incarnation, self._name, (), b"")

    def spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._task_done)
        return task

    def _internal_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        """End the agent with one line about an error that nobody could catch: a bug of ours."""
        self.end("error", advice.internal_error(context, self._keep_trace()), 1)

    def _keep_trace(self) -> str:
        """Write what led to an internal error to a file; return its path, "" if there is none."""
        if self.shell is None or self.departing:
            return ""
        return keep_trace(self.shell.trace(), self._config.events, self.state_dir.path)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            if isinstance(error, EdgeAgentError):
                self.end("error", str(error), error.exit_status)
            else:
                self._internal_error(task.get_loop(), {"exception": error})

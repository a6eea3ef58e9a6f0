"""The agent process: its life from the first line to the exit status.

    claim a slot -> listen -> (trainer says Hello) -> search: join or found -> train -> depart

Law: this file starts, connects and stops the parts; it decides nothing about training. However the
agent ends, the trainer is told, every link is flushed and closed, and one line says why.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import secrets
import signal
import traceback
from typing import TYPE_CHECKING

from edgeagent import handover
from edgeagent.errors import EdgeAgentError, JobMismatch, JoinRefused
from edgeagent.events import EventWriter
from edgeagent.local.api import LocalApi
from edgeagent.local.state_dir import claim_state_dir
from edgeagent.local.status import status_of
from edgeagent.observer import Observer
from edgeagent.search import Search
from edgeagent.shell import NoNetwork, Shell, member_of
from edgeagent.terminal.console import console_for
from edgeagent.terminal.text import seconds_text
from edgeagent.trainer_link import TrainerLink
from edgeagent.transport.api import Candidate, PeerInfo, Standing
from edgeagent.transport.discovery import Discovery
from edgeagent.transport.identity import load_identity, renew_identity
from edgeagent.transport.malloc import tune_malloc
from edgeagent.transport.tcp import TcpTransport
from edgeagent.transport.token import discovery_tag, parse_token
from protocols import limits
from protocols.founding import Heard
from protocols.view import Member

if TYPE_CHECKING:
    import socket
    from collections.abc import Coroutine

    from edgeagent.config import AgentConfig
    from edgeagent.launch import Child
    from edgeagent.local.status_model import Phase, Status
    from edgeagent.shared_memory import SharedMemory
    from edgeagent.transport.api import Link
    from protocols.bulk import BulkHeader

SAVE_SECONDS = 600.0  # how long the trainer may take to save at the end
REJOIN_SECONDS = 0.5
STOP_SECONDS = 0.5  # for the last bytes; the links were flushed before


def run_agent(config: AgentConfig, trainer_socket: socket.socket, trainer: Child | None) -> int:
    """Run an agent for the trainer at the other end of `trainer_socket`; return the exit status.

    `trainer` is the process if this agent's starter started it. Raises `EdgeAgentError` for what
    the user can mend.
    """
    tune_malloc()
    with _runner() as runner:
        return runner.run(Agent(config, trainer_socket, trainer).run())


def _runner() -> asyncio.Runner:
    try:
        import uvloop
    except ImportError:
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


class Agent:
    """One agent. Implements `AdmissionPolicy` and the search's `Outcome`."""

    def __init__(
        self, config: AgentConfig, trainer_socket: socket.socket, trainer: Child | None
    ) -> None:
        self._config = config
        self._trainer_socket = trainer_socket
        self._child = trainer
        self._state_dir = claim_state_dir(config.state_dir, config.cluster, config.name)
        self._identity = load_identity(self._state_dir.path)
        self._name = self._state_dir.name
        self._console = console_for(config)
        self._events = EventWriter(config.events)
        self._transport: TcpTransport | None = None
        self._discovery: Discovery | None = None
        self._search: Search | None = None
        self._hello: handover.Hello | None = None
        self._memory: SharedMemory | None = None
        self._listener = LateListener()
        self._listening = ""  # the address that others can type
        self._trainer_status = 0
        self._shell: Shell | None = None
        self._link = TrainerLink(self._from_trainer, self._trainer_ended)
        self._finished = asyncio.Event()
        self._departure: asyncio.Future[tuple[str, str, int]] | None = None
        self._sponsor: Member | None = None
        self._leaving = False
        self._trainer_said_finished = False
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._searching: list[asyncio.Task[None]] = []

    # --- life -------------------------------------------------------------------------------------

    async def run(self) -> int:
        """Live; return the exit status."""
        loop = asyncio.get_running_loop()
        self._departure = loop.create_future()
        self._observer = Observer(
            self._name, self._config.cluster, self._events, self._console, loop.time
        )
        loop.set_exception_handler(self._internal_error)
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._interrupted)
        api = LocalApi(self._state_dir.socket_path, self)
        started = loop.time()
        status = 1
        try:
            await api.start()
            await self._listen()
            self._spawn(self._serve_trainer())
            why, message, status = await self._departure
            await self._depart(why, message, status, started)
        finally:
            await self._stop()
            await api.close()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
            self._console.close()
            self._events.close()
            self._state_dir.release()
        return status

    async def _listen(self) -> None:
        """Open the ports and look for others, unless this agent trains alone."""
        config = self._config
        if config.token is None:
            self._observer.event("started", node=self._name, address="")
            self._observer.say(
                "no token: training alone on this device (set EDGEAGENT_TOKEN to let others join)"
            )
            return
        token = parse_token(config.token)
        self._transport = transport = TcpTransport(
            self._identity,
            self._state_dir.incarnation,
            token,
            config.cluster,
            self._name,
            self._listener,
            self,
            self._observer.say,
        )
        addresses = await transport.start(config.listen)
        self._listening = addresses[0]
        self._observer.event("started", node=self._name, address=addresses[0])
        self._observer.say(f"{self._name} listens at {addresses[0]}, cluster {config.cluster!r}")
        self._search = Search(
            transport,
            config.peers,
            config.mdns,
            self,
            self._observer.say,
            self._explain,
            self._spawn,
        )
        if config.mdns:
            tag = discovery_tag(token, config.cluster)
            self._discovery = Discovery(
                tag, addresses, self._search.hint, self._observer.say, config.listen
            )
            await self._discovery.start()
        self._searching = [self._spawn(self._search.run())]

    async def _serve_trainer(self) -> None:
        """Wait for the trainer's job, then join or found."""
        try:
            hello, memory = await self._link.open(self._trainer_socket)
        except (EOFError, EdgeAgentError) as error:
            self._trainer_failed(error)
            return
        self._hello, self._memory = hello, memory
        if self._transport is None:
            self.found_cluster()

    def _make_shell(self, hello: handover.Hello, memory: SharedMemory) -> Shell:
        """Build what runs the node; from here on this device's key is what others know it by."""
        transport = self._transport
        peer = transport.me if transport is not None else self._lonely_peer()
        me = Member(
            peer.node,
            peer.incarnation,
            peer.name,
            f"{platform.machine()} {platform.system()}",
            peer.addresses,
            peer.certificate,
        )
        self._shell = shell = Shell(
            me,
            hello,
            memory,
            self._link.send,
            transport if transport is not None else NoNetwork(),
            self._observer,
            self._config.neighbours,
            self._node_departed,
            self._join_failed,
            self._spawn,
        )
        self._listener.shell = shell
        return shell

    async def _depart(self, why: str, message: str, status: int, started: float) -> None:
        """Tell the trainer, let it save, say goodbye."""
        loop = asyncio.get_running_loop()
        shell, node = self._shell, self._shell.node if self._shell else None
        iteration = node.context.iteration if node else 0
        if message:
            self._observer.error(message)
        self._link.send(handover.End(why, message, status))
        stopped = asyncio.gather(self._stop_looking(), *([shell.close()] if shell else []))
        if self._hello is not None and not self._trainer_said_finished:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._finished.wait(), SAVE_SECONDS)
        await stopped
        seconds = loop.time() - started
        self._observer.event("left", iteration=iteration, seconds=round(seconds, 6))
        if message:
            self._console.fail(message)
        elif why == "steps":
            self._observer.say(f"done: {iteration} steps in {seconds_text(seconds)}")
        else:
            self._observer.say(f"left after step {iteration}")

    async def _stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._stop_listening()
        self._link.close()

    async def _stop_looking(self) -> None:
        """Ask nobody any more, and tell the network that we are gone."""
        for task in self._searching:
            task.cancel()
        await asyncio.gather(*self._searching, return_exceptions=True)
        if self._discovery is not None:
            await self._discovery.stop()

    async def _stop_listening(self) -> None:
        await self._stop_looking()
        if self._transport is not None:
            await self._transport.stop(STOP_SECONDS)

    def _end(self, why: str, message: str = "", status: int = 0) -> None:
        if self._departure is not None and not self._departure.done():
            self._departure.set_result((why, message, status))

    # --- people -----------------------------------------------------------------------------------

    def _interrupted(self) -> None:
        """Ctrl+C: once leaves gracefully, twice ends at once."""
        if self._leaving:
            self._console.say("ending at once")
            if self._child is not None:
                self._child.kill()
            self._console.close()
            os._exit(1)
        node = self._shell.node if self._shell else None
        others = len(node.context.policy.view.members) - 1 if node and node.context.policy else 0
        if others > 0:
            leads = node is not None and node.negotiator is not None
            first = "hands the scheduler's role over, then " if leads else ""
            self._console.say(
                f"leaving: {first}waits for the running iteration with {others} other"
                f"{'s' if others > 1 else ''}; Ctrl+C again ends at once"
            )
        else:
            self._console.say("leaving after the running micro-batch; Ctrl+C again ends at once")
        self._leave()

    def _leave(self) -> None:
        self._leaving = True
        if self._shell is None or self._shell.node is None:
            self._end("left")
            return
        self._link.send(handover.LeaveAsked())
        self._shell.leave()

    def status(self) -> Status:
        """What `edgeagent status` shows."""
        cluster = self._config.cluster
        node_id = self._identity.node
        return status_of(self._name, node_id, cluster, self._phase(), self._shell, self._observer)

    async def leave(self) -> None:
        """`edgeagent leave`."""
        if not self._leaving:
            self._console.say("leaving, as `edgeagent leave` asks")
            self._leave()

    def _phase(self) -> Phase:
        node = self._shell.node if self._shell else None
        if self._leaving:
            return "leaving"
        if self._hello is None:
            return "starting"
        if node is None:
            return "founding"
        return "training" if node.context.is_member else "joining"

    def _explain(self) -> str:
        return (
            "no other agent of this cluster found yet: none may be running, multicast may be "
            "blocked between devices (guest Wi-Fi, VPN), or token or cluster name differ; "
            "to connect by hand run elsewhere: "
            f"edgeagent run {self._config.job} --peer {self._listening}"
        )

    # --- the trainer ------------------------------------------------------------------------------

    def _from_trainer(self, message: handover.Message) -> None:
        match message:
            case handover.Finished(error):
                self._trainer_said_finished = True
                self._finished.set()
                if error:
                    self._end("error", error, 1)
            case handover.ExitRequested() if not self._leaving:
                self._leave()
            case _ if self._shell is not None:
                self._shell.from_trainer(message)

    def _trainer_ended(self) -> None:
        """The trainer's end of the hand-over is closed."""
        self._finished.set()
        if self._trainer_said_finished or self._departure is None or self._departure.done():
            if self._trainer_said_finished and self._shell is not None:
                self._leave_for_trainer("")
            return
        self._leave_for_trainer("the trainer ended in mid-training; this device leaves")

    def _leave_for_trainer(self, message: str) -> None:
        if message:
            self._console.fail(message)
            self._observer.error(message)
            self._trainer_status = 1
        self._leaving = True
        if self._shell is not None and self._shell.node is not None:
            self._shell.orphaned()
        else:
            self._end("left", "", self._trainer_status)

    def _trainer_failed(self, error: Exception) -> None:
        """The trainer ended, or spoke nonsense, before training began."""
        if isinstance(error, EdgeAgentError):
            self._end("error", str(error), error.exit_status)
            return
        status = self._child.poll() if self._child is not None else None
        self._end("left", "", status if status and status > 0 else 1)

    # --- the node ---------------------------------------------------------------------------------

    def _node_departed(self, why: str, message: str) -> None:
        if why == "yielded" and self._shell is not None and self._sponsor is not None:
            self._shell.join(self._sponsor)
        elif why == "error":
            self._end("error", message, 1)
        else:
            self._end(why, "", self._trainer_status)

    def _join_failed(self, reason: str) -> None:
        if self._leaving:
            self._end("left")
        else:
            self._observer.say(f"the join failed: {reason}; trying again")
            self._spawn(self._join_again())

    async def _join_again(self) -> None:
        if self._shell is not None:
            await self._shell.drop_links()
        await asyncio.sleep(REJOIN_SECONDS)
        if self._search is not None:
            self._search.refused()

    # --- Outcome (of the search) ------------------------------------------------------------------

    def own(self) -> Heard:
        """What this agent would answer if it were asked."""
        standing = self.standing()
        return Heard(
            standing.me.node,
            standing.phase == "member",
            standing.samples,
            standing.members,
            standing.lineage,
        )

    def found_cluster(self) -> None:
        """Found a cluster."""
        if self._hello is None or self._memory is None:
            return
        shell = self._shell or self._make_shell(self._hello, self._memory)
        if shell.node is None:
            shell.found(secrets.token_bytes(limits.LINEAGE_BYTES))

    def job_known(self) -> bool:
        """Whether the trainer has said what to train."""
        return self._hello is not None

    def join_through(self, sponsor: Standing) -> None:
        """Join the cluster of `sponsor`, who has admitted us."""
        if self._hello is None or self._memory is None or self._transport is None:
            return
        shell = self._shell or self._make_shell(self._hello, self._memory)
        for peer in sponsor.known:
            self._transport.trust(peer.certificate)
        self._transport.trust(sponsor.me.certificate)
        self._sponsor = member_of(sponsor.me)
        if shell.node is None:
            shell.join(self._sponsor)
        else:
            self._observer.say("another cluster of this name is ahead: joining it")
            shell.give_way()

    def other_job(self, error: JobMismatch) -> bool:
        """The cluster that was found trains another job."""
        return self._not_let_in(error)

    def not_let_in(self, error: JoinRefused) -> bool:
        """All peers that were named refuse us: to train alone is not what the user wanted."""
        return self._not_let_in(error)

    def _not_let_in(self, error: EdgeAgentError) -> bool:
        if self._shell is not None and self._shell.node is not None:
            return False
        self._end("error", str(error), error.exit_status)
        return True

    def same_identity(self, standing: Standing, address: str) -> None:
        """A copy of this device's key is in use elsewhere: the newcomer takes a new one."""
        if standing.me.incarnation > self._state_dir.incarnation or self._shell is not None:
            return
        self._observer.say(
            f"{standing.me.name} at {address} holds a copy of this device's key (a cloned disk?): "
            "making a new one"
        )
        self._spawn(self._renew())

    async def _renew(self) -> None:
        """Take a new key and start to listen anew."""
        self._identity = renew_identity(self._state_dir.path)
        await self._stop_listening()
        await self._listen()

    # --- AdmissionPolicy --------------------------------------------------------------------------

    def job(self) -> tuple[tuple[str, str], ...] | None:
        """The job's (field, value) pairs."""
        return self._hello.job if self._hello is not None else None

    def standing(self) -> Standing:
        """What to tell a proven joiner."""
        me = self._transport.me if self._transport is not None else self._lonely_peer()
        node = self._shell.node if self._shell is not None else None
        policy = node.context.policy if node is not None else None
        if node is None or policy is None or not node.context.is_member:
            return Standing(me, "founding", 0, 0, b"", b"", ())
        known = tuple(
            PeerInfo(m.node, m.incarnation, m.name, m.addresses, m.certificate)
            for m in policy.view.members
        )
        context = node.context
        return Standing(
            me,
            "member",
            context.samples,
            len(policy.view.members),
            context.lineage,
            context.election.scheduler,
            known,
        )

    def heard_of(self, addresses: tuple[str, ...]) -> None:
        """An agent that holds the token is at one of `addresses`."""
        if self._search is not None:
            self._search.hint(addresses)

    def admitted(self, candidate: Candidate) -> None:
        """Token and job of `candidate` are proven."""
        if self._transport is not None:
            self._transport.trust(candidate.peer.certificate)

    # --- small things -----------------------------------------------------------------------------

    def _lonely_peer(self) -> PeerInfo:
        return PeerInfo(self._identity.node, self._state_dir.incarnation, self._name, (), b"")

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._task_done)
        return task

    def _internal_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        """Something was raised where nobody could catch it: a bug of ours, said in one line."""
        error = context.get("exception")
        where = (
            traceback.extract_tb(error.__traceback__)[-1]
            if isinstance(error, BaseException) and error.__traceback__
            else None
        )
        place = f" ({os.path.basename(where.filename)}:{where.lineno})" if where else ""
        what = repr(error) if error is not None else str(context.get("message"))
        self._end("error", f"internal error: {what}{place}; please report it", 1)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            status = error.exit_status if isinstance(error, EdgeAgentError) else 1
            known = isinstance(error, EdgeAgentError)
            message = str(error) if known else f"internal error: {error!r}"
            self._end("error", message, status)


class LateListener:
    """The transport's listener before and after there is a shell; nothing comes before, by rule:
    only a member admits others, and only a node dials."""

    def __init__(self) -> None:
        self.shell: Shell | None = None

    def link_up(self, link: Link) -> None:
        """Pass on."""
        if self.shell is not None:
            self.shell.link_up(link)

    def link_down(self, link: Link, reason: str, clean: bool) -> None:
        """Pass on."""
        if self.shell is not None:
            self.shell.link_down(link, reason, clean)

    def control_received(self, link: Link, frame: bytes) -> None:
        """Pass on."""
        if self.shell is not None:
            self.shell.control_received(link, frame)

    def bulk_arriving(self, link: Link, header: BulkHeader) -> memoryview | None:
        """Pass on."""
        return self.shell.bulk_arriving(link, header) if self.shell is not None else None

    def bulk_received(self, link: Link, header: BulkHeader) -> None:
        """Pass on."""
        if self.shell is not None:
            self.shell.bulk_received(link, header)

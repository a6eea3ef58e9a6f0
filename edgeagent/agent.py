"""The agent process: its life from the first line to the exit status.

    claim a slot -> listen -> (trainer says Hello) -> search: join or found -> train -> depart

Law: this file starts, connects and stops the parts; it decides nothing about training. However the
agent ends, the trainer is told, every link is flushed and closed, and one line says why.
"""

from __future__ import annotations

import asyncio
import os
import platform
import secrets
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgeagent import advice, handover
from edgeagent.administration import Administration
from edgeagent.config import PAUSE
from edgeagent.errors import EdgeAgentError, JobMismatch, JoinRefused, UsageError
from edgeagent.events import EventWriter
from edgeagent.late_listener import LateListener
from edgeagent.local.api import LocalApi
from edgeagent.local.state_dir import claim_state_dir
from edgeagent.local.status import status_of
from edgeagent.network import NoNetwork, member_of, standing_of
from edgeagent.observer import Observer
from edgeagent.plugins import load_policy
from edgeagent.runtime import agent_runner
from edgeagent.search import Search, heard_from
from edgeagent.shell import Shell
from edgeagent.terminal.console import console_for
from edgeagent.terminal.text import seconds_text
from edgeagent.trainer_link import TrainerLink, exit_status
from edgeagent.transport.api import Candidate, PeerInfo, Standing
from edgeagent.transport.discovery import Discovery
from edgeagent.transport.identity import load_identity, renew_identity
from edgeagent.transport.tcp import TcpTransport
from edgeagent.transport.token import TOKEN_BYTES, discovery_tag, parse_token
from protocols import limits
from protocols.errors import RemoteProtocolError
from protocols.founding import Heard
from protocols.joining import JoiningState
from protocols.view import Member

if TYPE_CHECKING:
    import socket
    from collections.abc import Coroutine

    from edgeagent.config import AgentConfig
    from edgeagent.launch import Child
    from edgeagent.local.status_model import Phase, Status
    from edgeagent.shared_memory import SharedMemory

SAVE_SECONDS = 600.0  # how long the trainer may take to save at the end
REJOIN_SECONDS = 0.5
STOP_SECONDS = 0.5  # for the last bytes; the links were flushed before


def run_agent(config: AgentConfig, trainer_socket: socket.socket, trainer: Child | None) -> int:
    """Run an agent for the trainer at the other end of `trainer_socket`; return the exit status.

    `trainer` is the process if this agent's starter started it. Raises `EdgeAgentError` for what
    the user can mend.
    """
    with agent_runner() as runner:
        return runner.run(Agent(config, trainer_socket, trainer).run())


@dataclass(frozen=True, slots=True)
class Ending:
    """Why and how an agent ends. `told`: the user knows `message` already."""

    why: str
    message: str
    status: int
    told: bool


class Agent:
    """One agent. Implements `AdmissionPolicy`, the search's `Outcome`, the user's `Host`."""

    def __init__(
        self, config: AgentConfig, trainer_socket: socket.socket, trainer: Child | None
    ) -> None:
        self._config = config
        self.token = None if config.token is None else parse_token(config.token)
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
        self._trainer_status = 0
        self.shell: Shell | None = None
        self._administration = Administration(self)
        self._link = TrainerLink(self._from_trainer, self._trainer_ended)
        self._finished = asyncio.Event()
        self._departure: asyncio.Future[Ending] | None = None
        self._sponsor: Member | None = None
        self._leaving = False
        self._renewing = False
        self._yielded = False  # the trainer is keeping its state before we join the sponsor
        self._orphaned = False
        self._incarnation_used = False  # by a node of ours that others may know
        self._trainer_finished: handover.Finished | None = None
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
        api = LocalApi(self._state_dir.socket_path, self._administration)
        started = loop.time()
        status = 1
        try:
            self._link.expect(self._trainer_socket)
            await api.start()
            await self._listen()
            self._spawn(self._serve_trainer())
            status = await self._depart(await self._departure, started)
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
        if self.token is None:
            self._observer.event("started", node=self._name, address="")
            self._observer.say(
                "no token: training alone on this device (set EDGEAGENT_TOKEN to let others join)"
            )
            return
        self._transport = transport = TcpTransport(
            self._identity,
            self._state_dir.incarnation,
            self.token,
            config.cluster,
            self._name,
            self._listener,
            self,
            self._observer.say,
        )
        addresses = await transport.start(config.listen)
        self._observer.event("started", node=self._name, address=addresses[0])
        self._observer.say(f"{self._name} listens at {addresses[0]}, cluster {config.cluster!r}")
        self._search = Search(
            transport,
            config.peers,
            config.mdns,
            self,
            self._observer.say,
            lambda: advice.nobody_found(config, addresses[0]),
            self._spawn,
        )
        if config.mdns:
            tag = discovery_tag(self.token, config.cluster)
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
            await self._trainer_failed(error)
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
            sparse=bool(self._config.neighbours),
        )
        self.shell = shell = Shell(
            me,
            hello,
            memory,
            self._link.send,
            transport if transport is not None else NoNetwork(),
            self._observer,
            self._config.neighbours,
            self._node_departed,
            self._join_failed,
            self._use_token,
            self._spawn,
            pauses=self._config.on_partition == PAUSE,
            rotate_every=self._config.rotate_every,
            custom=load_policy(self._config.policy) if self._config.policy else None,
        )
        self._listener.shell = shell
        self._administration.watch(shell)
        return shell

    async def _depart(self, ending: Ending, started: float) -> int:
        """Tell the trainer, let it save, say goodbye; return the exit status."""
        loop = asyncio.get_running_loop()
        shell, node = self.shell, self.shell.node if self.shell else None
        iteration = node.context.iteration if node else 0
        if ending.message:
            self._observer.error(ending.message)
        self._link.send(handover.End(ending.why, ending.message, ending.status))
        stopped = asyncio.gather(self._stop_looking(), *([shell.close()] if shell else []))
        failure = await self._trainer_finishes()
        await stopped
        if failure and ending.status == 0:
            ending = Ending("error", failure, 1, told=False)
            self._observer.error(failure)
        seconds = loop.time() - started
        self._observer.event("left", iteration=iteration, seconds=round(seconds, 6))
        if ending.message and not ending.told:
            self._console.fail(ending.message)
        elif ending.why == "steps":
            self._observer.say(f"done: {iteration} steps in {seconds_text(seconds)}")
        elif not ending.message:
            self._observer.say(f"left after step {iteration}")
        return ending.status

    async def _trainer_finishes(self) -> str:
        """Let the trainer save; return what went wrong, "" if nothing did."""
        if self._hello is None or self._orphaned:
            return ""
        try:
            await asyncio.wait_for(self._finished.wait(), SAVE_SECONDS)
        except TimeoutError:
            return f"the trainer did not end within {SAVE_SECONDS:.0f} s; its model may be unsaved"
        if self._trainer_finished is None:
            return "the trainer ended before it said that its model is saved"
        return self._trainer_finished.error

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
        if self._search is not None:
            await self._search.stop()
        if self._discovery is not None:
            await self._discovery.stop()

    async def _stop_listening(self) -> None:
        await self._stop_looking()
        if self._transport is not None:
            await self._transport.stop(STOP_SECONDS)

    def _end(self, why: str, message: str = "", status: int = 0, *, told: bool = False) -> None:
        if not self._departing and self._departure is not None:
            self._departure.set_result(Ending(why, message, status, told))

    @property
    def _departing(self) -> bool:
        return self._departure is None or self._departure.done()

    # --- people -----------------------------------------------------------------------------------

    def _interrupted(self) -> None:
        """Ctrl+C: once leaves gracefully, twice ends at once."""
        if self._leaving:
            self._console.say("ending at once")
            if self._child is not None:
                self._child.kill()
            self._console.close()
            self._events.close()
            os._exit(1)
        node = self.shell.node if self.shell else None
        waits = advice.leaving_waits_for(self._phase(), node)
        self._console.say(f"leaving{waits}; Ctrl+C again ends at once")
        self._leave()

    def _leave(self) -> None:
        self._leaving = True
        if self.shell is None or self.shell.node is None or self._yielded:
            self._end("left")
            return
        self._link.send(handover.LeaveAsked())
        self.shell.leave()

    def status(self) -> Status:
        """What `edgeagent status` shows."""
        cluster = self._config.cluster
        node_id = self._identity.node
        return status_of(self._name, node_id, cluster, self._phase(), self.shell, self._observer)

    async def leave(self) -> None:
        """`edgeagent leave`."""
        if not self._leaving:
            self._console.say("leaving, as `edgeagent leave` asks")
            self._leave()

    def _phase(self) -> Phase:
        node = self.shell.node if self.shell else None
        if self._leaving:
            return "leaving"
        if self._hello is None:
            return "starting"
        if node is None:
            return "founding"
        return "training" if node.context.is_member else "joining"

    # --- the trainer ------------------------------------------------------------------------------

    def _from_trainer(self, message: handover.Message) -> None:
        match message:
            case handover.Finished(error):
                self._trainer_finished = message
                self._finished.set()
                if error and not self._departing:
                    self._leave_for_trainer(error)
            case handover.SavedAside(path, error):
                if self._yielded:
                    self._join_sponsor(path, error)
            case handover.ExitRequested() if not self._leaving:
                self._leave()
            case _ if self.shell is not None:
                self.shell.from_trainer(message)

    def _trainer_ended(self) -> None:
        """The trainer's end of the hand-over is closed."""
        self._finished.set()
        if self._departing:
            return
        said = self._trainer_finished is not None
        message = "" if said else "the trainer ended in mid-training; this device leaves"
        self._leave_for_trainer(message)

    def _leave_for_trainer(self, message: str) -> None:
        """The trainer takes no more work: hand back what it has, and let the others go on."""
        if self._orphaned:
            return
        self._orphaned = True
        if message:
            self._console.fail(message)
            self._observer.error(message)
            self._trainer_status = 1
        self._leaving = True
        if self.shell is not None and self.shell.node is not None and not self._yielded:
            self.shell.orphaned()
        else:
            self._end("left", "", self._trainer_status)

    async def _trainer_failed(self, error: Exception) -> None:
        """The trainer ended, or spoke nonsense, before training began."""
        if isinstance(error, EdgeAgentError):
            self._end("error", str(error), error.exit_status)
            return
        status = await exit_status(self._child) if self._child is not None else None
        told = status == UsageError.exit_status  # it has said itself what is wrong
        message = advice.ended_too_early(self._config.job, status)
        self._end("error", message, UsageError.exit_status if told else 1, told=told)

    # --- the node ---------------------------------------------------------------------------------

    def _node_departed(self, why: str, message: str) -> None:
        node = self.shell.node if self.shell is not None else None
        if why == "expelled":
            self._observer.say("the cluster went on without this device: joining again")
            self._spawn(self._join_again())
        elif why == "yielded" and node is not None and self._sponsor is not None:
            self._yielded = True
            self._link.send(handover.SaveAside(node.context.samples > 0))
        elif why == "error":
            self._end("error", message, 1)
        elif why == "removed":
            self._end("left", message, 1)  # to the trainer it is a leave: it saves
        else:
            self._end(why, "", self._trainer_status)

    def _use_token(self, token: bytes) -> None:
        """All members take over another token, and so do we; links that are up stay."""
        if len(token) != TOKEN_BYTES:
            raise RemoteProtocolError("a token of a length that none has")
        if token == self.token or self._transport is None:
            return
        self.token = token
        self._transport.use_token(token)
        if self._discovery is not None:
            self._discovery.use_tag(discovery_tag(token, self._config.cluster))
        self._observer.say("the cluster has a new token: whoever starts from now on needs it")

    def _join_sponsor(self, path: str, error: str) -> None:
        """The trainer has kept what it trained before: join the cluster that is ahead."""
        self._yielded = False
        node = self.shell.node if self.shell is not None else None
        if self.shell is None or node is None or self._sponsor is None or self._departing:
            return
        if line := advice.trained_before(node.context.iteration, node.context.samples, path, error):
            self._observer.say(line)
        self._spawn(self._begin_anew(self.shell, self._sponsor))

    async def _begin_anew(self, shell: Shell, sponsor: Member) -> None:
        """Join after a membership has ended; nothing of it stays, its links neither."""
        await shell.drop_links()
        if not self._departing:
            self._join(shell, sponsor)

    def _join(self, shell: Shell, sponsor: Member) -> None:
        """Join in an incarnation that nobody knows yet, if this one has been used."""
        if self._incarnation_used and self._transport is not None:
            self._transport.begin_anew(self._state_dir.begin_anew())
        self._incarnation_used = True
        shell.join(sponsor, self._state_dir.incarnation)

    def _join_failed(self, reason: str) -> None:
        if self._leaving:
            self._end("left")
        else:
            self._observer.say(f"the join failed: {reason}; trying again")
            self._spawn(self._join_again())

    async def _join_again(self) -> None:
        if self.shell is not None:
            await self.shell.drop_links()
        await asyncio.sleep(REJOIN_SECONDS)
        if self._search is not None:
            self._search.refused()

    # --- Outcome (of the search) ------------------------------------------------------------------

    def own(self) -> Heard:
        """What this agent would answer if it were asked; a member that waits for the rest of its
        cluster counts as a cluster of one, which gives way to any that is ahead."""
        node = self.shell.node if self.shell is not None else None
        if node is not None and (node.context.is_isolated or node.recovery.is_cut_off):
            return Heard(node.context.node, True, node.context.samples, 1)
        return heard_from(self.standing())

    def found_cluster(self) -> None:
        """Found a cluster."""
        if self._hello is None or self._memory is None:
            return
        shell = self.shell or self._make_shell(self._hello, self._memory)
        if shell.node is None and not shell.spoilt:
            self._incarnation_used = True
            shell.found(secrets.token_bytes(limits.LINEAGE_BYTES))

    def entered(self) -> bool:
        """Whether the join that was begun last has made this agent a member."""
        joining = self.shell.node.joining if self.shell and self.shell.node else None
        return joining is not None and joining.state is JoiningState.ENTERED

    def spoilt(self) -> bool:
        """Whether a join broke off that had begun to overwrite the training state."""
        return self.shell is not None and self.shell.spoilt

    def given_up(self) -> None:
        """The state is spoilt, and nobody is there to join."""
        message = "the join broke off in the middle of the pull, and nobody is there to join now"
        self._end("error", f"{message}: start again", 1)

    def job_known(self) -> bool:
        """Whether the trainer has said what to train."""
        return self._hello is not None

    def join_through(self, sponsor: Standing) -> None:
        """Join the cluster of `sponsor`, who has admitted us."""
        if self._hello is None or self._memory is None or self._transport is None:
            return
        shell = self.shell or self._make_shell(self._hello, self._memory)
        for peer in sponsor.known:
            self._transport.trust(peer.certificate)
        self._transport.trust(sponsor.me.certificate)
        self._sponsor = member_of(sponsor.me)
        if shell.node is None:
            self._link.send(handover.SaveAside(False))  # half a state is not to be saved
            self._join(shell, self._sponsor)
        else:
            self._observer.say("another cluster of this name is ahead: joining it")
            shell.give_way()

    def other_job(self, error: JobMismatch) -> bool:
        """The cluster that was found trains another job."""
        return self._not_let_in(error)

    def not_let_in(self, error: JoinRefused) -> bool:
        """To train alone is not what the user wanted."""
        return self._not_let_in(error)

    def _not_let_in(self, error: EdgeAgentError) -> bool:
        if self.shell is not None and self.shell.node is not None:
            return False
        self._end("error", str(error), error.exit_status)
        return True

    def same_identity(self, standing: Standing, address: str) -> None:
        """A copy of this device's key is in use elsewhere: the newcomer takes a new one."""
        if standing.me.incarnation > self._state_dir.incarnation or self.shell is not None:
            return
        if self._renewing:
            return
        self._renewing = True
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
        self._renewing = False

    # --- AdmissionPolicy --------------------------------------------------------------------------

    def job(self) -> tuple[tuple[str, str], ...] | None:
        """The job's (field, value) pairs."""
        return self._hello.job if self._hello is not None else None

    def standing(self) -> Standing:
        """What to tell a proven joiner."""
        me = self._transport.me if self._transport is not None else self._lonely_peer()
        elder = self._search.elder if self._search is not None else me.node
        return standing_of(me, self.shell.node if self.shell is not None else None, elder)

    def heard_of(self, addresses: tuple[str, ...]) -> None:
        """An agent that holds the token is at one of `addresses`."""
        if self._search is not None:
            self._search.hint(addresses)

    def bars(self, node: bytes) -> bool:
        """Whether a user has expelled `node`."""
        known = self.shell.node.context.policy if self.shell and self.shell.node else None
        return known is not None and node in known.view.expelled

    def admitted(self, candidate: Candidate) -> None:
        """Token and job of `candidate` are proven."""
        if self._transport is not None:
            node = self._transport.trust(candidate.peer.certificate)
            if self.shell is not None:
                self.shell.keep_trust(node)

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
        self._end("error", advice.internal_error(context), 1)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            status = error.exit_status if isinstance(error, EdgeAgentError) else 1
            known = isinstance(error, EdgeAgentError)
            message = str(error) if known else f"internal error: {error!r}"
            self._end("error", message, status)

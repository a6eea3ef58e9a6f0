"""Delays packets and loses some of them: stands in for netem if the kernel has none.

The kernel queues a receiver's packets (NFQUEUE, a queue for each sender). This process is told of
each packet, keeps their numbers in the order of the moments at which they are due, and then tells
the kernel to let them pass or to drop them. Commands come as lines on standard input:

    bind NAMESPACE QUEUE                          from now on this queue is emptied here
    set NAMESPACE QUEUE DELAY_S JITTER_S LOSS     for packets that arrive from now on
    done                                          answered by "ok" when all before it is in force

Packets of a queue never overtake one another. The process ends when standard input does, so it does
not outlive the process that started it. It uses only the standard library and is run as a script.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import heapq
import os
import random
import select
import signal
import socket
import struct
import sys
import time
from dataclasses import dataclass

NETNS_FOLDER = "/run/netns"
REAL_TIME_PRIORITY = 50
RECEIVE_BUFFER = 32 << 20
MAX_HELD = 100_000  # packets in one queue; further ones are lost
MAX_READ = 64  # messages of one namespace before the others have their turn
MAX_VERDICTS = 512  # in one message to the kernel
EARLY_S = 2e-5  # packets are released so much early, as telling the kernel takes this long

# From linux/netlink.h, linux/netfilter/nfnetlink*.h
NETLINK_NETFILTER = 12
SO_RCVBUFFORCE = 33
SOL_NETLINK = 270
NETLINK_NO_ENOBUFS = 5
NLM_F_REQUEST, NLM_F_ACK = 1, 4
NLMSG_ERROR = 2
QUEUE_PACKET, QUEUE_VERDICT, QUEUE_CONFIG = 0x300, 0x301, 0x302
CFG_COMMAND, CFG_PARAMETERS, CFG_MAX_LENGTH, CFG_MASK, CFG_FLAGS = 1, 2, 3, 4, 5
COMMAND_BIND = 1
COPY_META = 1
FLAG_GSO = 4
VERDICT_ATTRIBUTE = 2
DROP, ACCEPT = 0, 1
CLONE_NEWNET = 0x40000000
PR_SET_TIMERSLACK = 29

_VERDICT = struct.Struct("=IHHIIBBHHHII")
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(slots=True)
class Queue:
    """One sender's packets at one receiver."""

    delay_s: float = 0.0
    jitter_s: float = 0.0
    loss: float = 0.0
    last_due: float = 0.0


def _attribute(kind: int, data: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(data), kind) + data + b"\0" * (-len(data) % 4)


def _config(queue: int, body: bytes) -> bytes:
    body = struct.pack(">BBH", 0, 0, queue) + body
    flags = NLM_F_REQUEST | NLM_F_ACK
    return struct.pack("=IHHII", 16 + len(body), QUEUE_CONFIG, flags, 0, 0) + body


def _verdict(queue: int, packet: int, verdict: int) -> bytes:
    return _VERDICT.pack(
        32,
        QUEUE_VERDICT,
        NLM_F_REQUEST,
        0,
        0,
        0,
        0,
        socket.htons(queue),
        12,
        VERDICT_ATTRIBUTE,
        socket.htonl(verdict),
        socket.htonl(packet),
    )


def open_in(namespace: str) -> socket.socket:
    """Return a netlink socket in a namespace."""
    back = os.open("/proc/self/ns/net", os.O_RDONLY)
    target = os.open(f"{NETNS_FOLDER}/{namespace}", os.O_RDONLY)
    try:
        if _libc.setns(target, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
        opened = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER)
    finally:
        _libc.setns(back, CLONE_NEWNET)
        os.close(back)
        os.close(target)
    opened.bind((0, 0))
    opened.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BUFFER)
    opened.setsockopt(SOL_NETLINK, NETLINK_NO_ENOBUFS, 1)
    return opened


class Daemon:
    """All queues of all namespaces of one network."""

    def __init__(self, seed: int) -> None:
        """`seed`: that of the random draws of jitter and loss."""
        self.random = random.Random(seed).random
        self.poll = select.epoll()
        self.sockets: dict[str, socket.socket] = {}
        self.queues: dict[int, dict[int, Queue]] = {}  # by the socket's descriptor, then number
        self.held: list[tuple[float, int, int, int, int]] = []  # due, order, descriptor, queue, id
        self.verdicts: dict[int, list[bytes]] = {}
        self.by_descriptor: dict[int, socket.socket] = {}
        self.order = 0
        self.input = b""
        self.ended = False

    # --- commands -----------------------------------------------------------------------------

    def bind(self, namespace: str, number: int) -> None:
        """Empty this queue from now on."""
        if namespace not in self.sockets:
            opened = open_in(namespace)
            self.sockets[namespace] = opened
            self.by_descriptor[opened.fileno()] = opened
            self.queues[opened.fileno()] = {}
            self.poll.register(opened.fileno(), select.EPOLLIN)
        channel = self.sockets[namespace]
        channel.setblocking(True)
        flag = struct.pack(">I", FLAG_GSO)
        command = struct.pack(">BBH", COMMAND_BIND, 0, 0)
        for body in (
            _attribute(CFG_COMMAND, command),
            _attribute(CFG_PARAMETERS, struct.pack(">IB", 0, COPY_META))
            + _attribute(CFG_MAX_LENGTH, struct.pack(">I", MAX_HELD))
            + _attribute(CFG_FLAGS, flag)
            + _attribute(CFG_MASK, flag),
        ):
            channel.send(_config(number, body))
            self._acknowledged(channel, number)
        channel.setblocking(False)
        self.queues[channel.fileno()][number] = Queue()

    def _acknowledged(self, channel: socket.socket, number: int) -> None:
        while True:
            answer = channel.recv(65536)
            if struct.unpack_from("=H", answer, 4)[0] == NLMSG_ERROR:
                code = struct.unpack_from("=i", answer, 16)[0]
                if code:
                    raise OSError(-code, f"queue {number}: {os.strerror(-code)}")
                return
            self._packet(channel.fileno(), answer, time.monotonic())

    def set(
        self, namespace: str, number: int, delay_s: float, jitter_s: float, loss: float
    ) -> None:
        """Change what happens to packets that arrive from now on; seconds."""
        queue = self.queues[self.sockets[namespace].fileno()][number]
        queue.delay_s, queue.jitter_s, queue.loss = delay_s, jitter_s, loss

    def commands(self) -> None:
        """Obey the commands that have come on standard input."""
        data = os.read(0, 1 << 20)
        self.ended = not data
        *lines, self.input = (self.input + data).split(b"\n")
        for line in lines:
            word, *rest = line.decode().split()
            if word == "bind":
                self.bind(rest[0], int(rest[1]))
            elif word == "set":
                self.set(rest[0], int(rest[1]), *(float(value) for value in rest[2:5]))
            elif word == "done":
                os.write(1, b"ok\n")
            else:
                raise ValueError(f"unknown command {word!r}")

    # --- packets ------------------------------------------------------------------------------

    def _packet(self, descriptor: int, message: bytes, now: float) -> None:
        """Note one packet. Its header is always the first attribute of the message."""
        if struct.unpack_from("=H", message, 4)[0] != QUEUE_PACKET:
            return
        number = struct.unpack_from(">H", message, 18)[0]
        packet = struct.unpack_from(">I", message, 24)[0]
        queue = self.queues[descriptor].get(number)
        if queue is None:
            return
        if queue.loss and self.random() < queue.loss:
            self.verdicts.setdefault(descriptor, []).append(_verdict(number, packet, DROP))
            return
        due = now + queue.delay_s
        if queue.jitter_s:
            due += (2 * self.random() - 1) * queue.jitter_s
        queue.last_due = due = max(due, queue.last_due)
        self.order += 1
        heapq.heappush(self.held, (due, self.order, descriptor, number, packet))

    def read(self, descriptor: int) -> None:
        """Read what has arrived in one namespace."""
        receive = self.by_descriptor[descriptor].recv
        for _ in range(MAX_READ):
            try:
                message = receive(65536)
            except BlockingIOError:
                return
            self._packet(descriptor, message, time.monotonic())

    def release(self) -> None:
        """Tell the kernel which packets are due and pass, and which are lost."""
        held, verdicts = self.held, self.verdicts
        now = time.monotonic() + EARLY_S
        while held and held[0][0] <= now:
            _, _, descriptor, number, packet = heapq.heappop(held)
            verdicts.setdefault(descriptor, []).append(_verdict(number, packet, ACCEPT))
        for descriptor, messages in verdicts.items():
            send = self.by_descriptor[descriptor].send
            for k in range(0, len(messages), MAX_VERDICTS):
                send(b"".join(messages[k : k + MAX_VERDICTS]))
        verdicts.clear()

    def run(self) -> None:
        """Work until standard input ends."""
        self.poll.register(0, select.EPOLLIN)
        while not self.ended:
            # epoll itself waits whole milliseconds only.
            wait = max(0.0, self.held[0][0] - time.monotonic()) if self.held else None
            if select.select([self.poll], [], [], wait)[0]:
                for descriptor, _ in self.poll.poll(0):
                    if descriptor == 0:
                        self.commands()
                    else:
                        self.read(descriptor)
            self.release()


def main() -> int:
    """Run in real time, without pauses for garbage; return the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(REAL_TIME_PRIORITY))
    _libc.prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
    gc.disable()
    try:
        Daemon(int(sys.argv[1])).run()
    except OSError as error:
        if error.errno == errno.EPIPE:
            return 0
        print(f"delay daemon: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

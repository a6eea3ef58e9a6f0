"""Ctrl+C in a plain script, where nobody reads what is said any more."""

from __future__ import annotations

import os
import signal

import pytest

from edgeagent.trainer.interrupts import Interrupts


def test_a_leave_is_woken_though_nobody_reads_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write

    def broken(descriptor: int, data: bytes) -> int:
        if descriptor == 2:
            raise BrokenPipeError
        return real(descriptor, data)

    ours = Interrupts(plain=True)
    monkeypatch.setattr(os, "write", broken)
    signal.raise_signal(signal.SIGINT)
    assert ours.asked
    assert os.read(ours.wake, 64) == b"!"
    ours.restore()


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("before", [signal.SIG_DFL, signal.SIG_IGN, signal.default_int_handler])
def test_the_former_handler_comes_back(plain: bool, before: signal.Handlers) -> None:
    usual = signal.signal(signal.SIGINT, before)
    try:
        ours = Interrupts(plain)
        assert signal.getsignal(signal.SIGINT) != before or not plain
        ours.restore()
        assert signal.getsignal(signal.SIGINT) == before
    finally:
        signal.signal(signal.SIGINT, usual)

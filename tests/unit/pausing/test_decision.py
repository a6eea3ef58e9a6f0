"""When a device pauses: what is unknown is no reason, and what comes and goes changes nothing."""

from __future__ import annotations

import pytest

from edgeagent.pausing.decision import (
    BEGIN_SECONDS,
    END_SECONDS,
    HOLD_SECONDS,
    Facts,
    Keeping,
    Part,
    Pausing,
    Reason,
    Wishes,
)

ALL = Wishes(battery=True, activity_s=60, metered=True)
MAINS, BATTERY = Facts(on_battery=False), Facts(on_battery=True)
STEP_S = 0.5


def reasons_of(pausing: Pausing) -> tuple[Reason, ...]:
    """Return why it pauses at this moment."""
    return pausing.reasons


def after(pausing: Pausing, at: float, seconds: float, facts: Facts) -> float:
    """Show `facts` for so many seconds from `at` on; return the time then."""
    end = at + seconds
    while at < end:
        pausing.see(at, facts)
        at += STEP_S
    pausing.see(end, facts)
    return end


def test_battery_begins_and_ends_a_pause_only_if_it_lasts() -> None:
    pausing = Pausing(Wishes(battery=True))
    at = after(pausing, 0.0, 60.0, MAINS)
    assert reasons_of(pausing) == ()
    at = after(pausing, at, BEGIN_SECONDS - STEP_S, BATTERY)
    assert reasons_of(pausing) == ()
    at = after(pausing, at, STEP_S, BATTERY)
    assert reasons_of(pausing) == (Reason.BATTERY,)
    at = after(pausing, at + STEP_S, END_SECONDS - STEP_S, MAINS)
    assert reasons_of(pausing) == (Reason.BATTERY,)
    at = after(pausing, at, STEP_S, MAINS)
    assert reasons_of(pausing) == ()


def test_a_plug_that_is_loose_changes_nothing() -> None:
    for first, second in ((MAINS, BATTERY), (BATTERY, MAINS)):
        pausing = Pausing(Wishes(battery=True))
        at = after(pausing, 0.0, END_SECONDS, first)
        before = reasons_of(pausing)
        for _ in range(20):
            at = after(pausing, at + STEP_S, BEGIN_SECONDS - 2 * STEP_S, second)
            assert reasons_of(pausing) == before
            at = after(pausing, at + STEP_S, STEP_S, first)
            assert reasons_of(pausing) == before


def test_use_pauses_at_once_and_for_as_long_as_was_asked() -> None:
    pausing = Pausing(Wishes(activity_s=60))
    pausing.see(0.0, Facts(idle_s=3600.0))
    assert reasons_of(pausing) == ()
    pausing.see(1.0, Facts(idle_s=0.0))
    assert reasons_of(pausing) == (Reason.ACTIVITY,)
    pausing.see(60.9, Facts(idle_s=59.9))
    assert reasons_of(pausing) == (Reason.ACTIVITY,)
    pausing.see(61.0, Facts(idle_s=60.0))
    assert reasons_of(pausing) == ()


def test_what_is_not_known_is_no_reason_and_is_told() -> None:
    pausing = Pausing(ALL)
    after(pausing, 0.0, 60.0, Facts())
    assert reasons_of(pausing) == ()
    assert (*pausing.unknown,) == (Reason.BATTERY, Reason.ACTIVITY, Reason.METERED)
    after(pausing, 60.0, 60.0, Facts(False, 1e9, False))
    assert (*pausing.unknown,) == ()


def test_a_fact_that_is_lost_ends_the_pause() -> None:
    pausing = Pausing(ALL)
    at = after(pausing, 0.0, 60.0, Facts(True, 0.0, True))
    assert reasons_of(pausing) == tuple(Reason)
    after(pausing, at, END_SECONDS, Facts())
    assert reasons_of(pausing) == ()


@pytest.mark.parametrize(
    ("wishes", "reasons"),
    [
        (Wishes(), ()),
        (Wishes(battery=True), (Reason.BATTERY,)),
        (Wishes(activity_s=5), (Reason.ACTIVITY,)),
        (Wishes(metered=True), (Reason.METERED,)),
        (ALL, tuple(Reason)),
    ],
)
def test_only_what_was_asked_for_counts(wishes: Wishes, reasons: tuple[Reason, ...]) -> None:
    pausing = Pausing(wishes)
    after(pausing, 0.0, 60.0, Facts(True, 0.0, True))
    assert reasons_of(pausing) == reasons
    assert wishes.any is bool(reasons)
    for reason in reasons:
        assert wishes.text(reason)


PAUSES = (Reason.BATTERY,)


@pytest.mark.parametrize(
    ("reasons", "part", "keeps"),
    [
        ((), Part(), False),
        (PAUSES, Part(), True),
        (PAUSES, Part(departs=True), False),
        (PAUSES, Part(newcomers=True), False),
        ((Reason.METERED,), Part(newcomers=True), True),
        ((Reason.METERED,), Part(departs=True), False),
    ],
)
def test_work_is_kept_unless_somebody_waits_for_it(
    reasons: tuple[Reason, ...], part: Part, keeps: bool
) -> None:
    assert Keeping().keeps(reasons, part) is keeps


def test_what_is_kept_is_let_out_when_the_others_have_waited_for_long() -> None:
    keeping, among_others = Keeping(), Part(others=True)
    assert not keeping.lets_out(100.0, among_others, is_kept=False)
    assert not keeping.lets_out(100.0 + HOLD_SECONDS - 1, among_others, is_kept=True)
    assert not keeping.lets_out(100.0 + HOLD_SECONDS, Part(), is_kept=True)
    assert keeping.lets_out(100.0 + HOLD_SECONDS, among_others, is_kept=True)
    assert not keeping.lets_out(101.0 + HOLD_SECONDS, among_others, is_kept=True)

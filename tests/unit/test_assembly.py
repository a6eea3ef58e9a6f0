"""Until when a founder keeps its work: enough devices are there, or a step was done."""

from __future__ import annotations

from edgeagent.assembly import TELL_AGAIN_SECONDS, Assembly, Present

ALONE = Present()


def founded(wanted: int = 3) -> Assembly:
    """Return the assembly of a device that has just founded a cluster."""
    assembly = Assembly(wanted)
    assembly.founded()
    return assembly


def stands(assembly: Assembly) -> tuple[str, bool]:
    """Return the stage, and whether work is kept."""
    return assembly.stage.value, assembly.keeps_work


def test_who_waits_for_nobody_keeps_nothing() -> None:
    assembly = founded(1)
    assert stands(assembly) == ("over", False)
    assert not assembly.look(0.0, ALONE)


def test_work_is_kept_until_enough_are_there() -> None:
    assembly = founded()
    assert assembly.look(0.0, ALONE)
    assert (assembly.here, *stands(assembly)) == (1, "waiting", True)
    assert assembly.look(5.0, Present(linked=1))
    assert (assembly.here, *stands(assembly)) == (2, "waiting", True)
    assert assembly.look(9.0, Present(linked=2))
    assert (assembly.here, *stands(assembly)) == (3, "entering", False)
    assembly.stepped()
    assert not assembly.look(9.1, Present(members=2, linked=1, copying=True))
    assert stands(assembly) == ("over", False)


def test_once_work_was_given_a_device_that_is_lost_stops_nothing() -> None:
    assembly = founded()
    assembly.look(0.0, Present(linked=2))
    assert not assembly.look(1.0, Present(linked=1))
    assert stands(assembly) == ("entering", False)
    assert not assembly.look(2.0, ALONE)
    assert stands(assembly) == ("over", False)
    assembly.gone()
    assembly.founded()
    assert stands(assembly) == ("over", False), "nor when it founds again, as after a partition"


def test_before_work_was_given_a_device_that_is_lost_is_waited_for_again() -> None:
    assembly = founded()
    assembly.look(0.0, Present(linked=2, copying=True))
    assert stands(assembly) == ("entering", True)
    assembly.look(1.0, Present(linked=1))
    assert stands(assembly) == ("waiting", True)


def test_steps_wait_for_those_that_copy_until_the_first_newcomer_is_a_member() -> None:
    assembly = founded()
    assembly.look(0.0, Present(linked=2))
    assembly.stepped()
    assembly.look(1.0, Present(linked=2, copying=True))
    assert stands(assembly) == ("entering", True)
    assembly.look(2.0, Present(linked=2))
    assert stands(assembly) == ("entering", False)
    assembly.look(3.0, Present(linked=2, copying=True))
    assert stands(assembly) == ("entering", True)
    assembly.look(4.0, Present(members=2, linked=1, copying=True))
    assert stands(assembly) == ("over", False)


def test_a_joiner_keeps_nothing_and_waits_if_it_founds_before_any_step() -> None:
    assembly = Assembly(3)
    assert stands(assembly) == ("outside", False)
    assembly.gone()
    assembly.founded()
    assert stands(assembly) == ("waiting", True)
    assert assembly.look(0.0, ALONE), "how many are here is told in each cluster"


def test_a_joiner_that_has_trained_waits_for_nobody_any_more() -> None:
    assembly = Assembly(3)
    assembly.stepped()
    assembly.gone()
    assembly.founded()
    assert stands(assembly) == ("over", False)


def test_a_founder_that_gives_way_before_any_step_waits_when_it_founds_again() -> None:
    assembly = founded()
    assembly.look(0.0, Present(linked=1))
    assembly.gone()
    assert stands(assembly) == ("outside", False)
    assembly.founded()
    assert assembly.look(1.0, ALONE)
    assert (assembly.here, *stands(assembly)) == (1, "waiting", True)


def test_links_that_break_again_and_again_fill_no_terminal() -> None:
    assembly, told = founded(), 0
    for tick in range(600):  # a minute
        told += assembly.look(0.1 * tick, Present(linked=tick % 2))
    assert told <= 2 + 60 / TELL_AGAIN_SECONDS
    assert assembly.look(61.0, Present(linked=2)), "that enough are there is told at once"

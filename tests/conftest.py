"""Settings for the whole test run.

The exit status is pytest's own. A `Trainer` that a test has left open would otherwise end the
interpreter with the status of its script, as it must in a script.

Tests marked `long` show a variant of what another test shows, or what only a release needs. They
run only with `--long`.
"""

from __future__ import annotations

import gc
import os
import signal
from pathlib import Path

import pytest

from tests import covering
from tests.scenarios import forking

REAL = (
    "scenarios",
    "testbed",
)  # tests with processes, sockets and clocks of a machine that is busy


def pytest_addoption(parser: pytest.Parser) -> None:
    """Name the options; `scripts/test` and CONTRIBUTING.md say what they are for."""
    parser.addoption("--long", action="store_true", help="run the tests marked `long`, too")
    parser.addoption("--rewrite", action="store_true", help="write tests/golden/*.txt anew")
    parser.addoption("--covering", choices=covering.WAYS, help="tests of covering.txt, or others")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out long tests that were not asked for; let those of real processes try again.

    A scenario that fails and passes right afterwards is reported as run again: on a machine that
    others use, too, one in a few thousand meets a pause that no limit foresaw.
    """
    for item in items:
        place = Path(item.path).relative_to(Path(__file__).parent).as_posix()
        if place.startswith(REAL):
            item.add_marker(pytest.mark.flaky(reruns=2))
    if way := config.getoption("--covering"):
        items[:], others = covering.select(way, items)
        config.hook.pytest_deselected(items=others)
    if config.getoption("--long") or way == "only":
        return
    long = [item for item in items if item.get_closest_marker("long")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if not item.get_closest_marker("long")]


@pytest.fixture(scope="module", autouse=True)
def _what_is_there_stays() -> None:
    """Exclude all objects that exist so far from garbage collection: tests that look for leaks
    collect again and again, and would search everything that earlier modules have imported."""
    gc.collect()
    gc.freeze()


def pytest_configure(config: pytest.Config) -> None:
    """Let agents of scenarios be forks of one process, unless everything is to be tested.

    Let processes that tests start be interrupted, also if the tests run under `nohup` or in the
    background, where SIGINT is ignored.
    """
    forking.USE.allowed = not config.getoption("--long")
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, usual)


def pytest_unconfigure() -> None:
    """Keep exit handlers from replacing the exit status from here on."""
    pytest.MonkeyPatch().setattr(os, "_exit", lambda status: None)

"""What the trouble of one device or one link costs the others: trainers that hang, commands in the
middle of that, scripts that differ, links that break for a moment.

Real agents train with a small script, and each case gets one of them into trouble. The figures come
from the agents' event files. *Stood* is the longest time between two steps of the others, *steps
set aside* are those that are in no history any more, and *files* are those in the folder when all
agents have ended.

Every case is played to its end, whatever happens: a cluster that stops for good is a figure
("> N s"), and no failure of the benchmark.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.testbed.bench.ground import Busy, say, why
from tests.testbed.bench.trouble_cases import CASES
from tests.testbed.bench.trouble_stage import Outcome, check_tree, play
from tests.testbed.namespaces import TestbedError

HELP = "trouble: how long the others stand, and what is lost, when one device or link is in trouble"
ROOT = Path(__file__).resolve().parents[3]
HEADING = ("stood", "steps set aside", "digests", "back", "exit status", "files")
METHOD = {
    "stood": "longest time between two steps at the others, seconds; stood_on: it had not ended",
    "usual": "median of 20 steps before, seconds",
    "back": "from the end of the trouble until its victim trained with all again, seconds",
    "set_aside": "steps, over all agents, that are in no history any more",
    "digests": "points of a history at which several have a digest; equal: all of them equal",
    "files": "what lies in the folder after all have ended",
    "problems": "what is wrong with the histories of all agents together",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command line."""
    names = ", ".join(CASES)
    parser.add_argument(
        "--case",
        action="append",
        choices=CASES,
        metavar="NAME",
        help=f"play this one, repeatable (all: {names})",
    )
    parser.add_argument(
        "--tree", type=Path, default=ROOT, metavar="PATH", help="checkout whose agents run (this)"
    )
    parser.add_argument(
        "--before",
        type=Path,
        metavar="JSON",
        help="a result of another checkout, to stand beside this one in the table",
    )


def stood(outcome: Mapping[str, Any]) -> str:
    """Return for how long the others stood still, as text."""
    return f"{'> ' if outcome['stood_on'] else ''}{outcome['stood']:.2f} s"


def cells(outcome: Mapping[str, Any]) -> list[str]:
    """Return an outcome as cells of the table, in the order of `HEADING`."""
    back = "" if outcome["back"] is None else f"{outcome['back']:.2f} s"
    statuses = ", ".join(f"{name} {status}" for name, status in outcome["statuses"].items())
    files = ", ".join(name.removesuffix(".safetensors") for name in outcome["files"])
    digests = f"{outcome['equal']} of {outcome['digests']} equal"
    return [stood(outcome), str(outcome["set_aside"]), digests, back, statuses, files or "none"]


def table(rows: Sequence[Mapping[str, Any]], before: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the outcomes as Markdown, each below that of an earlier run, if there is one."""
    lines = [f"| case | | {' | '.join(HEADING)} |", "|---|---" + "|---" * len(HEADING) + "|"]
    remarks = []
    for row in rows:
        title = CASES[row["case"]].title
        found = [("before", before[row["case"]])] if row["case"] in before else []
        found.append(("after" if before else "", row))
        for when, outcome in found:
            lines.append(f"| {title} | {when} | {' | '.join(cells(outcome))} |")
            told = [*outcome["notes"], *(f"WRONG: {text}" for text in outcome["problems"][:3])]
            if told:
                remarks.append(f"- {title}{', ' if when else ''}{when}: {'; '.join(told)}")
            title = ""
    return "\n".join([*lines, "", *remarks]).rstrip()


def measure(args: argparse.Namespace, found: list[Outcome], failures: dict[str, str]) -> None:
    """Add what each case cost to `found`, and to `failures` why one could not be played."""
    for name in dict.fromkeys(args.case or CASES):
        with tempfile.TemporaryDirectory(prefix="edgeagent-trouble-") as folder:
            try:
                found.append(play(CASES[name], args.tree.resolve(), Path(folder)))
            except (AssertionError, TestbedError) as error:
                failures[name] = why(error)
                say(f"{name}: failed: {error}")
                continue
        say(f"{name}: the others stood {stood(asdict(found[-1]))}")


def load(path: Path | None) -> dict[str, dict[str, Any]]:
    """Return the outcomes of another run by case."""
    if path is None:
        return {}
    rows: list[dict[str, Any]] = json.loads(path.read_text())["outcomes"]
    return {row["case"]: row for row in rows}


def run(args: argparse.Namespace) -> int:
    """Play the cases, write, print; return 0 if all could be played. What was played before Ctrl+C
    is written, too."""
    check_tree(args.tree.resolve())
    try:
        before = load(args.before)
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.exit(f"bench: {args.before} is no result of this benchmark: {why(error)}")
    found: list[Outcome] = []
    failures: dict[str, str] = {}
    busy = Busy.now()
    try:
        measure(args, found, failures)
    finally:
        rows = [asdict(outcome) for outcome in found]
        text = table(rows, before) + "".join(f"\n\n{k}: failed: {v}" for k, v in failures.items())
        about = {
            "tree": str(args.tree.resolve()),
            "method": METHOD,
            "processors_worked": round(Busy.now().since(busy), 3),
            "outcomes": rows,
            "failures": failures,
        }
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "trouble.json").write_text(json.dumps(about, indent=1) + "\n")
        (args.out / "trouble.md").write_text(text + "\n")
        print(text)
    return 1 if failures else 0

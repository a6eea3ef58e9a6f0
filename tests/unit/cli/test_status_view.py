"""A status as people read it: its text, its width, and names that try to control the terminal."""

from __future__ import annotations

import io
import random
from typing import TYPE_CHECKING

import pytest
from rich.cells import cell_len

from edgeagent.local.status import phase_of
from edgeagent.terminal.status_view import MAX_ROWS, print_status, rich_console
from edgeagent.terminal.tree_view import DEEPEST, tree_rows
from protocols.cluster import standby
from protocols.cluster.life import Life
from tests.unit.cli.samples import advice, link, member, pair, sample_status, waiting
from tests.unit.cli.test_console import Terminal, without_escapes

if TYPE_CHECKING:
    from edgeagent.local.status_model import PullStatus

STATUS_LINES = """\
alice in cluster default: training, 3 members
step 120 of 400, loss 0.3412, 5120 samples/s
scheduler bob (term 3), view 5, policy 7

member  share  ms each  compute ms  sync ms  busy  role
alice       6     7.01        42.1     7.92   84%  here
bob         5     6.50        32.5     12.0   73%  scheduler
carol       5        -           -        -     -
waiting 9.6 ms of each 50 ms step for alice: it computes longest

link from  to     delay ms  Mbit/s there  Mbit/s back  in tree
alice      bob        0.42          47.1         93.3  yes
bob        carol         -             -            -  yes
carol      alice      1.50          20.0         19.5

tree      Mbit/s up  Mbit/s down  delay ms
bob
|- alice       47.1         93.3      0.42
`- carol          -            -         -

why policy 7 is as it is
- fastest aggregation paths, rooted at bob, of depth 1
- left out as slower than all in use: alice-carol (20 Mbit/s)
- 16 micro-batches over 3 devices by speed: 0.0421 s, 6% of it lost to
  granularity
"""
JOINING: PullStatus = {
    "sources": [
        {"node": "bob", "bytes": 8_000_000, "seconds": 0.4, "mbit_s": 200.0},
        {"node": "carol", "bytes": 4_000_000, "seconds": 0.3, "mbit_s": None},
    ],
    "bytes": 12_000_000,
    "total_bytes": 50_000_000,
    "seconds": 0.5,
    "seconds_left": 1.583,
}


def shown(**changes: object) -> list[str]:
    """Return the lines of a status; check that none is too long or has control characters."""
    out = io.StringIO()
    print_status(sample_status(**changes), out)
    text = out.getvalue()
    lines = text.splitlines()
    assert max(map(cell_len, lines)) <= 80
    assert all(c.isprintable() or c == "\n" for c in text)
    assert not any(line.endswith(" ") for line in lines)
    return lines


def test_plain_status() -> None:
    assert shown() == STATUS_LINES.splitlines()


def test_before_there_is_a_cluster() -> None:
    lines = shown(
        phase="starting",
        scheduler="",
        loss=None,
        iteration=0,
        steps=0,
        samples_per_second=0.0,
        members=[],
        links=[],
        mesh=[],
        tree={"root": "", "parents": {}},
        reason="",
        waiting=None,
    )
    assert lines == [
        "alice in cluster default: starting, 0 members",
        "step 0, loss -, - samples/s",
        "scheduler - (term 3), view 5, policy 7",
    ]


def test_who_stands_by_says_why() -> None:
    why = standby.reason(36.4, 0.52, 250_000.0)
    lines = shown(phase="standby", standby=why, members=[], links=[], mesh=[], waiting=None)
    assert lines[0] == "alice in cluster default: standby, 0 members"
    assert why in " ".join(lines[4:6])


def test_who_waits_for_others_or_is_let_in_says_so() -> None:
    wait = {"wanted": 3, "here": 1}
    assert "waiting for 2 more devices (1 of 3) before training begins" in shown(assembling=wait)
    told = "let in: copies the state when the running step of the others is done"
    assert told in shown(let_in=True)
    assert told not in shown()


def test_the_local_step_of_a_round_is_shown() -> None:
    lines = shown(local_steps=200, local_step={"done": 80, "of": 200})
    assert any("of 200 local steps, step 80 of 200 of the next one here" in line for line in lines)


def test_what_is_not_measured_is_a_dash() -> None:
    members = [member("alice", 8, me=True), member("bob", 8, scheduler=True)]
    mesh = [pair("alice", "bob", in_tree=True)]
    lines = shown(
        members=members,
        mesh=mesh,
        links=[],
        waiting=None,
        tree={"root": "a", "parents": {"b": "a"}},
    )
    assert lines[5].split() == ["alice", "8", "-", "-", "-", "-", "here"]
    assert lines[7] == "whether anybody holds the others up is not measured yet"
    assert lines[10].split() == ["alice", "bob", "-", "-", "-", "yes"]
    assert "`- b          -            -         -" in lines


def test_of_several_ways_each_link_shows_its_part() -> None:
    mesh = [
        pair("alice", "bob", in_tree=True, part=0.625),
        pair("alice", "carol", in_tree=True, part=1.0),
        pair("bob", "carol"),
    ]
    lines = [line.split() for line in shown(mesh=mesh, links=[])]
    assert ["alice", "bob", "-", "-", "-", "62%"] in lines
    assert ["alice", "carol", "-", "-", "-", "yes"] in lines
    assert ["bob", "carol", "-", "-", "-"] in lines


def test_a_trainer_that_is_waited_for_is_named_with_the_time() -> None:
    slow, late = member("bob", 8), member("carol", 8)
    slow["trainer"], slow["owes_s"] = "slow", 7.4
    late["trainer"], late["owes_s"] = "late", 12.0
    text = "waiting 7.40 s for bob: its trainer has not answered"
    lines = shown(
        members=[member("alice", 8, me=True), slow, late],
        waiting=waiting(cause="computing", node="bob", text=text),
    )
    assert text in lines
    assert lines[6].endswith("slow 7 s")
    assert lines[7].endswith("late 12 s")


def test_what_limits_a_device_is_said_below_the_links() -> None:
    both, one = member("alice", 8, me=True), member("bob", 8)
    both["most_out_mbit_s"], both["most_in_mbit_s"] = 29.84, 31.2
    one["most_in_mbit_s"] = 8.5
    lines = shown(members=[both, one], mesh=[pair("alice", "bob")], links=[])
    assert "alice sends 29.8 and receives 31.2 Mbit/s over all its links at most" in lines
    assert "bob receives 8.50 Mbit/s over all its links at most" in lines
    assert not [line for line in shown() if "at most" in line]


def test_advice_is_wrapped_below_who_is_waited_for() -> None:
    advised = advice(text="laptop3 costs more than it gives: " + "word " * 30)
    lines = shown(advice=advised)
    at = lines.index("waiting 9.6 ms of each 50 ms step for alice: it computes longest")
    assert lines[at + 1].startswith("laptop3 costs more than it gives: word")
    assert lines[at + 2].startswith("word")


def test_nobody_holds_the_others_up() -> None:
    members = [member(n, 8, times=(1.0, 0.0, 0.0)) for n in ("alice", "bob")]
    lines = shown(members=members, waiting=None)
    assert lines[5].split() == ["alice", "8", "1.00", "0.00", "0.00", "-"]
    assert "nobody holds the others up" in lines


def test_a_links_delay_is_known_here_first_whatever_its_direction() -> None:
    for ends in (("alice", "bob"), ("bob", "alice")):
        lines = shown(mesh=[pair(*ends, None, 1.0, 2.0)], links=[link("bob", 0.42)])
        assert [*ends, "0.42", "1.00", "2.00"] in [line.split() for line in lines]
        lines = shown(mesh=[pair(*ends, 0.5, 1.0, 2.0)], links=[link("bob", 0.42)])
        assert [*ends, "0.50", "1.00", "2.00"] in [line.split() for line in lines]


def test_links_that_no_policy_has_are_shown_as_seen_from_here() -> None:
    lines = shown(links=[link("dave", 3.0, 10.5, 20.5)])
    row = next(line for line in lines if "dave" in line)
    assert row.split() == ["alice", "dave", "3.00", "20.5", "10.5"]


def test_a_join_of_this_node() -> None:
    lines = shown(phase="joining", joining=JOINING)
    assert lines[-4:] == [
        "joining [####................] 24%, 12.0 MB of 50.0 MB, 1.58 s left",
        "pulled from          Mbit/s  link Mbit/s",
        "bob          8.0 MB     128          200",
        "carol        4.0 MB    64.0            -",
    ]
    began = {**JOINING, "sources": [], "bytes": 0, "seconds": 0.0, "seconds_left": None}
    line = "joining [....................] 0%, 0 B of 50.0 MB, time left -"
    assert shown(joining=began)[-1] == line
    at_once = {**JOINING, "seconds": 0.0}
    assert shown(joining=at_once)[-2].split() == ["bob", "8.0", "MB", "-", "200"]
    assert shown(joining={**began, "total_bytes": 0})[-1] == "joining 0 B, time left -"


def test_joins_that_the_scheduler_knows_of() -> None:
    scale_out = {"kind": "scale-out", "node": "dave", "phase": "pulling"}
    pending = [
        {**scale_out, "pull": JOINING},
        {**scale_out, "node": "erin", "phase": "linking", "pull": None},
        {"kind": "scale-in", "node": "b\x1b", "phase": "switching", "pull": None},
    ]
    assert shown(pending=pending)[-7:] == [
        "pending: scale-out of dave (pulling)",
        "  [####................] 24%, 12.0 MB of 50.0 MB, 1.58 s left",
        "pulled from          Mbit/s  link Mbit/s",
        "bob          8.0 MB     128          200",
        "carol        4.0 MB    64.0            -",
        "pending: scale-out of erin (linking)",
        "pending: scale-in of b  (switching)",
    ]


def test_a_hundred_members() -> None:
    names = [f"m{k}" for k in range(100)]
    parents = {name: "m0" for name in names[1:]}
    lines = shown(
        members=[member(name, 1, times=(1.0, 1e7, 1e7)) for name in names],
        mesh=[pair("m0", name, 123456.0, 1e6, 1e6) for name in names[1:]],
        links=[],
        tree={"root": "m0", "parents": parents},
        reason="; ".join(f"because {k}" for k in range(100)),
        pending=[
            {"kind": "scale-out", "node": name, "phase": "linked", "pull": None} for name in names
        ],
        joining={
            **JOINING,
            "sources": [{"node": n, "bytes": 1, "seconds": 1.0, "mbit_s": 1e6} for n in names],
        },
    )
    hidden = [line for line in lines if "more" in line]
    more = f"... and {100 - MAX_ROWS} more (--json shows all)"
    assert hidden == [more, f"... and {99 - MAX_ROWS} more (--json shows all)", *[more] * 4]
    assert sum(line.startswith(("|- ", "`- ")) for line in lines) == MAX_ROWS - 1


EVIL = [
    "\x1b[31m" + "n" * 70,
    "a\r\nforged: line\n",
    "\u202eright to left\u2066",
    "\u4f60\u597d" * 30,
    "[bold]markup[/bold] :smile:",
    "two words and a few more of them so that it is long",
    " ",
]


@pytest.mark.parametrize("name", EVIL)
def test_evil_names_stay_in_their_cells(name: str) -> None:
    status = {"members": [member(name, 1, scheduler=True, me=True), member("bob", 1)]}
    plain = len(shown(**status | {"members": [member("al", 1, me=True), member("bob", 1)]}))
    assert len(shown(**status)) == plain
    lines = shown(
        node=name,
        cluster=name * 5,
        scheduler=name,
        members=[member(name, 1, me=True, times=(1e6, 1e6, 1e6)), member(name + "2", 1)],
        links=[link(name, 1e6, 1e6, 1e6)],
        mesh=[pair(name, name + "2", 1e6, 1e6, 1e6, in_tree=True)],
        tree={"root": name, "parents": {name + "2": name, name: name}},
        reason=f"rooted at {name}; {name * 80}",
        waiting=waiting(node=name, text=f"waiting for {name}"),
        advice=advice(text=f"{name} costs"),
        joining={**JOINING, "sources": [{**JOINING["sources"][0], "node": name}]},
        pending=[
            {"kind": "scale-out", "node": name, "phase": name, "pull": JOINING},
        ],
    )
    if "markup" in name:
        assert any("[bold]markup[/bold] :smile:" in line for line in lines)


def test_a_narrow_terminal_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("NO_COLOR", "1")
    out = Terminal()
    print_status(sample_status(members=[member("n" * 60, 1)], joining=JOINING), out)
    lines = without_escapes(out.getvalue()).splitlines()
    assert max(map(cell_len, lines)) <= 40
    assert any(line.startswith("nnn") for line in lines)
    assert any(line.startswith(("alice  bob", "|- al")) for line in lines)


def test_status_on_a_terminal_has_style(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("NO_COLOR", raising=False)
    out = Terminal()
    print_status(sample_status(), out)
    assert "\x1b[1m" in out.getvalue()


# The tree


def drawn(root: str, parents: dict[str, str]) -> list[str]:
    """Return the tree as lines."""
    return [branches + name for branches, name in tree_rows(root, parents)]


def test_a_tree_has_branches() -> None:
    parents = {"bob": "al", "cy": "al", "dan": "bob", "eve": "bob", "fay": "eve", "gus": "cy"}
    assert drawn("al", parents) == [
        "al",
        "|- bob",
        "|  |- dan",
        "|  `- eve",
        "|     `- fay",
        "`- cy",
        "   `- gus",
    ]


def test_a_deep_tree_says_its_depth() -> None:
    parents = {f"n{k + 1}": f"n{k}" for k in range(99)}
    lines = drawn("n0", parents)
    assert len(lines) == 100
    assert lines[DEEPEST] == "   " * (DEEPEST - 1) + f"`- n{DEEPEST}"
    assert lines[99] == "   " * DEEPEST + "(99) n99"
    status = shown(tree={"root": "n0", "parents": parents})
    assert any(line.lstrip().startswith("(20) n20 ") for line in status)


def test_what_is_no_tree_ends() -> None:
    assert drawn("a", {"a": "a"}) == ["a"]
    assert drawn("a", {"a": "b", "b": "a", "c": "d", "d": "c"}) == ["a", "`- b"]


def test_any_tree_has_each_name_once_below_its_parent() -> None:
    for seed in range(50):
        rng = random.Random(seed)
        names = [f"n{k}" for k in range(rng.randrange(1, 40))]
        rng.shuffle(names)
        parents = {name: names[rng.randrange(k)] for k, name in enumerate(names) if k}
        rows = list(tree_rows(names[0], parents))
        assert sorted(name for _, name in rows) == sorted(names)
        depth = {names[0]: 0}
        above: list[str] = []
        for branches, name in rows:
            if name != names[0]:
                depth[name] = depth[parents[name]] + 1
                assert above[depth[name] - 1] == parents[name]
            if depth[name] <= DEEPEST:
                assert len(branches) == 3 * depth[name]
            above[depth[name] :] = [name]


NAMES = ["alice", "bob", "carol", "dave", "erin", "fred"]
SOME = "optimizer: 128 parts, survives the loss of 1 member"
EACH = [[name] for name in NAMES]
PAIRS = [[a, b] for a, b in zip(NAMES, [*NAMES[1:], NAMES[0]], strict=True)]  # in a ring


@pytest.mark.parametrize(
    ("members", "fatal", "learning", "missing", "line"),
    [
        (3, [*PAIRS[:2], ["alice", "carol"]], 0, [], SOME),
        (4, PAIRS[:2], 0, [], f"{SOME}, and of 2 unless they are alice and bob, or bob and carol"),
        (6, PAIRS, 0, [], f"{SOME}, and of 2 in 9 of 15 cases"),
        (3, EACH[:3], 2, [], "optimizer: 128 parts, survives no loss, 2 members copying"),
        (3, EACH[:2], 0, [], "survives the loss of any member but alice or bob"),
        (6, EACH[:5], 0, [], "survives the loss of any one of 1 of 6 members"),
        (3, [], 0, ["bob"], "optimizer: waiting for bob, which alone has a part of its state"),
        (3, [], 0, [], "optimizer: 128 parts, survives no loss"),
        (2, [["alice", "bob"]], 0, [], SOME),
    ],
)
def test_which_losses_a_divided_optimizer_survives(
    members: int, fatal: list[list[str]], learning: int, missing: list[str], line: str
) -> None:
    divided = {
        "parts": 128,
        "copies": 1,
        "survives": len(fatal[0]) - 1 if fatal else 0,
        "fatal": fatal,
        "learning": learning,
        "held": dict.fromkeys(NAMES[:members], 85),
        "missing": missing,
    }
    text = " ".join(" ".join(shown(divided=divided)).split())
    assert line in text
    assert line.endswith(("bob and carol", "cases")) or ", and of" not in text


def test_who_founds_no_cluster_is_joining_from_the_beginning() -> None:
    life = Life(lambda: None)
    assert phase_of(life, None, job_known=False, must_join=True) == "starting"
    assert phase_of(life, None, job_known=True, must_join=False) == "founding"
    assert phase_of(life, None, job_known=True, must_join=True) == "joining"


def test_a_reader_that_has_gone_does_not_end_the_process_here() -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        rich_console(Gone()).print("text")

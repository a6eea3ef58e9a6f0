"""Scenario files: what is read from them, and the one line that says what is wrong with one.

Every refusal has to name the file and the field.
"""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.testbed.compose import compose_text
from tests.testbed.namespaces import TestbedError
from tests.testbed.scenario import SYNTHETIC, Scenario, load, parse
from tests.testbed.shaping import MBIT, UNSHAPED, Limit, Link

SCENARIOS = Path(__file__).resolve().parents[2] / "scenarios"
TEXT = """
nodes = ["a", "b", "c"]
end_s = 100
[job]
name = "digits"
steps = 10
[network]
rate = 50
delay_ms = 2
medium = 200
[[link]]
between = ["a", "b"]
rate = 20
[[link]]
from = "c"
to = "a"
delay_ms = 7
jitter_ms = 1
loss = 0.1
[[limit]]
node = "b"
up = 10
[[event]]
at_s = 9
do = "kill"
node = "c"
[[event]]
at_s = 5
do = "join"
node = "c"
[[event]]
at_s = 6
do = "rate"
from = "a"
to = "c"
rate = 1
"""


def read(text: str) -> Scenario:
    return parse(tomllib.loads(text), "x.toml", "x")


def test_all_of_it_is_read() -> None:
    scenario = read(TEXT)
    assert scenario.default == Link(50 * MBIT, 0.002)
    assert scenario.links["a", "b"] == scenario.links["b", "a"] == Link(20 * MBIT, 0.002)
    assert scenario.links["c", "a"] == Link(50 * MBIT, 0.007, 0.001, 0.1)
    assert ("a", "c") not in scenario.links
    assert scenario.limits == {"b": Limit(up=10 * MBIT)}
    assert scenario.medium == 200 * MBIT
    assert scenario.starters == ("a", "b"), "the third one joins"
    assert [event.text for event in scenario.timeline] == ["join c", "rate a > c", "kill c"]
    assert scenario.timeline[1].changes == {("a", "c"): {"rate": MBIT}}


def test_a_network_without_figures_has_only_its_links() -> None:
    scenario = read(TEXT.replace("rate = 50\ndelay_ms = 2\n", "").replace('"c"\nrate', '"b"\nrate'))
    assert scenario.default is None
    assert scenario.links["a", "b"] == Link(20 * MBIT)
    assert scenario.links["c", "a"].rate == UNSHAPED


def test_draws_follow_the_seed_and_win_over_links() -> None:
    text = TEXT + '[redraw]\nevery_s = 30\nfrom = 10\nto = 100\neach = "direction"\n'
    first, again = read(text), read(text)
    other = read("seed = 2\n" + text)
    draws = [event for event in first.timeline if event.do == "redraw"]
    assert [event.at_s for event in draws] == [30, 60, 90]
    assert first == again
    assert first.links != other.links
    assert first.links["c", "a"].delay_s == 0.007, "only rates are drawn"
    rates = [change["rate"] for event in draws for change in event.changes.values()]
    rates += [link.rate for link in first.links.values()]
    assert len(set(rates)) == len(rates) == 4 * 6
    assert all(10 * MBIT <= rate <= 100 * MBIT for rate in rates)


def test_pairs_are_drawn_alike_both_ways() -> None:
    scenario = read(TEXT + "[redraw]\nevery_s = 30\n")
    for event in (event for event in scenario.timeline if event.do == "redraw"):
        assert all(event.changes[a, b] == event.changes[b, a] for a, b in event.changes)


@pytest.mark.parametrize("each", ["pair", "direction"])
def test_only_links_that_there_are_get_drawn(each: str) -> None:
    text = TEXT.replace("rate = 50\ndelay_ms = 2\n", "").replace('to = "c"\nrate', 'to = "b"\nrate')
    scenario = read(text + f'[redraw]\nevery_s = 30\neach = "{each}"\n')
    there = [("a", "b"), ("b", "a"), ("c", "a")]
    assert sorted(scenario.links) == there
    draws = [event for event in scenario.timeline if event.do == "redraw"]
    assert [sorted(event.changes) for event in draws] == [there] * 3
    alike = [draw.changes["a", "b"] == draw.changes["b", "a"] for draw in draws]
    assert alike == [each == "pair"] * 3


def test_nodes_are_one_at_the_end_if_links_join_them_both_ways() -> None:
    cut = '[[event]]\nat_s = 7\ndo = "cut"\n'
    assert read(TEXT).one_at_end("abc")
    assert read(TEXT + cut + 'between = ["a", "c"]\n').one_at_end("abc"), "by way of b"
    assert not read(TEXT + cut + 'between = ["a", "c"]\n').one_at_end("ac")
    assert not read(TEXT + cut + 'from = "a"\nto = "c"\n').one_at_end("ac")
    parts = '[[event]]\nat_s = 7\ndo = "partition"\ngroups = [["a", "b"]]\n'
    assert read(TEXT + parts).one_at_end("ab")
    assert not read(TEXT + parts).one_at_end("abc"), "who is in no group is alone"
    assert read(TEXT + parts + '[[event]]\nat_s = 8\ndo = "heal"\n').one_at_end("abc")


POISSON = """
nodes = ["a", "b", "c", "d", "e"]
start = ["a", "b", "c"]
end_s = 3000
[job]
name = "digits"
steps = 10
[network]
rate = 50
[poisson]
every_s = 10
kill = 0
"""


def test_joins_and_leaves_come_at_random_moments_that_follow_the_seed() -> None:
    first, other = read(POISSON), read("seed = 2\n" + POISSON)
    assert first == read(POISSON)
    assert first.timeline != other.timeline
    assert 200 <= len(first.timeline) <= 400, "about one in 10 s"
    assert {event.do for event in first.timeline} == {"join", "ctrl-c"}
    assert {event.node for event in first.timeline} == set("abcde")
    assert first.timeline[0].at_s > 5
    last: dict[str, float] = {}
    running = set(first.starters)
    for event in first.timeline:
        assert event.at_s - last.get(event.node, -10.0) >= 10 - 0.002, "it had time to settle"
        last[event.node] = event.at_s
        running ^= {event.node}
        assert len(running) >= 2


WRONG: list[tuple[str, str, str]] = [
    ('"c"]', '"c", "a"]', "x.toml: nodes: must name at least one node, each once"),
    ('"c"]', '"C!"]', "x.toml: nodes: 'C!' is no name for a node"),
    ("end_s = 100", "", "x.toml: end_s: is missing"),
    ("end_s = 100", "end_s = 7", "x.toml: event: 'kill c' is after end_s"),
    ("end_s = 100", "end_s = 100\ncolour = 1", "x.toml: colour: is not known here"),
    ("steps = 10", "steps = 0", "x.toml: job.steps: must be a whole number, at least 1"),
    ("steps = 10", "steps = true", "x.toml: job.steps: must be a whole number, at least 1"),
    ("rate = 50", "rate = 0", "x.toml: network.rate: must be from 0.01 to 100000"),
    ("rate = 50", 'rate = "50"', "x.toml: network.rate: must be a number"),
    ("medium", "mediun", "x.toml: network.mediun: is not known here"),
    ('between = ["a", "b"]', 'between = ["a"]', "x.toml: link[1].between: must name two nodes"),
    ('["a", "b"]\nrate', '["a", "z"]\nrate', "x.toml: link[1].between: there is no node 'z'"),
    ('between = ["a", "b"]', "", "x.toml: link[1].from: is missing"),
    ('from = "c"\nto = "a"', 'from = "c"\nto = "c"', "x.toml: link[2].to: must be another node"),
    ('from = "c"', 'from = "b"', "x.toml: link[2]: b > a is described twice"),
    ("jitter_ms = 1", "jitter_ms = 8", "x.toml: link[2]: jitter must be between 0 and the delay"),
    ("loss = 0.1", "loss = 2", "x.toml: link[2].loss: must be from 0 to 1"),
    ('do = "kill"', 'do = "eat"', "x.toml: event[1].do: must be one of join, ctrl-c, kill"),
    ('do = "kill"', 'do = "heal"', "x.toml: event[1].node: is not known here"),
    ('"kill"', '"join"', "x.toml: event: 'join c' at 9 s: c is running"),
    ('node = "b"\nup', 'node = "d"\nup', "x.toml: limit[1].node: there is no node 'd'"),
    ("rate = 1\n", "", "x.toml: event[3].rate: is missing"),
]


@pytest.mark.parametrize(("old", "new", "message"), WRONG)
def test_what_makes_no_sense_is_refused(old: str, new: str, message: str) -> None:
    assert TEXT.count(old) >= 1
    with pytest.raises(TestbedError) as refusal:
        read(TEXT.replace(old, new, 1))
    assert str(refusal.value).startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[redraw]\nevery_s = 5\nfrom = 9\nto = 3\n", "x.toml: redraw.to: must not be less"),
        ("[redraw]\nevery_s = 0\n", "x.toml: redraw.every_s: must be from 1"),
        ('[redraw]\nevery_s = 5\neach = "x"\n', 'x.toml: redraw.each: must be "pair"'),
        ('[[event]]\nat_s=1\ndo="partition"\n', "x.toml: event[4].groups: must be a list"),
        (
            '[[event]]\nat_s=1\ndo="partition"\ngroups=[["a"],["a","b"]]\n',
            "x.toml: event[4].groups: must name nodes, none of them twice",
        ),
        (
            '[[event]]\nat_s=1\ndo="cont"\nnode="a"\n',
            "x.toml: event: 'cont a' at 1 s: a is running",
        ),
        ("[poisson]\nevery_s = 9\n", "x.toml: poisson: decides alone who joins"),
        ("[[event]]\nat_s=-1\n", "x.toml: event[4].at_s: must be from 0"),
    ],
)
def test_further_tables_are_checked(text: str, message: str) -> None:
    with pytest.raises(TestbedError) as refusal:
        read(TEXT + text)
    assert str(refusal.value).startswith(message)


def test_an_event_needs_a_link() -> None:
    with pytest.raises(TestbedError, match=r"event\[3\]\.do: a and c have no link"):
        read(TEXT.replace("rate = 50\ndelay_ms = 2\n", ""))


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_text("nodes = [")
    for path in (bad, tmp_path / "none.toml"):
        with pytest.raises(TestbedError, match=str(path)):
            load(path)


def test_a_script_is_looked_for_beside_the_file(tmp_path: Path) -> None:
    file, script = tmp_path / "x.toml", tmp_path / "jobs" / "mine.py"
    file.write_text(TEXT.replace('"digits"', '"jobs/mine.py"'))
    with pytest.raises(TestbedError, match=r"job\.name: must be one of .*there is no .*mine\.py"):
        load(file)
    script.parent.mkdir()
    script.touch()
    found = load(file)
    assert found.job.name == str(script)
    text = compose_text(replace(found, limits={}, medium=UNSHAPED))
    assert f"{script.parent}:/job:ro" in text
    assert '\\"run\\",\\"/job/mine.py\\"' in text


def test_the_synthetic_job_has_a_name() -> None:
    found = load(SCENARIOS / "synthetic.toml")
    assert found.job.name == str(SYNTHETIC)
    assert '\\"/job/synthetic.py\\"' in compose_text(found)
    with pytest.raises(TestbedError, match=r"job\.name: must be one of digits, fash"):
        read(TEXT.replace('"digits"', '"synthetics"'))


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.toml")), ids=lambda path: path.stem)
def test_the_projects_own_scenarios_are_right(path: Path) -> None:
    scenario = load(path)
    found: Any = path.read_text().splitlines()[0]
    assert found.startswith("# "), "its first line says what it is"
    assert scenario.name == path.stem

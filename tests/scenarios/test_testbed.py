"""A scenario of the testbed with real agents: a join, a death and a cut on slow links.

The testbed plays the timeline, and its summary and the agents' events are the evidence.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from edgeagent.demo.view import PlainView
from tests.testbed import plots, results
from tests.testbed.namespaces import unusable
from tests.testbed.play import play
from tests.testbed.scenario import load

SCENARIO = Path(__file__).resolve().parents[2] / "scenarios" / "small.toml"


@pytest.fixture
def _possible() -> None:
    if why := unusable():
        pytest.skip(why)


@pytest.mark.alone
@pytest.mark.netns
@pytest.mark.slow
@pytest.mark.usefixtures("_possible")
@pytest.mark.long
def test_a_join_a_death_and_a_cut_on_slow_links(tmp_path: Path) -> None:
    scenario = load(SCENARIO)
    played = play(scenario, tmp_path, PlainView(sys.stderr))
    result = results.summary(scenario, played)
    results.write(tmp_path, result)
    assert result == json.loads((tmp_path / "summary.json").read_text())
    assert result["problems"] == []
    assert result["digests_equal"]
    states = {name: node["state"] for name, node in result["nodes"].items()}
    assert states == {"alice": "left", "bob": "killed", "carol": "left", "dave": "left"}
    assert [mark["did"] for mark in result["timeline"]] == [
        event.text for event in scenario.timeline
    ]
    assert "dave" in [join["node"] for join in result["joins"]]
    assert {"node": "bob", "reason": "failure"}.items() <= result["stalls"][0].items()
    cut, restored = (mark.t for mark in played.marks[-2:])
    alice = next(life.agent for life in played.lives if life.name == "alice")
    lost = [e["node"] for e in alice.all("link_down") if cut < e["t"] < restored]
    assert lost == ["carol"], "the cut was noticed, and nothing else was cut"
    assert result["throughput"]["samples"] > 0
    assert min(result["sent_bytes"].values()) > 0, "every pair has talked"
    if not plots.missing():
        paths = plots.draw(played, scenario.name, tmp_path)
        assert [path.name for path in paths] == ["loss.png", "members.png", "samples-per-s.png"]
        assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)

"""Which tests are chosen to be traced (`tests/covering.py`)."""

from __future__ import annotations

from pathlib import Path

from tests.covering import LIST, choose, read_seconds

ONE, TWO, THREE = (0, 1, 2), (0, 2, 3), (0, 3, 4)


def test_who_alone_reaches_something_is_chosen() -> None:
    assert choose({"slow": {ONE, TWO}, "quick": {TWO}}, {"slow": 9.0, "quick": 0.1}) == ["slow"]


def test_what_several_reach_is_left_to_the_quickest() -> None:
    reached = {"slow": {ONE}, "quick": {ONE}, "another": {TWO, THREE}, "most": {TWO, THREE}}
    seconds = {"slow": 2.0, "quick": 1.0, "another": 3.0, "most": 0.5}
    assert choose(reached, seconds) == ["most", "quick"]


def test_seconds_are_read_by_name(tmp_path: Path) -> None:
    file = tmp_path / "junit.xml"
    case = '<testcase classname="tests.unit.test_a" name="test_b[1.5-x]" time="0.25"/>'
    file.write_text(f"<testsuites><testsuite>{case}</testsuite></testsuites>")
    assert read_seconds(str(file)) == {"tests/unit/test_a.py::test_b[1.5-x]": 0.25}


def test_the_list_names_tests_that_exist() -> None:
    named = LIST.read_text("utf-8").splitlines()
    files = dict.fromkeys(name.partition("::")[0] for name in named)
    gone = [name for name in files if not (LIST.parent.parent / name).exists()]
    assert named == sorted(set(named))
    assert gone == []

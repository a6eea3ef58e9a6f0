"""The statements of a script: what counts as a difference, and what does not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from edgeagent.launch import package_environment
from edgeagent.trainer.script import MAX_TEXT, script_statements, statements_of
from edgeagent.transport.job import MAX_STATEMENTS, script_difference, script_digests

SCRIPT = '''\
"""Trains."""
import os


def loss_of(output, target):
    """Return the loss."""
    try:
        return (output - target) ** 2
    except (ValueError, TypeError):
        raise
    finally:
        os.sync()


class Net:
    width = 3

    def size(self):
        if self.width > 2:
            return 1
        else:
            return 2


for step in range(3):
    with open("x") as file:
        loss = loss_of(step, 1)
else:
    match loss:
        case 1 if step:
            pass
        case _:
            print("odd")
'''


def difference(tmp_path: Path, before: str, after: str) -> str | None:
    """Where the script differs from itself with `before` replaced by `after`."""
    assert before in SCRIPT
    mine, other = tmp_path / "mine.py", tmp_path / "other.py"
    mine.write_text(SCRIPT)
    other.write_text(SCRIPT.replace(before, after))
    theirs = script_digests(tuple(statements_of(str(other), "other.py")))
    return script_difference(tuple(statements_of(str(mine), "train.py")), theirs)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"""Trains."""', "# Trains, with a comment\n\n"),
        ('    """Return the loss."""\n', ""),
        ("(output - target) ** 2", "((output-target)**2)  # squared"),
        ('open("x")', "open('x')"),
        ("\n\n\n", "\n"),
    ],
)
def test_comments_layout_and_docstrings_do_not_count(
    tmp_path: Path, before: str, after: str
) -> None:
    assert difference(tmp_path, before, after) is None


@pytest.mark.parametrize(
    ("before", "after", "where"),
    [
        ("return (output - target)", "return -(output - target)", "line 8: return (output - targ"),
        ("output, target)", "target, output)", "line 5: def loss_of(output, target):"),
        ("ValueError, TypeError", "ValueError", "line 9: except (ValueError, TypeError):"),
        ("os.sync()", "os.abort()", "line 12: os.sync()"),
        ("class Net:", "class Net(list):", "line 15: class Net:"),
        ("self.width > 2", "self.width < 2", "line 19: if self.width > 2:"),
        ("return 2", "return 3", "line 22: return 2"),
        ("range(3)", "range(4)", "line 25: for step in range(3):"),
        ('open("x")', 'open("y")', "line 26: with open('x') as file:"),
        ("match loss", "match step", "line 29: match loss:"),
        ("case 1 if step", "case 1", "line 31: case 1 if step:"),
        ("import os\n", "", "line 2: import os"),
    ],
)
def test_what_the_script_does_is_compared(
    tmp_path: Path, before: str, after: str, where: str
) -> None:
    assert str(difference(tmp_path, before, after)).startswith(f"at train.py {where}")


def test_what_cannot_be_read_has_no_statements(tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text("def (")
    (tmp_path / "large.py").write_text("#" * ((1 << 20) + 1))
    for name in ("wrong.py", "large.py", "missing.py"):
        assert statements_of(str(tmp_path / name), name) == []


def test_a_long_statement_is_cut(tmp_path: Path) -> None:
    (tmp_path / "long.py").write_text("x = " + "1 + " * 100 + "1")
    ((_, place),) = statements_of(str(tmp_path / "long.py"), "long.py")
    assert place.endswith("...")
    assert len(place) == len("long.py line 1: ") + MAX_TEXT


def run(folder: Path, text: str) -> list[str]:
    """Run a script that prints the places of its statements."""
    (folder / "train.py").write_text(text)
    code = "from edgeagent.trainer.script import script_statements\n"
    code += "for digest, place in script_statements(): print(digest.hex(), place)\n"
    (folder / "train.py").write_text(text + code)
    done = subprocess.run(
        [sys.executable, str(folder / "train.py")],
        env=package_environment({}),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.splitlines()


def test_modules_beside_the_script_belong_to_it(tmp_path: Path) -> None:
    (tmp_path / "nets").mkdir()
    (tmp_path / "nets" / "small.py").write_text("WIDTH = 3\n")
    places = [line[9:] for line in run(tmp_path, "import nets.small\n")]
    assert places[0] == "train.py line 1: import nets.small"
    assert places[-1] == "nets/small.py line 1: WIDTH = 3"
    assert not any("edgeagent/" in place for place in places)


def test_what_is_too_long_is_compared_as_one(tmp_path: Path) -> None:
    lines = [f"x = {k}\n" for k in range(MAX_STATEMENTS + 50)]
    one = run(tmp_path, "".join(lines))
    lines[-1] = "x = -1\n"
    other = run(tmp_path, "".join(lines))
    assert len(one) == MAX_STATEMENTS
    assert [a == b for a, b in zip(one, other, strict=True)] == [True] * (MAX_STATEMENTS - 1) + [
        False
    ]


def test_a_program_of_our_own_has_no_script(monkeypatch: pytest.MonkeyPatch) -> None:
    import edgeagent.trainer.jobs.digits as job

    monkeypatch.setattr(sys.modules["__main__"], "__file__", job.__file__, raising=False)
    assert script_statements() == ()
    monkeypatch.setattr(sys.modules["__main__"], "__file__", None, raising=False)
    assert script_statements() == ()

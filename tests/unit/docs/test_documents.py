"""What the documents say of the command line, of messages and of names is what the code has."""

from __future__ import annotations

import argparse
import ast
import importlib.util
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from edgeagent.command_line import build_parser, parse

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted(
    [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *(ROOT / "docs").glob("*.md"),
        ROOT / "examples" / "README.md",
    ]
)
NAMES = [page.relative_to(ROOT).as_posix() for page in PAGES]
FENCE = re.compile(r"^```(?:sh|bash|shell)\n(.*?)^```", re.M | re.S)
SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")
SEPARATORS = ("|", "&&", "||", ";", "&", ">", ">>", "2>&1", "(", ")")


# --- command lines ----------------------------------------------------------------------------


def commands_in(line: str) -> list[list[str]]:
    """Return the arguments of each `edgeagent` in a line for a shell."""
    inner = re.findall(r"\$\(([^()]*)\)", line)
    rest = re.sub(r"\$\([^()]*\)", "VALUE", line)
    lexer = shlex.shlex(rest, posix=True, punctuation_chars="();<>|&")
    lexer.whitespace_split, lexer.commenters = True, "#"
    words: list[list[str]] = [[]]
    for word in lexer:
        if word in SEPARATORS:
            words.append([])
        else:
            words[-1].append(word)
    found = [command for part in inner for command in commands_in(part)]
    for command in words:
        while command and re.fullmatch(r"[A-Z_]+=.*", command[0]):
            command = command[1:]
        if command[:1] == ["edgeagent"]:
            found.append(command[1:])
    return found


def shell_commands(text: str) -> list[list[str]]:
    """Return the arguments of every `edgeagent` in blocks of shell lines."""
    lines = "\n".join(FENCE.findall(text)).replace("\\\n", " ").splitlines()
    return [command for line in lines for command in commands_in(line)]


def test_command_lines_are_found() -> None:
    assert commands_in("A=1 edgeagent run x --steps 3 | jq .   # edgeagent no") == [
        ["run", "x", "--steps", "3"]
    ]
    assert commands_in("export T=$(edgeagent token new) && edgeagent leave") == [
        ["token", "new"],
        ["leave"],
    ]
    assert len(shell_commands((ROOT / "README.md").read_text(encoding="utf-8"))) > 6


@pytest.mark.parametrize("name", NAMES)
def test_every_command_line_in_a_block_parses(name: str) -> None:
    for arguments in shell_commands((ROOT / name).read_text(encoding="utf-8")):
        try:
            parse(arguments)
        except SystemExit as stop:  # --help, --version
            assert stop.code == 0, arguments  # noqa: PT017 - what argparse raises on purpose


@cache
def options_of() -> dict[str, set[str]]:
    """Return all options of each command, those of its actions included."""

    def options(parser: argparse.ArgumentParser) -> set[str]:
        found = set(parser._option_string_actions)
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for inner in action.choices.values():
                    found |= options(inner)
        return found

    known = {
        name: options(parser)
        for action in build_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
        for name, parser in action.choices.items()
    }
    known["service"] |= known["run"]  # what follows the job is for `run`
    return known


@pytest.mark.parametrize("name", NAMES)
def test_commands_and_options_in_the_text_exist(name: str) -> None:
    text = re.sub(r"^```.*?^```", "", (ROOT / name).read_text(encoding="utf-8"), flags=re.M | re.S)
    for span in SPAN.findall(text):
        words = " ".join(span.split()).split(" -- ")[0].split()
        if words[:1] != ["edgeagent"] or len(words) < 2:
            continue
        command = re.split(r"[|,]", words[1])[0]
        if command.isupper() or command in ("...", "--help"):
            continue
        assert command in options_of(), f"{name}: `{span}`"
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z](?![a-z-]*\.\.\.)", span):
            assert option in options_of()[command], f"{name}: `{span}`"


def test_the_page_of_options_is_current() -> None:
    script = ROOT / "scripts" / "options_page"
    done = subprocess.run(
        [sys.executable, str(script), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


# --- code -------------------------------------------------------------------------------------


def test_code_of_the_page_on_porting_is_that_of_examples() -> None:
    """Which are run (`scenarios/test_examples.py`)."""
    page = (ROOT / "docs" / "porting.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    examples = [path.read_text(encoding="utf-8") for path in (ROOT / "examples").glob("*.py")]
    assert blocks
    assert not [block for block in blocks if not any(block in text for text in examples)]


# --- messages ---------------------------------------------------------------------------------


@cache
def texts_in_the_code() -> str:
    """Return all texts in the code that users run; what is filled in stands as NUL."""
    found: list[str] = []
    for path in [*(ROOT / "edgeagent").rglob("*.py"), *(ROOT / "protocols").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
            elif isinstance(node, ast.JoinedStr):
                parts = [p.value if isinstance(p, ast.Constant) else "\0" for p in node.values]
                found.append("".join(map(str, parts)))
    return "\n".join(found)


# What stands for something else in a quoted message: a name, a number, a part left out.
FILLED = re.compile(r"\.\.\.|: |; |\b[A-Z]\b|\bJOB\b|\bFILE\b|\b\d+ s\b|\b\d+\b")
SHORTEST = 6  # letters of a part that is looked for


def parts_of(message: str) -> list[str]:
    """Return the parts of a quoted message that the code must have literally."""
    return [part.strip(" ;:,") for part in FILLED.split(message)]


def quoted_messages() -> list[str]:
    """Return the messages in the first column of the table of docs/failures.md."""
    page = (ROOT / "docs" / "failures.md").read_text(encoding="utf-8")
    table = page[page.index("| you see |") :].split("\n\n")[0]
    rows = table.splitlines()[2:]
    return [span for row in rows for span in SPAN.findall(row.split(" | ")[0])]


def test_every_quoted_message_is_one_of_the_code() -> None:
    messages = quoted_messages()
    assert len(messages) > 25
    missing = [
        (message, part)
        for message in messages
        for part in parts_of(message)
        if len(part) >= SHORTEST and part not in texts_in_the_code()
    ]
    assert not missing, "docs/failures.md quotes what no code says"


def test_a_message_that_nobody_says_is_noticed() -> None:
    assert parts_of("waiting 12 s for X: ...") == ["waiting", "for", "", "", ""]
    assert "this sentence is said by no code" not in texts_in_the_code()


# --- names ------------------------------------------------------------------------------------


def test_what_is_called_public_exists() -> None:
    page = (ROOT / "docs" / "stability.md").read_text(encoding="utf-8")
    found = re.findall(r"^from ([\w.]+) import (.+)$", page, re.M)
    assert len(found) >= 4
    for module, names in found:
        spec = importlib.util.find_spec(module)
        assert spec is not None
        assert spec.origin is not None
        tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
        defined = {getattr(node, "name", "") for node in tree.body}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                defined |= {alias.asname or alias.name for alias in node.names}
        for name in names.split(", "):
            assert name in defined, f"{module} has no {name}"


def test_the_public_names_of_the_package_are_those_of_the_page() -> None:
    import edgeagent

    page = (ROOT / "docs" / "stability.md").read_text(encoding="utf-8")
    (names,) = re.findall(r"^from edgeagent import (.+)$", page, re.M)
    assert {*names.split(", "), "__version__"} == set(edgeagent.__all__)


# --- the site ---------------------------------------------------------------------------------


@pytest.mark.skipif(not importlib.util.find_spec("material"), reason="mkdocs-material is not here")
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(tmp_path / "site")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for page in (ROOT / "docs").glob("*.md"):
        assert (tmp_path / "site" / f"{page.stem}.html").exists()


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert f": {page.name}\n" in navigation, page.name

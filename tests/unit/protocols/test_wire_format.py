"""What peers say to each other is written down, so that nobody changes it without noticing.

docs/stability.md promises that releases with a protocol version in common talk to each other. That
holds only if what is said changes together with that version.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING

from edgeagent.transport import join_wire, link_wire, pairing_wire
from protocols.rounds.control_word import ControlWord
from protocols.wire import bulk
from protocols.wire.envelope import Tags
from protocols.wire.fields import Many, Nested, Row
from protocols.wire.message import Message
from protocols.wire.messages import MESSAGES

if TYPE_CHECKING:
    from types import ModuleType

    import pytest

FILE = Path(__file__).with_name("wire-format.txt")
ADVICE = (
    "what peers say has changed. If a release with this protocol version is out, raise "
    "join_wire.VERSIONS and link_wire.VERSION, and say in CHANGELOG.md that older devices are "
    "refused. Then write the file anew with --rewrite."
)


def kind_text(kind: object, records: dict[str, type]) -> str:
    """Return a kind of field in words; note the records in it."""
    if isinstance(kind, Nested):
        records[kind.record.__name__] = kind.record
        return kind.record.__name__
    if isinstance(kind, Many):
        least = f"{kind.smallest} " if kind.smallest else ""
        return f"{least}up to {kind.largest} of [{kind_text(kind.item, records)}]"
    if isinstance(kind, Row):
        return f"({', '.join(kind_text(item, records) for item in kind.kinds)})"
    if is_dataclass(kind):
        said = [(f.name, getattr(kind, f.name)) for f in fields(kind)]
        usual = {f.name: f.default for f in fields(kind)}
        told = ", ".join(f"{name}={value!r}" for name, value in said if value != usual[name])
        return f"{type(kind).__name__}({told})"
    return repr(kind)


def record_text(record: type, records: dict[str, type]) -> str:
    """Return the fields of a record in their order."""
    found = [(f.name, f.metadata["kind"]) for f in fields(record)]
    return "; ".join(f"{name}: {kind_text(kind, records)}" for name, kind in found)


def tagged_records(module: ModuleType) -> list[type[Message]]:
    """Return the messages that `module` defines, by their tags."""
    found = [x for x in vars(module).values() if isinstance(x, type) and issubclass(x, Message)]
    return sorted((x for x in found if x is not Message), key=lambda x: x.TAG)


def enum_text(kind: type[IntEnum]) -> str:
    """Return the members of an enumeration with their numbers."""
    named = ", ".join(f"{member.value} {member.name}" for member in kind)
    return f"{kind.__module__}.{kind.__name__}: {named}"


def wire_format() -> str:
    """Return all that two builds must agree on to talk to each other."""
    records: dict[str, type] = {}
    lines = [f"protocol versions {join_wire.VERSIONS}, links {link_wire.VERSION}", "", "messages"]
    lines += [f"{kind.TAG} {kind.__name__}: {record_text(kind, records)}" for kind in MESSAGES]
    for module in (join_wire, link_wire, pairing_wire):
        lines += ["", module.__name__.rpartition(".")[2]]
        kinds = tagged_records(module)
        lines += [f"{kind.TAG} {kind.__name__}: {record_text(kind, records)}" for kind in kinds]
    lines += ["", "records", f"Tags: {record_text(Tags, records)}"]
    lines += [f"ControlWord: {record_text(ControlWord, records)}"]
    told: dict[str, str] = {}
    while new := {name: record for name, record in records.items() if name not in told}:
        for name, record in new.items():
            told[name] = f"{name}: {record_text(record, records)}"
    lines += [told[name] for name in sorted(told)]
    lines += ["", "numbers", enum_text(bulk.BulkKind)]
    for module in (join_wire, link_wire, pairing_wire):
        named = [x for x in vars(module).values() if isinstance(x, type) and issubclass(x, IntEnum)]
        lines += [enum_text(x) for x in named if x.__module__ == module.__name__]
    return "\n".join([*lines, ""])


def test_what_peers_say_changes_only_with_the_protocol_version(
    request: pytest.FixtureRequest,
) -> None:
    now = wire_format()
    if request.config.getoption("--rewrite"):
        FILE.write_text(now, encoding="utf-8")
    assert FILE.read_text(encoding="utf-8") == now, ADVICE


def test_one_version_is_spoken_at_the_door_and_on_links() -> None:
    assert link_wire.VERSION in join_wire.VERSIONS

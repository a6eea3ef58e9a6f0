"""Members, views, policies and messages for the tests: plain ones, and strategies for all of them.

The values are derived from the declared fields of a record, so that new messages and fields are
covered without a change here. Only records whose constructors add checks are listed by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from hashlib import sha256
from itertools import combinations
from typing import Any, TypeVar

from hypothesis import strategies as st

from protocols import limits
from protocols.cluster.policy import Electorate, Policy, Pull
from protocols.cluster.view import Edge, Member, View, edge, make_view
from protocols.cluster.ways import Way
from protocols.wire.envelope import Envelope, Tags
from protocols.wire.fields import Blob, Bool, Float, Many, Nested, Row, Text, UInt
from protocols.wire.messages import Message, Restart

R = TypeVar("R")

LINEAGE = b"L" * limits.LINEAGE_BYTES


def node(number: int) -> bytes:
    """Return the id of the `number`th node; ids are ordered as the numbers are."""
    return number.to_bytes(limits.NODE_ID_BYTES, "big")


def member(number: int, name: str = "") -> Member:
    """Return the `number`th member."""
    address = f"10.0.0.{number}:1"
    return Member(node(number), 1, name or f"n{number}", "sim", (address,), b"", False)


def view_of(count: int, links: list[tuple[int, int]] | None = None) -> View:
    """Return a view of members 1..count, fully linked unless `links` are given."""
    pairs = list(combinations(range(1, count + 1), 2)) if links is None else links
    members = [member(k) for k in range(1, count + 1)]
    return make_view(LINEAGE, 1, members, [edge(node(a), node(b)) for a, b in pairs])


def star_policy(count: int, pulls: tuple[Pull, ...] = (), *, term: int = 1) -> Policy:
    """Return a policy over members 1..count with member 1 at the root of all others."""
    parents = (b"", *[node(1)] * (count - 1))
    return Policy(term, 1, view_of(count), parents, (2,) * count, pulls, "star")


def electorates(count: int) -> tuple[Electorate, ...]:
    """Return the electorates of a cluster of members 1..count."""
    return (star_policy(count).electorate,)


# --- one plain value of every kind ----------------------------------------------------------------

PLAIN: dict[type, Callable[[], Any]] = {
    Edge: lambda: edge(node(1), node(2)),
    Member: lambda: Member(sha256(b"x").digest(), 3, "x", "x", ("x:1",), b"x", False),
    View: lambda: view_of(2),
    Pull: lambda: Pull(7, member(9), (node(1), node(2)), node(2), feeds=(3, 0)),
    Policy: lambda: star_policy(2, (plain(Pull),)),
    Electorate: lambda: star_policy(2).electorate,
    Restart: lambda: Restart(plain(Policy), 3, True, 3, 3, b"x" * 32, (b"x", b"x"), (b"x", b"x")),
}


def plain(record: type[R]) -> R:
    """Return one record of this type in which nothing is empty or zero."""
    if record in PLAIN:
        made: R = PLAIN[record]()
        return made
    declared = fields(record)  # type: ignore[arg-type]
    return record(*[_plain_value(f.metadata["kind"]) for f in declared])


def _plain_value(kind: object) -> Any:
    match kind:
        case UInt():
            return min(3, kind.largest)
        case Float():
            return 0.5
        case Bool():
            return True
        case Blob():
            return b"x" * max(1, kind.smallest)
        case Text():
            return "x"
        case Many():
            return (_plain_value(kind.item),)
        case Nested():
            return plain(kind.record)
        case _:
            raise AssertionError(f"teach the tests about {kind}")


def tags(**changes: Any) -> Tags:
    """Return plain tags with these fields changed."""
    declared = {f.name: _plain_value(f.metadata["kind"]) for f in fields(Tags)}
    return Tags(**(declared | changes))


# --- strategies -----------------------------------------------------------------------------------

NODES = st.integers(0, 9).map(node) | st.binary(
    min_size=limits.NODE_ID_BYTES, max_size=limits.NODE_ID_BYTES
)


LETTERS = st.sampled_from("a9.Zäß中😀 ")
ADDRESSES = st.sampled_from(["10.0.0.1:1", "[fe80::1%en0]:7431", "pi.local:65535"])
REASONS = st.text(LETTERS, max_size=12)


@st.composite
def members(draw: st.DrawFn) -> Member:
    """Members with a certificate that is theirs, or with none."""
    kinds = {f.name: f.metadata["kind"] for f in fields(Member)}
    made = {name: draw(values(kind)) for name, kind in kinds.items() if name != "addresses"}
    if made["certificate"]:
        made["node"] = sha256(made["certificate"]).digest()
    return Member(addresses=tuple(draw(st.lists(ADDRESSES, max_size=3))), **made)


@st.composite
def views(draw: st.DrawFn, largest: int = 6) -> View:
    """Views of any shape, connected or not."""
    nodes = draw(st.lists(NODES, min_size=1, max_size=largest, unique=True))
    template = draw(records(Member))
    members = [replace(template, node=n, certificate=b"") for n in nodes]
    pairs = list(combinations(nodes, 2))
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    lineage = draw(st.binary(min_size=limits.LINEAGE_BYTES, max_size=limits.LINEAGE_BYTES))
    apart = draw(st.lists(st.sampled_from(pairs), max_size=2, unique=True)) if pairs else []
    strangers = draw(st.lists(NODES.filter(lambda n: n not in nodes), max_size=2, unique=True))
    number, edges = draw(st.integers(0, 99)), [edge(*p) for p in chosen]
    divided = [edge(*p) for p in apart]
    return make_view(lineage, number, members, edges, divided, tuple(strangers))


@st.composite
def policies(draw: st.DrawFn, largest: int = 6) -> Policy:
    """Valid policies: a random tree over a view that has at least the tree's links."""
    loose = draw(views(largest))
    order = draw(st.permutations(loose.nodes))
    parent = {order[0]: b""}
    for k, child in enumerate(order[1:], 1):
        parent[child] = order[draw(st.integers(0, k - 1))]
    links = [edge(child, above) for child, above in parent.items() if above]
    apart = [e for e in loose.apart if e not in links]
    edges = [*loose.edges, *links]
    view = make_view(loose.lineage, loose.number, list(loose.members), edges, apart, loose.expelled)
    shares = [draw(st.integers(0, 20)) for _ in view.nodes]
    shares[draw(st.integers(0, len(shares) - 1))] += 1
    return Policy(
        draw(st.integers(0, 9)),
        draw(st.integers(0, 9)),
        view,
        tuple(parent[n] for n in view.nodes),
        tuple(shares),
        draw(pulls_to(view)),
        draw(REASONS),
        tuple(draw(st.lists(ways_over(view), max_size=3))),
    )


@st.composite
def ways_over(draw: st.DrawFn, view: View) -> Way:
    """A way over the members of `view`, which is connected: two random trees with one root."""
    count = len(view.nodes)
    root = draw(st.integers(0, count - 1))
    near = [[view.nodes.index(n) for n in view.neighbours(node)] for node in view.nodes]
    trees: list[bytes] = []
    for _ in range(2):
        parents, reached = {root: root}, [root]
        while len(reached) < count:
            ends = [(a, b) for a in reached for b in near[a] if b not in parents]
            above, child = draw(st.sampled_from(ends))
            parents[child] = above
            reached.append(child)
        trees.append(bytes(parents[k] for k in range(count)))
    return Way(trees[0], trees[1], draw(st.integers(1, 9)))


@st.composite
def pulls_to(draw: st.DrawFn, view: View) -> tuple[Pull, ...]:
    """At most one pull to a node that is no member of `view`."""
    joiner = draw(records(Member))
    if joiner.node in view.nodes or draw(st.booleans()):
        return ()
    sources = draw(st.lists(st.sampled_from(view.nodes), min_size=1, unique=True))
    feeds = draw(st.lists(st.integers(0, 9), max_size=len(sources)))
    fits = len(feeds) == len(sources) and 0 < sum(feeds) <= limits.MAX_FEED_WEIGHT
    join = draw(st.integers(0, 99))
    return (Pull(join, joiner, tuple(sources), sources[0], feeds=tuple(feeds) if fits else ()),)


@st.composite
def restarts(draw: st.DrawFn) -> Restart:
    """Decisions of fences that cover every member of their policy."""
    policy = draw(policies(3))
    count = len(policy.view.members)
    bitmaps = st.lists(st.binary(max_size=3), min_size=count, max_size=count).map(tuple)
    first, finish, redo = (draw(st.integers(0, 99)) for _ in range(3))
    name = draw(st.binary(min_size=32, max_size=32))
    have, work = draw(bitmaps), draw(bitmaps)
    return Restart(policy, first, draw(st.booleans()), finish, redo, name, have, work)


CHECKED: dict[type, Callable[[], st.SearchStrategy[Any]]] = {
    Electorate: lambda: policies().map(lambda policy: policy.electorate),
    Edge: lambda: st.lists(NODES, min_size=2, max_size=2, unique=True).map(lambda p: edge(*p)),
    Member: members,
    View: views,
    Policy: policies,
    Pull: lambda: views().flatmap(pulls_to).filter(len).map(lambda pulls: pulls[0]),
    Restart: lambda: restarts(),
}


_BUILT: dict[type, st.SearchStrategy[Any]] = {}  # kept, as building one takes longer than drawing


def records(record: type[R]) -> st.SearchStrategy[R]:
    """Strategy for records of this type."""
    if record not in _BUILT:
        _BUILT[record] = CHECKED[record]() if record in CHECKED else _from_fields(record)
    return _BUILT[record]


def _from_fields(record: type[R]) -> st.SearchStrategy[R]:
    declared = fields(record)  # type: ignore[arg-type]
    return st.tuples(*[values(f.metadata["kind"]) for f in declared]).map(lambda v: record(*v))


def values(kind: object) -> st.SearchStrategy[Any]:
    """Strategy for values of a field of this kind."""
    match kind:
        case UInt():
            return st.integers(kind.smallest, kind.largest) | st.just(kind.largest)
        case Float():
            return st.floats(allow_nan=not kind.finite, allow_infinity=not kind.finite)
        case Bool():
            return st.booleans()
        case Blob():
            few = max(kind.smallest, min(kind.largest, 40))
            return st.binary(min_size=kind.smallest, max_size=few)
        case Text():
            most = max(kind.smallest, min(kind.largest // 4, 12))
            return st.text(LETTERS, min_size=kind.smallest, max_size=most)
        case Many():
            most = max(kind.smallest, min(kind.largest, 3))
            items = st.lists(values(kind.item), min_size=kind.smallest, max_size=most)
            return items.map(tuple)
        case Row():
            return st.tuples(*[values(item) for item in kind.kinds])
        case Nested():
            return records(kind.record)
        case _:
            raise AssertionError(f"teach the tests about {kind}")


def envelopes(kind: type[Message]) -> st.SearchStrategy[Envelope]:
    """Strategy for envelopes with a message of this kind."""
    return st.builds(Envelope, records(Tags), records(kind))

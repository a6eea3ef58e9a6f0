"""Custom policies: found by real entry points, asked, checked, and replaced if they fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.errors import UsageError
from edgeagent.planner.policies import (
    MAX_FAULT_LETTERS,
    MAX_REASON_BYTES,
    CustomPolicy,
    PolicyAnswer,
    PolicyLink,
    PolicyMember,
    PolicyRequest,
    checked,
    custom_plan,
    request_of,
)
from edgeagent.planner.standard import StandardPlanner
from edgeagent.plugins import load_policy
from protocols.cluster.policy import Policy
from protocols.network.measures import Measures, Rate
from protocols.scheduler.planning import Plan
from tests.unit.protocols.records import node, view_of

if TYPE_CHECKING:
    from protocols.cluster.view import View

SOURCE = '''
"""A package with policies, as a user writes one."""

from edgeagent.planner.policies import PolicyAnswer, PolicyRequest


def star(request: PolicyRequest) -> PolicyAnswer:
    hub = request.members[0].node
    parents = {m.node: hub for m in request.members} | {hub: b""}
    return PolicyAnswer(parents, {hub: request.micro_batches}, "all on the first device")


def rootless(request):
    first, second = request.members[0].node, request.members[1].node
    parents = {m.node: first for m in request.members} | {first: second}
    return PolicyAnswer(parents, {first: request.micro_batches}, "round and round")


def broken(request):
    raise RuntimeError("no\\nidea")


number = 7
'''
ENTRIES = """
[edgeagent.policies]
star = room_policies:star
rootless = room_policies:rootless
broken = room_policies:broken
number = room_policies:number
gone = room_policies:gone
nowhere = no_such_module_anywhere:star
"""
TRIANGLE = view_of(3)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Installs a distribution with these entry points beside the module `room_policies`."""

    def install(name: str, entries: str) -> None:
        (tmp_path / "room_policies.py").write_text(SOURCE, encoding="utf-8")
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
        (info / "METADATA").write_text(text, encoding="utf-8")
        (info / "entry_points.txt").write_text(entries, encoding="utf-8")
        monkeypatch.syspath_prepend(str(tmp_path))

    return install


def standard(view: View, micro_batches: int) -> Callable[[], Plan]:
    return lambda: StandardPlanner().plan(view, micro_batches, ())


def asked(view: View = TRIANGLE, away: tuple[bytes, ...] = ()) -> PolicyRequest:
    return request_of(view, 6, away, Measures(), 1e6)


def test_an_installed_policy_plans(installed: Callable[[str, str], None]) -> None:
    installed("room_policies", ENTRIES)
    plan = custom_plan(load_policy("star"), asked(), TRIANGLE, standard(TRIANGLE, 6))
    assert plan == Plan((b"", node(1), node(1)), (6, 0, 0), "all on the first device")


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("rootless", "ValueError: n1 is in or below a cycle, under no root"),
        ("broken", "RuntimeError: no idea"),
    ],
)
def test_an_installed_policy_that_fails_is_replaced(
    installed: Callable[[str, str], None], name: str, fault: str
) -> None:
    installed("room_policies", ENTRIES)
    other = StandardPlanner().plan(TRIANGLE, 6, ())
    plan = custom_plan(load_policy(name), asked(), TRIANGLE, standard(TRIANGLE, 6))
    assert (plan.parents, plan.shares) == (other.parents, other.shares)
    said = f"the custom policy failed ({fault}), so the standard one: {other.reason}"
    assert plan.reason == said


def test_what_is_not_installed_is_named(installed: Callable[[str, str], None]) -> None:
    with pytest.raises(UsageError, match=r"^no installed package has a policy 'star'; installed:"):
        load_policy("star")
    installed("room_policies", ENTRIES)
    with pytest.raises(UsageError, match=r"'sun'.*: broken, gone, nowhere, number, rootless, star"):
        load_policy("sun")
    for name, fault in (
        ("gone", r"\(room_policies:gone\) cannot be loaded: AttributeError"),
        ("nowhere", r"cannot be loaded: ModuleNotFoundError: No module named 'no_such_module"),
        ("number", r"\(room_policies:number\) is no function"),
    ):
        with pytest.raises(UsageError, match=fault):
            load_policy(name)


def test_one_name_for_two_policies_is_refused(installed: Callable[[str, str], None]) -> None:
    installed("room_policies", ENTRIES)
    installed("other_policies", "[edgeagent.policies]\nstar = room_policies:rootless\n")
    with pytest.raises(UsageError, match=r"more than once: .*room_policies:(star|rootless)"):
        load_policy("star")
    installed("again_policies", "[edgeagent.policies]\nbroken = room_policies:broken\n")
    assert load_policy("broken").__name__ == "broken"  # the same one twice is one


def test_a_request_says_all_that_is_known() -> None:
    view = view_of(3, [(1, 2), (2, 3)])
    there = Rate(0.5, 10.0)
    measures = Measures({(node(1), node(2)): there}, {node(2): 0.25})
    request = request_of(view, 6, (node(3),), measures, 1e6)
    assert request == PolicyRequest(
        (
            PolicyMember(node(1), "n1", None, away=False),
            PolicyMember(node(2), "n2", 0.25, away=False),
            PolicyMember(node(3), "n3", None, away=True),
        ),
        (PolicyLink(node(1), node(2), there, None), PolicyLink(node(2), node(3), None, None)),
        6,
        1e6,
    )


CHAIN = view_of(4, [(1, 2), (2, 3), (3, 4)])
GOOD = PolicyAnswer(
    {node(1): node(2), node(2): b"", node(3): node(2), node(4): node(3)},
    {node(1): 2, node(2): 2, node(3): 2},
    "two\nlines",
)
HANGING = {node(1): b"", node(2): node(1), node(3): node(4), node(4): node(3)}


def with_parent(number: int, parent: object) -> PolicyAnswer:
    parents: dict[bytes, Any] = dict(GOOD.parents) | {node(number): parent}
    return replace(GOOD, parents=parents)


def with_share(number: int, share: object) -> PolicyAnswer:
    shares: dict[bytes, Any] = dict(GOOD.shares) | {node(number): share}
    return replace(GOOD, shares=shares)


FAULTS = [
    (with_parent(9, node(1)), "00000000 is in the tree and no member"),
    (replace(GOOD, parents={node(1): b""}), "n2 has no place in the tree"),
    (with_parent(4, node(9)), "n4's parent 00000000 is no member"),
    (with_parent(4, None), "n4's parent None is no member"),
    (with_parent(4, node(1)), "n4 has no link to its parent n1"),
    (with_parent(4, node(4)), "n4 has no link to its parent n4"),
    (with_parent(4, b""), "n2 and n4 are both roots"),
    (replace(GOOD, parents=HANGING), "n3 is in or below a cycle, under no root"),
    (with_parent(2, node(1)), "n1 is in or below a cycle, under no root"),
    (with_share(9, 1), "00000000 has a share and is no member"),
    (with_share(3, 2.0), "n3's share 2.0 is no whole number"),
    (with_share(3, None), "n3's share None is no whole number"),
    (with_share(3, -2), "n3's share -2 is negative"),
    (with_share(4, 1), "n4 is away and has a share"),
    (with_share(3, 3), r"the shares add up to 7 of 6 micro-batches \(the largest, 3, is n3's\)"),
    (with_share(3, 1), "the shares add up to 5 of 6 micro-batches"),
]


@pytest.mark.parametrize(("answer", "fault"), FAULTS, ids=[fault for _, fault in FAULTS])
def test_what_is_wrong_with_an_answer_is_named(answer: PolicyAnswer, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        checked(answer, CHAIN, 6, (node(4),))


def test_a_valid_answer_is_a_plan() -> None:
    plan = checked(GOOD, CHAIN, 6, (node(4),))
    assert plan == Plan((node(2), b"", node(2), node(3)), (2, 2, 2, 0), "two lines")
    last = replace(GOOD, shares={node(4): 6})
    assert checked(last, CHAIN, 6, CHAIN.nodes).shares == (0, 0, 0, 6)  # all are away


def test_anything_else_is_no_answer() -> None:
    nothing: Any = None
    with pytest.raises(ValueError, match="the answer is a NoneType, not a PolicyAnswer"):
        checked(nothing, CHAIN, 6)
    lists: Any = {node(k): [] for k in range(1, 5)}
    odd: list[Any] = [
        nothing,
        replace(GOOD, parents=nothing),
        replace(GOOD, parents=lists),
        replace(GOOD, shares=lists),
        replace(GOOD, shares=7 * [node(1)]),  # type: ignore[arg-type] # as users do
        replace(GOOD, reason=nothing),
    ]
    for answer in odd:
        policy: CustomPolicy = partial(lambda given, _: given, answer)
        plan = custom_plan(policy, asked(CHAIN), CHAIN, standard(CHAIN, 6))
        assert plan.reason.startswith("the custom policy failed (")
        assert plan.parents == StandardPlanner().plan(CHAIN, 6, ()).parents


def test_whoever_is_away_gets_no_share_from_a_custom_policy() -> None:
    answer = replace(GOOD, shares={node(4): 6})
    request = asked(CHAIN, (node(4),))
    plan = custom_plan(lambda _: answer, request, CHAIN, standard(CHAIN, 6))
    assert "n4 is away and has a share" in plan.reason
    assert custom_plan(lambda _: answer, asked(CHAIN), CHAIN, standard(CHAIN, 6)).shares[3] == 6


def test_reasons_are_one_line_of_bounded_length() -> None:
    long = checked(replace(GOOD, reason="\ud800 ä" * 9999), CHAIN, 6)
    assert len(long.reason.encode()) <= MAX_REASON_BYTES
    assert long.reason.startswith("? ä? ä")

    def loud(request: PolicyRequest) -> PolicyAnswer:
        raise ValueError("x" * 9999)

    plan = custom_plan(loud, asked(CHAIN), CHAIN, standard(CHAIN, 6))
    assert plan.reason.count("x") < MAX_FAULT_LETTERS
    assert plan.reason.endswith(StandardPlanner().plan(CHAIN, 6, ()).reason)


@given(st.data())
def test_an_answer_is_valid_just_if_a_policy_takes_it(data: st.DataObject) -> None:
    view = data.draw(st.sampled_from([TRIANGLE, CHAIN, view_of(1), view_of(2)]))
    above = st.sampled_from([b"", *view.nodes])
    parents = {n: data.draw(above) for n in view.nodes}
    shares = {n: data.draw(st.integers(-1, 3)) for n in view.nodes}
    micro_batches = data.draw(st.integers(1, 6))
    answer = PolicyAnswer(parents, shares, "any")
    try:
        Policy(1, 1, view, tuple(parents.values()), tuple(shares.values()), (), "any")
        valid = sum(shares.values()) == micro_batches and min(shares.values()) >= 0
    except ValueError:
        valid = False
    if valid:
        plan = checked(answer, view, micro_batches)
        assert (plan.parents, plan.shares) == (tuple(parents.values()), tuple(shares.values()))
    else:
        with pytest.raises(ValueError, match=r"n\d"):
            checked(answer, view, micro_batches)

"""Admission: which agents are let in, which are not, and what each side is told."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import pytest

from edgeagent.errors import JobMismatch, JoinRefused
from edgeagent.recipe import Recipe
from edgeagent.transport import join_client, join_listener, join_wire, tls
from edgeagent.transport.certificate import make_certificate, node_id
from edgeagent.transport.errors import Expelled, NotReady, OtherToken, SameIdentity, Unreachable
from edgeagent.transport.identity import Identity, write_private
from edgeagent.transport.join_client import ask_recipe
from edgeagent.transport.join_streams import JoinSecret, JoinStream
from edgeagent.transport.proof import Role, Transcript, make_proof
from edgeagent.transport.token import job_tag
from protocols import limits
from protocols.errors import LocalProtocolError
from protocols.wire.packing import decode_tagged, encode_tagged

from .helpers import JOB, LOOPS, OTHER_TOKEN, TOKEN, Agent, agent, changed, identity, run, until

if TYPE_CHECKING:
    from edgeagent.transport.job import Job
    from protocols.wire.message import Message

pytestmark = pytest.mark.parametrize("loop_name", LOOPS)
SECRET = JoinSecret(TOKEN, "room")
Body = Callable[[Agent, Agent, str], Awaitable[None]]


def serve(body: Body, loop_name: str, **options: Any) -> Agent:
    """Run `body(anna, ben, address of anna)`; `options` are ben's; return anna."""
    anna = agent("anna")

    async def main() -> None:
        ben = agent("ben", **options)
        try:
            await anna.start()
            await ben.start()
            await body(anna, ben, anna.join_addresses[0])
        finally:
            await ben.transport.stop()
            await anna.transport.stop()

    run(main, loop_name)
    return anna


def test_a_joiner_with_token_and_job_is_admitted(loop_name: str) -> None:
    async def body(anna: Agent, ben: Agent, address: str) -> None:
        standing = await ben.transport.join(address)
        assert standing == anna.standing()
        assert [c.peer for c in anna.candidates] == [ben.me]
        assert anna.heard == ben.join_addresses

    assert serve(body, loop_name).lines == []


def test_asking_proves_the_token_and_admits_nobody(loop_name: str) -> None:
    async def body(anna: Agent, ben: Agent, address: str) -> None:
        assert (await ben.transport.ask(address)).me == anna.me
        assert anna.heard == ben.join_addresses
        with pytest.raises(LocalProtocolError):
            await ben.transport.join(address)
        assert anna.candidates == []

    assert serve(body, loop_name, job_fields=None).lines == []


@pytest.mark.parametrize("told", [None, Recipe("digits", (("--steps", "5"),))])
def test_who_proves_the_token_is_told_the_recipe_of_the_job(
    loop_name: str, told: Recipe | None
) -> None:
    async def body(anna: Agent, ben: Agent, address: str) -> None:
        anna.recipe_told = told
        standing, recipe = await ask_recipe(address, ben.me, SECRET)
        assert (standing.me, recipe) == (anna.me, told)
        assert anna.candidates == []
        assert anna.heard == ()
        with pytest.raises(OtherToken):
            await ask_recipe(address, ben.me, JoinSecret(OTHER_TOKEN, "room"))

    serve(body, loop_name)


def test_an_older_agent_does_not_tell_its_job(
    loop_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(anna: Agent, ben: Agent, address: str) -> None:
        def older(data: bytes, *kinds: type[Message]) -> Any:
            known: Any = [kind for kind in kinds if kind is not join_wire.RecipeWanted]
            return decode_tagged(data, *known)

        monkeypatch.setattr(join_listener, "decode_tagged", older)
        with pytest.raises(JoinRefused, match="it runs an older edgeagent"):
            await ask_recipe(address, ben.me, SECRET)

    serve(body, loop_name)


@pytest.mark.parametrize("options", [{"token": OTHER_TOKEN}, {"cluster": "attic"}])
def test_another_token_or_cluster_is_refused(loop_name: str, options: dict[str, Any]) -> None:
    async def body(anna: Agent, ben: Agent, address: str) -> None:
        for attempt in (ben.transport.ask, ben.transport.join):
            with pytest.raises(JoinRefused, match="token or its cluster name differs") as caught:
                await attempt(address)
            assert address in str(caught.value)
        assert anna.candidates == []
        assert anna.heard == ()

    anna = serve(body, loop_name, **options)
    assert anna.lines == [
        "refused a connection from 127.0.0.1: its token or its cluster name is not ours",
        "refused 1 more connection from 127.0.0.1: its token or its cluster name is not ours",
    ]


def test_after_a_change_of_the_token_only_the_new_one_counts(loop_name: str) -> None:
    """In both roles, on listeners that are open; a link that is up stays."""

    async def body(anna: Agent, ben: Agent, address: str) -> None:
        await ben.transport.join(address)
        ben.transport.trust(anna.me.certificate)
        await ben.transport.dial(anna.me)
        anna.transport.use_token(OTHER_TOKEN)
        for attempt in (ben.transport.ask, ben.transport.join):
            with pytest.raises(JoinRefused, match="token or its cluster name differs"):
                await attempt(address)
        with pytest.raises(JoinRefused, match="token or its cluster name differs"):
            await anna.transport.ask(ben.join_addresses[0])
        assert len(anna.candidates) == 1
        ben.transport.use_token(OTHER_TOKEN)
        assert (await ben.transport.join(address)).me == anna.me
        assert (await anna.transport.ask(ben.join_addresses[0])).me == ben.me
        assert len(anna.candidates) == 2
        assert anna.live()
        assert ben.live()
        text = "".join([*anna.lines, *ben.lines, repr(vars(anna.transport))])
        assert OTHER_TOKEN.hex() not in text
        assert repr(OTHER_TOKEN) not in text

    serve(body, loop_name)


def test_a_token_that_is_set_before_the_start_is_the_one(loop_name: str) -> None:
    async def body(anna: Agent, ben: Agent, address: str) -> None:
        assert (await ben.transport.ask(address)).me == anna.me

    anna = agent("anna", token=OTHER_TOKEN)
    anna.transport.use_token(TOKEN)

    async def main() -> None:
        ben = agent("ben")
        try:
            await anna.start()
            await body(anna, ben, anna.join_addresses[0])
        finally:
            await ben.transport.stop()
            await anna.transport.stop()

    run(main, loop_name)


@pytest.mark.parametrize("proven", [False, True])
def test_a_join_under_way_is_not_let_in_with_the_old_token(loop_name: str, proven: bool) -> None:
    """The token changes after the hellos, or after the proofs."""

    async def body(anna: Agent, ben: Agent, address: str) -> None:
        stream = await connected(address)
        transcript = await greet(stream, ben, bytes(32), JOB)
        if not proven:
            anna.transport.use_token(OTHER_TOKEN)
        proof = make_proof(TOKEN, Role.JOINER, transcript)
        said = join_wire.JoinerProof(proof, transcript.joiner_job)
        await stream.write(encode_tagged(said))
        if proven:
            decode_tagged(await stream.read(1 << 20), join_wire.ServerProof)
            anna.transport.use_token(OTHER_TOKEN)
            enter = join_wire.Enter(1, "ben", ben.me.addresses, ())
            await stream.write(encode_tagged(enter))
            refusal = decode_tagged(await stream.read(8192), join_wire.Refusal)
        else:
            refusal = decode_tagged(await stream.read(8192), join_wire.Refusal)
        assert refusal is not None
        assert refusal.reason is join_wire.Reason.TOKEN
        assert anna.candidates == []
        stream.abort()

    anna = serve(body, loop_name)
    assert len(anna.lines) == 1
    assert "its token or its cluster name is not ours" in anna.lines[0]


def test_an_expelled_key_is_refused_whatever_its_token(loop_name: str) -> None:
    async def body(anna: Agent, ben: Agent, address: str) -> None:
        anna.barred = ben.identity.node
        assert (await ben.transport.ask(address)).me == anna.me
        with pytest.raises(Expelled, match="a user has expelled this device"):
            await ben.transport.join(address)
        assert anna.candidates == []

    anna = serve(body, loop_name)
    assert anna.lines == ["refused a connection from 127.0.0.1: a user has expelled it"]


def test_a_stranger_cannot_make_a_joiner_believe_that_it_was_expelled(loop_name: str) -> None:
    async def lie(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        stream = JoinStream(reader, writer)
        await stream.read(8192)
        refusal = join_wire.Refusal(join_wire.Reason.EXPELLED, (1,))
        await stream.write(encode_tagged(refusal))
        await stream.close()

    async def body(anna: Agent, ben: Agent, address: str) -> None:
        context = tls.join_server_context(identity("mallory"))
        server = await asyncio.start_server(lie, "127.0.0.1", 0, ssl=context)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(JoinRefused, match="refused us") as caught:
            await ben.transport.join(f"127.0.0.1:{port}")
        assert not isinstance(caught.value, Expelled)
        server.close()
        await server.wait_closed()

    serve(body, loop_name)


def test_another_job_is_refused_naming_the_first_difference(loop_name: str) -> None:
    async def body(anna: Agent, ben: Agent, address: str) -> None:
        with pytest.raises(
            JobMismatch, match=r"trains another job: lr is 0\.1 there and 0\.5 here"
        ):
            await ben.transport.join(address)
        assert (await ben.transport.ask(address)).me == anna.me
        assert anna.candidates == []

    job = (("optimizer", "SGD"), ("lr", "0.5"), ("global_batch", "512"))
    anna = serve(body, loop_name, job_fields=job)
    assert anna.lines == [
        "refused a connection from 127.0.0.1: it trains another job; "
        "its own terminal says what differs"
    ]


def test_another_job_is_refused_naming_it(loop_name: str) -> None:
    there = (("about job", "digits"), ("global batch", "128"), ("model", "Net()"))
    here = (("about job", "text"), ("global batch", "64"), ("model", "GPT2()"))

    async def body(anna: Agent, ben: Agent, address: str) -> None:
        anna.job_fields = there
        expected = "job is digits there and text here; model is Net there and GPT2 here"
        with pytest.raises(JobMismatch, match=f"trains another job: {expected}"):
            await ben.transport.join(address)

    serve(body, loop_name, job_fields=here)


def test_a_joiner_whose_updates_round_differently_is_told_why(loop_name: str) -> None:
    there = (("about processor", "x86-64"), ("about torch", "torch 2"), ("update", "1"))
    here = (("about processor", "aarch64"), ("about torch", "torch 2"), ("update", "2"))

    async def body(anna: Agent, ben: Agent, address: str) -> None:
        anna.job_fields = there
        expected = (
            "its updates round differently; there: x86-64; here: aarch64; .* --shard-optimizer"
        )
        with pytest.raises(JobMismatch, match=f"cannot train with this device: {expected}"):
            await ben.transport.join(address)

    serve(body, loop_name, job_fields=here)


def test_a_server_without_a_job_says_that_it_is_founding(loop_name: str) -> None:
    async def body(anna: Agent, ben: Agent, address: str) -> None:
        anna.job_fields = None
        assert (await ben.transport.ask(address)).phase == "founding"
        with pytest.raises(NotReady) as caught:
            await ben.transport.join(address)
        assert caught.value.standing.phase == "founding"
        assert anna.candidates == []

    assert serve(body, loop_name).lines == []


def test_other_versions_are_refused_on_both_sides(loop_name: str) -> None:
    async def body(anna: Agent, ben: Agent, address: str) -> None:
        with pytest.raises(JoinRefused, match=r"speaks protocol version 1 and this agent 7, 9"):
            await join_client.ask(address, ben.me, SECRET, (7, 9))
        assert (await join_client.ask(address, ben.me, SECRET, (9, 1))).me == anna.me

    anna = serve(body, loop_name)
    assert anna.lines == [
        "refused a connection from 127.0.0.1: it speaks only protocol version 7, 9 and this agent "
        "1: install the same edgeagent on both"
    ]


def test_a_copy_of_the_own_key_is_recognised(loop_name: str) -> None:
    async def body(anna: Agent, ben: Agent, address: str) -> None:
        with pytest.raises(SameIdentity) as caught:
            await ben.transport.join(address)
        assert caught.value.standing.me.incarnation == 1
        assert anna.candidates == []

    assert serve(body, loop_name, identity=identity("anna"), incarnation=2).lines == []


def test_nobody_there_is_unreachable(loop_name: str) -> None:
    async def body(anna: Agent, ben: Agent, address: str) -> None:
        await anna.transport.stop()
        with pytest.raises(Unreachable, match="cannot be reached"):
            await ben.transport.ask(address)
        with pytest.raises(Unreachable, match="cannot be reached"):
            await ben.transport.ask("name.invalid:7430")

    serve(body, loop_name)


@pytest.mark.parametrize(
    ("says", "match"),
    [(b"HTTP/1.1 400 Bad Request\r\n\r\n", "not as an agent"), (b"", "closed|reset|reached")],
)
def test_something_else_there_is_unreachable(loop_name: str, says: bytes, match: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(says)
        writer.close()

    async def body(anna: Agent, ben: Agent, address: str) -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(Unreachable, match=match):
            await ben.transport.ask(f"127.0.0.1:{port}")
        server.close()
        await server.wait_closed()

    serve(body, loop_name)


def test_silence_ends_in_time(loop_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "JOIN_SECONDS", 0.2)

    async def body(anna: Agent, ben: Agent, address: str) -> None:
        held: list[asyncio.StreamWriter] = []

        async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            held.append(writer)
            with contextlib.suppress(OSError):
                await reader.read()
            writer.close()

        server = await asyncio.start_server(hold, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(Unreachable, match="did not answer within"):
            await ben.transport.ask(f"127.0.0.1:{port}")
        server.close()
        await server.wait_closed()

    serve(body, loop_name)


async def connected(address: str) -> JoinStream:
    host, port = address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(
        host, int(port), ssl=tls.unauthenticated_client_context(), server_hostname=""
    )
    return JoinStream(reader, writer)


async def greet(stream: JoinStream, me: Agent, nonce: bytes, job: Job | None = None) -> Transcript:
    """Send a hello as `me` would; return the transcript that a right proof must cover."""
    hello = join_wire.JoinerHello((1,), nonce, me.me.certificate)
    await stream.write(encode_tagged(hello))
    answer = decode_tagged(await stream.read(8192), join_wire.ServerHello)
    return Transcript(
        "room",
        (1,),
        answer.versions,
        answer.chosen,
        job_tag(TOKEN, job, nonce, answer.nonce),
        answer.job_tag,
        node_id(stream.peer_certificate),
        me.me.node,
        nonce,
        answer.nonce,
    )


def proof_frame(proof: bytes) -> bytes:
    return encode_tagged(join_wire.JoinerProof(proof, b""))


def test_a_replayed_proof_is_refused(loop_name: str) -> None:
    async def body(anna: Agent, ben: Agent, address: str) -> None:
        first = await connected(address)
        transcript = await greet(first, ben, bytes(32))
        proof = proof_frame(make_proof(TOKEN, Role.JOINER, transcript))
        await first.write(proof)
        decode_tagged(await first.read(1 << 20), join_wire.ServerProof)
        first.abort()
        second = await connected(address)
        await greet(second, ben, bytes(32))
        await second.write(proof)
        refusal = decode_tagged(await second.read(1 << 20), join_wire.Refusal)
        assert refusal == join_wire.Refusal(join_wire.Reason.TOKEN, (1,))
        with pytest.raises(EOFError):
            await second.read(1 << 20)
        second.abort()

    serve(body, loop_name)


def test_the_servers_proof_cannot_be_had_without_the_token(loop_name: str) -> None:
    """A wrong proof gets one refusal; a second proof on the connection is not even read."""

    async def body(anna: Agent, ben: Agent, address: str) -> None:
        stream = await connected(address)
        transcript = await greet(stream, ben, bytes(32))
        await stream.write(proof_frame(bytes(32)))
        with contextlib.suppress(OSError):
            right = make_proof(TOKEN, Role.JOINER, transcript)
            await stream.write(proof_frame(right))
        decode_tagged(await stream.read(1 << 20), join_wire.Refusal)
        with pytest.raises((EOFError, OSError)):
            await stream.read(1 << 20)
        stream.abort()

    serve(body, loop_name)


def test_a_server_without_the_token_is_not_believed(loop_name: str) -> None:
    """A stranger that answers like an agent, and one that relays to a true one."""

    async def body(anna: Agent, ben: Agent, address: str) -> None:
        context = tls.join_server_context(identity("mallory"))

        async def lie(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            stream = JoinStream(reader, writer)
            await stream.read(8192)
            hello = join_wire.ServerHello((1,), 1, bytes(32), b"")
            await stream.write(encode_tagged(hello))
            await stream.read(8192)
            me = changed(anna.me, node=bytes(32), certificate=identity("mallory").certificate)
            standing = anna.standing()
            said = join_wire.server_proof(bytes(32), changed_standing(standing, me))
            await stream.write(encode_tagged(said))
            await stream.close()

        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            inside, outside = JoinStream(reader, writer), await connected(address)
            with contextlib.suppress(EOFError, OSError):
                while True:
                    await outside.write(await inside.read(1 << 20))
                    await inside.write(await outside.read(1 << 20))
            outside.abort()
            await inside.close()

        for answer, match in ((lie, "could not prove"), (relay, "differs")):
            server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(JoinRefused, match=match):
                await ben.transport.ask(f"127.0.0.1:{port}")
            server.close()
            await server.wait_closed()
        assert anna.candidates == []

    serve(body, loop_name)


def changed_standing(standing: Any, me: Any) -> Any:
    return type(standing)(me, "member", 0, 1, bytes(16), bytes(32), ())


def test_an_authoritys_certificate_is_not_admitted(loop_name: str, tmp_path: Any) -> None:
    pem, der = make_certificate(authority=True)
    write_private(str(tmp_path / "ca.pem"), pem)
    authority = Identity(node_id(der), der, str(tmp_path / "ca.pem"))

    async def body(anna: Agent, ben: Agent, address: str) -> None:
        with pytest.raises(Unreachable):
            await ben.transport.join(address)
        assert anna.candidates == []

    anna = serve(body, loop_name, identity=authority)
    assert anna.lines == [
        "refused a connection from 127.0.0.1: broke the join protocol: "
        "certificate of an authority instead of a node's own"
    ]


def test_more_joins_at_once_than_allowed_are_told_to_come_back(
    loop_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_OPEN_JOINS", 1)

    async def body(anna: Agent, ben: Agent, address: str) -> None:
        slow = await connected(address)
        transcript = await greet(slow, ben, bytes(32))
        proof = make_proof(TOKEN, Role.JOINER, transcript)
        await slow.write(proof_frame(proof))
        await slow.read(1 << 20)
        with pytest.raises(Unreachable, match="busy"):
            await ben.transport.join(address)
        slow.abort()
        await until(lambda: len(asyncio.all_tasks()) <= 5, "the slow join is over")
        await ben.transport.join(address)

    serve(body, loop_name)


def test_a_stranger_in_the_agents_place_learns_nothing_of_the_joiner(loop_name: str) -> None:
    """A joiner sends a server that cannot prove the token neither its name nor an address, and
    nothing except its certificate that is the same the next time."""

    async def body(anna: Agent, ben: Agent, address: str) -> None:
        context = tls.join_server_context(identity("mallory"))
        heard: list[list[bytes]] = []

        async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            stream = JoinStream(reader, writer)
            said = [await stream.read(8192)]
            hello = join_wire.ServerHello((1,), 1, bytes(32), bytes(32))
            await stream.write(encode_tagged(hello))
            said.append(await stream.read(8192))
            me = changed(anna.me, node=bytes(32), certificate=identity("mallory").certificate)
            standing = changed_standing(anna.standing(), me)
            await stream.write(encode_tagged(join_wire.server_proof(bytes(32), standing)))
            with contextlib.suppress(EOFError, OSError):
                said.append(await stream.read(8192))
            heard.append(said)
            await stream.close()

        server = await asyncio.start_server(listen, "127.0.0.1", 0, ssl=context)
        port = server.sockets[0].getsockname()[1]
        for attempt in (ben.transport.join, ben.transport.join, ben.transport.ask):
            with pytest.raises(JoinRefused, match="could not prove"):
                await attempt(f"127.0.0.1:{port}")
        await until(lambda: len(heard) == 3, "all was heard")
        server.close()
        await server.wait_closed()
        assert [len(said) for said in heard] == [2, 2, 2]
        where = [text.encode() for text in (*ben.me.addresses, *ben.join_addresses)]
        for hello, proof in heard:
            assert not any(secret in hello + proof for secret in (b"ben", *where))
        tags = [decode_tagged(said[1], join_wire.JoinerProof).job_tag for said in heard]
        assert tags[0] != tags[1]
        assert tags[2] == b""

    serve(body, loop_name)


def test_a_joiner_without_the_token_sees_another_job_tag_each_time(loop_name: str) -> None:
    async def body(anna: Agent, ben: Agent, address: str) -> None:
        tags = []
        for _ in range(2):
            stream = await connected(address)
            tags.append((await greet(stream, ben, bytes(32))).server_job)
            stream.abort()
        assert tags[0] != tags[1]

    serve(body, loop_name)


def test_an_address_that_no_resolver_takes_is_unreachable(
    loop_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(join_client, "split_address", lambda address: ("a..b", 1))

    async def body(anna: Agent, ben: Agent, address: str) -> None:
        with pytest.raises(Unreachable, match="cannot be reached"):
            await ben.transport.ask("a..b:1")

    serve(body, loop_name)

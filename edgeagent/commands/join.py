"""`edgeagent join [CODE]`: gets into a cluster, and trains what the cluster trains.

With a code this device first takes the cluster's token from the device that has shown the code, and
keeps it under the cluster's name. Then it asks an agent of the cluster for the recipe of the job. A
built-in job runs at once. A script of another device is shown, and runs only after a yes.
"""

from __future__ import annotations

import os
import shlex
import sys
from typing import TYPE_CHECKING

from edgeagent.commands.options import add_command, node_name
from edgeagent.errors import EdgeAgentError, UsageError
from edgeagent.terminal.text import clean

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from edgeagent.commands.options import Commands
    from edgeagent.recipe import Recipe
    from edgeagent.recipe_search import Told
    from edgeagent.transport.pairing import Offer

PIECE = 400  # characters of a script's arguments in one line

DESCRIPTION = """\
Get into a cluster and train what it trains. With the code that `edgeagent
invite` shows on another device, this one takes the cluster's token and keeps
it under the cluster's name; later the name is enough. Then an agent of the
cluster is asked for the job. A built-in job runs at once; a script is named
with its digest, and runs only after your yes. What you type next time is
printed, too.
"""
EXAMPLES = """\
  edgeagent join 27-4819-2730                       pair, then train
  edgeagent join                                    train with the token kept
  edgeagent join --cluster lab --show               print the script that others
                                                    train, and do nothing
  edgeagent join 27-4819-2730 --no-run              pair only
  edgeagent join 27-4819-2730 --peer 192.168.1.20:7432
"""


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    parser = add_command(
        commands,
        "join",
        execute,
        summary="get into a cluster, by a code or a kept token, and train what it trains",
        description=DESCRIPTION,
        examples=EXAMPLES,
    )
    parser.add_argument(
        "code",
        metavar="CODE",
        nargs="?",
        help="the ten digits; dashes may be left out; - to be asked for them, where other users of "
        "this device could see a command line",
    )
    parser.add_argument(
        "--cluster",
        metavar="NAME",
        type=node_name,
        help="without a code: the cluster whose token is kept here (default EDGEAGENT_CLUSTER, "
        'else "default")',
    )
    parser.add_argument(
        "--peer",
        metavar="HOST[:PORT]",
        help="with a code: address of the inviting device, as it shows it (default PORT 7432); "
        "without: of an agent (default PORT 7430)",
    )
    parser.add_argument(
        "--replace",
        action="store_true",
        help="keep the token even if another is kept for a cluster of the same name",
    )
    after = parser.add_mutually_exclusive_group()
    after.add_argument("--no-run", action="store_true", help="only pair, and train nothing")
    after.add_argument(
        "--show", action="store_true", help="print the script that the cluster trains, and end"
    )
    after.add_argument(
        "--accept",
        metavar="DIGEST",
        help="run the script with this digest without asking (needed where there is no terminal)",
    )


def execute(args: argparse.Namespace) -> int:
    """Pair if there is a code, ask for the job and run it; return the exit status."""
    from edgeagent.config import split_address, state_root

    if args.code is None and (args.no_run or args.replace):
        raise UsageError("--no-run and --replace go with a code")
    if args.code is not None and args.cluster:
        raise UsageError("the code says which cluster it is: leave --cluster away")
    if args.peer:
        split_address(args.peer)
    root = state_root(os.environ)
    if args.code is None:
        cluster = args.cluster or _usual_cluster()
        addresses = [args.peer] if args.peer else []
    else:
        cluster = _pair(args, root)
        # The address was that of `edgeagent invite`; an agent may listen beside it.
        addresses = _beside(args.peer) if args.peer else []
    if args.no_run:
        return _say_how(cluster)
    try:
        told = _ask(root, cluster, addresses, mdns=not args.peer)
    except UsageError:
        raise
    except EdgeAgentError as error:
        if args.code is None or args.show or args.accept:
            raise
        _say(f"paired, but nothing to run yet: {error}")
        return _say_how(cluster)
    if args.show:
        return _show(told)
    others = _cluster_words(cluster)
    if args.peer:
        others += ["--peer", told.address]
    job = _job(told, root, cluster, args.accept, others)
    return _run(told, job, root, cluster, others, args.parse)


def _pair(args: argparse.Namespace, root: str) -> str:
    """Take the token from the inviting device and keep it; return the cluster's name."""
    from edgeagent.local.token_store import keep_token
    from edgeagent.runtime import agent_runner
    from edgeagent.transport.pairing_client import Invitee
    from edgeagent.transport.pairing_code import parse_code
    from edgeagent.transport.token import token_text

    code = parse_code(_typed_code() if args.code == "-" else args.code)
    kept: list[str] = []

    def store(offer: Offer) -> None:
        kept.append(keep_token(root, offer.cluster, token_text(offer.token)))

    invitee = Invitee(code, _own_name(), _agreement(root, args.replace), store)
    with agent_runner() as runner:
        pairing = invitee.pair_with(_inviter(args.peer)) if args.peer else invitee.find()
        offer = runner.run(pairing)
    _say(f"{offer.inviter} lets this device into cluster {offer.cluster!r}")
    _say(f"its token is kept in {kept[-1]}")
    return offer.cluster


def _inviter(peer: str) -> str:
    """Return the address at which an invitation on the host of `peer` waits, unless told
    otherwise."""
    from edgeagent.config import PAIRING_PORT, join_address, split_address

    return join_address(*split_address(peer, PAIRING_PORT))


def _typed_code() -> str:
    """Return the code that the user types, without a question if nobody sits at a terminal."""
    if sys.stdin.isatty() and sys.stderr.isatty():
        sys.stderr.write("edgeagent: the code: ")
        sys.stderr.flush()
    return sys.stdin.readline().strip()


def _ask(root: str, cluster: str, addresses: Sequence[str], *, mdns: bool) -> Told:
    """Return the recipe of an agent of `cluster`, whose token is kept here."""
    from edgeagent.local.token_store import stored_token
    from edgeagent.recipe_search import find_recipe
    from edgeagent.runtime import agent_runner
    from edgeagent.transport.token import parse_token

    text = stored_token(root, cluster)
    if text is None:
        raise UsageError(
            f"no token of cluster {cluster!r} is kept here: run `edgeagent invite` on a device "
            "that is in it, and `edgeagent join CODE` here"
        )
    with agent_runner() as runner:
        asking = find_recipe(parse_token(text), cluster, _own_name(), addresses, mdns=mdns)
        return runner.run(asking)


def _job(told: Told, root: str, cluster: str, accepted: str | None, others: Sequence[str]) -> str:
    """Return what `edgeagent run` is to run: a built-in job, or the path of the script, to which
    the user has agreed."""
    from edgeagent.launch import BUILT_IN_JOBS

    if told.recipe.script is not None:
        return _agreed(told, root, cluster, accepted, others)
    if told.recipe.job not in BUILT_IN_JOBS:
        raise EdgeAgentError(
            f"{told.name} trains the built-in job {told.recipe.job!r}, which this edgeagent does "
            "not have: install the same one on both"
        )
    return told.recipe.job


def _run(
    told: Told,
    job: str,
    root: str,
    cluster: str,
    others: Sequence[str],
    parse: Callable[[Sequence[str]], argparse.Namespace],
) -> int:
    """Run the job as `edgeagent run` would, with the options `others`; return the exit status."""
    from edgeagent.config import TOKEN_VARIABLE
    from edgeagent.local.token_store import token_path

    if os.environ.get(TOKEN_VARIABLE):  # it may be that of another cluster, and would win
        others = [*others, "--token-file", token_path(root, cluster)]
    words = told.recipe.command(job, *others)
    _say(f"{told.name} trains {told.recipe.job}; the same here: edgeagent run {shlex.join(words)}")
    args = parse(["run", *words])
    status: int = args.execute(args)
    return status


def _agreed(
    told: Told, root: str, cluster: str, accepted: str | None, others: Sequence[str]
) -> str:
    """Return the path of the script, which is kept now, if the user agrees to run it. `others` are
    options with which `edgeagent join` finds that cluster again."""
    from edgeagent.local.script_store import is_kept, keep_script

    recipe, text = told.recipe, told.recipe.script or ""
    if is_kept(root, cluster, recipe.job, text, recipe.digest):
        _say(f"{recipe.job} from {told.name} is the script that was accepted here before")
    elif accepted is not None:
        if accepted.lower() != recipe.digest:
            raise EdgeAgentError(
                f"{told.name} trains {recipe.job} with the digest {recipe.digest}, and not what "
                "--accept names"
            )
    elif not _says_yes(told):
        again = shlex.join(["edgeagent", "join", *others])
        raise EdgeAgentError(
            f"not run: {recipe.job} from {told.name}; `{again} --show` prints it, "
            f"`{again} --accept {recipe.digest}` runs it"
        )
    return keep_script(root, cluster, recipe.job, text, recipe.digest)


def _says_yes(told: Told) -> bool:
    """Ask the user, if there is one at a terminal, whether to run the script."""
    recipe, text = told.recipe, told.recipe.script or ""
    _say(
        f"{told.name} trains a script of its own: {recipe.job}, {len(text.encode())} bytes, "
        f"digest {recipe.digest}"
    )
    for line in _argument_lines(recipe):
        _say(line)
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    _say("it can do on this device whatever you can, so run only what you trust")
    while True:
        sys.stderr.write("edgeagent: run it here? [yes/no/show] ")
        sys.stderr.flush()
        answer = sys.stdin.readline()
        match answer.strip().lower():
            case "yes" | "y":
                return True
            case "show" | "s":
                _print_script(recipe)
            case "no" | "n" | "":
                if answer.strip() or not answer:  # a bare Enter is no answer
                    return False


def _show(told: Told) -> int:
    if told.recipe.script is None:
        _say(f"{told.name} trains the built-in job {told.recipe.job}, which has no script")
        return 0
    _say(f"{told.recipe.job} from {told.name}, digest {told.recipe.digest}:")
    for line in _argument_lines(told.recipe):
        _say(line)
    _print_script(told.recipe)
    return 0


def _argument_lines(recipe: Recipe) -> list[str]:
    """Return lines that show the arguments of the script completely, none of them too long to be
    shown as a whole."""
    words = (w if w.isprintable() else repr(w) for w in map(shlex.quote, recipe.arguments))
    shown = " ".join(words)
    pieces = [shown[at : at + PIECE] for at in range(0, len(shown), PIECE)]
    return [("... " if number else "with the arguments ") + p for number, p in enumerate(pieces)]


def _print_script(recipe: Recipe) -> None:
    """Print the script completely. A script with characters that could control a terminal is not
    taken (`legible.py`), and would be shown with their names here."""
    for line in (recipe.script or "").replace("\r\n", "\n").expandtabs(4).split("\n"):
        print("".join(c if c.isprintable() else ascii(c)[1:-1] for c in line))
    sys.stdout.flush()


def _say_how(cluster: str) -> int:
    _say("from now on this trains with the kept token:")
    words = shlex.join(["edgeagent", "run", "JOB", *_cluster_words(cluster)])
    print(clean(words), flush=True)
    return 0


def _usual_cluster() -> str:
    """Return the cluster that a command without `--cluster` means here."""
    from edgeagent.config import agent_config_from_environment

    return agent_config_from_environment(os.environ).cluster


def _cluster_words(cluster: str) -> list[str]:
    """Return the options with which a command means `cluster` here."""
    return [] if cluster == _usual_cluster() else ["--cluster", cluster]


def _beside(peer: str) -> list[str]:
    """Return the address at which an agent on the host of `peer` listens unless told otherwise."""
    from edgeagent.config import DEFAULT_PORT, join_address, split_address

    return [join_address(split_address(peer)[0], DEFAULT_PORT)]


def _own_name() -> str:
    from edgeagent.config import agent_config_from_environment, default_name

    return agent_config_from_environment(os.environ).name or default_name()


def _agreement(root: str, replaces: bool) -> Callable[[str, str], None]:
    """Return the check of an offer, made before the token is sent."""
    from edgeagent.config import is_name
    from edgeagent.local.token_store import stored_token, token_path

    def agree(cluster: str, inviter: str) -> None:
        if not is_name(cluster):
            raise EdgeAgentError(f"{inviter} offers a cluster without a usable name")
        if not replaces and stored_token(root, cluster) is not None:
            raise EdgeAgentError(
                f"a token of a cluster {cluster!r} is kept here already "
                f"({token_path(root, cluster)}): --replace puts that of {inviter} in its place; "
                "the code is still good"
            )

    return agree


def _say(line: str) -> None:
    print(f"edgeagent: {clean(line)}", file=sys.stderr, flush=True)

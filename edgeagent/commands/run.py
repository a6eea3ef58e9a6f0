"""`edgeagent run JOB`: an agent on this device, and the trainer it starts.

Everything that can be wrong with the command line is found before anything starts, so that a
mistake is one line and leaves nothing behind. An option overrules its environment variable, and the
variable overrules the default.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shlex
import stat
import sys
from typing import TYPE_CHECKING

from edgeagent.commands.cluster_options import add_cluster_options, add_planning_options
from edgeagent.commands.job_options import add_device_options, add_job_options, job_settings
from edgeagent.commands.options import (
    add_command,
    checked_interface,
    chosen_neighbours,
    existing_file,
    existing_path,
    present_folder,
    whole,
    writable_file,
)
from edgeagent.config import (
    LOG_LEVELS,
    TOKEN_VARIABLE,
    AgentConfig,
    TrainerConfig,
    agent_config_from_environment,
    listen_address,
    replace,
    saving_from_environment,
    split_address,
    state_root,
)
from edgeagent.errors import EdgeAgentError, JobMismatch, UsageError
from edgeagent.launch import (
    BUILT_IN_JOBS,
    JOBS_WITHOUT_DATA,
    Job,
    TrainerProcess,
    check_device,
    how_it_ended,
    resolve_job,
)
from edgeagent.metrics_server import metrics_address
from edgeagent.standard_streams import complain, outlive_output
from edgeagent.terminal.text import clean, plural, shown_path
from edgeagent.variables import warn_of_unread_variables

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgeagent.commands.options import Commands
    from edgeagent.launch import TrainerProcess
    from edgeagent.recipe import Recipe

# The most bytes of a file with a token. Tokens are far shorter; a longer file is another one.
MAX_TOKEN_FILE_BYTES = 4096
# How many seconds a built-in job may take to end after training, when it has nothing more to do. A
# script of the user's may take as long as it likes, because it may evaluate its model.
BUILT_IN_END_S = 30.0
# Endings of files that people expect to be made by `torch.save`.
PICKLED = (".pt", ".pth", ".ckpt", ".bin", ".pkl", ".pickle")
_DEVICE = re.compile(r"(cpu|mps|cuda(:[0-9]{1,3})?)")
_NO_TOKEN = (
    "no token: make one with `export EDGEAGENT_TOKEN=$(edgeagent token new)` and set the same "
    "on every device, or pass --token-file FILE, or pair two devices with `edgeagent invite` and "
    "`edgeagent join`"
)
_TOKEN_WARNING = (
    "edgeagent: warning: --token is visible to everyone on this device (ps); "
    "use EDGEAGENT_TOKEN or --token-file"
)

DESCRIPTION = f"""\
Run an agent on this device. It finds the others that hold the same token,
joins them (pulling the training state from several of them at once) or founds
the cluster, and trains until the job's steps are done. Ctrl+C leaves
gracefully, twice ends at once.

JOB is a built-in job ({", ".join(BUILT_IN_JOBS[:4])},
{", ".join(BUILT_IN_JOBS[4:])}) or the path of your own script, which uses
edgeagent.Trainer; what follows -- is handed to the script.
"""
EXAMPLES = """\
  export EDGEAGENT_TOKEN=$(edgeagent token new)   make once, set on each device
  edgeagent run digits                            the same on each device
  edgeagent run digits --cluster lab              with the token of a pairing
  edgeagent run cifar10 --data DIR                pictures; text --data FILE
  edgeagent run train.py -- --epochs 5            your script, its arguments
  edgeagent run digits --peer 192.168.1.20:7430   where there is no mDNS
  edgeagent run train.py --dry-run                has this device the memory?
  edgeagent run digits --events - | jq .event     what happens, as JSON lines
"""


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    parser = add_command(
        commands,
        "run",
        execute,
        summary="train on this device, together with the others that hold the token",
        description=DESCRIPTION,
        examples=EXAMPLES,
    )
    parser.usage = "edgeagent run JOB [options] [-- script arguments]"
    parser.add_argument("job", metavar="JOB", help="built-in job or path of a script")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="only say what the job needs of this device's memory and whether it has it: computes "
        "one micro-batch and one update, looks for no cluster, needs no token, saves nothing",
    )
    parser.add_argument("--json", action="store_true", help="with --dry-run: print a JSON object")
    add_cluster_options(parser)
    add_planning_options(parser)
    add_job_options(parser)
    add_device_options(parser)
    files = parser.add_argument_group("files")
    save = files.add_mutually_exclusive_group()
    save.add_argument(
        "--save",
        metavar="PATH",
        help="write the model there at the end and on leaving, in one piece, as safetensors "
        "(default ./edgeagent-JOB.safetensors)",
    )
    save.add_argument("--no-save", action="store_true", help="do not write the model")
    files.add_argument(
        "--save-every",
        metavar="N",
        type=whole,
        help="write the state after every N steps, too, each to a file of its own "
        "(PATH-step-000300.safetensors; default 0, never)",
    )
    files.add_argument(
        "--keep",
        metavar="K",
        type=whole,
        help="how many of the files of --save-every stay (default 3, 0 all)",
    )
    begin = files.add_mutually_exclusive_group()
    begin.add_argument(
        "--resume",
        metavar="PATH",
        action="append",
        help="start from a file that --save wrote; with --shard-optimizer give it once for each "
        "device whose file is needed: together they have the optimizer's state",
    )
    begin.add_argument(
        "--continue",
        dest="continues",
        action="store_true",
        help="start from the file of --save if it is there already, else from the beginning",
    )
    files.add_argument(
        "--data",
        metavar="PATH",
        help="folder of the job's data set; of text the file, of speech-commands also the archive",
    )
    _add_records(files)


def _add_records(files: argparse._ArgumentGroup) -> None:
    """Add the options for what an agent writes down while it runs."""
    files.add_argument(
        "--events",
        metavar="FILE",
        help="append one JSON object a line for each event; - is stdout, "
        "then everything for people goes to stderr",
    )
    files.add_argument(
        "--log-level",
        choices=LOG_LEVELS,
        help="log what the agent is told (debug) and what happens (info), one JSON object a line, "
        "to look for a fault; no token is in it (default: no log)",
    )
    files.add_argument(
        "--log-file", metavar="FILE", help="append the log to FILE instead of writing it to stderr"
    )
    files.add_argument(
        "--log-dir",
        metavar="DIR",
        help="append steps and what the script reports to CSV files in DIR/NODE, and to files for "
        "TensorBoard if that is installed",
    )
    files.add_argument(
        "--metrics",
        metavar="[HOST:]PORT",
        help="serve /metrics to Prometheus there (without HOST on 127.0.0.1 only; default: not)",
    )


def execute(args: argparse.Namespace) -> int:
    """Run the agent and its trainer until both are done; return the exit status."""
    if args.json and not args.dry_run:
        raise UsageError("--json goes with --dry-run; --events - writes what happens as JSON")
    if args.token is not None:
        print(_TOKEN_WARNING, file=sys.stderr)
    warn_of_unread_variables()
    present_folder()
    job = resolve_job(args.job, args.script_arguments)
    agent = None if args.dry_run else agent_config(args, job, os.environ)
    trainer = trainer_config(args, job, os.environ)
    if trainer.device not in ("", "cpu") and (note := check_device(trainer.device, os.environ)):
        print(f"edgeagent: {note}", file=sys.stderr)
    if args.continues and not (trainer.resume or args.join_only or args.dry_run):
        missing = shown_path(trainer.save)
        complain(f"there is no {missing} yet: this device begins anew, or with a cluster's state")
    if agent is not None and args.token_file is not None:
        _warn_of_open_file(args.token_file)
    if agent is None:
        from edgeagent.commands.dry_run import dry_run

        rehearsal = replace(trainer, dry_run=True, save="", save_every=0, keep=None)
        return dry_run(job, rehearsal, as_json=args.json)
    try:
        return _run(job, agent, trainer)
    except JobMismatch as error:
        if error.batch is None or not agent.takes_batch:
            raise
        size, micro = error.batch
    cut = "" if micro is None else f", in micro-batches of {plural(micro, 'sample')}"
    print(
        f"edgeagent: the cluster's global batch is {plural(size, 'sample')}{cut}: "
        "beginning again with that",
        file=sys.stderr,
    )
    args.global_batch, args.micro_batch = size, micro
    agent = agent_config(args, job, os.environ)
    return _run(job, agent, trainer_config(args, job, os.environ))


def agent_config(args: argparse.Namespace, job: Job, environment: Mapping[str, str]) -> AgentConfig:
    """Return the agent's configuration; raise `UsageError` naming the option that is wrong."""
    base = agent_config_from_environment(environment)
    listen = args.listen if args.listen is not None else base.listen
    for address in args.peer:
        split_address(address)
    listen_address(listen or "0")
    events = args.events if args.events is not None else base.events
    if events and events != "-":
        events = writable_file("--events", events)
    log_level = args.log_level or base.log_level
    if args.log_file and not log_level:
        raise UsageError("--log-file goes with --log-level")
    log_file = args.log_file or base.log_file
    if metrics := args.metrics or base.metrics:
        metrics_address(metrics, "--metrics" if args.metrics else "EDGEAGENT_METRICS:")
    log_dir = args.log_dir or base.log_dir
    neighbours, most_links = chosen_neighbours(args.neighbours or "")
    return replace(
        base,
        recipe=recipe_of(args, job),
        cluster=args.cluster or base.cluster,
        token=resolve_token(args, environment),
        name=args.name or base.name,
        job=job.name,
        command=(args.job, *args.script_arguments),
        listen=listen,
        interface=checked_interface(args.interface or base.interface, listen),
        peers=tuple(args.peer) or base.peers,
        mdns=base.mdns and not args.no_mdns,
        neighbours=neighbours or base.neighbours,
        most_links=most_links or base.most_links,
        events=events,
        state_dir=base.state_dir or state_root(environment),
        quiet=events == "-",
        on_partition=args.on_partition or base.on_partition,
        rotate_every=base.rotate_every if args.rotate_every is None else args.rotate_every,
        policy=checked_policy(args.policy or base.policy),
        trees=args.trees or base.trees,
        join_way=args.join or base.join_way,
        standby=args.standby or base.standby,
        join_only=args.join_only or base.join_only,
        wait_for=args.wait_for or base.wait_for,
        join_stall=base.join_stall if args.join_stall is None else args.join_stall,
        log_level=log_level,
        log_file=writable_file("--log-file", log_file) if log_level and log_file else "",
        log_dir=os.path.abspath(log_dir) if log_dir else "",
        metrics=metrics,
        pause_on_battery=args.pause_on_battery or base.pause_on_battery,
        pause_on_activity=args.pause_on_activity or base.pause_on_activity,
        pause_on_metered=args.pause_on_metered or base.pause_on_metered,
        takes_batch=args.global_batch is None and args.micro_batch is None,
    )


def recipe_of(args: argparse.Namespace, job: Job) -> Recipe | None:
    """Return what others need to run the same job: its name or script, and the options that belong
    to it; None if it cannot be told, because the script is too long or no text."""
    from edgeagent.recipe import JOB_OPTIONS, Recipe
    from edgeagent.transport.recipe_wire import MAX_SCRIPT_BYTES, of_script

    given = ((name, _given(args, name)) for name in JOB_OPTIONS)
    options = tuple((name, value) for name, value in given if value is not None)
    if job.built_in:
        return Recipe(job.name, options)
    try:
        with open(args.job, "rb") as file:
            data = file.read(MAX_SCRIPT_BYTES + 1)
    except OSError:
        return None
    return of_script(os.path.basename(args.job), data, options, tuple(args.script_arguments))


def _given(args: argparse.Namespace, option: str) -> str | None:
    """Return the value of an option of the job, "" of a flag; None if it was not given."""
    from edgeagent.recipe import FLAGS

    if option in FLAGS:
        return "" if args.shard_optimizer is FLAGS[option] else None
    value = getattr(args, option[2:].replace("-", "_"))
    return None if value is None else str(value)


def checked_policy(name: str) -> str:
    """Return `name`, the name of a custom policy, "" for none, after loading the policy.

    Raises `UsageError` if it cannot be loaded, because the device may become the scheduler, which
    needs it, only hours later.
    """
    if name:
        from edgeagent.plugins import load_policy

        load_policy(name)
    return name


def trainer_config(
    args: argparse.Namespace, job: Job, environment: Mapping[str, str]
) -> TrainerConfig:
    """Return the trainer's configuration; raise `UsageError` naming the option that is wrong."""
    if args.device is not None and not _DEVICE.fullmatch(args.device):
        raise UsageError(f"--device {args.device}: use cpu, cuda, cuda:N or mps")
    if args.global_batch and args.micro_batch and args.micro_batch > args.global_batch:
        raise UsageError("--micro-batch must not be larger than --global-batch")
    every, keep = saving_from_environment(environment)
    if args.no_save and args.save_every:
        raise UsageError("--save-every needs a place to save to: leave --no-save away")
    save = "" if args.no_save else args.save or f"edgeagent-{job.name}.safetensors"
    if args.save and os.path.splitext(args.save)[1].lower() in PICKLED:
        stem = os.path.splitext(args.save)[0]
        old = " (rename the old file, if it is edgeagent's)" if os.path.exists(args.save) else ""
        raise UsageError(
            f"--save {args.save}: the file is written in the safetensors format, which torch.load()"
            f" does not read: name it {stem}.safetensors{old}; `edgeagent export` makes a .pt of it"
        )
    if args.data and (not job.built_in or job.name in JOBS_WITHOUT_DATA):
        names = ", ".join(name for name in BUILT_IN_JOBS if name not in JOBS_WITHOUT_DATA)
        raise UsageError(
            f"--data is for the built-in jobs that read a data set ({names}): give a script its "
            "data after --, as in `edgeagent run train.py -- --data PATH`"
        )
    if args.keep is not None and job.built_in and not (every if args.save_every is None else 1):
        raise UsageError("--keep is about the files of --save-every N: give that, too")
    if args.continues and not save:
        raise UsageError("--continue needs a file to go on from: leave --no-save away")
    found = [save] if args.continues and os.path.exists(save) else args.resume or []
    option = "--continue" if args.continues else "--resume"
    resume = [_resumable(option, path) for path in found]
    return TrainerConfig(
        job=job.name,
        overlap=args.overlap,
        **job_settings(args, built_in=job.built_in),
        device=args.device or "",
        save=writable_file("--save", save, regular=True) if save else "",
        save_every=every if args.save_every is None else args.save_every,
        keep=keep if args.keep is None else args.keep,
        resume=resume[0] if resume else "",
        continues=bool(args.continues),
        more_parts=tuple(resume[1:]),
        threads=args.threads or 0,
        data=existing_path("--data", args.data) if args.data else "",
        arguments=tuple(args.script_arguments),
    )


def _resumable(option: str, path: str) -> str:
    """Return the absolute `path` of a training state; raise `UsageError` if it is none."""
    from edgeagent.checkpoint_file import check_readable

    found = existing_file(option, path)
    try:
        check_readable(path)
    except UsageError as error:
        raise UsageError(f"{option}: {error}") from None
    return found


def resolve_token(args: argparse.Namespace, environment: Mapping[str, str]) -> str:
    """Return the cluster's token, checked; raise `UsageError` if it is missing or mistyped."""
    if args.token_file is not None:
        text = _read_token_file(args.token_file)
        source = f"--token-file {args.token_file}"
    elif args.token is not None:
        text, source = args.token, "--token"
    else:
        text, source = environment.get(TOKEN_VARIABLE, ""), TOKEN_VARIABLE
        if not text:
            return _kept_token(args.cluster, environment)
    from edgeagent.transport.token import parse_token

    try:
        parse_token(text.strip())
    except (EdgeAgentError, ValueError) as error:
        raise UsageError(f"{source}: {error}") from None
    stripped: str = text.strip()
    return stripped


def _warn_of_open_file(path: str) -> None:
    """Print a line if others on this device can read or change the file with the token. Where a
    pipe stands in the place of a file there is nothing to be changed."""
    with contextlib.suppress(OSError):
        found = os.stat(path)
        if stat.S_ISREG(found.st_mode) and stat.S_IMODE(found.st_mode) & 0o077:
            complain(
                f"warning: others on this device can read the token in {clean(path)} and so join"
                f" the cluster: `chmod 600 {shlex.quote(path)}`"
            )


def _kept_token(cluster: str | None, environment: Mapping[str, str]) -> str:
    """Return the token that pairing has kept for the cluster; raise `UsageError` if none is."""
    from edgeagent.local.token_store import stored_clusters, stored_token

    named = cluster or agent_config_from_environment(environment).cluster
    root = state_root(environment)
    if (text := stored_token(root, named)) is not None:
        return text
    others = ", ".join(repr(name) for name in stored_clusters(root))
    kept = f"; of cluster {named!r} none is kept here, but of {others} (--cluster)"
    raise UsageError(_NO_TOKEN + (kept if others else ""))


def _read_token_file(path: str) -> str:
    from edgeagent.own_files import refuse_planted

    try:
        refuse_planted(path)
        with open(path, "rb") as file:
            data = file.read(MAX_TOKEN_FILE_BYTES + 1)
    except OSError as error:
        raise UsageError(f"--token-file {path}: {error.strerror}") from None
    if len(data) > MAX_TOKEN_FILE_BYTES or not data.strip():
        raise UsageError(f"--token-file {path}: that file holds no token")
    try:
        return data.decode("ascii")
    except UnicodeDecodeError:
        raise UsageError(f"--token-file {path}: that file holds no token") from None


def _run(job: Job, agent: AgentConfig, trainer: TrainerConfig) -> int:
    """Start the trainer, run the agent in this process, and return the exit status."""
    from edgeagent.agent import run_agent
    from edgeagent.launch import start_trainer, stop_trainer

    outlive_output("the agent")
    process, ours = start_trainer(job, trainer, os.environ, stdout_to_stderr=agent.events == "-")
    try:
        with ours:
            try:
                status = run_agent(agent, ours, process)
            except (EdgeAgentError, KeyboardInterrupt):
                # Otherwise the script would print, beside the real reason, that it lost its agent.
                process.terminate()
                raise
            if status == 0 and not process.dismissed:
                status = _wait_for_script(job, process)
        return status
    finally:
        stop_trainer(process)


def _wait_for_script(job: Job, process: TrainerProcess) -> int:
    """Wait until the job has done what it does after training, and return the exit status.

    Ctrl+C ends it. A job that hung and was ended by the agent counts as a success, because the
    agent has saved its model. Raises `EdgeAgentError` if the job fails or a built-in job hangs.
    """
    import subprocess

    try:
        status = process.wait(BUILT_IN_END_S if job.built_in else None)
    except subprocess.TimeoutExpired:
        raise EdgeAgentError(f"{job.name} did not end after training was over") from None
    if status != 0 and not process.was_killed:
        raise EdgeAgentError(f"{job.name} ended with {how_it_ended(status)}")
    return 0

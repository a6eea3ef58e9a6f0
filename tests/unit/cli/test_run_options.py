"""How the options of `edgeagent run` become the configuration of agent and trainer."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

import pytest

from edgeagent.agent_process import config_from
from edgeagent.checkpoint_file import Entry, contents, write_checkpoints
from edgeagent.command_line import parse
from edgeagent.commands import options
from edgeagent.commands.run import agent_config, recipe_of, resolve_token, trainer_config
from edgeagent.config import AgentConfig, TrainerConfig
from edgeagent.errors import UsageError
from edgeagent.launch import Job, resolve_job
from edgeagent.local.token_store import keep_token
from edgeagent.recipe import Recipe
from edgeagent.terminal.text import shown_path
from edgeagent.transport.token import new_token
from protocols import limits

if TYPE_CHECKING:
    from pathlib import Path

TOKEN = new_token()
OTHER = new_token()
JOB = Job("digits", ("true",), built_in=True)
TEXT = Job("text", ("true",), built_in=True)
ROUNDS = ("--local-steps", "5")


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Work in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def agent(*options: str, **environment: str) -> AgentConfig:
    """Return the agent's configuration for some options and variables."""
    values = {"EDGEAGENT_TOKEN": TOKEN, "EDGEAGENT_HOME": "/h", **environment}
    return agent_config(parse(["run", "digits", *options]), JOB, values)


def trainer(*options: str, job: Job = JOB, **environment: str) -> TrainerConfig:
    """Return the trainer's configuration for some options and variables."""
    return trainer_config(parse(["run", job.name, *options]), job, environment)


def test_defaults_of_the_agent() -> None:
    assert (AgentConfig().on_partition, AgentConfig().rotate_every) == ("go-on", 1000)
    assert agent() == AgentConfig(
        token=TOKEN,
        job="digits",
        command=("digits",),
        state_dir="/h",
        recipe=Recipe("digits"),
        takes_batch=True,
    )


def test_who_names_a_batch_takes_no_other() -> None:
    assert not AgentConfig().takes_batch
    assert agent("--steps", "9").takes_batch
    assert not agent("--global-batch", "64").takes_batch
    assert not agent("--micro-batch", "8").takes_batch


def test_the_recipe_has_what_belongs_to_the_job_and_nothing_of_the_device(folder: Path) -> None:
    (folder / "train.py").write_text("x = 1\n")
    job = ["--steps", "9", "--global-batch", "64", "--micro-batch", "8", "--seed", "4"]
    job += ["--wire", "bf16", "--local-steps", "5", "--outer", "nesterov", "--mode", "subnets"]
    job += ["--subnet-scale", "sqrt", "--subnet-minimum", "0.05", "--subnet-period", "4"]
    job += ["--subnet-ewma", "0.5"]
    job += ["--copies", "2"]
    device = ["--name", "al", "--threads", "2", "--device", "cpu", "--listen", "127.0.0.1:1"]
    told = agent(*job, *device).recipe
    assert told is not None
    assert [word for pair in told.options for word in pair] == job
    args = parse(["run", "train.py", "--steps", "9", "--", "--epochs", "5"])
    found = recipe_of(args, resolve_job("train.py", ["--epochs", "5"]))
    assert found == Recipe("train.py", (("--steps", "9"),), ("--epochs", "5"), "x = 1\n")
    (folder / "train.py").write_bytes(b"\xff")
    assert recipe_of(args, resolve_job("train.py")) is None
    job_of_a_file = resolve_job("train.py")
    (folder / "train.py").unlink()
    assert recipe_of(args, job_of_a_file) is None


@pytest.mark.parametrize("flag", ["--shard-optimizer", "--no-shard-optimizer"])
def test_a_recipe_with_a_flag_can_be_typed(flag: str) -> None:
    told = agent(flag, "--copies", "2").recipe
    assert told is not None
    assert told.options == ((flag, ""), ("--copies", "2"))
    assert told.command("digits", "--name=bob") == ["digits", flag, "--copies=2", "--name=bob"]
    parsed = parse(["run", *told.command("digits")])
    assert (parsed.shard_optimizer, parsed.copies) == (flag == "--shard-optimizer", 2)


def test_every_option_of_the_agent(folder: Path) -> None:
    (folder / "token").write_text(OTHER + "\n")
    options = ["--cluster", "room", "--token-file", "token", "--name", "alice"]
    options += ["--listen", "127.0.0.1:7000", "--peer", "10.0.0.1:7001", "--peer", "[::1]:7002"]
    options += ["--no-mdns", "--neighbours", "bob,carol", "--events", "out"]
    options += ["--on-partition", "pause", "--rotate-every", "250"]
    assert agent(*options) == AgentConfig(
        cluster="room",
        token=OTHER,
        name="alice",
        job="digits",
        command=("digits",),
        listen="127.0.0.1:7000",
        peers=("10.0.0.1:7001", "[::1]:7002"),
        mdns=False,
        neighbours=("bob", "carol"),
        events=str(folder / "out"),
        state_dir="/h",
        on_partition="pause",
        rotate_every=250,
        recipe=Recipe("digits"),
        takes_batch=True,
    )


def test_whether_gradients_leave_early_is_the_scripts_choice_unless_said() -> None:
    assert trainer().overlap is None
    assert trainer("--overlap").overlap is True
    assert trainer("--no-overlap").overlap is False


def test_neighbours_are_names_or_a_number() -> None:
    assert (agent().neighbours, agent().most_links) == ((), 0)
    named = agent("--neighbours", "bob")
    assert (named.neighbours, named.most_links) == (("bob",), 0)
    four, everybody = agent("--neighbours", "4"), agent("--neighbours", "all")
    assert (four.neighbours, four.most_links) == ((), 4)
    assert (everybody.neighbours, everybody.most_links) == ((), limits.MAX_LINKS_PER_NODE)
    for number in ("0", "65"):
        with pytest.raises(UsageError, match="a device links to 1 to 64 others"):
            agent("--neighbours", number)


def test_an_option_wins_over_the_environment() -> None:
    environment = {
        "EDGEAGENT_CLUSTER": "there",
        "EDGEAGENT_NAME": "bob",
        "EDGEAGENT_LISTEN": "127.0.0.1:1",
        "EDGEAGENT_PEERS": "10.0.0.1:1,10.0.0.2:2",
        "EDGEAGENT_NO_MDNS": "1",
        "EDGEAGENT_EVENTS": "-",
        "EDGEAGENT_ON_PARTITION": "pause",
        "EDGEAGENT_ROTATE_EVERY": "7",
    }
    config = agent(**environment)
    assert (config.cluster, config.name, config.listen) == ("there", "bob", "127.0.0.1:1")
    assert config.peers == ("10.0.0.1:1", "10.0.0.2:2")
    assert not config.mdns
    assert config.events == "-"
    assert (config.on_partition, config.rotate_every) == ("pause", 7)
    options = ["--cluster", "here", "--name", "al", "--listen", "127.0.0.1:2"]
    options += ["--peer", "10.0.0.3:3", "--events", "file"]
    options += ["--on-partition", "go-on", "--rotate-every", "0"]
    config = agent(*options, **environment)
    assert (config.cluster, config.name, config.listen) == ("here", "al", "127.0.0.1:2")
    assert config.peers == ("10.0.0.3:3",)
    assert config.events.endswith("/file")
    assert (config.on_partition, config.rotate_every) == ("go-on", 0)


def test_whether_a_device_stands_by_is_asked_for() -> None:
    assert agent().standby == "auto"
    assert agent(EDGEAGENT_STANDBY="never").standby == "never"
    assert agent("--standby", "auto", EDGEAGENT_STANDBY="never").standby == "auto"


def test_an_agent_can_be_kept_to_an_interface() -> None:
    assert agent("--interface", "lo").interface == "lo"
    assert agent(EDGEAGENT_INTERFACE="lo").interface == "lo"
    both = agent("--interface", "lo", "--listen", "0.0.0.0:7500")
    assert (both.interface, both.listen) == ("lo", "0.0.0.0:7500")
    with pytest.raises(UsageError, match="no such interface; it has"):
        agent("--interface", "nowhere0")
    with pytest.raises(UsageError, match="names an address already"):
        agent("--interface", "lo", "--listen", "127.0.0.1:7500")


def test_events_on_stdout_keep_it_quiet() -> None:
    assert agent("--events", "-").quiet
    assert not agent("--events", "file").quiet


@pytest.mark.parametrize(
    "options",
    [
        ("--listen", "127.0.0.1:x"),
        ("--peer", ":7430"),
        ("--events", "no/such/folder/file"),
        ("--events", os.curdir),
        ("--token-file", "missing"),
        ("--token", "secret"),
    ],
)
def test_wrong_values_of_the_agent(options: tuple[str, str]) -> None:
    with pytest.raises(UsageError) as caught:
        agent(*options)
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_the_token_comes_from_file_then_option_then_environment(folder: Path) -> None:
    (folder / "token").write_text(f"  {OTHER}\n")
    args = parse(["run", "digits", "--token-file", "token"])
    assert resolve_token(args, {"EDGEAGENT_TOKEN": TOKEN}) == OTHER
    args = parse(["run", "digits", "--token", OTHER])
    assert resolve_token(args, {"EDGEAGENT_TOKEN": TOKEN}) == OTHER
    args = parse(["run", "digits"])
    assert resolve_token(args, {"EDGEAGENT_TOKEN": TOKEN}) == TOKEN
    kept = {"EDGEAGENT_TOKEN": "", "EDGEAGENT_HOME": str(folder / "home")}
    with pytest.raises(UsageError, match="edgeagent token new"):
        resolve_token(args, kept)


def test_a_token_that_was_kept_by_a_pairing_is_the_last_resort(folder: Path) -> None:
    home = {"EDGEAGENT_HOME": str(folder / "home")}
    keep_token(home["EDGEAGENT_HOME"], "the lab", OTHER)
    args = parse(["run", "digits", "--cluster", "the lab"])
    assert resolve_token(args, home) == OTHER
    assert resolve_token(args, {**home, "EDGEAGENT_TOKEN": TOKEN}) == TOKEN
    args = parse(["run", "digits"])
    assert resolve_token(args, {**home, "EDGEAGENT_CLUSTER": "the lab"}) == OTHER
    with pytest.raises(UsageError, match=r"'default' none is kept here, but of 'the lab'"):
        resolve_token(args, home)


@pytest.mark.parametrize("content", [b"", b" \n", b"x" * 5000, "\N{SNOWMAN}".encode()])
def test_a_token_file_without_a_token(folder: Path, content: bytes) -> None:
    (folder / "token").write_bytes(content)
    with pytest.raises(UsageError, match="that file holds no token"):
        agent("--token-file", "token")


def test_a_mistyped_token_names_its_source() -> None:
    with pytest.raises(UsageError, match=r"^EDGEAGENT_TOKEN: "):
        agent(EDGEAGENT_TOKEN=TOKEN[:-1])


def test_defaults_of_the_trainer(folder: Path) -> None:
    save = str(folder / "edgeagent-digits.safetensors")
    assert trainer() == TrainerConfig(job="digits", save=save)


def test_every_option_of_the_trainer(folder: Path) -> None:
    write_checkpoints(contents(str(folder / "old"), [], memoryview(b""), b""))
    options = ["--steps", "9", "--global-batch", "64", "--micro-batch", "8", "--seed", "5"]
    options += ["--device", "cuda:1", "--save", "new", "--resume", "old"]
    options += ["--threads", "2"]
    assert trainer(*options) == TrainerConfig(
        job="digits",
        steps=9,
        global_batch=64,
        micro_batch=8,
        seed=5,
        device="cuda:1",
        save=str(folder / "new"),
        resume=str(folder / "old"),
        threads=2,
    )
    assert trainer("--data", ".", job=TEXT).data == str(folder)
    assert trainer("--data", "old", job=TEXT).data == str(folder / "old"), "a file will do as well"
    assert trainer("--no-save").save == ""
    often = trainer("--save-every", "50", "--keep", "0", EDGEAGENT_SAVE_EVERY="7")
    assert (often.save_every, often.keep) == (50, 0)
    often = trainer(EDGEAGENT_SAVE_EVERY="7", EDGEAGENT_KEEP="2")
    assert (often.save_every, often.keep) == (7, 2)
    assert trainer("--keep", "4", EDGEAGENT_SAVE_EVERY="7").keep == 4
    assert trainer(EDGEAGENT_KEEP="2").keep == 2, "a variable may be set for other runs"
    assert trainer("--no-save", "--save-every", "0").save_every == 0
    assert trainer("--seed", "0").seed == 0
    subnets = [*ROUNDS, "--mode", "subnets", "--subnet-minimum", "0.05", "--subnet-period", "4"]
    parts = trainer(*subnets, "--subnet-ewma", "1", "--subnet-scale", "none")
    assert parts.subnet_scale == "none"
    assert (parts.subnet_minimum, parts.subnet_period, parts.subnet_ewma) == (0.05, 4, 1.0)
    assert trainer(*subnets, "--subnet-minimum", "0").subnet_minimum == 0.0


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--device", "gpu"), "--device gpu"),
        (("--global-batch", "8", "--micro-batch", "9"), "must not be larger"),
        (("--save", "no/such/folder"), "there is no folder"),
        (("--save", "."), "that is a folder"),
        (("--resume", "missing"), "no readable file missing"),
        (("--data", "."), r"built-in jobs that read a data set \(fashion-mnist, .*, text-lora\)"),
        (("--outer", "nesterov"), "--outer .*: give --local-steps H, too"),
        (("--mode", "subnets"), "--mode subnets trains in rounds: give --local-steps H, too"),
        (("--copies", "2"), "--copies is for a divided optimizer: give --shard-optimizer, too"),
        (("--on-lost", "stop"), "--on-lost is for a divided optimizer"),
        ((*ROUNDS, "--exact"), "--exact does not go with --local-steps"),
        ((*ROUNDS, "--shard-optimizer"), "--shard-optimizer does not go with --local-steps"),
        (("--wire", "bf16", "--shard-optimizer"), "does not go with --wire bf16"),
        ((*ROUNDS, "--mode", "subnets", "--outer", "average"), "--outer does not go with --mode"),
        ((*ROUNDS, "--mode", "subnets", "--micro-batch", "8"), "--micro-batch does not go with"),
        (("--no-save", "--save-every", "5"), "leave --no-save away"),
        (("--save", "a/m.pt"), r"name it a/m\.safetensors; `edgeagent export` makes a \.pt of it"),
        (("--save", "m.PTH"), r"--save m\.PTH: the file is written in the safetensors format"),
        (("--keep", "2"), "--keep is about the files of --save-every N: give that, too"),
        (("--subnet-minimum", "1.5"), r"--subnet-minimum: '1\.5' is not a number from 0 to 1"),
        (("--subnet-minimum", "nan"), "'nan' is not a number from 0 to 1"),
        (("--subnet-minimum", "-0.1"), "--subnet-minimum"),
        (("--subnet-minimum", "all"), "'all' is not a number from 0 to 1"),
        (("--subnet-period", "0"), "--subnet-period: '0' is not a whole number of 1 or more"),
        (("--subnet-ewma", "0"), "--subnet-ewma: '0' is not above 0"),
        (("--subnet-ewma", "2"), "'2' is not a number from 0 to 1"),
        (("--subnet-scale", "half"), "--subnet-scale: invalid choice: 'half'"),
        (("--subnet-scale", "sqrt"), "--subnet-scale says how .*: give --mode subnets, too"),
        (("--subnet-period", "2"), "--subnet-period says how .*: give --mode subnets, too"),
        (
            ("--mode", "whole", "--subnet-ewma", "1"),
            "--subnet-ewma says how .*: give --mode subnets",
        ),
    ],
)
def test_wrong_values_of_the_trainer(options: tuple[str, ...], expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        trainer(*options)


def test_data_of_a_script_goes_behind_two_dashes(folder: Path) -> None:
    script = Job("train", ("true",), built_in=False)
    with pytest.raises(UsageError, match=r"edgeagent run train\.py -- --data PATH"):
        trainer("--data", str(folder), job=script)
    with pytest.raises(UsageError, match="no folder or readable file missing"):
        trainer("--data", "missing", job=TEXT)
    assert trainer("--outer", "nesterov", job=script).outer == "nesterov", "it may have rounds"


def test_a_file_that_is_no_training_state_is_refused_before_anything_starts(folder: Path) -> None:
    state = folder / "edgeagent-digits.safetensors"
    entry = Entry("x", "F32", (2,), 0, 8)
    write_checkpoints(contents(str(state), [entry], memoryview(bytes(8)), b""))
    assert trainer("--continue").resume == trainer("--resume", str(state)).resume == str(state)
    whole = state.read_bytes()
    for data, why in (
        (whole[:-1], "is not a whole checkpoint"),
        (whole + b"x", "1 bytes too many"),
        (b"", "is not a checkpoint"),
        (whole.replace(b"edgeagent/1", b"edgeagent/9"), "by a later version"),
        (whole.replace(b"edgeagent/1", b"something/1"), "is no training state that edgeagent has"),
    ):
        state.write_bytes(data)
        with pytest.raises(UsageError, match=f"^--resume: {state} .*{why}"):
            trainer("--resume", str(state))
        with pytest.raises(UsageError, match=f"^--continue: .*{why}"):
            trainer("--continue")


@pytest.mark.parametrize("variable", ["EDGEAGENT_SAVE_EVERY", "EDGEAGENT_KEEP"])
def test_a_wrong_variable_of_the_trainer_is_named(variable: str) -> None:
    with pytest.raises(UsageError, match=f"{variable}: '-1' is not"):
        trainer_config(parse(["run", "digits"]), JOB, {variable: "-1"})


def test_a_script_is_run_with_its_arguments(folder: Path) -> None:
    (folder / "train.py").touch()
    args = parse(["run", "train.py", "--steps", "3", "--", "--epochs", "5", "--"])
    job = resolve_job(args.job, args.script_arguments)
    assert job.name == "train"
    assert job.command == (sys.executable, str(folder / "train.py"), "--epochs", "5", "--")
    config = trainer_config(args, job, {})
    assert config.arguments == ("--epochs", "5", "--")
    assert config.save == str(folder / "edgeagent-train.safetensors")


def test_a_built_in_job_runs_its_module() -> None:
    command = resolve_job("fashion-mnist").command
    assert command == (sys.executable, "-P", "-m", "edgeagent.trainer.jobs", "fashion-mnist")


def test_for_how_many_devices_a_founder_waits() -> None:
    assert AgentConfig().wait_for == agent("--wait-for", "1").wait_for == 1
    assert agent("--wait-for", "3", EDGEAGENT_WAIT_FOR="4").wait_for == 3
    assert agent(EDGEAGENT_WAIT_FOR="4").wait_for == 4
    most = str(limits.MAX_OPEN_JOINS + 1)
    assert agent("--wait-for", most).wait_for == limits.MAX_OPEN_JOINS + 1
    for wrong in ("0", "-1", "three", "1.5", "", "34", "9" * 5000):
        with pytest.raises(UsageError, match=r"--wait-for: .* from 1 to 33, this device included"):
            agent("--wait-for", wrong)
    assert config_from({"EDGEAGENT_TOKEN": TOKEN, "EDGEAGENT_WAIT_FOR": "2"}).wait_for == 2
    assert config_from({"EDGEAGENT_WAIT_FOR": "1"}).wait_for == 1
    with pytest.raises(UsageError, match="EDGEAGENT_WAIT_FOR: without EDGEAGENT_TOKEN no other"):
        config_from({"EDGEAGENT_WAIT_FOR": "2"})


def test_the_agent_of_a_plain_script_is_configured_by_the_environment() -> None:
    config = config_from({"EDGEAGENT_NAME": "al", "EDGEAGENT_HOME": "/h"})
    assert config == AgentConfig(name="al", state_dir="/h", quiet=True)
    settings = {"EDGEAGENT_ON_PARTITION": "pause", "EDGEAGENT_ROTATE_EVERY": "0"}
    config = config_from({"EDGEAGENT_HOME": "/h", **settings})
    assert (config.on_partition, config.rotate_every) == ("pause", 0)


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("EDGEAGENT_ON_PARTITION", "stop", "'stop' is neither go-on nor pause"),
        ("EDGEAGENT_ROTATE_EVERY", "-1", "'-1' is not a whole number from 0 to"),
        ("EDGEAGENT_ROTATE_EVERY", "ten", "'ten' is not a whole number"),
        ("EDGEAGENT_ROTATE_EVERY", "9" * 5000, "is not a whole number"),
    ],
)
def test_wrong_values_in_the_environment(variable: str, value: str, expected: str) -> None:
    with pytest.raises(UsageError, match=f"^{variable}: .*{expected}"):
        config_from({"EDGEAGENT_HOME": "/h", variable: value})


def test_a_folder_that_was_deleted_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert options.present_folder() == os.getcwd()
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(UsageError, match="the folder in which this was started is gone"):
        options.present_folder()
    assert shown_path("/a/model") == "/a/model"


def test_more_threads_than_a_device_can_run_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    assert [options.threads(n) for n in ("1", "64", "128")] == [1, 64, 128]
    with pytest.raises(argparse.ArgumentTypeError, match="this device has 16 processor cores"):
        options.threads("129")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert options.threads("64") == 64

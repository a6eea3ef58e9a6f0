"""What another user has put where we keep secrets or write is not used; what is ours, or the
superuser's, is."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from edgeagent import own_files
from edgeagent.commands.options import writable_file
from edgeagent.commands.run import _read_token_file
from edgeagent.doctor.device import look_at_folder
from edgeagent.errors import EdgeAgentError, UsageError
from edgeagent.event_file import open_appending
from edgeagent.local.script_store import is_kept, keep_script
from edgeagent.local.state_dir import claim_state_dir, first_slot, running_agents
from edgeagent.local.token_store import keep_token, stored_token, token_path
from edgeagent.log_file import open_log
from edgeagent.own_files import check_own, refuse_planted, strange_link, stranger
from edgeagent.places import check_save_path, move_aside, other_places, write_whole
from edgeagent.trace import write_trace
from edgeagent.transport.identity import load_identity
from edgeagent.transport.token import new_token

ME, EVE = 1000, 1001
TOKEN = new_token()
Give = Callable[[Path, int], None]


@pytest.fixture
def give(monkeypatch: pytest.MonkeyPatch) -> Give:
    """Have every file belong to user `ME`, who runs this, but those that are given to another."""
    look, owners = own_files._look, dict[str, int]()

    def looked(path: str, *, follow: bool) -> own_files._Entry:
        found = look(path, follow=follow)
        mine = found.owner == os.geteuid()
        return own_files._Entry(owners.get(path, ME if mine else found.owner), found.mode)

    monkeypatch.setattr(own_files, "_look", looked)
    monkeypatch.setattr(own_files, "_me", lambda: ME)
    return lambda path, user: owners.update({str(path): user})


@pytest.fixture
def public(tmp_path: Path) -> Path:
    """A folder like /tmp."""
    folder = tmp_path / "public"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


def test_a_state_folder_of_another_user_is_refused(give: Give, public: Path) -> None:
    root = public / "state"
    keep_token(str(root), "lab", TOKEN)
    give(root, EVE)
    for use in (
        lambda: claim_state_dir(str(root), "lab"),
        lambda: first_slot(str(root), "lab"),
        lambda: keep_token(str(root), "lab", TOKEN),
        lambda: keep_script(str(root), "lab", "a.py", "pass", "digest"),
    ):
        with pytest.raises(UsageError, match=r"another user \(id 1001\).*EDGEAGENT_HOME") as caught:
            use()
        assert "\n" not in str(caught.value)
    assert "another user" in look_at_folder(str(root), "keys", is_secret=True).problem
    assert look_at_folder(str(root), "models").problem == ""


@pytest.mark.parametrize("folder", ["", "c-lab", "c-lab/slot-1"])
def test_no_agent_is_found_through_what_another_user_made(
    give: Give, public: Path, folder: str
) -> None:
    claimed = claim_state_dir(str(public), "lab", "anna")
    assert len(running_agents(str(public))) == 1
    give(public / folder, EVE)
    assert running_agents(str(public)) == ()
    claimed.release()


def test_a_key_and_a_token_of_another_user_are_refused(give: Give, public: Path) -> None:
    folder = first_slot(str(public), "lab")
    mine = load_identity(folder)
    give(Path(mine.path), EVE)
    with pytest.raises(UsageError, match=r"identity\.pem belongs to another user"):
        load_identity(folder)
    keep_token(str(public), "lab", TOKEN)
    give(Path(token_path(str(public), "lab")), EVE)
    with pytest.raises(UsageError, match="token belongs to another user"):
        stored_token(str(public), "lab")


@pytest.mark.parametrize("part", ["c-lab", "c-lab/jobs", "c-lab/jobs/a.py.digest"])
def test_nobody_here_has_agreed_to_a_script_of_another_user(
    give: Give, public: Path, part: str
) -> None:
    keep_script(str(public), "lab", "a.py", "pass", "digest")
    assert is_kept(str(public), "lab", "a.py", "pass", "digest")
    give(public / part, EVE)
    assert not is_kept(str(public), "lab", "a.py", "pass", "digest")


@pytest.mark.parametrize(("owner", "refused"), [(ME, False), (0, False), (EVE, True)])
def test_whose_link_to_a_state_folder_is_followed(
    give: Give, public: Path, tmp_path: Path, owner: int, refused: bool
) -> None:
    """Users move their folder to another disk and leave a link."""
    (tmp_path / "disk").mkdir()
    link = public / "state"
    link.symlink_to(tmp_path / "disk")
    give(link, owner)
    if refused:
        with pytest.raises(UsageError, match="another user"):
            keep_token(str(link), "lab", TOKEN)
        assert not os.listdir(tmp_path / "disk")
    else:
        keep_token(str(link), "lab", TOKEN)
        assert stored_token(str(link), "lab") == TOKEN


def test_a_link_above_the_state_folder_counts_too(give: Give, public: Path, tmp_path: Path) -> None:
    (public / "config").symlink_to(tmp_path)
    give(public / "config", EVE)
    with pytest.raises(UsageError, match="is a link of another user"):
        keep_token(str(public / "config" / "state"), "lab", TOKEN)


@pytest.mark.parametrize(("mode", "refused"), [(0o755, False), (0o775, False), (0o1777, True)])
def test_the_superuser_in_a_container_uses_a_folder_of_the_host(
    give: Give, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, refused: bool
) -> None:
    monkeypatch.setattr(own_files, "_me", lambda: 0)
    around, root = tmp_path / "around", tmp_path / "around" / "state"
    root.mkdir(parents=True)
    around.chmod(mode)
    give(root, EVE)
    assert (stranger(str(root)) is not None) == refused


def test_where_all_files_get_one_owner_that_owner_is_trusted(
    give: Give, public: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some network file systems give all files to one user, whoever makes them."""
    root = public / "state"
    root.mkdir()
    give(root, EVE)
    with pytest.raises(UsageError, match="belongs to another user"):
        check_own(str(root))
    monkeypatch.setattr(own_files, "_owner_of_new", lambda _: EVE)
    check_own(str(root))
    monkeypatch.setattr(own_files, "_owner_of_new", Mock(side_effect=PermissionError))
    with pytest.raises(UsageError, match="belongs to another user"):
        check_own(str(root))


def test_a_current_folder_that_was_removed_hinders_no_save_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getcwd", Mock(side_effect=FileNotFoundError))
    target = tmp_path / "model.safetensors"
    write_whole(str(target), lambda file: file.write(b"x"))
    assert target.read_bytes() == b"x"
    assert strange_link("model.safetensors") == ""
    assert other_places(str(target), 1)


def test_what_is_not_there_belongs_to_nobody(give: Give, public: Path) -> None:
    check_own(str(public / "none" / "state"))
    (public / "loop").symlink_to("loop")
    assert strange_link(str(public / "loop")) == ""
    assert stranger(str(public / "none")) is None


def test_a_planted_link_is_not_written_through(give: Give, public: Path, tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    diary.write_text("mine")
    link = public / "m.safetensors"
    link.symlink_to(diary)
    path = str(link)
    check_save_path(path)
    give(link, EVE)
    with pytest.raises(UsageError, match=r"is a link of another user.*remove it"):
        check_save_path(path)
    with pytest.raises(UsageError, match=r"--events .*is a link of another user"):
        writable_file("--events", path)
    with pytest.raises(UsageError, match="is a link of another user"):
        open_appending("--events", path)
    with pytest.raises(UsageError, match="is a link of another user"):
        write_trace(path, ["x"])
    for use in (
        lambda: open_log(path),
        lambda: write_whole(path, lambda file: file.write(b"x")),
        lambda: move_aside(path, "earlier"),
    ):
        with pytest.raises(OSError, match="is a link of another user"):
            use()
    assert diary.read_text() == "mine"
    assert sorted(os.listdir(tmp_path)) == ["diary", "public"]


def test_links_on_the_way_and_links_to_links_count(
    give: Give, public: Path, tmp_path: Path
) -> None:
    (tmp_path / "first").symlink_to(public / "second")
    (public / "second").symlink_to("../home/./third")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "third").symlink_to(tmp_path / "home")
    path = str(tmp_path / "first" / "m")
    assert strange_link(path) == ""
    give(public / "second", EVE)
    assert str(public / "second") in strange_link(path)


@pytest.mark.parametrize(("mode", "owner"), [(0o755, ME), (0o1777, EVE)])
def test_other_links_are_followed(give: Give, tmp_path: Path, mode: int, owner: int) -> None:
    """Nobody else could have put it there, or the user has chosen that other user's folder."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    folder.chmod(mode)
    (folder / "latest").symlink_to("model")
    give(folder, owner)
    give(folder / "latest", EVE)
    assert strange_link(str(folder / "latest")) == ""


def test_a_token_file_that_anybody_may_have_put_there_is_refused(
    give: Give, public: Path, tmp_path: Path
) -> None:
    for folder, fails in ((tmp_path, False), (public, True)):
        file = folder / "token"
        file.write_text(TOKEN)
        give(file, EVE)  # outside of public folders it may be a colleague's
        if fails:
            with pytest.raises(UsageError, match=r"--token-file .*a folder of your own"):
                _read_token_file(str(file))
        else:
            assert _read_token_file(str(file)) == TOKEN
            refuse_planted(str(file))


def test_the_errors_are_those_of_the_program(give: Give, public: Path) -> None:
    give(public, EVE)
    with pytest.raises(EdgeAgentError):
        check_own(str(public))

"""Files are written whole or not at all, and what could not be written is refused before the work."""

from __future__ import annotations

import os
import stat

import pytest

from minispec.load.write import in_place_of, require_writable, write_whole


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_folders_are_made_and_nothing_else_is_left(tmp_path):
    file = tmp_path / "a/b/c.txt"
    assert write_whole(file, "né\n") == file and file.read_bytes() == "né\n".encode()
    write_whole(file, b"\r\n")
    assert file.read_bytes() == b"\r\n" and names(file.parent) == ["c.txt"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError, ValueError])
def test_whatever_stops_the_writing_the_old_content_stays(tmp_path, error):
    file = tmp_path / "result.json"
    file.write_text("old")
    with pytest.raises(error), in_place_of(file) as beside:
        beside.write_text("ne")
        raise error
    assert file.read_text() == "old" and names(tmp_path) == ["result.json"]


def test_the_file_has_the_usual_permissions(tmp_path):
    """A class shares a folder: what is written for it is not for its owner alone."""
    plain = tmp_path / "plain"
    plain.touch()
    assert stat.S_IMODE(write_whole(tmp_path / "ours", "x").stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)


def test_a_link_is_written_through(tmp_path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_whole(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_text() == "new"


@pytest.mark.skipif(os.name != "posix", reason="devices are files")
def test_a_device_stays_a_device(tmp_path):
    write_whole("/dev/null", "x")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    with pytest.raises(OSError, match="No space"):
        write_whole("/dev/full", "x" * 100_000)


def test_what_cannot_be_written_is_refused_by_its_option(tmp_path):
    (tmp_path / "file").touch()
    require_writable("out", None)
    require_writable("out", tmp_path / "new/folder/r.json")
    require_writable("out", tmp_path / "file")
    for wrong in (tmp_path, tmp_path / "file/r.json", tmp_path / ("n" * 256)):
        with pytest.raises(ValueError, match=r"out='.*give "):
            require_writable("out", wrong)
    with pytest.raises(ValueError, match="make it first"):
        require_writable("out", tmp_path / "new/r.json", make_folders=False)
    assert names(tmp_path) == ["file"]


def test_a_folder_without_permission(tmp_path):
    tmp_path.chmod(0o555)
    if os.access(tmp_path, os.W_OK):
        pytest.skip("root may write anywhere")
    with pytest.raises(ValueError, match="folder of your own"):
        require_writable("out", tmp_path / "r.json")
    with pytest.raises(PermissionError):
        write_whole(tmp_path / "r.json", "x")

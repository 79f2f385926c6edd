"""Files are written whole or not at all, and what could not be written is refused before the work."""

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


def test_whatever_stops_the_writing_the_old_content_stays(tmp_path):
    file = tmp_path / "result.json"
    file.write_text("old")
    with pytest.raises(KeyboardInterrupt), in_place_of(file) as beside:
        beside.write_text("ne")
        raise KeyboardInterrupt
    assert file.read_text() == "old" and names(tmp_path) == ["result.json"]


def test_the_file_is_an_ordinary_one_or_what_it_was_before(tmp_path):
    """A class shares a folder: what is written for it is not for its owner alone. A link or a device stays one."""
    (tmp_path / "plain").touch()
    write_whole(tmp_path / "ours", "x")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode
    (tmp_path / "link").symlink_to(tmp_path / "plain")
    write_whole(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "plain").read_text() == "new"
    if os.name == "posix":
        write_whole("/dev/null", "x")
        assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


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

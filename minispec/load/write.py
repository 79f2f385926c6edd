"""Write a file whole or not at all: the bytes go to a new file beside it, and one rename puts that in its place.

Whatever stops the writing (Ctrl-C, a full disk, a power cut), a reader finds the old content or the new, never a half.
"""

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

STDOUT = Path("-")  # --json without a file
LONGEST_NAME = 255  # bytes, on the usual file systems


def write_whole(file: str | Path, content: str | bytes) -> Path:
    """Write text (as UTF-8, the same bytes on every system) or bytes. Returns the file."""
    with in_place_of(file) as beside:
        beside.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
    return Path(file)


@contextlib.contextmanager
def in_place_of(file: str | Path) -> Iterator[Path]:
    """A path to write to; what is there at the end of the block takes the file's place. Folders on the way are made."""
    file = Path(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.is_symlink() or (file.exists() and not file.is_file()):
        yield file  # a link, /dev/stdout or a pipe: a rename would remove it, so write through it
        return
    beside = file.with_name(f".{secrets.token_hex(8)}.partial")
    try:
        yield beside
        os.replace(beside, file)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise


def publish(text: str, as_json: str, file: Path | None) -> None:
    """A result, as --json asks for it: text on the terminal, JSON there instead (STDOUT), or JSON in a file, too."""
    print(as_json if file == STDOUT else text)
    if file not in (None, STDOUT):
        write_whole(file, as_json + "\n")


def require_writable(option: str, file: Path | None, make_folders: bool = True) -> None:
    """Refuse, before long work, a file that could not be written after it: ValueError names the option."""
    if file is None or file == STDOUT:
        return
    wrong = f"{option}={str(file)!r}"
    if len(os.fsencode(file.name)) > LONGEST_NAME:
        raise ValueError(f"{wrong}: the name has more than {LONGEST_NAME} bytes, give a shorter one")
    folder = next(path for path in file.absolute().parents if path.exists())
    if not folder.is_dir():
        raise ValueError(f"{wrong}: {folder} is a file, where a folder is needed; give another path")
    if folder != file.absolute().parent and not make_folders:
        raise ValueError(f"{wrong}: there is no folder {file.absolute().parent}, make it first")
    if file.is_dir():
        raise ValueError(f"{wrong} is a folder: give the name of a file in it")
    if not os.access(file if file.exists() else folder, os.W_OK):
        raise ValueError(f"{wrong} cannot be written: give a file in a folder of your own")

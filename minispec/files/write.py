"""Write a file whole or not at all: the bytes go to a new file beside it, and one rename puts that in its place.

Whatever stops the writing (Ctrl-C, a full disk, a power cut), a reader finds the old content or the new, never a half.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path


def write_whole(file: str | Path, content: str | bytes) -> Path:
    """Write text (UTF-8, the same bytes on every system) or bytes; folders on the way are made. Returns the file."""
    file, data = Path(file), content.encode("utf-8") if isinstance(content, str) else content
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.is_symlink() or (file.exists() and not file.is_file()):
        file.write_bytes(data)  # a link, /dev/stdout or a pipe: a rename would remove it, so write through it
        return file
    beside = file.with_name(f".{secrets.token_hex(8)}.partial")
    try:
        with open(beside, "xb") as stream:
            stream.write(data)
        os.replace(beside, file)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise
    return file


def require_writable(option: str, file: Path | None) -> None:
    """Refuse, before long work, a file that could not be written after it: ValueError names the option."""
    if file is None:
        return
    folder = file.absolute().parent
    if not folder.is_dir():
        raise ValueError(f"{option}={str(file)!r}: there is no folder {folder}, make it first")
    if file.is_dir():
        raise ValueError(f"{option}={str(file)!r} is a folder: give the name of a file in it")
    if not os.access(file if file.exists() else folder, os.W_OK):
        raise ValueError(f"{option}={str(file)!r} cannot be written: give a file in a folder of your own")
    if len(os.fsencode(file.name)) > 255:
        raise ValueError(f"{option}={str(file)!r}: the name has more than 255 bytes, give a shorter one")

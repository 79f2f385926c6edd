"""How a command ends: an error becomes one sentence on stderr, with a remedy, and an exit code.

Exit codes:

    0    it went well (1: it says itself that something is wrong, as `minispec check` does)
    1    an error that nobody foresaw: a bug; MINISPEC_DEBUG=1 shows the traceback
    2    something that the user can fix: an option, a path, a damaged file, a full disk, a missing package
    130  Ctrl-C
    141  whoever read the output went away, as in `minispec demo | head`: nothing is said
"""

import errno
import os
import sys
import traceback
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence

USER, BUG, INTERRUPTED, PIPE_CLOSED = 2, 1, 130, 141

NO_RIGHT = "you may not read or write there; give a folder of your own, or change its permissions"
NO_ROOM = "the disk is full; make room, or give a folder on another one"
NO_FOLDER = "a file is there where a folder is needed; give another path"
REMEDIES = {
    **dict.fromkeys((errno.EACCES, errno.EPERM), NO_RIGHT),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), NO_ROOM),
    **dict.fromkeys((errno.ENOTDIR, errno.EEXIST), NO_FOLDER),
    errno.ENOENT: "there is no such file or folder; check the path",
    errno.EROFS: "this disk is read-only; give a folder on another one",
    errno.EISDIR: "this is a folder where a file is needed; give the name of a file",
    errno.ENAMETOOLONG: "the name is too long; give a part of the path at most 255 bytes",
}


def run_command(parser: Callable[[], ArgumentParser], argv: Sequence[str] | None) -> int:
    """A whole command line: parse it, run the command that it names (args.run), return the exit code. What it raises
    is said in words. What was typed is kept as args.words."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the shell (>&-)
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        if hasattr(stream := getattr(sys, name), "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that cannot show α shows a question mark instead
    try:
        try:
            words = list(sys.argv[1:] if argv is None else argv)
            args = parser().parse_args(words, Namespace(words=words))
            return args.run(args) or 0
        finally:
            sys.stdout.flush()  # a reader that went away, or a full disk, is noticed here and not on the way out
    except KeyboardInterrupt:
        print(file=sys.stderr)  # the shell's prompt goes to a line of its own
        return INTERRUPTED
    except Exception as error:
        _drop_output()
        if isinstance(error, BrokenPipeError):
            return PIPE_CLOSED
        if os.environ.get("MINISPEC_DEBUG"):
            traceback.print_exc()
        code, words = explain(error)
        print(f"minispec: {words}", file=sys.stderr)
        return code


def explain(error: Exception) -> tuple[int, str]:
    """The exit code of an error, and what to say about it."""
    match error:
        case UnicodeDecodeError():
            return USER, f"what was read is not UTF-8 text ({error.reason}, byte {error.start}): save it as UTF-8"
        case UnicodeEncodeError():
            return USER, f"the text holds {error.object[error.start]!r}, which is no character: give it as UTF-8"
        case ImportError() if error.name and not error.name.startswith("minispec"):
            return USER, f"this needs the package {error.name.split('.')[0]}, which is not installed here: install it"
        case ValueError():
            return USER, str(error)
        case OSError() if error.errno is not None:
            files = " → ".join(str(file) for file in (error.filename, error.filename2) if file is not None)
            said = REMEDIES.get(error.errno, f"{error.strerror}; check the path, the disk and the network")
            return USER, f"{_short(files)}: {said}" if files else said
        case OSError():
            return USER, _short(" ".join(str(error).split()) or type(error).__name__)
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # torch's, without importing torch
        return USER, "the memory is full: take a smaller model, fewer tokens, or another --device"
    said = f"{type(error).__name__} {_short(' '.join(str(error).split()))}".strip()
    return BUG, f"unexpected {said}; run with MINISPEC_DEBUG=1 for the traceback"


def _short(text: str, most: int = 300) -> str:
    return text if len(text) <= most else f"{text[: most // 2]} … {text[-most // 2 :]}"


def _drop_output() -> None:
    """Where stdout cannot be written, what is left in its buffer must not fail again when Python ends."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except (OSError, ValueError):
            pass  # not a real file

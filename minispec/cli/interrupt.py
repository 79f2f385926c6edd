"""Ctrl-C while the command `minispec` is still importing torch, which takes seconds: it ends without a traceback.

minispec/__init__.py imports this first. A script or a notebook that imports minispec keeps its KeyboardInterrupt.
"""

import signal
import sys
from pathlib import Path


def leave(*_):
    sys.exit(130)


def listen_as_usual() -> None:
    """The imports are done: from here on Ctrl-C is a KeyboardInterrupt, which a command may catch."""
    if signal.getsignal(signal.SIGINT) is leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


# `python -m minispec` imports the package while argv[0] is still "-m". Where Ctrl-C is ignored, it stays ignored.
is_command = sys.argv[:1] == ["-m"] or [Path(name).stem for name in sys.argv[:1]] == ["minispec"]
if is_command and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, leave)

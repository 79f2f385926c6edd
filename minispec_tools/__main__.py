"""`python -m minispec_tools` is the command `minispec`."""

import sys

from .cli import main

sys.exit(main())

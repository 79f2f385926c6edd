"""From lessons/ and exercises/ to notebooks, exercises and solutions: compose, run, draw, cover."""

from .. import require_extra

require_extra()

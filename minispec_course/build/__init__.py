"""From course/ to notebooks/, exercises/ and solutions/: compose, run, draw, cover."""

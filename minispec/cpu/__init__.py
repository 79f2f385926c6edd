"""Passes of up to eight tokens near a CPU's own limit: weights in panels, one compiled function, a team of threads."""

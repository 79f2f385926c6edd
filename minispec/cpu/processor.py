"""What this machine's processor can do in one instruction."""

import os
import platform
from functools import lru_cache
from pathlib import Path


@lru_cache(maxsize=1)
def has_dot_product() -> bool:
    """Whether one instruction multiplies int8 with int8 and adds up four of them in int32: ARM's SDOT. It decides how
    int8 weights are laid out and multiplied (gemm.py). MINISPEC_INT8=widen does without."""
    if os.environ.get("MINISPEC_INT8") == "widen" or "NUMBA_CPU_NAME" in os.environ:
        return False
    if platform.machine().lower() not in ("arm64", "aarch64"):
        return False
    try:
        from llvmlite import binding
    except ImportError:  # no numba: then nothing is compiled
        return False
    if binding.get_host_cpu_name() == "generic":  # LLVM does not know this processor, and would refuse the instruction
        return False
    try:
        return "asimddp" in Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    except OSError:
        return platform.system() == "Darwin"  # every Mac of this kind has it

"""A benchmark as it is typed, with bandwidth and FLOP/s that are given: to measure them takes seconds."""

import json

import pytest

from minispec.measure import Rate
from minispec_tools.bench import attention, batch, cpu, limit, shapes, verify
from minispec_tools.cli import main

BANDWIDTH, FLOPS = Rate(1e10, 9e9, 1.1e10, 3), Rate(4e10, 4e10, 4e10, 3)


@pytest.fixture
def bench(capsys, tmp_path, monkeypatch):
    for module in (attention, cpu, limit, shapes):
        monkeypatch.setattr(module, "read_bandwidth", lambda device, **_: BANDWIDTH)
    for module in (batch, cpu, verify):
        monkeypatch.setattr(module, "flops", lambda device, dtype: FLOPS)

    def call(words: str, wrong: str | None = None):
        """(result, what was printed); with `wrong`, the command must be refused in one sentence that has it."""
        file = tmp_path / "result.json"
        code = main(["bench", *words.split(), *([] if wrong else ["--json", str(file)])])
        out, err = capsys.readouterr()
        if wrong:
            assert (code, out) == (2, "") and wrong in err and err.count("\n") == 1, f"{words}: {err}"
            return None
        assert code == 0, f"{words}: {err}"
        assert max(map(len, out.splitlines())) <= 80, words
        return json.loads(file.read_text(encoding="utf-8")), out

    return call

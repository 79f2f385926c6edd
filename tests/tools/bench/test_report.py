"""The report: its numbers are those of the stored results, and what cannot be reported is named and left out."""

import json

from minispec_tools.bench import gpu, report

OLD = "is old: run minispec bench report"


def test_the_committed_pages_are_what_the_committed_results_make():
    found, skipped = report.collect()
    assert not skipped
    assert (report.DOCS / report.PAGE).read_text(encoding="utf-8") == report.page(found), f"{report.PAGE} {OLD}"
    page = (report.DOCS / report.GPU_PAGE).read_text(encoding="utf-8")
    assert page == gpu.filled(page) and gpu.computed().markdown() in page, f"{report.GPU_PAGE} {OLD}"


def test_every_stored_result_can_be_shown_and_can_be_asked_again():
    found, _ = report.collect()
    assert {result["benchmark"] for result, _ in found.values()} == set(report.ORDER)
    for stem, (result, section) in found.items():
        assert max(map(len, section.text(result.get("machine")).splitlines())) <= 80, stem
        assert result["command"].startswith(f"minispec bench {result['benchmark']} "), stem


def test_what_is_no_result_is_named_and_left_out(bench, capsys, tmp_path):
    good = json.loads((report.SHIPPED / "verify.json").read_text(encoding="utf-8"))
    broken = {
        "no JSON": b"{",
        "no text": b"\xff\xfe\x00",
        "no result": b'{"cases": []}',
        "a list": b"[1, 2]",
        "another benchmark": b'{"benchmark": "juggling"}',
        "no number": json.dumps(good | {"flops": float("nan")}).encode(),
        "half": json.dumps({key: good[key] for key in ("benchmark", "shape", "machine")}).encode(),
    }
    for name, content in broken.items():
        (tmp_path / f"{name}.json").write_bytes(content)
    bench(f"report --from {tmp_path} --out {tmp_path}", wrong="no result to report")
    (tmp_path / "good.json").write_text(json.dumps(good), encoding="utf-8")
    found, skipped = report.collect(tmp_path)
    assert list(found) == ["good"] and set(skipped) == {f"{name}.json" for name in broken}
    bench(f"report --from {tmp_path} --out {tmp_path}/none", wrong="none")

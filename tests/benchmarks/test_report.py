"""The report: its numbers are those of the stored results, and what cannot be reported is named and left out."""

import json

from benchmarks import gpu, report

OLD = "is old: run python -m benchmarks report"


def test_the_committed_pages_are_what_the_committed_results_make():
    found, skipped = report.collect()
    assert not skipped
    assert (report.DOCS / report.PAGE).read_text(encoding="utf-8") == report.page(found), f"{report.PAGE} {OLD}"
    page = (report.DOCS / report.GPU_PAGE).read_text(encoding="utf-8")
    assert page == gpu.filled(page), f"{report.GPU_PAGE} {OLD}"
    for name, table in gpu.TABLES.items():
        assert f"<!-- {name} -->\n{table().markdown()}\n<!-- end -->" in page


def test_every_stored_result_can_be_shown_and_can_be_asked_again():
    found, _ = report.collect()
    assert {result["benchmark"] for result, _ in found.values()} == set(report.ORDER)
    for stem, (result, section) in found.items():
        assert max(map(len, section.text(result.get("machine")).splitlines())) <= 80, stem
        assert result["command"].startswith(f"python -m benchmarks {result['benchmark']} "), stem


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


def test_the_readme_quotes_the_results():
    """Every number of its table is in the results it is taken from, as they are rounded there."""
    readme = (report.DOCS.parent / "README.md").read_text(encoding="utf-8")
    table = " ".join(readme[readme.index("## On a GPU") : readme.index("## Beyond one machine")].split())
    names = ("decode", "speculate", "verify", "serving", "speculation")
    files = ((report.SHIPPED / f"{name}.json").read_text(encoding="utf-8") for name in names)
    decode, cycle, passes, served, drafted = map(json.loads, files)
    plain = {name: f"{1e3 * row['seconds_per_token']['median']:.2f}" for name, row in decode["results"].items()}
    share = f"{decode['results']['launch']['fraction_of_bandwidth']:.0%}"
    seconds = {row["tokens"]: row["seconds"]["median"] for row in passes["results"]}
    gain = {row["batch"]: f"{row['speedup']['median']:.2f} times" for row in drafted["speculation"]["results"]}
    rate, best = (
        served["serving"]["results"]["minispec"]["tokens_per_second"]["median"],
        served["serving"]["floor_tokens_per_second"],
    )
    for quoted in (
        f"bandwidth | {1e3 * decode['predicted_seconds']:.2f} | {decode['weight_bytes'] / 1e9:.0f} GB of weights",
        f"decoding | {plain['launch']} | {share} of the bandwidth; transformers: {plain['transformers eager']} eager",
        f"{1e3 * cycle['seconds_per_token']:.2f} | {cycle['speedup']:.2f} times as fast as plain, at α = "
        f"{cycle['acceptance']:.2f}, where the formula predicts {cycle['predicted_speedup']:.2f}",
        f"pass over 16 tokens takes {seconds[16] / seconds[1]:.2f} times as long",
        f"{rate:,.0f} tokens/s, {100 * rate / best:.0f} % of the {best:,.0f} that the roofline allows",
        f"{gain[1]} as fast with one request, {gain[32]} with 32 and {gain[128]} with 128",
    ):
        assert quoted in table, quoted

"""The live page's engine in Chromium: the package's tokens, logits and verdicts, and a worker that answers."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
import torch

import minispec as ms
from minispec import verify
from minispec_course.site import live

pytestmark = pytest.mark.browser

OPENINGS = "Once upon a time, there was a|In a village lived a|One day, Tom met a|'Help!' cried the|The".split("|")
HEROES = "little dog named|king who|brave mouse.|dragon|girl, and she|tree in the garden|bear's|7 old".split("|")
PROMPTS = [f"{opening} {hero}" for opening in OPENINGS for hero in HEROES]  # 40
STRANGE = ("it's  two   spaces ", "\n\ttabs\r\n", "naïve “quotes” … 東京 🙂", "12,345.60€", "a<|end|>b", "THEY'LL", " ")


@pytest.fixture(scope="module")
def page(browser, tmp_path_factory):
    """A page from a folder, with the engine in it and a worker beside it."""
    folder = live.build(tmp_path_factory.mktemp("live")).parent
    (folder / "engine.html").write_text("<!doctype html><script src='live_weights.js'></script>")
    page = browser.new_page()
    page.goto((folder / "engine.html").as_uri())
    page.add_script_tag(path=live.HERE / "engine.js")
    page.add_script_tag(path=Path(__file__).with_name("live_engine.js"))
    page.evaluate("load()")
    yield page
    page.close()


@pytest.mark.parametrize(("step", "new"), ((7, 32), pytest.param(1, 96, marks=pytest.mark.nightly)))
def test_greedy_tokens_and_logits_are_the_packages(page, step, new):
    models = {name: ms.load(name) for name in live.MODELS}
    for prompt in PROMPTS[::step]:
        out = ms.generate(models["micro"], prompt, new)
        ids, tokens = page.evaluate("asked => plain(asked)", [prompt, new])
        assert (ids, tokens) == (models["micro"].encode(prompt), list(out.tokens)), prompt
        for name, model in models.items():
            with torch.inference_mode():
                logits = model.transformer(torch.tensor([ids + tokens])).logits.numpy()  # [1, T, V]
            packed = base64.b64encode(logits.tobytes()).decode()
            assert page.evaluate("asked => farthest(asked)", [name, ids + tokens, packed]) < 1e-3, (prompt, name)
    for text in STRANGE:
        ids = page.evaluate("text => tokenizer.encode(text)", text)
        assert ids == models["micro"].encode(text) and page.evaluate("ids => tokenizer.decode(ids)", ids) == text


def test_verdicts_are_the_packages_for_the_same_random_numbers(page):
    cases, verdicts = [], []
    for seed in range(1000):
        made, k, wrong = torch.Generator().manual_seed(seed), seed % 5, seed % 3 == 0
        logits = 3 * torch.randn(2, k + 1, 8, generator=made, dtype=torch.float64)
        p, q = logits.masked_fill(logits < -3, -torch.inf).softmax(-1)  # tokens of probability 0, too
        q = p[:k] if seed % 7 == 0 else q[:k]
        drafted = [int(torch.multinomial(row, 1, generator=made)) for row in q]
        q, u = q if seed % 4 else None, torch.rand(k + 1, generator=made, dtype=torch.float64)
        verdicts.append(verify.chain(p, q, drafted, u, replace=(lambda p, q: p) if wrong else verify.residual))
        cases.append([p.tolist(), q if q is None else q.tolist(), drafted, u.tolist(), wrong])
    found = [(one["accepted"], one["token"]) for one in page.evaluate("cases => verdicts(cases)", cases)]
    assert found == [(one.accepted, one.token) for one in verdicts] and len({accepted for accepted, _ in found}) == 5


@pytest.mark.parametrize("drafter", ("draft-model", "ngram", "bad", "target"))
def test_both_lanes_agree_and_every_decision_can_be_looked_into(page, drafter):
    for temperature in (0, 0.9):
        options = {"prompt": PROMPTS[0], "seed": 1, "k": 3, "drafter": drafter, "temperature": temperature}
        page.evaluate("options => ask('open', options)", options)
        cycles = [page.evaluate("ask('cycle')") for _ in range(6)]
        assert all((c["emitted"]["kind"] == "big") == (not c["drafted"]) for c in cycles)  # no guess, so no bonus
        output = [id for c in cycles for id in [*(d["id"] for d in c["drafted"][: c["accepted"]]), c["emitted"]["id"]]]
        if temperature == 0:
            assert [page.evaluate("ask('plain')")["id"] for _ in output] == output
        elif drafter == "target":
            assert all(cycle["accepted"] == 3 for cycle in cycles)  # p = q to the last bit
        for index, id in enumerate(output):
            found = page.evaluate("index => ask('inspect', {index})", index)
            assert found["emitted"]["id"] == id
            assert sum(one["p"] for one in found["top"]) + found["rest"]["p"] == pytest.approx(1, abs=1e-5)
            if found["drafted"]:
                assert found["accepted"] == (found["u"] < found["accept"]) == (found["drafted"]["id"] == id)
                assert found["accepted"] or found["correction"]["id"] == id


def test_the_experiment_tells_a_wrong_sampler_from_an_exact_one(page):
    for wrong in (False, True):
        asked = {"prompt": PROMPTS[0], "temperature": 0.8, "samples": 2000, "wrong": wrong}
        chi2 = page.evaluate("asked => ask('exact', asked)", asked)["chi2"]
        assert chi2["plain"]["p"] > 1e-3 and (chi2["speculative"]["p"] < 1e-6) == wrong
        of = [torch.tensor(chi2["speculative"][key] / 2, dtype=torch.float64) for key in ("df", "x")]
        assert chi2["speculative"]["p"] == pytest.approx(float(torch.special.gammaincc(*of)), rel=1e-5)
    stopped = page.evaluate("async asked => { const all = ask('exact', asked); await ask('stop'); return all; }", asked)
    assert stopped == {"stopped": True}

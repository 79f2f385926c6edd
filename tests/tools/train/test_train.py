"""The trainers at toy size: the corpus is really the target's, runs resume exactly, and a draft learns to overlap."""

import json

import pytest
import torch
from safetensors.torch import load_file

import minispec as ms
from minispec.generate import pad
from minispec.load.folder import load_folder, save_folder
from minispec.load.model import Model
from minispec_tools.cli import main
from minispec_tools.train import draft as drafting
from minispec_tools.train import micro
from minispec_tools.train.corpus import Corpus, write
from minispec_tools.train.lessons import Float8, Lessons, frequent_tokens, split_rows
from minispec_tools.train.loop import fit

PROMPTS = [[1, 2, 3], [4], [5, 6], [7, 8, 9, 10, 11], [12, 13]]


@pytest.fixture(scope="module")
def target(make_model) -> ms.Model:
    return make_model(dtype=torch.float32, end_tokens=[0], tie_embeddings=True, max_length=256)


@pytest.fixture(scope="module")
def corpus(target, tmp_path_factory) -> Corpus:
    """Ten sampled rows."""
    folder = tmp_path_factory.mktemp("corpus")
    return write(target, PROMPTS, folder, rows=10, max_new_tokens=12, temperatures=[1.0], batch=10)


def rows_of(corpus: Corpus) -> list[tuple[list[int], list[int]]]:
    """Prompt and reply of every row."""
    spans = zip(corpus.tokens.tolist(), corpus.prompt.tolist(), corpus.length.tolist(), strict=True)
    return [(row[:start], row[start:end]) for row, start, end in spans]


# ---- what the target generates


@pytest.mark.slow
def test_greedy_rows_are_the_outputs_of_generate(make_model, tmp_path):
    """Rows of different lengths, in one batch with a static cache, in float64: equal token for token."""
    target = make_model(end_tokens=[0])
    corpus = write(target, PROMPTS, tmp_path, rows=5, max_new_tokens=40, temperatures=[0.0], batch=5)
    assert sorted(prompt for prompt, _ in rows_of(corpus)) == sorted(PROMPTS)  # each prompt once
    for prompt, reply in rows_of(corpus):
        assert reply == ms.generate(target, prompt, max_new_tokens=40).tokens


@pytest.mark.slow
def test_sampled_rows_follow_the_targets_distribution(make_model, tmp_path):
    """First tokens of 20,000 rows at T = 0.7 against their distribution, χ² at 1e-4. A total variation of 0.03 gives
    at least 20,000 · 4 · 0.03² = 72 in χ², against a critical value of 32 at 8 bins: power above 0.99."""
    from scipy.stats import chisquare

    target = make_model(vocab_size=8)
    corpus = write(target, [[1, 2]], tmp_path, rows=20_000, max_new_tokens=1, temperatures=[0.7], batch=20_000)
    logits = target.transformer(torch.tensor([[1, 2]])).logits[0, -1]
    expected = ms.Sampling(temperature=0.7).probs(logits) * 20_000
    seen = torch.bincount(corpus.tokens[:, 2].long(), minlength=8)
    assert float(expected.min()) >= 5
    assert chisquare(seen, expected).pvalue >= 1e-4


def test_an_interrupted_corpus_goes_on_where_it_stopped(target, tmp_path):
    def generate(folder, seed=3):
        return rows_of(write(target, PROMPTS, tmp_path / folder, rows=12, max_new_tokens=8, batch=4, seed=seed))

    whole = generate("a")
    generate("b")
    kept = tmp_path / "b" / "shard-00002.safetensors"
    before = kept.stat().st_mtime_ns
    (tmp_path / "b" / "shard-00001.safetensors").unlink()
    assert generate("b") == whole and kept.stat().st_mtime_ns == before  # which was not generated again
    with pytest.raises(ValueError, match="other settings"):
        generate("b", seed=4)


# ---- the loop


@pytest.mark.slow
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path):
    def train(folder, stops):
        weight = torch.nn.Linear(3, 1, bias=False)
        torch.nn.init.constant_(weight.weight, 0.5)
        for stop in stops:
            loss_at = lambda step: (weight(torch.ones(3) * (step % 5)) - 2).square().mean()  # noqa: E731
            how = dict(steps=40, lr=0.1, log_every=10, stop_after=stop)
            curve = fit(weight, loss_at, folder=tmp_path / folder, **how)
        return weight.weight.detach().clone(), curve

    whole, curve = train("a", [None])
    parts, resumed = train("b", [10, 15, None])
    assert torch.equal(whole, parts) and [p["step"] for p in curve] == [10, 20, 30, 40]
    assert resumed[-1] == curve[-1] and json.loads((tmp_path / "b" / "curve.json").read_text()) == resumed
    with pytest.raises(ValueError, match="steps=41"):
        fit(torch.nn.Linear(3, 1, bias=False), lambda step: None, steps=41, lr=0.1, folder=tmp_path / "a")


# ---- drafts


@pytest.mark.parametrize("depth", [1, 2], ids=["a middle stream", "the last stream, which stands for the states"])
def test_lessons_hold_the_targets_distributions(target, corpus, depth):
    """Computed once and kept as states and log Σ exp, they equal the target's softmax where a reply token is asked."""
    lessons = Lessons(target.transformer, corpus, hidden_layers=[depth])
    ids = torch.arange(0, 64, 3)
    batch = lessons.batch(0, 0, 2000)
    tokens, asked, answers = batch.tokens, batch.asked, batch.answers
    p = lessons.probs(answers.states[asked], answers.log_z[asked], ids)
    fresh = Lessons(target.transformer, corpus, hidden_layers=[depth], keep=False).batch(0, 0, 2000)
    assert torch.equal(fresh.tokens, tokens) and torch.equal(fresh.asked, asked)
    for mine, other in (
        (answers.states, fresh.answers.states),
        (answers.log_z, fresh.answers.log_z),
        (answers.hidden[depth], fresh.answers.hidden[depth]),
    ):
        assert (mine - other).abs().max() <= 1e-4
    expected = target.transformer(tokens).logits[asked].softmax(-1)[:, ids]
    assert p.shape == (int(asked.sum()), len(ids)) and (p - expected).abs().max() <= 1e-5
    for row, mask in zip(tokens, asked, strict=True):  # asked from the last prompt token to the last but one
        where = mask.nonzero().flatten().tolist()
        assert where == list(range(where[0], where[-1] + 1))
        match = [(p, r) for p, r in rows_of(corpus) if [*p, *r] == row[: len(p) + len(r)].tolist()]
        assert any(where[0] == len(p) - 1 and len(where) == len(r) for p, r in match)


def rows_with_prompts(prompts: list[list[int]]) -> Corpus:
    """One row for each prompt, with a reply that tells which row it is."""
    tokens, lengths = pad([[*prompt, i] for i, prompt in enumerate(prompts)], "cpu")
    return Corpus(tokens.int(), (lengths - 1).int(), lengths.int(), torch.zeros(len(prompts)))


def prompts_of(corpus: Corpus) -> set[tuple[int, ...]]:
    return {tuple(prompt) for prompt, _ in rows_of(corpus)}


@pytest.mark.slow
def test_rows_are_held_out_by_prompt():
    """No prompt on both sides, every row on one, about one prompt in 50, and the same ones whatever else is there."""
    prompts = [[i % 700, 5, 6][: 1 + i % 3] for i in range(6000)]  # 2,100 different ones, beginnings of each other
    corpus = rows_with_prompts(prompts)
    learnt, held_out = split_rows(corpus)
    assert not prompts_of(learnt) & prompts_of(held_out)
    assert sorted(r[0] for part in (learnt, held_out) for _, r in rows_of(part)) == list(range(6000))
    assert 21 <= len(prompts_of(held_out)) <= 70  # 42 are expected, 6.4 the standard deviation
    shuffled = corpus[torch.randperm(6000, generator=torch.Generator().manual_seed(0))]
    padded = Corpus(torch.nn.functional.pad(corpus.tokens, (0, 9)), corpus.prompt, corpus.length, corpus.temperature)
    for other in (shuffled, padded, corpus[:1000]):
        assert prompts_of(split_rows(other)[1]) == prompts_of(held_out) & prompts_of(other)


def test_streams_kept_in_8_bits(target, corpus):
    """One byte per number and a scale per token: each number is off by 1/16 of itself at most."""
    whole, small = (Lessons(target.transformer, corpus, (0, 1, 2), keep_bits=bits) for bits in (16, 8))
    for tokens, _, kept in small.buckets:
        for store in (kept.hidden[0], kept.hidden[1]):
            assert isinstance(store, Float8) and store.scale.shape == (*tokens.shape, 1)
            assert store.bytes.untyped_storage().nbytes() == tokens.numel() * 32
        assert kept.states is None and kept.hidden[2].dtype == target.dtype  # the last stream is the target's p
    exact, rounded = (lessons.batch(0, 0, 2000) for lessons in (whole, small))
    for layers in (0, 1):
        x, y = exact.answers.hidden[layers], rounded.answers.hidden[layers]
        assert y.dtype == x.dtype and not torch.equal(x, y)
        assert ((x - y).abs() <= x.abs() / 16 + x.abs().amax(-1, keepdim=True) / 448 * 2**-10).all()
        assert ((x - y).norm(dim=-1) <= 0.04 * x.norm(dim=-1)).all()
    assert torch.equal(exact.answers.hidden[2], rounded.answers.hidden[2])
    assert torch.equal(exact.answers.states, rounded.answers.states) and torch.equal(exact.tokens, rounded.tokens)
    with pytest.raises(ValueError, match="keep_bits=4"):
        Lessons(target.transformer, corpus, keep_bits=4)


@pytest.mark.slow
def test_a_draft_learns_to_overlap_and_survives_storage(target, tmp_path):
    corpus = write(target, PROMPTS, tmp_path / "text", rows=64, max_new_tokens=24, temperatures=[1.0], batch=32)
    ids = frequent_tokens(corpus, 64, 40, always=[0])
    draft = Model("draft", drafting.draft_from(target.transformer, [0], ids), end_tokens=[0])
    before = drafting.acceptance(target, draft, corpus)["acceptance"]
    how = dict(steps=120, folder=tmp_path / "run", lr=5e-3, batch_tokens=1500)
    drafting.distill(target.transformer, draft.transformer, corpus, **how)
    after = drafting.acceptance(target, draft, corpus)["acceptance"]
    assert after > before + 0.1
    save_folder(draft, tmp_path / "stored")
    stored = drafting.acceptance(target, load_folder(tmp_path / "stored"), corpus)["acceptance"]
    assert abs(stored - after) < 0.02  # int8 costs little
    assert not draft.transformer.embed_tokens.weight.requires_grad  # it is the target's, and stays so


def test_a_wider_draft_scores_its_old_tokens_as_before_and_new_ones_as_the_map_says(make_model):
    """Where the draft's head is a linear image of the target's, so are the new rows, exactly."""
    target = make_model(dtype=torch.float64, hidden_size=16, tie_embeddings=True).transformer
    old, ids = torch.tensor([*range(0, 48, 2), 63]), torch.tensor([*range(48), 63])
    draft = drafting.draft_from(target, [0], old).double()
    turned = torch.randn(16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        draft.lm_head.weight.copy_(target.lm_head.weight[old] @ turned)
    wide = drafting.widen(draft, target, ids)
    assert wide.config.head_vocab == len(wide.head_ids) == 49 and wide.head_ids.tolist() == ids.tolist()
    tokens = torch.tensor([[1, 2, 3, 60]])
    before, after = draft(tokens).logits, wide(tokens).logits
    torch.testing.assert_close(after[..., old], before[..., old])
    assert after[..., ids].isfinite().all() and after.isinf().sum() == 4 * (64 - 49)
    torch.testing.assert_close(wide.lm_head.weight, target.lm_head.weight[ids] @ turned)


def test_acceptance_is_the_mean_overlap(target, make_model):
    draft = make_model(dtype=torch.float32, num_layers=1, tie_embeddings=True, max_length=256)
    rows = torch.tensor([[1, 2, 3, 4, 5], [6, 7, 8, 0, 0]], dtype=torch.int32)
    corpus = Corpus(rows, torch.tensor([2, 1]), torch.tensor([5, 3]), torch.zeros(2))
    overlaps = []
    for tokens, start, end in (([1, 2, 3, 4, 5], 2, 5), ([6, 7, 8], 1, 3)):
        p, q = (m.transformer(torch.tensor([tokens])).logits[0].softmax(-1) for m in (target, draft))
        overlaps += [float(torch.minimum(p[i], q[i]).sum()) for i in range(start - 1, end - 1)]
    found = drafting.acceptance(target, draft, corpus)
    assert found["tokens"] == 5 and found["acceptance"] == pytest.approx(sum(overlaps) / 5, abs=1e-5)
    same = drafting.acceptance(target, target, corpus)
    assert same == {"acceptance": pytest.approx(1.0), "greedy_agreement": 1.0, "tokens": 5}


# ---- stories


def test_only_whole_plain_stories_stay():
    good = "Once upon a time there was a fox. " + " ".join(f"It saw {i} birds and {i + 1} bees." for i in range(12))
    texts = [
        good,
        good + " And then the",  # cut after the last whole sentence: the same story again
        good.replace("fox", "füchs"),
        "Title: " + good,
        "Once upon a time. " + "He was sad. " * 60,  # in circles
        "Once upon a time there was a fox.",  # too short
        good + " # The End.",
    ]
    assert micro.clean_stories(texts) == [good]


@pytest.mark.slow
def test_the_whole_pipeline_at_toy_size(tiny_folder, tmp_path, capsys):
    """From prompts to a stored draft that is trained on and widened, as typed in a terminal."""
    prompts, text = tmp_path / "prompts.jsonl", tmp_path / "text"
    prompts.write_text("".join(json.dumps({"prompt": f"the fox {i}"}) + "\n" for i in range(9)))

    def recipe(name: str, words: str) -> int:
        return main(["train", name, "--model", str(tiny_folder), "--device", "cpu", *words.split()])

    sizes = "--hold-out 3 --rows 32 --batch 16 --tokens 16"
    assert recipe("corpus", f"--prompts {prompts} --out {text} {sizes}") == 0
    assert len({tuple(p) for p, _ in rows_of(Corpus.load(text))}) == 6
    learn = f"--corpus {text} --batch-tokens 500"
    assert recipe("draft", f"{learn} --layers 0 --head-vocab 100 --steps 20 --out {tmp_path}/run") == 0
    again = f"{learn} --start {tmp_path}/run/model"
    assert recipe("draft", f"{again} --steps 20 --out {tmp_path}/more") == 0
    first, more = (json.loads((tmp_path / run / "curve.json").read_text()) for run in ("run", "more"))
    assert more[-1]["loss"] < first[-1]["loss"]
    wider = f"{again} --steps 1 --out {tmp_path}/wide --head-vocab"
    assert recipe("draft", f"{wider} 120 --bits 5") == 0
    small, large = (load_file(tmp_path / run / "model" / "model.safetensors") for run in ("run", "wide"))
    assert set(small["model.head_ids"].tolist()) < set(large["model.head_ids"].tolist())
    assert len(large["lm_head.weight"]) == 120 and large["lm_head.weight"].abs().max() == 15  # of five bits
    capsys.readouterr()
    broken = tmp_path / "broken"
    broken.mkdir()
    for file, content in (("shard-00000.safetensors", b"x"), ("checkpoint.pt", b"x"), ("latin1", b"\xe9t\xe9\n")):
        (broken / file).write_bytes(content)
    for name, words, wrong in (
        ("draft", f"{wider} 99", "head-vocab=99"),
        ("corpus", f"--out {tmp_path}/x", "--prompts"),  # neither prompts nor follow-up
        ("medusa", f"--out {tmp_path}/x", "--corpus"),
        ("dflash", f"{learn} --out {tmp_path}/x --add-layers 1", "--add-layers"),
        ("eagle", f"--corpus {tmp_path}/none --out {tmp_path}/x", "no shards"),
        ("draft", f"--corpus {broken} --out {tmp_path}/x", "is damaged"),
        ("draft", f"{learn} --layers 0 --out {broken}", "delete it to begin anew"),
        ("corpus", f"--prompts {broken}/latin1 --out {tmp_path}/x", "UTF-8"),
        ("draft", f"{learn} --out {tmp_path}/x --lr nan", "--lr"),
    ):
        assert recipe(name, words) == 2, words
        assert wrong in capsys.readouterr().err, words

"""The target writes the text its drafts learn from.

A draft has to guess what *this* target will say, so it learns from the target's own words, at the temperatures people
will use, and not from somebody's web crawl. Rows are written in batches; each batch is one shard on disk, determined by
(seed, shard number) alone, so that an interrupted run goes on where it stopped.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from tqdm import tqdm

from minispec.generate import pad
from minispec.gpu.graph import Captured
from minispec.gpu.weights import FastTransformer, has_kernels
from minispec.load.folder import read_json
from minispec.load.model import Model
from minispec.load.write import in_place_of, write_whole

from ..cli import options
from .arguments import chosen

FOLLOW_UPS = (
    "Summarize that in two sentences.",
    "Explain it again, but to a ten-year-old.",
    "Rewrite your answer as a list of bullet points.",
    "Translate your first sentence into German.",
    "Give one example.",
    "What is the most important point, and why?",
    "Make it shorter.",
    "Are you sure? Check your answer step by step.",
)

ABOUT = (
    "Summarize: {text}",
    "Summarize the following article in a few sentences.\n\n{text}",
    "{text}\n\nWhat are the main points of this text?",
    "Read these documents, then answer the question.\n\n{text}\n\nQuestion: What are they about?",
    "Here is some background:\n\n{text}\n\nUsing only this background, explain the topic in your own words.",
    "Rewrite this text in simpler words:\n\n{text}",
    "{text}\n\nList the people, places and things that are named above.",
)


@dataclass
class Corpus:
    """Rows of prompt + reply, padded at the end."""

    tokens: Tensor  # [N, S] int32
    prompt: Tensor  # [N] tokens of the prompt
    length: Tensor  # [N] tokens of prompt and reply together
    temperature: Tensor  # [N] at which the reply was drawn

    @classmethod
    def load(cls, *folders: str | Path) -> Corpus:
        files = [file for folder in folders for file in sorted(Path(folder).glob("shard-*.safetensors"))]
        if not files:
            raise ValueError(f"no shards in {', '.join(map(str, folders))}: write some with `minispec train corpus`")
        shards = [cls._read(file) for file in files]
        width = max(int(shard["length"].max()) for shard in shards)
        for shard in shards:
            missing = width - shard["tokens"].shape[1]
            shard["tokens"] = torch.nn.functional.pad(shard["tokens"], (0, max(0, missing)))[:, :width]
        return cls(**{key: torch.cat([shard[key] for shard in shards]) for key in cls.__annotations__})

    @classmethod
    def _read(cls, file: Path) -> dict[str, Tensor]:
        try:
            shard = load_file(file)
        except SafetensorError as error:
            raise ValueError(f"{file} is damaged ({error}): delete it, and write the corpus again") from None
        if missing := cls.__annotations__.keys() - shard.keys():
            raise ValueError(f"{file} lacks {', '.join(sorted(missing))}: it is no shard of `minispec train corpus`")
        return shard

    def __len__(self) -> int:
        return len(self.length)

    def __getitem__(self, rows) -> Corpus:
        return Corpus(self.tokens[rows], self.prompt[rows], self.length[rows], self.temperature[rows])

    def greedy(self) -> Corpus:
        """The greedy replies, where the best guess is all that counts; if there is none, all of them."""
        chosen = self[self.temperature == 0]
        return chosen if len(chosen) else self

    def asked(self, width: int) -> Tensor:
        """[N, width], True where a reply token is predicted: position t is asked for token t + 1."""
        position = torch.arange(width)
        return (position >= self.prompt[:, None] - 1) & (position < self.length[:, None] - 1)

    def replies(self, writer: Model) -> list[str]:
        """The text after each prompt."""
        spans = zip(self.tokens.tolist(), self.prompt.tolist(), self.length.tolist(), strict=True)
        return writer.tokenizer.decode_batch([row[start:end] for row, start, end in spans], skip_special_tokens=True)

    def save(self, file: Path) -> None:
        with in_place_of(file) as part:  # a shard is there whole or not at all
            save_file({key: getattr(self, key).contiguous() for key in self.__annotations__}, part)


class BatchWriter:
    """Continues a fixed number of prompts at once; on a GPU each step is one launch."""

    def __init__(self, target: Model, batch: int, max_prompt: int, max_new_tokens: int, seed: int):
        self.target, self.max_new_tokens, device = target, max_new_tokens, target.device
        room, lean = max_prompt + max_new_tokens, has_kernels(device, target.dtype)
        self.transformer = FastTransformer(target.transformer, batch, room, lean=lean)
        self.current = torch.zeros(batch, dtype=torch.long, device=device)  # [B] the token that is read next
        self.temperature = torch.zeros(batch, 1, device=device)
        self.written = torch.zeros(batch, max_new_tokens, dtype=torch.long, device=device)
        self.cursor = torch.zeros(1, dtype=torch.long, device=device)
        self.generator = torch.Generator(device).manual_seed(seed)
        self.end_tokens = torch.tensor(sorted(target.end_tokens) or [-1], device=device)
        state = [self.current, self.written, self.cursor, self.transformer.lengths]
        self.step = Captured(self._step, state, self.generator)

    def _step(self) -> None:
        """Draw from softmax(logits / T) for every T at once: argmax(logits + T · Gumbel noise), greedy at T = 0."""
        logits = self.transformer.step(self.current[:, None])[:, -1].float()  # [B, V]
        gumbel = -torch.empty_like(logits).exponential_(generator=self.generator).log()
        self.current.copy_((logits + self.temperature * gumbel).argmax(-1))
        self.written.index_copy_(1, self.cursor, self.current[:, None])
        self.cursor += 1

    @torch.no_grad()
    def __call__(self, prompts: Sequence[list[int]], temperatures: Sequence[float], seed: int) -> Corpus:
        self.generator.manual_seed(seed)
        self.temperature.copy_(torch.tensor(temperatures)[:, None])
        self.written.zero_(), self.cursor.zero_()
        tokens, counts = pad(prompts, self.target.device)
        self.transformer.prefill(tokens[:, :-1], counts - 1)  # the first step reads the last token
        self.current.copy_(tokens.gather(1, counts[:, None] - 1)[:, 0])
        for step in range(self.max_new_tokens):
            self.step()
            if step % 32 == 31 and bool(torch.isin(self.written[:, : step + 1], self.end_tokens).any(1).all()):
                break
        return self._collect(prompts, temperatures)

    def _collect(self, prompts, temperatures) -> Corpus:
        """Cut every reply after its first end token and put it behind its prompt."""
        count = int(self.cursor)
        ended = torch.isin(self.written[:, :count], self.end_tokens)  # [B, new]
        kept = torch.where(ended.any(1), ended.int().argmax(1) + 1, count).tolist()
        rows = [p + w[:n] for p, w, n in zip(prompts, self.written.tolist(), kept, strict=True)]
        tokens, length = pad(rows, "cpu")
        prompt = torch.tensor([len(p) for p in prompts], dtype=torch.int32)
        return Corpus(tokens.to(torch.int32), prompt, length.to(torch.int32), torch.tensor(temperatures))


def write(
    target: Model,
    prompts: Sequence[list[int]],
    folder: str | Path,
    *,
    rows: int,
    max_new_tokens: int = 256,
    temperatures: Sequence[float] = (0.0, 0.5, 0.8, 1.0, 1.0),
    batch: int = 32,
    seed: int = 0,
) -> Corpus:
    """Continue the prompts, in a shuffled order and round after round, until `rows` rows are on disk.

    Shards that are there already are skipped.
    """
    if not prompts:
        raise ValueError("prompts is empty: give at least one prompt")
    folder = Path(folder)
    settings = dict(target=target.name, rows=rows, max_new_tokens=max_new_tokens, batch=batch, seed=seed)
    settings |= dict(temperatures=list(temperatures), prompts=len(prompts))
    record = folder / "corpus.json"
    if record.exists() and read_json(record) != settings:
        raise ValueError(f"folder={str(folder)!r} holds a corpus with other settings: choose another folder")
    write_whole(record, json.dumps(settings, indent=1))
    writer = BatchWriter(target, batch, max(map(len, prompts)), max_new_tokens, seed)
    shards = -(-rows // batch)
    for number in tqdm(range(shards), desc=f"{target.name} writes", unit="shard"):
        file = folder / f"shard-{number:05d}.safetensors"
        if not file.exists():
            rng = random.Random(f"{seed} {number}")
            dealt = [_pick(prompts, number * batch + i, seed) for i in range(batch)]
            writer(dealt, rng.choices(temperatures, k=batch), seed=rng.getrandbits(40)).save(file)
    return Corpus.load(folder)[:rows]


def _pick(prompts: Sequence[list[int]], index: int, seed: int) -> list[int]:
    """Prompt number `index` of an endless deck that is shuffled anew each round."""
    deal, card = divmod(index, len(prompts))
    return prompts[_deck(len(prompts), f"{seed} {deal}")[card]]


@lru_cache(maxsize=4)
def _deck(size: int, seed: str) -> list[int]:
    return random.Random(seed).sample(range(size), size)


def read_prompts(file: str | Path) -> list[str]:
    """JSON lines with "prompt" (or "turns", of which the first is taken), or one prompt per line."""
    try:
        lines = [line for line in Path(file).read_text(encoding="utf-8").splitlines() if line.strip()]
        rows = [json.loads(line) if line.startswith("{") else {"prompt": line} for line in lines]
        return [row["turns"][0] if "turns" in row else row["prompt"] for row in rows]
    except (ValueError, LookupError, TypeError) as error:
        wanted = 'give UTF-8 text, a line {"prompt": "…"} or a plain line for each prompt'
        raise ValueError(f"prompts={str(file)!r} cannot be used ({error!r}): {wanted}") from None


def split(items: Sequence, hold_out: int) -> tuple[list, list]:
    """Everything but `hold_out` items chosen at random, and those: the same ones every time, from every source."""
    if hold_out > len(items):
        raise ValueError(f"hold_out={hold_out}: there are {len(items)} prompts, leave out fewer")
    chosen = set(random.Random(0).sample(range(len(items)), hold_out))
    return [x for i, x in enumerate(items) if i not in chosen], [x for i, x in enumerate(items) if i in chosen]


def encode_prompts(target: Model, prompts: Sequence[str], max_prompt: int) -> list[list[int]]:
    """As chat where the model knows how to chat; prompts longer than max_prompt tokens are left out."""
    as_chat = target.chat_template is not None
    ids = [target.encode([{"role": "user", "content": p}] if as_chat else p) for p in prompts]
    return [row for row in ids if len(row) <= max_prompt]


def invent(target: Model, count: int, *, batch: int = 32, max_prompt: int = 64, seed: int = 0) -> list[str]:
    """Questions the target asks itself: it continues an empty user turn, and what it writes is a prompt."""
    opening = target.chat([{"role": "user", "content": "\0"}]).split("\0")[0]
    ids = target.tokenizer.encode(opening, add_special_tokens=False).ids
    writer = BatchWriter(target, batch, len(ids), max_prompt, seed)
    found: dict[str, None] = {}  # a set that keeps its order
    for number in tqdm(itertools.count(), desc=f"{target.name} asks itself", unit="row", unit_scale=batch):
        if len(found) >= count:
            break
        corpus = writer([ids] * batch, [1.0] * batch, seed=seed * 1_000_003 + number)
        last = corpus.tokens[range(batch), (corpus.length - 1).long()].tolist()
        for text, token in zip(corpus.replies(target), last, strict=True):
            if token in target.end_tokens and len(text) >= 12:  # a whole question, not the beginning of an essay
                found[text.strip()] = None
    return list(found)[:count]


def follow_ups(target: Model, corpus: Corpus, count: int, max_prompt: int, seed: int = 0) -> list[list[int]]:
    """Second turns: whole conversations of a corpus, each with one more question."""
    opening, closing = target.chat([{"role": "user", "content": "\0"}]).split("\0")
    user = opening[opening.rindex("<|im_start|>") :] if "<|im_start|>" in opening else opening
    rng, rows = random.Random(seed), []
    ended = [i for i in range(len(corpus)) if int(corpus.tokens[i, corpus.length[i] - 1]) in target.end_tokens]
    rng.shuffle(ended)
    for i in ended:
        turn = "\n" + user + rng.choice(FOLLOW_UPS) + closing
        ids = corpus.tokens[i, : corpus.length[i]].tolist()
        ids += target.tokenizer.encode(turn, add_special_tokens=False).ids
        if len(ids) <= max_prompt:
            rows.append(ids)
        if len(rows) == count:
            break
    return rows


def long_prompts(target: Model, corpus: Corpus, count: int, max_prompt: int, seed: int = 0) -> list[list[int]]:
    """Requests about a long text: some of the corpus's own replies, one after another, with an instruction."""
    rng, most, rows = random.Random(seed), max(4, max_prompt // 160), []
    texts = [rng.choices(range(len(corpus)), k=rng.randint(1, most)) for _ in range(2 * count)]  # some are too long
    for some in texts:
        text = "\n\n".join(corpus[torch.tensor(some)].replies(target))
        rows += encode_prompts(target, [rng.choice(ABOUT).format(text=text)], max_prompt)
        if len(rows) == count:
            break
    return rows


def add_arguments(parser) -> None:
    add = partial(options.add, parser)
    add("prompts", Path, None, "JSON lines with a prompt each, or plain lines", "FILE")
    add("follow-up", Path, None, "a corpus folder: continue its conversations by one more turn", "FOLDER")
    add("about", Path, None, "a corpus folder: ask about long texts made of its replies", "FOLDER")
    add("invent", options.natural, 0, "add N prompts that the target asks itself")
    add("hold-out", options.natural, 0, "leave N prompts of the file out, to measure on later")
    add("out", Path, None, "a folder, one file per batch", "FOLDER", required=True)
    add("rows", options.count, 2048, "sequences to generate")
    add("batch", options.count, 32, "sequences at once, 1536 on a large GPU")
    add("max-prompt", options.count, 256, "tokens; longer prompts are left out")
    options.add_tokens(parser, 256, "of each reply at most")
    add("temperatures", options.temperature, [0.0, 0.5, 0.8, 1.0, 1.0], "of the replies", "T", nargs="+")


def run(args, target: Model) -> None:
    if sum(source is not None for source in (args.prompts, args.follow_up, args.about)) != 1:
        raise ValueError("give one of --prompts FILE, --follow-up FOLDER and --about FOLDER")
    if folder := args.about or args.follow_up:
        ask = long_prompts if args.about else follow_ups
        prompts = ask(target, Corpus.load(folder), args.rows, args.max_prompt, args.seed)
    else:
        texts, _ = split(read_prompts(args.prompts), args.hold_out)
        texts += invent(target, args.invent, batch=args.batch, seed=args.seed) if args.invent else []
        prompts = encode_prompts(target, texts, args.max_prompt)
    how = chosen(args, "rows temperatures batch seed")
    corpus = write(target, prompts, args.out, max_new_tokens=args.tokens, **how)
    tokens = int((corpus.length - corpus.prompt).sum())
    print(f"{len(corpus)} rows, {tokens:,} tokens generated for {len(prompts)} prompts in {args.out}")

"""`Model`: a transformer with its tokenizer, the handle that everything else takes.

What a user types as a prompt (text, chat messages, token ids) becomes a list of token ids here and nowhere else; what
cannot be one is refused here, in words.

Chat templates are filled in as transformers fills them in: the same extensions, functions and special tokens. A
template is a program from a stranger, so it runs in jinja's sandbox. Beyond plain jinja it may use what published
templates use: `break` and `continue`, `tojson` without HTML escapes, `raise_exception`, `strftime_now`, and the tag
`generation`, which marks replies for training and prints them as they are.
"""

import json
import operator
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache, partial
from importlib import import_module
from pathlib import Path
from reprlib import repr as shortened

import torch
from tokenizers import Tokenizer

from ..cpu.int8 import Int8Linear
from ..model import Config, Transformer
from ..require import warn_once

BACKEND = "minispec.gpu.backend"  # what captures a model's passes, imported when first asked for
WEIGHTS = "minispec.gpu.weights"  # and what of a model it needs


class Model:
    """A transformer with its tokenizer: what `ms.load` returns."""

    def __init__(
        self,
        name: str,
        transformer: Transformer,
        tokenizer: Tokenizer | None = None,
        end_tokens: Sequence[int] = (),
        chat_template: str | None = None,
        special_tokens: Mapping[str, str] | None = None,
    ):
        self.name, self.transformer, self.tokenizer = name, transformer, tokenizer
        self.end_tokens, self.chat_template = frozenset(end_tokens), chat_template
        self.special_tokens = dict(special_tokens or {})  # those that the template may name: bos_token, eos_token, …
        self.backend = None  # where passes are captured (a GPU): what replays them, see gpu/backend.py

    def around(self, transformer: Transformer, name: str | None = None) -> "Model":
        """Another transformer with this one's tokenizer, end tokens and chat template."""
        same = self.tokenizer, self.end_tokens, self.chat_template, self.special_tokens
        return Model(name or self.name, transformer, *same)

    def __repr__(self) -> str:
        stored = f"{self.weights} weights: another model than the float32 one" if self.weights else self.dtype
        return f"Model({self.name!r}, {self.num_parameters / 1e6:.1f} M parameters, {stored}, {self.device})"

    @property
    def weights(self) -> str | None:
        """ "int8" where the matrices are kept in int8 (`ms.load(…, weights="int8")`); None: as `dtype` says."""
        return "int8" if isinstance(getattr(self.transformer, "lm_head", None), Int8Linear) else None

    @property
    def label(self) -> str:
        """What results call it: not by the path of its folder, and with what was done to its weights."""
        name = Path(self.name).name or self.name
        return f"{name} with {self.weights} weights (another model than the float32 one)" if self.weights else name

    @property
    def config(self) -> Config:
        return self.transformer.config

    @property
    def device(self) -> torch.device:
        return self.transformer.device

    @property
    def dtype(self) -> torch.dtype:
        return self.transformer.dtype

    @property
    def num_parameters(self) -> int:
        bytewise = [m for m in self.transformer.modules() if isinstance(m, Int8Linear)]
        whole = sum(m.in_features * m.out_features for m in bytewise)
        return sum(p.numel() for p in self.transformer.parameters()) + whole

    def accelerate(self):
        """Let `generate` and `speculate` go through the capturing backend from now on; returns it."""
        if self.backend is None:
            self.backend = import_module(BACKEND).Backend(self)
        return self.backend

    def may_capture(self) -> bool:
        """Whether passes are captured if nobody has decided that: on a GPU, of a model whose passes can be. For others
        a warning says why not."""
        if self.device.type != "cuda":
            return False
        if why := import_module(WEIGHTS).unfit(self.transformer):
            warn_once(f"{self.name} {why}: it runs without CUDA graphs, with the same output and more slowly")
        return why is None

    def capturer(self):
        """A backend that captures passes, for whoever asks: the model's own, or one that leaves the model as it is."""
        return self.backend or import_module(BACKEND).Backend(self)

    # ---- text and tokens ----

    def encode(self, prompt) -> list[int]:
        """Token ids of a prompt: text, chat messages, or token ids (a list, an array or a tensor of whole numbers)."""
        if isinstance(prompt, str):
            ids = self._tokenizer().encode(_characters(prompt)).ids
        else:
            items = prompt.tolist() if hasattr(prompt, "tolist") else prompt  # a tensor or an array
            if isinstance(prompt, (bytes, bytearray, memoryview)) or not isinstance(items, Sequence):
                kinds = "text, a list of token ids, or a list of chat messages"
                raise ValueError(f"prompt={shortened(prompt)}: give {kinds}")
            if any(isinstance(item, dict) for item in items):
                ids = self._tokenizer().encode(_characters(self.chat(items)), add_special_tokens=False).ids
            else:
                ids = [_token_id(item) for item in items]
        if not ids:
            raise ValueError(f"prompt={prompt!r} holds no token: give at least one")
        if bad := [token for token in ids if not 0 <= token < self.config.vocab_size]:
            known = f"the vocabulary of {self.name} ends at {self.config.vocab_size - 1}"
            raise ValueError(f"prompt holds token id {bad[0]}, but {known}; was it encoded for another model?")
        return ids

    def decode(self, tokens: Sequence[int]) -> str:
        return self._tokenizer().decode(list(tokens), skip_special_tokens=True)

    def spell(self, token: int) -> str:
        """One token as text: a part of a character is \ufffd, and a special token its own name."""
        return self._tokenizer().decode([token], skip_special_tokens=False)

    def chat(self, messages: Sequence[dict]) -> str:
        """The prompt text of a conversation [{"role": …, "content": …}, …], ending where the reply begins."""
        if self.chat_template is None:
            raise ValueError(f"{self.name} has no chat template: give the prompt as text instead of messages")
        for message in messages:
            if not isinstance(message, dict) or not all(isinstance(message.get(k), str) for k in ("role", "content")):
                raise ValueError(f'message={shortened(message)}: give {{"role": "user", "content": "…"}}, both text')
        begin, nothing = (self._tokenizer().encode("", add_special_tokens=flag).tokens for flag in (True, False))
        end = (self.tokenizer.id_to_token(token) for token in sorted(self.end_tokens))
        tokens = {"bos_token": begin[0] if len(begin) > len(nothing) else "", "eos_token": next(filter(None, end), "")}
        given = dict(messages=list(messages), tools=None, documents=None, add_generation_prompt=True, _round=Rounds())
        try:
            return compiled_template(self.chat_template).render(given | tokens | self.special_tokens)
        except Exception as error:  # a template is a program: it may refuse the messages, or fail in any way
            wrong = f"the chat template of {self.name} fails for these messages ({type(error).__name__}: {error})"
            raise ValueError(f"{wrong}: give others, repair it, or give the prompt as text") from None

    def _tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise ValueError(f"{self.name} has no tokenizer files: give the prompt as a list of token ids")
        return self.tokenizer


# ---- what a prompt may be made of ----


def _characters(text: str) -> str:
    """Text that has an encoding: bytes that were no UTF-8 may hide in it as lone surrogates."""
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError(f"prompt={shortened(text)} holds bytes that are no UTF-8: give text")
    return text


def _token_id(item) -> int:
    """A whole number, whatever its type; a float is not one, nor is True."""
    try:
        if isinstance(item, bool):
            raise TypeError
        return operator.index(item)
    except TypeError:
        raise ValueError(f"prompt holds {shortened(item)}, which is no token id: give whole numbers, or text") from None


# ---- chat templates ----


@lru_cache(maxsize=8)
def compiled_template(source: str):
    """A chat template, ready to be filled in: to compile it takes longer than to fill it in a hundred times. It may be
    a stranger's: each round of each of its loops calls `_round`."""
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension, LoopControlExtension
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        tags = frozenset({"generation"})

        def parse(self, parser):
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def raise_exception(message):
        raise TemplateError(message)

    extensions = [LoopControlExtension, Generation]
    jinja = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    jinja.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
    jinja.globals |= {"raise_exception": raise_exception, "strftime_now": lambda form: datetime.now().strftime(form)}
    template = jinja.parse(source)
    for loop in template.find_all(nodes.For):
        call = nodes.Call(nodes.Name("_round", "load"), [], [], None, None)
        loop.body.insert(0, nodes.Output([call]))
        for node in (call, call.node, loop.body[0]):
            node.set_lineno(loop.lineno)
    return jinja.from_string(template)


class Rounds:
    """Those that the loops of a template may take, however they are nested."""

    def __init__(self, left: int = 100_000):
        self.left = left

    def __call__(self) -> str:
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("its loops do not end")
        return ""

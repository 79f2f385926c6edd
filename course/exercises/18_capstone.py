# %% [markdown]
# # Exercises 18: the capstone
#
# Speculative decoding, all of it, by you: a sampler, a drafter, a loop, and the three joined into one decoder. The parts
# are graded alone, so one that is wrong does not spoil the next. The last exercise joins *your* parts, and is judged by
# the exact law of its text, by the passes it makes, and by its tokens a pass on a real model: SmolLM2 if it is on this
# machine (`minispec models get smollm2`), else the small one that comes with minispec.
#
# Where a function gets `random`, call `random()` for a fresh random number in [0, 1). You may compare it,
# `random() < 0.3`, or draw a token with it: `pick(law, random())`. Compute nothing else with it: that is what lets the
# check follow every branch.
#
# A model has a cache and three things to do with it:
#
# | | |
# |---|---|
# | `model.read(tokens)` | reads them behind what the cache holds; returns logits `[len(tokens), V]` |
# | `model.length` | how many tokens the cache holds |
# | `model.rewind(length)` | forgets everything after the first `length` |

# %%
import torch

from minispec.course.classroom import check, draw, hint
from minispec.verify import pick

# %% [markdown] exercise="18.sampler"
# ## 1. Your sampler
#
# One pass of the target gave γ + 1 rows of logits. Turn them into laws, then decide about the drafts.
#
# $$p_i = \mathrm{softmax}(\ell_i / T), \qquad T = 0: \text{ all mass on the likeliest token}$$
#
# Accept $d_i$ with probability $\min(1, p_i(d_i)/q_i(d_i))$. At the first rejection emit one token from
# $\mathrm{norm}([p_i - q_i]_+)$ and stop; if there is none, emit one from $p_\gamma$.
#
# | | | |
# |---|---|---|
# | `logits` | tensor `[γ+1, V]` | row $i$ speaks of the place of draft $i$; the last row of the bonus |
# | `q` | tensor `[γ, V]` | the laws that the drafts were drawn from; None if γ = 0 |
# | `drafted` | list of γ tokens | |
# | `temperature` | number ≥ 0 | of the target; $q$ has its own already in it |
# | returns | list of tokens | accepted drafts and one token more |


# %% exercise="18.sampler"
def verify(logits: torch.Tensor, q: torch.Tensor | None, drafted: list[int], temperature: float, random) -> list[int]:
    """All tokens that one cycle emits."""
    ### BEGIN SOLUTION: laws first; then the coin, the residual, the bonus
    if temperature == 0:
        p = torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).to(logits.dtype)
    else:
        p = torch.softmax(logits / temperature, dim=-1)
    for i, d in enumerate(drafted):
        if random() < min(1.0, float(p[i, d] / q[i, d])):
            continue
        missing = torch.clamp(p[i] - q[i], min=0)
        return [*drafted[:i], pick(missing / missing.sum(), random())]
    return [*drafted, pick(p[-1], random())]
    ### END SOLUTION


# %% exercise="18.sampler"
check("18.sampler", verify)

# %% [markdown] exercise="18.drafter"
# ## 2. Your drafter
#
# A small model runs ahead, token by token, on its own cache. It has read a beginning of the text, all but one token or
# all but two; so read what is missing, draw, read what you drew, and so on: **k passes** for k drafts, since nobody asks
# what follows the last one.
#
# Report the law of each draft as it was really used, temperature included: the sampler builds on it.
#
# | | | |
# |---|---|---|
# | `model` | | the draft |
# | `text` | list of tokens | everything written so far |
# | `k` | whole number ≥ 0 | how many to draft |
# | `temperature` | number ≥ 0 | 0 is greedy: then $q$ is one-hot |
# | returns | `(drafted, q)` | a list of k tokens, and their laws, a tensor `[k, V]`; None for $q$ if k = 0 |


# %% exercise="18.drafter"
def propose(model, text: list[int], k: int, temperature: float, random) -> tuple[list[int], torch.Tensor | None]:
    """Draft k tokens, and the law that each was drawn from."""
    ### BEGIN SOLUTION: what has the model not read yet? which law did the draft come from?
    drafted: list[int] = []
    laws = []
    while len(drafted) < k:
        logits = model.read((text + drafted)[model.length :])[-1]
        if temperature == 0:
            law = torch.zeros_like(logits)
            law[logits.argmax()] = 1.0
        else:
            law = torch.softmax(logits / temperature, dim=-1)
        laws.append(law)
        drafted.append(pick(law, random()))
    return drafted, torch.stack(laws) if laws else None
    ### END SOLUTION


# %% exercise="18.drafter"
check("18.drafter", propose)

# %% [markdown] exercise="18.loop"
# ## 3. Your loop
#
# Draft, verify in one pass, add, rewind: until there are `count` new tokens or the target has written `end`. Drafter and
# sampler come as two functions, so the loop knows nothing of laws or temperatures:
#
# | | |
# |---|---|
# | `propose(draft, text, k)` | returns `(drafted, q)`; k may be 0 |
# | `verify(logits, q, drafted)` | returns the tokens that the cycle emits |
#
# Both models have read the prompt except its last token. Draft no more than can be used: a cycle emits up to one token
# more than it drafts, so near the end fewer than `k` will do. And look for `end` among *all* tokens of a cycle: it is the
# last of the text, and what the same cycle emitted behind it does not count.
#
# | | | |
# |---|---|---|
# | `target`, `draft` | models | |
# | `prompt` | list of tokens | at least one |
# | `k`, `count` | whole numbers ≥ 1 | longest draft; how many new tokens, at most |
# | `end` | token | ends the text |
# | returns | list of tokens | the new ones only; with `end`, if it came |


# %% exercise="18.loop"
def loop(target, draft, propose, verify, prompt: list[int], k: int, count: int, end: int) -> list[int]:
    """Speculative decoding around any drafter and any sampler."""
    ### BEGIN SOLUTION: how many drafts? one pass; is it over? what may each cache keep?
    new: list[int] = []
    while len(new) < count:
        drafted, q = propose(draft, prompt + new, min(k, count - len(new) - 1))
        for token in verify(target.read([(prompt + new)[-1], *drafted]), q, drafted):
            new.append(token)
            if token == end:
                return new
        read = len(prompt) + len(new) - 1  # the last token has been read by nobody
        target.rewind(read)
        draft.rewind(min(read, draft.length))
    return new
    ### END SOLUTION


# %% exercise="18.loop"
check("18.loop", loop)

# %% [markdown] exercise="18.whole"
# ## 4. All of it
#
# Join your `propose`, your `verify` and your `loop`. If a part is not yet right, its own check says so more clearly than
# this one.
#
# What comes out must follow the target's law at this temperature *exactly*, in as few passes as the draft allows. This
# check has three stages: the law of whole texts on small models, all passes included; then greedy decoding on a real
# model, where text and tokens a pass must be as good as ours.
#
# | | | |
# |---|---|---|
# | `target`, `draft`, `prompt`, `k`, `count`, `end` | as above | |
# | `temperature` | number ≥ 0 | of both |
# | `random` | function | for both |
# | returns | list of tokens | the new ones |


# %% exercise="18.whole"
def speculate(target, draft, prompt: list[int], k: int, count: int, end: int, temperature: float, random) -> list[int]:
    """Lossless speculative decoding, out of your own parts."""
    ### BEGIN SOLUTION: your loop, with your drafter and your sampler in it

    def drafts(model, text, k):
        return propose(model, text, k, temperature, random)

    def emitted(logits, q, drafted):
        return verify(logits, q, drafted, temperature, random)

    return loop(target, draft, drafts, emitted, prompt, k, count, end)
    ### END SOLUTION


# %% exercise="18.whole"
check("18.whole", speculate)

# %% [markdown]
# How many tokens does one pass of the real target give you? (The first line says which model it is.)

# %% tags=["nbval-ignore-output"]
draw("18.whole", speculate)

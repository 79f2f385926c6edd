# %% [markdown]
# # Exercises 17: the coding round
#
# Interviewers for inference teams ask for these functions. The coding round of the mock interview
# (`minispec mock --format coding`) chooses one of them. Here you can practise them without a clock. Before you type, say
# what goes in, what comes out and what it costs; afterwards try the smallest input, the empty one, and one that might break
# it.

# %%
import math

import torch

from minispec_course.check import check, hint, progress_table

# %% [markdown] exercise="17.ragged_sampler"
# ## 1. A rejection sampler for drafts of different lengths
#
# The sequences of a batch have drafts of different lengths, padded to the longest. Decide for all of them at once how many
# draft tokens are accepted, and from which distribution the next token is sampled. Draft token $x$ at position $i$ is
# accepted if $u_i < p_i(x)/q_i(x)$, and everything after the first rejection is discarded. No loop over sequences, please.
#
# | | | |
# |---|---|---|
# | `p` | tensor `[B, k + 1, V]` | the target's distributions; position $i$ is the one that draft token $i$ is tested against |
# | `q` | tensor `[B, k, V]` | the distributions that the draft tokens were sampled from |
# | `draft`, `lengths` | tensors `[B, k]`, `[B]` | draft tokens; how many of them are real |
# | `u` | tensor `[B, k]` | random numbers from 0 to 1 |
# | returns | `(counts [B], next [B, V])` | accepted tokens; the residual after a rejection, $p$ at position `lengths` otherwise |

# %% [markdown] exercise="17.block_allocator"
# ## 2. A block allocator with reference counts and copy-on-write
#
# Carry out operations on a pool of blocks. A request's tokens are in blocks of `block_size`; a fork shares all blocks; a
# block that is shared must be copied before it is written to. A new block is always the free one with the lowest number.
#
# | | | |
# |---|---|---|
# | `num_blocks`, `block_size` | whole numbers | the pool, large enough |
# | `operations` | list | `("append", name)` adds a token, `("fork", name, child)`, `("free", name)` |
# | returns | `(tables, counts, copies)` | dict name → list of blocks; references of each block; `(from, to)` of each copy, in order |


# %% exercise="17.block_allocator"
def block_allocator(num_blocks: int, block_size: int, operations: list) -> tuple[dict, list, list]:
    """Block tables, reference counts and copies after these operations."""
    ### BEGIN SOLUTION: when is a block needed? when may the last one be written to?
    counts, copies = [0] * num_blocks, []
    tables: dict[str, list[int]] = {}
    lengths: dict[str, int] = {}
    for action, name, *child in operations:
        if action == "append":
            blocks = tables.setdefault(name, [])
            full = lengths.get(name, 0) % block_size == 0
            shared = not full and counts[blocks[-1]] > 1
            if full or shared:
                new = counts.index(0)
                counts[new] = 1
            if full:
                blocks.append(new)
            elif shared:
                copies.append((blocks[-1], new))
                counts[blocks[-1]] -= 1
                blocks[-1] = new
            lengths[name] = lengths.get(name, 0) + 1
        elif action == "fork":
            tables[child[0]], lengths[child[0]] = list(tables[name]), lengths[name]
            for b in tables[name]:
                counts[b] += 1
        else:
            for b in tables.pop(name):
                counts[b] -= 1
            lengths.pop(name)
    return tables, counts, copies
    ### END SOLUTION


# %% exercise="17.block_allocator"
check("17.block_allocator", block_allocator)

# %% [markdown] exercise="17.tree_mask"
# ## 3. The mask of a draft tree, and the cache after it
#
# A draft tree is verified in one forward pass. Node $i$ is written to slot `cached + i` of the cache. Build its attention
# mask, and say which slots have to be moved afterwards so that the accepted nodes are contiguous from slot `cached`.
#
# | | | |
# |---|---|---|
# | `parents` | list | of each node, an earlier one, or −1 for a child of the last cached token |
# | `cached` | whole number | tokens in the cache before the tree |
# | `accepted` | list | the nodes of the accepted path, from the top |
# | returns | `(mask, moves)` | `[n, cached + n]` of True and False; list of `(from, to)`, without those that stay |


# %% exercise="17.tree_mask"
def tree_mask(parents: list, cached: int, accepted: list) -> tuple[torch.Tensor, list]:
    """What each node of a draft tree attends to, and how the cache is compacted after verification."""
    ### BEGIN SOLUTION: which nodes come before a node in its sequence? where do the accepted ones belong?
    n = len(parents)
    mask = torch.zeros(n, cached + n, dtype=torch.bool)
    mask[:, :cached] = True
    for i in range(n):
        node = i
        while node >= 0:
            mask[i, cached + node] = True
            node = parents[node]
    moves = [(cached + node, cached + to) for to, node in enumerate(accepted) if node != to]
    return mask, moves
    ### END SOLUTION


# %% exercise="17.tree_mask"
check("17.tree_mask", tree_mask)

# %% [markdown] exercise="17.online_softmax"
# ## 4. Attention block by block
#
# Compute the attention of one query over blocks of keys, keeping only a running maximum, a running sum and a running output.
# This is what FlashAttention (Dao et al., 2022, arXiv:2205.14135) does inside a kernel, and what combines the parts of split-K
# decoding.
#
# | | | |
# |---|---|---|
# | `scores`, `values` | tensors `[n]`, `[n, d]` | scores of the keys; may be large |
# | `block` | whole number | keys per block; the last block may be shorter |
# | returns | `(output [d], steps)` | softmax(scores) @ values; `(maximum, sum of exp(score − maximum))` after each block |


# %% exercise="17.online_softmax"
def online_softmax(scores: torch.Tensor, values: torch.Tensor, block: int) -> tuple[torch.Tensor, list]:
    """Softmax attention in one sweep over the blocks."""
    ### BEGIN SOLUTION: what has to be rescaled when a larger score turns up?
    biggest, total, out, steps = float("-inf"), 0.0, torch.zeros_like(values[0]), []
    for s, v in zip(scores.split(block), values.split(block), strict=True):
        old, biggest = biggest, max(biggest, s.max().item())
        shrink = math.exp(old - biggest)
        e = torch.exp(s - biggest)
        total = total * shrink + e.sum().item()
        out = out * shrink + e @ v
        steps.append((biggest, total))
    return out / total, steps
    ### END SOLUTION


# %% exercise="17.online_softmax"
check("17.online_softmax", online_softmax)

# %% [markdown] exercise="17.token_budget"
# ## 5. A scheduler with a token budget
#
# Fill one step of a server. Running requests come first, in order: each gets one token, and then as many of its `k` draft
# tokens as the budget allows, provided that every running request after it still gets its one token. The rest goes to
# waiting prompts in order; the last one may be cut (chunked prefill).
#
# | | | |
# |---|---|---|
# | `running` | list of `(name, k)` | requests that decode, with their number of draft tokens |
# | `waiting` | list of `(name, prompt)` | requests with prompt tokens to process |
# | `budget` | whole number | tokens of one step, at least one per running request |
# | `max_num_seqs` | whole number | sequences in one step |
# | returns | list of `(name, tokens)` | in the order in which they were given budget |


# %% exercise="17.token_budget"
def token_budget(running: list, waiting: list, budget: int, max_num_seqs: int) -> list:
    """Who computes how many tokens in this step."""
    ### BEGIN SOLUTION: what is guaranteed to whom? what is left for prompts?
    plan, left = [], budget
    for i, (name, k) in enumerate(running):
        after = len(running) - i - 1
        tokens = 1 + max(0, min(k, left - 1 - after))
        plan.append((name, tokens))
        left -= tokens
    for name, prompt in waiting[: max(0, max_num_seqs - len(running))]:
        if left == 0:
            break
        plan.append((name, min(prompt, left)))
        left -= min(prompt, left)
    return plan
    ### END SOLUTION


# %% exercise="17.token_budget"
check("17.token_budget", token_budget)

# %% [markdown] exercise="17.ngram_proposer"
# ## 6. An n-gram proposer in constant time per token
#
# After every token of a sequence, propose what followed the most recent earlier occurrence of its last `n` tokens. A search
# through the sequence costs $O(L)$ per token. Do it in $O(1)$ (for fixed `n` and `k`).
#
# | | | |
# |---|---|---|
# | `tokens` | list | they come one by one |
# | `n`, `k` | whole numbers | length of the match; longest draft |
# | returns | list of lists | the draft after each token: only tokens that are known by then, `[]` without a match |


# %% exercise="17.ngram_proposer"
def ngram_proposer(tokens: list, n: int, k: int) -> list:
    """A draft after each token, from a table that grows with the sequence."""
    ### BEGIN SOLUTION: what is looked up, and what is stored when?
    after: dict[tuple, int] = {}
    drafts = []
    for end in range(1, len(tokens) + 1):
        gram = tuple(tokens[end - n : end]) if end >= n else None
        start = after.get(gram)
        drafts.append([] if start is None else tokens[start : min(start + k, end)])
        if gram is not None:
            after[gram] = end
    return drafts
    ### END SOLUTION


# %% exercise="17.ngram_proposer"
check("17.ngram_proposer", ngram_proposer)

# %% [markdown] exercise="17.stop_strings"
# ## 7. Stop strings over a stream
#
# A server streams pieces of text. The output ends before the first stop string, which may be spread over several pieces, and no
# part of it may be sent. Hold back as little as possible. If no stop string comes, send what is held at the end.
#
# | | | |
# |---|---|---|
# | `pieces`, `stops` | lists of strings | the stream; the stop strings |
# | returns | `(emitted, stopped)` | one text per piece, up to the piece that completes a stop string; without a stop, one more text for what was held |


# %% exercise="17.stop_strings"
def stop_strings(pieces: list, stops: list) -> tuple[list, bool]:
    """What may be sent after each piece, and whether a stop string ended it."""
    ### BEGIN SOLUTION: what could still become a stop string?
    emitted, held = [], ""
    longest = max((len(stop) for stop in stops), default=1)
    for piece in pieces:
        held += piece
        places = [held.index(stop) for stop in stops if stop in held]
        if places:
            return [*emitted, held[: min(places)]], True
        n = min(len(held), longest - 1)
        while n and not any(stop.startswith(held[len(held) - n :]) for stop in stops):
            n -= 1
        emitted.append(held[: len(held) - n])
        held = held[len(held) - n :]
    return [*emitted, held], False
    ### END SOLUTION


# %% exercise="17.stop_strings"
check("17.stop_strings", stop_strings)

# %% [markdown] exercise="17.shifted_eagle"
# ## 8. Debug a shifted EAGLE
#
# A colleague trains an EAGLE head (Li et al., 2024, arXiv:2401.15077) with the data below. The loss looks excellent, but at
# inference hardly anything is accepted. Find what is shifted, and fix it.
#
# ```python
# n = len(tokens) - 1
# inputs = torch.cat([hidden[:n], embed[tokens[:n]]], dim=1)
# labels = tokens[1:]
# ```
#
# | | | |
# |---|---|---|
# | `hidden` | tensor `[T, d]` | the target's hidden state at each position |
# | `tokens` | tensor `[T]` | |
# | `embed` | tensor `[V, d]` | the embedding table |
# | returns | `(inputs [T − 2, 2d], labels [T − 2])` | hidden state, then embedding, as the head gets them; the token that it has to predict |


# %% exercise="17.shifted_eagle"
def shifted_eagle(hidden: torch.Tensor, tokens: torch.Tensor, embed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Training data of an EAGLE head."""
    ### BEGIN SOLUTION: which token does the head know beside hidden state i? which one is it asked for?
    known, wanted = tokens[1:-1], tokens[2:]
    return torch.cat([hidden[:-2], embed[known]], dim=-1), wanted
    ### END SOLUTION


# %% exercise="17.shifted_eagle"
check("17.shifted_eagle", shifted_eagle)

# %% [markdown] exercise="17.kv_size"
# ## 9. The size of a KV cache
#
# How many bytes does a cache take, with grouped queries (GQA), with latent attention (MLA; DeepSeek-AI, 2024, arXiv:2405.04434),
# and quantised? A quantised cache has a scale of 2 bytes for every group of values of a token in a layer, and the last group
# may be shorter.
#
# | | | |
# |---|---|---|
# | `layers`, `kv_heads`, `head_dim` | whole numbers | of the model |
# | `latent`, `rope` | whole numbers | of MLA: the compressed vector (0: no MLA), and the part with the position (may be 0) |
# | `bits`, `group` | whole numbers | per value; below 16 it is quantised in groups |
# | `tokens` | whole number | in the cache |
# | returns | number | bytes, not rounded |

# %% [markdown] exercise="17.top_p"
# ## 10. Top-p without sorting the vocabulary
#
# Top-p sampling keeps the likeliest tokens until their probabilities reach the limit. Sorting 128,000 of them for that is
# wasteful. Ask `topk` for `start` tokens, and keep doubling until they are enough.
#
# | | | |
# |---|---|---|
# | `p` | tensor `[V]` | a distribution |
# | `limit`, `start` | numbers | top-p's limit, above 0 and at most 1; how many tokens to ask for first, at least one |
# | `topk` | function | `topk(p, k)` gives the k largest probabilities, largest first, and their tokens; it counts |
# | returns | tensor `[V]` | the truncated distribution, which sums to 1; the token that reaches the limit is kept |


# %% exercise="17.top_p"
def top_p(p: torch.Tensor, limit: float, start: int, topk) -> torch.Tensor:
    """The distribution after top-p, from as few sorted tokens as it takes."""
    ### BEGIN SOLUTION: when are these enough? which of them stay?
    k = min(start, len(p))
    likeliest, ids = topk(p, k)
    while float(likeliest.sum()) < limit and k < len(p):
        k = min(2 * k, len(p))
        likeliest, ids = topk(p, k)
    in_front = likeliest.cumsum(0) - likeliest
    stay = in_front < limit
    out = torch.zeros_like(p)
    out[ids[stay]] = likeliest[stay]
    return out / out.sum()
    ### END SOLUTION


# %% exercise="17.top_p"
check("17.top_p", top_p)

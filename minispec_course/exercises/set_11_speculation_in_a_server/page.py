# %% [markdown]
# # Exercises 11: speculation in a server
#
# In a server, draft tokens cost more than time. They need cache slots before it is known whether they are accepted, their
# blocks have to be returned when they are not, and a full batch leaves no idle arithmetic to verify them with. The first
# exercises are the decisions that follow from this. Then requests arrive over time: you compute what users notice, count
# the requests that are served well, decide which are admitted, and clean up after those whose clients leave. Each exercise
# stands alone.
#
# Keys and values are stored in blocks of `block_size` slots, one slot per token. A request has a block table, the list of
# its blocks in order, and $n$ tokens need $\lceil n / \text{block\_size} \rceil$ blocks.

# %%
from minispec.theory import expected_tokens
from minispec_course.check import check, hint, progress_table

# %% [markdown] exercise="11.lookahead_slots"
# ## 1. Lookahead slots
#
# The scheduler plans a forward pass before anything is drafted. It has to say how many slots the pass will fill, including
# those for draft tokens, and how many blocks the block table still needs for them. In vLLM's terms a request always has
# `num_tokens_with_spec − num_computed_tokens` tokens to process, whether they come from a prompt or from a draft.
#
# ```
# token        1   …   num_computed   …   num_tokens   d1   …   d_k
#              in the cache           |   the pass processes these |   and emits one token more
# ```
#
# A request may have `max_tokens` tokens in total. A pass emits at most one token more than it drafts, so near the end fewer
# than `k` draft tokens can be used, down to none. Do not reserve slots for the others.
#
# | | | |
# |---|---|---|
# | `num_tokens` | whole number ≥ 1 | the sequence so far: prompt and output |
# | `num_computed` | whole number < `num_tokens` | how many of them are in the cache; all but one while decoding |
# | `k` | whole number ≥ 0 | draft tokens per pass, at most |
# | `max_tokens` | whole number ≥ `num_tokens` | how long the sequence may get |
# | `block_size`, `num_blocks` | whole numbers | slots per block; blocks that the table has, perhaps more than it needs |
# | returns | `(slots, blocks)` | slots that the pass fills; fresh blocks to allocate, 0 if the table is long enough |


# %% [markdown] exercise="11.rollback"
# ## 2. The way back
#
# After verification only the first `length` tokens are kept. No key is erased: the table gets shorter, and blocks that hold
# no kept token are returned. But a block may belong to several requests. Two outputs of one prompt share its blocks, and
# when one of them is rolled back into the prompt (a stop string found late, a beam that is dropped), the other one still
# needs them. `refcount[b]` says how many tables contain block b.
#
# | | | |
# |---|---|---|
# | `table` | list of block numbers | the request's blocks, in order |
# | `refcount` | list of counts | one for each block of the pool |
# | `block_size`, `length` | whole numbers | slots per block; tokens to keep, perhaps none |
# | returns | `(table, refcount, freed)` | the shorter table, all counts, and the blocks that no table holds any more |
#
# Release blocks from the end of the table, so that `freed` has the last one first. You may change both lists in place.


# %% [markdown] exercise="11.batch_k"
# ## 3. One draft length for a batch
#
# In this exercise all sequences of a batch share one draft length $k$. Choose the $k$ that gives the most tokens per
# second; 0 is allowed. A simple cost model is enough to see why servers shorten drafts under load. With $B$ sequences,
# $\alpha_i$ the acceptance rate of sequence $i$ and $E[N]$ the expected tokens per cycle,
#
# $$\text{tokens}(k) = \sum_{i=1}^{B} E[N](\alpha_i, k) \qquad
# \text{seconds}(k) = k \cdot t_\text{draft} + \max\bigl(t_\text{read},\; B\,(k + 1) \cdot t_\text{compute}\bigr)$$
#
# Reading the weights takes as long for one token as for hundreds, while the time for arithmetic grows with every token. The
# slower of the two sets the time of the pass.
#
# | | | |
# |---|---|---|
# | `alphas` | list of B numbers in [0, 1] | one per sequence: how often its draft tokens are accepted |
# | `longest` | whole number ≥ 1 | the longest draft allowed |
# | `read` | seconds | to read the weights once, for all sequences |
# | `compute` | seconds | for the arithmetic of one token of one sequence |
# | `draft` | seconds | for one draft step of all sequences together; a draft of k takes k steps |
# | returns | whole number, 0 ≤ k ≤ longest | the smallest one if several are equally fast; in the check, lengths are either exactly equally fast or differ by more than rounding |
#
# You may use minispec's `expected_tokens(alpha, k)`, the mean number of tokens that a cycle emits.


# %% [markdown] exercise="11.latencies"
# ## 4. Latencies of a stream that comes in bursts
#
# A client notes when each event of a streamed answer arrives and how many tokens it contains. Without speculation every
# event contains one token; with speculation a step may emit several, which arrive together. Compute the metrics by which
# serving is judged:
#
# - **TTFT**, time to first token: from sending the request to the first event;
# - **TPOT**, time per output token: the time from the first event to the last, per token after the first;
# - **ITL**, inter-token latency: the gaps between neighbouring events, one number for each gap.
#
# These are the definitions of vLLM's benchmark. If the first event contains several tokens, TPOT still counts all tokens
# but one.
#
# | | | |
# |---|---|---|
# | `sent` | seconds | when the request was sent |
# | `log` | list of `(time, tokens)` | at least one event, in order, each with at least one token |
# | returns | `(ttft, tpot, itl)` | two numbers and a list; `tpot` is None for a single token |


# %% [markdown] exercise="11.goodput"
# ## 5. Goodput
#
# Throughput counts all requests. **Goodput** counts those that were served as promised: there is a target for TTFT and one
# for TPOT, and a request counts if it met both.
#
# | | | |
# |---|---|---|
# | `requests` | list of `(ttft, tpot)` | in seconds; `ttft` is None if the request failed, `tpot` is None if it had a single token |
# | `seconds` | number > 0 | how long the load lasted |
# | `ttft_target`, `tpot_target` | seconds | a latency that equals its target meets it |
# | returns | number | requests per second that met both targets |


# %% [markdown] exercise="11.admission"
# ## 6. An admission rule that keeps a target
#
# Continuous batching admits a waiting request as soon as there is room, and every request that joins makes the steps of all
# others longer. Write a rule that keeps their TPOT within a target. You know from measurements how long a step takes with
# 1, 2, 3 … requests, and how many tokens a request gets per step (with speculation the mean acceptance length, accepted +
# 1, without it 1). So with $b$ requests
#
# $$\text{TPOT}(b) = \frac{\text{seconds}[b - 1]}{\text{tokens\_per\_step}}$$
#
# Admit requests from the front of the queue as long as there are enough blocks for the next one, the batch has room, and
# TPOT with it is within the target. The first one that has to wait holds up those after it, so that no request starves. An
# empty server admits one even if it misses the target by itself, provided that there are enough blocks.
#
# | | | |
# |---|---|---|
# | `waiting` | list of block counts | what each waiting request needs, the oldest first |
# | `running`, `free_blocks` | whole numbers ≥ 0 | requests in the batch; blocks that are free |
# | `seconds` | list | `seconds[b − 1]`: a step with b requests, never shorter than with fewer; its length is `max_num_seqs` |
# | `tokens_per_step`, `target` | numbers > 0 | tokens per request and step; the largest TPOT allowed |
# | returns | whole number | how many requests to admit |


# %% exercise="11.admission"
def admission(
    waiting: list[int], running: int, free_blocks: int, seconds: list[float], tokens_per_step: float, target: float
) -> int:
    """How many of the waiting requests may join the batch now."""
    ### BEGIN SOLUTION: for each request in turn, what would the batch be with it?
    batch = running
    for blocks in waiting:
        if batch == len(seconds) or blocks > free_blocks:
            break
        if batch > 0 and seconds[batch] / tokens_per_step > target:  # the step with one more
            break
        batch, free_blocks = batch + 1, free_blocks - blocks
    return batch - running
    ### END SOLUTION


# %% exercise="11.admission"
check("11.admission", admission)

# %% [markdown] exercise="11.abort"
# ## 7. Abort and give back
#
# A client closes its connection in the middle of an answer. Its request may still be in the queue, it may be running and
# hold blocks, some of them shared with other requests, or it may have just ended. In every case nothing of it may remain,
# and nothing may change for the others.
#
# | | | |
# |---|---|---|
# | `id` | name | the request whose client has gone |
# | `waiting` | list of names | the queue, the oldest first |
# | `tables` | dict: name → list of blocks | the block tables of the running requests |
# | `refcount` | list of counts | how many tables contain each block of the pool |
# | returns | `(waiting, tables, refcount, freed)` | all three afterwards, and the blocks that no table holds any more |
#
# Release blocks from the end of the table, so that `freed` has the last one first. You may change everything in place.


# %% exercise="11.abort"
def abort(
    id: str, waiting: list[str], tables: dict[str, list[int]], refcount: list[int]
) -> tuple[list[str], dict[str, list[int]], list[int], list[int]]:
    """End a request wherever it is."""
    ### BEGIN SOLUTION: where can it be, and what does it hold there?
    if id in waiting:
        waiting.remove(id)
    held = tables.pop(id, [])
    for block in held:
        refcount[block] -= 1
    return waiting, tables, refcount, [block for block in reversed(held) if refcount[block] == 0]
    ### END SOLUTION


# %% exercise="11.abort"
check("11.abort", abort)

# %% [markdown] exercise="11.kv_handover"
# ## 8. Hand a cache over
#
# With disaggregated prefill one GPU processes a prompt and another one decodes, so keys and values have to travel. A prefill of
# `prefill` seconds runs through `layers` layers, each equally long. Each has `layer_bytes` of keys and values. They are sent
# over a link of `bandwidth` bytes per second as soon as the layer is computed, one layer after the other.
#
# Return how many bytes are sent, and how many seconds after the end of the prefill the last layer arrives.


# %% exercise="11.kv_handover"
def kv_handover(layers: int, layer_bytes: int, prefill: float, bandwidth: float) -> tuple[int, float]:
    """Bytes of the cache, and how much later than the prefill it is complete on the other side."""
    ### BEGIN SOLUTION: layer i is sent while layer i + 1 is computed; which of the two is slower?
    compute, send = prefill / layers, layer_bytes / bandwidth
    there = compute + (layers - 1) * max(compute, send) + send
    return layers * layer_bytes, there - prefill
    ### END SOLUTION


# %% exercise="11.kv_handover"
check("11.kv_handover", kv_handover)

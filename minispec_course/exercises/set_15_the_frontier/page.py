# %% [markdown]
# # Exercises 15: the frontier
#
# For lessons 15 and 15b: what inference engines have added to speculative decoding since it was published. Drafts come from
# a model with a different vocabulary, sampling depends on what was generated before, and the next draft may be there
# before the last one is verified. Two exercises are about cost: what a verify pass reads in a mixture of experts, and what
# a benchmark with random prompts says. Each exercise stands alone, and the output still follows the target's distribution
# exactly, as in set 06.
#
# A distribution is a tensor `[V]` of probabilities. If a function is given `random`, call `random()` for a fresh random
# number in [0, 1), and use it only in a comparison, as in `random() < 0.3`, or to sample a token: `pick(probs, random())`.

# %%
import torch

from minispec.verify import pick, residual
from minispec_course.check import check, hint, progress_table

# %% [markdown] exercise="15.block"
# ## 1. Block verification
#
# Token-by-token verification stops at the first rejection. Block verification (Sun et al., 2025, arXiv:2403.10444) asks
# about whole prefixes, so a later token with $p > q$ can make up for an earlier one with $p < q$. Number positions from 0: $p_i$
# and $q_i$ are the distributions after the first $i$ draft tokens, and $d_i$ was sampled from $q_i$. Let $q_k = 0$, because
# nothing is drafted after the last token.
#
# $$w_0 = 1, \quad w_{i+1} = \min\left(1, w_i \frac{p_i(d_i)}{q_i(d_i)}\right), \qquad
# R_i = \sum_x [w_i\,p_i(x) - q_i(x)]_+, \qquad h_i = \frac{R_i}{R_i + 1 - w_i}$$
#
# Go through the prefixes from the longest to the shortest, $i = k \dots 1$, with a fresh random number for each. The first
# $i$ with `random() < h_i` is the number $a$ of accepted tokens; if there is none, $a = 0$. (If $R_i + 1 - w_i = 0$, take
# $h_i = 1$.) Then emit one more token, sampled from $\mathrm{norm}([w_a\,p_a - q_a]_+)$.
#
# | | | |
# |---|---|---|
# | `p` | tensor `[k + 1, V]` | the target's distributions |
# | `q` | tensor `[k, V]` | what the draft tokens were sampled from |
# | `drafted` | list of k tokens | may be empty |
# | `random` | function | `random()` is a fresh number in [0, 1) |
# | returns | list of tokens | the accepted draft tokens and one more |
#
# You may use `residual(p, q)`, which is $\mathrm{norm}([p - q]_+)$ and also takes $w\,p$ instead of $p$.


# %% [markdown] exercise="15.shared"
# ## 2. A draft token from another vocabulary
#
# The draft model has its own tokenizer. Only tokens in both vocabularies, the same string at whatever ids, can be verified
# (Timor et al., 2025, arXiv:2502.05202, token-level intersection). Sample one of those, and report the token and $q$ in the
# *target's* ids.
#
# $$q(x) = \frac{m(x)\,[x \in S]}{\sum_{y \in S} m(y)}, \qquad S = \text{the tokens that both have}$$
#
# | | | |
# |---|---|---|
# | `probs` | tensor `[number of the draft model's tokens]` | the draft model's distribution $m$ over its own tokens |
# | `own` | list of strings | the text of each of the draft model's tokens, without duplicates |
# | `theirs` | list of strings | the text of each of the target's tokens, without duplicates |
# | `random` | function | `random()` is a fresh number in [0, 1) |
# | returns | `(token, q)` | the target's id of the sampled token, and a tensor `[number of the target's tokens]` |
#
# At least one shared token has a probability above 0.


# %% exercise="15.shared"
def draft_shared(probs: torch.Tensor, own: list[str], theirs: list[str], random) -> tuple[int, torch.Tensor]:
    """Sample a draft token that the target has too: its id there, and the distribution that it came from."""
    ### BEGIN SOLUTION: restrict, renormalise, sample, translate
    shared = torch.tensor([piece in theirs for piece in own])
    kept = probs * shared / (probs * shared).sum()
    sampled = pick(kept, random())
    q = torch.zeros(len(theirs), dtype=probs.dtype)
    for id, piece in enumerate(own):
        if piece in theirs:
            q[theirs.index(piece)] = kept[id]
    return theirs.index(own[sampled]), q
    ### END SOLUTION


# %% exercise="15.shared"
check("15.shared", draft_shared)

# %% [markdown] exercise="15.budget"
# ## 3. One budget for a whole batch
#
# A step may verify `budget` draft tokens across all sequences. Each draft token has a confidence: the estimated probability
# that it is accepted, given that all before it in its draft were. Choose how many tokens of each draft to verify so that
# the expected number of accepted tokens is as large as possible. Ties go to the first sequence.
#
# $$\max_{n_1, n_2, \dots} \sum_s \sum_{j \le n_s} \prod_{i \le j} c_{s,i} \qquad \text{with} \quad \sum_s n_s \le
# \text{budget}$$
#
# | | | |
# |---|---|---|
# | `confidences` | list of lists | `confidences[s][j]` is $c$ of draft token $j$ of sequence $s$, above 0 and at most 1 |
# | `budget` | whole number | draft tokens that the step may verify |
# | returns | list of whole numbers | how many tokens of each draft are verified. Use the whole budget if there are enough |


# %% [markdown] exercise="15.constraint"
# ## 4. A constraint along a draft
#
# A constraint (a regular expression, a JSON schema) has been compiled to an automaton over tokens: in a state, a token
# leads to another state, or it is forbidden. Say what is allowed at every position of a verify pass, and which state the
# sequence is in after the cycle. The target accepts part of the draft and emits one more token.
#
# A draft may contain forbidden tokens, because its drafter does not know about the constraint. No allowed output begins
# like that, so nothing is allowed after such a token. (It will not be accepted, so these positions are never used.)
#
# | | | |
# |---|---|---|
# | `step` | dict | `step[state, token]` is the next state; a pair that is missing is forbidden |
# | `state` | text | the state before the draft |
# | `drafted` | list of $k$ tokens | may be empty |
# | `accepted` | whole number from 0 to $k$ | how many draft tokens are accepted |
# | `token` | token | the one that is emitted after them |
# | returns | `(allowed, state)` | $k + 1$ lists of tokens, sorted; the state after the cycle, None if `token` has no step there |


# %% [markdown] exercise="15.boundary"
# ## 5. A constraint after the reasoning
#
# A reasoning model thinks first and answers after a closing tag such as `</think>`. The answer has to be one of `answers`;
# what comes before the first tag in the output is free. Say what is allowed at every position of a verify pass. The tag may
# be in the draft. In vLLM what was drafted after it in the same pass used to be free
# ([#44297](https://github.com/vllm-project/vllm/pull/44297)), and once it was not, the grammar was a token behind
# ([#44993](https://github.com/vllm-project/vllm/pull/44993): 75 to 100 % of the JSON outputs of one setup were corrupt).
#
# Go by the text. The tag may be spelled by several tokens, and the token that ends it may hold more characters: they begin
# the answer. Before the tag any token is allowed except the end. After it a token is allowed if the answer so far and the
# token's characters begin one of `answers`, and the end is allowed if the answer so far is one of them. A token that brings
# the end of the tag and more has to fit as well. After a draft token that does not fit, nothing is allowed.
#
# | | | |
# |---|---|---|
# | `pieces` | list of strings | the text of each token; token 0 is the end and has none |
# | `tag` | string | the closing tag, not empty |
# | `answers` | list of strings | all valid answers; an answer may hold the characters of the tag |
# | `prompt`, `output` | lists of tokens | neither holds token 0, and `output` is what was emitted after `prompt` |
# | `drafted` | list of $k$ tokens | may be empty, and does not hold token 0 |
# | returns | $k + 1$ lists of tokens | what is allowed at every position, sorted |


# %% exercise="15.boundary"
def boundary(
    pieces: list[str], tag: str, answers: list[str], prompt: list[int], output: list[int], drafted: list[int]
) -> list[list[int]]:
    """The tokens that are allowed at every position of a draft, if a constraint begins after a tag in the output."""
    ### BEGIN SOLUTION: the text before the position; with each token, what comes after the first tag?
    allowed = []
    for i in range(len(drafted) + 1):
        text = "".join(pieces[x] for x in output + drafted[:i])
        _, found, answer = text.partition(tag)
        here = [0] if found and answer in answers else []
        for x in range(1, len(pieces)):
            rest = (text + pieces[x]).partition(tag)[2]  # empty if there is still no tag: every answer begins with that
            if any(whole.startswith(rest) for whole in answers):
                here.append(x)
        allowed.append(here)
    return allowed
    ### END SOLUTION


# %% exercise="15.boundary"
check("15.boundary", boundary)

# %% [markdown] exercise="15.states"
# ## 6. The stale-state bug
#
# An engine keeps the states of recurrent layers in numbered slots. A request takes a free slot, and gives it back at its end
# without clearing it. `kept[slot]` holds the states of the last pass, `{position: state after so many tokens}`, and the pass
# was longer than what was accepted. Say what the slots hold after the next pass. vLLM and llama.cpp have had versions that
# went on from the wrong state: the output stays fluent, and is another one than that of plain decoding.
#
# | | | |
# |---|---|---|
# | `kept` | dict of dicts | slot → position → state; a slot that was never used is missing |
# | `turns` | list of `(slot, length, new)` | a request's slot, how many of its tokens are processed and right, and the tokens that the pass adds; rows come in any order |
# | `step` | function | `step(state, token)` is the next state |
# | `blank` | state | that of no token: a request of length 0 begins |
# | returns | dict of dicts | as `kept`: for each slot of the pass the states after its new tokens and no others, the other slots as they were |


# %% exercise="15.states"
def states_of_pass(kept: dict, turns: list[tuple[int, int, list[int]]], step, blank) -> dict:
    """The states that the slots hold after a pass."""
    ### BEGIN SOLUTION: from which state does each request go on? at which positions are its new ones?
    after = dict(kept)
    for slot, length, new in turns:
        state, after[slot] = kept[slot][length] if length else blank, {}
        for i, token in enumerate(new):
            state = after[slot][length + i + 1] = step(state, token)
    return after
    ### END SOLUTION


# %% exercise="15.states"
check("15.states", states_of_pass)

# %% [markdown] exercise="15.experts"
# ## 7. How many experts does a verify pass read?
#
# In a mixture of experts every token goes to the `per_token` experts with the largest router logits (Shazeer et al., 2017,
# arXiv:1701.06538). A forward pass reads the weights of an expert once if at least one of its tokens needs them. Say for
# one layer how many experts a pass over $M$ tokens reads, in two ways: the number *expected* if every token chose $k$
# different experts out of $E$ at random, independently of the other tokens, and the number *counted* for the given router
# logits. Do not change those.
#
# Then say what that does to the cost of the pass. As long as reading weights is the limit, $v$ is what this pass reads
# divided by what a pass over one token reads.
#
# | | | |
# |---|---|---|
# | `logits` | $M$ lists of $E$ numbers | the router logits of each token of the pass, finite, perhaps far apart; $M \ge 1$, and no two of a token are equal |
# | `per_token` | whole number from 1 to $E$ | how many experts a token uses, $k$ |
# | `always` | number above 0 | this layer's share of the bytes that every pass reads: attention, LM head, router |
# | `expert` | number above 0 | bytes of one expert |
# | returns | `(expected, counted, v)` | three numbers; $v$ belongs to the counted experts |


# %% exercise="15.experts"
def experts(logits: list[list[float]], per_token: int, always: float, expert: float) -> tuple[float, int, float]:
    """Experts that a pass over these tokens reads, expected and counted, and the cost v of the pass."""
    ### BEGIN SOLUTION: one expert and all tokens for the expectation; the union of the choices for the count
    E, M = len(logits[0]), len(logits)
    expected = E * (1 - (1 - per_token / E) ** M)
    touched = set()
    for row in logits:
        touched |= set(sorted(range(E), key=lambda e: -row[e])[:per_token])
    v = (always + len(touched) * expert) / (always + per_token * expert)
    return expected, len(touched), v
    ### END SOLUTION


# %% exercise="15.experts"
check("15.experts", experts)

# %% [markdown] exercise="15.ahead"
# ## 8. A draft that is already there
#
# While the target verifies, the draft model prepares drafts for the likeliest outcomes (Kumar, Dao and May, 2026,
# arXiv:2603.03251). An outcome is how many of the draft tokens are accepted and which token is emitted after them. Now the
# outcome is known. Return the next draft and the $q$ that the verifier is told: a prepared one if there is one for this
# outcome, otherwise what `draft` makes after the new text. Call `draft` only if you need it. If two were prepared for this
# outcome, the first one counts.
#
# | | | |
# |---|---|---|
# | `text` | list of tokens | the text before the verification |
# | `drafted` | list of tokens | the draft that was verified |
# | `accepted`, `token` | whole number, token | the outcome |
# | `prepared` | list of `(a, t, tokens, q)` | what was prepared for the outcome `(a, t)`; `q` is a tensor `[n, V]` |
# | `draft` | function | `draft(text)` drafts after a text and returns `(tokens, q)` |
# | returns | `(tokens, q)` | the next draft |


# %% exercise="15.ahead"
def next_draft(text: list[int], drafted: list[int], accepted: int, token: int, prepared: list, draft) -> tuple:
    """The next draft, and what it was sampled from."""
    ### BEGIN SOLUTION: the first that was prepared for exactly this outcome, with its own q; else after the new text
    for a, t, tokens, q in prepared:
        if (a, t) == (accepted, token):
            return tokens, q
    return draft([*text, *drafted[:accepted], token])
    ### END SOLUTION


# %% exercise="15.ahead"
check("15.ahead", next_draft)

# %% [markdown] exercise="15.inflated"
# ## 9. Real prompts against random ones
#
# Load tests often send random tokens. What a drafter is worth on those can be far from what it is worth on text; SPEED-Bench
# (Abramovich et al., 2026, arXiv:2604.09557) found that they overestimate throughput. A log has a line for each cycle. Say
# what $\alpha$ is for each kind of prompt, accepted divided by tested, and how many times the tokens per forward pass of real
# prompts the random ones show.
#
# | | | |
# |---|---|---|
# | `log` | list of `(kind, n, a)` | `kind` is `"real"` or `"random"`; $n \ge 0$ tokens were drafted and the first $a \le n$ accepted; each kind has tested a token |
# | returns | `(real, random, ratio)` | the two $\alpha$, and tokens per pass of random prompts divided by those of real ones |


# %% exercise="15.inflated"
def inflated(log: list[tuple[str, int, int]]) -> tuple[float, float, float]:
    """α of real and of random prompts, and by how much random ones inflate the tokens per pass."""
    ### BEGIN SOLUTION: tested = accepted and the first rejection, if there was one; a pass emits one token more
    alpha, per_pass = {}, {}
    for kind in ("real", "random"):
        cycles = [(n, a) for which, n, a in log if which == kind]
        accepted = sum(a for _, a in cycles)
        alpha[kind] = accepted / sum(a + (a < n) for n, a in cycles)
        per_pass[kind] = 1 + accepted / len(cycles)
    return alpha["real"], alpha["random"], per_pass["random"] / per_pass["real"]
    ### END SOLUTION


# %% exercise="15.inflated"
check("15.inflated", inflated)

# %% [markdown] exercise="15.confidence"
# ## 10. Where confidence may cut
#
# DSpark fills a block in one forward pass, and then a small head walks along it (arXiv:2607.05147): it corrects the
# distribution of each position for the token that was drafted before it. A second head says how sure it is that the next
# token will be accepted if all before it are. Draft until the chance that everything so far is accepted, the product of
# these numbers, falls below `threshold`. The drafts are verified with rejection sampling afterwards, and the output must
# follow the target's distribution exactly: mind what you have seen when you decide.
#
# | | | |
# |---|---|---|
# | `q` | list of $k$ tensors $[V, V]$ | row $a$ of the $j$-th: the distribution at position $j$ if token $a$ comes before it |
# | `sure` | list of $k$ tensors $[V]$ | entry $a$ of the $j$-th: the confidence at position $j$ after token $a$ |
# | `last` | token | the last token before the draft |
# | `threshold` | number from 0 to 1 | a position is drafted if the product, its own confidence included, is at least this |
# | `random()` | number in $[0, 1)$ | a fresh random number at each call; `pick(probs, random())` samples a token |
# | returns | list of tokens | the draft, at most $k$ tokens |


# %% exercise="15.confidence"
def draft_sure(q: list[torch.Tensor], sure: list[torch.Tensor], last: int, threshold: float, random) -> list[int]:
    """A draft of tokens sampled one after the other, as long as it is likely enough to be accepted."""
    ### BEGIN SOLUTION: the confidence depends on the token before, so it is known before anything is sampled
    drafted, before, chance = [], last, 1.0
    for q_j, sure_j in zip(q, sure, strict=True):
        chance *= float(sure_j[before])
        if chance < threshold:
            break
        before = pick(q_j[before], random())
        drafted.append(before)
    return drafted
    ### END SOLUTION


# %% exercise="15.confidence"
check("15.confidence", draft_sure)

"""What a right answer shows, and what to try with it next: two sentences for every exercise."""

from __future__ import annotations

from textwrap import wrap

from ..exercises.exercise import Exercise
from ..exercises.fresh import properties

# id → (what it shows, what to try)
AFTER: dict[str, tuple[str, str]] = {
    "01.intensity": (
        "At batch 1 a decoding step does about one FLOP per byte, whatever the size of the model.",
        "Raise batch until the intensity passes 188, the ridge point of an H200.",
    ),
    "01.roofline": (
        "The slower of reading and computing sets the time, because both go on at once.",
        "Find the batch at which your function's limit changes from memory to compute.",
    ),
    "01.ridge": (
        "While memory is the limit, a verify pass of several tokens takes as long as a pass of one.",
        "Set context to 100,000 with a batch of 32: do caches make draft tokens cheaper or more expensive?",
    ),
    "02.kv_bytes": (
        "Query heads do not count: only keys and values are stored, so GQA shrinks the cache by heads / kv_heads.",
        "How many sequences of 8,000 tokens fit beside Llama-3-8B into 80 GB?",
    ),
    "02.cached_attention": (
        "One query over the cache gives what full attention gives for the last position: nothing is recomputed.",
        "Write NaN into the slots beyond length. If the result changes, remember that 0 · NaN is NaN.",
    ),
    "02.ragged": (
        "A mask is all that sequences of different lengths need to share one pass.",
        "Give one sequence length 0, a prompt that is processed for the first time.",
    ),
    "03.slot": (
        "Two integer operations replace contiguous memory: a block table is a page table.",
        "Shuffle the table: positions stay in order, slots do not.",
    ),
    "03.allocator": (
        "Blocks are reserved for the whole draft and given back after verification, so rejected tokens cost no memory.",
        "Choose block_size 1, then 64: when does a pass with k = 4 need a fresh block?",
    ),
    "03.copy_on_write": (
        "Sharing is free until somebody writes, and then it costs one block.",
        "Four outputs of one prompt: how many blocks does each copy in its whole life?",
    ),
    "03.prefix_hash": (
        "A block can be reused only if everything before it is the same, which is why hashes are chained.",
        "Change the first token of a prompt. How much of its cached prefix is still found?",
    ),
    "04.static_waste": (
        "A static batch waits for its longest member; with continuous batching a slot is refilled at once.",
        "Make one request ten times as long as the others and compare the two times.",
    ),
    "04.token_budget": (
        "Decodes come first because a step that skips them is a pause that every user notices.",
        "Lower max_chunk: which latency falls, and which one rises?",
    ),
    "04.preemption": (
        "The youngest gives way and is recomputed later, so the oldest request always gets on.",
        "Two long requests and too few blocks: can they preempt each other for ever?",
    ),
    "05.greedy_verify": (
        "One pass yields one token more than it accepts, so a cycle never emits less than plain decoding.",
        "Reject the first draft token and count what the cycle has cost and brought.",
    ),
    "05.rewind": (
        "A rewind is arithmetic on lengths: no key is erased, later tokens overwrite it.",
        "Why does the draft model keep one token less after a fully accepted draft?",
    ),
    "05.loop": (
        "The output is the target's own, token by token, however bad the draft model is; it only sets the speed.",
        "Count the target's passes for k = 1, 4 and 8.",
    ),
    "06.accept": (
        "Acceptance removes exactly the excess of q over p, and over all tokens it happens with Σ min(p, q).",
        "Which q makes acceptance certain? Which one makes it impossible?",
    ),
    "06.residual": (
        "min(p, q) from accepted tokens and the residual's share add up to p, which is the whole proof.",
        "Return p instead and look at the picture below: which tokens come out too often?",
    ),
    "06.sampler": (
        "The emitted tokens follow the target's distribution exactly: this was computed, not sampled.",
        "Break it on purpose (no residual, no bonus) and read what the check says.",
    ),
    "06.one_hot": (
        "A lookup needs no probabilities of its own: q is one-hot, and verification stays exact.",
        "How likely is acceptance if the target is unsure, with p = 0.25 for four tokens?",
    ),
    "06.top_p": (
        "The reported q must be the distribution that was sampled from; any other one biases the output.",
        "Report q from before top-p and put both into exact.emitted_distribution.",
    ),
    "07.expected_tokens": (
        "A cycle's tokens are a geometric sum, so the tenth draft token brings little unless α is close to 1.",
        "For α = 0.8, which k gives 90 % of the limit 1/(1 − α)?",
    ),
    "07.position_acceptance": (
        "A position counts only if all before it were accepted: early positions decide.",
        "Swap the betas 0.9 and 0.5. The mean is the same; are the tokens?",
    ),
    "07.speedup": (
        "Speed-up is tokens per cycle over the cycle's cost; acceptance is only half of it.",
        "Keep α = 0.8 and raise c from 0.05 to 0.3.",
    ),
    "07.best_k": (
        "There is a best draft length because each further token costs the same and brings less.",
        "Let v grow with k, as it does in a full batch, and watch the best k fall.",
    ),
    "07.when_it_pays": (
        "Below a certain acceptance rate speculation is slower than plain decoding, and it can be computed.",
        "What does it take to pay with k = 1 and a draft model that costs half a target pass?",
    ),
    "08.ngram": (
        "A drafter can be a search in the text so far: no parameters, and no forward pass.",
        "Try it on code, then on a poem: where does it find anything?",
    ),
    "08.suffix_walk": (
        "Counts along the text give a drafter that knows how sure it is, so it can stop by itself.",
        "Raise floor and watch the draft get shorter and better.",
    ),
    "08.early_exit": (
        "The target's own first layers, norm and LM head are a draft model without new parameters.",
        "At which layer does the early token first agree with the final one?",
    ),
    "08.cascade_distribution": (
        "A drafter may itself be speculated for; what it hands on must be the q that really holds.",
        "Report tiny instead of middle as q: the check computes the bias.",
    ),
    "09.medusa_head": (
        "Several heads guess several positions from one hidden state, without a second model.",
        "Why do later heads agree with the target less often?",
    ),
    "09.tree_mask": (
        "A mask that lets a node attend to its ancestors alone verifies many draft sequences in one pass.",
        "Call it for a chain: the mask is the causal one.",
    ),
    "09.tree_verify": (
        "Siblings may be tried in turn if each rejection leaves its residual to the next.",
        "Test every sibling against p instead and let the check show the bias.",
    ),
    "09.tree_tokens": (
        "The best tree takes the likeliest nodes, and a parent is always likelier than its child.",
        "Compare a chain and a tree of eight nodes for accuracies of 0.6.",
    ),
    "09.typical": (
        "Typical acceptance is faster because it is not exact, and the price is a distance you can compute.",
        "For which p is the distance 0?",
    ),
    "10.features": (
        "EAGLE's layer sees the target's features and, one position ahead, the token that was sampled.",
        "Shift the tokens by none or by two: what would the head be asked to predict?",
    ),
    "10.block_mask": (
        "Inside a block attention is bidirectional, to the context it is causal: all k tokens in one pass.",
        "Give two blocks the same anchor. Which positions attend to each other?",
    ),
    "10.dynamic_tree": (
        "A tree that grows where the drafter is sure spends its budget better than a fixed shape.",
        "Give it flat probabilities, then peaked ones, and compare the shapes.",
    ),
    "11.lookahead_slots": (
        "Draft tokens need slots before it is known whether they stay, and fewer of them near the end.",
        "Let k exceed what max_tokens leaves: nothing may be reserved for it.",
    ),
    "11.rollback": (
        "Reference counts decide what is freed; a rewind never takes a block from another request.",
        "Roll back to 0 tokens and compare freed with the table.",
    ),
    "11.batch_k": (
        "The idle arithmetic that verification uses is gone in a full batch, so the best k falls with the load.",
        "Find the batch at which your function first says 0.",
    ),
    "11.latencies": (
        "TPOT counts tokens and ITL counts events: speculation lowers the one and not the other.",
        "Put the same tokens into half as many events.",
    ),
    "11.goodput": (
        "A server can serve more requests and fewer of them well: throughput rises while goodput falls.",
        "Tighten tpot_target until goodput halves.",
    ),
    "11.admission": (
        "Admission is where a server keeps its promise; each request that joins slows all others down.",
        "Raise tokens_per_step, as speculation does: how many more may join?",
    ),
    "11.abort": (
        "Whatever state a request is in, ending it must return all of its blocks, and none of another request.",
        "Abort all requests one by one: in the end every count is 0.",
    ),
    "12.symmetric": (
        "One outlier sets the scale of its whole group, which is why groups are small.",
        "Compare the error for groups of 128 and 32, and what the scales add in bytes.",
    ),
    "12.online_softmax": (
        "A running maximum, a running sum and one output are enough: scores need never be stored.",
        "Feed the same scores in tiles of 1 and of 64.",
    ),
    "12.bytes_read": (
        "Quantisation speeds up the part that is read, and what remains sets the limit.",
        "At which context do the caches outweigh 4-bit weights?",
    ),
    "13.pass_bytes": (
        "Weights are read once per pass, for one token or for eight, and that is why verification is cheap.",
        "At which context is the cache half of all bytes of Llama-3-8B?",
    ),
    "13.roofline": (
        "A time says little by itself; its share of the best possible says what to work on.",
        "A kernel at 0.3 of the roofline: would fewer bytes help it?",
    ),
    "13.merge_splits": (
        "States of the online softmax can be merged in any order, so one sequence can use the whole GPU.",
        "Merge two splits first, then the third, and compare.",
    ),
    "13.captured": (
        "In a captured graph whatever changes from step to step has to live on the device.",
        "How would you stop at an end token without looking at it in every step?",
    ),
    "14.argmax_draft": (
        "q is what the draft token was sampled from: a greedy draft token has q = 1, whatever the softmax says.",
        "Sample the draft token from the softmax that serves as q: exact again, and accepted how often?",
    ),
    "14.two_precisions": (
        "The rule is exact for every q, but only if sampling, acceptance and residual use the same one.",
        "Use bfloat16 for all three: the distribution is exact, although q is coarse.",
    ),
    "14.penalties": (
        "Each position of a draft has its own prefix, and so its own penalties.",
        "Write a draft that repeats one token four times: how large is the penalty of the fourth?",
    ),
    "14.eos": (
        "A step may emit several tokens, and plain decoding would have stopped at the first that ends the text.",
        "Let the end token be the bonus token: is anything after it possible?",
    ),
    "14.stop_string": (
        "Text decides where to stop, tokens are counted: a match can begin in one step and end in another.",
        "Take a stop string that is longer than everything a step emits.",
    ),
    "14.grammar": (
        "State that moves with draft tokens has to be set back with them, like the cache.",
        "Count how often the state is set back when every draft token is accepted.",
    ),
    "14.draft_cache": (
        "After a full acceptance the draft model has never seen its own last token: one more to process next time.",
        "Leave the token out on purpose, and watch the acceptance rate fall while the output stays exact.",
    ),
    "14.draft_vocabulary": (
        "A small draft vocabulary stores offsets: target id − draft id, and the token and q move together.",
        "Store absolute ids, not offsets: which part of the code becomes simpler?",
    ),
    "14.acceptance_length": (
        "A cycle emits the accepted tokens and one more: a mean acceptance length below one is a wrong formula.",
        "From which acceptance rate on does k = 4 give two tokens per forward pass?",
    ),
    "14.acceptance_rate": (
        "Tokens after a rejection were never tested: counted as rejected they make α fall with k.",
        "Plot both definitions for k = 1 … 16 with the same α.",
    ),
    "15.block": (
        "Judged by its joint ratio, a prefix is kept at least as often on average as token by token, and exactly.",
        "Set q = p: both rules accept everything. Then move q away and compare the lengths.",
    ),
    "15.shared": (
        "A draft over the shared tokens is an ordinary draft: renormalised, it is the q of the acceptance rule.",
        "How much of p lies on shared tokens? That bounds the acceptance rate.",
    ),
    "15.budget": (
        "Draft tokens of all sequences compete by their chance to be reached; a token never comes without its parent.",
        "Give one sequence confidences of 0.99 and the others 0.5: who gets the budget?",
    ),
    "15.penalties": (
        "Counts grow with every draft token, so each position of the verify pass is processed by itself.",
        "Compare with the counts taken once per step: at which position do the two first differ?",
    ),
    "15.constraint": (
        "Masked by the same automaton the draft wastes nothing, and each position is judged by its own state.",
        "Hide the mask from the draft and count the tokens per forward pass.",
    ),
    "15.experts": (
        "A verify pass reads the experts of all its tokens: each new token asks for fewer that are new.",
        "How many tokens touch 90 % of 128 experts with 8 for each token?",
    ),
    "16.column_row": (
        "Columns first, then rows: one all-reduce for two matrix products.",
        "Swap the two cuts and count the communication.",
    ),
    "16.kv_per_rank": (
        "A rank holds whole heads, so beyond kv_heads ranks the cache stops shrinking.",
        "Eight ranks and two key/value heads: how often is each head stored?",
    ),
    "17.ragged_sampler": (
        "A running product finds the first rejection of every sequence at once: no loop over the batch.",
        "Time it against a loop for 256 sequences.",
    ),
    "17.block_allocator": (
        "Shared blocks are counted and copied only when somebody writes: what forks share costs nothing.",
        "Fork a request of 1,000 tokens eight times: how many blocks before and after each appends one token?",
    ),
    "17.tree_mask": (
        "A node sees its ancestors alone; after the walk the cache keeps one path, in order.",
        "Turn the tree into a chain: the mask becomes the causal one.",
    ),
    "17.online_softmax": (
        "Attention needs no second look at the scores: a running maximum and sum are all that is kept.",
        "Add 1,000 to all scores: nothing may change.",
    ),
    "17.token_budget": (
        "Running requests come first, one token each; draft tokens and prompts share what is left.",
        "Halve the budget: do drafts or prompts suffer first?",
    ),
    "17.ngram_proposer": (
        "One dictionary entry per token replaces a search through the whole text.",
        "Feed it 100,000 tokens and time it against a scan.",
    ),
    "17.stop_strings": (
        "Only an end of the text that could still become a stop string is held back.",
        "Send the same output one character at a time: the output must be the same.",
    ),
    "17.shifted_eagle": (
        "The head reads state i with token i + 1 and predicts token i + 2: shifted by one it learns to copy.",
        "What loss would the shifted version reach on random tokens?",
    ),
    "17.kv_size": (
        "Layers × 2 × key/value heads × head size × bytes: MLA stores one latent vector instead.",
        "Which is smaller for 128 heads of 128: GQA with eight heads in int8, or MLA with 576 numbers in bf16?",
    ),
    "17.top_p": (
        "The kept tokens are few, so finding the largest is enough: the rest need no order.",
        "Try a flat distribution: how often does k double?",
    ),
    "18.sampler": (
        "This is the function that makes speculative decoding lossless, at every temperature.",
        "Set temperature to 0 and compare with 05.greedy_verify.",
    ),
    "18.drafter": (
        "A drafter first catches up on what its cache lacks, then samples, and reports the q it used.",
        "Draft at another temperature than the target's: the output stays exact.",
    ),
    "18.loop": (
        "The loop knows nothing about models or probabilities: lengths, rewinds and an end are all it handles.",
        "Replace propose by your n-gram lookup from set 08.",
    ),
    "18.whole": (
        "You have written speculative decoding whole, and it is exact.",
        "Run it on SmolLM2 with k = 1 … 8 and compare the speed with your formula from set 07.",
    ),
    "appendix.compute_optimal": (
        "Parameters and tokens grow alike, each with the square root of the compute.",
        "What would 200 tokens per parameter, as small models use today, do to the size?",
    ),
}


def praise(exercise: Exercise) -> str:
    """What to say about a right answer: what was checked, what it shows, what to try."""
    parts = properties(exercise.id)
    fresh = sum(part.count for part in parts.values())
    counted = [
        f"{n} {word}{'s' * (n > 1)}" for n, word in ((len(exercise.cases), "example"), (fresh, "fresh case")) if n
    ]
    lines = [f"{exercise.id}: right, in {' and '.join(counted)}."]
    shows, attempt = AFTER.get(exercise.id, ("", ""))
    told = {"Checked": "; ".join(parts), "It shows": shows, "Try": attempt}
    told["Compare"] = f"{exercise.code} is how minispec does it. progress_table() shows where you stand."
    for name, text in told.items():
        if text:
            lines += wrap(text, 100, initial_indent=f"  {name + ':':10}", subsequent_indent=12 * " ")
    return "\n".join(lines)

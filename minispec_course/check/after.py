"""What to say about a right answer: what was checked, what it shows, and where minispec does the same."""

from textwrap import wrap

from ..exercises.exercise import Exercise
from ..exercises.fresh import properties

SHOWS = {
    "01.intensity": "At batch 1 a decoding step does about one FLOP per byte, whatever the size of the model.",
    "01.roofline": "The slower of reading and computing sets the time, because both happen at the same time.",
    "01.ridge": "While memory is the limit, a verify pass of several tokens takes as long as a pass of one.",
    "02.kv_bytes": "Only keys and values are stored, not queries, so GQA shrinks the cache by heads / kv_heads.",
    "02.cached_attention": "One query over the cache gives the last row of full attention: nothing is recomputed.",
    "02.ragged": "A mask is all that sequences of different lengths need to share one pass.",
    "03.slot": "Two integer operations replace contiguous memory: a block table is a page table.",
    "03.allocator": "Blocks are reserved for the whole draft, then returned: rejected tokens cost no memory.",
    "03.copy_on_write": "Sharing is free until a request writes, and then it costs one block.",
    "03.prefix_hash": "A block can be reused only if everything before it is the same, so hashes are chained.",
    "04.static_waste": "A static batch waits for its longest member; a continuous one refills a seat immediately.",
    "04.token_budget": "Decodes come first because a step that skips them is a pause that every user notices.",
    "04.preemption": "The newest request gives way and is recomputed later, so the oldest always makes progress.",
    "05.greedy_verify": "A pass yields one token more than it accepts, never fewer than plain decoding.",
    "05.rewind": "A rewind is arithmetic on lengths: no key is erased, later tokens overwrite it.",
    "05.loop": "The output is the target's own, token by token, however bad the draft model is.",
    "06.accept": "Acceptance removes exactly the excess of q over p; its overall probability is Σ min(p, q).",
    "06.residual": "min(p, q) from accepted tokens plus the residual's share add up to p, which is the whole proof.",
    "06.sampler": "The emitted tokens follow the target's distribution exactly: this was computed, not sampled.",
    "06.one_hot": "A lookup needs no probabilities of its own: q is one-hot, and verification stays exact.",
    "06.top_p": "The reported q must be the distribution that was sampled from; any other one biases the output.",
    "07.expected_tokens": "A cycle's tokens are a geometric sum: the tenth draft token adds little unless α is near 1.",
    "07.position_acceptance": "A position counts only if all before it were accepted: early positions decide.",
    "07.speedup": "Speed-up is tokens per cycle over the cycle's cost; acceptance is only half of it.",
    "07.best_k": "There is a best draft length because each further token costs the same and adds less.",
    "07.when_it_pays": "Below the break-even acceptance rate, speculation is slower than plain decoding.",
    "08.ngram": "A drafter can be a search through the sequence so far: no parameters, and no forward pass.",
    "08.suffix_walk": "Counts over the sequence make a drafter that knows how certain it is, and when to stop.",
    "08.early_exit": "The target's own first layers, norm and LM head are a draft model without new parameters.",
    "08.cascade_distribution": "A drafter can have its own drafter, if it reports the q that its token really follows.",
    "09.medusa_head": "Several heads guess several positions from one hidden state, without a second model.",
    "09.tree_mask": "A mask that lets a node attend only to its ancestors verifies many draft sequences in one pass.",
    "09.tree_verify": "Siblings may be tried in turn if each rejection leaves its residual to the next.",
    "09.tree_tokens": "The best tree takes the likeliest nodes, and a parent is always likelier than its child.",
    "09.typical": "Typical acceptance is faster because it is not exact, and the price is a distance you can compute.",
    "10.features": "EAGLE's layer sees the target's features and, one position ahead, the token that was sampled.",
    "10.block_mask": "Attention is bidirectional inside a block and causal to the context, so k tokens take one pass.",
    "10.dynamic_tree": "A tree that grows where the drafter is sure spends its budget better than a fixed shape.",
    "11.lookahead_slots": "Draft tokens need slots before they are accepted or rejected, and fewer near the end.",
    "11.rollback": "Reference counts decide what is freed; a rewind never takes a block from another request.",
    "11.batch_k": "The idle arithmetic that verification uses is gone in a full batch, so the best k falls with load.",
    "11.latencies": "TPOT counts tokens and ITL counts events: speculation lowers the first but not the second.",
    "11.goodput": "A server can serve more requests but fewer of them well: throughput rises while goodput falls.",
    "11.admission": "Admission is where a server keeps its promise; each request that joins slows all others down.",
    "11.abort": "Whatever state a request is in, ending it must return all of its blocks, and none of another request.",
    "11.kv_handover": "Sent layer by layer, a cache arrives one layer after the prefill, if the link keeps up.",
    "12.symmetric": "One outlier sets the scale of its whole group, which is why groups are small.",
    "12.online_softmax": "A running maximum, a running sum and one output are enough: scores need never be stored.",
    "12.bytes_read": "Quantisation speeds up only the bytes that shrink; the rest sets the limit.",
    "13.pass_bytes": "Weights are read once per pass, for one token or for eight: that is why verification is cheap.",
    "13.roofline": "A time says little by itself; how close it is to the best possible says what to work on.",
    "13.merge_splits": "States of the online softmax merge in any order, so one sequence can use the whole GPU.",
    "13.captured": "In a captured graph, whatever changes from step to step has to live on the device.",
    "14.argmax_draft": "q is what the token was sampled from: a greedy draft token has q = 1.",
    "14.two_precisions": "The rule is exact for every q, if sampling, acceptance and residual use the same one.",
    "14.penalties": "Each position of a draft has its own prefix, and so its own penalties.",
    "14.eos": "A step may emit several tokens; plain decoding would have stopped at the first that ends the output.",
    "14.stop_string": "Text decides where to stop: a match can begin in one step and end in another.",
    "14.grammar": "State that advances with draft tokens has to be rolled back with them, like the cache.",
    "14.draft_cache": "After a full acceptance the draft model still has to process its last draft token.",
    "14.draft_vocabulary": "A small draft vocabulary stores offsets, target id − draft id: token and q move together.",
    "14.acceptance_length": "A cycle emits one token more than it accepts: a mean below one is a wrong formula.",
    "14.acceptance_rate": "Tokens after a rejection were never tested: counting them as rejected makes α fall with k.",
    "14.joint": "A bug that leaves every single token exact can still bias two tokens together.",
    "15.block": "Judged by its joint ratio, a prefix is kept at least as often as token by token, and still exactly.",
    "15.shared": "A draft over shared tokens is an ordinary draft: renormalised, it is the q of the acceptance rule.",
    "15.budget": "Draft tokens of all sequences compete by their chance of survival; parents come before children.",
    "15.constraint": "A draft masked by the same automaton wastes no token on what is forbidden.",
    "15.boundary": "Where a constraint begins is a function of the text, so it holds inside a draft, too.",
    "15.checkpoint": "A state cannot be shortened: going back needs an earlier copy, or processing the tokens again.",
    "15.experts": "A verify pass reads the experts of all its tokens: each further token adds fewer new ones.",
    "16.column_row": "Columns first, then rows: one all-reduce for two matrix products.",
    "16.kv_per_rank": "A rank holds whole heads, so beyond kv_heads ranks the cache stops shrinking.",
    "16.dispatch": "A token travels once to each rank of its experts, and the busiest rank sets the pace.",
    "18.sampler": "This is the function that makes speculative decoding lossless, at every temperature.",
    "18.drafter": "A drafter first catches up on what its cache lacks, then samples, and reports the q it used.",
    "18.loop": "The loop knows nothing about models or probabilities: lengths, rewinds and an end are all it handles.",
    "18.whole": "You have written all of speculative decoding, and it is exact.",
    "appendix.compute_optimal": "Parameters and tokens grow together, each with the square root of the compute.",
}


def praise(exercise: Exercise) -> str:
    parts = properties(exercise.id)
    counts = {"example": len(exercise.cases), "fresh case": sum(part.count for part in parts.values())}
    counted = " and ".join(f"{n} {word}{'s' * (n > 1)}" for word, n in counts.items() if n)
    compare = f"{exercise.code} is how {'minispec' if exercise.code.startswith('minispec.') else 'the course'} does it."
    told = {"Checked": "; ".join(parts), "It shows": SHOWS.get(exercise.id, ""), "Compare": compare}
    lines = [f"{exercise.id}: right, in {counted}."]
    for name, text in told.items():
        lines += wrap(text, 100, initial_indent=f"  {name + ':':10}", subsequent_indent=12 * " ")
    return "\n".join(lines)

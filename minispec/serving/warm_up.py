"""Requests of nobody, served before anybody asks: whatever is compiled or captured at first use is made now.

On a GPU a pass, a draft and a cycle launched ahead are captured for each shape that comes up (gpu/passes.py), and each
capture takes a pause that everybody in the batch would wait for. Shapes follow from how many requests run and from
which rows of memory they hold. So one batch of each kind begins full, which also makes the drafter's memory as large as
it will be, and its requests leave one by one in a different order each time: the newest first, the oldest first, and by
chance, as a server's clients do. Before come prompts of all sizes, one and many at once, and drafts of all sizes, none
among them; after, a drafter that drafts for many rows at once captures what it has not met.

What remains are the times of these steps, for the controller: no output, no cached prefix, nothing that it or a drafter
could have learnt from such texts.
"""

import gc
import random
import time
from copy import deepcopy

from tqdm.auto import tqdm

from .metrics import Metrics

CYCLES = 3  # with so many requests at once: a draft needs a first token, and what is launched ahead a draft
TIMED = 12  # steps with drafts of one size: prompts, a capture, and some that are timed
MANY = 9  # prompts at once: passes over more than eight are captured for as many as the engine serves (gpu/ragged.py)
PATTERN = 8  # tokens that prompts repeat, so that drafters who look for repetition find some


def warm_up(engine, progress: bool = True) -> float:
    """Serve them, with a progress bar; the seconds it took."""
    if engine.sequences:
        raise ValueError(f"{len(engine.sequences)} requests are being served: warm an engine up before you add any")
    began, pool, controller = time.perf_counter(), engine.pool, deepcopy(engine.controller)
    caching, pool.enable_prefix_caching = pool.enable_prefix_caching, False
    try:
        for job in tqdm(jobs(engine), desc="warm-up", unit="batch", disable=not progress, leave=False):
            serve(engine, **job)
        if engine.runner.buckets and engine.speculates and engine.drafter.captured is not None:
            engine.drafter.captured.prepare()
    finally:
        pool.enable_prefix_caching = caching
        pool.counts.clear()
        engine.measured = Metrics(engine.measured.steps.maxlen)
        if controller:  # the times are all that counts
            controller.seconds, controller.lately = engine.controller.seconds, engine.controller.lately
            engine.controller = engine.scheduler.controller = controller
    # All that is there by now stays until `shutdown`: to look through it again would hold up a step by 0.2 s.
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    return time.perf_counter() - began


def jobs(engine) -> list[dict]:
    """What to serve."""
    captured, budget = engine.runner.buckets, engine.scheduler.max_num_batched_tokens
    most, made = engine.scheduler.max_num_seqs if captured else 1, []
    for tokens in prompt_sizes(engine) if captured else ():
        made.append(dict(count=1, tokens=tokens))
        if (many := min(MANY, most)) < tokens:
            made.append(dict(count=many, tokens=tokens // many, steps=CYCLES))
    # The most requests first: a drafter's memory grows with them, and what was captured before would be lost.
    sizes = engine.controller.sizes if engine.controller else [None]
    for count in sorted(captured.counts if captured else [1], reverse=True):
        made += [dict(count=count, steps=TIMED, only=n) for n in sizes if n is None or count * (1 + n) <= budget]
    chance = random.Random(0)
    orders = list.pop, lambda ids: ids.pop(0), lambda ids: ids.pop(chance.randrange(len(ids)))
    return made + [dict(count=most, temperature=T, leave=order) for T in (0.0, 1.0) for order in orders[:most]]


def prompt_sizes(engine) -> list[int]:
    """As many tokens as a step may have, and a sequence with one token after them and a draft."""
    nodes = engine.drafter.max_tree_nodes(engine.k) + engine.drafter.scratch_slots if engine.speculates else 0
    room = min(engine.target.config.max_length, engine.pool.max_tokens) - nodes - 1
    most = min(engine.scheduler.max_num_batched_tokens, room)
    return engine.runner.buckets.prompts.sizes(most)


def serve(engine, count: int, tokens: int = PATTERN, temperature: float = 0.0, leave=list.pop, steps=None, only=None):
    """`count` requests with prompts of so many tokens, for so many steps. None: once each has come a few cycles far,
    an eighth of them leaves every other step. `only`: the one size that drafts may have."""
    vocabulary, most = engine.target.config.vocab_size, steps or CYCLES + 2 * count
    room = min(engine.target.config.max_length, engine.pool.max_tokens) - tokens
    new = max(1, min(room, most * (engine.k + 1)))
    ids = []
    if engine.controller:
        engine.controller.only, engine.controller.told = only, True  # such texts say nothing about a drafter
    try:
        for i in range(count):
            prompt = [(i * PATTERN + n % PATTERN) % vocabulary for n in range(tokens)]
            ids.append(engine.add(prompt, new, temperature=temperature, ignore_eos=True))
        for step in range(most):
            engine.step()
            if steps is None and step >= CYCLES and step % 2:
                for _ in range(-(-len(ids) // 8)):
                    forget(engine, leave(ids))
            if not ids:
                break
    finally:
        for id in ids:
            forget(engine, id)


def forget(engine, id: int | str) -> None:
    """End a request as if it had never been. A drafter that is rewound does not learn from it."""
    if id in engine.sequences:
        engine.runner.restart(engine.sequences[id])
        engine.abort(id)
    if (output := engine.outputs.pop(id, None)) and output.error:
        raise output.error

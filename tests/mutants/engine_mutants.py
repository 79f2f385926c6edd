"""Wrong engines. Each function breaks one part by a monkeypatch."""

from __future__ import annotations

import torch
from pytest import MonkeyPatch

from minispec import verify
from minispec.sampling import SamplingParams
from minispec.serving import runner
from minispec.serving.engine import Engine
from minispec.serving.runner import Runner
from minispec.speculate import Completion

from .patching import Mutant, rewrite

# ---- memory --------------------------------------------------------------------------------------------------------


def path_stays_where_it_is(patch: MonkeyPatch) -> None:
    """Leaves the accepted nodes of a tree among the refused ones: the next pass reads its neighbours' keys."""
    patch.setattr(Runner, "keep", lambda self, turns: None)


def path_moved_over_the_last_token(patch: MonkeyPatch) -> None:
    """Moves the accepted nodes one slot too far to the left."""
    rewrite(patch, Runner, "keep", "turn.plan.start + turn.plan.count for", "turn.plan.start + turn.plan.count - 1 for")


def siblings_follow_each_other(patch: MonkeyPatch) -> None:
    """Gives tree nodes the positions of a chain."""
    rewrite(patch, Runner, "_ragged_pass", "positions=positions", "positions=None")


def tree_without_a_mask(patch: MonkeyPatch) -> None:
    """Lets every node see all nodes before it."""
    rewrite(patch, Runner, "_ragged_pass", "starts, counts, masks)", "starts, counts)")


# ---- laws ----------------------------------------------------------------------------------------------------------


def law_of_the_token_before(patch: MonkeyPatch) -> None:
    """Takes each row's logits one token too early."""
    rewrite(patch, Runner, "_ragged_pass", "states[count - n :]", "states[max(0, count - n - 1) : max(n, count - 1)]")


def one_sampling_for_all(patch: MonkeyPatch) -> None:
    """Turns everybody's logits into laws the way the first in the batch wants it."""
    right = verify.distributions
    patch.setattr(verify, "distributions", lambda logits, samplings: right(logits, samplings[:1] * len(samplings)))


def one_generator_for_all(patch: MonkeyPatch) -> None:
    """Draws for all requests from one source: each text then depends on all others."""
    shared = torch.Generator().manual_seed(0)
    patch.setattr(SamplingParams, "generator", lambda self, index=0: shared)


def as_many_numbers_as_the_longest_draft(patch: MonkeyPatch) -> None:
    """Lets every row draw what the longest draft of the batch needs. The law stays; the text depends on the others."""
    right = verify.uniforms
    patch.setattr(verify, "uniforms", lambda generators, counts, device: right(generators, max(counts), device))


# ---- the drafter ---------------------------------------------------------------------------------------------------


def preemption_is_kept_secret(patch: MonkeyPatch) -> None:
    """Does not tell the drafter that a request starts anew: it hears the beginning of the text a second time."""
    rewrite(patch, Engine, "_begin", "self.runner.restart(job)", "pass")


def states_survive_a_preemption(patch: MonkeyPatch) -> None:
    """Keeps states that the drafter was not told yet, although all are going to be read again."""
    rewrite(patch, Engine, "_begin", "job.forget_states()", "pass")


def only_the_last_chunk_is_told(patch: MonkeyPatch) -> None:
    """Forgets the states of a prompt's earlier chunks."""
    right = Completion.remember
    patch.setattr(Completion, "remember", lambda self, states, newest=None: right(self, states, 1))


def refused_states_are_told(patch: MonkeyPatch) -> None:
    """Tells the drafter the states of refused nodes too."""
    rewrite(
        patch, runner, "hand_out", "*(count + node for node in path)]", "*range(count, count + len(turn.draft.tokens))]"
    )


def states_of_shared_blocks_are_missing(patch: MonkeyPatch) -> None:
    """Skips cached prefixes although the drafter needs the states of every token."""
    rewrite(
        patch,
        Engine,
        "__init__",
        "enable_prefix_caching and not (drafter and drafter.hidden_layers)",
        "enable_prefix_caching",
    )


# ---- trouble -------------------------------------------------------------------------------------------------------


def all_fail_together(patch: MonkeyPatch) -> None:
    """Blames everybody in the pass for what one of them did."""
    rewrite(patch, Engine, "_attempt", "self._attempt(work, [turn])", "self._fail(turn.job, error)")


def errors_are_swallowed(patch: MonkeyPatch) -> None:
    """Goes on without a draft as if nothing had happened: nobody hears of the mistake."""
    rewrite(patch, Engine, "_attempt", "self._fail(turns[0].job, error)", "pass")


def the_ended_are_not_forgotten(patch: MonkeyPatch) -> None:
    """Leaves finished requests in the drafter's memory."""
    rewrite(patch, Engine, "_close", "self.drafter.forget(job.context.id)", "pass")


def half_a_draft_is_trusted(patch: MonkeyPatch) -> None:
    """Asks a drafter that broke again, without telling it to start afresh."""
    rewrite(patch, Runner, "draft", "self.restart(turn.job)", "pass")


# ---- engines beside each other, threads, and what callers do ---------------------------------------------------------


def ids_restart_with_every_engine(patch: MonkeyPatch) -> None:
    """Numbers sequences per engine: two engines that share a drafter take each other's memory."""

    def enqueue(self, job, id=None):
        job.context.id = self.scheduler.arrivals
        return right(self, job, id)

    right = Engine._enqueue
    patch.setattr(Engine, "_enqueue", enqueue)


def drafts_are_not_pruned(patch: MonkeyPatch) -> None:
    """Trusts every drafter to keep to its share of the nodes."""
    patch.setattr(runner, "prune", lambda draft, nodes: draft)


def states_pile_up(patch: MonkeyPatch) -> None:
    """Keeps all hidden states for a drafter that is not asked."""
    rewrite(patch, Runner, "settle", "turn.states, newest)", "turn.states, None)")


def adding_without_the_lock(patch: MonkeyPatch) -> None:
    """Two threads are given the same id."""
    rewrite(patch, Engine, "_enqueue", "with self.lock:", "if True:")


def steps_inside_steps(patch: MonkeyPatch) -> None:
    """Lets a callback begin a step within a step."""
    patch.setattr(Engine, "_refuse_inside_a_step", lambda self, method: None)


# ---- who catches whom ----------------------------------------------------------------------------------------------


MUTANTS = {
    mutant.install.__name__: mutant
    for mutant in (
        Mutant(path_stays_where_it_is, ("tree",), ("sharing",)),
        Mutant(path_moved_over_the_last_token, ("tree",)),
        Mutant(siblings_follow_each_other, ("tree",)),
        Mutant(tree_without_a_mask, ("tree",)),
        Mutant(law_of_the_token_before, ("greedy",)),
        Mutant(one_sampling_for_all, ("law",), ("own seed",)),
        Mutant(one_generator_for_all, ("own seed",), ("law",)),
        Mutant(as_many_numbers_as_the_longest_draft, ("own seed",), ("law",)),
        Mutant(preemption_is_kept_secret, ("hidden",), ("sharing",)),
        Mutant(states_survive_a_preemption, ("hidden",), ("sharing",)),
        Mutant(only_the_last_chunk_is_told, ("hidden",)),
        Mutant(refused_states_are_told, ("hidden",)),
        Mutant(states_of_shared_blocks_are_missing, ("hidden",)),
        Mutant(all_fail_together, ("trouble",), ("tree",)),
        Mutant(errors_are_swallowed, ("trouble",), ("tree",)),
        Mutant(the_ended_are_not_forgotten, ("trouble",), ("tree",)),
        Mutant(half_a_draft_is_trusted, ("trouble",), ("tree",)),
        Mutant(ids_restart_with_every_engine, ("two engines",), ("sharing",)),
        Mutant(drafts_are_not_pruned, ("node budget",), ("sharing",)),
        Mutant(states_pile_up, ("bounded states",), ("hidden",)),
        Mutant(adding_without_the_lock, ("threads",), ("trouble",)),
        Mutant(steps_inside_steps, ("callbacks",), ("trouble",)),
    )
}

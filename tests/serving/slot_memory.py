"""A memory that really holds tokens, for the block pool and the scheduler; and how their state machines are run."""

from random import Random

from hypothesis import HealthCheck, Phase, settings, stateful
from hypothesis import strategies as st

# Hypothesis chooses what happens; how exactly follows from a seed, since lists of its own are mostly short or empty.
chance = st.integers(0, 2**32).map(Random)


def random_tokens(random: Random, least: int, most: int) -> list[int]:
    """Of a vocabulary of two, so that sequences often begin alike."""
    return random.choices((0, 1), k=random.randint(least, most))


class Memory:
    """Stands for the tensors: slot → token. A sequence is right when it reads its own tokens through its table."""

    def __init__(self, pool):
        self.pool, self.slots = pool, {}

    def write(self, request, start, tokens):
        self.slots.update(zip(self.pool.slots(request, start, start + len(tokens)), tokens, strict=True))

    def read(self, request, stop):
        return [self.slots.get(slot) for slot in self.pool.slots(request, 0, stop)]

    def read_blocks(self, table):
        size = self.pool.block_size
        return [self.slots.get(block * size + i) for block in table for i in range(size)]

    def fill(self, request, tokens):
        """Prefill: start the request, compute what is not cached, keep all of it."""
        cached = self.pool.start(request, tokens)
        self.write(request, cached, tokens[cached:])
        self.pool.commit(request, tokens)
        return cached


def run_machine(machine, examples: int, steps: int) -> None:
    """The same examples in every run."""
    size = dict(max_examples=examples, stateful_step_count=steps, phases=[Phase.generate], report_multiple_bugs=False)
    quiet = dict(database=None, deadline=None, suppress_health_check=list(HealthCheck), print_blob=False)
    stateful.run_state_machine_as_test(machine, settings=settings(derandomize=True, **size, **quiet))

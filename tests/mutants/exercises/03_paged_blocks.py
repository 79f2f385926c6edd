# ruff: noqa: F811, F821
# Wrong answers to the exercises of set 03, as cells of a notebook. How they are used: __init__.py.


# %% 03.slot: one_long_run
def slots(table, block_size, start, stop):
    return [p // block_size * block_size + p % block_size for p in range(start, stop)]


# %% 03.slot: block_from_the_remainder
def slots(table, block_size, start, stop):
    places = []
    for p in range(start, stop):
        offset, which = divmod(p, block_size)
        places.append(table[which] * block_size + offset)
    return places


# %% 03.slot: block_number_as_slot
def slots(table, block_size, start, stop):
    places = []
    for p in range(start, stop):
        block = table[p // block_size]
        places.append(block + p % block_size)
    return places


# %% 03.slot: counts_from_start
def slots(table, block_size, start, stop):
    return [table[i // block_size] * block_size + i % block_size for i in range(stop - start)]


# %% 03.slot: one_slot_too_many
def slots(table, block_size, start, stop):
    places, p = [], start
    while p <= stop:
        places.append(table[p // block_size] * block_size + p % block_size)
        p += 1
    return places


# %% 03.slot: block_of_the_first
def slots(table, block_size, start, stop):
    begin = table[start // block_size] * block_size + start % block_size
    return [begin + i for i in range(stop - start)]


# %% 03.allocator: no_lookahead
def allocator(table, free, block_size, length, drafts, accepted):
    during = table[:]
    if length == len(table) * block_size:
        if not free:
            return None
        during.append(free.pop())
    return during, during, free


# %% 03.allocator: only_what_is_accepted
def allocator(table, free, block_size, length, drafts, accepted):
    while len(table) * block_size < length + 1 + accepted:
        if not free:
            return None
        table.append(free.pop())
    return table, table, free


# %% 03.allocator: forgets_the_last_token
def allocator(table, free, block_size, length, drafts, accepted):
    during, after = -(-(length + drafts) // block_size), -(-(length + accepted) // block_size)
    if during > len(table) + len(free):
        return None
    while len(table) < during:
        table.append(free.pop())
    return table, table[:after], free + table[after:]


# %% 03.allocator: one_block_too_many
def allocator(table, free, block_size, length, drafts, accepted):
    during, after = (length + 1 + drafts) // block_size + 1, (length + 1 + accepted) // block_size + 1
    if during > len(table) + len(free):
        return None
    while len(table) < during:
        table.append(free.pop())
    return table, table[:after], free + table[after:]


# %% 03.allocator: ignores_the_room_left
def allocator(table, free, block_size, length, drafts, accepted):
    fresh = -(-(1 + drafts) // block_size)
    if fresh > len(free):
        return None
    during = table + [free.pop() for _ in range(fresh)]
    after = -(-(length + 1 + accepted) // block_size)
    return during, during[:after], free + during[after:]


# %% 03.allocator: takes_what_there_is
def allocator(table, free, block_size, length, drafts, accepted):
    while free and len(table) * block_size < length + 1 + drafts:
        table.append(free.pop())
    after = -(-(length + 1 + accepted) // block_size)
    return table, table[:after], free + table[after:]


# %% 03.allocator: never_gives_back
def allocator(table, free, block_size, length, drafts, accepted):
    during = list(table)
    while len(during) * block_size < length + 1 + drafts:
        if not free:
            return None
        during.append(free.pop())
    return during, during, free


# %% 03.allocator: loses_blocks
def allocator(table, free, block_size, length, drafts, accepted):
    during = list(table)
    while len(during) * block_size < length + 1 + drafts:
        if not free:
            return None
        during.append(free.pop())
    after = during[: -(-(length + 1 + accepted) // block_size)]
    return during, after, free


# %% 03.allocator: gives_back_the_last
def allocator(table, free, block_size, length, drafts, accepted):
    missing = -(-(length + 1 + drafts) // block_size) - len(table)
    if missing > len(free):
        return None
    for _ in range(missing):
        table.append(free.pop())
    full = (length + 1 + accepted) // block_size
    return table, table[:full], free + table[full:]


# %% 03.allocator: takes_from_the_front
def allocator(table, free, block_size, length, drafts, accepted):
    fresh = -(-(length + 1 + drafts) // block_size) - len(table)
    if fresh > len(free):
        return None
    table, free = table + free[:fresh], free[fresh:]
    after = -(-(length + 1 + accepted) // block_size)
    return table, table[:after], free + table[after:]


# %% 03.copy_on_write: writes_in_place
def copy_on_write(table, refcount, block_size, length):
    if len(table) * block_size == length:
        fresh = refcount.index(0)
        refcount[fresh] = 1
        table.append(fresh)
    return table, refcount, []


# %% 03.copy_on_write: always_copies
def copy_on_write(table, refcount, block_size, length):
    fresh = min(b for b, count in enumerate(refcount) if count == 0)
    refcount[fresh] = 1
    if length % block_size == 0:
        return [*table, fresh], refcount, []
    old = table.pop()
    refcount[old] -= 1
    return [*table, fresh], refcount, [(old, fresh)]


# %% 03.copy_on_write: copies_a_full_block
def copy_on_write(table, refcount, block_size, length):
    fresh = refcount.index(0)
    if refcount[table[-1]] > 1:
        old, table[-1] = table[-1], fresh
        refcount[old] -= 1
        refcount[fresh] = 1
        return table, refcount, [(old, fresh)]
    if length % block_size == 0:
        table.append(fresh)
        refcount[fresh] = 1
    return table, refcount, []


# %% 03.copy_on_write: copies_everything
def copy_on_write(table, refcount, block_size, length):
    if length % block_size == 0:
        table.append(refcount.index(0))
        refcount[table[-1]] = 1
        return table, refcount, []
    if refcount[table[-1]] == 1:
        return table, refcount, []
    new, copies = [], []
    for block in table:
        if refcount[block] > 1:
            fresh = refcount.index(0)
            refcount[fresh] = 1
            refcount[block] -= 1
            copies.append((block, fresh))
            block = fresh
        new.append(block)
    return new, refcount, copies


# %% 03.copy_on_write: source_still_counted
def copy_on_write(table, refcount, block_size, length):
    copies = []
    if length % block_size == 0:
        table.append(refcount.index(0))
        refcount[table[-1]] = 1
    elif refcount[table[-1]] > 1:
        copies = [(table[-1], refcount.index(0))]
        table[-1] = copies[0][1]
        refcount[table[-1]] = 1
    return table, refcount, copies


# %% 03.copy_on_write: source_freed
def copy_on_write(table, refcount, block_size, length):
    fresh = refcount.index(0)
    if length % block_size == 0:
        refcount[fresh] = 1
        return [*table, fresh], refcount, []
    old = table[-1]
    if refcount[old] == 1:
        return table, refcount, []
    refcount[old], refcount[fresh] = 0, 1
    return [*table[:-1], fresh], refcount, [(old, fresh)]


# %% 03.copy_on_write: new_block_not_counted
def copy_on_write(table, refcount, block_size, length):
    fresh = refcount.index(0)
    if length % block_size == 0:
        return [*table, fresh], refcount, []
    if refcount[table[-1]] > 1:
        old = table.pop()
        refcount[old] -= 1
        return [*table, fresh], refcount, [(old, fresh)]
    return table, refcount, []


# %% 03.prefix_hash: without_the_parent
def prefix_blocks(prompt, block_size, block_of):
    blocks, i = [], 0
    while i + block_size < len(prompt):
        name = block_hash(b"", prompt[i : i + block_size])
        if name not in block_of:
            return blocks
        blocks.append(block_of[name])
        i += block_size
    return blocks


# %% 03.prefix_hash: the_whole_prompt
def prefix_blocks(prompt, block_size, block_of):
    blocks, parent = [], b""
    for i in range(len(prompt) // block_size):
        parent = block_hash(parent, prompt[i * block_size : (i + 1) * block_size])
        if parent not in block_of:
            break
        blocks.append(block_of[parent])
    return blocks


# %% 03.prefix_hash: goes_on_after_a_miss
def prefix_blocks(prompt, block_size, block_of):
    names, parent = [], b""
    for i in range((len(prompt) - 1) // block_size):
        parent = block_hash(parent, prompt[i * block_size : (i + 1) * block_size])
        names.append(parent)
    return [block_of[name] for name in names if name in block_of]


# %% 03.prefix_hash: whole_prefix_in_one_hash
def prefix_blocks(prompt, block_size, block_of):
    blocks = []
    for i in range(1, (len(prompt) - 1) // block_size + 1):
        block = block_of.get(block_hash(b"", prompt[: i * block_size]))
        if block is None:
            break
        blocks.append(block)
    return blocks


# %% 03.prefix_hash: one_block_short
def prefix_blocks(prompt, block_size, block_of):
    blocks, parent = [], b""
    for i in range(len(prompt) // block_size - 1):
        parent = block_hash(parent, prompt[i * block_size : (i + 1) * block_size])
        if parent not in block_of:
            break
        blocks.append(block_of[parent])
    return blocks


# %% 03.prefix_hash: last_block_alone
def prefix_blocks(prompt, block_size, block_of):
    best, parent = [], b""
    for end in range(block_size, len(prompt), block_size):
        parent = block_hash(parent, prompt[end - block_size : end])
        if parent not in block_of:
            break
        best = [block_of[parent]]
    return best

# ruff: noqa: F811, F821
# Wrong answers to the exercises of set 09, as cells of a notebook. How they are used: __init__.py.


# %% 09.medusa_head: head_one_is_next
def medusa_guesses(h, t, weight, bias, lm_head, head_ids):
    z = h + F.silu(torch.einsum("kij,j->ki", weight, h) + bias)
    logits = z @ lm_head[head_ids].T
    return logits, head_ids[logits.argmax(-1)], [t + k for k in range(1, len(weight) + 1)]


# %% 09.medusa_head: without_residual
def medusa_guesses(h, t, weight, bias, lm_head, head_ids):
    z = F.silu(weight @ h + bias)
    logits = z @ lm_head[head_ids].T
    return logits, head_ids[logits.argmax(-1)], [t + 2 + k for k in range(len(weight))]


# %% 09.medusa_head: without_silu
def medusa_guesses(h, t, weight, bias, lm_head, head_ids):
    logits = torch.stack([lm_head[head_ids] @ (h + W @ h + b) for W, b in zip(weight, bias, strict=True)])
    return logits, head_ids[logits.argmax(-1)], [t + 2 + k for k in range(len(weight))]


# %% 09.medusa_head: silu_of_everything
def medusa_guesses(h, t, weight, bias, lm_head, head_ids):
    z = weight @ h + bias + h
    logits = (z * z.sigmoid()) @ lm_head[head_ids].T
    return logits, head_ids[logits.argmax(-1)], [t + 2 + k for k in range(len(weight))]


# %% 09.medusa_head: relu_head
def medusa_guesses(h, t, weight, bias, lm_head, head_ids):
    z = h + (weight @ h + bias).clamp(min=0)
    logits = z @ lm_head[head_ids].T
    return logits, head_ids[logits.argmax(-1)], [t + 2 + k for k in range(len(weight))]


# %% 09.medusa_head: bias_after
def medusa_guesses(h, t, weight, bias, lm_head, head_ids):
    z = h + bias + F.silu(weight @ h)
    logits = z @ lm_head[head_ids].T
    return logits, head_ids[logits.argmax(-1)], [t + 2 + k for k in range(len(weight))]


# %% 09.medusa_head: transposed_weight
def medusa_guesses(h, t, weight, bias, lm_head, head_ids):
    logits = torch.stack([(h + F.silu(h @ W + b)) @ lm_head[head_ids].T for W, b in zip(weight, bias, strict=True)])
    return logits, head_ids[logits.argmax(-1)], [t + 2 + k for k in range(len(weight))]


# %% 09.medusa_head: whole_vocabulary
def medusa_guesses(h, t, weight, bias, lm_head, head_ids):
    logits = (h + F.silu(weight @ h + bias)) @ lm_head.T
    return logits, logits.argmax(-1), [t + 2 + k for k in range(len(weight))]


# %% 09.medusa_head: numbers_of_the_reduced
def medusa_guesses(h, t, weight, bias, lm_head, head_ids):
    logits = (h + F.silu(weight @ h + bias)) @ lm_head[head_ids].T
    return logits, logits.argmax(-1), [t + 2 + k for k in range(len(weight))]


# %% 09.medusa_head: first_rows
def medusa_guesses(h, t, weight, bias, lm_head, head_ids):
    logits = (h + F.silu(weight @ h + bias)) @ lm_head.T
    logits = logits[:, : len(head_ids)]
    return logits, head_ids[logits.argmax(-1)], [t + 2 + k for k in range(len(weight))]


# %% 09.medusa_head: heads_in_a_row
def medusa_guesses(h, t, weight, bias, lm_head, head_ids):
    logits = []
    for W, b in zip(weight, bias, strict=True):
        h = h + F.silu(W @ h + b)
        logits.append(lm_head[head_ids] @ h)
    logits = torch.stack(logits)
    return logits, head_ids[logits.argmax(-1)], [t + 2 + k for k in range(len(weight))]


# %% 09.tree_mask: like_a_chain
def tree_mask(parents, prefix):
    n = len(parents) + 1
    mask = torch.ones(n, prefix + n, dtype=torch.bool).tril(prefix)
    positions = [prefix]
    for parent in parents:
        positions.append(positions[parent + 1] + 1)
    return mask, positions


# %% 09.tree_mask: blind_to_itself
def tree_mask(parents, prefix):
    mask = torch.zeros(len(parents) + 1, prefix + len(parents) + 1, dtype=torch.bool)
    mask[:, : prefix + 1] = True
    positions = [prefix]
    for i, parent in enumerate(parents):
        positions.append(positions[parent + 1] + 1)
        while parent >= 0:
            mask[i + 1, prefix + 1 + parent] = True
            parent = parents[parent]
    return mask, positions


# %% 09.tree_mask: parent_only
def tree_mask(parents, prefix):
    mask = torch.zeros(len(parents) + 1, prefix + len(parents) + 1, dtype=torch.bool)
    mask[:, : prefix + 1] = True
    positions = [prefix]
    for i, parent in enumerate(parents):
        positions.append(positions[parent + 1] + 1)
        mask[i + 1, prefix + 1 + i] = True
        mask[i + 1, prefix + 1 + parent] = True
    return mask, positions


# %% 09.tree_mask: level_by_level
def tree_mask(parents, prefix):
    positions = [prefix]
    for parent in parents:
        positions.append(positions[parent + 1] + 1)
    p = torch.tensor(positions)
    mask = p[None, :] < p[:, None]
    mask |= torch.eye(len(p), dtype=torch.bool)
    return torch.cat([torch.ones(len(p), prefix, dtype=torch.bool), mask], 1), positions


# %% 09.tree_mask: towards_the_leaves
def tree_mask(parents, prefix):
    n = len(parents)
    tree = torch.eye(n, dtype=torch.bool)
    positions = [prefix]
    for i, parent in enumerate(parents):
        positions.append(positions[parent + 1] + 1)
        while parent >= 0:
            tree[parent, i] = True
            parent = parents[parent]
    mask = torch.zeros(n + 1, prefix + n + 1, dtype=torch.bool)
    mask[:, : prefix + 1] = True
    mask[1:, prefix + 1 :] = tree
    return mask, positions


# %% 09.tree_mask: past_hidden
def tree_mask(parents, prefix):
    mask = torch.zeros(len(parents) + 1, prefix + len(parents) + 1, dtype=torch.bool)
    mask[0, prefix] = True
    positions = [prefix]
    for i, parent in enumerate(parents):
        mask[i + 1] = mask[parent + 1]
        mask[i + 1, prefix + 1 + i] = True
        positions.append(positions[parent + 1] + 1)
    return mask, positions


# %% 09.tree_mask: root_hidden
def tree_mask(parents, prefix):
    mask = torch.zeros(len(parents) + 1, prefix + len(parents) + 1, dtype=torch.bool)
    mask[:, :prefix] = True
    mask[0, prefix] = True
    positions = [prefix]
    for i, parent in enumerate(parents):
        if parent >= 0:
            mask[i + 1] |= mask[parent + 1]
        mask[i + 1, prefix + 1 + i] = True
        positions.append(positions[parent + 1] + 1)
    return mask, positions


# %% 09.tree_mask: positions_by_slot
def tree_mask(parents, prefix):
    mask = torch.zeros(len(parents) + 1, prefix + len(parents) + 1, dtype=torch.bool)
    mask[:, : prefix + 1] = True
    for i, parent in enumerate(parents):
        mask[i + 1] |= mask[parent + 1]
        mask[i + 1, prefix + 1 + i] = True
    return mask, prefix + torch.arange(len(parents) + 1)


# %% 09.tree_mask: children_at_the_root
def tree_mask(parents, prefix):
    mask = torch.zeros(len(parents) + 1, prefix + len(parents) + 1, dtype=torch.bool)
    mask[:, : prefix + 1] = True
    depth = []
    for i, parent in enumerate(parents):
        mask[i + 1] |= mask[parent + 1]
        mask[i + 1, prefix + 1 + i] = True
        depth.append(0 if parent < 0 else depth[parent] + 1)
    return mask, [prefix] + [prefix + d for d in depth]


# %% 09.tree_mask: positions_from_one
def tree_mask(parents, prefix):
    mask = torch.zeros(len(parents) + 1, prefix + len(parents) + 1, dtype=torch.bool)
    mask[:, : prefix + 1] = True
    positions = [prefix + 1]
    for i, parent in enumerate(parents):
        mask[i + 1] |= mask[parent + 1]
        mask[i + 1, prefix + 1 + i] = True
        positions.append(positions[parent + 1] + 1)
    return mask, positions


# %% 09.tree_mask: positions_without_prefix
def tree_mask(parents, prefix):
    mask = torch.zeros(len(parents) + 1, prefix + len(parents) + 1, dtype=torch.bool)
    mask[:, : prefix + 1] = True
    positions = [0]
    for i, parent in enumerate(parents):
        mask[i + 1] |= mask[parent + 1]
        mask[i + 1, prefix + 1 + i] = True
        positions.append(positions[parent + 1] + 1)
    return mask, positions


# %% 09.tree_verify: every_sibling_against_p
def verify_siblings(p, q, siblings, random):
    for i, d in enumerate(siblings):
        if random() < p[d] / q[i][d]:
            return i, d
    return None, pick(residual(p, q[i]), random())


# %% 09.tree_verify: only_the_first
def verify_siblings(p, q, siblings, random):
    if random() < p[siblings[0]] / q[0][siblings[0]]:
        return 0, siblings[0]
    return None, pick(residual(p, q[0]), random())


# %% 09.tree_verify: draws_from_p_at_last
def verify_siblings(p, q, siblings, random):
    left = p
    for i, d in enumerate(siblings):
        if random() < left[d] / q[i][d]:
            return i, d
        left = residual(left, q[i])
    return None, pick(p, random())


# %% 09.tree_verify: any_of_them
def verify_siblings(p, q, siblings, random):
    token = pick(p, random())
    for i, d in enumerate(siblings):
        if d == token:
            return i, d
    return None, token


# %% 09.tree_verify: unnormalised_residual
def verify_siblings(p, q, siblings, random):
    left = p
    for i, d in enumerate(siblings):
        if random() < left[d] / q[i][d]:
            return i, d
        left = torch.relu(left - q[i])
    return None, pick(left, random())


# %% 09.tree_verify: residual_of_p
def verify_siblings(p, q, siblings, random):
    left = p
    for i, d in enumerate(siblings):
        if random() < left[d] / q[i][d]:
            return i, d
        left = (p - q[i]).clamp(min=0)
        left = left / left.sum()
    return None, pick(left, random())


# %% 09.tree_verify: removes_the_rejected
def verify_siblings(p, q, siblings, random):
    left = p.clone()
    for i, d in enumerate(siblings):
        if random() < left[d] / q[i][d]:
            return i, d
        if left[d] < 1:
            left[d] = 0
            left = left / left.sum()
    return None, pick(left, random())


# %% 09.tree_verify: one_coin_for_all
def verify_siblings(p, q, siblings, random):
    left, coin = p, random()
    for i, d in enumerate(siblings):
        if coin < left[d] / q[i][d]:
            return i, d
        left = residual(left, q[i])
    return None, pick(left, random())


# %% 09.tree_tokens: one_long_chain
def best_shape(accuracies, budget):
    nodes, tokens, reach = [], 1.0, 1.0
    for k, head in enumerate(accuracies[:budget]):
        reach *= head[0]
        tokens += reach
        nodes.append((0,) * (k + 1))
    return nodes, tokens


# %% 09.tree_tokens: widest_first
def best_shape(accuracies, budget):
    nodes, tokens, level = [], 1.0, [((), 1.0)]
    for head in accuracies:
        level = [((*node, i), reach * a) for node, reach in level for i, a in enumerate(head)]
        for node, reach in level:
            if len(nodes) < budget:
                nodes.append(node)
                tokens += reach
    return nodes, tokens


# %% 09.tree_tokens: own_accuracy_alone
def best_shape(accuracies, budget):
    nodes, tokens = [], 1.0
    waiting = [(a, 0, (i,), a) for i, a in enumerate(accuracies[0])]
    while waiting and len(nodes) < budget:
        waiting.sort(reverse=True)
        _, depth, node, reach = waiting.pop(0)
        nodes.append(node)
        tokens += reach
        if len(node) < len(accuracies):
            waiting += [(a, depth - 1, (*node, i), reach * a) for i, a in enumerate(accuracies[len(node)])]
    return nodes, tokens


# %% 09.tree_tokens: without_the_one
def best_shape(accuracies, budget):
    level, nodes = {(): 1.0}, {}
    for head in accuracies:
        level = {(*node, i): reach * a for node, reach in level.items() for i, a in enumerate(head)}
        nodes |= level
    chosen = sorted(nodes, key=nodes.get, reverse=True)[:budget]
    return chosen, sum(nodes[node] for node in chosen)


# %% 09.tree_tokens: root_in_the_budget
def best_shape(accuracies, budget):
    level, nodes = {(): 1.0}, {(): 1.0}
    for head in accuracies:
        level = {(*node, i): reach * a for node, reach in level.items() for i, a in enumerate(head)}
        nodes |= level
    chosen = sorted(nodes, key=nodes.get, reverse=True)[:budget]
    return chosen[1:], sum(nodes[node] for node in chosen)


# %% 09.tree_tokens: sums_accuracies
def best_shape(accuracies, budget):
    level, nodes = {(): 1.0}, {}
    for head in accuracies:
        level = {(*node, i): reach * a for node, reach in level.items() for i, a in enumerate(head)}
        nodes |= level
    chosen = sorted(nodes, key=nodes.get, reverse=True)[:budget]
    tokens = 1.0
    for node in chosen:
        tokens += accuracies[len(node) - 1][node[-1]]
    return chosen, tokens


# %% 09.tree_tokens: best_path_only
def best_shape(accuracies, budget):
    level, nodes = {(): 1.0}, {}
    for head in accuracies:
        level = {(*node, i): reach * a for node, reach in level.items() for i, a in enumerate(head)}
        nodes |= level
    chosen = sorted(nodes, key=nodes.get, reverse=True)[:budget]
    return chosen, 1 + sum(nodes[node] for node in chosen if not any(node))


# %% 09.typical: entropy_in_bits
def typical_distribution(p, q, epsilon, delta):
    H = -sum(float(x) * math.log2(x) for x in p if x > 0)
    ok = p > min(epsilon, delta * math.exp(-H))
    law = q * ok + (q * ~ok).sum() * p
    return law, (law - p).abs().sum() / 2


# %% 09.typical: sign_of_the_entropy
def typical_distribution(p, q, epsilon, delta):
    H = sum(float(x) * math.log(x) for x in p if x > 0)
    ok = p > min(epsilon, delta * math.exp(-H))
    law = q * ok + (q * ~ok).sum() * p
    return law, (law - p).abs().sum() / 2


# %% 09.typical: epsilon_alone
def typical_distribution(p, q, epsilon, delta):
    ok = p > epsilon
    law = q * ok + (q * ~ok).sum() * p
    return law, (law - p).abs().sum() / 2


# %% 09.typical: larger_of_the_two
def typical_distribution(p, q, epsilon, delta):
    H = torch.special.entr(p).sum().item()
    ok = (p > epsilon) & (p > delta * math.exp(-H))
    law = q * ok + (q * ~ok).sum() * p
    return law, (law - p).abs().sum() / 2


# %% 09.typical: judges_by_q
def typical_distribution(p, q, epsilon, delta):
    H = torch.special.entr(p).sum().item()
    ok = q > min(epsilon, delta * math.exp(-H))
    law = q * ok + (q * ~ok).sum() * p
    return law, (law - p).abs().sum() / 2


# %% 09.typical: distribution_is_p
def typical_distribution(p, q, epsilon, delta):
    return p.clone(), 0


# %% 09.typical: refused_mass_is_lost
def typical_distribution(p, q, epsilon, delta):
    H = torch.special.entr(p).sum().item()
    law = torch.where(p > min(epsilon, delta * math.exp(-H)), q, 0.0)
    return law, (law - p).abs().sum() / 2


# %% 09.typical: accepted_renormalised
def typical_distribution(p, q, epsilon, delta):
    H = torch.special.entr(p).sum().item()
    law = torch.where(p > min(epsilon, delta * math.exp(-H)), q, 0.0)
    law = law / law.sum()
    return law, (law - p).abs().sum() / 2


# %% 09.typical: refused_cannot_return
def typical_distribution(p, q, epsilon, delta):
    H = torch.special.entr(p).sum().item()
    ok = p > min(epsilon, delta * math.exp(-H))
    among = torch.where(ok, p, 0.0)
    law = q * ok + (q * ~ok).sum() * among / among.sum()
    return law, (law - p).abs().sum() / 2


# %% 09.typical: distance_without_half
def typical_distribution(p, q, epsilon, delta):
    H = torch.special.entr(p).sum().item()
    ok = p > min(epsilon, delta * math.exp(-H))
    law = q * ok + (q * ~ok).sum() * p
    return law, torch.norm(law - p, p=1)


# %% 09.typical: nan_entropy
def typical_distribution(p, q, epsilon, delta):
    H = -(p * p.log()).sum()
    ok = p > min(delta * math.exp(-H), epsilon)
    law = q * ok + (q * ~ok).sum() * p
    return law, (law - p).abs().sum() / 2


# %% 09.typical: nan_entropy_ignored
def typical_distribution(p, q, epsilon, delta):
    H = -(p * p.log()).sum()
    ok = p > min(epsilon, delta * math.exp(-H))
    law = q * ok + (q * ~ok).sum() * p
    return law, (law - p).abs().sum() / 2

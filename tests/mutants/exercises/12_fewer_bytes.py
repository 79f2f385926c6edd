# ruff: noqa: F811, F821
# Wrong answers to the exercises of set 12, as cells of a notebook. How they are used: __init__.py.


# %% 12.symmetric: one_scale_for_all
def symmetric(weight, bits, group):
    s = weight.abs().max() / (2 ** (bits - 1) - 1)
    integers = (weight / s).round()
    return integers, s.repeat(len(weight), weight.shape[1] // group), s * integers


# %% 12.symmetric: one_scale_a_row
def symmetric(weight, bits, group):
    s = weight.abs().amax(1) / (2 ** (bits - 1) - 1)
    integers = (weight / s[:, None]).round()
    return integers, s, s[:, None] * integers


# %% 12.symmetric: uses_all_integers
def symmetric(weight, bits, group):
    blocks = weight.view(len(weight), -1, group)
    s = blocks.abs().amax(-1) / 2 ** (bits - 1)
    s = torch.where(s == 0, 1.0, s)
    integers = (blocks / s[..., None]).round()
    return integers.view_as(weight), s, (s[..., None] * integers).view_as(weight)


# %% 12.symmetric: cuts_off
def symmetric(weight, bits, group):
    blocks = weight.view(len(weight), -1, group)
    s = blocks.abs().amax(-1) / (2 ** (bits - 1) - 1)
    s = torch.where(s == 0, 1.0, s)
    integers = (blocks / s[..., None]).to(torch.int8)
    return integers.view_as(weight), s, (s[..., None] * integers).view_as(weight)


# %% 12.symmetric: largest_without_abs
def symmetric(weight, bits, group):
    blocks = weight.view(len(weight), -1, group)
    s = blocks.max(-1).values / (2 ** (bits - 1) - 1)
    s = torch.where(s == 0, 1.0, s)
    integers = (blocks / s[..., None]).round()
    return integers.view_as(weight), s, (s[..., None] * integers).view_as(weight)


# %% 12.online_softmax: no_maximum
def online_softmax(tiles):
    ell = o = 0
    for s, v in tiles:
        ell = ell + s.exp().sum()
        o = o + s.exp() @ v
    return o / ell


# %% 12.online_softmax: nothing_rescaled
def online_softmax(tiles):
    m, ell, o = -float("inf"), 0, 0
    for s, v in tiles:
        m = max(m, float(s.max()))
        w = (s - m).exp()
        ell, o = ell + w.sum(), o + w @ v
    return o / ell


# %% 12.online_softmax: output_not_rescaled
def online_softmax(tiles):
    m, ell, o = torch.tensor(-float("inf")), 0, 0
    for s, v in tiles:
        new = torch.maximum(m, s.max())
        ell = ell * (m - new).exp() + (s - new).exp().sum()
        o = o + (s - new).exp() @ v
        m = new
    return o / ell


# %% 12.online_softmax: averages_the_tiles
def online_softmax(tiles):
    count, total = 0, 0
    for s, v in tiles:
        total = total + torch.softmax(s, 0) @ v
        count += 1
    return total / count


# %% 12.online_softmax: collects_the_tiles
def online_softmax(tiles):
    all_scores, all_values = [], []
    for s, v in tiles:
        all_scores.append(s)
        all_values.append(v)
    return torch.cat(all_scores).softmax(0) @ torch.cat(all_values)


# %% 12.bytes_read: the_ratio_of_the_bits
def quantisation_gain(weights, bits, group, batch, context, kv_bytes, bandwidth, peak):
    return 16 / bits


# %% 12.bytes_read: forgets_the_scales
def quantisation_gain(weights, bits, group, batch, context, kv_bytes, bandwidth, peak):
    flops = 2 * weights * batch / peak
    cache = batch * context * kv_bytes
    old = max((weights * 2 + cache) / bandwidth, flops)
    return old / max((weights * bits / 8 + cache) / bandwidth, flops)


# %% 12.bytes_read: forgets_the_caches
def quantisation_gain(weights, bits, group, batch, context, kv_bytes, bandwidth, peak):
    flops = 2 * weights * batch / peak
    old = max(weights * 2 / bandwidth, flops)
    return old / max((weights * bits / 8 + 2 * weights / group) / bandwidth, flops)


# %% 12.bytes_read: bytes_only
def quantisation_gain(weights, bits, group, batch, context, kv_bytes, bandwidth, peak):
    cache = batch * context * kv_bytes
    return (weights * 2 + cache) / (weights * (bits / 8 + 2 / group) + cache)

"""What two candidates typed in mock interviews, judged by reading it: the second set that the matcher is measured on.

Each answer names its question, what was typed at the opening (and after a probe), what was typed after each follow-up
and push-back, and one mark for each line of the rubric: y said, n not said, x said the opposite, - left open.
The order is L4, L5, L6 / follow-up and push-backs / what raises / what sinks.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Typed:
    question: str
    opening: str
    replies: tuple[str, ...]  # to the first follow-up, if there is one, then to the push-backs in order
    marks: str


CANDIDATES = (
    Typed(
        "adaptive-length",
        "I'd keep a running average of the acceptance rate, like an exponential moving average, and when it is high I "
        "draft more tokens, when it is low I shrink k, maybe down to zero which is plain decoding. Exactness is fine "
        "because each drafted token still goes through the same accept or reject test against the target, so k only "
        "changes speed.",
        (
            "I think both are exact. For the first one I'd be a bit careful if you throw the sampled token away, but "
            "honestly I'd say it's fine.",
            "At k = 0 you never draft, so you get no new acceptance data and the estimate goes stale, so I'd add a "
            "probe, like draft 1 or 2 tokens every so often. Also add hysteresis, two thresholds for going up and "
            "down, and smooth the average more, and change k by one step at a time.",
        ),
        "yyn nyy n-n / ny / y / -",
    ),
    Typed(
        "which-acceptance",
        "Yes, they can use different denominators. One counts accepted over tokens that were actually tested, up to "
        "the first rejection, so that is the per-token rate of 80 percent, and the other divides accepted by "
        "everything drafted, including the tokens after the first rejection that were thrown away. With alpha 0.8 and "
        "k=4 you expect 0.8+0.64+0.51+0.41, about 2.36 accepted out of 4, which is 59 percent, so it fits exactly.",
        (
            "1.773/4, so 44%",
            "I'd show the conditional alpha plus the tokens per target step. Accepted over drafted is really just for "
            "waste, and I'd label both clearly with k.",
        ),
        "yyn ynn nnn / yy / n / n",
    ),
    Typed(
        "expected-tokens",
        "(1-α^(k+1))/(1-α), which goes to 1/(1-α) for large k. Not sure what you mean by resource for a derivation, "
        "but to get it: we always get at least one token, the correction or the bonus, and position i is reached and "
        "accepted with probability alpha to the i, if we treat acceptances as independent with the same alpha. So it "
        "is the sum for i from 0 to k of alpha^i, 1+0.8+0.64+0.51+0.41 = 3.36 tokens.",
        (
            "about 1.65 and about 4.16",
            "The formula assumes one alpha and independent acceptances, and real acceptance is bursty: some prompts "
            "are at 0.95 and some at 0.4. The easy stretches give long runs, and since the formula is convex in alpha "
            "the average of E[N] is more than E[N] of the average. I'd also check how 0.7 was counted, maybe over "
            "drafted tokens instead of tested ones.",
        ),
        "yyy yyy -yn / -y / -n / nn",
    ),
    Typed(
        "ngram-in-constant-time",
        "I'd keep one dict per match length, from the tuple of the last m tokens to the position right after it. To "
        "draft I look up the longest suffix first and fall back to shorter ones, and copy the k tokens that follow the "
        "match.",
        (
            "Right, if I insert the current suffix before I look it up, it matches itself and there is nothing after "
            "it. So look up first and insert afterwards, or only insert an n-gram once its next token exists, one "
            "token late.",
        ),
        "yyn ynn nnn / y / n / n",
    ),
    Typed(
        "moe-verification",
        "At batch 1 a dense model verifies k+1 positions for roughly the price of one, since the same weights are read "
        "once; in an MoE each extra position routes to its own experts, so verifying k+1 tokens touches the union of "
        "experts, up to (k+1) times top-k of E, and the bytes read per pass grow with k. With 8 of 256 experts and 5 "
        "positions you read close to 38 distinct experts instead of 8 if routing is independent, so verification could "
        "cost 3-4x on the expert part, only attention and shared experts are amortized. At moderate batch nearly all "
        "experts are already loaded. I would not at batch 1-4 with a fine-grained MoE unless acceptance is high, "
        "because tokens per pass divided by verify cost relative to one decode step is the speedup: if alpha is 0.7 "
        "and k=4 I get about 2.8 tokens, but if the verify step costs 2.5x and the draft adds 0.3, I'm at 1.0, no "
        "gain. The signal is the measured ratio T(k+1)/T(1) at the served batch, together with accepted length per "
        "pass;",
        (
            "the share read is about 76 percent, 6.1 of 8 experts. Against 25 percent for one token that's about 3x "
            "the expert bytes per pass.",
            "k is 1, so at most two positions, and the draft is one layer sharing embeddings and head. They serve with "
            "large expert parallelism, hundreds of requests per deployment unit, so all 256 experts are loaded by the "
            "batch anyway, and an extra position adds no expert bytes, only compute, where with 8 of 256 each expert "
            "sees B/32 tokens, so it stays memory bound to large B.",
            "That helps me, but how much overlap, measured where? If overlap is 50 percent per neighbour, the union "
            "for five tokens falls from 76 percent toward maybe 50-55 percent on 8-choose-2, so verify cost goes from "
            "3x to about 2x, not to 1x. I'd log the router: mean unique experts per layer for windows of k+1 "
            "consecutive tokens, on production prompts, and plug this into the cost model. Two cautions: "
            "load-balancing losses fight exactly this locality, and rejected draft tokens are wrong tokens so they may "
            "route differently from the true continuation. So your claim raises my optimal k at low batch, it doesn't "
            "change the shape.",
        ),
        "yyy yyy yyn / yyy / y / n",
    ),
    Typed(
        "drop-unlikely-drafts",
        "No. With p = q = (0.9, 0.1), dropping the low-q token gives P(A) = 0.99 instead of 0.9. It's a selection "
        "bias: low-q tokens lose their chance of being accepted through the draft, and nothing repays it. Exact "
        "versions: decide from what is known before sampling x_i, for example entropy or max of q at that position or "
        "the q of the previous token, so stop AFTER the low-q token and still verify it; or keep the drop but treat "
        "the kept part q times indicator as a sub-probability proposal and on a drop or rejection sample from the "
        "normalized positive part of p minus q times the indicator, which is again p in total. For greedy, it's "
        "harmless: argmax of p whatever you dropped.",
        (
            "Exact, as I just said. The draft length then is a stopping time of the draft: whether position i+1 is "
            "drafted depends only on tokens up to x_i, and x_i itself goes through the same accept test with its true "
            "q. If x_i is accepted, position i+1 is filled from p given a prefix already fixed, if rejected, from the "
            "residual, so each position's marginal given its prefix is p. Nothing is conditioned on the value it "
            "decides about.",
            "Quality benchmarks can't see this: the bias moves mass from the low-probability tail to the head, like a "
            "lower temperature. So no change in quality isn't evidence of exactness, you promised the same "
            "distribution. I'd test on a small vocabulary or a fixed prefix: 100 thousand samples of the next token "
            "with and without, chi-square or total variation against p, with the un-dropped path as the control; the "
            "effect in my example, 0.99 against 0.9, shows in 100 draws. The exact variant costs one extra verified "
            "position, so there's no reason to keep the bug.",
            "Good point, then no, this objection falls away. A greedy draft is a deterministic function of the prefix, "
            "so its max probability is known without any random draw, and dropping on it conditions on nothing random: "
            "the position is filled from p, which is exact even with a sampled target. But then another question: what "
            "q do you use in the accept test? The proposal is a point mass, so accept x with probability p(x) and the "
            "residual is p with x removed and renormalized; if you use the softmax value of the argmax as q, you "
            "accept with min(1, p/q), which is too often, and that biases toward the draft's argmax.",
        ),
        "y-y -yy yyy / yyy / y / n",
    ),
    Typed(
        "cost-per-million",
        "At batch 1 a step reads 16 GB, 3.8 ms, so 263 tokens a second. A million tokens take 3,800 seconds, a bit "
        "over an hour, so about 2.10 dollars; that's a floor with short context and no launch overhead. At batch 64 "
        "with weights only it's 64 times cheaper, 3.3 cents, but that's too optimistic: with GQA, 8 KV heads, 32 "
        "layers, head dim 128, the cache is 128 KiB per token, so 64 requests at 2,000 tokens add about 17 GB, the "
        "step goes to 33 GB, 7.9 ms, 8,100 tokens a second, and a million costs about 7 cents. Compute check: 64 times "
        "16 GFLOP is 1 TFLOP per step, about 1 ms at 989 peak, so it's still memory bound. So it's 2 dollars versus 3 "
        "to 7 cents, 30 to 60x, and both assume the GPU is full every hour; at 40 percent utilization multiply by "
        "2.5, and prefill is not counted. If you mean raising the batch to 64, I would not when the TPOT SLO or the "
        "tail of TTFT breaks: at batch 64 the step goes from 3.8 to about 8 ms, so an interactive SLO of 5 ms per "
        "token would rule it out, and with long contexts the KV doesn't fit or dominates.",
        (
            "To the ridge: B equals peak over bandwidth, 989 dense bf16 TFLOPS over 4.2 TB/s, about 235. With an "
            "achievable 600-700 TFLOPS the knee comes at around 150.",
            "Ten decomposes: average occupancy 3x, idle hours 2.5x, prefill, 1.3x overhead, retries. I'd pull mean "
            "running requests per step, step time, output tokens per GPU-hour.",
            "Only where there are idle FLOPs and the batch can't be raised. At batch 1 yes; at 64, 320 positions are "
            "past the ridge, about 1.5x. At saturation it raises the cost, because each rejected token is paid for.",
        ),
        "yyy yyn yny / yyy / y / n",
    ),
    Typed(
        "online-adaptation",
        "Assume training on traffic is allowed for opted-in tenants, given tenants and retention. Step one, measure: "
        "log acceptance per position by tenant, language and drafter version; keep a fixed reference set so I can tell "
        "traffic drift from a target change. Step two, data: verification already gives labels for free, at every "
        "verified position we have the target's logits and hidden states, so I sample maybe 1 percent of requests, "
        "store tokens plus top-k logits rather than 128k floats, and oversample rejected positions with importance "
        "weights. Step three, training: off the serving path on a few GPUs, distill with KL from the last good "
        "checkpoint, mix 70 percent recent with 30 percent replay against forgetting, daily cadence, since drift is "
        "weekly. Step four, gate: offline accepted length on a held-out recent slice and on old slices, then shadow, "
        "then canary on 5 percent with step time and accepted tokens per second, automatic rollback; the verifier "
        "keeps output exact whatever the drafter. Value check: 2.53 to 3.05 tokens saves around 15 GPUs against maybe "
        "8 GPU-hours a day of training, clearly worth it.",
        (
            "One tenant's burst of Portuguese poems would drag the little guesser away from everyone else, and by "
            "lunch it would have unlearned what it knew on Monday. Each nudge also steals machine time from paying "
            "customers, and every box would have a different guesser. Cook elsewhere, taste, then swap.",
            "We keep one head per customer group in the paged pool, route requests by block table, and the acceptance "
            "of pages by the allocator is measured per customer. The CUDA graphs are recorded for each number of KV "
            "heads.",
        ),
        "yyy yyy yyy / yn / y / n",
    ),
    Typed(
        "eagle",
        "",
        (
            "",
            "",
            "Output stays right, only speed suffers, since the head no longer fits. I'd retrain the head and make it "
            "part of the release pipeline.",
        ),
        "nnn nnn nnn / nny / n / n",
    ),
    Typed(
        "acceptance-by-position",
        "1 + 0.9 + 0.9*0.7 + 0.9*0.7*0.5 = 2.845 tokens, the one that every cycle gives plus the products.",
        ("", "", ""),
        "yyn ynn nnn / nnn / n / n",
    ),
)
OPPOSITES = (  # false on purpose, in the words of the rubric
    Typed(
        "which-acceptance",
        "No, both cannot be right, acceptance is defined in only one way and the denominator counted in each is the "
        "same. Accepted over drafted never falls as k grows. For trees you report a rate and not the accepted length, "
        "and the formula for E[N] needs accepted over drafted.",
        (
            "I do not know.",
            "The mean acceptance length is useless, since it needs a definition of tokens per target pass; I'd keep "
            "only the single percentage, it never changes with k, and drop the rates by position with their counts.",
        ),
        "xxn nxx xnx / nx / n / y",
    ),
    Typed(
        "rollout",
        "I would ship it to all traffic at once, with no flag, no canary, no shadow and no rollback, since speculation "
        "cannot break a live service. I would not measure acceptance, latency, p99, tokens per second or cost per "
        "request class, and I would not compare with a baseline. Output equality with the target needs no test, "
        "because greedy output and sampled output differ anyway by rounding. I'd fix k at 8 for every batch, even "
        "under high load, and never switch it off by load.",
        ("", "Ship it. The tail does not matter, and p99 is never a target.", "Then it goes everywhere by Friday."),
        "xxx xxx nnx / nxx / x / -",
    ),
    Typed(
        "drafter-staleness",
        "I would never replay fixed prompts, and I would not look at acceptance by class. I would delete the alert. "
        "The target never changes and neither does the traffic.",
        ("I would not look at what was released that day.", "Then I would skip the offline check."),
        "xnn xxn nnx / xx / n / -",
    ),
)

# Which sentence earns a point, judged by reading it: how the point begins → words of that sentence, or of some.
EARNED: dict[str, dict[str, str | tuple[str, ...]]] = {
    "adaptive-length": {
        "Longer drafts": "when it is high I draft more",
        "Shortens drafts": "when it is low I shrink k",
        "Includes switching off": "down to zero",
        "Bases the decision": "running average",
    },
    "which-acceptance": {
        "Knows that acceptance can be": ("different denominators", "One counts accepted"),
        "Says what is counted": "One counts accepted",
    },
    "expected-tokens": {
        "Knows that at least one": "at least one token",
        "Derives it from": "probability alpha to the i",
        "Gives the ceiling": "1/(1-α) for large k",
        "Says it counts": "the correction or the bonus",
    },
    "ngram-in-constant-time": {
        "Uses a dictionary": "one dict per match",
        "Prefers the longest": "longest suffix first",
        "Inserts only grams": ("only insert an n-gram", "matches itself"),
    },
    "moe-verification": {
        "Different tokens use": ("routes to its own experts", "38 distinct experts"),
        "Knows that only chosen": ("routes to its own experts", "38 distinct"),
        "Says that more tokens": ("routes to its own experts", "38 distinct"),
        "Explains why verifying": "routes to its own experts",
        "Says why larger batches": ("At moderate batch", "hundreds of requests"),
        "Computes the ratio": ("8 of 256 experts", "that's about 3x"),
        "Estimates the expected": ("8 of 256 experts", "unique experts"),
        "Knows that neighbouring": ("log the router", "overlap is 50 percent"),
    },
    "drop-unlikely-drafts": {
        "Suspects that removing": ("selection bias", "P(A) = 0.99"),
        "Proposes to stop": "stop AFTER",
        "Separates cutting": "stop AFTER",
        "Constructs the bias": "P(A) = 0.99",
        "Separates ending": "stop AFTER",
        "Notes that for greedy": ("A greedy draft", "harmless"),
    },
    "cost-per-million": {
        "Larger batches make": ("64 times cheaper", "30 to 60x"),
        "Turns dollars": "3,800 seconds",
        "Computes tokens per second": ("263 tokens a second", "8,100 tokens", "3,800 seconds"),
        "Says that this is": ("a floor", "at 40 percent"),
        "Corrects for real": ("at 40 percent", "too optimistic", "GPU is full"),
        "States that it is": ("a floor", "at 40 percent"),
    },
    "online-adaptation": {
        "Acceptance is monitored": "log acceptance",
        "Verification gives": "labels for free",
        "The output does not": "output exact",
        "Mixes old": "30 percent replay",
        "Decides on held-out": "held-out recent",
        "Rolls out": "canary on 5",
        "Weighs training": "Value check",
    },
    "acceptance-by-position": {"Adds the one": "the one that every"},
}

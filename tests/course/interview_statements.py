"""What candidates say about a question of the bank, in their own words: wrong statements, and right ones that use
nearly the same words. The mistakes that the bank names are measured on both."""

WRONG = """\
decode-memory-bound | Decode is compute-bound because the matrix multiplications are huge.
decode-memory-bound | At batch one decoding is limited by the arithmetic of the tensor cores.
prefill-and-decode | The KV cache speeds up the prefill.
sequential-dependency | With the KV cache we can generate several tokens in parallel.
bottlenecks-and-remedies | Paged attention makes the attention kernel faster.
bottlenecks-and-remedies | Speculation increases the throughput of a full server.
roofline-free-tokens | If we quantise the weights we get more free tokens.
latency-metrics | Speculative decoding cuts the time to first token.
kv-mechanics | The KV cache makes prefill much faster.
kv-size | The KV cache grows quadratically with the context length.
kv-size | A model with more parameters needs a larger cache per token.
gqa | GQA speeds up training mainly.
paged-attention | PagedAttention makes attention faster.
prefix-caching | Prefix caching makes the decoding faster as well.
continuous-batching | Continuous batching waits until there are enough requests to fill the batch.
preemption | The preempted request loses its generated tokens.
chunked-prefill | Chunking shortens the time to first token of that long prompt.
walk-me-through | The draft model slightly changes the output distribution.
walk-me-through | A rejected token costs an extra forward pass of the target.
verify-cost | Verifying five tokens takes about five times as long at batch one.
what-happens-on-rejection | The whole draft is thrown away then.
bonus-token | The bonus token needs another forward pass, so it costs time.
exact-or-approximate | With sampling it is only approximate.
exact-or-approximate | A worse draft model lowers the output quality.
accepted-tokens-law | The accepted tokens follow the target distribution.
greedy-draft | A greedy draft biases the output when the target samples.
sampling-parameters | The temperatures must be equal for it to be exact.
temperature-and-acceptance | Acceptance doesn't depend on the temperature at all.
block-verification | Block verification changes the distribution of the output.
expected-tokens | It's alpha times k tokens per cycle.
speedup-formula | The speedup is just the number of tokens per cycle.
choose-k | The best k does not depend on the batch size.
break-even | It wins whenever acceptance is above one half.
weak-draft | A weak draft model makes the answers worse.
total-flops | It reduces the total FLOPs because there are fewer forward passes.
ngram | n-gram is only lossless under greedy decoding.
quantised-draft | The quantised draft makes the output less accurate.
staged-speculation | The extra stage in front raises acceptance.
reduced-vocabulary | A reduced vocabulary changes the output distribution.
medusa | The first Medusa head predicts the next token.
typical-acceptance | Typical acceptance is lossless.
eagle | EAGLE predicts all draft tokens in one step.
win-or-hurt | Speculation always increases throughput.
batch-effect | The gain does not depend on the batch.
moe-verification | Verification at batch one is as cheap as with a dense model.
long-context-speculation | A larger batch shares the cache reads.
quantisation-speed | INT4 is four times as fast as FP16.
flash-attention | Flash attention reduces the FLOPs.
flash-attention | FlashAttention is linear in time.
pipeline-parallelism | Pipeline parallelism makes a single request faster.
hybrid-rollback | You rewind the recurrent state like a KV cache.
batch-invariance | Greedy decoding is deterministic at any load.
forbidden-draft-tokens | Removing the forbidden token leaves the output exact.
long-context-verification | Each draft token reads the cache again.
why-output-costs-more | An output token needs more FLOPs than an input token.
"""
RIGHT = """\
decode-memory-bound | Decoding at batch one is limited by memory bandwidth and not by arithmetic.
prefill-and-decode | A KV cache does not make prefill faster.
sequential-dependency | The cache saves recomputation, but the tokens are still generated one after the other.
bottlenecks-and-remedies | PagedAttention saves memory, it does not make the kernel faster.
roofline-free-tokens | Quantised weights leave fewer free tokens, because fewer bytes are read.
latency-metrics | Speculation lowers the time per token but not the time to first token.
kv-mechanics | The cache helps decode; prefill is as slow as before.
kv-size | The cache grows linearly with the context and with the batch.
kv-size | A model with more parameters may still have a smaller cache per token.
paged-attention | Attention itself gets a little slower with paging.
prefix-caching | Prefix caching shortens the time to first token and leaves decoding as it is.
chunked-prefill | The long prompt itself finishes a little later.
walk-me-through | The draft model does not change the output distribution at all.
walk-me-through | Speculation raises throughput only as long as there is idle arithmetic.
verify-cost | At small batch verification is nearly free, at large batch it is not.
verify-cost | Verification reads the weights once for all draft tokens.
what-happens-on-rejection | The correction comes from the same forward pass.
exact-or-approximate | It is exact with sampling as well as with greedy decoding.
exact-or-approximate | A worse draft model makes it slower, the quality of the output stays.
accepted-tokens-law | The emitted tokens follow the target, the accepted ones alone do not.
greedy-draft | A greedy draft is exact for a sampling target if q is one-hot.
sampling-parameters | The temperatures may differ, exactness only wants the q that was used.
temperature-and-acceptance | A higher temperature usually lowers acceptance.
temperature-and-acceptance | At temperature zero acceptance is agreement on the argmax.
block-verification | Block verification leaves the output distribution unchanged.
expected-tokens | The first i draft tokens are accepted with probability alpha to the i.
speedup-formula | The speed-up is the number of tokens per cycle divided by what a cycle costs.
choose-k | A weak draft model calls for a smaller k.
choose-k | The best k falls as the batch grows.
weak-draft | The output stays right and the speed-up is gone.
total-flops | Speculation raises the total FLOPs and lowers the bytes per token.
ngram | n-gram drafting is exact at any temperature, because q is one-hot.
quantised-draft | The output is that of the bf16 model whatever the draft is.
medusa | The first head predicts the token after the next one.
typical-acceptance | Typical acceptance is not lossless when sampling.
eagle | EAGLE needs one step per draft token.
win-or-hurt | Speculation pays at small batches and hurts at large ones.
batch-effect | A larger batch lowers the gain from speculation.
moe-verification | At batch one five tokens read more experts than one, so verification is not free.
long-context-speculation | A larger batch does not share the cache reads, but the tokens of a sequence do.
symmetric-quantisation | A larger scale makes the error larger.
quantisation-speed | INT4 is four times smaller, but not four times as fast.
flash-attention | FlashAttention moves fewer bytes and does the same FLOPs.
pipeline-parallelism | A single request does not get faster with pipeline stages.
cuda-graphs | Small batches profit most from graphs, because launches dominate there.
hybrid-rollback | A recurrent state cannot be rewound like a cache.
batch-invariance | Greedy decoding is deterministic for a fixed shape only.
forbidden-draft-tokens | Removing the forbidden token biases the output.
long-context-verification | The draft tokens of a request share one read of the cache.
price-of-tokens | Cached input costs far less than fresh input.
moe-best-batch | Medium batches are best, because all experts are read anyway and have room.
goodput | Goodput rises with load, peaks and then falls.
"""

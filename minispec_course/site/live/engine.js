"use strict";
// Speculative decoding with real models, in plain JavaScript: no library, no page and no worker in sight.
//
// It mirrors the Python package: the model is minispec/model.py, verifyChain is minispec/verify.py's `chain`, pick is
// minispec/sampling.py's, the drafters are minispec/drafters. tests/browser/test_live_engine.py holds both to the same
// tokens and the same verdicts.
//
// Shapes: T new tokens, S cached ones, V tokens of the vocabulary, d hidden size, H query heads, Hkv key/value heads,
// D dimensions of a head. A matrix is one flat typed array, row after row.

// ---- weights: gzipped safetensors in base64, as shipped -----------------------------------------------------------

async function unzip(base64) {
  const text = atob(base64), bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}

/** All tensors of a safetensors file by name: int8 matrices, and scales and norms in float32. */
function readTensors(buffer) {
  const start = 8 + Number(new DataView(buffer).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, start - 8)));
  const tensors = {};
  delete header.__metadata__;
  for (const [name, { dtype, data_offsets: [from, to] }] of Object.entries(header)) {
    const bytes = buffer.slice(start + from, start + to);
    tensors[name.replace(/^model\./, "")] = dtype === "I8" ? new Int8Array(bytes) : new Float32Array(bytes);
  }
  return tensors;
}

// ---- tokenizer: byte-level BPE ------------------------------------------------------------------------------------

const WORDS = /'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+/gu; // GPT-2's

/** The printable character that stands for each byte in a vocabulary: itself, or one from 256 on. */
function byteCharacters() {
  const printable = (b) => (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
  let next = 256;
  return Array.from({ length: 256 }, (_, byte) => String.fromCharCode(printable(byte) ? byte : next++));
}

class Tokenizer {
  constructor({ vocab, merges, end }) {
    this.vocab = vocab; // piece → id
    this.end = end; // the text of the end token, "<|end|>"
    this.rank = new Map(merges.map(([a, b], i) => [`${a} ${b}`, i]));
    this.characters = byteCharacters();
    const byteOf = new Map(this.characters.map((c, byte) => [c, byte]));
    this.bytes = []; // id → its bytes
    for (const [piece, id] of Object.entries(vocab)) {
      this.bytes[id] = piece === end ? [...new TextEncoder().encode(end)] : [...piece].map((c) => byteOf.get(c));
    }
  }

  encode(text) {
    const ids = [];
    text.split(this.end).forEach((part, i) => {
      if (i > 0) ids.push(this.vocab[this.end]);
      for (const [word] of part.matchAll(WORDS)) ids.push(...this.merge(word));
    });
    return ids;
  }

  /** One word: begin with its bytes, and merge the pair that was learnt first until none is left. */
  merge(word) {
    const pieces = [...new TextEncoder().encode(word)].map((byte) => this.characters[byte]);
    for (;;) {
      let best = Infinity, at = -1;
      for (let i = 0; i + 1 < pieces.length; i++) {
        const rank = this.rank.get(`${pieces[i]} ${pieces[i + 1]}`) ?? Infinity;
        if (rank < best) [best, at] = [rank, i];
      }
      if (at < 0) return pieces.map((piece) => this.vocab[piece]);
      pieces.splice(at, 2, pieces[at] + pieces[at + 1]);
    }
  }

  decode(ids) {
    return new TextDecoder().decode(new Uint8Array(ids.flatMap((id) => this.bytes[id])));
  }
}

// ---- model --------------------------------------------------------------------------------------------------------

/** x Wᵀ for x [T, columns]: [T, rows]. W is int8 with one scale per row, so a row's dot product is scaled once.
 * Every sum runs over the columns in order, however many tokens share the loop: a token's result does not depend on
 * what else is in its pass. Four sums at a time, or eight, keep the processor's adders busy. */
function linear({ weight: W, scale }, x, T) {
  const rows = scale.length, n = W.length / rows, y = new Float64Array(T * rows);
  let t = 0;
  for (; t + 4 <= T; t += 4) { // four tokens × two rows: a weight is converted once for four tokens
    const a = t * n, b = a + n, c = b + n, d = c + n;
    for (let r = 0; r < rows; r += 2) {
      const u = r * n, v = u + n;
      let ua = 0, ub = 0, uc = 0, ud = 0, va = 0, vb = 0, vc = 0, vd = 0;
      for (let i = 0; i < n; i++) {
        const wu = W[u + i], wv = W[v + i], xa = x[a + i], xb = x[b + i], xc = x[c + i], xd = x[d + i];
        ua += wu * xa; ub += wu * xb; uc += wu * xc; ud += wu * xd;
        va += wv * xa; vb += wv * xb; vc += wv * xc; vd += wv * xd;
      }
      const o = t * rows + r, su = scale[r], sv = scale[r + 1];
      y[o] = su * ua; y[o + rows] = su * ub; y[o + 2 * rows] = su * uc; y[o + 3 * rows] = su * ud;
      y[o + 1] = sv * va; y[o + rows + 1] = sv * vb; y[o + 2 * rows + 1] = sv * vc; y[o + 3 * rows + 1] = sv * vd;
    }
  }
  for (; t < T; t++) { // one token × four rows
    const a = t * n, o = t * rows;
    for (let r = 0; r < rows; r += 4) {
      const u = r * n, v = u + n, w = v + n, z = w + n;
      let su = 0, sv = 0, sw = 0, sz = 0;
      for (let i = 0; i < n; i++) {
        const xi = x[a + i];
        su += W[u + i] * xi; sv += W[v + i] * xi; sw += W[w + i] * xi; sz += W[z + i] * xi;
      }
      y[o + r] = scale[r] * su; y[o + r + 1] = scale[r + 1] * sv;
      y[o + r + 2] = scale[r + 2] * sw; y[o + r + 3] = scale[r + 3] * sz;
    }
  }
  return y;
}

/** Each of x [T, d] divided by its root mean square, times the learnt weight [d]. */
function rmsNorm(x, weight, eps) {
  const d = weight.length, y = new Float64Array(x.length);
  for (let start = 0; start < x.length; start += d) {
    let squares = 0;
    for (let i = 0; i < d; i++) squares += x[start + i] ** 2;
    const factor = 1 / Math.sqrt(squares / d + eps);
    for (let i = 0; i < d; i++) y[start + i] = x[start + i] * factor * weight[i];
  }
  return y;
}

/** RoPE: rotate each pair (x_i, x_{i + D/2}) of every head of x [T, heads · D] by its position's angle. */
function rotate(x, T, start, D, theta) {
  const width = x.length / T, half = D / 2;
  for (let i = 0; i < half; i++) {
    const frequency = Math.fround(theta ** ((-2 * i) / D)); // angles in float32, as in Python
    for (let t = 0; t < T; t++) {
      const angle = Math.fround((start + t) * frequency), cos = Math.cos(angle), sin = Math.sin(angle);
      for (let at = t * width + i; at < (t + 1) * width; at += D) {
        const a = x[at], b = x[at + half];
        x[at] = a * cos - b * sin;
        x[at + half] = b * cos + a * sin;
      }
    }
  }
}

/** Keys and values of every layer, [max length, Hkv · D] each. To rewind is to set `length` back. */
class Cache {
  constructor(layers, size) {
    this.length = 0;
    this.layers = Array.from({ length: layers }, () => ({ k: new Float32Array(size), v: new Float32Array(size) }));
  }

  copy() {
    const other = new Cache(this.layers.length, 0);
    other.layers = this.layers.map(({ k, v }) => ({ k: k.slice(), v: v.slice() }));
    return Object.assign(other, { length: this.length });
  }
}

class Model {
  constructor(config, tensors) {
    this.config = config;
    this.maxLength = config.max_position_embeddings;
    const weights = Object.keys(tensors).filter((name) => !name.endsWith(".scale"));
    this.parameters = weights.reduce((sum, name) => sum + tensors[name].length, 0);
    const matrix = (name) => ({ weight: tensors[`${name}.weight`], scale: tensors[`${name}.weight.scale`] });
    this.embedding = matrix("embed_tokens"); // the head, too: the two are tied
    this.norm = tensors["norm.weight"];
    this.layers = Array.from({ length: config.num_hidden_layers }, (_, n) => {
      const part = (name) => matrix(`layers.${n}.${name}`);
      return {
        norm1: tensors[`layers.${n}.input_layernorm.weight`],
        norm2: tensors[`layers.${n}.post_attention_layernorm.weight`],
        q: part("self_attn.q_proj"), k: part("self_attn.k_proj"), v: part("self_attn.v_proj"),
        o: part("self_attn.o_proj"),
        gate: part("mlp.gate_proj"), up: part("mlp.up_proj"), down: part("mlp.down_proj"),
      };
    });
  }

  newCache() {
    return new Cache(this.layers.length, this.maxLength * this.config.num_key_value_heads * this.config.head_dim);
  }

  /** One forward pass over new tokens [T]: their keys and values join the cache, and the logits after the last `scored`
   * of them come back, one Float64Array [V] each. */
  forward(tokens, cache, scored = 1) {
    const { hidden_size: d, rms_norm_eps: eps } = this.config, T = tokens.length;
    if (cache.length + T > this.maxLength) throw new Error(`the model's length is ${this.maxLength} tokens`);
    const x = new Float64Array(T * d);
    tokens.forEach((token, t) => {
      for (let i = 0; i < d; i++) x[t * d + i] = this.embedding.weight[token * d + i] * this.embedding.scale[token];
    });
    this.layers.forEach((layer, n) => {
      add(x, linear(layer.o, this.attend(layer, rmsNorm(x, layer.norm1, eps), T, cache.layers[n], cache.length), T));
      const h = rmsNorm(x, layer.norm2, eps), gate = linear(layer.gate, h, T), up = linear(layer.up, h, T);
      for (let i = 0; i < gate.length; i++) gate[i] *= up[i] / (1 + Math.exp(-gate[i])); // silu(gate) · up
      add(x, linear(layer.down, gate, T));
    });
    cache.length += T;
    const last = x.subarray((T - scored) * d), V = this.embedding.scale.length;
    const logits = linear(this.embedding, rmsNorm(last, this.norm, eps), scored); // [scored, V]
    return Array.from({ length: scored }, (_, t) => logits.subarray(t * V, (t + 1) * V));
  }

  /** Causal attention of T new tokens over the cached ones and themselves; H / Hkv query heads share one key/value
   * head. */
  attend(layer, h, T, { k: keys, v: values }, start) {
    const { num_attention_heads: H, num_key_value_heads: Hkv, head_dim: D, rope_parameters: rope } = this.config;
    const q = linear(layer.q, h, T), k = linear(layer.k, h, T), width = Hkv * D; // [T, H · D], [T, Hkv · D]
    rotate(q, T, start, D, rope.rope_theta);
    rotate(k, T, start, D, rope.rope_theta);
    keys.set(k, start * width);
    values.set(linear(layer.v, h, T), start * width);
    const out = new Float64Array(T * H * D), weights = new Float64Array(start + T);
    for (let t = 0; t < T; t++) {
      for (let head = 0; head < H; head++) {
        const own = (t * H + head) * D, shared = Math.floor((head * Hkv) / H) * D, S = start + t + 1;
        let largest = -Infinity, total = 0;
        for (let s = 0; s < S; s++) {
          let dot = 0;
          for (let i = 0, at = s * width + shared; i < D; i++) dot += q[own + i] * keys[at + i];
          weights[s] = dot / Math.sqrt(D);
          if (weights[s] > largest) largest = weights[s];
        }
        for (let s = 0; s < S; s++) total += weights[s] = Math.exp(weights[s] - largest);
        for (let s = 0; s < S; s++) {
          const weight = weights[s] / total;
          for (let i = 0, at = s * width + shared; i < D; i++) out[own + i] += weight * values[at + i];
        }
      }
    }
    return out;
  }
}

function add(x, y) {
  for (let i = 0; i < x.length; i++) x[i] += y[i];
}

// ---- from logits to a distribution, and from a distribution to a token --------------------------------------------

function argmax(values) {
  let best = 0;
  for (let i = 1; i < values.length; i++) if (values[i] > values[best]) best = i;
  return best;
}

/** softmax(logits / temperature), [V]. Temperature 0 is greedy: all mass on the argmax. */
function softmax(logits, temperature) {
  const best = argmax(logits);
  if (temperature === 0) return oneHot(best, logits.length);
  const probs = new Float32Array(logits.length);
  let total = 0;
  for (let i = 0; i < probs.length; i++) total += probs[i] = Math.exp((logits[i] - logits[best]) / temperature);
  for (let i = 0; i < probs.length; i++) probs[i] /= total;
  return probs;
}

function oneHot(token, V) {
  const probs = new Float32Array(V);
  probs[token] = 1;
  return probs;
}

/** The token at which the running total of a distribution passes u: one number samples one token. */
function pick(probs, u) {
  let total = 0, running = 0;
  for (let i = 0; i < probs.length; i++) total += probs[i];
  for (let i = 0; i < probs.length; i++) {
    running += probs[i];
    if (running / total > u) return i;
  }
  throw new Error(`u = ${u} is not in [0, 1)`);
}

/** Uniform numbers in [0, 1), the same for the same seed (mulberry32). */
function uniforms(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let z = Math.imul(state ^ (state >>> 15), state | 1);
    z ^= z + Math.imul(z ^ (z >>> 7), z | 61);
    return ((z ^ (z >>> 14)) >>> 0) / 2 ** 32;
  };
}

// ---- the rejection sampler ----------------------------------------------------------------------------------------

/** min(1, p(d) / q(d)) */
function acceptProbability(p, q, token) {
  return p[token] < q[token] ? p[token] / q[token] : 1;
}

/** norm([p − q]₊), [V]: what the draft left uncovered. Where p = q nothing is, nor is anything rejected: p. */
function residual(p, q) {
  const r = new Float64Array(p.length);
  let total = 0;
  for (let i = 0; i < r.length; i++) total += r[i] = Math.max(0, p[i] - q[i]);
  if (total === 0) return p;
  for (let i = 0; i < r.length; i++) r[i] /= total;
  return r;
}

/** Verify k draft tokens: p [k+1][V], q [k][V] (null: deterministic drafts), u [k+1]. The tokens that come out follow p
 * exactly, unless `wrong` replaces a rejected token from p instead of the residual, to see what breaks. */
function verifyChain(p, q, tokens, u, wrong = false) {
  const last = u[tokens.length];
  for (let i = 0; i < tokens.length; i++) {
    const qi = q ? q[i] : oneHot(tokens[i], p[i].length);
    if (u[i] >= acceptProbability(p[i], qi, tokens[i])) {
      return { accepted: i, token: pick(wrong ? p[i] : residual(p[i], qi), last), kind: "correction" };
    }
  }
  return { accepted: tokens.length, token: pick(p[tokens.length], last), kind: "bonus" };
}

// ---- drafters: propose(tokens, k, temperature, random) → {tokens, probs (or null), passes} ------------------------

/** A model drafts on a cache of its own, token by token. One that `sees` only the last few tokens of the sequence is a
 * real draft model, and a bad one. */
class ModelDrafter {
  constructor(model, end, sees = Infinity) {
    Object.assign(this, { model, end, sees, cache: model.newCache() });
  }

  propose(tokens, k, temperature, random) {
    if (this.sees < tokens.length) this.cache.length = 0;
    // What the cache lacks: the last token, the one before it if all drafts were accepted, at first the whole prompt.
    let missing = tokens.slice(-this.sees).slice(this.cache.length);
    const draft = { tokens: [], probs: [], logits: [], passes: 0 };
    while (draft.tokens.length < k && draft.tokens.at(-1) !== this.end) {
      const [logits] = this.model.forward(missing, this.cache);
      const q = softmax(logits, temperature), token = pick(q, random());
      draft.tokens.push(token);
      draft.probs.push(q);
      draft.logits.push(logits);
      draft.passes++;
      missing = [token];
    }
    return draft;
  }

  /** The sequence has `length` tokens now. Its last one, a correction or bonus, was never processed here. */
  settle(length) {
    this.cache.length = Math.min(this.cache.length, length - 1);
  }
}

/** Prompt lookup: what followed the most recent earlier occurrence of the last three tokens (or two, or one). */
class NGramDrafter {
  propose(tokens, k) {
    const last = tokens.length;
    for (let n = Math.min(3, last - 1); n >= 1; n--) {
      for (let end = last - 1; end >= n; end--) {
        let m = 0;
        while (m < n && tokens[end - 1 - m] === tokens[last - 1 - m]) m++;
        if (m === n) return { tokens: tokens.slice(end, end + k), probs: null, passes: 0 };
      }
    }
    return { tokens: [], probs: null, passes: 0 };
  }

  settle() {}
}

// ---- two ways to generate -----------------------------------------------------------------------------------------

/** A sequence that grows: its cache holds the prompt but for the last token, which opens the next pass. */
class Lane {
  constructor(model, prompt, { seed, temperature, end, length = Infinity }, cache) {
    const limit = Math.min(model.maxLength, prompt.length + length);
    Object.assign(this, { model, cache, temperature, end, limit, tokens: [...prompt], random: uniforms(seed) });
  }

  get done() {
    return this.tokens.at(-1) === this.end || this.tokens.length >= this.limit;
  }
}

/** Plain autoregressive decoding: one forward pass, one token. */
class PlainLane extends Lane {
  step() {
    const [logits] = this.model.forward(this.tokens.slice(-1), this.cache);
    this.tokens.push(pick(softmax(logits, this.temperature), this.random()));
    return this.tokens.at(-1);
  }
}

/** Speculative decoding: draft k tokens, verify them in one forward pass of the target, rewind what was rejected. */
class SpeculativeLane extends Lane {
  constructor(model, prompt, options, cache, drafter) {
    super(model, prompt, options, cache);
    Object.assign(this, { drafter, k: options.k });
  }

  cycle() {
    const start = performance.now(), length = this.tokens.length, room = this.limit - length - 1; // one is the bonus
    const draft = this.drafter.propose(this.tokens, Math.min(this.k, room), this.temperature, this.random);
    const middle = performance.now(), n = draft.tokens.length;
    const logits = this.model.forward([this.tokens.at(-1), ...draft.tokens], this.cache, n + 1); // the one pass
    const p = logits.map((row) => softmax(row, this.temperature)); // [n+1][V]
    const q = draft.probs ?? draft.tokens.map((token) => oneHot(token, p[0].length)); // [n][V]
    const u = Array.from({ length: n + 1 }, this.random);
    const verdict = verifyChain(p, q, draft.tokens, u);
    if (n === 0) verdict.kind = "big"; // no guess, so no bonus: a plain pass
    this.tokens.push(...draft.tokens.slice(0, verdict.accepted));
    if (this.done) verdict.token = null; // the end token was drafted and accepted: nothing follows it
    else this.tokens.push(verdict.token);
    this.cache.length = length + verdict.accepted; // rewind: the newest token has not been processed yet
    this.drafter.settle(this.tokens.length);
    const ms = { draft: middle - start, verify: performance.now() - middle };
    return { ...verdict, drafted: draft.tokens, draftPasses: draft.passes, p, q, u, logits: { p: logits, q: draft.logits }, ms };
  }
}

// ---- is it exact? -------------------------------------------------------------------------------------------------

/** The next two tokens, by speculative decoding: `after(tokens)` gives p and q after none or one of them. Two tokens,
 * not one, because what follows an accepted token and what follows a correction must be right, too. */
function speculativePair(after, random, wrong) {
  const output = [];
  while (output.length < 2) {
    const drafted = [], p = [], q = [];
    while (output.length + drafted.length < 2) {
      const next = after([...output, ...drafted]);
      p.push(next.p);
      q.push(next.q);
      drafted.push(pick(next.q, random()));
    }
    const u = Array.from({ length: drafted.length + 1 }, random);
    p.push(p[0]); // a bonus would be the third token, which is cut off: any distribution will do
    const { accepted, token } = verifyChain(p, q, drafted, u, wrong);
    output.push(...drafted.slice(0, accepted), token);
  }
  return output.slice(0, 2);
}

function plainPair(after, random) {
  const first = pick(after([]).p, random());
  return [first, pick(after([first]).p, random())];
}

/** χ² of counts against expected counts, and p: how often chance alone gives so much or more. */
function chiSquared(counts, expected) {
  const df = counts.length - 1;
  const x = counts.reduce((sum, count, i) => sum + (count - expected[i]) ** 2 / expected[i], 0);
  return { x, df, p: df > 0 ? upperGamma(df / 2, x / 2) : 1 };
}

/** Q(a, x) = Γ(a, x) / Γ(a) where 2a is whole: from Q(1, x) = e⁻ˣ, or from Q(½, x) = erfc √x, up by
 * Q(a + 1, x) = Q(a, x) + xᵃ e⁻ˣ / Γ(a + 1). */
function upperGamma(a, x) {
  if (x === 0) return 1;
  const whole = Number.isInteger(a);
  let at = whole ? 1 : 0.5, sum = whole ? Math.exp(-x) : erfc(Math.sqrt(x));
  let logGamma = whole ? 0 : Math.log(Math.PI) / 2; // of Γ(at)
  for (; at < a; at++) {
    logGamma += Math.log(at); // of Γ(at + 1)
    sum += Math.exp(at * Math.log(x) - x - logGamma);
  }
  return Math.min(1, sum);
}

/** The complementary error function, to a relative error of 1.2e-7 (Numerical Recipes, 6.2). */
function erfc(x) {
  const t = 1 / (1 + x / 2);
  const series = [
    -1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806, 0.27886807, -1.13520398, 1.48851587, -0.82215223,
    0.17087277,
  ];
  return t * Math.exp(-x * x + series.reduceRight((sum, coefficient) => sum * t + coefficient, 0));
}

"use strict";
// The messages of the live page: {id, do, …} comes in, {id, result} or {id, error} goes out, {id, progress} in between.
// What is asked of a run that another one has followed is not done, and answered by null: no run takes another's token.
// This text follows engine.js in one script, from which the page makes its worker.
//
//   load {weights}                                   LIVE.weights of live_weights.js
//   open {run, prompt, seed, temperature, k, drafter, length}  both lanes start from this prompt, to so many tokens
//   plain {run}                                      one token of the plain lane
//   cycle {run}                                      one cycle of the speculative lane
//   inspect {run, index} | {run, cycle, position}    p, q and what decided, of an output token or of a draft position
//   exact {prompt, temperature, samples, wrong}      both samplers (with the bad drafter) beside the exact distribution
//                                                    of the next two tokens
//   stop                                             ends a running `exact`

const KEPT = 200; // positions whose p and q are kept for `inspect`: 16 KB each
const BAD = 3; // the bad drafter is the draft model, which sees only so many of the last tokens
const NAMED = 12; // how many of the likeliest tokens `inspect` names, and pairs of tokens `exact`

const models = {};
let tokenizer, end, plain, speculative, positions, opened, running = 0;

const token = (id) => (id === null ? null : { id, text: tokenizer.decode([id]) });
const milliseconds = (start) => performance.now() - start;
const pause = () => new Promise((resolve) => setTimeout(resolve)); // lets a waiting message in, such as stop

const DRAFTERS = {
  "draft-model": () => new ModelDrafter(models["micro-draft"], end),
  bad: () => new ModelDrafter(models["micro-draft"], end, BAD),
  target: () => new ModelDrafter(models.micro, end),
  ngram: () => new NGramDrafter(),
};

const actions = {
  async load({ weights }) {
    const start = performance.now(), sizes = {};
    tokenizer = new Tokenizer(weights.tokenizer);
    end = tokenizer.vocab[weights.tokenizer.end];
    for (const [name, { config, data }] of Object.entries(weights.models)) {
      const model = (models[name] = new Model(config, readTensors(await unzip(data))));
      sizes[name] = { layers: model.layers.length, width: config.hidden_size, parameters: model.parameters };
    }
    return { vocab: models.micro.config.vocab_size, models: sizes, ms: milliseconds(start) };
  },

  open({ run, prompt, seed, temperature, k, drafter, length }) {
    opened = run;
    const start = performance.now(), ids = encode(prompt), options = { seed, temperature, k, end, length };
    const cache = prefilled(models.micro, ids);
    plain = new PlainLane(models.micro, ids, options, cache);
    speculative = new SpeculativeLane(models.micro, ids, options, cache.copy(), DRAFTERS[drafter]());
    positions = { cycles: 0, at: new Map(), output: [] };
    return { tokens: ids.map(token), ms: milliseconds(start) };
  },

  plain() {
    const start = performance.now();
    return { ...token(plain.step()), done: plain.done, ms: milliseconds(start) };
  },

  cycle() {
    const { drafted, accepted, token: emitted, kind, p, q, u, logits, draftPasses, ms } = speculative.cycle();
    // At temperature 0 all of p is on one token; what a visitor wants to see is how sure the models were.
    const seen = (probs, rows) => (speculative.temperature === 0 && rows ? rows.map((row) => softmax(row, 1)) : probs);
    remember(p, q, u, drafted, accepted, emitted, { p: seen(p, logits.p), q: seen(q, logits.q) });
    return {
      drafted: drafted.map((d, i) => ({ ...token(d), p: p[i][d], q: q[i][d], u: u[i], accepted: i < accepted })),
      accepted,
      emitted: emitted === null ? null : { ...token(emitted), kind },
      passes: 1,
      draftPasses,
      done: speculative.done,
      ms,
    };
  },

  /** Of a position after the rejected one, which the target never tested, `emitted` is null. */
  inspect({ index, cycle, position }) {
    const found = positions.at.get(index === undefined ? `${cycle}.${position}` : positions.output[index]);
    if (!found) throw new Error(`The page keeps the last ${KEPT} positions, and this is not one of them.`);
    const { p, q = new Float32Array(p.length), shown, drafted = null, u, last, emitted } = found, bonus = drafted === null;
    const r = bonus ? p : residual(p, q), accept = bonus ? null : acceptProbability(p, q, drafted);
    const likeliest = (weight) => [...p.keys()].sort((a, b) => weight(b) - weight(a)).slice(0, NAMED);
    const { p: ps, q: qs = q } = shown, larger = (i) => Math.max(ps[i], qs[i]);
    const top = likeliest((i) => larger(i) + (i === drafted || i === emitted)); // these two are always named
    const rest = (probs) => 1 - top.reduce((sum, i) => sum + probs[i], 0);
    return {
      top: top.sort((a, b) => larger(b) - larger(a)).map((i) => ({ ...token(i), p: ps[i], q: qs[i] })),
      rest: { p: Math.max(0, rest(ps)), q: bonus ? 0 : Math.max(0, rest(qs)) },
      drafted: bonus ? null : { ...token(drafted), p: ps[drafted], q: qs[drafted] },
      u,
      accept,
      accepted: !bonus && u < accept,
      residual: likeliest((i) => r[i]).filter((i) => r[i] > 0).map((i) => ({ ...token(i), r: r[i] })),
      correction: bonus ? null : token(pick(r, last)), // what a rejection emits here, whether there was one or not
      alpha: bonus ? null : p.reduce((sum, _, i) => sum + Math.min(p[i], q[i]), 0),
      emitted: token(emitted),
    };
  },

  async exact({ prompt, temperature, samples = 2000, wrong = false, seed = 0 }, report) {
    const mine = ++running, after = nextDistributions(encode(prompt), temperature), random = uniforms(seed);
    const cells = await likeliestPairs(after, samples, () => mine === running);
    const cellOf = new Map(cells.map(({ ids }, i) => [String(ids), i]));
    const counts = { plain: new Array(cells.length + 1).fill(0), speculative: new Array(cells.length + 1).fill(0) };
    let rested = performance.now();
    for (let done = 0; done < samples; done++) {
      if (milliseconds(rested) > 50) {
        report({ done, of: samples });
        await pause();
        rested = performance.now();
      }
      if (mine !== running) return { stopped: true };
      counts.plain[cellOf.get(String(plainPair(after, random))) ?? cells.length]++;
      counts.speculative[cellOf.get(String(speculativePair(after, random, wrong))) ?? cells.length]++;
    }
    const others = 1 - cells.reduce((sum, cell) => sum + cell.exact, 0);
    const exact = [...cells.map((cell) => cell.exact), Math.max(others, 1e-12)]; // not 0, which χ² divides by
    const expected = exact.map((share) => share * samples);
    return {
      tokens: cells.slice(0, NAMED).map(({ ids }, i) => ({
        id: ids, text: tokenizer.decode(ids), exact: exact[i],
        plain: counts.plain[i] / samples, speculative: counts.speculative[i] / samples,
      })),
      chi2: { plain: chiSquared(counts.plain, expected), speculative: chiSquared(counts.speculative, expected) },
    };
  },

  stop() {
    running++; // an `exact` that runs sees that it is no longer the newest
    return {};
  },
};

function encode(prompt) {
  const ids = tokenizer.encode(prompt), most = models.micro.maxLength - 1;
  if (ids.length === 0) throw new Error("Type how the story begins: the models need at least one token.");
  if (ids.length > most) throw new Error(`This beginning has ${ids.length} tokens; the models take at most ${most}.`);
  return ids;
}

/** A cache that holds the prompt but for its last token, which opens the first pass. */
function prefilled(model, ids) {
  const cache = model.newCache();
  if (ids.length > 1) model.forward(ids.slice(0, -1), cache);
  return cache;
}

/** Keep p and q of every position of a cycle, and which of its positions each output token came from. */
function remember(p, q, u, drafted, accepted, emitted, seen) {
  const cycle = positions.cycles++, last = u[drafted.length];
  p.forEach((probs, i) => {
    const came = i < accepted ? drafted[i] : i === accepted ? emitted : null; // null: after the rejection, never tested
    const shown = { p: seen.p[i], q: seen.q[i] };
    positions.at.set(`${cycle}.${i}`, { p: probs, q: q[i], shown, drafted: drafted[i], u: u[i], last, emitted: came });
    if (came !== null) positions.output.push(`${cycle}.${i}`);
  });
  for (const key of positions.at.keys()) {
    if (positions.at.size <= KEPT) break;
    positions.at.delete(key); // a Map goes through its keys in the order they came
  }
}

/** p and q after the prompt and none or one token more, each computed once: thousands of samples need few passes. The
 * bad drafter makes the harder test: the more often a draft token is rejected, the more depends on its replacement. */
function nextDistributions(ids, temperature) {
  const seen = ids.slice(-BAD), known = new Map();
  const readers = [[models.micro, ids], [models["micro-draft"], seen]].map(([model, prompt]) => {
    const cache = prefilled(model, prompt);
    return (first) => {
      cache.length = prompt.length - (first === undefined); // rewind to the prompt, or to before its last token
      return softmax(model.forward([first ?? prompt.at(-1)], cache)[0], temperature);
    };
  });
  return ([first]) => {
    if (!known.has(first)) known.set(first, { p: readers[0](first), q: readers[1](first) });
    return known.get(first);
  };
}

/** The pairs of next tokens that are expected five times or more, with their exact probabilities, likeliest first. χ²
 * needs that many of each, and of all others together. */
async function likeliestPairs(after, samples, wanted) {
  const least = 5 / samples, pairs = [], { p } = after([]);
  for (const first of p.keys()) {
    if (p[first] < least || !wanted()) continue;
    after([first]).p.forEach((share, second) => {
      if (p[first] * share >= least) pairs.push({ ids: [first, second], exact: p[first] * share });
    });
    await pause();
  }
  pairs.sort((a, b) => b.exact - a.exact);
  let others = 1 - pairs.reduce((sum, pair) => sum + pair.exact, 0);
  while (others < least && pairs.length > 1) others += pairs.pop().exact;
  return pairs;
}

onmessage = async ({ data: { id, do: name, ...rest } }) => {
  if (["plain", "cycle", "inspect"].includes(name) && rest.run !== opened) return postMessage({ id, result: null });
  try {
    if (!Object.hasOwn(actions, name)) throw new Error(`do: ${name}? There are ${Object.keys(actions).join(", ")}.`);
    postMessage({ id, result: await actions[name](rest, (progress) => postMessage({ id, progress })) });
  } catch (error) {
    postMessage({ id, error: error.message });
  }
};

"use strict";
// The messages of the live page: {id, do, …} comes in, {id, result} or {id, error} goes out, {id, progress} in between.
// This text follows engine.js in one script, from which the page makes its worker.
//
//   load {weights}                                   LIVE.weights of live_weights.js
//   open {prompt, seed, temperature, k, drafter}     both lanes start from this prompt
//   plain                                            one token of the plain lane
//   cycle                                            one cycle of the speculative lane
//   inspect {index} | {cycle, position}              p, q and what decided, of an output token or of a draft position
//   exact {prompt, temperature, samples, wrong}      both samplers beside the exact distribution of the next two tokens
//   stop                                             ends a running `exact`

const KEPT = 200; // positions whose p and q are kept for `inspect`: 16 KB each
const PAIRS = 12; // how many pairs of tokens `exact` names; and how many tokens `inspect` does

const models = {};
let tokenizer, end, plain, speculative, positions, running = 0;

const token = (id) => (id === null ? null : { id, text: tokenizer.decode([id]) });
const milliseconds = (start) => performance.now() - start;
const pause = () => new Promise((resolve) => setTimeout(resolve)); // lets a waiting message in, such as stop

const DRAFTERS = {
  "draft-model": () => new ModelDrafter(models["micro-draft"], end),
  bad: () => new ModelDrafter(models["micro-draft"], end, true),
  target: () => new ModelDrafter(models.micro, end),
  ngram: () => new NGramDrafter(),
};

const actions = {
  async load({ weights }) {
    const start = performance.now(), sizes = {};
    tokenizer = new Tokenizer(weights.tokenizer);
    end = tokenizer.vocab[weights.tokenizer.end];
    for (const [name, { config, data }] of Object.entries(weights.models)) {
      models[name] = new Model(config, readTensors(await unzip(data)));
      sizes[name] = { layers: config.num_hidden_layers, width: config.hidden_size, parameters: models[name].parameters };
    }
    return { vocab: models.micro.config.vocab_size, models: sizes, ms: milliseconds(start) };
  },

  open({ prompt, seed, temperature, k, drafter }) {
    const start = performance.now(), ids = encode(prompt), options = { seed, temperature, k, end };
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
    const { drafted, accepted, token: emitted, kind, p, q, u, draftPasses, draftMs, verifyMs } = speculative.cycle();
    remember(p, q, u, drafted, accepted, emitted);
    return {
      drafted: drafted.map((d, i) => ({ ...token(d), p: p[i][d], q: q[i][d], u: u[i], accepted: i < accepted })),
      accepted,
      emitted: emitted === null ? null : { ...token(emitted), kind },
      passes: 1,
      draftPasses,
      done: speculative.done,
      ms: { draft: draftMs, verify: verifyMs },
    };
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
function remember(p, q, u, drafted, accepted, emitted) {
  const cycle = positions.cycles++, last = u[drafted.length];
  p.forEach((probs, i) => {
    const came = i < accepted ? drafted[i] : i === accepted ? emitted : null; // null: after the rejection, never tested
    positions.at.set(`${cycle}.${i}`, { p: probs, q: q[i], drafted: drafted[i], u: u[i], last, emitted: came });
    if (came !== null) positions.output.push(`${cycle}.${i}`);
  });
  for (const key of positions.at.keys()) {
    if (positions.at.size <= KEPT) break;
    positions.at.delete(key); // a Map goes through its keys in the order they came
  }
}

onmessage = async ({ data: { id, do: name, ...rest } }) => {
  try {
    if (!Object.hasOwn(actions, name)) throw new Error(`do: ${name}? There are ${Object.keys(actions).join(", ")}.`);
    postMessage({ id, result: await actions[name](rest, (progress) => postMessage({ id, progress })) });
  } catch (error) {
    postMessage({ id, error: error.message });
  }
};

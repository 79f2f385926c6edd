// What test_live_engine.py asks of the live page's engine: of its parts in this page, and of the worker.

let tokenizer, ask;
const models = {};

async function load() {
    tokenizer = new Tokenizer(LIVE.weights.tokenizer);
    for (const [name, {config, data}] of Object.entries(LIVE.weights.models))
        models[name] = new Model(config, readTensors(await unzip(data)));
    const worker = new Worker(URL.createObjectURL(new Blob([LIVE.worker], {type: "text/javascript"}))), waiting = [];
    worker.onmessage = ({data: {id, progress, result, error}}) => progress || waiting[id](error ? {error} : result);
    ask = (what, given = {}) => new Promise((resolve) => {
        worker.postMessage({id: waiting.push(resolve) - 1, do: what, ...given});
    });
    await ask("load", {weights: LIVE.weights});
}

async function plain([prompt, count]) {
    const {tokens} = await ask("open", {prompt, seed: 0, temperature: 0, k: 4, drafter: "ngram"}), output = [];
    while (output.length < count && output.at(-1) !== 0) output.push((await ask("plain")).id);
    return [tokens.map(({id}) => id), output];
}

function farthest([name, ids, base64]) {
    const right = new Float32Array(Uint8Array.from(atob(base64), (c) => c.charCodeAt(0)).buffer);
    const found = models[name].forward(ids, models[name].newCache(), ids.length).flatMap((row) => [...row]);
    return found.reduce((most, logit, i) => Math.max(most, Math.abs(logit - right[i])), right.length - found.length);
}

const verdicts = (cases) => cases.map(([p, q, tokens, u, wrong]) => verifyChain(p, q, tokens, u, wrong));

// The page: what a visitor sees of the worker's answers. It computes no probability and makes up no number.
//
// Storyboard of one beat. Both lanes spend one forward pass of the big model on it:
//   1  guesses appear in the speculative lane, grey, one after the other
//   2  all of them are framed at once; each lane's meter gains a pass, and the plain lane its one token
//   3  guesses turn green from left to right; the first rejected one is struck out, and those after it are dropped
//   4  the big model's own token follows (a correction, or a bonus), and one sentence says what happened
// After the speculative lane has reached its length, the plain lane goes on alone until it is as long.
"use strict";

const $ = id => document.getElementById(id);
const LENGTH = 48;  // tokens of a story: its last cycle guesses no more than are missing
const STILL = matchMedia("(prefers-reduced-motion: reduce)").matches;
const PACES = {  // milliseconds
  slow: { draft: 200, check: 900, judge: 330, rest: 1500, spoken: true },
  medium: { draft: 35, check: 260, judge: 60, rest: 420 },
  fast: { draft: 0, check: 0, judge: 0, rest: 30 },
  none: { draft: 0, check: 0, judge: 0, rest: 0 },
};
if (STILL) Object.assign(PACES.slow, { draft: 0, check: 0, judge: 0, rest: 2500 });
const STORIES = [
  "Sara asked her mom for", "There was a big tree in the", "Once upon a time, there was a little dog named",
  "One day, Lily and Tom found a strange key", "Once upon a time, a small cat wanted to",
];
const GUESSERS = {
  "draft-model": "small model", ngram: "n-gram drafter", bad: "bad small model", target: "big model itself",
};
const guesser = mine => GUESSERS[mine.drafter];

// ---- the worker --------------------------------------------------------------------------------------------------

class Engine {
  constructor(source) {
    this.waiting = new Map();
    this.worker = new Worker(URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
    this.worker.onmessage = ({ data: { id, result, error, progress } }) => {
      const { done, fail, told } = this.waiting.get(id) ?? {};
      if (progress) return told?.(progress);
      this.waiting.delete(id);
      error ? fail?.(new Error(error)) : done?.(result);
    };
  }
  ask(what, given, told) {
    const id = (this.last = (this.last ?? 0) + 1);
    return new Promise((done, fail) => {
      this.waiting.set(id, { done, fail, told });
      this.worker.postMessage({ id, do: what, ...given });
    });
  }
}
let engine, run, runs = 0, machines = [];

/** What the worker answers about a run; null once another one has begun, here or there. */
async function ask(mine, what, given) {
  if (run !== mine) return null;
  const found = await engine.ask(what, { ...given, run: mine.id });
  return run === mine ? found : null;
}

// ---- a run: both lanes of one story ------------------------------------------------------------------------------

const gained = ({ accepted, emitted }) => accepted + (emitted ? 1 : 0);  // nothing follows an accepted end token
const written = run => run.cycles.reduce((sum, cycle) => sum + gained(cycle), 0);
const finished = run => run.ended || written(run) >= run.length;
const over = run => finished(run) && (run.plainEnded || run.plain.length >= written(run));

function settings() {
  return {
    prompt: $("prompt").value.trim() || STORIES[0], seed: Number($("seed").value) || 0, k: Number($("k").value),
    temperature: Number($("temperature").value), drafter: $("drafter").value,
  };
}

async function begin(chosen = settings()) {
  if (run) halt(run);
  const mine = run = { ...chosen, id: ++runs, length: LENGTH, cycles: [], plain: [], chosen: null, work: Promise.resolve() };
  if (!await ask(mine, "open", { ...chosen, length: LENGTH })) return mine;
  $("pair").textContent = `the ${guesser(mine)} guesses, one pass checks`;
  for (const lane of ["plain", "spec"]) {
    $(lane).querySelector(".tokens").replaceChildren(make("span", { class: "prompt" }, chosen.prompt));
    $(lane).querySelectorAll(".meter i").forEach(node => node.remove());
  }
  $("inside-body").hidden = true;
  tell("");
  counts(mine);
  choose();
  return mine;
}

/** One forward pass of the big model in each lane, shown at some pace. */
async function beat(mine, pace) {
  const cycle = finished(mine) ? null : await ask(mine, "cycle");
  const plain = mine.plainEnded ? null : await ask(mine, "plain");
  if (run !== mine) return;
  if (cycle) await guess(mine, cycle, pace);
  if (plain) {
    mine.plain.push(plain);
    mine.plainEnded = plain.done;
    $("plain").querySelector(".tokens").append(token("span", plain.text, "big new"));
    follow("plain");
    tick("plain").textContent = 1;
  }
  counts(mine, cycle !== null);
  if (cycle) await judge(mine, cycle, pace);
  counts(mine);
  if (cycle) {
    tell(sentence(mine, cycle), pace.spoken);
    await wait(mine, pace.rest);
  } else await wait(mine, Math.min(pace.rest, 45));
}

async function guess(mine, cycle, pace) {
  const lane = $("spec").querySelector(".tokens");
  lane.querySelectorAll(".dropped").forEach(node => node.remove());
  const n = mine.cycles.push(cycle) - 1, group = make("span", { class: "cycle" });
  lane.append(group);
  if (pace.check) tell(cycle.drafted.length ? `The ${guesser(mine)} guesses…` : "No guess this time…");
  for (const [position, { text }] of cycle.drafted.entries()) {
    group.append(token("button", text, "guess new", n, position));
    follow("spec");
    await wait(mine, pace.draft);
  }
  if (pace.check) tell(`${sentence(mine, cycle, true)}…`);
  group.classList.add("checking");
  tick("spec");
}

async function judge(mine, cycle, pace) {
  await wait(mine, pace.check);
  const group = $("spec").querySelector(".tokens").lastElementChild, n = mine.cycles.length - 1;
  group.classList.remove("checking");
  for (const [position, node] of [...group.children].entries()) {
    const kind = position < cycle.accepted ? "kept" : position === cycle.accepted ? "rejected" : "dropped";
    node.className = `token ${kind}`;
    name(node, cycle.drafted[position].text, kind);
    if (kind !== "dropped") await wait(mine, pace.judge);
    else node.disabled = true;
  }
  if (cycle.emitted) {
    const own = token("button", cycle.emitted.text, `${cycle.emitted.kind} new`, n, cycle.accepted);
    group.insertBefore(own, group.children[cycle.accepted + 1] ?? null);
    follow("spec");
  }
  const meter = $("spec").querySelector(".meter").lastElementChild;
  meter.textContent = gained(cycle);
  meter.classList.toggle("many", gained(cycle) > 1);
  mine.ended = cycle.done;
}

/** A lane has a fixed height, so that nothing below it moves: its newest line is in sight. */
function follow(lane) {
  const box = $(lane).querySelector(".tokens");
  box.scrollTop = box.scrollHeight;
}

function wait(mine, ms) {
  if (!ms || mine.hurry || run !== mine) return null;
  return new Promise(done => {
    const timer = setTimeout(done, ms);
    mine.wake = () => { clearTimeout(timer); done(); };
  });
}

/** Ends a play; the beat that is under way is finished at once. */
function halt(mine) {
  mine.playing = false;
  mine.hurry = true;
  mine.wake?.();
}

function then(mine, work) {  // one thing after the other: a second click waits for the beat under way
  mine.work = mine.work.then(() => run === mine && work()).catch(fail);
  return mine.work;
}

function play(mine) {
  mine.playing = true;
  buttons();
  return then(mine, async () => {
    mine.hurry = false;
    while (mine.playing && run === mine && !over(mine)) await beat(mine, pace(mine));
    if (run === mine) settle(mine);
  });
}

function step(mine) {
  return then(mine, async () => {
    mine.hurry = false;
    if (!over(mine)) await beat(mine, { ...PACES.slow, rest: 0 });
    while (run === mine && finished(mine) && !over(mine)) await beat(mine, PACES.medium);
    if (run === mine) settle(mine);
  });
}

async function skipTo(mine, count) {
  await then(mine, async () => {
    while (run === mine && mine.cycles.length < count && !finished(mine)) await beat(mine, PACES.none);
    while (run === mine && finished(mine) && !over(mine)) await beat(mine, PACES.none);
    if (run === mine) settle(mine);
  });
}

function pace(mine) {
  const chosen = $("speed").value;
  return PACES[chosen !== "auto" ? chosen : STILL || mine.cycles.length < 3 ? "slow" : "medium"];
}

/** What is brought up to date when a play or a step has come to rest. */
function settle(mine) {
  mine.playing = false;
  $("spec").querySelectorAll(".new").forEach(node => node.classList.remove("new"));
  if (over(mine)) tell(summary(mine), true);
  buttons();
  link(mine);
  choose();
  if (!mine.chosen) {
    const n = Math.max(0, mine.cycles.findIndex(({ drafted, accepted }) => accepted < drafted.length));  // a rejection
    const { drafted, accepted } = mine.cycles[n] ?? { drafted: [] };
    if (drafted.length) look(n, Math.min(accepted, drafted.length - 1));
  }
}

// ---- words -------------------------------------------------------------------------------------------------------

const plural = (n, what) => `${n} ${what}${n === 1 ? "" : what.endsWith("s") ? "es" : "s"}`;
const nth = n => n + (["th", "st", "nd", "rd"][n] ?? "th");

function sentence(mine, cycle, open = false) {
  const { drafted, accepted } = cycle, k = drafted.length, all = k === 1 ? "it" : k === 2 ? "both" : `all ${k}`;
  if (!k) return "No guess this time: the big model generated one token, as in the plain lane.";
  const checked = `The ${guesser(mine)} guessed ${plural(k, "token")}; the big model checked ${all} in one pass`;
  if (open) return checked;
  const from = mine.drafter === "target" ? `${k + 1} passes` : "one pass", gain = `${plural(gained(cycle), "token")} from ${from}.`;
  if (accepted === k) return `${checked}, kept ${all}${cycle.emitted ? " and added a bonus" : ""}: ${gain}`;
  if (accepted) return `${checked}, kept ${accepted} and corrected the ${nth(accepted + 1)}: ${gain}`;
  return `${checked} and corrected the ${k === 1 ? "guess" : "1st"}: one token, as in the plain lane.`;
}

function summary(mine) {
  const own = mine.cycles.flatMap(({ drafted, accepted, emitted }) => [...drafted.slice(0, accepted), emitted]);
  const output = own.filter(Boolean), plain = mine.plain.length, { checks, guesses } = passesOf(mine, mine.cycles);
  const passes = guesses ? `${checks + guesses}, ${checks} to check and ${guesses} to guess` : checks;
  if (output.every(({ id }, i) => id === mine.plain[i]?.id)) {
    return `✓ The same ${plain} tokens in both lanes. Plain needed ${plain} passes of the big model, speculative ${passes}.`;
  }
  if (!mine.temperature) return "✗ The lanes differ at temperature 0, which must never happen: please report it.";
  return `Plain needed ${plain} passes, speculative ${passes}. Sampled stories differ, but `
    + "each is as probable in one lane as in the other: see “Is it exact?”";
}

function tell(text, spoken = false) {
  $("happened").textContent = text;
  if (spoken) $("said").textContent = text;
}

/** Passes of the big model: those that check, and those of its own guesses. */
const passesOf = ({ drafter }, cycles) => (
  { checks: cycles.length, guesses: drafter === "target" ? sum(cycles.map(cycle => cycle.draftPasses)) : 0 });

/** Brings the numbers up to date. A pass that is still checking is not counted, as its tokens are not. */
function counts(mine, checking = false) {
  const cycles = checking ? mine.cycles.slice(0, -1) : mine.cycles, length = sum(cycles.map(gained));
  const { checks, guesses } = passesOf(mine, cycles), passes = checks + guesses;
  const kept = sum(cycles.map(({ accepted }) => accepted));
  const tested = sum(cycles.map(({ accepted, drafted }) => Math.min(accepted + 1, drafted.length)));  // to the first rejection
  const put = (lane, what, n) => { $(lane).querySelector(what).textContent = n; };
  put("plain", ".passes", mine.plain.length);
  put("plain", ".length", mine.plain.length);
  put("spec", ".passes", passes);
  put("spec", ".length", length);
  const rate = guesses ? `, ${checks} to check, ${guesses} to guess` : tested ? `, ${kept} of ${tested} tested guesses kept` : "";
  $("rate").textContent = passes ? `(${(length / passes).toFixed(1)} per pass${rate})` : "";
}

const tick = lane => $(lane).querySelector(".meter").appendChild(make("i", null, "?"));

// ---- tokens ------------------------------------------------------------------------------------------------------

const SPOKEN = {
  guess: "guess", kept: "guess kept", rejected: "guess rejected", dropped: "guess thrown away",
  correction: "correction by the big model", bonus: "bonus of the big model", big: "generated without a guess",
};

function token(tag, text, kind, cycle, position) {
  const node = make(tag, { class: `token ${kind}` }, make("span", null, shown(text)));
  if (tag === "button") {
    Object.assign(node.dataset, { cycle, position });
    node.type = "button";
    node.tabIndex = $("spec").querySelector("button[tabindex='0']") ? -1 : 0;
    name(node, text, kind.split(" ")[0]);
  }
  return node;
}
const name = (node, text, kind) => node.setAttribute("aria-label", `${shown(text).trim() || "space"}, ${SPOKEN[kind]}`);

$("spec").addEventListener("click", ({ target }) => {
  const node = target.closest("button.token");
  if (!node?.matches(".kept, .rejected, .correction, .bonus, .big")) return;
  look(Number(node.dataset.cycle), Number(node.dataset.position), node, true);
});
$("spec").addEventListener("keydown", event => {
  const all = [...$("spec").querySelectorAll("button.token:not(:disabled)")], at = all.indexOf(event.target);
  const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: all.length - 1 }[event.key];
  if (at < 0 || !all[to]) return;
  event.preventDefault();
  all[at].tabIndex = -1;
  all[to].tabIndex = 0;
  all[to].focus();
});

// ---- look inside -------------------------------------------------------------------------------------------------

async function look(cycle, position, node = null, asked = false) {
  const mine = run;
  mine.chosen = { cycle, position };
  const found = await ask(mine, "inspect", { cycle, position }).catch(error => (asked && fail(error), null));
  if (!found || mine.chosen.cycle !== cycle || mine.chosen.position !== position) return;
  node ??= $("spec").querySelector(`button[data-cycle='${cycle}'][data-position='${position}']`);
  $("spec").querySelectorAll("[aria-pressed]").forEach(other => other.removeAttribute("aria-pressed"));
  node?.setAttribute("aria-pressed", "true");
  $("inside-body").hidden = false;
  $("bars").replaceChildren(distributions(found, !mine.temperature));
  decision(mine, found);
  if (asked) {
    $("chosen").scrollIntoView({ behavior: STILL ? "auto" : "smooth", block: "nearest" });  // no farther: the next token is near
    $("said").textContent = $("chosen").textContent;
  }
}

function decision(mine, found) {
  const { drafted, accepted, emitted } = found, box = $("decision"), own = word(emitted?.text ?? "");
  if (!drafted) {
    const bonus = mine.cycles[mine.chosen.cycle].drafted.length;
    $("chosen").textContent = !bonus ? `${own} came from a plain pass, without a guess.`
      : `${own} is a bonus: all guesses before it were kept, and the same pass gave p once more.`;
    const how = mine.temperature ? "sampled from p" : "the big model’s likeliest token";
    return box.replaceChildren(make("p", null, `There was no guess to check here: ${own} was ${how}.`));
  }
  const guess = word(drafted.text);
  $("chosen").textContent = accepted ? `${guess} was guessed and kept.` : `${guess} was guessed and rejected; ${own} replaced it.`;
  mine.temperature ? sampled(mine, found, box) : greedily(mine, found, box);
}

/** The random number u as a handle, and what it decides. */
function sampled(mine, { top, drafted, u, accept, accepted, residual, correction, alpha }, box) {
  const named = sum(top.map(({ p, q }) => Math.min(p, q)));
  const is = x => (percent(x).startsWith("<") ? "below 0.1%" : percent(x));
  const guess = word(drafted.text), other = word(correction.text), limit = accept.toFixed(3);
  const slider = make("input", { type: "range", min: 0, max: 0.999, step: 0.001, value: u, "aria-label": "the random number u" });
  const zones = make("div", { class: "zones", "aria-hidden": "true" },
    make("span", { class: "yes", style: `width:${(100 * accept).toFixed(1)}%` }, accept > 0.15 ? "✓ keep" : ""),
    make("span", { class: "no" }, accept < 0.85 ? "✗ reject" : ""));
  const scale = make("div", { class: "scale" }, ...["0", "drag the random number u", "1"].map(text => make("span", null, text)));
  const says = make("p", { class: "says", "aria-live": "polite" }), real = slider.value;  // u as the slider rounds it
  const table = accept < 1 ? residuals(residual, correction) : "";
  const back = make("button", { type: "button" }, `Back to u = ${u.toFixed(3)}`);
  const draw = () => {
    const now = Number(slider.value), moved = slider.value !== real, keep = moved ? now < accept : accepted;
    const number = moved ? `If u were ${now.toFixed(3)}` : `The random number was u = ${u.toFixed(3)}`;
    const so = moved ? "" : "so ", was = moved ? "would be" : "was";
    says.textContent = keep ? `${number}, below ${limit}, ${so}${guess} ${was} kept.`
      : `${number}, not below ${limit}, ${so}${guess} ${was} rejected, and ${other} ${was} sampled from the residual.`;
    back.style.visibility = moved ? "visible" : "hidden";  // both keep their place: nothing moves under the hand
    if (table) table.style.visibility = keep ? "hidden" : "visible";
  };
  slider.addEventListener("input", draw);
  back.addEventListener("click", () => { slider.value = u; draw(); slider.focus(); });
  box.replaceChildren(
    make("p", null, `The ${guesser(mine)} gives ${guess} a probability q of ${is(drafted.q)}, the big model a p of `
      + `${is(drafted.p)}. So the guess is kept with probability min(1, p/q), which is ${is(accept)}.`),
    make("div", { class: "line" }, zones, slider, scale), says, back, table,
    make("p", { class: "note" }, `A guess at this position is kept with probability Σ min(p, q) = ${percent(alpha)}: `
      + `${percent(named)} in the green bars and ${percent(Math.max(0, alpha - named))} among all others.`));
  draw();
}

function greedily(mine, { drafted, accepted, emitted }, box) {
  const sample = make("button", { type: "button" }, "Sample instead, and look inside");
  sample.addEventListener("click", async () => {
    $("temperature").value = 0.8;
    outputs();
    skipTo(await begin(), LENGTH);
  });
  const guessed = accepted ? "the same: kept" : `${word(drafted.text)}: rejected`;
  box.replaceChildren(
    make("p", null, `At temperature 0 the big model always takes its likeliest token. Here that is ${word(emitted.text)}, `
      + `and the ${guesser(mine)} guessed ${guessed}.`),
    make("p", null, "So the text is the one that the big model would have generated alone. (On a GPU, passes over one token and "
      + "over five round differently, and a near-tie may fall the other way.) At a temperature above 0 tokens are "
      + "sampled: a random number decides, and the text still follows the big model’s probabilities."), sample);
}

// ---- is it exact? ------------------------------------------------------------------------------------------------

let testing = false;
async function exact() {
  if (testing) return engine.ask("stop");
  testing = true;
  const wrong = $("wrong").checked, bar = $("exact-progress"), temperature = run.temperature || 0.8;
  $("exact-run").textContent = "Stop";
  bar.hidden = false;
  bar.value = 0;
  try {
    const seed = Math.floor(2 ** 32 * Math.random()), asked = { samples: 2000, wrong, prompt: run.prompt, temperature, seed };
    const found = await engine.ask("exact", asked, ({ done, of }) => { bar.value = done / of; });
    if (found?.tokens) {
      const off = found.chi2.speculative.p < 0.001;
      $("exact-bars").replaceChildren(frequencies(found.tokens, off, asked.prompt, found.chi2.plain.df));
      const note = run.temperature ? [] : ["Sampled at temperature 0.8: at temperature 0 nothing is left to chance."];
      const words = [judged("Plain", found.chi2.plain), judged("Speculative", found.chi2.speculative), ...note];
      $("verdict").replaceChildren(...words.map(text => make("p", null, text)));
    }
  } catch (error) { fail(error); }
  testing = false;
  bar.hidden = true;
  $("exact-run").textContent = "Run 2,000 samples of each";
}

function judged(who, { x, df, p }) {
  const often = p < 0.001 ? "below 0.001" : p.toFixed(3), size = `χ² = ${x.toFixed(1)}, ${df} degrees of freedom, p-value ${often}`;
  if (p < 0.001) return `✗ ${who} is not exact: chance would almost never give this (${size}).`;
  return `✓ ${who}: no difference from the exact probabilities beyond chance (${size}).`;
}

// ---- time --------------------------------------------------------------------------------------------------------

const sum = values => values.reduce((a, b) => a + b, 0);
let moved = false;  // whether c or v are a visitor's own

/** Milliseconds of a plain pass, a guess and a check: of a machine that was measured, or of this page. */
function costs() {
  const machine = machines[$("machine").value], { plain, cycles } = run;
  if (machine) return { target: machine.target_ms, draft: machine.draft_ms, verify: machine.verify_ms[run.k] };
  const mean = values => sum(values) / values.length, target = mean(plain.map(one => one.ms));
  const checks = cycles.filter(({ drafted }) => drafted.length);  // the others are plain passes
  if (!checks.length) return { target, draft: 0, verify: target };
  return {
    target, verify: mean(checks.map(({ ms }) => ms.verify)),
    draft: sum(checks.map(({ ms }) => ms.draft)) / sum(checks.map(({ drafted }) => drafted.length)),
  };
}

/** A machine sets the sliders. */
function choose() {
  if (!run || ($("machine").value === "page" && !over(run))) return race();
  const { target, draft, verify } = costs();
  $("c").value = { ngram: 0, target: 1 }[run.drafter] ?? draft / target;
  $("v").value = verify / target;
  moved = false;
  race();
}

function race(seconds = 0) {
  const c = Number($("c").value), v = Number($("v").value), machine = machines[$("machine").value];
  for (const [id, cost] of [["c", c], ["v", v]]) document.querySelector(`output[for=${id}]`).textContent = `${cost.toFixed(2)} plain passes`;
  if (!run?.cycles.length || !over(run)) {
    $("race-told").textContent = `The race is run with a whole story: ${run?.playing ? "it begins when the one above ends." : "press Play above."}`;
    return $("race-bars").replaceChildren();
  }
  const { target } = costs(), plain = Array.from({ length: written(run) }, () => ["t", target]);
  const spec = run.cycles.flatMap(({ drafted: { length } }) => (
    length ? [["d", c * target * length], ["w", v * target]] : [["t", target]]));  // without a guess, a plain pass
  $("race-bars").replaceChildren(...tracks([["Plain", plain], ["Speculative", spec]], STILL ? 0 : seconds),
    key(["t", "a plain pass"], ["d", "guessing"], ["w", "checking"]));
  const lasts = pieces => sum(pieces.map(([, ms]) => ms)), gain = lasts(plain) / lasts(spec);
  const be = moved || machine ? "would be" : "was", slower = seconds * 1000 / Math.max(lasts(plain), lasts(spec));
  const won = gain > 1.05 ? `Speculative ${be} ${gain.toFixed(1)} times as fast.`
    : gain < 0.95 ? `Speculative ${be} slower, with ${(1 / gain).toFixed(1)} times the time of plain.` : "No gain, no loss.";
  const own = { ngram: "Copying needs no model, so c is 0; v", target: "The big model drafts, so c is 1; v" }[run.drafter] ?? (machine ? `c (${machine.guesser}), v` : "");
  const why = moved ? "The guesses are those of the story above, c and v are yours, the time of a plain pass is the machine’s."
    : machine ? `The guesses are those of the story above. ${own} and the time of a pass were measured on another model: ${machine.name}, ${machine.under}.`
    : `In this page arithmetic is the limit: a check took ${v.toFixed(1)} plain passes. That varies from run to run.`;
  const shown = seconds && !STILL ? ` (Shown ${slower.toFixed(slower < 10 ? 1 : 0)} times slower.)` : "";
  $("race-told").textContent = `${won} ${why}${shown}`;
}

// ---- share, and the controls -------------------------------------------------------------------------------------

const HELD = ["prompt", "seed", "temperature", "k", "drafter"];

function link(mine) {
  const held = new URLSearchParams([...HELD.map(name => [name, mine[name]]), ["step", mine.cycles.length]]);
  const url = `${location.href.split("#")[0]}#${held}`;
  try { history.replaceState(null, "", url); } catch { /* some browsers refuse it for a file */ }
  $("link").value = url;
}

/** Settings from the address; the number of cycles to replay, or null where there is none. */
function fromAddress() {
  const held = new URLSearchParams(location.hash.slice(1));
  for (const name of HELD) if (held.has(name)) $(name).value = held.get(name);
  if (!$("drafter").value) $("drafter").value = "draft-model";
  outputs();
  return held.has("step") ? Math.min(Number(held.get("step")) || 0, LENGTH) : null;
}

function outputs() {
  for (const id of ["k", "temperature"]) document.querySelector(`output[for=${id}]`).textContent = $(id).value;
}

function buttons() {
  $("play").textContent = run.playing ? "❚❚ Pause" : over(run) ? "↻ Again" : "▶ Play";
  for (const id of ["play", "step", "other", "exact-run", "copy"]) $(id).disabled = false;
}

function fail(error) {
  console.error(error);
  tell(`Something went wrong: ${error.message}`, true);
}

const changed = () => { const now = settings(); return HELD.some(name => now[name] !== run[name]); };

$("start").addEventListener("submit", async event => {
  event.preventDefault();
  if (run.playing && !changed()) return halt(run);
  play(changed() || over(run) ? await begin() : run);
});
$("step").addEventListener("click", async () => {
  if (run.playing) return halt(run);
  if (!$("start").reportValidity()) return;
  step(changed() || over(run) ? await begin() : run);
});
let story = 0;  // the last of ours that was shown
$("other").addEventListener("click", async () => {
  $("prompt").value = STORIES[story = (story + 1) % STORIES.length];
  play(await begin());
});
for (const id of ["k", "temperature", "drafter", "seed"]) {
  $(id).addEventListener("input", outputs);
  $(id).addEventListener("change", async () => play(await begin()));
}
$("exact-run").addEventListener("click", exact);
$("wrong").addEventListener("change", () => {  // what stands there was found with the other sampler
  if (testing) engine.ask("stop");
  $("verdict").replaceChildren();
  $("exact-bars").replaceChildren();
});
$("machine").addEventListener("change", choose);
for (const id of ["c", "v"]) $(id).addEventListener("input", () => { moved = true; race(); });
$("race").addEventListener("click", () => race(6));
$("copy").addEventListener("click", async () => {
  link(run);  // of the step that is shown, also while the story plays
  $("link").select();
  try { await navigator.clipboard.writeText($("link").value); $("copied").textContent = "Copied."; }
  catch { $("copied").textContent = document.execCommand("copy") ? "Copied." : "Press Ctrl+C."; }
});
addEventListener("hashchange", async () => {
  if (!location.hash.includes("=")) return;  // a link to a part of this page
  const at = fromAddress();
  skipTo(await begin(), at ?? 0);
});

// ---- the beginning -----------------------------------------------------------------------------------------------

async function start() {
  engine = new Engine(LIVE.worker);
  const at = fromAddress(), { models } = await engine.ask("load", { weights: LIVE.weights });
  const millions = name => (models[name].parameters / 1e6).toFixed(1);
  $("models").textContent = `Here the big model has ${millions("micro")} million parameters, the small one ${millions("micro-draft")}.`;
  machines = LIVE.machines ?? [];
  const names = [...machines.map(({ name }, i) => [i, name]), ["page", "this page, as it ran"]];
  $("machine").replaceChildren(...names.map(([value, name]) => make("option", { value }, name)));
  const mine = await begin();
  buttons();
  if (at !== null) skipTo(mine, at);
  else if (!STILL) play(mine);
  else tell("Press Play, or One step.");
}

$("prompt").value = STORIES[0];
const script = make("script", { src: "live_weights.js" });  // 8 MB: the page is drawn before it arrives
script.onload = () => start().catch(fail);
script.onerror = () => fail(new Error("live_weights.js is missing beside this page"));
document.body.append(script);

// Tables with bars in them, made from what the worker answered: a screen reader can read a table.
"use strict";

function make(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) node.setAttribute(name, value);
  node.append(...children.filter(child => child !== null));
  return node;
}
const part = (name, share) => make("i", { class: name, style: `width:${(100 * share).toFixed(2)}%` });
const percent = x => (x >= 0.0995 || x === 0 ? Math.round(100 * x) : x >= 0.00095 ? (100 * x).toFixed(1) : "<0.1") + "%";
const shown = text => text.replace(/\n/g, "↵").replace("<|end|>", " (end)") || "∅";
const word = text => `“${shown(text).trim() || "␣"}”`;
const cell = text => make("td", null, text), named = text => make("th", { scope: "row" }, shown(text));
const bar = (kind, ...parts) => make("td", { class: "bar" }, make("div", { class: kind }, ...parts));
const heads = (...names) => make("thead", null, make("tr", null,
  ...names.map((name, i) => make("th", { scope: "col", class: i === 1 ? "bar" : "" }, name))));
const key = (...items) => make("ul", { class: "key" },
  ...items.map(([name, text]) => make("li", null, make("i", { class: name }), text)));

/** p and q over the likeliest tokens. Green is what both cover, the blue end the residual, the striped end too much. */
function distributions({ top, rest, drafted }, greedy) {
  const most = Math.max(...top.map(t => Math.max(t.p, t.q)), 1e-9), q = share => (drafted ? [cell(percent(share))] : []);
  const rows = top.map(one => make("tr", drafted?.id === one.id ? { class: "here" } : null, named(one.text),
    greedy ? bar("pair", drafted && part("plain", one.q / most), part("under", one.p / most))
      : bar("stack", part("both", Math.min(one.p, one.q) / most), part("under", Math.max(0, one.p - one.q) / most),
        part("over", Math.max(0, one.q - one.p) / most)),
    ...q(one.q), cell(percent(one.p))));
  const others = make("tr", null, named("all others"), make("td"), ...q(rest.q), cell(percent(rest.p)));
  const head = drafted ? heads("token", "probability", "q, guess", "p, big") : heads("token", "probability", "p, big");
  const colours = [["both", "min(p, q): in both"], ["over", "guessed too often"], ["under", "guessed too rarely: the residual"]];
  return make("div", null,
    make("table", null, make("caption", null, "How probable is each token here?"), head, make("tbody", null, ...rows, others)),
    !drafted ? key(["under", "p, the big model"])
      : greedy ? key(["plain", "q, the guesser"], ["under", "p, the big model"]) : key(...colours));
}

/** What the target replaces a rejected guess with: the likeliest tokens of the residual. */
function residuals(residual, emitted) {
  const most = Math.max(...residual.map(t => t.r), 1e-9);
  const rows = residual.slice(0, 5).map(({ id, text, r }) => make("tr", emitted?.id === id ? { class: "here" } : null,
    named(text), bar("stack", part("under", r / most)), cell(percent(r))));
  const others = 1 - residual.slice(0, 5).reduce((sum, { r }) => sum + r, 0);
  if (residual.length > 5) rows.push(make("tr", null, named("all others"), make("td"), cell(percent(Math.max(0, others)))));
  return make("table", null, make("caption", null, "The residual, from which the replacement is sampled"),
    make("tbody", null, ...rows));
}

/** Counts of both samplers beside the exact probability (the black line). */
function frequencies(tokens, off, after, cells) {
  const most = 1.08 * Math.max(...tokens.map(t => Math.max(t.exact, t.plain, t.speculative)), 1e-9);
  const rows = tokens.map(({ text, exact, plain, speculative }) => make("tr", null, named(text),
    bar("pair", part("plain", plain / most), part(off ? "off" : "spec", speculative / most),
      make("b", { style: `left:${(100 * exact / most).toFixed(2)}%` })),
    ...[exact, plain, speculative].map(share => cell(percent(share)))));
  return make("div", null,
    make("table", null, make("caption", null, `After “${after}”: the ${tokens.length} likeliest of ${cells} pairs that were counted`), heads("next two", "how often", "exact", "plain", "spec."), make("tbody", null, ...rows)),
    key(["plain", "plain"], [off ? "off" : "spec", "speculative"], ["exact", "exact probability"]));
}

/** Bars on one axis of time; `pieces` are [class, milliseconds]. The slower one plays for so many seconds, 0: not at all. */
function tracks(lanes, seconds) {
  const total = pieces => pieces.reduce((sum, [, ms]) => sum + ms, 0);
  const longest = Math.max(...lanes.map(([, pieces]) => total(pieces)), 1e-9);
  const duration = ms => (longest >= 1000 ? `${(ms / 1000).toFixed(2)} s` : `${ms.toFixed(longest >= 100 ? 0 : 1)} ms`);
  return lanes.map(([name, pieces]) => {
    const ms = total(pieces), share = ms / longest;
    const style = `width:${(100 * share).toFixed(2)}%;animation-duration:${(seconds * share).toFixed(2)}s`;
    return make("div", { class: seconds ? "track running" : "track" },
      make("div", null, make("b", null, name), ` ${duration(ms)}`),
      make("div", { class: "bar", "aria-hidden": "true", style }, ...pieces.map(([kind, piece]) => part(kind, piece / ms))));
  });
}

// Tables with bars in them, made from what the worker answered. A chart is a table, so that a screen reader can read it.
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
const row = (kind, cells) => make("tr", null, ...cells.map(cell => make(kind, cell === "" ? null : { scope: "col" }, cell)));
const key = (...items) => make("ul", { class: "key" }, ...items.map(([name, text]) => make("li", null, make("i", { class: name }), text)));

/** p and q over the likeliest tokens: green is what both cover, the blue end is the residual, the striped end is too much. */
function distributions({ top, rest, drafted }) {
  const most = Math.max(...top.map(t => Math.max(t.p, t.q)), 1e-9);
  const rows = top.map(({ id, text, p, q }) => make("tr", drafted?.id === id ? { class: "here" } : null,
    make("th", { scope: "row" }, shown(text)),
    make("td", { class: "bar" }, make("div", { class: "stack" }, part("both", Math.min(p, q) / most),
      p > q ? part("under", (p - q) / most) : part("over", (q - p) / most))),
    ...(drafted ? [make("td", null, percent(q))] : []), make("td", null, percent(p))));
  const others = make("tr", null, make("th", { scope: "row" }, "all others"), make("td", null),
    ...(drafted ? [make("td", null, percent(rest.q))] : []), make("td", null, percent(rest.p)));
  const names = drafted ? ["token", "", "q, small", "p, big"] : ["token", "", "p, big"];
  const head = make("thead", null, row("th", names.map(name => name || "probability")));
  head.querySelectorAll("th")[1].className = "bar";
  const table = make("table", null, make("caption", null, "How probable is each token here?"), head, make("tbody", null, ...rows, others));
  const colours = drafted ? [["both", "min(p, q): in both"], ["over", "guessed too often"], ["under", "guessed too rarely: the residual"]] : [["under", "p"]];
  return make("div", null, table, key(...colours));
}

/** What the target replaces a rejected guess with: the likeliest tokens of the residual. */
function residuals(residual, emitted) {
  const most = Math.max(...residual.map(t => t.r), 1e-9);
  const rows = residual.slice(0, 5).map(({ id, text, r }) => make("tr", emitted?.id === id ? { class: "here" } : null,
    make("th", { scope: "row" }, shown(text)), make("td", { class: "bar" }, make("div", { class: "stack" }, part("under", r / most))),
    make("td", null, percent(r))));
  return make("table", null, make("caption", null, "The residual, from which the replacement is sampled"), make("tbody", null, ...rows));
}

/** Counts of both samplers beside the exact probability (the black line). */
function frequencies(tokens, off) {
  const most = 1.08 * Math.max(...tokens.map(t => Math.max(t.exact, t.plain, t.speculative)), 1e-9);
  const rows = tokens.map(({ text, exact, plain, speculative }) => make("tr", null, make("th", { scope: "row" }, shown(text)),
    make("td", { class: "bar" }, make("div", { class: "pair" }, part("plain", plain / most), part(off ? "off" : "spec", speculative / most),
      make("b", { style: `left:${(100 * exact / most).toFixed(2)}%` }))),
    make("td", null, percent(exact)), make("td", null, percent(plain)), make("td", null, percent(speculative))));
  const head = make("thead", null, row("th", ["next two", "how often", "exact", "plain", "spec."]));
  head.querySelectorAll("th")[1].className = "bar";
  return make("div", null, make("table", null, head, make("tbody", null, ...rows)),
    key(["plain", "plain"], [off ? "off" : "spec", "speculative"], ["exact", "exact probability"]));
}

/** Two bars on one axis of time; `pieces` are [class, milliseconds]. `seconds`: how long the slower one plays, 0 for not at all. */
function tracks(lanes, seconds) {
  const total = pieces => pieces.reduce((sum, [, ms]) => sum + ms, 0);
  const longest = Math.max(...lanes.map(([, pieces]) => total(pieces)), 1e-9);
  return lanes.map(([name, pieces]) => {
    const ms = total(pieces), bar = make("div", { class: "bar", "aria-hidden": "true", style: `width:${(100 * ms / longest).toFixed(2)}%;animation-duration:${(seconds * ms / longest).toFixed(2)}s` },
      ...pieces.map(([kind, piece]) => part(kind, piece / Math.max(ms, 1e-9))));
    return make("div", { class: seconds ? "track running" : "track" }, make("div", null, make("b", null, name), ` ${duration(ms)}`), bar);
  });
}
const duration = ms => ms >= 1000 ? `${(ms / 1000).toFixed(2)} s` : ms >= 10 ? `${Math.round(ms)} ms` : `${ms.toFixed(2)} ms`;

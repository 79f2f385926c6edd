// Widgets and predictions of the site. A widget's pictures were drawn ahead, by the Python function of the notebook's
// widget; this script shows the one that belongs to where its controls stand. Three widgets compute in the page.
(function () {
    "use strict";
    const F = window.MinispecFormulas, base = new URL(".", document.currentScript.src);
    const waiting = {};  // file of a widget → what to do with its data

    window.minispecData = (key, text) => waiting[key](text);

    function node(tag, attributes = {}, ...children) {
        const made = document.createElement(tag);
        for (const [name, value] of Object.entries(attributes)) if (value !== undefined) made.setAttribute(name, value);
        made.append(...children);
        return made;
    }

    const loaded = {};
    function load(name) {  // scripts, since a page of a folder may not fetch its neighbours
        return loaded[name] ??= new Promise((resolve, reject) => {
            const script = node("script", {src: new URL(name, base).href});
            script.onload = resolve;
            script.onerror = () => reject(new Error(`${name} is missing`));
            document.head.append(script);
        });
    }

    async function unpack(text) {
        const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
        const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
        const {pool, pictures} = JSON.parse(await new Response(stream).text());
        const entries = (parts) => Object.fromEntries(Object.entries(parts).map(([key, i]) => [key, structuredClone(pool[i])]));
        return pictures.map((one) => () => one.h
            ? {html: one.h.map((i) => pool[i]).join(""), words: one.w}
            : {data: one.d.map(entries), layout: entries(one.l), words: one.w});
    }

    function control(knob, changed) {
        const place = {at: knob.start}, last = knob.shown.length - 1;
        const set = (at) => { place.at = at; changed(); };
        if (knob.kind === "fixed" || last < 1) return place;
        if (knob.kind === "menu") {
            const menu = node("select", {}, ...knob.shown.map((text, i) => node("option", {value: i}, text)));
            menu.value = knob.start;
            menu.addEventListener("change", () => set(Number(menu.value)));
            place.element = node("label", {}, knob.label, menu);
        } else if (knob.kind === "check") {
            const box = node("input", {type: "checkbox"});
            box.checked = Boolean(knob.start);
            box.addEventListener("change", () => set(Number(box.checked)));
            place.element = node("label", {}, box, knob.label);
        } else {
            const slider = node("input", {type: "range", min: 0, max: last, step: 1, value: knob.start});
            const said = node("output", {}), show = () => {
                said.textContent = knob.shown[slider.value];
                slider.setAttribute("aria-valuetext", knob.shown[slider.value]);
            };
            slider.value = knob.start;
            slider.addEventListener("input", () => { show(); set(Number(slider.value)); });
            show();
            place.element = node("label", {}, knob.label, slider, said);
            if (knob.play) {
                const button = node("button", {type: "button"}, "▶ play");
                let timer = null;
                const stop = () => { clearInterval(timer); timer = null; button.textContent = "▶ play"; };
                button.addEventListener("click", () => {
                    if (timer) return stop();
                    if (Number(slider.value) === last) slider.value = -1;
                    const step = () => {
                        slider.value = Number(slider.value) + 1; show(); set(Number(slider.value));
                        if (Number(slider.value) >= last) stop();
                    };
                    button.textContent = "❚❚ stop";
                    timer = setInterval(step, knob.play);
                });
                place.element = node("div", {class: "ms-player"}, button, place.element);
            }
        }
        return place;
    }

    function keepHeight(node) {  // never lower than it was, at this width: what is below stays where it is
        if (node.dataset.width !== String(innerWidth)) { node.style.minHeight = ""; node.dataset.width = innerWidth; }
        node.style.minHeight = `${Math.ceil(Math.max(parseFloat(node.style.minHeight) || 0, node.getBoundingClientRect().height))}px`;
    }

    function parted(picture) {  // on a phone: the two halves of a wide picture, one below the other
        for (const whole of picture.querySelectorAll("svg[data-cut]")) {
            const [, , wide, tall] = whole.getAttribute("viewBox").split(" ").map(Number), cut = Number(whole.dataset.cut);
            if (picture.clientWidth >= 0.75 * wide) continue;
            const half = whole.cloneNode(true);
            whole.after(half);
            [[whole, 0, cut], [half, cut, wide]].forEach(([part, from, to]) => {
                part.setAttribute("viewBox", `${from} 0 ${to - from} ${tall}`);
                for (const [name, size] of [["width", to - from], ["height", tall]]) part.setAttribute(name, size);
            });
        }
    }

    function widget(root) {
        const {knobs, values, live} = JSON.parse(root.querySelector("script").textContent);
        const picture = root.querySelector(".ms-picture"), words = root.querySelector(".ms-words");
        let pictures = null, busy = false, again = false;
        const places = knobs.map((knob) => control(knob, () => { start(); draw(); }));
        root.querySelector(".ms-controls").append(...places.map((place) => place.element).filter(Boolean));

        async function draw() {
            if (!pictures) return;
            if (busy) { again = true; return; }  // a drag never queues more than one picture
            busy = true;
            const at = places.reduce((sum, place, i) => knobs[i].live ? sum : sum * knobs[i].shown.length + place.at, 0);
            let now = pictures[at]();
            if (live) {
                const chosen = Object.fromEntries(knobs.map((knob, i) => [knob.name, values[i] ? values[i][places[i].at] : places[i].at]));
                now = LIVE[live](now, chosen);
            }
            if (now.html !== undefined) {
                picture.innerHTML = now.html;
                parted(picture);
            }
            else {
                const colour = getComputedStyle(picture).color;  // the theme's, which is readable on its background
                now.layout.font = {...now.layout.font, color: colour};
                now.layout.autosize = true;
                delete now.layout.width;
                let plot = picture.querySelector(".ms-plot");
                if (!plot) picture.replaceChildren(plot = node("div", {class: "ms-plot"}));
                await Plotly.react(plot, now.data, now.layout, {displayModeBar: false, responsive: true});
            }
            if (now.words) picture.setAttribute("aria-label", now.words);
            if (words.textContent !== now.words) words.textContent = now.words;
            [picture, words].forEach(keepHeight);
            root.dataset.at = places.map((place) => place.at).join(",");
            root.dataset.drawn = Number(root.dataset.drawn || 0) + 1;
            busy = false;
            if (again) { again = false; draw(); }
        }

        let started = false;
        async function start() {
            if (started) return;
            started = true;
            root.dataset.state = "loading";
            const data = new Promise((resolve) => { waiting[root.dataset.key] = resolve; });
            try {
                await load(`widgets/${root.dataset.key}.js`);
                if (root.dataset.kind === "figure") await load("plotly.min.js");
                pictures = await unpack(await data);
                await draw();
                root.dataset.state = "ready";
            } catch (error) {
                root.dataset.state = "failed";
                words.textContent = `This widget could not be loaded: ${error.message}`;
            }
        }
        new MutationObserver(draw).observe(document.documentElement, {attributeFilter: ["data-theme"]});
        return start;
    }

    // ------------------------------------------------------------ computed in the page

    const fixed = (x, digits) => x.toFixed(digits);

    const LIVE = {
        surface(picture, {alpha, c, v, cost}) {  // viz/surface.py: the drawing, with its elements of a data-part redrawn
            const paid = F.verifyCost(v, cost === "grows"), longest = 16, tidy = (x) => String(Number(x.toFixed(2)));
            const lengths = [...Array(longest).keys()].map((i) => i + 1), alphas = [...Array(50).keys()].map((i) => i / 50);
            const clamp = (x, low, high) => Math.min(Math.max(x, low), high), across = (k) => (k - 0.5) / longest;
            const onMap = ([k, a]) => `${fixed(54 + 290 * across(k), 1)} ${fixed(66 + 270 * (1 - clamp(a, 0, 1)), 1)}`;
            const up = (gain) => Math.log(clamp(gain, 0.1, 16) / 0.1) / Math.log(160);
            const onCut = ([k, gain]) => `${fixed(478 + 268 * across(k), 1)} ${fixed(66 + 270 * (1 - up(gain)), 1)}`;
            const cells = Array.from({length: 25}, () => ""), wide = 290 / longest, tall = 270 / 50;
            alphas.forEach((a, i) => lengths.forEach((k, j) => {
                const shade = Math.round(24 * clamp(0.5 + Math.log2(F.speedup(a, k, c, paid(k))) / 4, 0, 1));
                cells[shade] += `M${tidy(54 + j * wide)} ${tidy(66 + 270 - (i + 1) * tall)}h${tidy(wide)}v${tidy(tall)}h-${tidy(wide)}z`;
            }));
            const edge = lengths.map((k) => [k, F.breakEven(k, c, paid(k))]).filter(([, a]) => a <= 1);
            const best = alphas.map((a) => [F.best(a, c, paid, longest)[1], a]).filter(([k]) => k);
            const cut = lengths.map((k) => [k, F.speedup(alpha, k, c, paid(k))]), [gain, k] = F.best(alpha, c, paid, longest);
            const lines = {edge: edge.map(onMap), best: best.map(onMap), cut: [[1, alpha], [longest, alpha]].map(onMap), curve: cut.map(onCut)};
            const page = new DOMParser().parseFromString(picture.html, "text/html"), part = (name) => page.querySelector(`[data-part="${name}"]`);
            cells.forEach((d, shade) => part(`cells ${shade}`).setAttribute("d", d));
            for (const [name, points] of Object.entries(lines)) part(name).firstElementChild.setAttribute("d", `M${points.join(" ")}`);
            part("title").firstElementChild.textContent = `Speed-up at c = ${fixed(c, 2)} and v = ${fixed(paid(4), 2)} for k = 4`;
            part("star").firstElementChild.setAttribute("transform", `translate(${onCut([k || 1, k ? gain : 0])}) scale(${k ? 9 : 0.1})`);
            const dot = picture.words.split("1/(1 − α) and 1/c.")[1] || "";  // what it says about a chosen dot
            picture.words = `At α = ${fixed(alpha, 2)} and c = ${fixed(c, 2)} `
                + (k ? `the best k is ${k}: ${fixed(gain, 2)} times as fast as plain decoding. ` : "no draft length gains anything: k = 0. ")
                + `No k could do better than ${fixed(Math.min(F.tokenCeiling(alpha), 1 / c), 2)}, the lower of the two ceilings 1/(1 − α) and 1/c.${dot}`;
            page.querySelector("title").textContent = picture.words;
            picture.html = page.body.innerHTML;
            return picture;
        },
    };

    // ------------------------------------------------------------ the residual explorer

    function bars(title, note, labels, upper, marks, lower = upper.map(() => 0)) {  // lower bars with upper ones on them; marks: lines
        const total = upper.map((v, i) => v + lower[i]), top = Math.max(0.25, ...total, ...(marks || []));
        const high = (v) => 120 * v / top, step = 300 / labels.length;
        const drawn = labels.map((label, i) => {
            const x = 10 + i * step, middle = x + step / 2, y = 140 - high(total[i]);
            const rect = (from, to, colour) => `<rect x="${x + 8}" y="${140 - high(to)}" width="${step - 16}" height="${high(to - from)}" fill="${colour}"/>`;
            const line = marks ? `<line x1="${x + 3}" x2="${x + step - 3}" y1="${140 - high(marks[i])}" y2="${140 - high(marks[i])}" stroke="currentColor" stroke-width="3"/>` : "";
            return rect(0, lower[i], "#009e73") + rect(lower[i], total[i], "#d55e00") + line
                + `<text x="${middle}" y="${Math.min(y, marks ? 140 - high(marks[i]) : y) - 6}" text-anchor="middle">${total[i].toFixed(2)}</text>`
                + `<text x="${middle}" y="158" text-anchor="middle">${label}</text>`;
        });
        return `<figure><figcaption><b>${title}</b><br>${note}</figcaption><svg viewBox="0 0 320 166" fill="currentColor" font-size="13" aria-hidden="true">${drawn.join("")}</svg></figure>`;
    }

    function residual(root) {
        const {presets, labels, verifiers} = JSON.parse(root.querySelector("script").textContent);
        const picture = root.querySelector(".ms-picture"), words = root.querySelector(".ms-words");
        const listeners = {}, state = {labels, value: structuredClone(presets[Object.keys(presets)[0]])};
        const model = {
            get: (name) => state[name],
            set: (name, value) => { state[name] = value; (listeners[`change:${name}`] || []).forEach((tell) => tell()); draw(); },
            on: (event, tell) => (listeners[event] ??= []).push(tell),
            save_changes() {},
        };
        const menu = (label, options, chosen) => {
            const select = node("select", {}, ...options.map((text) => node("option", {value: text}, text)));
            select.addEventListener("change", () => chosen(select.value));
            root.querySelector(".ms-controls").append(node("label", {}, label, select));
            return select;
        };
        menu("p and q", Object.keys(presets), (name) => model.set("value", structuredClone(presets[name])));
        const verifier = menu("verifier", verifiers, () => draw());
        function draw() {
            const {p, q} = state.value, beta = F.acceptance(p, q), left = F.residual(p, q);
            const [kept, again] = F.emitted(p, q, verifier.value), out = kept.map((x, i) => x + again[i]);
            const off = F.totalVariation(out, p), accepted = kept.reduce((x, y) => x + y, 0);
            picture.innerHTML = bars("residual = norm([p − q]₊)", `needed after a rejection: ${(1 - beta).toFixed(3)}`, labels, left, null)
                + bars("emitted token against p", `green: accepted, orange: corrected, lines: p; ${off < 1e-9 ? "they agree" : `off by ${off.toFixed(3)}`}`, labels, again, p, kept);
            const said = `${verifier.value}: a draft token is accepted with probability ${accepted.toFixed(3)}; 1 − TV(p, q) = ${beta.toFixed(3)}. `
                + (off < 1e-9 ? "The emitted token follows exactly the target's distribution." : `The emitted token's distribution is ${off.toFixed(3)} away from the target's distribution, in total variation.`);
            picture.setAttribute("aria-label", said);
            words.textContent = said;
            root.dataset.drawn = Number(root.dataset.drawn || 0) + 1;
        }
        const editor = node("div");
        root.querySelector(".ms-controls").after(editor);
        return async () => {
            if (root.dataset.state) return;
            root.dataset.state = "loading";
            await load("editor.js");
            window.MinispecEditor.render({model, el: editor});
            draw();
            root.dataset.state = "ready";
        };
    }

    // ------------------------------------------------------------ predictions

    function prediction(form) {
        const key = form.dataset.key, unit = form.dataset.unit, field = form.querySelector("input"), said = form.querySelector("[role=status]");
        const verdict = document.querySelector(`.ms-verdict[data-key="${key}"]`);
        const folds = [...document.querySelectorAll("details")].filter((one) => verdict
            && form.compareDocumentPosition(one) & Node.DOCUMENT_POSITION_FOLLOWING
            && (one.contains(verdict) || one.compareDocumentPosition(verdict) & Node.DOCUMENT_POSITION_FOLLOWING));
        function finish(guess) {
            field.disabled = true;
            form.querySelectorAll("button").forEach((button) => { button.disabled = true; });
            folds.forEach((one) => { one.open = true; });
            said.textContent = guess === null ? "Skipped: the answer is below." : `Your guess is ${F.figures(guess)} ${unit}`.trim() + ". The answer is below.";
            const text = verdict?.closest(".cell_output")?.querySelector("pre");
            if (!text) return;
            const answer = /the answer: (-?[\d.,]+)/.exec(text.textContent);
            if (guess !== null) {
                text.textContent = text.textContent.replace(/your guess: none[^\n]*/, `your guess: ${F.figures(guess)} ${unit}`.trim());
                if (answer) verdict.textContent = F.verdict(guess, Number(answer[1].replace(/,/g, "")));
            }
            const summary = folds.find((one) => one.contains(verdict))?.querySelector("summary");
            summary?.focus({preventScroll: true});
        }
        form.addEventListener("submit", (event) => {
            event.preventDefault();
            const guess = F.number(field.value);
            if (Number.isNaN(guess)) { said.textContent = "Type a number, such as 1.5 or 1,500."; field.focus(); return; }
            finish(guess);
        });
        form.querySelector(".ms-skip").addEventListener("click", () => finish(null));
    }

    // ------------------------------------------------------------ cases by hand

    function byHand(form) {
        const {cases, mistakes} = JSON.parse(form.querySelector("script").textContent), [another] = form.querySelectorAll("[type=button]");
        const ask = form.querySelector(".ms-ask"), field = form.querySelector("input"), said = form.querySelector("[role=status]");
        const typed = (text) => text.trim().replace(/^[[(]|[\])]$/g, "").split(/\s*;\s*|,\s+|\s+/).map((one) => one.replace(/^(['"“])(.*)['"”]$/, "$2").replace(/,$/, ""));
        const same = (want, got) => want.length === got.length && want.every((one, i) => typeof one === "number"
            ? Math.abs(F.number(got[i]) - one) <= Math.max(0.005 * Math.abs(one), 1e-9) : one.toLowerCase() === got[i].toLowerCase());
        const shown = (answer) => answer.map((one) => typeof one === "number" ? String(Number(one.toPrecision(6))) : one).join(", ");
        let at = 0, tries = 0;
        const put = (n) => {
            [at, tries] = [n % cases.length, 0];
            ask.replaceChildren(node("code", {}, cases[at].ask));
            field.value = said.textContent = "";
        };
        form.addEventListener("submit", (event) => {
            event.preventDefault();
            const got = typed(field.value), {right, wrong} = cases[at];
            if (!field.value.trim()) { said.textContent = "Type what the function returns for this case."; return field.focus(); }
            if (same(right, got)) { said.textContent = `✓ Right: ${shown(right)}.`; return another.focus(); }
            const mistake = wrong.find(([answer]) => same(answer, got));
            tries += 1;
            said.textContent = mistake ? `✗ ${mistakes[mistake[1]]}` : tries < 3 ? "✗ Not yet. Within half a percent is enough." : `✗ It is ${shown(right)}. Can you see why?`;
        });
        another.addEventListener("click", () => { put(at + 1); field.focus(); });
        put(0);
    }

    document.querySelectorAll("form.ms-hand").forEach(byHand);
    document.querySelectorAll("form.ms-predict").forEach(prediction);
    const starts = new Map([...document.querySelectorAll(".ms-widget")].map((root) =>
        [root, root.classList.contains("ms-residual") ? residual(root) : widget(root)]));
    const seen = new IntersectionObserver((entries) => entries.forEach((entry) => {
        if (entry.isIntersecting) { seen.unobserve(entry.target); starts.get(entry.target)(); }
    }), {rootMargin: "200px"});
    for (const root of starts.keys()) seen.observe(root);
    window.minispecLive = LIVE;
})();

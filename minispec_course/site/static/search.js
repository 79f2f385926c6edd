// Search without a server: search-index.js has the words of every section, and this script loads it, finds the query's
// words in it, and shows sections with an excerpt. Lessons come first, then what explains, then exercises and questions.
(function () {
    "use strict";
    const place = document.getElementById("search-results"), base = document.currentScript.src;
    const asked = (new URLSearchParams(location.search).get("q") || "").trim();
    const words = (asked.toLowerCase().match(/[\p{L}\p{N}]+/gu) || []).slice(0, 12);
    const fields = [...document.querySelectorAll("form.bd-search input")];
    fields.forEach((field) => { field.value = asked; });
    const KINDS = [  // folder, name, how much it counts
        ["notebooks/", "lesson", 4], ["docs/", "page", 2], ["exercises/", "exercise", 1.5],
        ["interview/", "interview question", 1], ["solutions/", "solution", 0.5], ["", "page", 1],
    ];
    const ENDS = new Set(["Read the papers", "Next", "In production", "Check yourself"]);  // of a lesson: they come last
    const escaped = (text) => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
    const starts = (word) => new RegExp(`(?<![\\p{L}\\p{N}])${escaped(word)}`, "giu");
    const node = (tag, name, ...children) => {
        const made = document.createElement(tag);
        if (name) made.className = name;
        made.append(...children);
        return made;
    };

    function score([page, , title, section, bold, text]) {
        const [, kind, weight] = KINDS.find(([folder]) => page.startsWith(folder));
        const phrase = starts(words.join(" ")), all = words.map((word) => starts(word));
        const head = `${title} ${section}`, whole = `${head} ${text}`;
        if (!all.every((word) => whole.search(word) >= 0)) return null;
        const times = (pattern, where) => Math.min(4, (where.match(pattern) || []).length);
        let points = 12 * times(phrase, section) + 6 * times(phrase, title) + 9 * bold.toLowerCase().split("|").includes(words.join(" ")) + 3 * times(phrase, text);
        for (const word of all) points += (2 * times(word, head) + times(word, text)) / words.length;
        return {kind, points: points * weight * (ENDS.has(section) ? 0.1 : 1) / (1 + text.length / 4000)};
    }

    function marked(text) {
        const pattern = new RegExp(words.map((word) => starts(word).source).join("|"), "giu"), made = [];
        let at = 0;
        for (const {0: found, index} of text.matchAll(pattern)) {
            made.push(text.slice(at, index), node("mark", "", found));
            at = index + found.length;
        }
        return [...made, text.slice(at)];
    }

    function excerpt(text) {  // where the words stand closest together
        const first = Math.max(0, [words.join(" "), ...words].map((word) => text.search(starts(word))).find((at) => at >= 0) ?? 0);
        const from = first < 90 ? 0 : text.indexOf(" ", first - 80) + 1, cut = text.slice(from, from + 230);
        return marked((from ? "… " : "") + (text.length > from + 230 ? `${cut.replace(/\s\S*$/, "")} …` : cut));
    }

    function show(sections) {
        const found = sections.map((one) => ({one, ...score(one)})).filter(({points}) => points)
            .sort((a, b) => (a.kind !== "lesson") - (b.kind !== "lesson") || b.points - a.points);
        const seen = {}, kept = found.filter(({one: [page]}) => (seen[page] = (seen[page] || 0) + 1) <= 2).slice(0, 60);
        const list = node("ul", "ms-found", ...kept.map(({one: [page, id, title, section, , text], kind}) => {
            const link = node("a", "", ...marked(section === title ? title : `${title}: ${section}`));
            link.href = `${page}.html${id ? `#${id}` : ""}`;
            return node("li", "", link, node("small", "", ` ${kind}`), node("p", "", ...excerpt(text)));
        }));
        const said = kept.length ? `${found.length} section${found.length > 1 ? "s" : ""} with “${asked}”${found.length > kept.length ? `, the best ${kept.length} of them` : ""}.`
            : `Nothing has “${asked}”. Try fewer words, or the beginning of one.`;
        const status = node("p", "", said);
        status.setAttribute("role", "status");
        place.replaceChildren(status, list);
    }

    window.minispecIndex = show;
    if (words.length) {
        const script = document.createElement("script");
        script.src = new URL("search-index.js", base).href;
        document.head.append(script);
    }
    fields.at(-1)?.focus();
})();

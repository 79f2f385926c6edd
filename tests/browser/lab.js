// Questions to a page of JupyterLab, as window.minispecLab: conftest.py asks them.
(() => {
    const shell = () => window.jupyterapp?.shell.currentWidget;
    const all = (selector) => [...document.querySelectorAll(selector)];

    const ready = () => {
        const session = shell()?.sessionContext;
        return session?.isReady && session.session?.kernel?.connectionStatus === "connected"
            && session.session.kernel.status === "idle";
    };

    const ran = () => {
        const cells = shell().content.widgets.map((cell) => cell.model).filter((model) => model.type === "code");
        const outputs = (model) => [...Array(model.outputs.length).keys()].map((place) => model.outputs.get(place));
        return cells.every((model) => model.executionCount)
            || cells.some((model) => outputs(model).some((output) => output.type === "error"));  // it ends the run
    };

    const drawn = (wanted) => {
        const views = all(".jp-OutputArea-output > .jupyter-widgets, .minispec-guess");
        const tops = views.filter((view) => !view.parentElement.closest(".jupyter-widgets"));
        return tops.length >= wanted
            && all(".minispec-panel").every((panel) => panel.querySelector(".minispec-picture[data-drawn]"))
            && all(".minispec-picture [role=img].picture").every((plot) => plot.querySelector(".main-svg"));
    };

    // What a widget shows: its text and its drawing, less what every redrawing names anew. The controls, which are a
    // panel's first child, do not count: that a slider has moved says nothing about the picture.
    const names = /^(id|class|clip-path|data-.*|for|aria-.*id.*)$/;
    const serial = (part) => {
        const copy = part.cloneNode(true);
        for (const node of [copy, ...copy.querySelectorAll("*")])
            for (const {name, value} of [...node.attributes])
                if (names.test(name) || value.includes("url(")) node.removeAttribute(name);
        for (const node of copy.querySelectorAll("style, defs, .hoverlayer, .modebar")) node.remove();
        return copy.outerHTML;
    };
    const state = (widget) => {
        const parts = widget.matches(".minispec-panel") ? [...widget.children].slice(1) : [widget];
        return parts.map(serial).join("");
    };

    const watched = {after: null};  // milliseconds from the learner's hand to another picture
    const watch = (widget) => {
        const before = state(widget);
        let start = null;
        watched.after = null;
        for (const event of ["keydown", "change", "click"])
            widget.addEventListener(event, () => { start ??= performance.now(); }, {capture: true, once: true});
        const look = () => {
            if (start !== null && state(widget) !== before) watched.after = performance.now() - start;
            else requestAnimationFrame(look);
        };
        requestAnimationFrame(look);
    };

    window.minispecLab = {ready, ran, drawn, state, watch, watched};
})();

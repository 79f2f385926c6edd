// The formulas that the page computes itself: one line each, as in minispec/theory.py and verify.py, and tested against them.
(function (root) {
    const sum = (xs) => xs.reduce((a, b) => a + b, 0);
    const F = {
        // theory.expected_tokens, speedup, break_even, best_k, token_ceiling
        expectedTokens: (alpha, k) => sum([...Array(k + 1).keys()].map((i) => alpha ** i)),
        speedup: (alpha, k, c, v) => F.expectedTokens(alpha, k) / (k * c + v),
        breakEven(k, c, v) {
            const cost = k * c + v;
            if (cost > k + 1) return Infinity;
            let low = 0, high = 1;
            for (let i = 0; i < 60; i++) {
                const middle = (low + high) / 2;
                if (F.expectedTokens(middle, k) >= cost) high = middle; else low = middle;
            }
            return high;
        },
        best(alpha, c, cost, longest) {  // [speed-up, k]; plain decoding, [1, 0], where no k beats it
            let found = [1, 0];
            for (let k = 1; k <= longest; k++) {
                const s = F.speedup(alpha, k, c, cost(k));
                if (s > found[0]) found = [s, k];
            }
            return found;
        },
        tokenCeiling: (alpha) => 1 / (1 - alpha),
        verifyCost: (v, grows) => (k) => (grows ? Math.max(1, 1 + (v - 1) * k / 4) : v),  // viz.surface.verify_cost
        // formulas.acceptance, verify.residual, and what a verifier emits at one position
        acceptance: (p, q) => sum(p.map((x, i) => Math.min(x, q[i]))),
        residual(p, q) {
            const left = p.map((x, i) => Math.max(x - q[i], 0)), total = sum(left);
            return total > 0 ? left.map((x) => x / total) : [...p];
        },
        emitted(p, q, verifier) {  // [accepted, corrected]: the two parts of the emitted token's distribution
            const left = F.residual(p, q), top = left.indexOf(Math.max(...left));
            const accept = {
                "wrong: accept always": () => 1,
                "wrong: accept if p(d) ≥ q(d)": (i) => (p[i] >= q[i] ? 1 : 0),
            }[verifier] || ((i) => (q[i] > 0 ? Math.min(1, p[i] / q[i]) : 1));
            const again = {
                "wrong: replace from p": p,
                "wrong: replace from q": q,
                "wrong: argmax of the residual, no sample": left.map((_, i) => (i === top ? 1 : 0)),
            }[verifier] || left;
            const accepted = q.map((x, i) => x * accept(i)), rejected = 1 - sum(accepted);
            return [accepted, again.map((x) => rejected * x)];
        },
        totalVariation: (p, q) => sum(p.map((x, i) => Math.abs(x - q[i]))) / 2,
        // viz.predict: a number as people type it, and what to say to it
        number(text) {  // "1,5" is 1.5; "1,500" is 1500, as "1 500"; NaN for anything else
            let t = text.trim().replace(/[\s_]/g, "").replace(/[%×x]$/, "");
            if (/^[-+]?\d{1,3}(,\d{3})+(\.\d+)?$/.test(t)) t = t.replace(/,/g, "");
            else if (/^[-+]?\d*,\d+$/.test(t)) t = t.replace(",", ".");
            return /^[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$/i.test(t) ? Number(t) : NaN;
        },
        figures(x) {  // three of them, never in powers of ten
            if (x === 0 || !Number.isFinite(x)) return String(x);
            const digits = 2 - Math.floor(Math.log10(Math.abs(x)));
            const rounded = digits >= 0 ? Number(x.toFixed(Math.min(digits, 10))) : Math.round(x / 10 ** -digits) * 10 ** -digits;
            return rounded.toLocaleString("en-US", {maximumFractionDigits: 10});
        },
        verdict(guess, answer) {
            if (guess === answer || (answer && Math.abs(guess / answer - 1) <= 0.1)) return "within 10 %: you could have skipped the measurement";
            const side = guess > answer ? "too high" : "too low";
            if (guess * answer < 0) return `${side}, not even the same sign: read on, because this is where you learn most`;
            if (guess === 0 || answer === 0) return side;
            return `${side} by a factor of ${F.figures(Math.max(guess / answer, answer / guess))}`;
        },
    };
    if (typeof module !== "undefined") module.exports = F;
    else root.MinispecFormulas = F;
})(typeof window === "undefined" ? globalThis : window);

// The methods of the library for two to four tasks, in double precision.
// tests/lab/atlas/test_atlas.py compares each of them with the library in a browser.
"use strict";

const FLOOR = 1e-8, LR = 3e-3;
const sum = (x) => x.reduce((a, b) => a + b, 0);
const dot = (x, y) => sum(x.map((v, i) => v * y[i]));
const times = (matrix, x) => matrix.map((row) => dot(row, x));
const fill = (x, value) => x.map(() => value);
const range = (n) => [...Array(n).keys()];

function softmax(x) {
  const top = Math.max(...x), e = x.map((v) => Math.exp(v - top)), total = sum(e);
  return e.map((v) => v / total);
}

// ---- loss space -----------------------------------------------------------------------------------------------------
// A scene: { before: losses without the factor, now: losses with it, later: whether the factor is applied after the
// weights have converged, steps: number of Adam steps since then, on constant losses }.

/** Adam (defaults of torch) on one coordinate. Gradients below the rounding error count as 0, because Adam would
 *  normalise them to full steps. */
function adam(value, gradient, steps) {
  let mean = 0, square = 0, left1 = 1, left2 = 1;
  for (let step = 0; step < steps; step++) {
    const exact = gradient(value), g = Math.abs(exact) < 1e-11 ? 0 : exact;
    if (g === 0 && mean === 0) break;
    mean = 0.9 * mean + 0.1 * g;
    square = 0.999 * square + 0.001 * g * g;
    left1 *= 0.9;
    left2 *= 0.999;
    value -= (LR * (mean / (1 - left1))) / (Math.sqrt(square / (1 - left2)) + 1e-8);
  }
  return value;
}

/** Log-variances of Kendall: 0 at the start, log L after convergence. Their gradient is ½(1 − e^{−s} L). */
function logVariances(scene) {
  return scene.now.map((loss, i) =>
    adam(scene.later ? Math.log(scene.before[i]) : 0, (s) => 0.5 * (1 - Math.exp(-s) * loss), scene.steps));
}

/** Log-scales of IMTL-L: the same with the opposite sign and twice the gradient. */
function logScales(scene) {
  return scene.now.map((loss, i) =>
    adam(scene.later ? -Math.log(scene.before[i]) : 0, (s) => Math.exp(s) * loss - 1, scene.steps));
}

/** μ, ς̄ and the centred log-losses. */
function statistics(losses) {
  const log = losses.map((loss) => Math.log(Math.max(loss, FLOOR)));
  const mu = sum(log) / log.length, centred = log.map((v) => v - mu);
  return { mu, centred, std: Math.max(Math.sqrt(dot(centred, centred) / log.length), 1e-4) };
}

const radius = (tasks) => Math.sqrt(tasks - 1) + 0.1;

/** z/τ = 2σ(θ) − 1 and σ(θ)(1 − σ(θ)), accurate for large θ. */
function position(theta) {
  const e = Math.exp(-Math.abs(theta)), z = (1 - e) / (1 + e);
  return { z: theta < 0 ? -z : z, slope: e / ((1 + e) * (1 + e)) };
}

/** θ after the calibration on the first batch. */
function calibrate(losses) {
  const { std, centred } = statistics(losses), tau = radius(losses.length);
  return centred.map((c) => {
    const share = Math.min(Math.max(0.5 + c / (2 * std * tau), 1e-4), 1 - 1e-4);
    return Math.log(share / (1 - share));
  });
}

/** The chart of BPGS after a scene: μ, ς̄, τ, and θ, z/τ, s, ω and α of each task. */
function bpgsChart(scene) {
  const losses = scene.now, { mu, std } = statistics(losses), tau = radius(losses.length), reach = std * tau;
  const theta = calibrate(scene.later ? scene.before : losses).map((start, i) => adam(start, (theta) => {
    const { z, slope } = position(theta);
    return 100 * 0.5 * (1 - Math.exp(-mu - reach * z) * losses[i]) * 2 * reach * slope;
  }, scene.steps));
  const z = theta.map((t) => position(t).z), s = z.map((v) => mu + reach * v);
  return { mu, std, tau, theta, z, s, omega: s.map((v) => Math.exp(-v)), alpha: softmax(s.map((v) => -v)) };
}

const inverse = (losses) => losses.map((loss) => 1 / Math.max(loss, FLOOR));

/** The derivative of ΣL − cos(1, L). */
function cosmos({ now }) {
  const norm = Math.hypot(...now), p = 1 / Math.sqrt(now.length), cosine = (sum(now) * p) / norm;
  return now.map((loss) => 1 - (p - (cosine * loss) / norm) / norm);
}

/** The derivative of d₁ + 5 d₂: the length of L along the ray of equal losses, and its distance from the ray. */
function pbi({ now }) {
  const p = 1 / Math.sqrt(now.length), off = now.map((loss) => loss - sum(now) * p * p);
  const distance = Math.sqrt(dot(off, off) + 1e-12);
  return off.map((v) => p + (5 * v) / distance);
}

const LOSS_SPACE = {
  "bpgs": (scene) => bpgsChart(scene).alpha,
  "kendall": (scene) => logVariances(scene).map((s) => 0.5 * Math.exp(-s)),
  "uw-so": (scene) => softmax(inverse(scene.now).map((v) => v / 2)),
  "uw-o": (scene) => inverse(scene.now),
  "static": (scene) => fill(scene.now, 1),
  "kendall-l1": (scene) => softmax(logVariances(scene).map((s) => -s)),
  "imtl-l": (scene) => logScales(scene).map(Math.exp),
  "gls": (scene) => {
    const { mu } = statistics(scene.now);
    return inverse(scene.now).map((v) => (Math.exp(mu) * v) / scene.now.length);
  },
  "first-loss": (scene) => inverse(scene.later ? scene.before : scene.now),
  "cosmos": cosmos,
  "pbi": pbi,
};

// ---- gradient scale: weights on the losses from the diagonal of the Gram matrix -----------------------------------

const toSum = (x, total) => x.map((v) => (v * total) / sum(x));

const GRADIENT_SCALE = {
  "grad-normalise": (gram) => toSum(gram.map((row, i) => 1 / Math.sqrt(row[i])), gram.length),
  "gradnorm-proxy": (gram) => toSum(gram.map((row, i) => 1 / Math.max(row[i], 1e-4)), gram.length),
};

// ---- gradient space: a Gram matrix in, weights out -----------------------------------------------------------------

/** Solve a small linear system by Gaussian elimination with pivoting. */
function solve(matrix, right) {
  const n = right.length, a = matrix.map((row, i) => [...row, right[i]]);
  for (let k = 0; k < n; k++) {
    let best = k;
    for (let i = k + 1; i < n; i++) if (Math.abs(a[i][k]) > Math.abs(a[best][k])) best = i;
    [a[k], a[best]] = [a[best], a[k]];
    for (let i = k + 1; i < n; i++) {
      const f = a[i][k] / a[k][k];
      for (let j = k; j <= n; j++) a[i][j] -= f * a[k][j];
    }
  }
  const x = Array(n).fill(0);
  for (let k = n - 1; k >= 0; k--) {
    x[k] = (a[k][n] - sum(range(n - k - 1).map((j) => a[k][k + 1 + j] * x[k + 1 + j]))) / a[k][k];
  }
  return x;
}

/** Norms and cosines, the inputs of every solver. */
function normaliseGram(gram) {
  const norms = gram.map((row, i) => Math.sqrt(row[i]));
  return { norms, cosines: gram.map((row, i) => row.map((v, j) => (i === j ? 1 : v / (norms[i] * norms[j])))) };
}

/** All sets of tasks, as lists of indices. */
const subsets = (n) => range(1 << n).map((bits) => range(n).filter((i) => (bits >> i) & 1));

/** The candidate { slack, … } with the smallest violation of its conditions; the solution violates none. */
const leastViolated = (candidates) => candidates.reduce((a, b) => (b.slack > a.slack ? b : a));

/** Solve x ≥ 0, y = Mx + q ≥ 0, xᵀy = 0 by enumeration of the sets of free variables, at most sixteen. */
function complementarity(matrix, offset) {
  const n = offset.length;
  return leastViolated(subsets(n).map((free) => {
    const x = Array(n).fill(0);
    const part = free.map((i) => free.map((j) => matrix[i][j]));
    solve(part, free.map((i) => -offset[i])).forEach((v, k) => (x[free[k]] = v));
    const y = times(matrix, x).map((v, i) => v + offset[i]);
    return { x, slack: Math.min(...range(n).map((i) => (free.includes(i) ? x[i] : y[i]))) };
  })).x.map((v) => Math.max(v, 0));
}

/** Ratio of the smallest norm to each norm. */
const ratios = (norms) => norms.map((n) => Math.min(...norms) / n);

function mgda(gram) {
  const { norms, cosines } = normaliseGram(gram), ratio = ratios(norms);
  const x = complementarity(cosines, ratio.map((r) => -r)).map((v, i) => v * ratio[i]);
  return x.map((v) => v / sum(x));
}

function upgrad(gram) {
  const { norms, cosines } = normaliseGram(gram), n = norms.length;
  const x = range(n).map((i) => complementarity(cosines, cosines[i]));
  return range(n).map((j) => (1 + sum(range(n).map((i) => (x[i][j] * norms[i]) / norms[j]))) / n);
}

/** The direction that maximises the minimum progress subject to ‖d − g₀‖ ≤ 0.4 ‖g₀‖, divided by 1 + 0.4². */
function cagrad(gram) {
  const { norms, cosines } = normaliseGram(gram), n = norms.length, alpha = 0.4, ratio = ratios(norms);
  const products = times(cosines, norms.map((v) => v / n));
  const size = Math.sqrt(dot(norms.map((v) => v / n), products)), p = products.map((v) => v / size);
  const found = leastViolated(subsets(n).slice(1).map((free) => {
    const part = free.map((i) => free.map((j) => cosines[i][j]));
    const r = free.map((i) => ratio[i]), q = free.map((i) => -p[i]);
    const slope = solve(part, r), base = solve(part, q);
    // ‖Σ x_i g_i‖² = aμ² + 2bμ + c for x = μ·slope + base, which has to equal α².
    const a = dot(r, slope), b = dot(r, base), root = b * b - a * (dot(q, base) - alpha * alpha);
    const mu = (Math.sqrt(Math.max(root, 0)) - b) / a, x = Array(n).fill(0);
    free.forEach((i, k) => (x[i] = mu * slope[k] + base[k]));
    const spare = times(cosines, x).map((v, i) => v + p[i] - mu * ratio[i]);
    const slack = Math.min(root < 0 ? root : Infinity, ...range(n).map((i) => (free.includes(i) ? x[i] : spare[i])));
    return { x, slack };
  }));
  return found.x.map((v, i) => ((v * size) / norms[i] + 1 / n) / (1 + alpha * alpha));
}

/** Solve α_i (Gα)_i = 1 by damped Newton steps in relative coordinates, then limit the norm of the direction to 1. */
function nash(gram) {
  const { norms, cosines } = normaliseGram(gram);
  let x = fill(norms, 1 / Math.sqrt(norms.length));
  for (let round = 0; round < 200; round++) {
    const terms = cosines.map((row, i) => row.map((v, j) => v * x[i] * x[j]));
    const y = solve(terms.map((row, i) => row.map((v, j) => v + (i === j ? 1 : 0))), terms.map((row) => 1 - sum(row)));
    const length = Math.hypot(...y);
    x = x.map((v, i) => v * (1 + (length > 0.25 ? y[i] / (1 + length) : y[i])));
    if (length < 1e-12) break;
  }
  const weights = x.map((v, i) => v / norms[i]), norm = Math.sqrt(dot(weights, times(gram, weights)));
  return weights.map((v) => v / Math.max(norm, 1));
}

function imtlG(gram) {
  const { norms, cosines } = normaliseGram(gram), ratio = ratios(norms);
  const weights = solve(cosines, fill(norms, 1)).map((v, i) => v * ratio[i]);
  const total = sum(weights), size = sum(weights.map(Math.abs));
  return weights.map((v) => v / (total > 1e-6 * size ? total : size));
}

/** Eigenvalues and eigenvectors (as rows) of a symmetric matrix, by Jacobi rotations. */
function eigen(matrix) {
  const n = matrix.length, a = matrix.map((row) => [...row]);
  const vectors = range(n).map((i) => range(n).map((j) => (i === j ? 1 : 0)));
  for (let sweep = 0, rotated = true; sweep < 60 && rotated; sweep++) {
    rotated = false;
    for (let p = 0; p < n; p++) {
      for (let q = p + 1; q < n; q++) {
        if (Math.abs(a[p][q]) <= 1e-18 * Math.sqrt(Math.abs(a[p][p] * a[q][q]))) continue;
        rotated = true;
        const theta = (a[q][q] - a[p][p]) / (2 * a[p][q]);
        const t = (theta < 0 ? -1 : 1) / (Math.abs(theta) + Math.sqrt(theta * theta + 1));
        const c = 1 / Math.sqrt(t * t + 1), s = t * c, rotate = (x, y) => [c * x - s * y, s * x + c * y];
        for (let k = 0; k < n; k++) [a[k][p], a[k][q]] = rotate(a[k][p], a[k][q]);
        for (let k = 0; k < n; k++) [a[p][k], a[q][k]] = rotate(a[p][k], a[q][k]);
        for (let k = 0; k < n; k++) [vectors[p][k], vectors[q][k]] = rotate(vectors[p][k], vectors[q][k]);
      }
    }
  }
  return { values: range(n).map((i) => a[i][i]), vectors };
}

/** √λ_min V Λ^{−½} Vᵀ 1, without eigenvalues that are 0 up to rounding. */
function alignedMtl(gram) {
  const { values, vectors } = eigen(gram), least = Math.max(...values) * gram.length * Number.EPSILON;
  const smallest = Math.min(...values.filter((v) => v > least));
  const parts = vectors.map((v, i) => (values[i] > least ? Math.sqrt(smallest / values[i]) * sum(v) : 0));
  return range(gram.length).map((k) => sum(parts.map((part, i) => part * vectors[i][k])));
}

function permutations(list) {
  if (list.length < 2) return [list];
  return list.flatMap((v, i) => permutations(list.filter((_, j) => j !== i)).map((rest) => [v, ...rest]));
}

/** PCGrad projects on the other tasks in random order. This is the mean over all orders. */
function pcgrad(gram) {
  const { norms, cosines } = normaliseGram(gram), n = norms.length, weights = Array(n).fill(0);
  for (let i = 0; i < n; i++) {
    const orders = permutations(range(n).filter((j) => j !== i));
    for (const order of orders) {
      const own = range(n).map((j) => (i === j ? 1 : 0));
      for (const j of order) own[j] -= Math.min(dot(own, cosines[j]), 0);
      own.forEach((v, j) => (weights[j] += (v * norms[i]) / (norms[j] * orders.length)));
    }
  }
  return weights;
}

/** Equal cosines with all gradients, and the length that is the sum of their projections. */
function config(gram) {
  const { norms, cosines } = normaliseGram(gram), x = solve(cosines, fill(norms, 1));
  return x.map((v, i) => (v * sum(norms)) / (norms[i] * sum(x)));
}

/** The bisector between the gradient of the first task, the residual, and the sum of the others. */
function dcgd(gram) {
  const residual = Math.sqrt(gram[0][0]), rest = Math.sqrt(sum(gram.slice(1).map((row) => sum(row.slice(1)))));
  return gram.map((_, i) => (residual + rest) / (2 * (i === 0 ? residual : rest)));
}

/** The mean gradient, projected on the directions that increase no loss. */
function dualProj(gram) {
  const { norms, cosines } = normaliseGram(gram), n = norms.length;
  return complementarity(cosines, times(cosines, norms.map((v) => v / n))).map((v, i) => v / norms[i] + 1 / n);
}

/** The nearest direction to the first, primary gradient with progress for the others, as long as that gradient. */
function pcd(gram) {
  const { norms, cosines } = normaliseGram(gram), [primary, ...lengths] = norms.map((v) => v / Math.hypot(v, 1e-4));
  const others = cosines.slice(1).map((row) => row.slice(1));
  const offset = lengths.map((length, j) => primary * cosines[j + 1][0] - 0.02 * length);
  const x = [primary, ...complementarity(others, offset)], size = Math.sqrt(dot(x, times(cosines, x)));
  return x.map((v, i) => (v * norms[0]) / (norms[i] * size));
}

const GRADIENT_SPACE = {
  "pcgrad": pcgrad,
  "cagrad": cagrad,
  "nash-mtl": nash,
  "imtl-g": imtlG,
  "mgda": mgda,
  "upgrad": upgrad,
  "aligned-mtl": alignedMtl,
  "config": config,
  "dcgd": dcgd,
  "dualproj": dualProj,
  "pcd": pcd,
};

/** Weights on the task gradients of a gradient-space method after weights on the losses, J ← diag(w) J. */
function aggregate(method, gram, weights) {
  const weighted = gram.map((row, i) => row.map((v, j) => v * weights[i] * weights[j]));
  return GRADIENT_SPACE[method](weighted).map((c, i) => c * weights[i]);
}

/** Cosine between the step Σ w_i g_i and the gradient of each task. Below 0, the loss of the task increases. */
function progress(gram, weights) {
  const products = times(gram, weights), length = Math.sqrt(Math.max(dot(weights, products), 1e-300));
  return products.map((v, i) => v / (Math.sqrt(gram[i][i]) * length));
}

/** Scale cosines towards 0 until the smallest eigenvalue of their matrix is at least 0.01. */
function feasible(cosines) {
  const lowest = Math.min(...eigen(cosines).values) - 1;
  const factor = lowest < -0.99 ? 0.99 / -lowest : 1;
  return { factor, cosines: cosines.map((row, i) => row.map((v, j) => (i === j ? 1 : v * factor))) };
}

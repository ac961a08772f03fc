"""Solve the Helmholtz equation with several methods, and write pinns.json and the tables of pinns.md.

python docs/pinns_table.py
python docs/pinns_table.py --recorded

The first takes a few minutes on one core. `docs/figures.py` draws the figures of the page from pinns.json. The second
only writes the tables of the recorded runs in results/physics, which `results/update.py` does, too.
"""

import argparse
import itertools
import json
import math
import re
import warnings
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import counterpoise as cp
from counterpoise.lab.engine.pinn_workload import PinnWorkload
from counterpoise.lab.report.markdown import markdown_table
from counterpoise.lab.studies import STUDIES
from counterpoise.lab.studies.pinn import GRADIENT_SPACE, ONE_PASS, SHORT
from counterpoise.lab.studies.select import select_runs

FOLDER = Path(__file__).parent
PAGE, RECORD = FOLDER / "pinns.md", FOLDER / "pinns.json"
RESULTS = FOLDER.parent / "results" / "physics"
EQUATIONS = {"helmholtz": "Helmholtz", "burgers": "Burgers", "klein-gordon": "Klein-Gordon"}
ROW = re.compile(r"(.+?)(?: \((0\.\d+|1e-\d+)\))?( \(seeds? .+\))?")  # method, learning rate, seeds
MARKERS = re.compile(r"(<!-- measurements -->\n).*?(<!-- /measurements -->)", re.DOTALL)
NORM_MARKERS = re.compile(r"(<!-- gradient norms -->\n).*?(<!-- /gradient norms -->)", re.DOTALL)
RECORDED_MARKERS = re.compile(r"(<!-- recorded -->\n).*?(<!-- /recorded -->)", re.DOTALL)
PUBLISHED = re.compile(r" \([\d.]+ ± [\d.]+\)")
TASKS = ("residual", "boundary")
SEEDS, STEPS, LBFGS_STEPS = range(3), 2000, 150
WIDTHS = (2, 32, 32, 32, 1)
EVERY = 20  # steps between two points of a curve
SIZE = 64  # points along each side of a recorded solution

METHODS: dict[str, tuple[type[cp.Balancer], dict[str, Any]]] = {
    "`cp.Static`, the plain sum": (cp.Static, {}),
    "`cp.Static`, boundary × 100": (cp.Static, {"weights": [1.0, 100.0]}),
    "`cp.Static`, boundary × 1000": (cp.Static, {"weights": [1.0, 1000.0]}),
    "`cp.BPGS`": (cp.BPGS, {}),
    "`cp.UWO`": (cp.UWO, {}),
    "`cp.LRA`": (cp.LRA, {}),
    "`cp.GradNormalise`": (cp.GradNormalise, {}),
    '`cp.BPGS(statistic="gradient")`': (cp.BPGS, {"statistic": "gradient"}),
    "`cp.PCGrad`": (cp.PCGrad, {}),
}
RECORDED = {
    "curves": ("`cp.BPGS`", "`cp.LRA`", "`cp.GradNormalise`"),
    "solution": ("`cp.Static`, the plain sum", "`cp.BPGS`", "`cp.LRA`"),
}
"""Methods of the figures, whose curves or solution are recorded at the first seed."""
COLUMNS = {
    "error after Adam": ".2f",
    "residual": ",.0f",
    "boundary": ".2g",
    "weight ratio": ",.0f",
    "error after L-BFGS": ".2f",
}
"""Title of each column and the format of its numbers."""


class Networks(nn.Module):
    """Networks with tanh, one per seed, whose layers are stacked so that one step trains all of them."""

    def __init__(self, seeds: Iterable[int]) -> None:
        super().__init__()
        stacks = []
        for seed in seeds:
            torch.manual_seed(seed)
            stacks.append([nn.Linear(*pair) for pair in itertools.pairwise(WIDTHS)])
        layers = list(zip(*stacks, strict=True))
        self.weights = nn.ParameterList(torch.stack([each.weight.detach().T for each in layer]) for layer in layers)
        self.biases = nn.ParameterList(torch.stack([each.bias.detach()[None] for each in layer]) for layer in layers)

    def forward(self, x: Tensor) -> Tensor:
        """Return u at points (networks, points, 2)."""
        for weight, bias in zip(self.weights, self.biases, strict=True):
            x = torch.baddbmm(bias, x, weight)
            x = x if weight is self.weights[-1] else torch.tanh(x)
        return x

    def laplacian(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return u and u_xx + u_yy. Derivatives are carried forward, which is faster than differentiating twice."""
        u, slope, second = x, torch.eye(2)[:, None, None].expand(2, *x.shape), torch.zeros_like(x)
        for weight, bias in zip(self.weights, self.biases, strict=True):
            u, slope, second = torch.baddbmm(bias, u, weight), slope @ weight, second @ weight
            if weight is not self.weights[-1]:
                u = torch.tanh(u)
                decay = 1 - u * u  # the derivative of tanh
                second = decay * (second - 2 * u * slope.square().sum(0))
                slope = decay * slope
        return u, second

    def select(self, index: int) -> "Networks":
        """Return a copy of one network."""
        copy = Networks([0])
        for ours, theirs in zip(self.parameters(), copy.parameters(), strict=True):
            theirs.data.copy_(ours.data[index : index + 1])
        return copy


def solution(x: Tensor) -> Tensor:
    return torch.sin(math.pi * x[..., :1]) * torch.sin(4 * math.pi * x[..., 1:])


def sample(networks: int, count: int) -> tuple[Tensor, Tensor]:
    """Draw points inside the square [−1, 1]², and half as many on its sides."""
    inside, side = 2 * torch.rand(networks, count, 2) - 1, 2 * torch.rand(networks, count // 2, 2) - 1
    side[:, ::2, 0], side[:, 1::2, 1] = side[:, ::2, 0].sign(), side[:, 1::2, 1].sign()
    return inside, side


def pinn_losses(network: Networks, inside: Tensor, side: Tensor) -> dict[str, Tensor]:
    """Return the mean squared residual of u_xx + u_yy + u = q, and the mean square of u on the boundary."""
    u, second = network.laplacian(inside)
    residual = second + u - (1 - 17 * math.pi**2) * solution(inside)
    return {"residual": residual.square().mean((1, 2)), "boundary": network(side).square().mean((1, 2))}


def evaluate(network: Networks, size: int = 100) -> tuple[Tensor, list[float]]:
    """Return the solutions on a grid, (networks, size, size), and their relative errors."""
    grid = torch.cartesian_prod(*2 * [torch.linspace(-1, 1, size)]).expand(len(network.biases[0]), -1, -1)
    u, exact = network(grid).detach(), solution(grid)
    return u.reshape(-1, size, size), ((u - exact).norm(dim=1) / exact.norm(dim=1))[:, 0].tolist()


def train_adam(network: Networks, balancer: cp.Balancer) -> list[list[float]]:
    """Train, and return the losses, gradient norms and weight ratio of the first network every `EVERY` steps."""
    groups = [{"params": list(network.parameters())}, *balancer.param_groups()]
    optimizer = torch.optim.Adam(groups, lr=2e-3, fused=True)
    curves = []
    for step in range(STEPS):
        optimizer.zero_grad()
        losses = pinn_losses(network, *sample(len(SEEDS), 128))
        norms = [gradient_norm(loss, network) for loss in losses.values()] if step % EVERY == 0 else []
        balancer.backward(losses, shared=network.parameters())
        optimizer.step()
        if norms:
            curves.append([*[loss[0].item() for loss in losses.values()], *norms, weight_ratios(balancer)[0]])
    return curves


def train_lbfgs(network: Networks, fixed: cp.Static) -> None:
    """Train one network with fixed weights, on the same points in every evaluation."""
    optimizer = torch.optim.LBFGS(network.parameters(), max_iter=LBFGS_STEPS, line_search_fn="strong_wolfe")
    points = sample(1, 400)

    def closure() -> Tensor:
        optimizer.zero_grad()
        return fixed.backward({name: loss[0] for name, loss in pinn_losses(network, *points).items()})

    optimizer.step(closure)


def gradient_norm(loss: Tensor, network: Networks) -> float:
    """Return the norm of the gradient of the first network."""
    grads = torch.autograd.grad(loss[0], list(network.parameters()), retain_graph=True, allow_unused=True)
    return math.hypot(*(grad[0].norm().item() for grad in grads if grad is not None))


def weight_ratios(balancer: cp.Balancer) -> list[float]:
    """Return the weight of the boundary relative to that of the residual, by network."""
    assert balancer.weights is not None
    weights = balancer.weights.double()
    return (weights[:, 1] / weights[:, 0]).tolist()


def measure(method: type[cp.Balancer], options: dict[str, Any]) -> dict[str, Any]:
    """Train with one method, and return the results of `summarise` and the curves of the first seed."""
    network, balancer = Networks(SEEDS), method(TASKS, batch_shape=len(SEEDS), **options)
    curves = train_adam(network, balancer)
    return {"curves": curves} | summarise(network, balancer)


def summarise(network: Networks, balancer: cp.Balancer) -> dict[str, Any]:
    """Return the numbers of `COLUMNS` by seed, and the final solution of the first seed in units of 0.01."""
    errors, final = evaluate(network)[1], pinn_losses(network, *sample(len(SEEDS), 4000))
    ratios, fixed = weight_ratios(balancer), balancer.frozen().weight
    numbers, solutions = [], []
    for seed in range(len(SEEDS)):
        single = network.select(seed)
        train_lbfgs(single, cp.Static(TASKS, fixed[seed].tolist()))
        losses = [loss[seed].item() for loss in final.values()]
        numbers.append([errors[seed], *losses, ratios[seed], *evaluate(single)[1]])
        solutions.append(evaluate(single, SIZE)[0][0].mul(100).round().int().tolist())
    return {"numbers": numbers, "solution": solutions[0]}


def table(rows: dict[str, list[list[float]]]) -> str:
    """Return the table of the smallest and the largest number over the seeds, by method."""
    lines = [f"| method | {' | '.join(COLUMNS)} |", f"| --- |{' ---: |' * len(COLUMNS)}"]
    for name, seeds in rows.items():
        columns = zip(COLUMNS.values(), zip(*seeds, strict=True), strict=True)
        cells = [format_range(min(column), max(column), spec) for spec, column in columns]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def format_range(least: float, most: float, spec: str) -> str:
    """Return both numbers, or one if they are equal. Numbers of a million or more have an exponent."""
    texts = [f"{value:{spec if value < 1e6 else '.0e'}}" for value in (least, most)]
    return texts[0] if least == most else " – ".join(texts)


def shorten(value: Any) -> Any:
    """Round the floating-point numbers of nested lists to four significant digits."""
    if isinstance(value, list):
        return [shorten(each) for each in value]
    return value if isinstance(value, int) else float(f"{value:.4g}")


def read_tables(path: Path) -> dict[str, dict[str, dict[str, str]]]:
    """Return the tables of a file in results/ by title: method → column → cell, without emphasis.

    A row at fewer seeds than its table has says so in every cell. Rows without a result are left out.
    """
    tables: dict[str, dict[str, dict[str, str]]] = {}
    text = re.sub("</?ins>", "", path.read_text(encoding="utf-8")) if path.is_file() else ""
    for title, body in re.findall(r"^\*\*(.+?)\*\*[^\n|]*\n\n((?:\|.*\n?)+)", text, re.MULTILINE):
        heads, _, *rows = (line.strip("| ").split(" | ") for line in body.replace("**", "").splitlines())
        found = tables.setdefault(title, {})
        for name, *cells in rows:
            label, _, seeds = ROW.fullmatch(name).groups("")  # type: ignore[union-attr]
            if cells[0].startswith("–"):  # only the published value, or runs at the seeds of the choice
                continue
            found[label] = {head: cell + seeds for head, cell in zip(heads[1:], cells, strict=True)}
    return tables


def recorded_section(folder: Path = RESULTS) -> str:
    """Return the tables of the recorded runs: errors by equation, other conditions, the plate, and the search."""
    tables = {name: read_tables(folder / "tables" / f"pinn-{name}.md") for name in (*EQUATIONS, "kirchhoff")}
    main = {title: main_table(tables[name]) for name, title in EQUATIONS.items()}
    groups = {
        "Methods that combine the gradients of the terms": GRADIENT_SPACE,
        "Methods that need one backward pass, and some of them one per term every few steps": ONE_PASS,
    }
    ours = {title: {m: PUBLISHED.sub("", cell) for m, cell in cells.items()} for title, cells in main.items()}
    parts = [f"{intro}:\n\n{join_tables(ours, methods)}" for intro, methods in groups.items()]
    constant = {
        title.split("inside")[1].split(" (best")[0].removeprefix(", "): first_column(rows)
        for title, rows in tables["burgers"].items()
        if "constant learning rate" in title and "further metrics" not in title
    }
    if constant:
        methods = {method for rows in constant.values() for method in rows}
        shown = join_tables({"decaying learning rate": main["Burgers"]} | constant, methods)
        parts.append(f"Burgers with the constant learning rate of the authors' code:\n\n{shown}")
    short = {
        EQUATIONS[name]: first_column(rows)
        for name in EQUATIONS
        for title, rows in tables[name].items()
        if SHORT in title and "further metrics" not in title
    }
    if short:
        parts.append(f"Further methods that combine gradients, after {SHORT}:\n\n{join_tables(short)}")
    for title, rows in tables["kirchhoff"].items():
        if rows and "further metrics" not in title:
            losses = "nine losses as in the authors' code" if "authors" in title else "nine losses"
            columns = {head: {m: rows[m][head] for m in rows} for head in next(iter(rows.values()))}
            parts.append(f"The Kirchhoff plate, with {losses} and 20,000 steps:\n\n{join_tables(columns)}")
    searched = {
        title: main_table(read_tables(folder / "search" / "tables" / f"pinn-{name}.md"))
        for name, title in EQUATIONS.items()
    }
    if any(searched.values()):
        parts.append(f"The search for a better method, at five other seeds:\n\n{join_tables(searched)}")
    return "\n\n".join(parts)


def main_table(tables: dict[str, dict[str, dict[str, str]]]) -> dict[str, str]:
    """Return the cells of the first column of the first table by method."""
    return first_column(next(iter(tables.values()), {}))


def first_column(rows: dict[str, dict[str, str]]) -> dict[str, str]:
    return {method: next(iter(cells.values())) for method, cells in rows.items()}


def join_tables(columns: dict[str, dict[str, str]], methods: Collection[str] | None = None) -> str:
    """Return one table of columns with cells by method, the lowest number of the first column first.

    Args:
        columns: The cells of each column. Those without cells are left out.
        methods: The methods to show. Default: all.
    """
    kept = {title: {m: cells[m] for m in cells if methods is None or m in methods} for title, cells in columns.items()}
    kept = {title: cells for title, cells in kept.items() if cells}
    shown = list(dict.fromkeys(method for cells in kept.values() for method in cells))
    first = next(iter(kept.values()), {})
    shown.sort(key=lambda method: float(first[method].split()[0].replace(",", "")) if method in first else math.inf)
    rows = [[method, *(cells.get(method, "–") for cells in kept.values())] for method in shown]
    return markdown_table(["method", *kept], rows, right=range(1, len(kept) + 1))


def two_digits(number: Tensor) -> str:
    """Return a number with two significant digits: 870, 0.57, 3.8e-05."""
    return f"{float(f'{float(number):.2g}'):,g}"


def norms_table() -> str:
    """Return the gradient norms of the losses of each study before training, as geometric means over its seeds."""
    rows = []
    for name in (*EQUATIONS, "kirchhoff"):
        study = STUDIES[f"pinn-{name}"]
        for condition in ("main", "authors' code") if name == "kirchhoff" else ("main",):
            cells = select_runs(study, seeds=study.seeds, device="cpu", methods=["Sum"], conditions=[condition])
            runs = {cell.run.seed: cell.run for cell in cells}
            workload = PinnWorkload([runs[seed] for seed in study.seeds])
            losses, gradients = workload.task_gradients(workload.draw())
            norms, values = gradients.norm(dim=2).log().mean(0).exp(), losses.log().mean(0).exp()
            ratios = (norms[0] / norms[1:]).aminmax()
            ends = dict.fromkeys(map(two_digits, (ratios.min, ratios.max)))
            title = EQUATIONS.get(name, "Kirchhoff plate") + (f", {condition}" if condition != "main" else "")
            rows.append([title, two_digits(values[0]), two_digits(norms[0]), " – ".join(ends)])
    heads = ["equation", "loss of the residual", "its gradient norm", "gradient norm relative to the conditions"]
    return markdown_table(heads, rows, right=range(1, 4))


def write_between(markers: re.Pattern[str], text: str) -> None:
    """Replace what is between two markers of the page."""
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(markers.sub(lambda found: f"{found[1]}{text}\n{found[2]}", page), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recorded", action="store_true", help="write the tables of the recorded runs only")
    if not parser.parse_args().recorded:
        write_between(MARKERS, table(measure_all()))
        write_between(NORM_MARKERS, norms_table())
    write_between(RECORDED_MARKERS, recorded_section())


def measure_all() -> dict[str, list[list[float]]]:
    """Train with all methods, write pinns.json, and return the numbers of the table by method and seed."""
    torch.set_num_threads(1)  # faster for small networks, and independent of the number of cores
    rows: dict[str, list[list[float]]] = {}
    record: dict[str, Any] = {"every": EVERY, "size": SIZE, "table": rows, "curves": {}, "solution": {}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cp.BalanceWarning)
        for name, (method, options) in METHODS.items():
            run = measure(method, options)
            rows[name] = shorten(run["numbers"])
            print(name, *rows[name], sep="\n  ", flush=True)
            for kind in (kind for kind, names in RECORDED.items() if name in names):
                record[kind][name] = shorten(run[kind])
            RECORD.write_text(json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
    return rows


if __name__ == "__main__":
    main()

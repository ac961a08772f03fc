"""Measure gradient space: Gram solvers and training steps compared with torchjd on the CPU, and steps on CUDA.

    python benchmarks/gradient_space.py [solvers] [steps] [memory] [cuda] [--half] [--rounds N] [--out FOLDER]

torchjd is measured in each of its modes, and the best one is reported. On CUDA, where it may not be installed, the
references are a plain training step and T plain backward passes.
"""

import argparse
import resource
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from timing import FOLDER, compare, device_work, save
from torch import Tensor, nn

import counterpoise as cp
from counterpoise import functional as f
from counterpoise.lab.models import SegNet

Rows = list[dict[str, Any]]
SOLVERS: dict[str, Callable[[Tensor], Tensor]] = {
    "Nash-MTL": f.nash_weights,
    "CAGrad": f.cagrad_weights,
    "MGDA": f.mgda_weights,
    "PCGrad": f.pcgrad_weights,
    "UPGrad": f.upgrad_weights,
    "IMTL-G": f.imtl_g_weights,
    "Aligned-MTL": f.aligned_mtl_weights,
}


class Cycle:
    """Call a function on one argument after another, so that a solver never gets the same matrix twice in a row."""

    def __init__(self, function: Callable[[Any], object], arguments: Sequence[Any]) -> None:
        self.function, self.arguments, self.count = function, arguments, 0

    def __call__(self) -> object:
        self.count += 1
        return self.function(self.arguments[self.count % len(self.arguments)])


def torchjd_solver(name: str, tasks: int) -> Callable[[Any], object]:
    """Return the solver of torchjd for a method."""
    from torchjd import aggregation

    if name == "Nash-MTL":
        return aggregation.NashMTL(n_tasks=tasks).weighting
    build = getattr(aggregation, f"{name.replace('-', '')}Weighting")
    return build(c=0.4) if name == "CAGrad" else build()  # type: ignore[no-any-return]


def solver_rows() -> Rows:
    """Compare one Gram matrix at a time with torchjd, and 256 at once with one."""
    torch.set_num_threads(2)
    rows: Rows = []
    for tasks in (3, 8, 40):
        generator = torch.Generator().manual_seed(tasks)
        jacobians = [torch.randn(tasks, 100, generator=generator) for _ in range(16)]
        grams = [j @ j.T for j in jacobians]
        batches = [torch.stack([torch.randn(tasks, 100, generator=generator) for _ in range(256)]) for _ in range(4)]
        batches = [j @ j.mT for j in batches]
        for name, solve in SOLVERS.items():
            # torchjd's Nash-MTL takes the Jacobian and starts from its previous solution.
            given = jacobians if name == "Nash-MTL" else grams
            cases = {"ours": Cycle(solve, grams), "torchjd": Cycle(torchjd_solver(name, tasks), given)}
            if tasks < 40:
                cases["256"] = Cycle(solve, batches)
            found = compare(cases, rounds=7, warm_up=5)
            rows.append(
                {
                    "method": name,
                    "T": tasks,
                    "us": 1e6 * found["ours"][0],
                    "torchjd us": 1e6 * found["torchjd"][0],
                    "faster": found["torchjd"][1],
                    "256 / 1": found["256"][1] if tasks < 40 else None,
                }
            )
            print(rows[-1], flush=True)
    return rows


class Problem:
    """A network with shared parameters, and its losses on one batch."""

    def __init__(self, name: str, device: str = "cpu", half: bool = False) -> None:
        torch.manual_seed(0)
        self.half = half
        self.tasks = 3 if name == "SegNet" else 14
        if name == "SegNet":
            size = (2, 96, 128) if device == "cpu" else (8, 288, 384)
            self.net: nn.Module = SegNet().to(device)
            self.x = torch.randn(size[0], 3, *size[1:], device=device)
            self.classes = torch.randint(13, size, device=device)
        else:
            layers = [module for width in (103, 256, 256, 256) for module in (nn.Linear(width, 256), nn.ReLU())]
            heads = nn.ModuleList(nn.Linear(256, 1) for _ in range(self.tasks))
            self.net = nn.ModuleDict({"trunk": nn.Sequential(*layers), "heads": heads}).to(device)
            self.x = torch.randn(128, 103, device=device)
            self.y = torch.randn(128, self.tasks, device=device)
        if half:
            self.net = self.net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            self.x = self.x.to(memory_format=torch.channels_last)
        self.scaler = torch.amp.GradScaler("cuda") if half else None
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-4)

    @property
    def heads(self) -> list[list[nn.Parameter]]:
        heads = self.net.heads if isinstance(self.net, SegNet) else self.net["heads"]  # type: ignore[index]
        modules = heads.values() if isinstance(heads, nn.ModuleDict) else heads
        return [list(head.parameters()) for head in modules]

    @property
    def shared(self) -> list[nn.Parameter]:
        own = {id(p) for head in self.heads for p in head}
        return [p for p in self.net.parameters() if id(p) not in own]

    def forward(self) -> tuple[list[Tensor], Tensor]:
        if isinstance(self.net, SegNet):
            z = self.net.features(self.x)
            seg, depth, normals = (head(z) for head in self.net.heads.values())
            return [nn.functional.cross_entropy(seg, self.classes), depth.abs().mean(), 1 + normals.tanh().mean()], z
        z = self.net["trunk"](self.x)  # type: ignore[index]
        return [(h(z)[:, 0] - self.y[:, i]).square().mean() for i, h in enumerate(self.net["heads"])], z  # type: ignore[index]

    def step(self, backward: Callable[[list[Tensor], Tensor], object]) -> None:
        with torch.autocast("cuda", dtype=torch.float16, enabled=self.half):
            losses, z = self.forward()
        self.optimizer.zero_grad()
        backward(losses, z)
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()

    def scaled(self, loss: Tensor) -> Tensor:
        return loss if self.scaler is None else self.scaler.scale(loss)


def our_step(problem: Problem, method: str, mode: str) -> Callable[[], object]:
    """Return a training step with Counterpoise."""
    balancer = cp.make(method, problem.tasks, passes="batched" if "batched" in mode else "loop")
    balancer.to(problem.x.device)
    shared = problem.shared

    def backward(losses: list[Tensor], z: Tensor) -> object:
        where: dict[str, Any] = {"features": z} if "features" in mode else {}
        return balancer.backward(losses, shared=None if mode == "features" else shared, scaler=problem.scaler, **where)

    return lambda: problem.step(backward)


def torchjd_step(problem: Problem, method: str, mode: str) -> Callable[[], object]:
    """Return a training step with torchjd."""
    from torchjd import aggregation
    from torchjd.autojac import jac_to_grad, mtl_backward

    named = {
        "pcgrad": aggregation.PCGrad,
        "mgda": aggregation.MGDA,
        "upgrad": aggregation.UPGrad,
        "imtl-g": aggregation.IMTLG,
    }
    builds: dict[str, Callable[[], Any]] = {
        **named,
        "aligned-mtl": aggregation.AlignedMTL,
        "cagrad": partial(aggregation.CAGrad, c=0.4),
        "nash-mtl": partial(aggregation.NashMTL, n_tasks=problem.tasks),
    }
    aggregator = builds[method]()
    shared, heads = problem.shared, problem.heads
    chunk = None if mode.startswith("parallel") else 1
    lean = mode.endswith("lean")

    def backward(losses: list[Tensor], z: Tensor) -> None:
        mtl_backward(losses, features=z, shared_params=shared, tasks_params=heads, parallel_chunk_size=chunk)
        jac_to_grad(shared, aggregator, **({"optimize_gramian_computation": True} if lean else {}))

    return lambda: problem.step(backward)


def plain_step(problem: Problem) -> Callable[[], object]:
    """Return a training step on the plain sum of the losses."""
    return lambda: problem.step(lambda losses, z: problem.scaled(torch.stack(losses).sum()).backward())


OUR_MODES = ("loop", "batched", "batched through features", "features")
TORCHJD_MODES = ("parallel", "sequential", "parallel lean", "sequential lean")
CUDA_METHODS = ("PCGrad", "MGDA", "CAGrad", "Nash-MTL", "UPGrad", "FairGrad", "IMTL-G", "ConFIG", "Aligned-MTL")
METHODS = ("upgrad", "pcgrad", "mgda", "cagrad", "imtl-g", "aligned-mtl", "nash-mtl")


def torchjd_modes(method: str) -> tuple[str, ...]:
    """Return the modes of torchjd that a method supports: the weighting of Nash-MTL does not take a Gram matrix."""
    return TORCHJD_MODES[:2] if method == "nash-mtl" else TORCHJD_MODES


def step_rows() -> Rows:
    torch.set_num_threads(2)
    rows: Rows = []
    for name, methods, rounds in (("SegNet", METHODS[:1], 3), ("MLP", METHODS, 5)):
        for method in methods:
            cases: dict[str, Callable[[], object]] = {"plain step": plain_step(Problem(name))}
            cases |= {f"ours, {mode}": our_step(Problem(name), method, mode) for mode in OUR_MODES}
            modes = TORCHJD_MODES[2:] if name == "SegNet" else torchjd_modes(method)  # the lean ones are faster there
            cases |= {f"torchjd, {mode}": torchjd_step(Problem(name), method, mode) for mode in modes}
            found = compare(cases, rounds=rounds, seconds=0.1, warm_up=1)
            for case, (seconds, ratio) in found.items():
                rows.append({"net": name, "method": method, "case": case, "ms": 1e3 * seconds, "ratio": ratio})
                print(rows[-1], flush=True)
    return rows


def memory_rows() -> Rows:
    """Measure the peak resident memory of a process that runs a few steps in one mode."""
    rows: Rows = []
    for name in ("SegNet", "MLP"):
        for case in ("plain step", *(f"ours, {m}" for m in OUR_MODES), *(f"torchjd, {m}" for m in TORCHJD_MODES)):
            command = [sys.executable, __file__, "--one", name, case]
            peak = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1]
            rows.append({"net": name, "method": "upgrad", "case": case, "peak MB": round(float(peak))})
            print(rows[-1], flush=True)
    return rows


def print_peak_memory(name: str, case: str) -> None:
    """Run a few steps of one case and print the peak memory of this process in MB."""
    problem = Problem(name)
    if case == "plain step":
        step = plain_step(problem)
    else:
        library, mode = case.split(", ")
        if library == "ours":
            import torchjd.autojac  # noqa: F401  # both cases import the same modules
        step = (our_step if library == "ours" else torchjd_step)(problem, "upgrad", mode)
    for _ in range(3):
        step()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def plain_passes(problem: Problem) -> Callable[[], object]:
    """Return a training step with T plain backward passes, the minimum for an exact method."""

    def backward(losses: list[Tensor], z: Tensor) -> None:
        for loss in losses:
            problem.scaled(loss).backward(retain_graph=True)

    return lambda: problem.step(backward)


def cuda_rows(precisions: Sequence[bool] = (False, True), rounds: int = 7) -> Rows:
    """Compare steps at the features with a plain step, and steps on shared parameters with T backward passes.

    Args:
        precisions: whether to measure in half precision, or each of both.
        rounds: number of rounds of each comparison.
    """
    torch.backends.cudnn.benchmark = True
    rows: Rows = []
    for half in precisions:
        problem = Problem("SegNet", "cuda", half)
        plain, passes = plain_step(problem), plain_passes(problem)
        # A case that is measured twice shows the noise.
        steps: dict[str, Callable[[], object]] = {"plain step": plain, "plain step, again": plain}
        steps["T backward passes"] = passes
        loops: dict[str, Callable[[], object]] = {"T backward passes": passes, "T backward passes, again": passes}
        if not half:  # vmap does not support channels-last memory
            steps |= {f"PCGrad, {mode}": our_step(problem, "pcgrad", mode) for mode in OUR_MODES[1:3]}
        for method in ("PCGrad", "MGDA", "CAGrad", "Nash-MTL"):
            loops[f"{method}, loop"] = our_step(problem, method, "loop")
        for method in CUDA_METHODS:
            steps[f"{method}, features"] = our_step(problem, method, "features")
        options: dict[str, Any] = {"rounds": rounds, "seconds": 0.1, "wait": True, "warm_up": 5}
        found = compare(steps, **options)
        relative = compare(loops, **options)
        base = found["T backward passes"][1]
        times: dict[str, tuple[float, float, float | None]] = {case: (*timed, None) for case, timed in found.items()}
        times |= {case: (seconds, base * ratio, ratio) for case, (seconds, ratio) in relative.items()}
        for case, (seconds, ratio, to_passes) in times.items():
            torch.cuda.reset_peak_memory_stats()
            kernels, busy = device_work((steps | loops)[case])
            row: dict[str, Any] = {
                "precision": "fp16, channels last" if half else "float32",
                "case": case,
                "ms": 1e3 * seconds,
            }
            row |= {"ratio": ratio, "to T passes": to_passes, "kernels": kernels, "device ms": 1e3 * busy}
            rows.append(row | {"peak MB": round(torch.cuda.max_memory_allocated() / 2**20)})
            print(rows[-1], flush=True)
    return rows


PARTS: dict[str, Callable[[], Rows]] = {
    "solvers": solver_rows,
    "steps": step_rows,
    "memory": memory_rows,
    "cuda": cuda_rows,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="default: all parts that this machine can run")
    parser.add_argument("--out", type=Path, default=FOLDER)
    parser.add_argument("--half", action="store_true", help="on CUDA, measure half precision only")
    parser.add_argument("--rounds", type=int, default=7, help="rounds of each comparison on CUDA")
    parser.add_argument("--one", nargs=2, metavar=("NET", "CASE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    if options.one:
        print_peak_memory(*options.one)
        return
    chosen = options.parts or (["cuda"] if torch.cuda.is_available() else ["solvers", "steps", "memory"])
    parts = PARTS | {"cuda": partial(cuda_rows, (True,) if options.half else (False, True), options.rounds)}
    for part in chosen:
        save(f"gradient_space_{part}", parts[part](), options.out)


if __name__ == "__main__":
    main()

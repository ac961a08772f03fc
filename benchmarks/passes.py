"""Measure how to compute task gradients: small networks, many tasks, large models.

    python benchmarks/passes.py [small] [tasks] [methods] [growth] [crossover] [large] [memory] [vit] [mlp]
        [limited] [--device cuda] [--threads 2] [--busy]

- small: a loop or one batched pass, with and without `features`. Ratios are to the loop without features.
- tasks: all modes and torchjd's autogram, with UPGrad. Ratios are to T calls of `autograd.grad`.
- methods: the loop and the automatic choice for every method that needs only the Gram matrix; the same ratios.
- growth: the time of a step by number of tasks and by number of parameters, for docs/figures.
- crossover: lean passes by width, number of tasks and batch size. Ratios are to a loop.
- large: an MLP with 25 million parameters. Ratios are to a plain step.
- memory: the peak memory of the same steps, each in a process of its own.
- vit: a vision transformer of the size of ViT-B on CUDA: ratios to a plain step and peak memory.
- mlp: the same for the MLP with 25 million parameters, on CUDA.
- limited: the transformer and the automatic choice, if other tensors leave 24 GiB of the GPU's memory free.
"""

import argparse
import copy
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import combinations_with_replacement, product
from pathlib import Path
from statistics import median
from typing import Any, Literal

import torch
from timing import FOLDER, compare, measure_cpu_time, save
from torch import Tensor, nn

import counterpoise as cp

Rows = list[dict[str, Any]]
SIZES = ((64, 2, 5, 64), (64, 2, 8, 64), (256, 4, 3, 128), (256, 4, 14, 128), (512, 4, 8, 128), (512, 4, 8, 512))
"""Width, depth, number of tasks and batch size."""
MANY = ((256, 3), (256, 14), (256, 40), (256, 100), (896, 16))
"""Width of an MLP with three layers, and number of tasks: 0.2 and 2.4 million parameters."""
GROWTH = (*((256, tasks) for tasks in (4, 8, 16, 32, 64)), *((width, 16) for width in (128, 512, 1024)))
CROSSOVER = {"cpu": ((64, 256, 896), (3, 4, 6, 8, 16)), "cuda": ((256, 896, 2048), (4, 8, 16, 40))}
"""Widths and numbers of tasks, each measured with batches of 32 and 256."""
REPEATS = 3  # processes whose memory is measured
METHODS = ("mgda", "pcgrad", "cagrad", "upgrad", "nash-mtl", "fairgrad", "imtl-g", "config", "aligned-mtl")
LARGE = (4, 16, 40, 100)
LIMIT = 24 << 30  # bytes


def make_step(
    width: int, depth: int, tasks: int, batch: int, device: str, passes: Literal["loop", "batched"], through: bool
) -> Callable[[], object]:
    torch.manual_seed(0)
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())]
    trunk, heads = nn.Sequential(*layers).to(device), [nn.Linear(width, 1).to(device) for _ in range(tasks)]
    balancer, x = cp.IMTLG(tasks, passes=passes).to(device), torch.randn(batch, width, device=device)

    def step() -> None:
        z = trunk(x)
        losses = [head(z).square().mean() for head in heads]
        for module in (trunk, *heads):
            module.zero_grad()
        balancer.backward(losses, shared=trunk.parameters(), features=z if through else None)

    return step


def small_rows(device: str) -> Rows:
    rows: Rows = []
    for size in SIZES:
        cases = {
            f"{passes}{', through features' if through else ''}": make_step(*size, device, passes, through)
            for passes in ("loop", "batched")
            for through in (False, True)
        }
        times = compare(cases, rounds=7, seconds=0.1, warm_up=3, wait=device == "cuda")
        ratios = {case: round(ratio, 3) for case, (_, ratio) in times.items()}
        rows.append(dict(zip(("width", "depth", "T", "batch"), size, strict=True)) | {"ratios": ratios})
        print(rows[-1], flush=True)
    return rows


class Transformer(nn.Module):
    """A vision transformer of the size of ViT-B, on patches that are already cut out."""

    def __init__(self, width: int = 768, depth: int = 12, tokens: int = 197) -> None:
        super().__init__()
        self.embed = nn.Linear(768, width)
        self.position = nn.Parameter(torch.zeros(tokens, width))
        layer = nn.TransformerEncoderLayer(
            width, width // 64, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, depth, nn.LayerNorm(width), enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.layers(self.embed(x) + self.position)
        return z.mean(1)


class Problem:
    """A trunk with one small head per task, and its losses on one batch."""

    def __init__(self, trunk: nn.Module, x: Tensor, width: int, tasks: int) -> None:
        self.trunk, self.x = trunk.to(x.device), x
        self.heads = nn.ModuleList(nn.Linear(width, 1) for _ in range(tasks)).to(x.device)
        self.y = torch.randn(len(x), tasks, device=x.device)
        self.shared = list(self.trunk.parameters())

    @classmethod
    def mlp(cls, width: int, depth: int, tasks: int, device: str, batch: int = 32) -> "Problem":
        torch.manual_seed(0)
        layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())]
        return cls(nn.Sequential(*layers), torch.randn(batch, width, device=device), width, tasks)

    @classmethod
    def vit(cls, tasks: int, batch: int) -> "Problem":
        torch.manual_seed(0)
        return cls(Transformer(), torch.randn(batch, 197, 768, device="cuda"), 768, tasks)

    def clear(self) -> None:
        for parameter in (*self.shared, *self.heads.parameters()):
            parameter.grad = None

    def losses(self, z: Tensor | None = None) -> list[Tensor]:
        self.clear()
        z = self.trunk(self.x) if z is None else z
        return [(head(z)[:, 0] - self.y[:, task]).square().mean() for task, head in enumerate(self.heads)]

    def plain(self) -> None:
        torch.stack(self.losses()).sum().backward()

    def calls(self) -> None:
        """Call `autograd.grad` for each task, and drop the result."""
        for loss in self.losses():
            torch.autograd.grad(loss, self.shared, retain_graph=True)

    def kept(self) -> list[list[Tensor | None]]:
        """Run one backward pass per task, and keep the gradients."""
        rows: list[list[Tensor | None]] = []
        for loss in self.losses():
            for parameter in self.shared:
                parameter.grad = None
            loss.backward(retain_graph=True)
            rows.append([parameter.grad for parameter in self.shared])
        return rows

    def by_hand(self) -> None:
        """Run a loop over the tasks of an MLP, written for this network, without solver: equal weights.

        Keeps all gradients. The inner products are those of few rows, or of the gradients at the outputs of the layers.
        """
        inputs, outputs, z = [], [], self.x
        for layer in self.trunk.children():
            inputs += [z.detach()] if isinstance(layer, nn.Linear) else []
            z = layer(z)
            outputs += [z] if isinstance(layer, nn.Linear) else []
        rows, read = [], []
        few, count = len(self.heads) <= 4, len(self.shared)
        for head, loss in zip(self.heads, self.losses(z), strict=True):
            own = list(head.parameters())
            places = [*self.shared, *own, *(() if few else outputs)]
            grads = torch.autograd.grad(loss, places, retain_graph=True)
            rows.append(grads[:count])
            read.append(grads[count + len(own) :])
            for parameter, grad in zip(own, grads[count:], strict=False):
                parameter.grad = grad
        if few:
            for one, other in combinations_with_replacement(rows, 2):
                sum(torch.dot(a.view(-1), b.view(-1)) for a, b in zip(one, other, strict=True))
        else:
            for x, columns in zip(inputs, zip(*read, strict=True), strict=True):
                factor = torch.linalg.qr(torch.cat([x, x.new_ones(len(x), 1)], 1).mT, mode="r").R
                flat = (factor @ torch.stack(columns)).view(len(rows), -1)
                flat @ flat.mT
        torch._foreach_mul_(rows[0], 1 / len(rows))
        for row in rows[1:]:
            torch._foreach_add_(rows[0], row, alpha=1 / len(rows))
        for parameter, grad in zip(self.shared, rows[0], strict=True):
            parameter.grad = grad

    def ours(self, method: str, passes: str) -> Callable[[], object]:
        balancer = cp.make(method, len(self.heads), passes=passes).to(self.x.device)
        return lambda: balancer.backward(self.losses(), shared=self.shared)

    def autogram(self, duplicate: bool = True) -> Callable[[], object]:
        """Return a step with UPGrad and torchjd's autogram, which adds hooks to the trunk, or to a copy of it."""
        from torchjd.aggregation import UPGradWeighting
        from torchjd.autogram import Engine

        trunk = copy.deepcopy(self.trunk) if duplicate else self.trunk
        own = Problem(trunk, self.x, self.x.shape[-1], len(self.heads))
        engine, weighting = Engine(own.trunk, batch_dim=None), UPGradWeighting()

        def step() -> None:
            losses = torch.stack(own.losses())
            losses.backward(weighting(engine.compute_gramian(losses)))

        return step


def measure(cases: Mapping[str, Callable[[], object]], known: dict[str, Any], **options: Any) -> Rows:
    rows: Rows = []
    for case, (seconds, ratio) in compare(cases, **options).items():
        rows.append(known | {"case": case, "ms": 1e3 * seconds, "ratio": ratio, "threads": torch.get_num_threads()})
        print(rows[-1], flush=True)
    return rows


def task_rows(device: str) -> Rows:
    rows: Rows = []
    for width, tasks in MANY:
        problem = Problem.mlp(width, 3, tasks, device)
        cases: dict[str, Callable[[], object]] = {
            "T calls of autograd.grad": problem.calls,
            "T backward passes, gradients kept": problem.kept,
            "loop by hand, no solver": problem.by_hand,
            "plain step": problem.plain,
        }
        cases |= {f"UPGrad, {passes}": problem.ours("upgrad", passes) for passes in ("loop", "batched", "lean", "auto")}
        cases["torchjd, autogram"] = problem.autogram()
        rows += measure(cases, {"width": width, "T": tasks}, rounds=7, seconds=0.1, warm_up=2)
    return rows


def method_rows(device: str) -> Rows:
    rows: Rows = []
    for width, tasks in MANY:
        problem = Problem.mlp(width, 3, tasks, device)
        cases: dict[str, Callable[[], object]] = {
            "T calls of autograd.grad": problem.calls,
            "torchjd, autogram": problem.autogram(),
        }
        cases |= {f"{m}, {passes}": problem.ours(m, passes) for m in METHODS for passes in ("loop", "auto")}
        rows += measure(cases, {"width": width, "T": tasks}, rounds=5, seconds=0.1, warm_up=2)
    return rows


def growth_rows(device: str) -> Rows:
    """Measure how the time grows with the number of tasks and with the number of parameters."""
    rows: Rows = []
    for width, tasks in GROWTH:
        problem = Problem.mlp(width, 3, tasks, device)
        cases: dict[str, Callable[[], object]] = {"plain step": problem.plain}
        cases |= {f"UPGrad, {passes}": problem.ours("upgrad", passes) for passes in ("loop", "lean")}
        cases["torchjd, autogram"] = problem.autogram()
        known = {"width": width, "parameters": sum(p.numel() for p in problem.shared), "T": tasks}
        rows += measure(cases, known, rounds=5, seconds=0.05, warm_up=2)
    return rows


def crossover_rows(device: str) -> Rows:
    """Measure from which number of tasks on lean passes are faster than a loop, with a method whose solver is fast."""
    rows: Rows = []
    for batch, width, tasks in product((32, 256), *CROSSOVER[device]):
        problem = Problem.mlp(width, 3, tasks, device, batch)
        cases = {passes: problem.ours("imtl-g", passes) for passes in ("loop", "lean", "auto")}
        known = {"batch": batch, "width": width, "T": tasks}
        rows += measure(cases, known, rounds=7, seconds=0.03, warm_up=2, wait=device == "cuda")
    return rows


def large_cases(problem: Problem) -> dict[str, Callable[[], Callable[[], object]]]:
    """Return a function for each case that builds its step."""
    return {
        "plain step": lambda: problem.plain,
        "UPGrad, loop": lambda: problem.ours("upgrad", "loop"),
        "UPGrad, lean": lambda: problem.ours("upgrad", "lean"),
        "UPGrad, auto": lambda: problem.ours("upgrad", "auto"),
        "torchjd, autogram": lambda: problem.autogram(duplicate=False),
    }


def large_rows(device: str) -> Rows:
    rows: Rows = []
    for tasks in LARGE:
        problem = Problem.mlp(2048, 6, tasks, device)
        cases = {name: build() for name, build in large_cases(problem).items() if name != "torchjd, autogram"}
        cases["torchjd, autogram"] = problem.autogram()
        if tasks > 40:
            del cases["UPGrad, loop"]  # would hold 10 GB
        rows += measure(cases, {"T": tasks}, rounds=3, seconds=0.0, warm_up=1)
    return rows


def memory_rows(device: str) -> Rows:
    """Measure the peak resident memory of a process that runs two steps, less that before it builds the network.

    The result is the median of several processes, because the allocator of some holds more.
    """
    rows: Rows = []
    for tasks in LARGE:
        for case in large_cases(Problem.mlp(8, 1, tasks, device)):
            if (tasks > 40 and case == "UPGrad, loop") or case == "UPGrad, auto":
                continue
            command = [sys.executable, __file__, "--one", case, str(tasks)]
            done = [subprocess.run(command, check=True, capture_output=True, text=True) for _ in range(REPEATS)]
            peak = median(float(each.stdout.split()[-1]) for each in done)
            rows.append({"T": tasks, "case": case, "peak MB": round(peak)})
            print(rows[-1], flush=True)
    return rows


def print_peak_memory(case: str, tasks: int) -> None:
    import torchjd.autogram  # noqa: F401  # all cases import the same modules

    large_cases(Problem.mlp(64, 1, tasks, "cpu"))[case]()()  # loads what the step needs
    before = resident_megabytes("VmRSS")
    step = large_cases(Problem.mlp(2048, 6, tasks, "cpu"))[case]()
    for _ in range(2):
        step()
    print(resident_megabytes("VmHWM") - before)


def resident_megabytes(field: str) -> float:
    """Return the resident size of this process, or its peak. That of `getrusage` would include the parent's peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:")) / 2**10


def device_rows(
    device: str, build: Callable[[int], Problem], passes: Sequence[str] = ("loop", "lean"), held: int = 0
) -> Rows:
    """Measure the time and the peak memory of steps on a GPU, for networks that `build` returns.

    Other tensors hold `held` bytes of memory, which are not counted.
    """
    assert device == "cuda", "this part is measured with --device cuda"
    rows: Rows = []
    for tasks in LARGE:
        problem = build(tasks)
        cases: dict[str, Callable[[], object]] = {
            "plain step": problem.plain,
            "T calls of autograd.grad": problem.calls,
        }
        cases |= {f"UPGrad, {mode}": problem.ours("upgrad", mode) for mode in passes}
        found = measure(cases, {"T": tasks}, rounds=3 if tasks <= 40 else 2, seconds=0.0, warm_up=1, wait=True)
        for row in found:
            problem.clear()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            cases[row["case"]]()
            row["peak MB"] = round((torch.cuda.max_memory_allocated() - held) / 2**20)
            print(row["T"], row["case"], row["peak MB"], flush=True)
        rows += found
    return rows


def vit_rows(device: str) -> Rows:
    return device_rows(device, partial(Problem.vit, batch=16))


def mlp_rows(device: str) -> Rows:
    return device_rows(device, lambda tasks: Problem.mlp(2048, 6, tasks, device))


def limited_rows(device: str) -> Rows:
    size = torch.cuda.get_device_properties(device).total_memory - LIMIT
    held = torch.empty(size, dtype=torch.uint8, device=device)
    return device_rows(device, partial(Problem.vit, batch=16), ("auto",), held.nbytes)


PARTS: dict[str, tuple[str, Callable[[str], Rows]]] = {
    "small": ("passes", small_rows),
    "tasks": ("passes_tasks", task_rows),
    "methods": ("passes_methods", method_rows),
    "growth": ("passes_growth", growth_rows),
    "crossover": ("passes_crossover", crossover_rows),
    "large": ("passes_large", large_rows),
    "memory": ("passes_memory", memory_rows),
    "vit": ("passes_vit", vit_rows),
    "mlp": ("passes_mlp", mlp_rows),
    "limited": ("passes_limited", limited_rows),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="default: all parts of the device")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--busy", action="store_true", help="measure the CPU time of one thread, not the wall time")
    parser.add_argument("--out", type=Path, default=FOLDER)
    parser.add_argument("--one", nargs=2, metavar=("CASE", "TASKS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(options.threads)
    if options.busy:
        measure_cpu_time()
    if options.one:
        print_peak_memory(options.one[0], int(options.one[1]))
        return
    device_only = ("vit", "mlp", "limited")
    parts = {
        "cuda": ["small", "crossover", *device_only],
        "cpu": [part for part in PARTS if part not in device_only],
    }
    for part in options.parts or parts[options.device]:
        name, measure_part = PARTS[part]
        save(f"{name}_{options.device}", measure_part(options.device), options.out)


if __name__ == "__main__":
    main()

"""Measure loss-space steps: bare loss vectors on the CPU and on CUDA, and a full training step of the SegNet.

    python benchmarks/loss_space.py [--out FOLDER]

The CPU part compares with torchjd's UW. The CUDA part requires a device and compares with a Kendall step composed of
tensor operations.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from baselines import ComposedKendall, NaiveBPGS
from timing import FOLDER, compare, device_work, save
from torch import Tensor, nn

import counterpoise as cp
from counterpoise.lab.models import SegNet

Rows = list[dict[str, Any]]


def make_step(balancer: Callable[[Tensor], Tensor], losses: Tensor) -> Callable[[], object]:
    return lambda: balancer(losses).backward()


def make_compiled_step(balancer: Callable[[Tensor], Tensor], losses: Tensor) -> Callable[[], object]:
    """Return forward and backward as one compiled graph."""

    def step(leaf: Tensor) -> Tensor:
        value = balancer(leaf)
        value.backward()
        return value.detach()

    compiled = torch.compile(step, fullgraph=True)
    return lambda: compiled(losses)


def random_losses(tasks: int, device: str) -> Tensor:
    return (torch.rand(tasks, device=device) + 0.1).requires_grad_()


def cpu_rows() -> Rows:
    from torchjd.scalarization import UW

    torch.set_num_threads(1)
    rows: Rows = []
    for tasks in (3, 14, 64):
        torch._dynamo.reset()
        eager = {
            "torchjd UW": make_step(UW(tasks), random_losses(tasks, "cpu")),
            "BPGS": make_step(cp.BPGS(tasks), random_losses(tasks, "cpu")),
            "naive BPGS": make_step(NaiveBPGS(tasks), random_losses(tasks, "cpu")),
            "Static": make_step(cp.Static(tasks), random_losses(tasks, "cpu")),
        }
        compiled = {
            "torchjd UW, forward compiled": make_step(
                torch.compile(UW(tasks), fullgraph=True), random_losses(tasks, "cpu")
            ),
            "BPGS, forward compiled": make_step(
                torch.compile(cp.BPGS(tasks), fullgraph=True), random_losses(tasks, "cpu")
            ),
        }
        with torch._dynamo.config.patch(trace_autograd_ops=True):
            compiled["torchjd UW, step compiled"] = make_compiled_step(UW(tasks), random_losses(tasks, "cpu"))
            compiled["BPGS, step compiled"] = make_compiled_step(cp.BPGS(tasks), random_losses(tasks, "cpu"))
            times = compare(eager | compiled)
        rows += [{"T": tasks, "case": name, "us": 1e6 * time, "ratio": ratio} for name, (time, ratio) in times.items()]
    return rows


def cuda_rows() -> Rows:
    rows: Rows = []
    for tasks in (3, 14, 64):
        cases: dict[str, Callable[[], object]] = {
            "composed Kendall": make_step(ComposedKendall(tasks).cuda(), random_losses(tasks, "cuda")),
            "BPGS": make_step(cp.BPGS(tasks).cuda(), random_losses(tasks, "cuda")),
            "naive BPGS": make_step(NaiveBPGS(tasks).cuda(), random_losses(tasks, "cuda")),
        }
        for case in cases.values():
            case()
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            times = compare(cases, wait=False)  # launches dominate; synchronising would hide them behind kernels
        finally:
            torch.cuda.set_sync_debug_mode("default")
        rows += [
            {
                "T": tasks,
                "case": name,
                "us": 1e6 * time,
                "ratio": ratio,
                "kernels": device_work(cases[name])[0],
            }
            for name, (time, ratio) in times.items()
        ]
    return rows


def segnet_rows(batch: int = 8, height: int = 288, width: int = 384) -> Rows:
    """Time a mixed-precision step of the paper's network and batch size on random images, with three methods."""
    torch.backends.cudnn.benchmark = True
    image = torch.rand(batch, 3, height, width, device="cuda").to(memory_format=torch.channels_last)
    label = torch.randint(13, (batch, height, width), device="cuda")
    depth = torch.rand(batch, 1, height, width, device="cuda") * 10
    normals = nn.functional.normalize(torch.randn(batch, 3, height, width, device="cuda"), dim=1)

    def training_step(name: str) -> Callable[[], object]:
        torch.manual_seed(0)
        model = SegNet().cuda()
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        balancer = cp.make(name, ["seg", "depth", "normals"]).cuda()
        groups = [{"params": model.parameters()}, *balancer.param_groups()]
        optimizer = torch.optim.AdamW(groups, lr=5e-4, fused=True)
        scaler = torch.amp.GradScaler("cuda")

        def step() -> None:
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cuda", dtype=torch.float16):
                out = model(image)
            losses = {
                "seg": nn.functional.cross_entropy(out["seg"].float(), label),
                "depth": nn.functional.l1_loss(out["depth"].float(), depth),
                "normals": (1 - nn.functional.cosine_similarity(out["normals"].float(), normals)).mean(),
            }
            scaler.scale(balancer(losses)).backward()
            scaler.step(optimizer)
            scaler.update()

        return step

    cases = {name: training_step(name) for name in ("static", "kendall", "bpgs")}
    times = compare(cases, rounds=200, seconds=0.05, wait=True)
    rows: Rows = []
    for name, (time, ratio) in times.items():
        kernels, busy = device_work(cases[name])
        rows.append({"case": name, "ms": 1e3 * time, "ratio": ratio, "kernels": kernels, "device ms": 1e3 * busy})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=FOLDER)
    out = parser.parse_args().out
    if torch.cuda.is_available():
        save("loss_space_cuda", cuda_rows(), out)
        save("segnet_cuda", segnet_rows(), out)
    else:
        save("loss_space_cpu", cpu_rows(), out)


if __name__ == "__main__":
    main()

"""What a loss-space step costs: bare loss vectors on the CPU and on CUDA, and a full training step of the SegNet.

    python benchmarks/loss_space.py [--out FOLDER]

The CPU part compares with torchjd's UW; the CUDA part runs where there is a device and compares with a Kendall step
composed of tensor operations.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from composed import ComposedKendall, NaiveBPGS
from timing import FOLDER, compare, device_work, save
from torch import Tensor, nn

import counterpoise as cp
from counterpoise.lab.models import SegNet

Rows = list[dict[str, Any]]


def step_of(balancer: Callable[[Tensor], Tensor], losses: Tensor) -> Callable[[], object]:
    return lambda: balancer(losses).backward()


def whole_step_of(balancer: Callable[[Tensor], Tensor], losses: Tensor) -> Callable[[], object]:
    """Forward and backward as one compiled graph."""

    def step(leaf: Tensor) -> Tensor:
        value = balancer(leaf)
        value.backward()
        return value.detach()

    compiled = torch.compile(step, fullgraph=True)
    return lambda: compiled(losses)


def draw(tasks: int, device: str) -> Tensor:
    return (torch.rand(tasks, device=device) + 0.1).requires_grad_()


def cpu_rows() -> Rows:
    from torchjd.scalarization import UW

    torch.set_num_threads(1)
    rows: Rows = []
    for tasks in (3, 14, 64):
        torch._dynamo.reset()
        eager = {
            "torchjd UW": step_of(UW(tasks), draw(tasks, "cpu")),
            "BPGS": step_of(cp.BPGS(tasks), draw(tasks, "cpu")),
            "naive BPGS": step_of(NaiveBPGS(tasks), draw(tasks, "cpu")),
            "Static": step_of(cp.Static(tasks), draw(tasks, "cpu")),
        }
        compiled = {
            "torchjd UW, forward compiled": step_of(torch.compile(UW(tasks), fullgraph=True), draw(tasks, "cpu")),
            "BPGS, forward compiled": step_of(torch.compile(cp.BPGS(tasks), fullgraph=True), draw(tasks, "cpu")),
        }
        with torch._dynamo.config.patch(trace_autograd_ops=True):
            compiled["torchjd UW, step compiled"] = whole_step_of(UW(tasks), draw(tasks, "cpu"))
            compiled["BPGS, step compiled"] = whole_step_of(cp.BPGS(tasks), draw(tasks, "cpu"))
            times = compare(eager | compiled)
        rows += [{"T": tasks, "case": name, "us": 1e6 * time, "ratio": ratio} for name, (time, ratio) in times.items()]
    return rows


def cuda_rows() -> Rows:
    rows: Rows = []
    for tasks in (3, 14, 64):
        cases: dict[str, Callable[[], object]] = {
            "composed Kendall": step_of(ComposedKendall(tasks).cuda(), draw(tasks, "cuda")),
            "BPGS": step_of(cp.BPGS(tasks).cuda(), draw(tasks, "cuda")),
            "naive BPGS": step_of(NaiveBPGS(tasks).cuda(), draw(tasks, "cuda")),
        }
        for case in cases.values():
            case()
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            times = compare(cases, wait=False)  # launches are the cost; waiting would hide them behind each other
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
    """The paper's network and batch, mixed precision, random images: does balancing show?"""
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

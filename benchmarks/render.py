"""Write the recorded results into the tables of benchmarks/README.md."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from timing import FOLDER

from counterpoise.lab.report.markdown import markdown_table

MODES = ("loop", "batched", "batched through features", "features")
PAGE = Path(__file__).parent / "README.md"
RECORDED_STEPS = "benchmarks/results/gradient_space_cuda.json"
STEP_TIMES = Path(__file__).parents[1] / "src" / "counterpoise" / "lab" / "report" / "step_times.json"


def load(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return content


def origin(machine: dict[str, str], threads: int | None = None) -> str:
    device = machine.get("gpu") or machine["cpu"] + (f", threads: {threads}" if threads else "")
    details = "".join(f" {machine[name]}." for name in ("clock", "setting") if name in machine)
    return f"{machine['date']}: {device}, torch {machine['torch']}, Python {machine['python']}.{details}"


def by_tasks(name: str) -> str:
    """Return a table of cases by numbers of tasks: microseconds and the ratio to the first case."""
    content = load(name)
    rows = content["rows"]
    sizes = sorted({row["T"] for row in rows})
    cells = {(row["case"], row["T"]): row for row in rows}
    kernels = "kernels" in rows[0]
    lines = [
        "| case |" + "".join(f" T = {t} |" for t in sizes) + (" kernels |" if kernels else ""),
        "| --- |" + " ---: |" * (len(sizes) + kernels),
    ]
    for case in dict.fromkeys(row["case"] for row in rows):
        line = f"| {case} |"
        for t in sizes:
            row = cells[case, t]
            line += f" {row['us']:.0f} µs, {row['ratio']:.2f} × |"
        lines.append(line + (f" {cells[case, sizes[0]]['kernels']} |" if kernels else ""))
    return "\n".join([*lines, "", origin(content["machine"])])


def segnet() -> str:
    content = load("segnet_cuda")
    lines = [
        "| method | ms per step | relative to Static | kernels | device busy, ms |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for row in content["rows"]:
        change = f"{100 * (row['ratio'] - 1):+.2f} %"
        lines.append(f"| {row['case']} | {row['ms']:.2f} | {change} | {row['kernels']} | {row['device ms']:.2f} |")
    return "\n".join([*lines, "", origin(content["machine"])])


def solver_cell(row: dict[str, Any]) -> str:
    """Return one matrix compared with torchjd, and 256 at once compared with one."""
    batch = "" if row["256 / 1"] is None else f"; 256: {row['256 / 1']:.1f} ×"
    return f"{row['us']:.0f} µs, {row['faster']:.1f} ×{batch}"


def support_cell(row: dict[str, Any]) -> str:
    """Return the time with all supports and the kernel, if there is one, and that of rounds relative to it."""
    fastest = row.get("one kernel", row["all supports"])
    return f"{fastest:.0f} µs, {row['rounds'] / fastest:.1f} ×"


def steps() -> str:
    """Return the table of training steps: ratios to a plain step, for our modes and torchjd's best one."""
    content = load("gradient_space_steps")
    lines = ["| network | method | " + " | ".join(MODES) + " | torchjd, best mode |", "| --- | --- |" + " ---: |" * 5]
    groups: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for row in content["rows"]:
        groups.setdefault((row["net"], row["method"]), {})[row["case"]] = row
    for (net, method), cases in groups.items():
        best = min((row for case, row in cases.items() if case.startswith("torchjd")), key=lambda row: row["ratio"])
        mine = " | ".join(f"{cases[f'ours, {mode}']['ratio']:.2f}" for mode in MODES)
        lines.append(f"| {net} | {method} | {mine} | {best['ratio']:.2f} ({best['case'].split(', ')[1]}) |")
    return "\n".join([*lines, "", origin(content["machine"])])


def device_steps() -> str:
    content = load("gradient_space_cuda")
    lines = [
        "| precision | case | ms per step | relative to a plain step | kernels | device busy, ms | peak MB |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in content["rows"]:
        numbers = (
            f"{row['ms']:.1f} | {row['ratio']:.2f} × | {row['kernels']} | {row['device ms']:.1f} | {row['peak MB']}"
        )
        lines.append(f"| {row['precision']} | {row['case']} | {numbers} |")
    return "\n".join([*lines, "", origin(content["machine"])])


def dense() -> str:
    """Return the table of NYUv2: the times of an epoch after the first one, which compiles."""
    content = load("dense_cuda")
    lines = [
        "| method | training epoch, s | first epoch, s | ms per step | validation, s | peak MB | host syncs |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in content["rows"]:
        times = (
            f"{row['train'][-1]:.2f} | {row['train'][0]:.1f} | {row['ms per step']:.1f} | {row['validation'][-1]:.2f}"
        )
        lines.append(f"| {row['method']} | {times} | {row['memory_mb']} | {row['waits']} |")
    loaded = f"{content['images']} images are loaded, with their normals derived, in {content['load']:.1f} s."
    return "\n".join([*lines, "", loaded, f"{content['device']}, torch {content['torch']}."])


def diagnostics() -> str:
    """Return the table of diagnostics: measurements and verdicts of each problem over ten seeds."""
    content = load("diagnostics_problems")
    lines = ["| problem | expected | decades | conflicting pairs | verdicts |", "| --- | --- | ---: | ---: | --- |"]
    for row in content["rows"]:
        decades = "{:.1f} to {:.1f}".format(*row["decades"])
        pairs = "{:.0%} to {:.0%}".format(*row["conflicting"])
        said = ", ".join(f"{verdict} {count}" for verdict, count in row["verdicts"].items())
        lines.append(f"| {row['problem']} | {row['truth'] or '–'} | {decades} | {pairs} | {said} |")
    cost = load("diagnostics_cost")["rows"][0]["ratio"]
    monitored = f"A monitored step of the smallest network takes {cost:.2f} times as long as a plain one."
    return "\n".join([*lines, "", monitored, origin(content["machine"])])


def methods_by_tasks(name: str, cell: Callable[[dict[str, Any]], str]) -> str:
    """Return a table of methods by numbers of tasks."""
    content = load(name)
    sizes = sorted({row["T"] for row in content["rows"]})
    cells = {(row["method"], row["T"]): cell(row) for row in content["rows"]}
    lines = ["| method |" + "".join(f" T = {t} |" for t in sizes), "| --- |" + " ---: |" * len(sizes)]
    for method in dict.fromkeys(row["method"] for row in content["rows"]):
        lines.append(f"| {method} |" + "".join(f" {cells[method, t]} |" for t in sizes))
    return "\n".join([*lines, "", origin(content["machine"])])


def gradient_scale() -> str:
    """Return the table of training steps with weights from gradient norms, for both networks."""
    lines = [
        "| network | precision | case | ms per step | relative to a plain step |",
        "| --- | --- | --- | ---: | ---: |",
    ]
    origins = []
    for name in ("gradient_scale_cuda", "gradient_scale_cpu"):
        content = load(name)
        for row in content["rows"]:
            lines.append(
                f"| {row['net']} | {row['precision']} | {row['case']} | {row['ms']:.1f} | {row['ratio']:.2f} × |"
            )
        origins.append(origin(content["machine"]))
    return "\n".join([*lines, "", *origins])


def many_tasks() -> str:
    """Return the table of steps with many tasks: ratios to T calls of autograd.grad."""
    content = load("passes_tasks_cpu")
    cases = [case for case in dict.fromkeys(row["case"] for row in content["rows"]) if not case.startswith("T calls")]
    groups: dict[tuple[int, int], dict[str, float]] = {}
    for row in content["rows"]:
        groups.setdefault((row["width"], row["T"]), {})[row["case"]] = row["ratio"]
    lines = ["| width | T | " + " | ".join(cases) + " |", "| ---: | ---: |" + " ---: |" * len(cases)]
    for (width, tasks), ratios in groups.items():
        lines.append(f"| {width} | {tasks} | " + " | ".join(f"{ratios[case]:.2f}" for case in cases) + " |")
    return "\n".join([*lines, "", origin(content["machine"], content["rows"][0]["threads"])])


def many_tasks_by_method() -> str:
    """Return for each method the ratio of a loop to T calls, and how much faster than autogram the default is."""
    content = load("passes_methods_cpu")
    ratios = {(row["width"], row["T"], row["case"]): row["ratio"] for row in content["rows"]}
    sizes = list(dict.fromkeys((width, tasks) for width, tasks, _ in ratios))
    methods = dict.fromkeys(case.split(", ")[0] for _, _, case in ratios if case.endswith(", auto"))
    heads = "".join(f" T = {tasks}{'' if width == sizes[0][0] else f', width {width}'} |" for width, tasks in sizes)
    lines = ["| method |" + heads, "| --- |" + " ---: |" * len(sizes)]
    for method in methods:
        line = f"| {method} |"
        for size in sizes:
            faster = ratios[*size, "torchjd, autogram"] / ratios[*size, f"{method}, auto"]
            line += f" {ratios[*size, f'{method}, loop']:.2f}; {faster:.1f} × |"
        lines.append(line)
    return "\n".join([*lines, "", origin(content["machine"], content["rows"][0]["threads"])])


def lean_or_loop(name: str) -> str:
    """Return the table of lean passes and of the automatic choice: ratios to a loop."""
    content = load(name)
    ratios = {(row["batch"], row["width"], row["T"], row["case"]): row["ratio"] for row in content["rows"]}
    sizes = sorted({tasks for _, _, tasks, _ in ratios})
    lines = [
        "| batch | width |" + "".join(f" T = {tasks} |" for tasks in sizes),
        "| ---: | ---: |" + " ---: |" * len(sizes),
    ]
    for batch, width in dict.fromkeys((batch, width) for batch, width, _, _ in ratios):
        cells = [[ratios[batch, width, tasks, case] for case in ("lean", "auto")] for tasks in sizes]
        lines.append(f"| {batch} | {width} |" + "".join(f" {lean:.2f}; {auto:.2f} |" for lean, auto in cells))
    return "\n".join([*lines, "", origin(content["machine"], content["rows"][0]["threads"])])


def large_models(times: str, memory: str) -> str:
    """Return the table of large models: time and peak memory relative to a plain step."""
    content = load(times)
    peaks = {(row["T"], row["case"]): row["peak MB"] for row in load(memory)["rows"]}
    lines = ["| T | case | ms per step | time | peak MB | memory |", "| ---: | --- | ---: | ---: | ---: | ---: |"]
    for row in content["rows"]:
        peak = peaks.get((row["T"], row["case"]))
        size = "– | –" if peak is None else f"{peak} | {peak / peaks[row['T'], 'plain step']:.2f} ×"
        lines.append(f"| {row['T']} | {row['case']} | {row['ms']:.0f} | {row['ratio']:.2f} × | {size} |")
    return "\n".join([*lines, "", origin(content["machine"], content["rows"][0]["threads"])])


def transformer(name: str) -> str:
    """Return the table of a transformer at scale: time and memory relative to a plain step."""
    content = load(name)
    lines = ["| tasks | case | ms per step | time | peak MB | memory | kernels |", "| --- | --- |" + " ---: |" * 5]
    plain: dict[str, Any] = {}
    for row in content["rows"]:
        plain = row if row["case"] == "plain step" else plain
        time, memory = (f"{100 * (ratio - 1):+.1f} %" for ratio in (row["ratio"], row["peak MB"] / plain["peak MB"]))
        cells = [row["tasks"], row["case"], f"{row['ms']:.1f}", time, f"{row['peak MB']}", memory, f"{row['kernels']}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", origin(content["machine"])])


def physics() -> str:
    """Return the table of stacks of physics-informed networks: time per step, and minutes for 50,000 steps."""
    content = load("pinn_stack_cuda")
    minutes = [(50 * row["ms per step"] + row["first calls s"]) / 60 for row in content["rows"]]
    rows = [
        [f"`{row['study']}`", f"{row['runs']}", f"{row['ms per step']:.2f}", f"{each:.1f}", f"{row['GiB']:.1f}"]
        for row, each in zip(content["rows"], minutes, strict=True)
    ]
    heads = ["study", "runs in the stack", "ms per step", "50,000 steps, min", "GiB"]
    total = f"All stacks: {sum(minutes):.1f} minutes."
    return f"{markdown_table(heads, rows, right=range(1, 5))}\n\n{total}\n{origin(content['machine'])}"


def molecules() -> str:
    """Return the table of stacks of networks for QM9, relative to the loop of torch-geometric with its loader."""
    content = load("qm9_stack_cuda")
    anchor = next((row["s per epoch"] for row in content["rows"] if row["case"].endswith("with its loader")), None)
    rows = []
    for row in content["rows"]:
        faster = f"{anchor / (row['s per epoch'] / row['runs']):.1f} × as fast" if anchor else "–"
        memory = f"{row['GiB']:.1f}" if "GiB" in row else "–"
        times = [f"{row['ms per step']:.2f}", f"{row['s per epoch']:.2f}", faster]
        rows.append([row["case"], f"{row['runs']}", *times, f"{row['kernels']}", memory])
    heads = ["case", "runs", "ms per step", "s per epoch", "per run, relative to torch-geometric", "kernels", "GiB"]
    return f"{markdown_table(heads, rows, right=range(1, 7))}\n\n{origin(content['machine'])}"


def forms_on_device(name: str) -> str:
    """Return the table of loss-space methods on a device: ratios to the stacked sum, and further kernels."""
    return methods_by_tasks(name, lambda row: f"{row['dictionary']:.2f} ×, {row['kernels']:+d}")


def report() -> str:
    """Return the table of the time of reports and the size of their pages."""
    content = load("report_cpu")
    lines = [
        "| report on | runs | figures | seconds | CPU seconds | page, MB |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in content["rows"]:
        numbers = f"{row['seconds']:.1f} | {row['CPU seconds']:.1f} | {row['page MB']:.1f}"
        lines.append(f"| {row['report']} | {row['runs']:,} | {row['figures']} | {numbers} |")
    return "\n".join([*lines, "", origin(content["machine"])])


def start() -> str:
    """Return the table of the time of commands that only start."""
    content = load("start_cpu")
    rows = [[f"`{row['command']}`", f"{row['seconds']:.2f}", f"{row['ratio']:.2f} ×"] for row in content["rows"]]
    table = markdown_table(["command", "seconds", "relative to the first"], rows, right=(1, 2))
    return f"{table}\n\n{origin(content['machine'])}"


def write_step_times() -> None:
    """Write the times of a step that the report shows."""
    content = load("gradient_space_cuda")
    rows = {row["case"]: row for row in content["rows"] if row["precision"] == "float32"}
    methods = [case.removesuffix(", features") for case in rows if case.endswith(", features")]
    times = {
        name: {
            method: [rows[case][key] if case in rows else None for case in (f"{method}, loop", f"{method}, features")]
            for method in methods
        }
        for name, key in (("milliseconds", "ms"), ("ratios", "ratio"))
    }
    machine = f"{content['machine']['gpu']}, {content['machine']['date']}"
    setting = f"three tasks of a SegNet, 288 × 384, batch 8, float32, {machine}; recorded in {RECORDED_STEPS}"
    found = {"setting": setting, "plain": rows["plain step"]["ms"]} | times
    STEP_TIMES.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


def main() -> None:
    write_step_times()
    text = PAGE.read_text()
    tables = {
        "cpu": by_tasks("loss_space_cpu"),
        "cuda": by_tasks("loss_space_cuda"),
        "segnet": segnet(),
        "solvers": methods_by_tasks("gradient_space_solvers", solver_cell),
        "steps": steps(),
        "device steps": device_steps(),
        "peers": methods_by_tasks("gram_solvers_peer", lambda row: f"{row['us']:.0f} µs, {row['faster']:.1f} ×"),
        "supports": methods_by_tasks("supports_cuda", support_cell),
        "gradient scale": gradient_scale(),
        "checks": methods_by_tasks("checks_cpu", lambda row: f"{100 * (row['ratio'] - 1):+.1f} %"),
        "forms": methods_by_tasks("loss_space_forms_cpu", lambda row: f"{row['dictionary']:.2f} ×"),
        "many tasks": many_tasks(),
        "many tasks by method": many_tasks_by_method(),
        "lean or loop": lean_or_loop("passes_crossover_cpu"),
        "lean or loop on CUDA": lean_or_loop("passes_crossover_cuda"),
        "forms on CUDA": forms_on_device("loss_space_forms_cuda"),
        "forms on CUDA, no graphs": forms_on_device("loss_space_forms_cuda_no_graphs"),
        "large models": large_models("passes_large_cpu", "passes_memory_cpu"),
        "large models on CUDA": large_models("passes_vit_cuda", "passes_vit_cuda"),
        "large MLP on CUDA": large_models("passes_mlp_cuda", "passes_mlp_cuda"),
        "limited memory on CUDA": large_models("passes_limited_cuda", "passes_limited_cuda"),
        "transformer": transformer("transformer_cuda"),
        "transformer, no graphs": transformer("transformer_cuda_no_graphs"),
        "dense": dense(),
        "diagnostics": diagnostics(),
        "physics": physics(),
        "report": report(),
        "start": start(),
    }
    if (FOLDER / "qm9_stack_cuda.json").exists():
        tables["molecules"] = molecules()
    for title, content in tables.items():
        pattern = re.compile(rf"(<!-- {title} -->\n).*?(<!-- /{title} -->)", re.DOTALL)
        text = pattern.sub(lambda found, content=content: f"{found[1]}{content}\n{found[2]}", text)  # type: ignore[misc]
    PAGE.write_text(text)


if __name__ == "__main__":
    main()

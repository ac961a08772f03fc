"""Turns the results of the last runs into the tables of benchmarks/README.md."""

import json
import re
from pathlib import Path
from typing import Any

from timing import FOLDER

PAGE = Path(__file__).parent / "README.md"


def load(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return content


def origin(machine: dict[str, str]) -> str:
    device = machine.get("gpu") or machine["cpu"]
    return f"{machine['date']}: {device}, torch {machine['torch']}, Python {machine['python']}."


def by_tasks(name: str) -> str:
    """Cases down, numbers of tasks across: microseconds and the ratio to the first case."""
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
        "| method | ms a step | against Static | kernels | device busy, ms |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for row in content["rows"]:
        change = f"{100 * (row['ratio'] - 1):+.2f} %"
        lines.append(f"| {row['case']} | {row['ms']:.2f} | {change} | {row['kernels']} | {row['device ms']:.2f} |")
    return "\n".join([*lines, "", origin(content["machine"])])


def main() -> None:
    text = PAGE.read_text()
    tables = {
        "cpu": by_tasks("loss_space_cpu"),
        "cuda": by_tasks("loss_space_cuda"),
        "segnet": segnet(),
    }
    for name, table in tables.items():
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        text = pattern.sub(lambda found, table=table: f"{found[1]}{table}\n{found[2]}", text)  # type: ignore[misc]
    PAGE.write_text(text)


if __name__ == "__main__":
    main()

"""Kill `counterpoise reproduce` at random moments, damage its files, resume it, and compare every byte.

    python tools/soak.py --kills 100 --seed 0

Each round draws a random subset of a study's runs and trains it twice: once without interruption, and once in a
folder where the whole process group is killed by SIGKILL several times. Between two kills, random files are damaged. At
the end the command runs to its end, and both folders must be equal. Not compared are circumstances.json (dates and
durations), the dates in report/made.md, and temporary files of killed processes.

The exit code is 1 if a file differs, if the command fails in another way than by an error that names a path which only
the user can delete, or if it does not end.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from soak_damage import KINDS, OBSTACLES, REPORT, Damage, damage_one, delete_runs, files_of, is_temporary, remove

from counterpoise.lab.engine.store import CHECKPOINT, CIRCUMSTANCES, RESULT
from counterpoise.lab.files import write_atomic
from counterpoise.lab.studies import STUDIES
from counterpoise.lab.studies.select import select_runs

COMMAND = [sys.executable, str(Path(__file__).with_name("soak_reproduce.py")), "reproduce"]
SYNTHETIC = ("rescaling", "normalisation", "scale-stress", "heterogeneous")
CANDIDATES = (*SYNTHETIC, "learning-theta", *(f"beyond-{name}" for name in SYNTHETIC if name != "normalisation"))
FEWEST_RUNS, MOST_RUNS = 3, 8
KILLS_PER_ROUND = 10
PHASES = ("start", "training", "results", "report")
INTERRUPTED = threading.Event()


class SoakError(Exception):
    """The command crashed, failed without a reason that the soak knows, or did not end."""


@dataclass
class Subset:
    """Arguments of `reproduce`, and how many runs they select."""

    arguments: list[str]
    runs: int


@dataclass
class Outcome:
    """How a command ended: its exit code, or None if it was killed, its errors, and when it wrote its first file."""

    code: int | None
    errors: str
    seconds: float
    first_file: float


@dataclass
class Round:
    """What happened in one round."""

    arguments: list[str]
    runs: int
    seconds: float = 0.0
    kills: Counter[str] = field(default_factory=Counter)  # by phase
    checkpoints: int = 0  # found by the next command
    finished: int = 0
    damage: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    compared: int = 0
    compared_bytes: int = 0
    temporary: int = 0
    differences: list[str] = field(default_factory=list)


def draw_subset(rng: random.Random) -> Subset:
    """Draw a study, some of its methods, conditions and seeds, and a number of epochs."""
    study = STUDIES[rng.choice(CANDIDATES)]
    while True:
        methods = rng.sample(sorted(study.methods), rng.randint(1, min(4, len(study.methods))))
        keys = [condition.key for condition in study.conditions if not condition.opt_in]
        conditions = rng.sample(keys, rng.randint(1, min(3, len(keys))))
        first = rng.randint(40, 50)
        seeds = f"{first}-{first + rng.randint(0, 2)}"
        epochs = rng.choice([None, 4, 8])  # with all epochs, the paper's claims are judged
        count = len(select_runs(study, seeds=seeds, epochs=epochs, methods=methods, conditions=conditions))
        if FEWEST_RUNS <= count <= MOST_RUNS:
            break
    arguments = [study.name, "--seeds", seeds]
    arguments += [] if epochs is None else ["--epochs", str(epochs)]
    arguments += [word for name in methods for word in ("--method", name)]
    arguments += [word for name in conditions for word in ("--condition", name)]
    return Subset(arguments, count)


def run(arguments: Sequence[str], out: Path, *, kill_after: float | None, limit: float) -> Outcome:
    """Run `reproduce` in a process group of its own, and kill the group after some seconds if it still runs.

    Raises:
        SoakError: if the command does not end within the limit, or if the soak is interrupted.
    """
    command = [*COMMAND, *arguments, "--out", str(out)]
    started = time.monotonic()
    first_file = 0.0
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True
    ) as process:
        try:
            while True:
                elapsed = time.monotonic() - started
                if not first_file and any(out.glob("*/*/*")):
                    first_file = elapsed
                end = limit if kill_after is None else min(kill_after, limit)
                if elapsed >= end or INTERRUPTED.is_set():
                    break
                try:
                    _, errors = process.communicate(timeout=min(0.05, end - elapsed))
                except subprocess.TimeoutExpired:
                    continue
                return Outcome(process.returncode, errors, time.monotonic() - started, first_file)
        finally:
            if process.returncode is None:  # not reaped yet, so the group still has this number
                os.killpg(process.pid, signal.SIGKILL)
        # All processes of the group have inherited stderr: its end means that all of them are gone.
        _, errors = process.communicate()
    if INTERRUPTED.is_set():
        raise SoakError("interrupted")
    if kill_after is None or kill_after > limit:
        raise SoakError(f"did not end within {limit:.0f} s: {errors[-2000:]}")
    return Outcome(None, errors, time.monotonic() - started, first_file)


def snapshot(folder: Path) -> dict[Path, int]:
    """Return the modification time of each file."""
    return {path: path.lstat().st_mtime_ns for path in files_of(folder)} if folder.exists() else {}


def phase(folder: Path, before: dict[Path, int]) -> str:
    """Return what a killed command was doing, according to the files that it had written."""
    changed = [path.relative_to(folder) for path, stamp in snapshot(folder).items() if before.get(path) != stamp]
    if any(path.parts[0] == REPORT for path in changed):
        return "report"
    if any(path.name == RESULT for path in changed):
        return "results"
    return "training" if changed else "start"


def comparable(folder: Path) -> dict[str, bytes]:
    """Return the content of each file that must be the same in every training of the same runs."""
    found = {}
    for path in files_of(folder):
        content = path.read_bytes() if path.is_file() else b"not a regular file"
        if path.name == "made.md":
            content = content.split(b"- date")[0]
        if CIRCUMSTANCES not in path.parts:
            found[str(path.relative_to(folder))] = content
    return found


def check_refusal(outcome: Outcome, obstacles: list[Path]) -> Path:
    """Return the path that only the user can delete and that an error names.

    Raises:
        SoakError: if the error is something else.
    """
    named = [path for path in obstacles if str(path) in outcome.errors]
    if outcome.code != 2 or "Traceback" in outcome.errors or not named:
        raise SoakError(f"exit code {outcome.code}: {outcome.errors[-4000:]}")
    return named[0]


class Soak:
    """One round: trains a subset without and with kills, and compares.

    Args:
        number: of the round.
        subset: the runs to train.
        kills: how often to kill the second training.
        folder: where both trainings write.
        rng: the source of all random choices.
    """

    def __init__(self, number: int, subset: Subset, kills: int, folder: Path, rng: random.Random) -> None:
        self.number, self.subset, self.kills, self.rng = number, subset, kills, rng
        self.record = Round(subset.arguments, subset.runs)
        self.folder, self.reference, self.out = folder, folder / "uninterrupted", folder / "killed"
        self.obstacles: list[Path] = []  # paths that only the user can delete

    def run(self) -> None:
        """Run the round.

        Raises:
            SoakError: if the command fails otherwise than by refusing a path that only the user can delete, or if a
                file differs.
        """
        print(f"round {self.number}  {self.subset.runs} runs of {' '.join(self.subset.arguments)}", flush=True)
        whole = run(self.subset.arguments, self.reference, kill_after=None, limit=600.0)
        if whole.code != 0:
            raise SoakError(f"exit code {whole.code} without a kill: {whole.errors[-4000:]}")
        self.record.seconds = whole.seconds
        while True:
            last = self.record.kills.total() >= self.kills
            early = self.rng.random() < 0.1
            moment = self.rng.uniform(*((0.0, whole.first_file) if early else (whole.first_file, whole.seconds)))
            event, code = self._attempt(None if last else moment, limit=60.0 + 20.0 * whole.seconds)
            if last and code == 0:
                break
            damage = [] if last else self._damage()
            results = f"{self._results()}/{self.subset.runs} results"
            print(f"round {self.number}  {event:42s}  {results}  {describe(damage, self.out)}", flush=True)
        self._compare()
        if self.record.differences:
            raise SoakError(f"different files: {', '.join(self.record.differences)}")
        print(f"round {self.number}  all {self.record.compared} files are the same", flush=True)
        shutil.rmtree(self.folder)

    def _attempt(self, moment: float | None, limit: float) -> tuple[str, int | None]:
        """Run the command once; return what happened, and its exit code or None if it was killed."""
        before, checkpoints = snapshot(self.out), len(list(self.out.rglob(CHECKPOINT)))
        executor = self.rng.choice([["--executor", "inline"], ["--jobs", "1"], ["--jobs", "2"]])
        outcome = run([*self.subset.arguments, *executor], self.out, kill_after=moment, limit=limit)
        if outcome.code is None:
            where = phase(self.out, before)
            self.record.kills[where] += 1
            self.record.checkpoints += checkpoints
            return f"kill {self.record.kills.total():2d}  after {outcome.seconds:5.2f} s, {where}", None
        if outcome.code == 0:
            self.record.finished += 1
            self.record.checkpoints += checkpoints
            return f"finished in {outcome.seconds:.2f} s", 0
        path = check_refusal(outcome, self.obstacles)
        remove(path)
        self.obstacles.remove(path)
        self.record.refused += 1
        return f"refused {path.relative_to(self.out)}, which is deleted", outcome.code

    def _damage(self) -> list[Damage]:
        """Damage up to three files, and delete some runs if all are finished."""
        done = []
        if self._results() == self.subset.runs and self.rng.random() < 0.8:
            done = delete_runs(self.out, self.rng, self.rng.uniform(0.2, 1.0))
        done += [damage for _ in range(self.rng.randint(0, 3)) if (damage := damage_one(self.out, self.rng))]
        self.obstacles += [damage.path for damage in done if damage.kind in OBSTACLES]
        self.record.damage.update(damage.kind for damage in done)
        return done

    def _results(self) -> int:
        return len(list(self.out.rglob(RESULT)))

    def _compare(self) -> None:
        expected, found = comparable(self.reference), comparable(self.out)
        record = self.record
        record.compared, record.compared_bytes = len(expected), sum(map(len, expected.values()))
        record.differences = sorted(name for name in expected.keys() | found if expected.get(name) != found.get(name))
        record.temporary = sum(is_temporary(path.relative_to(self.out)) for path in self.out.rglob("*"))


def describe(done: Iterable[Damage], folder: Path) -> str:
    kinds = Counter(damage.kind for damage in done)
    missing = kinds.get("missing folder", 0)
    words = [f"{d.kind}: {d.path.relative_to(folder)}" for d in done if d.kind != "missing folder"]
    return "; ".join(words + ([f"{missing} run folders deleted"] if missing else []))


def summary(rounds: Sequence[Round], seconds: float) -> str:
    """Return the rounds as a Markdown table, and the totals."""
    heads = ["subset", "runs", "kills", *PHASES, "checkpoints", "damaged", "refused", "files", "different"]
    rows = []
    for each in rounds:
        words = " ".join(each.arguments)
        numbers = [each.runs, each.kills.total(), *(each.kills[name] for name in PHASES), each.checkpoints]
        numbers += [each.damage.total(), each.refused, each.compared, len(each.differences)]
        rows.append([words, *map(str, numbers)])
    totals = [sum(int(row[column]) for row in rows) for column in range(1, len(heads))]
    rows.append(["all", *map(str, totals)])
    lines = [f"| {' | '.join(row)} |" for row in [heads, ["---", *["--:"] * (len(heads) - 1)], *rows]]
    damage: Counter[str] = sum((each.damage for each in rounds), Counter())
    lines += ["", "damage: " + ", ".join(f"{kind} {damage[kind]}" for kind in KINDS)]
    lines += [f"{sum(each.compared_bytes for each in rounds):,} bytes compared; {seconds / 60:.1f} minutes"]
    lines += [f"temporary files left: {sum(each.temporary for each in rounds)}"]
    return "\n".join(lines)


def attempt_round(one: Soak) -> str:
    """Run a round. Return why it failed, and where its files are; empty if it succeeded."""
    try:
        one.run()
    except SoakError as error:
        return f"round {one.number}: {error}\nIts files are in {one.folder}."
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="number of kills (default: 100)")
    parser.add_argument("--seed", type=int, default=0, help="seed of all random choices (default: 0)")
    parser.add_argument("--jobs", type=int, default=1, help="rounds at a time (default: 1)")
    parser.add_argument("--out", type=Path, help="file for the record of all rounds, as JSON")
    options = parser.parse_args()
    for interrupt in (signal.SIGINT, signal.SIGTERM):
        signal.signal(interrupt, lambda *_: INTERRUPTED.set())  # ends the running commands
    started, folder = time.monotonic(), Path(tempfile.mkdtemp(prefix="counterpoise-soak-"))
    rounds = []
    for number, first in enumerate(range(0, options.kills, KILLS_PER_ROUND), 1):
        rng = random.Random(f"{options.seed} {number}")
        kills = min(KILLS_PER_ROUND, options.kills - first)
        rounds.append(Soak(number, draw_subset(rng), kills, folder / f"round-{number}", rng))
    with ThreadPoolExecutor(options.jobs) as pool:
        failures = [failure for failure in pool.map(attempt_round, rounds) if failure]
    records = [each.record for each in rounds]
    print(f"\n{summary(records, time.monotonic() - started)}")
    if options.out is not None:
        body = {"seed": options.seed, "failures": failures, "rounds": [vars(record) for record in records]}
        write_atomic(options.out, json.dumps(body, indent=1).encode())
    for failure in failures:
        print(f"\nFAILED: {failure}")
    if not failures:
        shutil.rmtree(folder)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

"""Everything that a set of studies ends as, on disk and in the terminal."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import pandas as pd
from rich.console import Console

from ..data.dense import DENSE
from ..files import write_whole
from ..studies import Study
from . import latex, ledger, ranks, saturation, tables
from .figures import dense, diagrams, dynamics, rendering, scores, training
from .figures.spec import Drawing, Look
from .figures.style import LOOKS, nth
from .results import Results, Which, best_rates, collect, histories


def seed_sets(study: Study, seeds: Sequence[int] | None) -> list[tuple[int, ...]]:
    """At which seeds a study is reported: the paper's, and the ten or those that were asked for."""
    if seeds is not None:
        return list(dict.fromkeys([study.seeds, tuple(seeds)])) if set(study.seeds) < set(seeds) else [tuple(seeds)]
    return [study.seeds] if study.brief else list(dict.fromkeys([study.seeds, study.ten]))


class Book:
    """The results of some studies, ready to be shown and written.

    Args:
        recorded: the scores of each study's runs, where they are known already; otherwise they are collected.
        sets: at which seeds each study is reported, where that is not what `seeds` means.
    """

    def __init__(
        self,
        studies: Sequence[Study],
        store: Results,
        *,
        seeds: Sequence[int] | None = None,
        epochs: int | None = None,
        device: str = "cpu",
        recorded: Mapping[str, pd.DataFrame] | None = None,
        sets: Callable[[Study, pd.DataFrame], list[tuple[int, ...]]] | None = None,
    ) -> None:
        self.store = store
        self.studies = [study.trained_for(epochs) for study in studies]
        self.which: Which = {"seeds": seeds, "epochs": epochs, "device": device}
        self.runs: dict[str, pd.DataFrame] = {
            study.name: collect(study, store, **self.which) if recorded is None else recorded[study.name]
            for study in self.studies
        }
        self.frames = {s.name: best_rates(self.runs[s.name]) if s.rates else self.runs[s.name] for s in self.studies}
        self.sets = {s.name: sets(s, self.frames[s.name]) if sets else seed_sets(s, seeds) for s in self.studies}
        self.judgements = {
            study.name: [ledger.judge(study, self.frames[study.name], s) for s in self.sets[study.name]]
            for study in self.studies
        }

    def show(self, console: Console) -> None:
        for study in self.studies:
            console.rule(f"[bold]{study.title}", align="left")
            console.print(study.question, style="italic")
            seeds = self.sets[study.name][0]
            found = ranks.rankings(study, self.frames[study.name]) if study.layout == "ranks" else []
            if found:
                for part in ranks.terminal(found, console.width):
                    console.print(part, "", sep="\n")
            else:
                cells = tables.entries(study, self.frames[study.name], seeds)
                for table in tables.terminal(study, cells, seeds, console.width):
                    console.print(table, "", sep="\n")
            if study.claims:
                console.print(ledger.terminal(self.judgements[study.name]))
            said = ledger.agreement(study, self.frames[study.name])
            if said:
                console.print(said)
        rows = saturation.rows(self.studies, self.frames)
        if len(rows):
            console.print(saturation.terminal(rows))

    def write(self, folder: Path) -> list[Path]:
        """Every run's scores; tables as CSV, Markdown and LaTeX; the ledger; the figures. Returns what was written."""
        with rendering.Press() as press:
            figures = [file for s in self.studies for file in press.print(self.drawings(s), folder / "figures")]
            return figures + self.write_texts(folder)

    def write_texts(self, folder: Path) -> list[Path]:
        """Everything but the figures."""
        written: list[Path] = []
        for study in self.studies:
            frame, sets = self.frames[study.name], self.sets[study.name]
            if study.layout == "ranks":
                found = ranks.rankings(study, frame)
                if found:
                    written.append(_write(folder / "tables" / f"{study.name}-ranks.md", ranks.markdown(found)))
                    written.append(_write(folder / "tables" / f"{study.name}-ranks.csv", ranks.csv(found)))
                    written.append(_write(folder / "tables" / f"{study.name}-ranks.tex", latex.ranks(found)))
            cells = [tables.entries(study, frame, seeds) for seeds in sets]
            texts = {
                "csv": tables.csv([entry for part in cells for entry in part]),
                "md": "\n".join(tables.markdown(study, c, s) for c, s in zip(cells, sets, strict=True)),
                "tex": latex.tables(study, cells[0], sets[0]),
            }
            for suffix, text in texts.items():
                written.append(_write(folder / "tables" / f"{study.name}.{suffix}", text))
            runs = self.runs[study.name]
            runs = runs.assign(form=study.form) if study.form else runs  # who reads them later cannot tell otherwise
            scores = str(runs.to_csv(index=False, float_format="%.9g"))
            written.append(_write(folder / "runs" / f"{study.name}.csv", scores))
        judged = [j for study in self.studies for column in self.judgements[study.name] for j in column]
        if judged:
            written.append(_write(folder / "ledger.csv", str(ledger.rows(judged).to_csv(index=False))))
            said = ((s.title, ledger.agreement(s, self.frames[s.name])) for s in self.studies)
            lines = [f"- {title}: {text}" for title, text in said if text]
            written.append(_write(folder / "ledger.md", "\n".join([ledger.markdown(judged), *lines, ""])))
        rows = saturation.rows(self.studies, self.frames)
        if len(rows):
            for suffix, text in (
                ("csv", saturation.csv(rows)), ("md", saturation.markdown(rows)), ("tex", latex.saturation(rows)),
            ):  # fmt: skip
                written.append(_write(folder / "tables" / f"saturation.{suffix}", text))
        parts = sorted(path.stem for path in written if path.suffix == ".tex")
        written.append(_write(folder / "tables" / "all.tex", latex.document(parts)))
        return written

    def drawings(self, study: Study) -> dict[str, Drawing]:
        """Every figure of a study by the name of its file: what can be drawn from the runs that are here."""
        frame = self.frames[study.name]
        if not len(frame):
            return {}
        if study.rates:
            return {study.name: scores.ranking(study, frame)}
        if not set(study.methods) <= set(LOOKS):
            return {}
        if study.layout == "ranks":
            return self._diagrams(study)
        recorded = histories(study, self.store, **self.which)
        if study.problem in DENSE:
            return self._dense(study, recorded)
        if study.layout == "metrics":
            return self._training(study, recorded)
        drawn: dict[str, Drawing] = {}
        if study.name == "scale-stress" and len(self.frames.get("rescaling", ())):
            drawn |= {"stress": scores.stress_curves(self.frames), "degradation": scores.degradation(self.frames)}
        if "scale" in dict(study.conditions[0].options):
            drawn[study.name] = scores.curves(study, frame)
        elif study.problem == "heterogeneous":
            drawn[study.name] = scores.regimes(study, frame)
        return drawn | self._dynamics(study, recorded)

    def _dynamics(self, study: Study, recorded: pd.DataFrame) -> dict[str, Drawing]:
        """The chart of BPGS in each column of the first table; all methods' weights in its first and last column."""
        if not len(recorded):
            return {}
        keys = [c.key for c in next(iter(study.parts().values())) if c.key in set(recorded["condition"])]
        cells = {(m, key): found for (m, key), found in recorded.groupby(["method", "condition"], sort=False)}
        charted = [(key, cells["BPGS", key]) for key in keys if ("BPGS", key) in cells]
        drawn = {f"{study.name}-chart": dynamics.chart(study.title, charted)}
        for key in dict.fromkeys([keys[0], keys[-1]]):
            shown = [(method, cells[method, key]) for method in study.methods if (method, key) in cells]
            drawn[_file(study.name, key, "weights")] = dynamics.weights(f"{study.title}, {key}", shown, LOOKS)
        return {name: drawing for name, drawing in drawn.items() if drawing}

    def _diagrams(self, study: Study) -> dict[str, Drawing]:
        found = ranks.rankings(study, self.frames[study.name])
        if not found:
            return {}
        drawn = {f"{study.name}-ranks": diagrams.critical_difference(found, study.title)}
        if ranks.comparable(found):
            first, second = found
            drawn[f"{study.name}-graded"] = diagrams.cost_of_factors(first, second, study.title)
        return drawn

    def _dense(self, study: Study, recorded: pd.DataFrame) -> dict[str, Drawing]:
        """For each table that was run: curves, weights and charts; scores, where there are methods to compare."""
        frame, drawn = self.frames[study.name], dict[str, Drawing | None]()
        for condition in study.conditions:
            here = frame[frame["condition"] == condition.key]
            if not len(here) or "measured" in dict(condition.options):
                continue
            name = partial(_file, study.name, condition.key)
            if here["method"].nunique() > 1:
                drawn[name("scores")] = dense.scores(study, condition, here)
                drawn[name("heatmap")] = dense.heatmap(study, condition, here)
                if "delta_m" in study.metrics and here["delta_m"].notna().any():
                    drawn[name("delta")] = dense.delta(study, condition, here)
            found = recorded[recorded["condition"] == condition.key]
            if len(found) and len(study.methods) > 1:
                looks = training.present(study, found)
                title = training.titled(study, condition)
                drawn[name("curves")] = dense.curves(training.heading(title, found), found, looks)
                drawn |= _on_the_way(_file(study.name, condition.key), title, found, looks)
        if len(recorded) and len(study.methods) == 1:  # its conditions are what is compared
            found = recorded.assign(method=recorded["condition"])
            looks = {str(key): nth(i) for i, key in enumerate(found["method"].unique())}
            drawn[f"{study.name}-curves"] = dense.curves(training.heading(study.title, found), found, looks)
            drawn |= _on_the_way(study.name, study.title, found, looks)
        return {name: drawing for name, drawing in drawn.items() if drawing}

    def _training(self, study: Study, recorded: pd.DataFrame) -> dict[str, Drawing]:
        drawn: dict[str, Drawing | None] = {}
        for condition in study.conditions:
            found = recorded[recorded["condition"] == condition.key]
            if len(found) and condition.key in set(self.frames[study.name]["condition"]):
                drawn[_file(study.name, condition.key)] = training.curves(study, condition, found)
                looks = training.present(study, found)
                drawn |= _on_the_way(_file(study.name, condition.key), training.titled(study, condition), found, looks)
        return {name: drawing for name, drawing in drawn.items() if drawing}


def _on_the_way(name: str, title: str, found: pd.DataFrame, looks: Mapping[str, Look]) -> dict[str, Drawing | None]:
    """Weights and charts, method by method."""
    shown = [(method, found[found["method"] == method]) for method in looks]
    return {
        f"{name}-weights": dynamics.weights(title, shown, looks),
        f"{name}-chart": dynamics.chart(title, shown),
    }


def _file(*words: str) -> str:
    """A name without characters that a file system or an address could stumble over."""
    plain = "-".join(words).replace("×", "x").replace("=", "-").replace(",", "")
    return plain.replace(" ", "-")


def _write(path: Path, text: str) -> Path:
    write_whole(path, text.encode(), durable=False)
    return path

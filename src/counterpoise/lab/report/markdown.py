"""Markdown tables. `DataFrame.to_markdown` would need a further dependency, tabulate."""

from collections.abc import Collection, Iterable, Sequence


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, right: Collection[int] = ()) -> str:
    """Return a table without a final newline; `right` lists the columns that are aligned to the right.

    Vertical bars in cells, as in |z|, are escaped.
    """
    rule = ["---:" if column in right else "---" for column in range(len(heads))]
    escaped = ([text.replace("|", "\\|") for text in row] for row in (heads, *rows))
    head, *body = (f"| {' | '.join(row)} |" for row in escaped)
    return "\n".join([head, f"| {' | '.join(rule)} |", *body])

"""The command `counterpoise methods`."""

from rich.table import Column, Table
from rich.text import Text

import counterpoise as cp

from .terminal import console


def methods() -> None:
    """List the methods of the library."""
    for title, names in (
        ("Methods that weight the losses by their values", cp.methods("loss")),
        ("Methods that weight the losses by the sizes of their gradients", cp.methods("scale")),
        ("Methods that combine task gradients", cp.methods("gradient")),
    ):
        table = Table(Column("method", no_wrap=True), "when to use it", title=title, show_lines=True)
        for name in names:
            m = cp.describe(name)
            facts = "; ".join(filter(None, (m.paper, f"needs {', '.join(m.needs)}" if m.needs else "")))
            summary = Text(m.summary).append(f"\n{facts}" if facts else "", style="dim")
            table.add_row(Text(name).append(f"\ncp.{m.build.__name__}", style="dim"), summary)
        console.print(table)

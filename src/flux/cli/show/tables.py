"""Lists and single things as tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from flux.cli.show import words
from flux.cli.show.changeset import STATE_STYLES
from flux.core.paths import printable

Reply = Mapping[str, Any]
Cell = str | Text

_SHOWN_APART = frozenset(("id", "time", "event", "actor", "role", "sandbox_id", "vm_id", "changeset"))


def table(console: Console, titles: Sequence[str], rows: Iterable[Sequence[Cell]], *, empty: str) -> None:
    """Print rows under titles, or a sentence when there are none."""
    grid = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for title in titles:
        # An id that is broken over lines cannot be copied.
        grid.add_column(title, overflow="fold", no_wrap=title == "ID")
    count = 0
    for row in rows:
        grid.add_row(*row)
        count += 1
    console.print(grid if count else empty, soft_wrap=False)


def record(console: Console, fields: Iterable[tuple[str, Cell]]) -> None:
    """Print one thing's fields below each other."""
    for name, value in fields:
        console.print(Text.assemble((f"{name:<12}", "dim"), value))


def sandboxes(console: Console, page: Reply) -> None:
    """Print a list of sandboxes."""
    rows = [
        (
            item["id"],
            printable(item["name"] or ""),
            item["kind"],
            item["state"],
            printable(item["workspace"] or f"template {item['template']}"),
            words.local_time(item["created_at"]),
        )
        for item in page["items"]
    ]
    table(console, ("ID", "NAME", "KIND", "STATE", "WORKSPACE", "CREATED"), rows, empty="There is no sandbox.")


def sandbox(console: Console, item: Reply, now: float) -> None:
    """Print one sandbox."""
    origin = f"the snapshot {item['snapshot']}" if item["snapshot"] else f"the template {item['template']}"
    place = item["workspace"] or f"managed, from {origin}"
    fields: list[tuple[str, Cell]] = [
        ("sandbox", item["id"]),
        ("name", printable(item["name"] or "-")),
        ("kind", item["kind"]),
        ("state", "paused; its last execution ended unsaved" if item["stopped"] else item["state"]),
        (
            "runs on" if item["state"] == "running" else "ran on",
            f"{item['node'] or '-'}, generation {item['generation']}",
        ),
        ("workspace", f"{printable(place)}, seen inside as {item['place']}"),
        ("network", _network(item)),
        ("created", words.local_time(item["created_at"])),
    ]
    fields.extend(
        ("mount", f"{printable(mount['source'])} at {printable(mount['target'])}, read-only")
        for mount in item["mounts"]
    )
    limits = {"memory": (item["memory_mib"], " MiB"), "cpus": (item["cpus"], ""), "processes": (item["pids"], "")}
    fields.extend((name, f"at most {value}{unit}") for name, (value, unit) in limits.items() if value is not None)
    if item["expires_at"]:
        fields.append(("expires", words.until(item["expires_at"], now)))
    record(console, fields)


def _network(item: Reply) -> str:
    ports = ", ".join(str(port) for port in item["net_ports"])
    found = (["any public address"] if item["internet"] else []) + ([f"TCP to the ports {ports}"] if ports else [])
    return "; ".join(found) or "none"


def metrics(console: Console, reply: Reply) -> None:
    """Print what a sandbox used, a line for each sample."""
    rows = [
        (
            words.local_time(item["at"]),
            f"{item['cpu_used_pct']:.1f} % of {item['cpu_count']:g}",
            f"{words.size(item['memory_used'])} of {words.size(item['memory_total'])}",
            words.size(item["memory_cache"]),
            f"{words.size(item['disk_used'])} of {words.size(item['disk_total'])}",
        )
        for item in reply["items"]
    ]
    empty = "There is no sample of it: a daemon takes them while the sandbox runs."
    table(console, ("TIME", "PROCESSORS", "MEMORY", "CACHE", "DISK"), rows, empty=empty)


def nodes(console: Console, reply: Reply) -> None:
    """Print a list of nodes."""
    rows = [
        (
            printable(item["name"]),
            _node_state(item),
            printable(item["address"] or "in this process"),
            ", ".join(item["kinds"]),
            str(item["running"]),
            words.size(item["disk_free"]),
            words.local_time(item["seen_at"]) if item["seen_at"] else "never",
        )
        for item in reply["items"]
    ]
    table(console, ("NAME", "STATE", "ADDRESS", "KINDS", "RUNNING", "FREE", "SEEN"), rows, empty="There is no node.")


def _node_state(item: Reply) -> Cell:
    if item["forgotten_at"]:
        return Text("forgotten", style="dim")
    return "reachable" if item["reachable"] else Text("unreachable", style="red")


def node(console: Console, item: Reply) -> None:
    """Print one node."""
    free, total = words.size(item["disk_free"]), words.size(item["disk_total"])
    fields: list[tuple[str, Cell]] = [
        ("node", printable(item["name"])),
        ("state", _node_state(item)),
        ("manager", printable(item["address"] or "in this process")),
        ("data plane", printable(item["data_address"] or "in this process")),
        ("store", item["node_store_id"]),
        ("kinds", ", ".join(item["kinds"])),
        ("running", str(item["running"])),
        ("disk", f"{free} of {total} free"),
        ("version", printable(item["version"])),
        ("added", words.local_time(item["added_at"])),
    ]
    record(console, fields)


def artifacts(console: Console, reply: Reply) -> None:
    """Print a list of artifacts."""
    rows = [
        (
            item["id"],
            item["sandbox_id"],
            printable(item["name"] or item["kind"]),
            _safety(item),
            words.size(item["size"]),
            words.size(item["stored"]),
            words.local_time(item["created_at"]),
        )
        for item in reply["items"]
    ]
    titles = ("ID", "SANDBOX", "NAME", "WHERE", "SIZE", "NEW", "CREATED")
    table(console, titles, rows, empty="There is no artifact.")


def _safety(item: Reply) -> Cell:
    if item["error"]:
        return Text(f"node {item['node']}, upload fails", style="yellow")
    return "object store" if item["durable"] else f"node {item['node']}"


def artifact(console: Console, item: Reply) -> None:
    """Print one artifact."""
    fields: list[tuple[str, Cell]] = [
        ("artifact", item["id"]),
        ("digest", item["digest"]),
        ("sandbox", f"{item['sandbox_id']}, generation {item['generation']}"),
        ("made by", "a snapshot" if item["kind"] == "snapshot" else "a pause"),
        ("name", printable(item["name"] or "-")),
        ("where", _safety(item)),
        ("size", f"{words.size(item['size'])}, {words.size(item['stored'])} of it new"),
        ("created", words.local_time(item["created_at"])),
    ]
    if item["current"]:
        fields.append(("current", "its sandbox wakes from it"))
    if item["error"]:
        fields.append(("upload", printable(item["error"])))
    record(console, fields)


def changesets(console: Console, page: Reply) -> None:
    """Print a list of changesets."""
    rows = [
        (
            item["id"],
            Text(item["state"], style=STATE_STYLES.get(item["state"], "")),
            _counts(item["counts"]),
            _short(printable(item["command"])),
            words.local_time(item["created_at"]),
        )
        for item in page["items"]
    ]
    table(console, ("ID", "STATE", "CHANGES", "COMMAND", "CREATED"), rows, empty="There is no changeset.")


def _counts(counts: Reply) -> str:
    marks = (("added", "+"), ("modified", "~"), ("type_changed", "!"), ("deleted", "-"))
    return " ".join(f"{mark}{counts[name]}" for name, mark in marks if counts.get(name)) or "none"


def _short(text: str, longest: int = 60) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"


def comparison(console: Console, reply: Reply) -> None:
    """Print what each changeset makes of each path."""
    ids = [item["id"] for item in reply["changesets"]]
    rows = [
        (
            printable(entry["path"]),
            *(entry["kinds"].get(changeset, "-") for changeset in ids),
            "same" if entry["same"] else Text("different", style="yellow"),
        )
        for entry in reply["entries"]
    ]
    table(console, ("PATH", *ids, "OUTCOME"), rows, empty="None of them changes anything.")


def keys(console: Console, reply: Reply) -> None:
    """Print a list of keys."""
    rows = [
        (
            item["id"],
            printable(item["name"]),
            item["role"],
            words.local_time(item["created_at"]),
            "revoked" if item["revoked_at"] else "in force",
        )
        for item in reply["items"]
    ]
    table(console, ("ID", "NAME", "ROLE", "CREATED", "STATE"), rows, empty="There is no key.")


def findings(console: Console, reply: Reply) -> None:
    """Print what works on this machine."""
    for check in reply["checks"]:
        mark, style = (
            ("ok", "green") if check["ok"] else (("no", "red") if check.get("required", True) else ("no", "yellow"))
        )
        console.print(
            Text.assemble(
                (f"{mark:<4}", style), (printable(check["subject"]), "bold"), f"  {printable(check['detail'])}"
            )
        )
        if check.get("fix"):
            console.print(Text(f"      to fix it: {printable(check['fix'])}", style="dim"))


def audit_line(line: Reply) -> Text:
    """Return one audit line as text."""
    rest = {
        name: value
        for name, value in line.items()
        if name not in ("id", "time", "event", "actor", "role", "sandbox_id", "vm_id", "changeset")
        and value is not None
    }
    about = " ".join(str(line[name]) for name in ("sandbox_id", "changeset") if line.get(name))
    told = " ".join(f"{printable(name)}={words.line(str(value).strip())}" for name, value in rest.items())
    return Text.assemble(
        (words.local_time(line["time"]), "dim"),
        f"  {printable(line['actor'])}  ",
        (line["event"], "bold"),
        f"  {about}",
        (f"  {_short(told, 200)}" if told else "", "dim"),
    )

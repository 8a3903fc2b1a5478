"""A changeset as its reviewer wants it: risks first, then what is lost, then the rest, then what to do next."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from flux.cli.show import words
from flux.core.paths import printable

Reply = Mapping[str, Any]
Hint = Callable[..., str]

SHOWN_ENTRIES = 40
COMMAND_LINES = 20
LABEL_WIDTH = 11
OUTPUT_LINES = 12

STATE_STYLES = {
    "pending": "bold yellow",
    "approved": "bold blue",
    "applied": "bold green",
    "rejected": "bold magenta",
    "expired": "bold magenta",
    "failed": "bold red",
}
_KIND_STYLES = {"added": ("+", "green"), "modified": ("~", "yellow"), "type_changed": ("!", "yellow")}
_KIND_TITLES = {"added": "Added", "modified": "Modified", "type_changed": "Type changed"}

RISKS = {
    "setuid": "runs with another user's rights (setuid or setgid)",
    "capability": "has kernel capabilities",
    "exec_bit": "became executable",
    "git_hook": "is run by git",
    "git_config": "changes what git does",
    "symlink_escapes": "is a link that leads out of the workspace",
    "deletes_many": "many entries are deleted",
    "secret_like_name": "has a name that secrets usually have",
    "control_chars_in_name": "has control characters in its name",
}


def show(console: Console, changeset: Reply, *, hint: Hint, now: float, diffs: Sequence[Reply] | None = None) -> None:
    """Print a changeset with its next steps.

    Args:
        console: where to.
        changeset: the reply.
        hint: makes a command line from words.
        now: seconds since the epoch.
        diffs: text diffs to print with it.
    """
    for line in lines(changeset, hint=hint, now=now, diffs=diffs):
        console.print(line)


def lines(changeset: Reply, *, hint: Hint, now: float, diffs: Sequence[Reply] | None = None) -> Iterator[Text]:
    """Yield the lines that ``show`` prints."""
    yield from _header(changeset, now)
    yield from body(changeset)
    if diffs is not None:
        yield from diff_lines(diffs)
    yield from _next_steps(changeset, hint, seen=diffs is not None)


def body(run: Reply) -> Iterator[Text]:
    """Yield what a run did: risks, deletions, other changes, doubts, side effects, output. Also for dry runs."""
    yield from change_lines(run["changes"])
    yield from _doubts(run)
    if run.get("run_via") != "revert":
        yield from _side_effects(run["side_effects"])
    yield from output_lines(run)


def change_lines(changes: Reply) -> Iterator[Text]:
    """Yield the changes: risks first, deletions, then the rest."""
    yield from _risks(changes)
    yield from _deletions(changes["deleted"])
    for kind in ("added", "modified", "type_changed"):
        yield from _changes(kind, changes[kind])
    if not any(changes[kind] for kind in ("added", "modified", "deleted", "type_changed")):
        yield from _section("No file was changed.", "bold", ())


def _header(changeset: Reply, now: float) -> Iterator[Text]:
    state = str(changeset["state"])
    yield Text.assemble(
        "Changeset ", (changeset["id"], "bold"), "  ", (state.upper(), STATE_STYLES.get(state, "bold")), ""
    )
    for label, value in _facts(changeset, now):
        yield Text.assemble((f"  {label}".ljust(LABEL_WIDTH), "dim"), value)


def _facts(changeset: Reply, now: float) -> Iterator[tuple[str, str]]:
    yield "command", _command(changeset["command"])
    if changeset["run_via"] != "revert":
        yield "ended", words.ending(changeset)
        yield "run in", _engine(changeset)
    yield "sandbox", changeset["sandbox_id"]
    if changeset["paths"] != ["/"]:
        yield "paths", ", ".join(printable(path) for path in changeset["paths"])
    if changeset.get("only") is not None:
        yield "kept", "only this part; the rest was dropped when it was approved"
    if changeset["state"] in ("pending", "approved"):
        yield "expires", words.until(changeset["expires_at"], now)
        yield "digest", changeset["digest"]
    yield from _links(changeset)
    if changeset.get("decided_by"):
        yield "decided", f"by {printable(changeset['decided_by'])}, {words.local_time(changeset['decided_at'])}"
    for key in ("comment", "error"):
        if changeset.get(key):
            yield key, words.line(changeset[key])


def _command(command: str) -> str:
    """Return a command in lines that stand below each other."""
    every = [words.line(text) for text in command.strip("\n").split("\n")]
    if len(every) > COMMAND_LINES:
        every = [*every[:COMMAND_LINES], f"… and {len(every) - COMMAND_LINES} more lines"]
    return ("\n" + " " * LABEL_WIDTH).join(every)


def _engine(changeset: Reply) -> str:
    engine, reason = changeset.get("copy_engine"), changeset.get("copy_engine_reason")
    if engine is None:
        return str(changeset["run_via"])
    return f"a throwaway copy by {engine}{f' (passed over: {printable(reason)})' if reason else ''}"


def _links(changeset: Reply) -> Iterator[tuple[str, str]]:
    titles = {
        "parent": "stands on",
        "supersedes": "replaces",
        "superseded_by": "replaced",
        "reverts": "reverts",
        "reverted_by": "reverted",
    }
    for key, title in titles.items():
        if changeset.get(key):
            yield title, ("by " if key.endswith("_by") else "") + str(changeset[key])


def _section(title: str, style: str, entries: Iterable[Text]) -> Iterator[Text]:
    yield Text("")
    yield Text(title, style=style)
    yield from entries


def _capped(entries: Sequence[Text], noun: str = "more; --json lists all") -> list[Text]:
    if len(entries) <= SHOWN_ENTRIES:
        return list(entries)
    return [*entries[:SHOWN_ENTRIES], Text(f"  … and {len(entries) - SHOWN_ENTRIES} {noun}", style="dim")]


def _risks(changes: Reply) -> Iterator[Text]:
    found = [
        Text.assemble(("  ! ", "bold red"), (printable(change["path"]), "red"), f"  {RISKS.get(risk, risk)}")
        for kind in ("added", "modified", "type_changed", "deleted")
        for change in changes[kind]
        for risk in change.get("risks", ())
    ]
    if found:
        yield from _section(f"Risks: {len(found)}", "bold red", _capped(found))


def _deletions(deleted: Sequence[Reply]) -> Iterator[Text]:
    if not deleted:
        return
    total = sum(change["before"]["size"] for change in deleted if change["before"]["type"] == "file")
    entries = [
        Text.assemble(("  - ", "red"), printable(change["path"]), (f"  {words.entry(change['before'])}", "dim"))
        for change in deleted
    ]
    title = f"Deleted: {words.number(len(deleted), 'entry', 'entries')}, {words.size(total)}"
    yield from _section(title, "bold red", _capped(entries))


def _changes(kind: str, changes: Sequence[Reply]) -> Iterator[Text]:
    if not changes:
        return
    mark, style = _KIND_STYLES[kind]
    entries = []
    for change in changes:
        about = words.entry(change["after"]) if kind == "added" else words.difference(change)
        entries.append(Text.assemble((f"  {mark} ", style), printable(change["path"]), (f"  {about}", "dim")))
    yield from _section(f"{_KIND_TITLES[kind]}: {len(changes)}", f"bold {style}", _capped(entries))


def _doubts(run: Reply) -> Iterator[Text]:
    if run["unstaged"]:
        entries = [_noted(item, "red") for item in run["unstaged"]]
        yield from _section("Cannot be carried, so this cannot be applied as it is", "bold red", _capped(entries))
    warnings = [Text(f"  {printable(text)}", style="yellow") for text in run.get("warnings", ())]
    if run.get("base_changed_during_run"):
        moved = ", ".join(printable(path) for path in run["base_changes"][:SHOWN_ENTRIES])
        warnings.append(Text(f"  the real workspace changed during the run: {moved}", style="yellow"))
    if warnings:
        yield from _section("Warnings", "bold yellow", warnings)
    for key, title in (("skipped", "Skipped"), ("not_captured", "Not looked at")):
        if run[key]:
            yield from _section(title, "bold", _capped([_noted(item, "") for item in run[key]]))
    if run["discarded"]:
        thrown = [
            Text(
                f"  {printable(item['place'])}  {words.number(item['entries'], 'entry', 'entries')}, "
                f"{words.size(item['size'])}"
            )
            for item in run["discarded"]
        ]
        yield from _section("Written elsewhere and thrown away", "bold", thrown)


def _noted(item: Reply, style: str) -> Text:
    return Text.assemble(("  " + printable(item["path"]), style), f"  {printable(item['reason'])}")


def _side_effects(effects: Reply) -> Iterator[Text]:
    egress = {
        "blocked": "there was no network",
        "allow_listed": "only listed destinations were open",
        "unrestricted": "the network was open",
    }[effects["egress"]]
    enforced = "enforced by the kernel" if effects["enforced"] else "not enforced"
    entries = [Text(f"  {egress}; {enforced}")]
    if effects.get("destinations"):
        entries.append(Text("  listed: " + ", ".join(printable(name) for name in effects["destinations"])))
    observed = effects.get("observed")
    if observed is None:
        entries.append(Text("  traffic was not watched"))
    elif not observed:
        entries.append(Text("  no attempt to reach the network was seen"))
    entries.extend(_flow(flow) for flow in observed or ())
    entries.extend(Text(f"  can be applied: {printable(text)}") for text in effects.get("replayable", ()))
    entries.extend(
        Text(f"  cannot be undone: {printable(text)}", style="yellow") for text in effects.get("non_replayable", ())
    )
    yield from _section("Side effects", "bold", entries)


def _flow(flow: Reply) -> Text:
    port = f":{flow['port']}" if flow.get("port") is not None else ""
    name = f" ({printable(flow['name'])})" if flow.get("name") else ""
    times = words.number(flow.get("connections", 1), "attempt")
    style = "red" if flow["verdict"] == "refused" else "yellow"
    return Text(f"  {flow['verdict']}: {flow['proto']} {printable(flow['dst'])}{port}{name}, {times}", style=style)


def output_lines(run: Reply) -> Iterator[Text]:
    """Yield the tail of what the command printed."""
    for key in ("stdout", "stderr"):
        text = run.get(key) or ""
        if not text:
            continue
        every = text.split("\n")
        if every[-1] == "":
            every.pop()
        left = len(every) - OUTPUT_LINES
        about = f"{key}, the last {OUTPUT_LINES} of {len(every)} lines" if left > 0 else key
        yield from _section(
            about, "bold", (Text(f"  {words.line(line)}", style="dim") for line in every[-OUTPUT_LINES:])
        )


def diff_lines(diffs: Sequence[Reply]) -> Iterator[Text]:
    """Yield coloured unified diffs."""
    for diff in diffs:
        if all(side is None or side["type"] == "directory" for side in (diff["before"], diff["after"])):
            continue
        yield Text("")
        note = f"  {words.line(diff['note'])}" if diff.get("note") else ""
        yield Text.assemble((printable(diff["path"]), "bold"), note)
        if diff["text"] is not None:
            yield from (Text(words.line(line), style=_diff_style(line)) for line in _diff_text(diff["text"]))


def _diff_text(text: str) -> list[str]:
    return text.removesuffix("\n").split("\n")


def _diff_style(line: str) -> str:
    if line.startswith(("+++", "---")):
        return "bold"
    return {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "")


def _next_steps(changeset: Reply, hint: Hint, *, seen: bool) -> Iterator[Text]:
    names = (changeset["sandbox_id"], changeset["id"])
    steps = list(_steps(changeset, lambda verb, *more: hint("sandbox", verb, *names, *more), seen=seen))
    if steps:
        yield from _section("Next", "bold", (Text(f"  {title:<12} {command}") for title, command in steps))


def _steps(changeset: Reply, line: Callable[..., str], *, seen: bool) -> Iterator[tuple[str, str]]:
    state = changeset["state"]
    if state == "pending":
        if not seen:
            yield "see it all", line("changeset", "--diff")
        if changeset["unstaged"]:
            yield "drop it", line("reject")
            return
        yield "approve", line("approve", "--digest", changeset["digest"])
        yield "reject", line("reject")
    elif state == "approved":
        yield "apply", line("apply")
        yield "reject", line("reject")
    elif state == "applied" and changeset.get("revertible") and not changeset.get("reverted_by"):
        yield "undo", line("revert")
    elif state in ("expired", "failed") and not changeset.get("superseded_by"):
        yield "run again", line("rerun")

"""Risk flags: what a reviewer should look at first, told from names and attributes alone (spec: speculation).

Nothing is run on the content and no link is followed. A flag says that an entry *becomes* risky: one that was the
same before the run is not reported again.

========================  ============================================================================================
``setuid``                a regular file with the setuid or setgid bit that is new, or whose content or owner changed
                          under it. Directories are not meant: setgid there only hands down the group.
``capability``            the same for file capabilities (the extended attribute ``security.capability``)
``exec_bit``              a regular file that gained an execute bit
``git_hook``              a file in a hooks directory of a repository or of a hook manager; git's own samples are not
``git_config``            a file that makes git run programs or look elsewhere: configuration, attributes, submodules,
                          a ``.git`` that is a file or a link
``symlink_escapes``       a link whose target is absolute or may lie above the workspace's root. A ``..`` after a name
                          counts as escaping, because that name may itself be a link
``deletes_many``          the topmost entries of a large deletion: at least 100 entries, or at least 10 that are a
                          fifth of the base
``secret_like_name``      a file named as keys and credentials usually are
``control_chars_in_name`` a path with control, bidirectional or separator characters, or bytes that are not UTF-8
========================  ============================================================================================
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable

import msgspec

from flux.core import paths
from flux.core.changeset import Change, Changes, Entry
from flux.core.manifest import EntryType

CAPABILITY = "security.capability"
MANY = 100
MANY_AT_LEAST = 10
MANY_SHARE = 5

_SET_ID_BITS = 0o6000
_EXECUTE_BITS = 0o111
_UNSAFE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_HOOK = re.compile(
    r".*/(?:[^/]*\.git/(?:.+/)?hooks|\.husky|\.githooks|\.git-hooks)(?:/.+)?(?<!\.sample)", re.IGNORECASE | re.DOTALL
)
_CONFIG = re.compile(
    r".*/\.git|.*\.git/(?:.+/)?(?:config|config\.worktree|info/attributes|objects/info/alternates|commondir|gitdir)"
    r"|.*/\.(?:gitmodules|gitattributes|gitconfig|lfsconfig)",
    re.IGNORECASE | re.DOTALL,
)
_SECRET = re.compile(
    r".*/(?:"
    r"\.env(?:\.(?!example$|sample$|template$|dist$|defaults?$)[^/]+)?|[^/]+\.env"
    r"|id_(?:rsa|dsa|ecdsa|ed25519)(?:_sk)?"
    r"|[^/]*\.(?:pem|key|p12|pfx|jks|keystore|kdbx|ppk)"
    r"|[._]netrc|\.npmrc|\.pypirc|\.pgpass|\.my\.cnf|\.htpasswd|\.git-credentials|\.dockercfg|\.vault-token|etc/shadow"
    r"|kubeconfig|\.kube/config|\.docker/config\.json|\.aws/[^/]+"
    r"|(?:[^/]*[._-])?(?:credentials?|secrets?|passwords?)(?:\.(?:json|ya?ml|toml|ini|txt|xml|csv|env))?"
    r"|service[_-]?account[^/]*\.json"
    r")",
    re.IGNORECASE | re.DOTALL,
)


def risks(change: Change, all_paths: Collection[str] = ()) -> tuple[str, ...]:
    """Return the flags of one change, sorted; ``deletes_many`` is not among them, since it depends on all.

    Args:
        change: the change.
        all_paths: the exact paths of all changes, by which a bare repository is known.
    """
    path = change.location
    found = list(_named(path, change, all_paths))
    if change.after is not None:
        found += _becoming(change.before, change.after, path, change.attributes)
    return tuple(sorted(found))


def flag(changes: Changes) -> Changes:
    """Return ``changes`` with every change's ``risks`` filled in anew."""
    everything = {change.location for change in changes.every()}
    many = _large_deletion(changes)

    def judged(part: list[Change]) -> list[Change]:
        return [_with_risks(change, everything, many) for change in part]

    return Changes(
        added=judged(changes.added),
        modified=judged(changes.modified),
        deleted=judged(changes.deleted),
        type_changed=judged(changes.type_changed),
        unchanged=changes.unchanged,
    )


def _with_risks(change: Change, everything: Collection[str], many: Collection[str]) -> Change:
    found = risks(change, everything)
    if many and change.after is None and change.location in many:
        found = tuple(sorted((*found, "deletes_many")))
    return change if found == change.risks else msgspec.structs.replace(change, risks=found)


def _large_deletion(changes: Changes) -> frozenset[str]:
    """Return the topmost deleted paths if the deletion is a large one."""
    deleted = {change.location for change in changes.deleted}
    base = changes.unchanged + len(changes.modified) + len(changes.type_changed) + len(deleted)
    if len(deleted) < MANY_AT_LEAST or (len(deleted) < MANY and len(deleted) * MANY_SHARE < base):
        return frozenset()
    return frozenset(path for path in deleted if paths.parent(path) not in deleted)


def _named(path: str, change: Change, all_paths: Collection[str]) -> Iterable[str]:
    """Yield the flags that a change has by its name."""
    if not path.isprintable() and any(unicodedata.category(char) in _UNSAFE_CATEGORIES for char in path):
        yield "control_chars_in_name"
    if _is_directory(change.before) and _is_directory(change.after):
        return
    if _HOOK.fullmatch(path) or _in_bare_repository(path, "/hooks/", all_paths):
        yield "git_hook"
    if _CONFIG.fullmatch(path) or _in_bare_repository(path, "/config", all_paths):
        yield "git_config"
    if _SECRET.fullmatch(path):
        yield "secret_like_name"


def _is_directory(entry: Entry | None) -> bool:
    return entry is None or entry.type is EntryType.DIRECTORY


def _in_bare_repository(path: str, place: str, all_paths: Collection[str]) -> bool:
    """Tell whether ``path`` is at ``place`` in a directory that gets a ``HEAD`` too, as a hidden repository would."""
    directory, found, rest = path.rpartition(place)
    is_place = bool(found) and not rest.endswith(".sample") and (place.endswith("/") or not rest)
    return is_place and f"{directory}/HEAD" in all_paths


def _becoming(before: Entry | None, after: Entry, path: str, attributes: tuple[str, ...]) -> Iterable[str]:
    """Yield the flags that a change has by what the entry becomes."""
    if after.type is EntryType.SYMLINK:
        same = before is not None and before.type is after.type and before.link_target == after.link_target
        if not same and _escapes(path, after.link_target or ""):
            yield "symlink_escapes"
    if after.type is not EntryType.FILE:
        return
    was = before if before is not None and before.type is EntryType.FILE else None
    mode, mode_before = after.mode_bits, was.mode_bits if was else 0
    refilled = "content" in attributes or "owner" in attributes
    if mode & _SET_ID_BITS and (refilled or mode & ~mode_before & _SET_ID_BITS):
        yield "setuid"
    capability = after.xattrs.get(CAPABILITY)
    if capability is not None and (refilled or was is None or was.xattrs.get(CAPABILITY) != capability):
        yield "capability"
    if mode & ~mode_before & _EXECUTE_BITS:
        yield "exec_bit"


def _escapes(path: str, target: str) -> bool:
    """Tell whether a link at ``path`` may lead out of the workspace."""
    if target.startswith("/"):
        return True
    climbs, named = 0, False
    for part in target.split("/"):
        if part == "..":
            if named:
                return True
            climbs += 1
        elif part not in ("", "."):
            named = True
    return climbs > path.count("/") - 1

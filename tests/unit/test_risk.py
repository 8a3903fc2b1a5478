"""Risk flags: each one raised where it should be, and not on what was the same before."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flux.core import paths
from flux.core.changeset import Change, Changes, Entry
from flux.core.manifest import EntryType
from flux.core.risk import flag, risks

CAPABILITY = {"security.capability": "AQAAAgAgAAAAAAAAAAAAAAAAAAA="}


def entry(
    mode: str = "0644", kind: str = "file", target: str | None = None, xattrs: dict[str, str] | None = None
) -> Entry:
    return Entry(type=EntryType(kind), mode=mode, uid=0, gid=0, size=1, mtime_ns=0, target=target, xattrs=xattrs or {})


def change(path: str, before: Entry | None, after: Entry | None, *attributes: str) -> Change:
    text, encoded = paths.to_json(path)
    return Change(path=text, path_base64=encoded, before=before, after=after, attributes=attributes)


PLAIN = entry()
LINK = "symlink"


@pytest.mark.parametrize(
    ("before", "after", "attributes", "expected"),
    [
        (None, PLAIN, [], ()),
        (None, entry("4755"), [], ("exec_bit", "setuid")),
        (None, entry("2644"), [], ("setuid",)),
        (PLAIN, entry("4644"), ["mode"], ("setuid",)),
        (entry("4755"), entry("6755"), ["mode"], ("setuid",)),
        (entry("4755"), entry("0755"), ["mode"], ()),
        (entry("4755"), entry("4755"), ["content"], ("setuid",)),
        (entry("4755"), entry("4755"), ["owner"], ("setuid",)),
        (entry("4755"), entry("4755"), ["xattrs"], ()),
        (entry("4755"), None, [], ()),
        (None, entry("2775", "directory"), [], ()),
        (None, entry("1777", "directory"), [], ()),
        (None, entry("0777", LINK, "a"), [], ()),
        (None, entry("0755"), [], ("exec_bit",)),
        (PLAIN, entry("0744"), ["mode"], ("exec_bit",)),
        (entry("0744"), entry("0755"), ["mode"], ("exec_bit",)),
        (entry("0755"), entry("0700"), ["mode"], ()),
        (entry("0755"), entry("0755"), ["content"], ()),
        (entry("0755", "directory"), entry("0755"), ["type"], ("exec_bit",)),
        (None, entry("0755", "fifo"), [], ()),
        (None, entry(xattrs=CAPABILITY), [], ("capability",)),
        (PLAIN, entry(xattrs=CAPABILITY), ["xattrs"], ("capability",)),
        (entry(xattrs=CAPABILITY), entry(xattrs=CAPABILITY), ["mode"], ()),
        (entry(xattrs=CAPABILITY), entry(xattrs=CAPABILITY), ["content"], ("capability",)),
        (entry(xattrs=CAPABILITY), entry(xattrs={**CAPABILITY, "user.a": "YQ=="}), ["xattrs"], ()),
        (entry(xattrs=CAPABILITY), PLAIN, ["xattrs"], ()),
        (entry(xattrs={"user.a": "YQ=="}), None, [], ()),
    ],
)
def test_modes_and_capabilities(
    before: Entry | None, after: Entry | None, attributes: list[str], expected: tuple[str, ...]
) -> None:
    assert risks(change("/bin/tool", before, after, *attributes)) == expected


@pytest.mark.parametrize(
    ("path", "target", "escapes"),
    [
        ("/s", "a", False),
        ("/s", ".", False),
        ("/s", "..", True),
        ("/s", "../x", True),
        ("/d/s", "..", False),
        ("/d/s", "../x", False),
        ("/d/s", "../..", True),
        ("/d/s", "./.././../x", True),
        ("/d/e/s", "../../x/", False),
        ("/d/e/s", "../..//./x", False),
        ("/s", "/etc/passwd", True),
        ("/s", "/work/inside", True),
        ("/s", "d/../x", True),
        ("/d/e/f/s", "../x/../y", True),
        ("/s", "..x/...", False),
        ("/a/b/c", "../../../../etc/passwd", True),
    ],
)
def test_links(path: str, target: str, escapes: bool) -> None:
    link = entry("0777", LINK, target)
    expected = ("symlink_escapes",) if escapes else ()
    assert risks(change(path, None, link)) == expected
    assert risks(change(path, PLAIN, link, "type")) == expected
    assert risks(change(path, entry("0777", LINK, "other"), link, "target")) == expected
    assert risks(change(path, link, link, "owner")) == ()
    assert risks(change(path, link, None)) == ()


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/.git/hooks/pre-commit", "git_hook"),
        ("/.git/hooks/pre-commit.sample", None),
        ("/.git/hooks/deep/er", "git_hook"),
        ("/sub/.git/hooks/post-checkout", "git_hook"),
        ("/.GIT/Hooks/pre-push", "git_hook"),
        ("/.git/modules/lib/hooks/pre-push", "git_hook"),
        ("/bare.git/hooks/update", "git_hook"),
        ("/.husky/pre-commit", "git_hook"),
        ("/pkg/.husky/_/h", "git_hook"),
        ("/.githooks/x", "git_hook"),
        ("/hooks/useState.ts", None),
        ("/.github/hooks/x", None),
        ("/.git/index", None),
        ("/.git/refs/heads/main", None),
        ("/.git/config", "git_config"),
        ("/.git/config.worktree", "git_config"),
        ("/a/.git/info/attributes", "git_config"),
        ("/.git/modules/lib/config", "git_config"),
        ("/.git", "git_config"),
        ("/lib/.git", "git_config"),
        ("/.gitmodules", "git_config"),
        ("/docs/.gitattributes", "git_config"),
        ("/.gitconfig", "git_config"),
        ("/config", None),
        ("/.gitignore", None),
        ("/.env", "secret_like_name"),
        ("/.env.production", "secret_like_name"),
        ("/.env.example", None),
        ("/prod.env", "secret_like_name"),
        ("/environment", None),
        ("/.ssh/id_ed25519", "secret_like_name"),
        ("/id_rsa.pub", None),
        ("/certs/server.KEY", "secret_like_name"),
        ("/x.pem", "secret_like_name"),
        ("/.npmrc", "secret_like_name"),
        ("/.aws/credentials", "secret_like_name"),
        ("/credentials.json", "secret_like_name"),
        ("/gcp-credentials.json", "secret_like_name"),
        ("/secrets.yaml", "secret_like_name"),
        ("/src/secrets.py", None),
        ("/secretary.txt", None),
        ("/.netrc", "secret_like_name"),
        ("/keyboard", None),
        ("/a\nb", "control_chars_in_name"),
        ("/\x1b[2J/x", "control_chars_in_name"),
        ("/\u202egpj.exe", "control_chars_in_name"),
        ("/zero\u200bwidth", "control_chars_in_name"),
        ("/\u2028", "control_chars_in_name"),
        (paths.from_bytes(b"/\xff\xfe"), "control_chars_in_name"),
        ("/\u3000", None),
        ("/e\u0301", None),
        ("/-rf *", None),
    ],
)
def test_names(path: str, expected: str | None) -> None:
    found = () if expected is None else (expected,)
    assert risks(change(path, None, PLAIN)) == found
    assert risks(change(path, PLAIN, PLAIN, "content")) == found
    assert risks(change(path, PLAIN, None)) == found


def test_directories_are_flagged_only_for_unsafe_characters() -> None:
    directory = entry("0755", "directory")
    for path in ("/.git", "/.git/hooks", "/.husky", "/secrets"):
        assert risks(change(path, None, directory)) == ()
        assert risks(change(path, directory, None)) == ()
    assert risks(change("/a\tb", None, directory)) == ("control_chars_in_name",)


def test_a_git_directory_that_becomes_a_link() -> None:
    before, after = entry("0755", "directory"), entry("0777", LINK, "../elsewhere")
    assert risks(change("/.git", before, after, "type")) == ("git_config", "symlink_escapes")
    assert risks(change("/.git/hooks", before, entry("0777", LINK, "x"), "type")) == ("git_hook",)


def test_a_hidden_bare_repository_is_found_among_all_changes() -> None:
    names = ["/img/HEAD", "/img/config", "/img/hooks/post-checkout", "/img/hooks/x.sample", "/other/config"]
    result = flag(Changes.of([change(name, None, PLAIN) for name in names], unchanged=0))
    assert {each.path: each.risks for each in result.every()} == {
        "/img/HEAD": (),
        "/img/config": ("git_config",),
        "/img/hooks/post-checkout": ("git_hook",),
        "/img/hooks/x.sample": (),
        "/other/config": (),
    }


def deletion(count: int, unchanged: int) -> list[str]:
    """Delete ``/d`` with ``count - 1`` files in it; return the flagged paths."""
    gone = [change("/d", entry("0755", "directory"), None)]
    gone += [change(f"/d/{number}", PLAIN, None) for number in range(count - 1)]
    return [each.path for each in flag(Changes.of(gone, unchanged=unchanged)).every() if "deletes_many" in each.risks]


@pytest.mark.parametrize(
    ("count", "unchanged", "many"),
    [(9, 0, False), (10, 0, True), (10, 40, True), (10, 41, False), (99, 10_000, False), (100, 10_000, True)],
)
def test_large_deletions(count: int, unchanged: int, many: bool) -> None:
    assert deletion(count, unchanged) == (["/d"] if many else [])


def test_files_deleted_one_by_one_are_all_topmost() -> None:
    gone = [change(f"/{number}", PLAIN, None) for number in range(10)]
    assert all(each.risks == ("deletes_many",) for each in flag(Changes.of(gone, unchanged=0)).deleted)


def test_flagging_again_changes_nothing_and_forgets_old_flags() -> None:
    stale = Change(path="/a", after=PLAIN, risks=("setuid",))
    once = flag(Changes.of([stale, change("/x", None, entry("4755"))], unchanged=2))
    assert [each.risks for each in once.added] == [(), ("exec_bit", "setuid")]
    assert flag(once) == once


@given(st.binary(max_size=60), st.sampled_from(["file", "directory", LINK, "fifo"]), st.binary(min_size=1, max_size=30))
def test_any_name_is_judged(raw: bytes, kind: str, target: bytes) -> None:
    path = "/" + paths.from_bytes(raw)
    link = paths.from_bytes(target.replace(b"\0", b"x"))
    text, encoded = paths.to_json(link)
    after = Entry(
        type=EntryType(kind), mode="0777", uid=0, gid=0, size=0, mtime_ns=0, target=text, target_base64=encoded
    )
    found = risks(change(path, None, after))
    assert list(found) == sorted(set(found))
    assert risks(change(path, None, None)) == tuple(each for each in found if each == "control_chars_in_name")


def test_hostile_paths_take_no_longer_than_plain_ones() -> None:
    hostile = ["/.git" * 800, "/a.git/x" * 500, "/.env." + "x" * 4000, "/" + "secret." * 580, "/" + "_" * 4000 + "/x"]
    started = time.process_time()
    for path in hostile:
        risks(change(path, None, PLAIN))
    assert time.process_time() - started < 0.5

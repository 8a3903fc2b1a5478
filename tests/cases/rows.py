"""The rows whose whole outcome is a tree, and relatives of theirs: set-up, command, and what must be named.

``+`` added, ``~`` modified, ``-`` deleted, ``!`` of another type. Without names they are those of the bare command.
"""

from __future__ import annotations

from typing import NamedTuple

_MAP = "import mmap; f = open('f', 'r+b'); m = mmap.mmap(f.fileno(), 0); m[4000:4004] = b'abcd'; m.flush()"
_GIT = "git -c user.name=a -c user.email=a@example.org"
_DEEP = "; ".join(["p=.", "for i in $(seq 60); do p=$p/level$i; done", "mkdir -p $p"])


class Row(NamedTuple):
    """One variant of a row."""

    setup: str
    command: str
    names: str | None = None

    @property
    def wanted(self) -> list[str] | None:
        """The names, one by one."""
        return None if self.names is None else self.names.split()


ROWS: dict[str, Row] = {
    "1": Row("mkdir d; echo a>d/old", "rm -r d; mkdir d; echo n>d/new", "-/d/old +/d/new"),
    "1-twice": Row("mkdir d; echo a>d/o", "rm -r d; mkdir d; rm -r d; mkdir d; echo n>d/n", "-/d/o +/d/n"),
    "2": Row(
        "mkdir -p p/t/a/b; touch p/t/a/b/info p/t/a/b/page",
        "rm -r p/t; mkdir -p p/t/a/b; touch p/t/a/b/new",
        "-/p/t/a/b/info -/p/t/a/b/page +/p/t/a/b/new",
    ),
    "3": Row("echo a>f", "rm f; echo a>f", ""),
    "3-other-bytes": Row("echo a>f", "rm f; echo b>f", "~/f"),
    "4": Row("echo a>f", "mv f t; mv t f", ""),
    "4-directory": Row("mkdir d; echo a>d/f", "mv d t; mv t d", ""),
    "5": Row("printf AAAA>f; touch -d @1000000000 f", "printf BBBB>f; touch -d @1000000000 f", "~/f"),
    "6": Row("head -c 8192 /dev/zero | tr '\\0' x >f", f'/usr/bin/python3 -c "{_MAP}"', "~/f"),
    "7": Row("echo a>f", "exec 3>>f; rm f; echo lost>&3; echo new>f", "~/f"),
    "8": Row("mkdir d; echo a>d/f", "rm d/f", "-/d/f"),
    "9-made": Row("true", "mkdir -p a/b/c", "+/a +/a/b +/a/b/c"),
    "9-gone": Row("mkdir -p a/b/c", "rm -r a", "-/a -/a/b -/a/b/c"),
    "10": Row(
        "mkdir d; echo a>d/f; echo i>d/i",
        "mv d d2; echo two>d2/f; rm d2/i",
        "-/d -/d/f -/d/i +/d2 +/d2/f",
    ),
    "10-chain": Row(
        "mkdir -p a/b/c; echo v1>a/b/c/f; echo v2>a/g", "mv a z; mv z/b y; mv y/c x; mv x z/c; echo v3>z/c/f"
    ),
    "10-into-itself": Row("mkdir -p d/e; echo a>d/e/f", "mv d/e t; mv d t/d; mv t d"),
    "10-over-empty": Row("mkdir d e; echo a>d/f", "mv -T d e", "-/d -/d/f +/e/f"),
    "10-and-reused": Row("mkdir d; echo a>d/f; echo b>d/g", "mv d e; mkdir d; echo c>d/f; rm e/g; mkdir e/g"),
    "11": Row(
        "mkdir a b; echo v1>a/one; echo v2>b/two; echo v3>a/both; echo v4>b/both",
        "mv a t; mv b a; mv t b",
        "-/a/one +/b/one -/b/two +/a/two ~/a/both ~/b/both",
    ),
    "11-nested": Row("mkdir -p a/x b/x; echo v1>a/x/f; echo v2>b/x/f; chmod 700 a/x", "mv a/x t; mv b/x a/x; mv t b/x"),
    "11-file-and-directory": Row("echo f>a; mkdir b; echo g>b/x", "mv a t; mv b a; mv t b", "!/a !/b +/a/x -/b/x"),
    "13": Row("echo a>f", "echo b>f; echo n>new; exit 3", "~/f +/new"),
    "14": Row(
        f"git init -q .; echo a>f; git add f; {_GIT} commit -qm one",
        f"echo b>>f; echo n>n; git add .; GIT_AUTHOR_DATE=@1 GIT_COMMITTER_DATE=@1 {_GIT} commit -qm two "
        "--date=@1000000000; git fsck --strict 2>/dev/null; rm .git/index .git/logs/HEAD .git/logs/refs/heads/*",
    ),
    "16-truncate-append": Row(
        "printf 'abc\\r\\ndef'>f; seq 100 >g; seq 9 >h", "truncate -s 2 f; printf x>>g; : >h", "~/f ~/g ~/h"
    ),
    "16-line-ends": Row("true", "printf 'a\\r\\nb'>f; printf '\\r\\n'>g; : >empty", "+/f +/g +/empty"),
    "17": Row("head -c 409600 /dev/zero | tr '\\0' a >g", "head -c 409600 /dev/zero >f; printf '\\0'>>g", "+/f ~/g"),
    "18-file-directory": Row("echo a>x", "rm x; mkdir x; echo b>x/y", "!/x +/x/y"),
    "18-directory-file": Row("mkdir x; echo b>x/y", "rm -r x; echo a>x", "!/x -/x/y"),
    "18-directory-link": Row("mkdir x; echo b>x/y", "rm -r x; ln -s y x", "!/x -/x/y"),
    "18-link-directory": Row("ln -s y x", "rm x; mkdir x; echo b>x/y", "!/x +/x/y"),
    "18-file-link": Row("echo a>x", "rm x; ln -s y x", "!/x"),
    "18-link-file": Row("ln -s y x", "rm x; echo a>x", "!/x"),
    "18-directory-link-to-itself": Row("mkdir x; echo b>x/y", "rm -r x; ln -s x x", "!/x -/x/y"),
    "18-directory-link-to-where-it-went": Row("mkdir x; echo b>x/y", "mv x z; ln -s z x", "!/x -/x/y +/z +/z/y"),
    "18-file-fifo": Row("echo a>x; mkfifo y", "rm x y; mkfifo x; echo b>y", "!/x !/y"),
    "18-full-of-files": Row(
        "mkdir -p x/a/b; touch x/a/b/c x/d", "rm -r x; echo a>x", "!/x -/x/a -/x/a/b -/x/a/b/c -/x/d"
    ),
    "19-retargeted": Row("ln -s a s", "ln -sfn b s", "~/s"),
    "19-odd": Row(
        "ln -s dangling d; ln -s l l; echo a>f",
        "rm d; ln -s m n; ln -s n m; ln -s ../../../../etc/passwd p; ln -s /etc/passwd q; ln -sfn f l; ln -s . dot",
        "-/d +/n +/m +/p +/q ~/l +/dot",
    ),
    "19-long": Row("true", "ln -s $(printf 'n%.0s' $(seq 4000)) s", "+/s"),
    "20": Row("mkdir d; ln -s d s", "echo x>s/f", "+/d/f"),
    "21-fifos": Row("mkfifo p q; chmod 644 p", "mkfifo n; rm q; chmod 600 p", "+/n -/q ~/p"),
    "21-linked-fifo": Row("mkfifo p; ln p q", "rm q; ln p r; chmod 600 p", "-/q +/r ~/p"),
    "23": Row(
        "true", "echo a>.wh.foo; mkdir d; echo b>d/.wh..wh..opq; : >d/.wh.", "+/.wh.foo +/d +/d/.wh..wh..opq +/d/.wh."
    ),
    "23-there-before": Row(
        "echo a>foo; echo b>.wh.foo; mkdir d; echo c>d/.wh..wh..opq; echo e>d/e",
        "rm foo .wh.foo; echo d>>d/.wh..wh..opq",
    ),
    "24": Row("true", "truncate -s 10M f; printf x | dd of=f bs=1 seek=5M conv=notrunc status=none", "+/f"),
    "24-all-hole": Row("truncate -s 3M g", "truncate -s 10M f; printf x>>g", "+/f ~/g"),
    "24-moved": Row("truncate -s 4M g; echo x>>g", "mv g h; cp --sparse=always h i", "-/g +/h +/i"),
    "25": Row(
        "for i in f g h; do echo a>$i; done; mkdir d e s",
        "chmod 600 f; chmod +x g; chmod 4755 h; chmod 700 d; chmod 2775 e; chmod 1777 s",
        "~/f ~/g ~/h ~/d ~/e ~/s",
    ),
    "25-new-content-too": Row("echo a>f; chmod 4755 f", "echo b>>f; chmod 6711 f", "~/f"),
    "25-of-the-root": Row("echo a>f", "chmod 750 .", "~/"),
    "25-of-the-root-and-inside": Row("chmod 2770 .; echo a>f", "chmod 555 .; echo b>g; mkdir d", "~/ +/g +/d"),
    "25-set-group-inherited": Row("mkdir d; chgrp 7 d; chmod 2775 d", "mkdir d/e; echo a>d/f", "+/d/e +/d/f"),
    "26": Row(
        "echo a>f; mkdir -p d/e t; echo b>d/e/g; ln -s f l; ln -s f k",
        "chown 1:1 f; chown 5:6 t; chown -R 2:2 d; chown -h 3:3 l",
        "~/f ~/t ~/d ~/d/e ~/d/e/g ~/l",
    ),
    "26-set-id": Row(
        "echo a>f; chmod 4755 f; echo b>g; chmod 6755 g", "chown 1:1 f; chown 2:2 g; chmod 6755 g", "~/f ~/g"
    ),
    "27-set-and-removed": Row(
        "echo a>f; echo b>g; echo c>h; mkdir d; setfattr -n user.a -v 1 g; setfattr -n user.b -v 2 h",
        "setfattr -n user.new -v x f; setfattr -x user.a g; setfattr -n user.d -v y d; echo d>>h",
        "~/f ~/g ~/d ~/h",
    ),
    "27-odd": Row("echo a>f", "setfattr -n 'user.a=b, c%d -' -v 0x00ff2c3d25 f; setfattr -n user.empty f", "~/f"),
    "27-of-the-root": Row("echo a>f; setfattr -n user.k -v 1 .", "setfattr -n user.k -v 2 .", "~/"),
    "27-kept-over-a-rename": Row(
        "echo a>f; setfattr -n user.k -v 1 f; mkdir d; setfattr -n user.d -v 1 d", "mv f g; mv d e"
    ),
    "28": Row(
        "echo a>f; mkdir d; echo b>g; setfacl -m u:1:r g; echo c>h; setfacl -m u:9:rw h",
        "setfacl -m u:1:rw f; setfacl -d -m g:2:rx d; setfacl -b g; echo new>d/inherits; mkdir d/e; echo x>>h",
        "~/f ~/d ~/g +/d/inherits +/d/e ~/h",
    ),
    "28-root": Row("setfacl -d -m u:1:rwx .; chmod 2770 .; echo a>f", "echo b>g; mkdir d; echo c>d/h; chmod 600 g"),
    "28-capability": Row(
        "cp /bin/true t; cp /bin/true u; setcap cap_net_raw+ep u", "setcap cap_net_raw+ep t; setcap -r u", "~/t ~/u"
    ),
    "28-capability-lost": Row("cp /bin/true t; setcap cap_net_raw+ep t", "echo >>t", "~/t"),
    "29-new": Row("echo a>f", "ln f g", "+/g ~/f"),
    "29-new-pair": Row("true", "echo a>f; ln f g; ln f h", "+/f +/g +/h"),
    "29-written-through": Row("echo a>f; ln f g; mkdir d; ln f d/h", "echo b>>g", "~/f ~/g ~/d/h"),
    "29-broken": Row("echo a>f; ln f g", "cp f t; mv t g", "~/f ~/g"),
    "29-broken-and-changed": Row("echo a>f; ln f g; ln f h", "rm g; echo n>g; ln g i"),
    "29-unlinked": Row("echo a>f; ln f g; ln f h", "rm g", "-/g"),
    "29-last-but-one": Row("echo a>f; ln f g", "rm g", "-/g"),
    "29-into-a-new-directory": Row("echo a>f", "mkdir -p d/e; ln f d/e/g; echo b>>d/e/g", "~/f +/d +/d/e +/d/e/g"),
    "29-regrouped": Row("echo a>f; ln f g; echo b>h; ln h i", "ln -f f i; ln -f h g"),
    "29-moved": Row("mkdir d; echo a>d/f; ln d/f g; ln d/f d/h", "mv d e; echo b>>g; mv g e/g"),
    "29-same-size-and-time": Row(
        "printf a>f; touch -d @1000000000 f; ln f g; ln f h", "printf b>f; touch -d @1000000000 f; rm f"
    ),
    "29-mode": Row("echo a>f; ln f g", "chmod 600 g; setfattr -n user.k -v 1 f", "~/f ~/g"),
    "29-of-a-symlink": Row("ln -s x s", "ln s t", "+/t ~/s"),
    "30": Row(
        "echo a>f; mkdir d; echo b>d/g; chmod 000 f d",
        "echo c>n; mkdir e; echo x>e/y; chmod 000 n e; chmod 600 f",
        "~/f +/n +/e +/e/y",
    ),
    "30-inside": Row("mkdir d; echo b>d/g; chmod 000 d/g d", "echo c>>d/g; echo n>d/n; chmod 000 d/n", "~/d/g +/d/n"),
    "31": Row("mkdir d; touch d/f; chmod 555 d", "echo a>d/f; echo b>d/g", "~/d/f +/d/g"),
    "31-emptied": Row("mkdir -p d/e; touch d/e/f; chmod 555 d d/e", "rm -r d/e", "-/d/e -/d/e/f"),
    "32": Row(
        'n() { printf "$1"; }; printf a>"$(n \'new\\nline\')"; printf b>"$(n \'\\377\\376\')"; printf c>./-dash; '
        "printf d>'*'; printf e>'$(id)'",
        "n() { printf \"$1\"; }; for i in *; do printf X>>\"./$i\"; done; printf f>'a;b'; printf g>'two  spaces'; "
        "printf h>\"$(n '\\033[31m\\007\\r')\"; printf i>\"$(n 'e\\314\\201')\"; printf j>\"$(n '\\303\\251')\"; "
        "printf k>$(printf 'n%.0s' $(seq 255)); d=$(n 'bad\\377'); mkdir \"$d\"; printf l>\"$d/$(n '\\376')\"; "
        "ln -s \"$(n '\\377')\" link",
    ),
    "32-deep": Row("true", _DEEP + "; echo a>$p/f"),
    "32-deep-deleted": Row(_DEEP + "; echo a>$p/f", "rm -r level1"),
    "32-long-path": Row(
        "true",
        "n=$(printf 'n%.0s' $(seq 250)); for i in 1 2 3 4 5 6 7 8 9; do mkdir $n; cd $n; done; echo a>f",
    ),
    "32-moved": Row(
        'd=$(printf \'\\377\\n\'); mkdir "$d"; echo a>"$d/ -x"', "mv \"$(printf '\\377\\n')\" ok; mv 'ok/ -x' -- '-y'"
    ),
    "43": Row("git init -q .; echo '*.o'>.gitignore; echo v1>a.o", "echo v2>a.o; echo v3>b.o", "~/a.o +/b.o"),
    "44": Row("git init -q .; echo v1>a; mkdir d; echo v22>d/b", "git clean -qfdx", "-/a -/d -/d/b"),
    "rename-over-a-file": Row("echo a>f; echo b>g; chmod 600 f", "mv f g", "-/f ~/g"),
    "rename-over-a-linked-file": Row("echo a>f; echo b>g; ln g h", "mv f g", "-/f ~/g ~/h"),
    "rename-chain-of-files": Row("echo v1>a; echo v2>b; echo v3>c", "mv c t; mv b c; mv a b; mv t a", "~/a ~/b ~/c"),
    "case-only": Row(
        "echo a>name; mkdir Dir; echo b>Dir/f", "mv name NAME; mv Dir dir", "-/name +/NAME -/Dir -/Dir/f +/dir +/dir/f"
    ),
    "everything-deleted": Row("echo a>f; mkdir -p d/e; echo b>d/e/g; ln -s f l; touch .h", "rm -rf * .h"),
    "touched-only": Row("echo a>f; mkdir d; echo b>d/g; touch -d @5 f", "touch f d d/g; cat f >/dev/null", ""),
    "odd-times": Row(
        "echo a>f; touch -d @-5.5 f",
        "echo b>g; touch -d 2200-01-01 g; ln -s x s; touch -hd @7 s; echo c>>f; touch -d @3.25 f",
    ),
    "copied": Row("mkdir d; seq 1000 >d/f; touch -d @9.5 d/f", "cp -a d e; cp d/f g", "+/e +/e/f +/g"),
    "temporary": Row("echo a>f", "echo b>t; mkdir u; echo c>u/v; rm -r t u; sed -i s/a/z/ f", "~/f"),
    "names-in-order-of-bytes": Row(
        "mkdir a; touch a/b a-b a.b", "rm -r a a-b; mkdir a-b; touch a-b/c; mkdir a; touch a/c"
    ),
    "root-of-nothing": Row("true", "true", ""),
}

#: What only root may set, and what the sandbox may not: prepared before, then moved or changed beside.
ROOT_ROWS: dict[str, Row] = {
    "22-others": Row("mknod n c 1 3; mknod b b 7 99; echo a>f", "echo b>>f; rm b", "~/f -/b"),
    "22-moved": Row(
        "mknod n c 1 3; mkdir d; mknod d/m b 7 99", "mv n o; mv d e; chmod 600 o", "-/n +/o -/d -/d/m +/e +/e/m"
    ),
    "27-trusted-kept": Row(
        "echo a>f; setfattr -n trusted.t -v 2 f; ln -s f s; setfattr -h -n trusted.s -v 1 s", "echo b>f", "~/f"
    ),
}

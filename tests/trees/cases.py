"""Set-ups and commands whose outcome every copy engine must report exactly: ``name: (set-up, command)``."""

CASES: dict[str, tuple[str, str]] = {
    "recreated-directory": ("mkdir d; echo a>d/old", "rm -r d; mkdir d; echo n>d/new"),
    "recreated-tree": (
        "mkdir -p p/t/a/b; touch p/t/a/b/info p/t/a/b/page",
        "rm -r p/t; mkdir -p p/t/a/b; touch p/t/a/b/new",
    ),
    "rewritten-the-same": ("echo a>f", "rm f; echo a>f"),
    "moved-and-back": ("echo a>f", "mv f t; mv t f"),
    "same-size-same-time": (
        "printf AAAA>f; touch -d @1000000000 f",
        "printf BBBB>f; touch -d @1000000000 f",
    ),
    "mapped-write": (
        "head -c 8192 /dev/zero >f",
        'python3 -c \'import mmap; f=open("f","r+b"); m=mmap.mmap(f.fileno(),0); m[9:13]=b"abcd"; m.flush()\'',
    ),
    "write-to-removed": ("echo a>f", "exec 3>>f; rm f; echo lost>&3; echo new>f"),
    "emptied-directory": ("mkdir d; echo a>d/f", "rm d/f"),
    "new-empty-directories": ("true", "mkdir -p a/b/c"),
    "gone-empty-directories": ("mkdir -p a/b/c", "rm -r a"),
    "renamed-directory": ("mkdir d; echo a>d/f; echo i>d/i", "mv d d2; echo two>d2/f; rm d2/i"),
    "renamed-directory-deep": (
        "mkdir -p d/e/f; echo a>d/e/f/g; echo i>d/i",
        "mkdir n; mv d/e n/x; mv n/x/f n/y; mv d q",
    ),
    "renamed-twice": ("mkdir -p d/e; echo a>d/e/f; echo b>d/g", "mv d x; mv x/e e; mv x y; echo c>y/g; mv e y/z"),
    "renamed-and-replaced": ("mkdir d; echo a>d/f; echo b>d/g", "mv d e; mkdir d; echo c>d/f; rm e/g; mkdir e/g"),
    "renamed-into-itself": ("mkdir -p d/e; echo a>d/e/f", "mv d/e t; mv d t/d; mv t d"),
    "swapped-directories": ("mkdir a b; echo 1>a/one; echo 2>b/two", "mv a t; mv b a; mv t b"),
    "swapped-nested": ("mkdir -p a/x b/x; echo 1>a/x/f; echo 2>b/x/f", "mv a/x t; mv b/x a/x; mv t b/x"),
    "moved-over-empty": ("mkdir d e; echo a>d/f", "mv -T d e"),
    "truncate-append": ("printf 'abc\\r\\ndef'>f; seq 100 >g", "truncate -s 2 f; printf 'x'>>g"),
    "binary": ("true", "head -c 409600 /dev/zero >f"),
    "file-to-directory": ("echo a>x", "rm x; mkdir x; echo b>x/y"),
    "directory-to-file": ("mkdir x; echo b>x/y", "rm -r x; echo a>x"),
    "directory-to-link": ("mkdir x; echo b>x/y", "rm -r x; ln -s y x"),
    "link-to-directory": ("ln -s y x", "rm x; mkdir x; echo b>x/y"),
    "file-to-link": ("echo a>x", "rm x; ln -s y x"),
    "link-to-file": ("ln -s y x", "rm x; echo a>x"),
    "file-to-fifo": ("echo a>x", "rm x; mkfifo x"),
    "links": (
        "ln -s a s; ln -s l l; ln -s /nowhere d; ln -s same m",
        "ln -sfn b s; ln -s ../../../../etc/passwd p; rm d; ln -sfn same m",
    ),
    "through-a-link": ("mkdir d; ln -s d s", "echo x>s/f"),
    "fifo": ("mkfifo p q; chmod 644 p", "mkfifo n; rm q; chmod 600 p"),
    "device-there-before": ("mknod n c 1 3", "echo a>f"),
    "whiteout-names": ("true", "echo a>.wh.foo; mkdir d; echo b>d/.wh..wh..opq"),
    "sparse": (
        "truncate -s 4M old",
        "truncate -s 10M f; printf x | dd of=f bs=1 seek=5M conv=notrunc status=none",
    ),
    "modes": (
        "echo a>f; echo b>g; echo c>h; mkdir d e s",
        "chmod 600 f; chmod +x g; chmod 4755 h; chmod 700 d; chmod 2775 e; chmod 1777 s",
    ),
    "owners": (
        "echo a>f; mkdir -p d/e; echo b>d/e/g; ln -s f l; ln -s f k",
        "chown 1:1 f; chown -R 2:2 d; chown -h 3:3 l",
    ),
    "xattrs": (
        "echo a>f; echo b>g; echo c>h; mkdir d; setfattr -n user.a -v 1 g; setfattr -n user.b -v 2 h",
        "setfattr -n user.new -v x f; setfattr -x user.a g; setfattr -n user.d -v y d; echo d>>h",
    ),
    "odd-xattrs": (
        "echo a>f",
        "setfattr -n 'user.a=b, c%d -' -v 0x00ff2c3d25 f; setfattr -n user.empty f; setfattr -n trusted.t -v - f",
    ),
    "acls": (
        "echo a>f; mkdir d; echo b>g; setfacl -m u:1:r g",
        "setfacl -m u:1:rw f; setfacl -d -m g:2:rx d; setfacl -b g; echo new>d/inherits; cp /bin/true t; "
        "setcap cap_net_raw+ep t",
    ),
    "capability-dropped": ("cp /bin/true t; setcap cap_net_raw+ep t; chmod u+s t", "echo >>t"),
    "link-new": ("echo a>f", "ln f g"),
    "link-pair-new": ("true", "echo a>f; ln f g; ln f h"),
    "link-written-through": ("echo a>f; ln f g; mkdir d; ln f d/h", "echo b>>g"),
    "link-written-and-removed": ("echo a>f; ln f g; ln f h", "echo b>>f; rm f"),
    "link-written-same-size-and-time": (
        "printf a>f; touch -d @1000000000 f; ln f g; ln f h",
        "printf b>f; touch -d @1000000000 f; rm f",
    ),
    "link-broken": ("echo a>f; ln f g", "cp f t; mv t g"),
    "link-broken-and-changed": ("echo a>f; ln f g; ln f h", "rm g; echo n>g; ln g i"),
    "link-unlinked": ("echo a>f; ln f g; ln f h", "rm g"),
    "link-mode": ("echo a>f; ln f g", "chmod 600 g"),
    "link-regrouped": ("echo a>f; ln f g; echo b>h; ln h i", "ln -f f i; ln -f h g"),
    "link-moved": ("mkdir d; echo a>d/f; ln d/f g; ln d/f d/h", "mv d e; mv g e/g"),
    "link-moved-and-written": ("mkdir d; echo a>d/f; ln d/f g; ln d/f d/h", "mv d e; echo b>>g"),
    "link-of-a-symlink": ("ln -s x s", "ln s t"),
    "linked-fifo": ("mkfifo p; ln p q", "rm q; ln p r; chmod 600 p"),
    "closed": (
        "echo a>f; mkdir d; echo b>d/g; chmod 000 f d",
        "echo c>n; mkdir e; echo x>e/y; chmod 000 n e; chmod 600 f",
    ),
    "read-only-directory": ("mkdir d; touch d/f; chmod 555 d", "echo a>d/f; echo b>d/g"),
    "names": (
        "printf a>$'new\\nline'; printf b>$'\\xff\\xfe'; printf c>./-dash; printf d>'*'; printf e>'$(id)'",
        "printf A>>$'new\\nline'; printf B>>$'\\xff\\xfe'; printf C>>./-dash; printf D>>'*'; printf E>>'$(id)'; "
        "printf f>'a;b'; printf g>'two  spaces'; printf h>$'\\e[31m\\a\\r'; "
        "printf i>$'e\\xcc\\x81'; printf j>$'\\xc3\\xa9'; "
        "printf k>$(printf 'n%.0s' $(seq 255)); mkdir $'bad\\xff'; printf l>$'bad\\xff/\\xfe'; ln -s $'\\xff' link",
    ),
    "deep": (
        "true",
        "p=.; for i in $(seq 60); do p=$p/level$i; done; mkdir -p $p; echo a>$p/f",
    ),
    "ignored": ("git init -q .; echo '*.o'>.gitignore; echo 1>a.o", "echo 2>a.o; echo 3>b.o"),
    "cleaned": ("git init -q .; echo 1>a; mkdir d; echo 2>d/b", "git clean -qfdx"),
    "temporary-files": ("echo a>f", "echo b>t; mkdir u; echo c>u/v; rm -r t u; sed -i s/a/z/ f"),
    "root-attributes": ("echo a>f", "chmod 750 .; setfattr -n user.root -v 1 ."),
    "emptied": ("echo a>f; mkdir d; echo b>d/g; ln -s f l", "rm -rf * "),
    "copied": ("mkdir d; seq 1000 >d/f", "cp -a d e; cp d/f g"),
    "touched": ("echo a>f; mkdir d; echo b>d/g", "touch f d d/g; cat f >/dev/null"),
    "case": ("echo a>name", "mv name NAME"),
    "old-and-far-times": ("echo a>f", "touch -d @-5.5 f; echo b>g; touch -d '2200-01-01' g"),
}

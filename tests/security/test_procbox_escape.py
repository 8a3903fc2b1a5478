"""Ways out of a procbox, each with the exact refusal that it meets."""

from __future__ import annotations

import os
import platform
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from flux.core.errors import FluxError
from flux.ports.substrate import Exit, Limits, Mount
from tests.security.boxes import Box, python_mounts

_X86 = platform.machine() == "x86_64"
_NOT_FILES = {"clone": 56 if _X86 else 220}
#: System calls by number: the same everywhere from 424 on, by architecture before.
_NUMBERS = {
    "bpf": 321 if _X86 else 280,
    "keyctl": 250 if _X86 else 219,
    "add_key": 248 if _X86 else 217,
    "perf_event_open": 298 if _X86 else 241,
    "init_module": 175 if _X86 else 105,
    "kexec_load": 246 if _X86 else 104,
    "userfaultfd": 323 if _X86 else 282,
    "open_by_handle_at": 304 if _X86 else 265,
    "setns": 308 if _X86 else 268,
    "pivot_root": 155 if _X86 else 41,
    "umount2": 166 if _X86 else 39,
    "reboot": 169 if _X86 else 142,
    "syslog": 103 if _X86 else 116,
    "clock_settime": 227 if _X86 else 112,
    "io_uring_setup": 425,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fspick": 433,
    "mount_setattr": 442,
    "open_tree_attr": 467,
}


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    made = Box(tmp_path_factory.mktemp("box"))
    (made.place / "state" / "admin-token").write_text("secret")
    yield made
    made.instance.close()


# What can be seen


@pytest.mark.parametrize(
    ("code", "refusal"),
    [
        ("open('/etc/shadow').read()", "ENOENT"),
        ("open('/etc/gshadow').read()", "ENOENT"),
        ("os.listdir('/etc/ssl/private')", "ENOENT"),
        ("os.listdir('/etc/ssh')", "ENOENT"),
        ("os.listdir('/var/lib')", "ENOENT"),
        ("os.listdir('/boot')", "ENOENT"),
        ("os.listdir('/proc/1/root')", "EACCES"),
        ("os.readlink('/proc/1/fd/3')", "EACCES"),
        ("os.open('/proc/1/fd/3', os.O_RDONLY)", "EACCES"),
        ("os.readlink('/proc/1/exe')", "EACCES"),
        ("open('/proc/1/mem').read(1)", "EACCES"),
        ("open('/proc/1/environ').read()", "EACCES"),
        ("os.stat('/dev/mem')", "ENOENT"),
        ("os.stat('/dev/kvm')", "ENOENT"),
        ("os.stat('/dev/net/tun')", "ENOENT"),
        ("os.stat('/sys/kernel')", "ENOENT"),
        ("os.stat('/sys/fs/cgroup')", "ENOENT"),
        ("os.stat('/run/dbus')", "ENOENT"),
        ("os.stat('/var/run/docker.sock')", "ENOENT"),
    ],
)
def test_the_host_is_not_there(box: Box, code: str, refusal: str) -> None:
    assert box.python(f"print(attempt(lambda: {code}))") == refusal


def test_the_state_directory_is_not_there(box: Box) -> None:
    state = str(box.place / "state")
    assert box.python(f"print(attempt(os.listdir, {state!r}))") == "ENOENT"


@pytest.mark.parametrize("name", ["kcore", "kallsyms", "keys", "kmsg", "timer_list", "slabinfo", "vmallocinfo"])
def test_what_the_kernel_tells_of_itself_is_hidden(box: Box, name: str) -> None:
    # As root nothing is read; as another user nothing may be.
    said = box.python(f"print(attempt(lambda: open('/proc/{name}', 'rb').read(16)))")
    there = "got b''" if os.geteuid() == 0 else "EACCES"
    assert said == (there if Path("/proc", name).exists() else "ENOENT")


def test_only_own_processes_are_seen(box: Box) -> None:
    pids = box.python("print(*sorted(int(name) for name in os.listdir('/proc') if name.isdecimal()))").split()
    assert pids[0] == "1"
    assert len(pids) <= 3  # the init, a keeper where there are no cgroups, and the one that looks
    assert str(os.getpid()) not in pids


def test_only_own_users_are_known(box: Box) -> None:
    assert {line.split(":")[0] for line in box.shell("cat /etc/passwd").split("\n")} == {"root", "user", "nobody"}


def test_homes_are_empty_or_own(box: Box) -> None:
    known = {name for mount in python_mounts() for name in Path(mount.source).parts[2:3]}
    assert set(box.shell("ls -A /home").split()) == {"user"}
    assert set(box.shell("ls -A /root").split()) <= known


def test_no_descriptor_leaks_in(box: Box) -> None:
    assert box.python("print(*sorted(os.listdir('/proc/self/fd')))") == "0 1 2 3"  # 3 is the listing's own


def test_the_hostname_is_own(box: Box) -> None:
    assert box.python("print(socket.gethostname())") == "flux"
    assert box.python("print(attempt(socket.sethostname, 'other'))") == "EPERM"


# What can be changed


@pytest.mark.parametrize(
    ("path", "refusal"),
    [
        ("/usr/bin/new", "EROFS"),
        ("/new", "EROFS"),
        ("/etc/passwd", "EROFS"),
        ("/sys/devices/system/cpu/cpu0/online", "EROFS"),
        ("/proc/sys/kernel/hostname", "EROFS"),
        ("/proc/sys/vm/drop_caches", "EROFS"),
        ("/proc/sysrq-trigger", "EROFS"),
        ("/proc/self/../sys/kernel/core_pattern", "EROFS"),
    ],
)
def test_the_system_cannot_be_written(box: Box, path: str, refusal: str) -> None:
    refusals = {refusal} if os.geteuid() == 0 else {refusal, "EACCES", "ENOENT"}
    said = box.python(f"print(attempt(lambda: open({path!r}, 'w').write('1')))")
    assert said in refusals or (said == "ENOENT" and not Path(path).exists())


@pytest.mark.parametrize(
    "arguments",
    [
        "b'none', b'/tmp', b'tmpfs', 0, None",
        "b'none', b'/usr', None, 0x1020, None",  # bind and remount, to make it writable
        "b'/usr', b'/tmp', None, 0x1000, None",
        "b'proc', b'/proc', b'proc', 0, None",
    ],
)
def test_nothing_can_be_mounted(box: Box, arguments: str) -> None:
    assert box.python(f"print(call('mount', {arguments}))") == "EPERM"


@pytest.mark.parametrize("name", sorted(_NUMBERS))
def test_a_forbidden_call_is_refused(box: Box, name: str) -> None:
    assert box.python(f"print(system({_NUMBERS[name]}, -1, -1, -1, -1, -1))") == "EPERM"


@pytest.mark.parametrize(
    "flag", ["0x10000000", "0x20000", "0x20000000", "0x40000000", "0x8000000", "0x4000000", "0x2000000"]
)
def test_no_namespace_can_be_made(box: Box, flag: str) -> None:
    assert box.python(f"print(call('unshare', {flag}))") == "EPERM"
    assert box.python(f"print(system({_NOT_FILES['clone']}, {flag} | 17, 0, 0, 0, 0))") == "EPERM"


def test_clone3_is_not_there(box: Box) -> None:
    assert box.python("print(system(435, 0, 0))") == "ENOSYS"


def test_user_namespaces_are_used_up_even_without_the_filter(box: Box) -> None:
    assert box.shell("cat /proc/sys/user/max_user_namespaces") == "0"


@pytest.mark.skipif(not _X86, reason="x32 exists on x86_64 only")
def test_the_other_call_numbers_kill(box: Box) -> None:
    assert box.python(
        "child = os.fork()\n"
        "if not child:\n    libc.syscall(ctypes.c_long(0x40000000 | 39)); os._exit(0)\n"
        "print(os.WTERMSIG(os.waitpid(child, 0)[1]))"
    ) == str(int(signal.SIGSYS))


@pytest.mark.parametrize(("kind", "device"), [("0o020000", "0x103"), ("0o060000", "0xfe00"), ("0o020000", "0")])
def test_no_device_can_be_made(box: Box, kind: str, device: str) -> None:
    assert box.python(f"print(attempt(os.mknod, '/tmp/device', {kind} | 0o666, {device}))") == "EPERM"


def test_fifos_and_sockets_can_be_made(box: Box) -> None:
    code = (
        "os.mkfifo('/tmp/fifo'); socket.socket(socket.AF_UNIX).bind('/tmp/socket'); print(*sorted(os.listdir('/tmp')))"
    )
    assert {"fifo", "socket"} <= set(box.python(code).split())


# The init


def test_the_init_cannot_be_killed(box: Box) -> None:
    box.shell("kill -9 1; kill -STOP 1; kill -TERM 1")
    assert box.instance.alive()
    assert box.shell("echo on") == "on"


def test_the_init_cannot_be_traced(box: Box) -> None:
    assert box.python("print(call('ptrace', 16, 1, 0, 0))") == "EPERM"
    number = 310 if _X86 else 270
    assert box.python(f"print(system({number}, 1, 0, 0, 0, 0, 0))") in ("EPERM", "got 0")
    code = (
        "buffer = ctypes.create_string_buffer(8)\n"
        "pair = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), 8)\n"
        "far = (ctypes.c_size_t * 2)(4096, 8)\n"
        f"print(system({number}, 1, ctypes.byref(pair), 1, ctypes.byref(far), 1, 0))"
    )
    assert box.python(code) == "EPERM"


def test_own_children_can_be_traced(box: Box) -> None:
    code = (
        "child = os.fork()\n"
        "if not child:\n    libc.ptrace(0, 0, 0, 0); os.kill(os.getpid(), signal.SIGSTOP); os._exit(0)\n"
        "print(os.WIFSTOPPED(os.waitpid(child, 0)[1])); os.kill(child, signal.SIGKILL)"
    )
    assert box.python(code) == "True"


# Rights


def test_privileges_are_gone(box: Box) -> None:
    status = dict(line.split(":\t", 1) for line in box.shell("cat /proc/self/status").split("\n"))
    kept = 0x800405FB  # chown … setpcap, net_bind_service, sys_chroot, setfcap
    assert int(status["CapBnd"], 16) & ~kept == 0
    assert int(status["CapEff"], 16) == (kept if os.geteuid() == 0 else 0)
    assert int(status["CapInh"], 16) == int(status["CapAmb"], 16) == 0
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2"


def test_another_user_has_nothing(box: Box) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: without privileges there is no other user")
    status = box.shell("id -u; id -G; grep CapEff /proc/self/status", uid=1000, gid=1000, cwd="/")
    assert status.split() == ["1000", "1000", "CapEff:", "0000000000000000"]
    assert box.shell("echo x >/work/denied", uid=1000, gid=1000, cwd="/").endswith("Permission denied")


@pytest.mark.parametrize("request_number", ["0x5412", "0x541C"])
def test_no_input_can_be_faked(box: Box, request_number: str) -> None:
    code = f"import fcntl\nm, s = os.openpty()\nprint(attempt(fcntl.ioctl, s, {request_number}, b'x'))"
    assert box.python(code) == "EPERM"


# The network


def test_the_hosts_loopback_is_another_one(box: Box) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = f"print(attempt(socket.create_connection, ('127.0.0.1', {port}), 10))"
        assert box.python(code) == "ECONNREFUSED"


def test_the_hosts_abstract_sockets_are_other_ones(box: Box) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("\0flux-escape")
        server.listen()
        assert box.python("print(attempt(socket.socket(socket.AF_UNIX).connect, '\\0flux-escape'))") == "ECONNREFUSED"


@pytest.mark.parametrize(
    "arguments",
    ["socket.AF_PACKET, socket.SOCK_RAW", "socket.AF_INET, socket.SOCK_RAW, 1", "40, socket.SOCK_STREAM", "38, 5"],
)
def test_no_raw_or_foreign_socket_can_be_made(box: Box, arguments: str) -> None:
    assert box.python(f"print(attempt(socket.socket, {arguments}))") == "EPERM"


def test_the_network_cannot_be_configured(box: Box) -> None:
    code = (
        "import fcntl\ns = socket.socket()\nprint(attempt(fcntl.ioctl, s, 0x8914, b'lo'.ljust(16, b'\\0') + bytes(24)))"
    )
    assert box.python(code) == "EPERM"


def test_a_connection_is_refused_at_once_and_recorded(box: Box) -> None:
    said = box.python("print(attempt(socket.create_connection, ('192.0.2.7', 443), 20))")
    if not box.substrate.capabilities().observes_network:
        assert said == "ENETUNREACH"
        assert box.instance.flows() is None
        return
    assert said == "ECONNREFUSED"
    found = [flow for flow in box.instance.flows() or [] if flow.dst == "192.0.2.7"]
    assert [(flow.proto, flow.port, flow.verdict) for flow in found] == [("tcp", 443, "refused")]


def test_low_ports_of_the_own_loopback_can_be_used(box: Box) -> None:
    assert box.python("print(socket.create_server(('127.0.0.1', 80)).getsockname()[1])") == "80"


# Paths


@pytest.mark.parametrize("climb", ["", "../" * 20])
def test_a_link_in_the_workspace_leads_no_mount_outside(tmp_path: Path, climb: str) -> None:
    tool, outside = tmp_path / "tool", tmp_path / "outside"
    for directory in (tool, outside, tmp_path / "workspace"):
        directory.mkdir()
    link = tmp_path / "workspace" / "link"
    link.symlink_to(f"{climb}{outside}" if climb else outside)
    mount = Mount(source=str(tool), target="/work/link/deep")
    with pytest.raises(FluxError) as refused:
        Box(tmp_path, mounts=(mount,))
    assert "No such file or directory" in refused.value.message
    assert list(outside.iterdir()) == []
    link.unlink()
    link.symlink_to(climb + "/tmp")
    box = Box(tmp_path, mounts=(mount,))  # where the link leads from inside
    box.instance.close()
    assert [path.name for path in (tmp_path / "scratch").iterdir()] == ["deep"]


def test_hidden_directories_are_empty(tmp_path: Path) -> None:
    hidden = tmp_path / "workspace" / "a" / "state"
    hidden.mkdir(parents=True)
    (hidden / "secret").write_text("secret")
    box = Box(tmp_path, hidden=(str(hidden),))
    try:
        assert box.shell("ls a; ls -A a/state; echo x >a/state/x").startswith("state\n")
        assert "secret" not in box.shell("ls -A a/state")
        assert [path.name for path in hidden.iterdir()] == ["secret"]
    finally:
        box.instance.close()


def test_mounts_cannot_be_written(tmp_path: Path) -> None:
    tool = tmp_path / "tool"
    tool.mkdir()
    box = Box(tmp_path, mounts=(Mount(source=str(tool), target="/opt/tool"),))
    try:
        assert box.shell("touch /opt/tool/x").endswith("Read-only file system")
    finally:
        box.instance.close()


# Bounds


def test_a_fork_bomb_stays_small_and_dies(tmp_path: Path) -> None:
    box = Box(tmp_path, limits=Limits(memory_mib=256, pids=40))
    try:
        running = box.run("/bin/sh", "-c", "bomb() { bomb | bomb & }; bomb; wait; exec sleep 1000")
        most = max(box.instance.usage().processes for _ in range(200))
        assert 1 <= most <= 40
        box.instance.kill()
        assert running.process.wait(0) is not None
        running.close()
    finally:
        box.instance.close()


def test_more_processes_are_refused_by_name(tmp_path: Path) -> None:
    box = Box(tmp_path, limits=Limits(pids=5), mounts=python_mounts())
    try:
        code = (
            "children = []\n"
            "while True:\n"
            "    try:\n        child = os.fork()\n"
            "    except OSError as error:\n        print(errno.errorcode[error.errno], len(children)); break\n"
            "    if not child:\n        signal.pause()\n"
            "    children.append(child)\n"
            "[os.kill(child, 9) for child in children]"
        )
        refusal, count = box.python(code).split()
        assert refusal == "EAGAIN"
        assert 2 <= int(count) <= 4
    finally:
        box.instance.close()


def test_memory_is_bounded(tmp_path: Path) -> None:
    box = Box(tmp_path, limits=Limits(memory_mib=64), mounts=python_mounts())
    bounded = box.substrate.capabilities().enforces_limits
    try:
        running = box.run("/bin/sh", "-c", "head -c 300000000 /dev/zero | tail -c 300000000 | wc -c")
        assert running.finish()[1] != b"300000000\n"
        running.close()
        assert box.instance.alive()
        assert bounded == (os.geteuid() == 0)
    finally:
        box.instance.close()


def test_files_are_bounded_and_no_core_is_left(tmp_path: Path) -> None:
    box = Box(tmp_path, limits=Limits(file_mib=1))
    try:
        running = box.run("/bin/sh", "-c", "ulimit -c; exec head -c 2000000 /dev/zero >big")
        ended, output, _ = running.finish()
        running.close()
        assert output == b"0\n"
        assert ended == Exit(signal=signal.SIGXFSZ)
        assert (tmp_path / "workspace" / "big").stat().st_size == 1 << 20
    finally:
        box.instance.close()


def test_many_sandboxes_do_not_meet(tmp_path: Path) -> None:
    boxes: list[Box] = []

    def make(number: int) -> None:
        place = tmp_path / str(number)
        place.mkdir()
        boxes.append(Box(place, sandbox_id=f"sb{number}"))

    threads = [threading.Thread(target=make, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        assert len(boxes) == 8
        for box in boxes:
            box.shell(f"echo {box.place.name} >name")
        assert all((box.place / "workspace" / "name").read_text().strip() == box.place.name for box in boxes)
        boxes[0].instance.kill()
        assert [box.instance.alive() for box in boxes] == [False] + [True] * 7
    finally:
        for box in boxes:
            box.instance.close()

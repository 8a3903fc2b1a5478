"""One start of a sandbox: everything made on the way is undone unless the sandbox runs at the end."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress

from flux.core.errors import Code, FluxError
from flux.ports.network import FlowSource, Link, LinkedNetwork, PacketSink, Reach
from flux.ports.substrate import LaunchSpec
from flux.substrates.procbox import control, host
from flux.substrates.procbox.cgroups import Cgroups
from flux.substrates.procbox.control import Channel, Kind, Message
from flux.substrates.procbox.groups import Group
from flux.substrates.procbox.instance import ProcboxInstance
from flux.substrates.procbox.plan import Plan

_CONTROL = 3


class Tools:
    """What starts have in common.

    Args:
        launcher: the path of the program that becomes the init.
        cgroups: makes groups.
        sink: takes the packets of sandboxes without network.
        network: connects sandboxes that may reach something.
    """

    def __init__(self, launcher: str, cgroups: Cgroups, sink: PacketSink | None, network: LinkedNetwork | None) -> None:
        self.launcher = launcher
        self.cgroups = cgroups
        self.sink = sink
        self.network = network


class Start:
    """Carries a plan to a launcher and waits for the init that comes of it.

    Args:
        tools: of the substrate.
        spec: what is started, for the network and for messages.
        plan: how.
        neighbours: by tree descriptor, the pidfds of running sandboxes whose trees may be layers of this one.
    """

    def __init__(self, tools: Tools, spec: LaunchSpec, plan: Plan, neighbours: Mapping[int, int]) -> None:
        self._tools = tools
        self._spec = spec
        self._plan = plan
        self._neighbours = neighbours
        self._pid = 0
        self._pidfd: int | None = None
        self._flows: FlowSource | None = None
        self._link: Link | None = None

    def run(self) -> ProcboxInstance:
        """Return the running sandbox.

        Raises:
            FluxError: ``unavailable`` with the step that failed.
        """
        with ExitStack() as undo:
            self._connect(undo)
            group = self._tools.cgroups.create(self._spec.sandbox_id, self._spec.limits)
            undo.callback(group.remove)
            channel, theirs = control.pair()
            undo.callback(channel.close)
            launcher = self._launch(theirs)
            undo.callback(self._bury)
            undo.callback(_reap, launcher)
            undo.callback(channel.close)  # first of all: it ends the launcher and the init
            self._send(channel, group)
            ready = self._await(channel)
            device = self._observe(ready)
            undo.pop_all()
            _reap(launcher)
            assert self._pidfd is not None
        return ProcboxInstance(
            channel,
            pid=self._pid,
            pidfd=self._pidfd,
            tree=ready.descriptors[-2],
            terminals=ready.descriptors[-1],
            group=group,
            flows=self._flows,
            device=device,
        )

    def _launch(self, theirs: int) -> int:
        """Start the launcher, in a session of its own: the terminal's signals are for its users."""
        null = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in range(3)]
        actions = [(os.POSIX_SPAWN_DUP2, theirs, _CONTROL), *null]
        try:
            return os.posix_spawn(self._tools.launcher, ["flux-init"], {}, file_actions=actions, setsid=True)
        except OSError as error:
            raise self._failure(f"{self._tools.launcher}: {error.strerror}") from error
        finally:
            os.close(theirs)

    def _send(self, channel: Channel, group: Group) -> None:
        """Send the plan, with the steps that only the machine's state decides in front."""
        words: list[str] = []
        descriptors = list(self._plan.layers)
        with ExitStack() as opened:

            def attach(descriptor: int) -> str:
                opened.callback(os.close, descriptor)
                descriptors.append(descriptor)
                return str(len(descriptors) - 1)

            for index, layer in enumerate(self._plan.layers):
                words += ["layer", str(index), self._neighbour(layer, descriptors)]
            words += _group_words(group, attach)
            words += [] if self._link is None else ["network", attach(os.dup(self._link.namespace))]
            memory = os.memfd_create("flux-plan", os.MFD_CLOEXEC)
            opened.callback(os.close, memory)
            control.write_all(memory, control.encode_words([*words, *self._plan.words]))
            with suppress(ConnectionError):  # the launcher's last words say more
                channel.send(Kind.START, descriptors=(memory, *descriptors))

    def _neighbour(self, layer: int, descriptors: list[int]) -> str:
        pidfd = self._neighbours.get(layer)
        if pidfd is None:
            return ""
        descriptors.append(pidfd)
        return str(len(descriptors) - 1)

    def _await(self, channel: Channel) -> Message:
        """Follow the start until the init is ready."""
        ready = None
        while ready is None or self._pidfd is None:
            message = channel.receive()
            if message is None:
                raise self._failure("the launcher ended without a word; the kernel's log may say why")
            if message.kind == Kind.STARTED:
                self._pid, self._pidfd = message.value, message.descriptors[0]
            elif message.kind == Kind.FAILED:
                raise self._failure(f"{message.text}: {host.describe(message.value)}", message.value)
            elif message.kind == Kind.READY:
                ready = message
        return ready

    def _connect(self, undo: ExitStack) -> None:
        """Get the network that the sandbox is to be born into, if it may reach anything."""
        spec = self._spec
        if spec.network == "none":
            return
        if self._tools.network is None:
            raise self._failure("nothing here can limit its network to what it may reach")
        self._flows = self._link = self._tools.network.connect(
            spec.sandbox_id, Reach(ports=spec.net_ports, internet=spec.network == "internet")
        )
        undo.callback(self._link.close)

    def _observe(self, ready: Message) -> int | None:
        """Watch the device of a sandbox without network; return a descriptor of it, to be the last one closed."""
        device = ready.descriptors[0] if len(ready.descriptors) == 3 else None
        if device is None:
            return None
        if self._tools.sink is None:
            return device
        kept = os.dup(device)
        self._flows = self._tools.sink.attach(device)
        return kept

    def _bury(self) -> None:
        """Make sure that an init which did not come up is dead and reaped."""
        if self._flows is not None and self._link is None:
            self._flows.close()
        if self._pidfd is None:
            return
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED)
        os.close(self._pidfd)

    def _failure(self, reason: str, number: int = 0) -> FluxError:
        return FluxError(
            Code.UNAVAILABLE,
            f"cannot start sandbox {self._spec.sandbox_id}: {reason}; fluxctl doctor tells what works here",
            {"step": reason, "errno": number},
        )


def _group_words(group: Group, attach: Callable[[int], str]) -> list[str]:
    words: list[str] = []
    if group.unified is not None:
        words += ["born-into", attach(os.open(group.unified, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))]
    for directory in group.joined:
        words += ["join", attach(os.open(f"{directory}/tasks", os.O_WRONLY | os.O_CLOEXEC)), directory]
    return words


def _reap(launcher: int) -> None:
    """Wait for the launcher's end, unless somebody else in this process has."""
    with suppress(ChildProcessError):
        os.waitpid(launcher, 0)

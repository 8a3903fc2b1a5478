"""Puts Flux together from its configuration: the same for a daemon of any role and for one command."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from flux.app.clock import SystemClock
from flux.app.config import Config
from flux.app.contacts import Contacts
from flux.app.remote import RemoteArtifacts
from flux.app.roles import ControlRole, NodeRole, Role, Runtime
from flux.control.context import Control, ControlSettings
from flux.control.direct import DirectPlacement
from flux.control.drive import Changes, Driver
from flux.control.plane import ControlPlane
from flux.control.platform import Platform
from flux.core.limits import KIB, MIB, Caps
from flux.engine import ids
from flux.engine.engine import Engine
from flux.engine.node.node import NodeSettings
from flux.engine.settings import Settings
from flux.network.sink import TunSink
from flux.network.veth import VethNetwork
from flux.objects.open import open_store
from flux.store.registry import nodes
from flux.store.registry.database import DATABASE, open_registry
from flux.store.stores import Stores
from flux.substrates.procbox.substrate import Procbox
from flux.trees.files import SystemFiles

if TYPE_CHECKING:
    from flux.ports.artifacts import ObjectStore
    from flux.ports.node import Node
    from flux.ports.observer import Observer
    from flux.ports.substrate import Substrate
    from flux.store.registry.database import RegistryDatabase

#: Sandboxes with a network that can start at once without anything having to be made for them.
_LINKS_AHEAD = 4


def compose(
    config: Config,
    *,
    role: Role = "all",
    persistent: bool,
    admin_token: str | None = None,
    observer: Observer | None = None,
    data_address: str = "",
) -> Runtime:
    """Open the state directory of ``config`` and return what works on it. The caller holds the directory's lock.

    Args:
        config: with an absolute ``state_dir``, which exists.
        role: ``all``: control plane and node in one; or one of the two.
        persistent: whether sandboxes keep their processes between calls (a daemon).
        admin_token: the token that is the administrator's.
        observer: who hears of operations.
        data_address: where the data plane listens for a control plane in another process.

    Raises:
        FluxError: ``unavailable``, ``exhausted`` or ``internal`` if the state cannot be opened.
    """
    clock, files = SystemClock(), SystemFiles()
    objects = open_store(config.objects_url, files)
    network = VethNetwork(ahead=_LINKS_AHEAD if persistent else 0)
    stores = Stores(config.state_dir, clock, files)
    try:
        engine = Engine(
            stores,
            _substrates(config, network, sweep=persistent and role != "control"),
            clock,
            files,
            engine_settings(config, persistent=persistent, admin_token=admin_token),
            observer,
            objects=objects,
            node=_node_settings(config, data_address),
        )
    except BaseException:
        stores.close()
        raise
    try:
        # A control plane's engine has its users' keys and audit log; it knows kinds, to check requests, and runs none.
        node = None if role == "control" else NodeRole(engine.node, objects is not None)
        control = None if role == "node" else _control(config, engine, node, objects, persistent=persistent)
        return Runtime(engine=engine, node=node, control=control, release=network.close)
    except BaseException:
        engine.close()
        network.close()
        raise


def _substrates(config: Config, network: VethNetwork, *, sweep: bool) -> dict[str, Substrate]:
    substrate = Procbox(config.state_dir, sink=TunSink(), network=network)
    if sweep:
        substrate.sweep()  # what a daemon that died left behind goes at once, and not only when something is started
    return {substrate.kind: substrate}


def _node_settings(config: Config, data_address: str) -> NodeSettings:
    status = os.statvfs(config.state_dir)
    return NodeSettings(
        evict_idle_seconds=config.node.evict_idle_seconds,
        disk_free_least=round(status.f_blocks * status.f_frsize * (1 - config.node.disk_high_watermark)),
        address=data_address,
    )


def _control(
    config: Config, engine: Engine, node: NodeRole | None, objects: ObjectStore | None, *, persistent: bool
) -> ControlRole:
    name = None if node is None else config.node.name
    clock = SystemClock()
    registry = open_registry(config.control.database_url or os.path.join(config.state_dir, DATABASE), clock)
    try:
        changes = Changes()
        local: tuple[str, Node] | None = None if node is None or name is None else (name, node.manager)
        contacts = Contacts(config.state_dir, _addresses(registry), local)
        control = Control(
            registry=registry,
            clock=clock,
            placement=DirectPlacement(ids.identity),
            build=engine.build_sandbox,
            identity=ids.identity,
            audit=engine.append_audit,
            settings=ControlSettings(
                wake_timeout_seconds=config.control.wake_timeout_seconds,
                wake_generations=config.control.wake_generations,
                uploads=objects is not None,
            ),
            local=name,
            artifacts=RemoteArtifacts(
                objects,
                None if node is None else node.manager.node.artifacts,
                lambda: [contacts.node(name) for name in _living(registry)],
                clock,
                config.control.collect_grace_seconds,
            ),
            upload=None if node is None or persistent else _uploader(node),
            changed=changes.changed,
            observer=engine.context.observer,
        )
        plane = ControlPlane(control, Driver(contacts, changes, threads=persistent))
        platform = Platform(engine, plane, contacts, name)
    except BaseException:
        registry.close()
        raise
    return ControlRole(plane=plane, contacts=contacts, platform=platform, local=name)


def _addresses(registry: RegistryDatabase) -> Callable[[str], str | None]:
    def address_of(name: str) -> str | None:
        with registry.reading() as tx:
            found = nodes.find(tx, name)
        return None if found is None else found.address

    return address_of


def _living(registry: RegistryDatabase) -> list[str]:
    """Return the names of all nodes that have not been declared lost."""
    with registry.reading() as tx:
        return [node.name for node in nodes.every(tx) if node.forgotten_at is None]


def _uploader(node: NodeRole) -> Callable[[], None]:
    """Return what does an upload in a command's own process, where no daemon does it beside."""

    def upload() -> None:
        if node.uploads:
            node.manager.upload_once()

    return upload


def engine_settings(config: Config, *, persistent: bool, admin_token: str | None) -> Settings:
    """Return what the configuration means to the engine."""
    procbox = config.sandbox.procbox
    return Settings(
        persistent=persistent,
        default_kind=config.sandbox.default_kind,
        max_workspace_mib=procbox.max_workspace_mib,
        template_root=procbox.template_root,
        default_template=procbox.default_template,
        memory_mib=procbox.memory_mib,
        cpus=procbox.cpus,
        pids=procbox.pids,
        copy_engine=config.speculation.copy_engine,
        conflict_scope=config.speculation.conflict_scope,
        caps=_caps(config),
        exec_timeout_seconds=config.sandbox.exec_timeout_seconds,
        disk_reserve_mib=procbox.disk_reserve_mib,
        run_max_mib=procbox.run_max_mib,
        lock_wait_seconds=config.lock_wait_seconds,
        egress_allow_domains=config.sandbox.egress_allow_domains,
        admin_token_sha256=None if admin_token is None else hashlib.sha256(admin_token.encode()).hexdigest(),
    )


def _caps(config: Config) -> Caps:
    given = config.speculation
    return Caps(
        file_bytes=given.max_file_mib * MIB,
        total_bytes=given.max_total_mib * MIB,
        output_bytes=given.max_output_kib * KIB,
        preimage_bytes=given.max_preimages_mib * MIB,
        revert_bytes=given.revert_max_mib * MIB,
        ttl_default_seconds=given.ttl_seconds,
        retention_seconds=given.retention_seconds,
    )

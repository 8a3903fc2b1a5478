"""Puts an engine together from its configuration; the same for a daemon and for one command."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from flux.app.clock import SystemClock
from flux.app.config import Config
from flux.core.limits import KIB, MIB, Caps
from flux.engine.engine import Engine
from flux.engine.settings import Settings
from flux.network.sink import TunSink
from flux.network.veth import VethNetwork
from flux.store.stores import Stores
from flux.substrates.procbox.substrate import Procbox
from flux.trees.files import SystemFiles

if TYPE_CHECKING:
    from flux.ports.observer import Observer


def compose(
    config: Config, *, persistent: bool, admin_token: str | None = None, observer: Observer | None = None
) -> Engine:
    """Open the state directory of ``config`` and return an engine on it. The caller holds the directory's lock.

    Args:
        config: with an absolute ``state_dir``, which exists.
        persistent: whether sandboxes keep their processes between calls (a daemon).
        admin_token: the token that is the administrator's.
        observer: who hears of operations.

    Raises:
        FluxError: ``unavailable``, ``exhausted`` or ``internal`` if the state cannot be opened.
    """
    clock, files = SystemClock(), SystemFiles()
    stores = Stores(config.state_dir, clock, files)
    try:
        substrate = Procbox(config.state_dir, sink=TunSink(), network=VethNetwork())
        settings = engine_settings(config, persistent=persistent, admin_token=admin_token)
        return Engine(stores, {substrate.kind: substrate}, clock, files, settings, observer)
    except BaseException:
        stores.close()
        raise


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

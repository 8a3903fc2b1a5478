"""The program ``fluxd``."""

from __future__ import annotations

import sys
from typing import Any

import click

from flux.core.errors import FluxError


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--state-dir", "state_directory", metavar="DIR", help="State directory; else the configuration's.")
@click.option("--listen", metavar="HOST:PORT", help="Address; port 0 lets the kernel choose. Default 127.0.0.1:7788.")
@click.option(
    "--role",
    type=click.Choice(["all", "control", "node"]),
    default="all",
    show_default=True,
    help="node: run sandboxes for a control plane elsewhere; control: run none here; all: both in one.",
)
@click.option("--node-listen", metavar="HOST:PORT", help="Role node: address of its manager. Default 127.0.0.1:7789.")
@click.option("--config", "config_file", metavar="FILE", help="Configuration file in place of the usual ones.")
@click.option(
    "--insecure", is_flag=True, help="Listen without TLS beyond this machine, or behind a proxy; any Host is served."
)
@click.option("--tls-cert", "certificate", metavar="FILE", help="Certificate chain (PEM) to speak TLS with.")
@click.option("--tls-key", "key", metavar="FILE", help="Private key (PEM) of the certificate.")
@click.version_option(package_name="flux-sandbox")
def main(
    state_directory: str | None,
    listen: str | None,
    role: Any,
    node_listen: str | None,
    config_file: str | None,
    insecure: bool,
    certificate: str | None,
    key: str | None,
) -> None:
    """Serve sandboxes over REST, with the review page at /ui, until SIGTERM or SIGINT.

    The chosen address is printed when it is ready and stands in daemon.json in the state directory.
    """
    from flux.app.daemon import Options, run
    from flux.cli.errors import report

    options = Options(
        state_directory=state_directory,
        listen=listen,
        role=role,
        node_listen=node_listen,
        config_file=config_file,
        insecure=insecure,
        certificate=certificate,
        key=key,
    )
    try:
        run(options)
    except FluxError as error:
        sys.exit(report(error, as_json=False))


if __name__ == "__main__":
    main()

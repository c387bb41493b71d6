"""The command line: `duplex serve`, `duplex call`, `duplex tenant-key`, `duplex doctor`."""

from __future__ import annotations

from duplex import telemetry_off

telemetry_off.apply()

import argparse  # noqa: E402 - telemetry is switched off before anything else is imported
import asyncio  # noqa: E402
import secrets  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402

from pydantic import ValidationError  # noqa: E402

from duplex import call_command, config, console, doctor, logs, tenants  # noqa: E402
from duplex.child import StartError  # noqa: E402
from duplex.pipeline import graph_of  # noqa: E402
from duplex.service_tools import service_tools  # noqa: E402
from duplex.supervisor import Supervisor  # noqa: E402
from sessions.embedded_valkey import EmbeddedStoreError  # noqa: E402
from stages.graph import GraphError  # noqa: E402

EXIT_FAULT, EXIT_USAGE = 1, 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="duplex", description="A realtime full-duplex voice service.")
    commands = parser.add_subparsers(dest="command", required=True)
    serve = commands.add_parser("serve", help="run the service until Ctrl-C")
    serve.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    serve.add_argument("--port", type=int, help="port to listen on (default 8080; 0: any free one)")
    serve.add_argument("--gateways", type=int, help="how many processes take calls, at one address (default 1)")
    serve.add_argument("--tls-dev", action="store_true", help="HTTPS with a development certificate, for phones")
    serve.add_argument("--data-dir", help="where the store, sockets and caches are kept (default .duplex)")
    serve.add_argument("--engine", choices=("local", "scripted", "synthetic"), help="what computes (default local)")
    call_command.add_call_parser(commands)
    commands.add_parser("tenant-key", help="make a key for a tenant, and the hash by which tenants_file names it")
    commands.add_parser("doctor", help="check this machine, and say how to mend what is wrong")
    return parser


def _serve(arguments: argparse.Namespace) -> int:
    try:
        settings = config.load(
            host=arguments.host,
            port=arguments.port,
            gateways=arguments.gateways,
            data_dir=arguments.data_dir,
            engine=arguments.engine,
            tls_dev=arguments.tls_dev or None,
        )
        config.check_files(settings)
        service_tools(settings)
        logs.configure(settings.log_level, "supervisor")
        supervisor = Supervisor(settings, graph_of(settings))
    except (config.ConfigError, GraphError, ValidationError, StartError, EmbeddedStoreError) as error:
        console.say(f"duplex serve: {error}")
        return EXIT_USAGE
    try:
        asyncio.run(_until_interrupted(supervisor))
    except (StartError, EmbeddedStoreError, OSError) as error:
        console.say(f"duplex serve: {error}\nRun `duplex doctor` to see what this machine lacks.")
        return EXIT_FAULT
    return 0


async def _until_interrupted(supervisor: Supervisor) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    loop.add_signal_handler(signal.SIGHUP, supervisor.replace_processes)
    await supervisor.run(stopped)


def _tenant_key() -> int:
    """The key goes to standard output, and is kept nowhere."""
    key = tenants.KEY_PREFIX + secrets.token_urlsafe(tenants.KEY_BYTES)
    sys.stdout.write(f"key       {key}\nkey hash  {tenants.key_digest(key)}\n")
    return 0


def _doctor() -> int:
    try:
        settings = config.load()
    except config.ConfigError as error:
        console.say(f"duplex doctor: {error}")
        return EXIT_USAGE
    findings = doctor.diagnose(
        host=settings.host,
        port=settings.port,
        data_dir=settings.data_dir,
        redis_url=settings.redis_url,
        durability=settings.durability,
    )
    sys.stdout.write(doctor.render(findings) + "\n")
    return 0 if all(finding.ok for finding in findings) else EXIT_FAULT


def main() -> int:
    """Entry point of the `duplex` command."""
    arguments = _parser().parse_args()
    match arguments.command:
        case "serve":
            return _serve(arguments)
        case "call":
            return call_command.run_call(arguments)
        case "tenant-key":
            return _tenant_key()
        case _:
            return _doctor()


if __name__ == "__main__":
    sys.exit(main())

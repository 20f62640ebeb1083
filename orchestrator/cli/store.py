"""
``orchestrator store`` and ``backend``: where records and provider states are kept.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli import options
from orchestrator.cli.invocation import Invocation, print_document
from orchestrator.cli.running import RunCall, load_and_run, run_command
from orchestrator.domain.values import replace

if TYPE_CHECKING:
    from orchestrator.domain.documents.documents import StoreCopyDocument
    from orchestrator.domain.store_location import StoreLocation
    from orchestrator.project import ProjectContext
    from orchestrator.stores.watched_store import WatchedStore


#: Bytes of an export that are read at once, as all of it is checked before anything is written.
_LARGEST_EXPORT = 1 << 30


def _with_store(function: Callable[..., int]) -> Callable[..., int]:
    """
    Add the options that name a store; the command gets the project and that store, open.
    """

    @functools.wraps(function)
    def command(
        invocation: Invocation,
        /,
        *,
        url: str | None,
        blueprint: str | None,
        environment: str | None,
        **values: Any,
    ) -> int:
        from orchestrator import composition
        from orchestrator.domain.store_location import StoreLocation
        from orchestrator.loading.summary import load_summary
        from orchestrator.project import BlueprintSelection

        project = invocation.project()
        if url is not None:
            location = StoreLocation(url=url)
        elif blueprint is not None:
            location = load_summary(project, BlueprintSelection(blueprint, environment)).operations
        else:
            location = _only_store(project)
        with composition.open_store(project, location) as store:
            return function(project, store, **values)

    text = "The store of this blueprint; by default the project's only store."
    for option in (
        click.option("--url", metavar="URL", help="This store, instead of the project's."),
        options.environment,
        click.option("--blueprint", metavar="BLUEPRINT", help=text),
    ):
        command = option(command)
    return click.pass_obj(command)


def _only_store(project: ProjectContext) -> StoreLocation:
    """
    Return the single store of the project's blueprints; the default file only if it exists. Raises
    Usage if there are several.
    """
    from orchestrator.domain.store_location import OWN_STORE
    from orchestrator.errors import Usage
    from orchestrator.loading.summary import store_locations
    from orchestrator.stores.project_store import sqlite_file

    def place(location: StoreLocation) -> str:
        return str(sqlite_file(location.url, project.project_dir, project.environ) or location.url)

    own, *of_blueprints = store_locations(project)
    others = {
        place(location): location for location in of_blueprints if place(location) != place(own)
    }
    if own.url is None and others and not Path(place(own)).exists():
        own = others.pop(next(iter(others)))
    if others:
        urls = ", ".join(item.url or OWN_STORE for item in (own, *others.values()))
        raise Usage(
            f"this project has several operation stores: {urls}",
            hint="say whose it is, --blueprint NAME -e ENV, or name it by --url",
        )
    return own


@click.group("store", short_help="Check, copy, export, import, migrate and prune operation stores.")
def store_command() -> None:
    """
    Manage the stores of operation records.

    \b
    Example:
      orchestrator store check
      orchestrator store copy sqlite:.orchestrator/operations.db s3://acme-tfstate/orchestrator
    """


@store_command.command("check")
@_with_store
@options.json_document
def check(project: ProjectContext, store: WatchedStore, *, as_json: bool) -> int:
    """
    Check that a store does what runs rely on: each permission, response times, and conditional
    writes by concurrent writers.

    \b
    Example:
      orchestrator store check --blueprint web-service -e prod
    """
    from orchestrator import composition
    from orchestrator.app.commands.store import check_store
    from orchestrator.errors import StoreUnavailable
    from orchestrator.views.listings import check_text

    document = check_store(store, composition.store_holder(project, "check").claim)
    print_document(document, check_text, as_json=as_json)
    return 0 if document.ok else StoreUnavailable.exit_code


@store_command.command("copy")
@click.argument("source", metavar="FROM")
@click.argument("destination", metavar="[TO]", required=False)
@click.option("--blueprint", metavar="BLUEPRINT", help="Only this blueprint, to its own store.")
@options.environment
@options.json_document
@click.pass_obj
def copy(
    invocation: Invocation,
    source: str,
    destination: str | None,
    blueprint: str | None,
    environment: str | None,
    as_json: bool,
) -> int:
    """
    Copy the history of all targets, and the stored runs, from one store to another: everything with
    TO, or only one blueprint and environment with --blueprint.

    Can be repeated after an interruption. Refused while a run is in progress.

    \b
    Example:
      orchestrator store copy sqlite:.orchestrator/operations.db s3://acme-tfstate/orchestrator
      orchestrator store copy sqlite:.orchestrator/operations.db --blueprint web-service -e prod
    """
    from orchestrator import composition
    from orchestrator.app.commands.store import copy_store
    from orchestrator.domain.store_location import StoreLocation
    from orchestrator.errors import Usage
    from orchestrator.loading.summary import load_summary
    from orchestrator.project import BlueprintSelection

    if (destination is None) == (blueprint is None):
        raise Usage("store copy: name either TO or --blueprint")
    project = invocation.project()
    location = StoreLocation(url=destination)
    if blueprint is not None:
        summary = load_summary(project, BlueprintSelection(blueprint, environment))
        blueprint, environment, location = (
            summary.blueprint,
            summary.environment,
            summary.operations,
        )
    with (
        composition.open_store(project, StoreLocation(url=source)) as old,
        composition.open_store(project, location, tell=lambda _: None) as new,
    ):
        if old.url == new.url:
            raise Usage(f"store copy: {old.url} would be copied onto itself")
        document = copy_store(
            old,
            new.unwatched,
            composition.store_holder(project, "copy"),
            blueprint=blueprint,
            environment=environment,
            progress=functools.partial(click.echo, err=True),
        )
    return _show_copy(document, as_json=as_json)


@store_command.command("export")
@_with_store
def export(_: ProjectContext, store: WatchedStore) -> int:
    """
    Print every target with all its entries, one JSON document per line; their number is printed on
    stderr.

    \b
    Example:
      orchestrator store export > records.jsonl
    """
    from orchestrator.app.commands.store import export_store
    from orchestrator.domain.text import count

    number = 0
    for line in export_store(store):
        click.echo(line)
        number += 1
    click.echo(f"{count(number, 'target')} of {store.url}", err=True)
    return 0


@store_command.command("import")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@_with_store
@options.json_document
def import_(project: ProjectContext, store: WatchedStore, *, file: Path, as_json: bool) -> int:
    """
    Append the entries of an export. Existing entries are recognised; a target with other entries is
    refused.

    \b
    Example:
      orchestrator store import records.jsonl --url s3://acme-tfstate/orchestrator
    """
    from orchestrator import composition
    from orchestrator.app.commands.store import import_store
    from orchestrator.errors import Invalid, Location, Problem
    from orchestrator.local_files import read_regular

    try:
        text = read_regular(file, limit=_LARGEST_EXPORT).decode("utf-8", "replace")
    except OSError as exc:
        problem = Problem(f"cannot be read: {exc.strerror}", Location(str(file)))
        raise Invalid([problem]) from exc
    document = import_store(
        text.split("\n"),
        store.unwatched,
        composition.store_holder(project, "import"),
        source=str(file),
        progress=functools.partial(click.echo, err=True),
    )
    return _show_copy(document, as_json=as_json)


@store_command.command("migrate")
@_with_store
def migrate(_: ProjectContext, store: WatchedStore) -> int:
    """
    Migrate the tables of a store to this version, as its first use does. Use it with a role that
    may create tables if runs use one that may not. Buckets have no tables.

    \b
    Example:
      orchestrator store migrate --url postgres://owner@db.internal/states
    """
    store.probe()
    click.echo(f"{store.url}: of this version, and it can be written")
    return 0


@store_command.command("prune")
@click.option(
    "--older-than",
    metavar="DAYS",
    type=click.IntRange(0, 36_500),
    default=90,
    show_default=True,
    help="Only runs that began more than so many days ago.",
)
@click.option(
    "--keep",
    metavar="COUNT",
    type=click.IntRange(0, 1_000_000),
    default=20,
    show_default=True,
    help="Keep so many runs of each blueprint and environment, however old.",
)
@click.option("-y", "--yes", "remove", is_flag=True, allow_from_autoenv=False, help="Remove them.")
@_with_store
@options.json_document
def prune(
    project: ProjectContext,
    store: WatchedStore,
    *,
    older_than: int,
    keep: int,
    remove: bool,
    as_json: bool,
) -> int:
    """
    Show what old runs left in a store and is no longer needed; with --yes, remove it.

    Entries are kept, and so are all files that the newest entries or the kept runs refer to.
    Removed runs can no longer be retried or rolled back to.

    \b
    Example:
      orchestrator store prune --blueprint web-service -e prod
      orchestrator store prune --older-than 365 --keep 5 --yes
    """
    from datetime import UTC, datetime, timedelta

    from orchestrator import composition
    from orchestrator.app.commands.store_holder import prune
    from orchestrator.views.listings import prune_text

    document = prune(
        store,
        composition.store_holder(project, "prune"),
        now=datetime.now(UTC),
        older_than=timedelta(days=older_than),
        keep=keep,
        remove=remove,
    )
    print_document(document, prune_text, as_json=as_json)
    return 0


def _show_copy(document: StoreCopyDocument, *, as_json: bool) -> int:
    from orchestrator.views.listings import copy_text

    print_document(document, copy_text, as_json=as_json)
    return 0


@store_command.command("accept-restored")
@click.argument("reason", metavar="REASON", type=options.NON_EMPTY)
@click.option(
    "--lost",
    multiple=True,
    metavar="TARGET",
    help="Accept that the record of this target is lost; no blueprint has the target any more.",
)
@_with_store
def accept_restored(
    project: ProjectContext, store: WatchedStore, *, reason: str, lost: tuple[str, ...]
) -> int:
    """
    Accept a store that is older than what this machine has seen, after a restore from a backup.

    First reconcile every target that changed since the backup, and adopt those whose record is
    lost. Until then it is refused, and nothing else can be mutated.

    \b
    Example:
      orchestrator store accept-restored "disk lost, backup of last night"
    """
    from orchestrator import composition
    from orchestrator.app.commands.store import accept_restored

    claim = composition.store_holder(project, "accept-restored").claim
    older = accept_restored(store, claim, reason, lost=lost)
    for message in older:
        click.echo(message)
    done = "its records are believed from now on"
    click.echo(done if older else f"{store.url} is not older than this machine has seen it")
    return 0


@click.group("backend", short_help="Move provider state to another backend.")
def backend_command() -> None:
    """
    Manage where provider state is kept.

    \b
    Example:
      orchestrator backend move web-service/staging/server
    """


@backend_command.command("move", short_help="Move a provider state to the blueprint's backend.")
@click.argument("target", metavar="TARGET")
@options.approval
@options.lock_timeout
@options.engine
@options.allow_engine_change
@options.run
@run_command
def move(call: RunCall, /) -> int:
    """
    Move the provider state of TARGET (<blueprint>/<environment>/<step>) from the backend in its
    record to the blueprint's current one. No remote object is changed; the old state is not
    deleted: a local file is kept as evidence of the run.

    \b
    Example:
      orchestrator backend move web-service/staging/server --yes
    """
    from orchestrator.app.commands.backend_move import move_state
    from orchestrator.app.run.request import MoveRequest

    request = MoveRequest(options=replace(call.options, jobs=1))
    return load_and_run(call, request, move_state)

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pygohcl
import pytest

from orchestrator.domain.blueprint.blueprint import (
    Module,
    ProtectedResource,
    ProviderDependencies,
    Variable,
)
from orchestrator.domain.provider_query.query import QUERY_FILE
from orchestrator.domain.target import Target
from orchestrator.domain.text import Json
from orchestrator.domain.values import replace
from orchestrator.engine.workdir import snapshot as snapshots
from orchestrator.engine.workdir.generated import (
    BACKEND_FILE,
    PROVIDER_FILE,
    backend_text,
    generate,
)
from orchestrator.engine.workdir.layout import work_path
from orchestrator.engine.workdir.workdir import DirectoryWorkDirs, not_composable
from orchestrator.errors import EngineFailed, Invalid, Location, StoreUnavailable
from orchestrator.ports.workdir import Secret, Snapshot, WorkDir, WorkDirConfig

TARGET = Target("web", "prod", "network")
SETUP = WorkDirConfig("local", {"path": ".orchestrator/state/network.tfstate"})


def write(path: Path, text: str = "x", mode: int = 0o644) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
    return path


def module(directory: Path, **facts: Any) -> Module:
    return Module(directory=str(directory), variables={}, outputs={}, **facts)


def paths(snapshot: Snapshot) -> list[str]:
    return [entry.path for entry in snapshots.entries_of(snapshot)]


class Project:
    """
    A project directory with one module, ``m``, and its working directories.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.module = root / "m"
        write(self.module / "main.tf", "# main")
        self.work = root / ".orchestrator/work"
        self.dirs = DirectoryWorkDirs(self.work, root)

    def prepare(
        self, setup: WorkDirConfig = SETUP, *, engine: str = "terraform 1", **facts: Any
    ) -> WorkDir:
        """
        Prepare the target from the module as it is now.
        """
        snapshot = self.dirs.snapshot(module(self.module, **facts))
        return self.dirs.prepare(TARGET, snapshot, setup, engine)

    def init(self, root: WorkDir) -> None:
        """
        Do what a successful init does.
        """
        assert root.backend_file is not None
        backend = {
            "type": root.backend_type,
            "config": pygohcl.loads((root.directory / root.backend_file).read_text()),
        }
        text = json.dumps({"version": 3, "backend": backend})
        write(root.directory / ".terraform/terraform.tfstate", text)
        if self.dirs.lock_file(root) is None:
            write(root.directory / ".terraform.lock.hcl", "# made by init")
        self.dirs.mark_initialised(root)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "project")


# Snapshots


def test_digest_is_of_the_content(tmp_path: Path) -> None:
    """
    The same files give the same digest and archive, wherever and whenever; another content, mode
    or name gives another one.
    """
    found = []
    for number, (name, text, mode) in enumerate(
        [
            ("a", "x", 0o644),
            ("a", "x", 0o600),
            ("a", "y", 0o644),
            ("a", "x", 0o755),
            ("b", "x", 0o644),
        ]
    ):
        directory = tmp_path / str(number)
        path = write(directory / name, text, mode)
        os.utime(path, (number, number))
        found.append(snapshots.pack(module(directory)))
    assert found[0] == found[1]
    assert len({snapshot.digest for snapshot in found}) == 4


def test_what_stays_out(tmp_path: Path) -> None:
    """
    State, plans, variable values, caches, editors' files and what .terraformignore names are not
    taken; everything else is.
    """
    kept = [
        ".terraform.lock.hcl",
        ".terraformignore",
        "docs/a.tf",
        "main.tf",
        "module.yaml",
        "x.sh",
    ]
    for name in (
        *kept, ".terraform/x", "sub/.terraform/x", "terraform.tfstate", "terraform.tfstate.backup",
        "errored.tfstate", "terraform.tfstate.d/x/y", "a.tfplan", "prod.tfvars",
        "x.auto.tfvars.json", ".env", ".env.local", ".git/config", ".orchestrator/work/x",
        "main.tf~", ".main.tf.swp", "docs/a.md", "build/x", "build/deep/y",
    ):  # fmt: skip
        write(tmp_path / name)
    write(tmp_path / ".terraformignore", "# no docs\ndocs/*\n!docs/*.tf\nbuild/\n")
    (tmp_path / "saved").write_bytes(b"PK\x03\x04" + bytes(26) + b"tfplan" + bytes(9))
    assert paths(snapshots.pack(module(tmp_path))) == kept


def test_local_modules_keep_their_places(tmp_path: Path) -> None:
    """
    Local modules lie where relative paths find them; their neighbours are not taken.
    """
    for name in (
        "web/main.tf",
        "web/child/main.tf",
        "lib/shared/main.tf",
        "lib/other/main.tf",
        "x",
    ):
        write(tmp_path / "repo" / name)
    snapshot = snapshots.pack(
        module(
            tmp_path / "repo/web",
            local_modules=(str(tmp_path / "repo/lib/shared"), str(tmp_path / "repo/web/child")),
        )
    )
    assert snapshot.module_path == "web"
    assert paths(snapshot) == ["lib/shared/main.tf", "web/child/main.tf", "web/main.tf"]


def test_package_is_taken_whole(tmp_path: Path) -> None:
    """
    Of ``dir//sub`` all of ``dir`` is taken.
    """
    for name in ("a/b/main.tf", "files/x"):
        write(tmp_path / name)
    snapshot = snapshots.pack(module(tmp_path / "a/b", package=str(tmp_path)))
    assert (snapshot.module_path, paths(snapshot)) == ("a/b", ["a/b/main.tf", "files/x"])


def test_links_inside_become_files(tmp_path: Path) -> None:
    """
    A symlink to what is taken too becomes a copy; one to what stays out stays out itself.
    """
    write(tmp_path / "files/a", "content")
    write(tmp_path / "prod.tfvars", "secret")
    (tmp_path / "link").symlink_to("files/a")
    (tmp_path / "dir").symlink_to("files")
    (tmp_path / "innocent").symlink_to("prod.tfvars")
    entries = {e.path: e.data for e in snapshots.entries_of(snapshots.pack(module(tmp_path)))}
    assert entries == dict.fromkeys(["dir/a", "files/a", "link"], b"content")


def test_what_cannot_be_taken(tmp_path: Path) -> None:
    """
    Links out of the module, circles, pipes and dead links are errors, all reported with the path.
    """
    root = tmp_path / "m"
    write(tmp_path / "outside")
    write(root / "main.tf")
    (root / "a").symlink_to("../outside")
    (root / "b").symlink_to(".")
    (root / "c").symlink_to("nothing")
    os.mkfifo(root / "d")
    with pytest.raises(Invalid) as caught:
        snapshots.pack(module(root))
    assert [str(problem) for problem in caught.value.problems] == [
        f"{root}/a: a symlink out of the module, to ../outside",
        f"{root}/b: a symlink leads back to a directory above it",
        f"{root}/c: cannot be read: No such file or directory",
        f"{root}/d: neither a file nor a directory",
    ]


def test_cloud_block(tmp_path: Path) -> None:
    """
    A module with a cloud block is refused: it would decide itself where its state is.
    """
    with pytest.raises(Invalid, match="has a cloud block"):
        snapshots.pack(module(write(tmp_path / "main.tf").parent, backend="cloud"))


@pytest.mark.parametrize("hidden", [".envs/prod", "lib/x.tfplan"])
def test_a_module_where_no_snapshot_takes_files_from_is_refused(
    tmp_path: Path, hidden: str
) -> None:
    """
    By its name, and not later as a damaged snapshot: be it the module or one that it uses.
    """
    plain, other = tmp_path / "web", tmp_path / hidden
    for directory in (plain, other):
        write(directory / "main.tf")
    for root, local in ((plain, other), (other, plain)):
        with pytest.raises(Invalid, match=f"{hidden}: .*rename it"):
            snapshots.pack(module(root, local_modules=(str(local),)))


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("main.tf", "terraform {\n  encryption {\n  }\n}\n", "main.tf has an encryption block"),
        ("e.tofu", "terraform {\n  encryption {\n  }\n}\n", "e.tofu has an encryption block"),
        ("e.tofu.json", '{"terraform": {"encryption": {}}}', "e.tofu.json has an encryption block"),
        ("i.tf.json", '{"import": [{"to": "a.b", "id": "1"}]}', "i.tf.json has an import block"),
        ("main.tf", 'resource "a_b" "c" {\n  encryption = {}\n}\n', ""),
        ("main.tf", 'locals { x = file("${path.module}/x") }', ""),
        ("main.tf", 'locals { x = fileset("${path.module}/x", "*") }', ""),
        (
            "m.tf",
            'locals { x = fileset(path.module, "**") }',
            "m.tf lists the files of its own directory",
        ),
        (
            "m.tf",
            'locals { x = fileset("${path.module}/", "**") }',
            "m.tf lists the files of its own directory",
        ),
        (
            "main.tf",
            'locals { x = filesha256("x") }',
            "main.tf may use filesha256(...) with a path from its root",
        ),
    ],
)
def test_what_only_a_root_may_say_is_planned_alone(
    tmp_path: Path, name: str, text: str, reason: str
) -> None:
    """
    In whichever notation: a module that another one calls would be planned as something else.
    """
    write(tmp_path / name, text)
    assert not_composable(snapshots.pack(module(tmp_path))) == reason


def test_archive_comes_back(tmp_path: Path) -> None:
    """
    What unpack gives is the snapshot that was packed, its facts included.
    """
    write(tmp_path / "main.tf", "# é")
    write(tmp_path / "bin/run", "#!", 0o755)
    packed = snapshots.pack(
        Module(
            directory=str(tmp_path),
            variables={"x": Variable("x", "string", False, True, ephemeral=True)},
            outputs={},
            provider_sources={"acme": "corp/acme"},
            provider_blocks=("acme",),
            provider_uses={"acme": "corp/acme"},
            provider_reach={
                "acme": ProviderDependencies(frozenset({"x"})),
                "acme.grown": ProviderDependencies(managed_objects=True),
            },
            protected=(ProtectedResource("acme_disk.this", Location("main.tf", 3, 5)),),
        )
    )
    unpacked = snapshots.unpack(packed.archive)
    assert unpacked.digest == packed.digest
    assert unpacked.variables == {"x": Variable("x", "string", False, True, ephemeral=True)}
    assert unpacked.provider_uses == {"acme": "corp/acme"}
    assert unpacked.provider_blocks == ("acme",)
    assert (unpacked.provider_reach, unpacked.protected) == (
        packed.provider_reach,
        packed.protected,
    )
    acme = 'provider["registry.terraform.io/corp/acme"]'
    assert [
        unpacked.configuration_depends_on_resources(name)
        for name in (acme, f"{acme}.grown", f"module.m.{acme}", acme.replace("acme", "other"))
    ] == [False, True, True, False]
    assert (
        unpacked.provider_may_depend_on_variable("x"),
        unpacked.provider_may_depend_on_variable("y"),
    ) == (True, False)
    assert snapshots.entries_of(unpacked) == snapshots.entries_of(packed)


def test_of_an_archive_from_before_the_worst_is_assumed() -> None:
    """
    A snapshot that does not say what its providers are made from: from anything.
    """
    old = snapshots.unpack(forge({"files/main.tf": b"x"}, provider_blocks=["acme"]))
    assert old.configuration_depends_on_resources(
        'provider["registry.terraform.io/hashicorp/acme"].any'
    )
    assert (old.provider_may_depend_on_variable("any"), old.protected) == (True, ())


def forge(members: Mapping[str, bytes | tarfile.TarInfo], **manifest: Any) -> bytes:
    """
    An archive as an attacker may write it, its digest right.
    """
    facts: dict[str, Any] = {
        "schema": "orchestrator.snapshot/1",
        "module_path": ".",
        "variables": [],
        "provider_sources": {},
        "provider_blocks": [],
        "provider_uses": None,
        "locked": False,
        **manifest,
    }
    entries = [
        snapshots.Entry(name.removeprefix("files/"), data, executable=False)
        for name, data in sorted(members.items())
        if isinstance(data, bytes)
    ]
    facts["digest"] = snapshots._digest(entries, facts)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, data in {"manifest.json": json.dumps(facts).encode(), **members}.items():
            info = data if isinstance(data, tarfile.TarInfo) else tarfile.TarInfo(name)
            content = b"" if isinstance(data, tarfile.TarInfo) else data
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def test_forged_archive_is_otherwise_fine() -> None:
    """
    The forger of the next test makes archives that are accepted unless something is wrong.
    """
    assert paths(snapshots.unpack(forge({"files/main.tf": b"x"}))) == ["main.tf"]


@pytest.mark.parametrize(
    "archive",
    [
        b"",
        b"no gzip",
        gzip.compress(b"no tar", mtime=0),
        forge({"files/main.tf": b"x"})[:-20],
        forge({"/etc/passwd": b"x"}),
        forge({"files//etc/passwd": b"x"}),
        forge({"files/../x": b"x"}),
        forge({"files/a/../../x": b"x"}),
        forge({"files/a\\b": b"x"}),
        forge({"files/a\nb": b"x"}),
        forge({"files/.terraform/providers/x": b"x"}),
        forge({"files/.orchestrator/layout.json": b"x"}),
        forge({"files/errored.tfstate": b"x"}),
        forge({"files/a": b"x", "files/a/b": b"x"}),
        forge({"files/l": special("files/l", tarfile.SYMTYPE, "/etc/passwd")}),
        forge({"files/l": special("files/l", tarfile.LNKTYPE, "manifest.json")}),
        forge({"files/l": special("files/l", tarfile.CHRTYPE)}),
        forge({"files/l": special("files/l", tarfile.FIFOTYPE)}),
        forge({}, module_path="../x"),
        forge({}, module_path="/etc"),
        forge({}, module_path=7),
        forge({}, schema="orchestrator.snapshot/2"),
        forge({}, variables=[{"nom": "x"}]),
        forge({}, provider_blocks=None),
    ],
    ids=lambda _: "archive",
)
def test_damaged_or_hostile_archive(archive: bytes) -> None:
    """
    What is not exactly an archive of ours is an unreadable store: no fault of the user's files.
    """
    with pytest.raises(StoreUnavailable, match="stored module snapshot cannot be used"):
        snapshots.unpack(archive)


def test_changed_content_is_noticed() -> None:
    """
    An archive whose content does not have the digest it states is refused.
    """
    whole = gzip.decompress(forge({"files/main.tf": b"honest"}))
    with pytest.raises(StoreUnavailable, match="does not have the digest"):
        snapshots.unpack(gzip.compress(whole.replace(b"honest", b"forged")))


def test_bomb_is_not_unpacked() -> None:
    """
    An archive that grows beyond what a snapshot may hold is refused while it is decompressed.
    """
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", compresslevel=1) as packed:
        for _ in range(20):
            packed.write(bytes(16 << 20))
    with pytest.raises(StoreUnavailable, match="larger than"):
        snapshots.unpack(buffer.getvalue())


# Generated configuration


SNAPSHOT = Snapshot("sha256:x", ".", b"", {}, {})


def generated(setup: WorkDirConfig, **facts: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """
    The parsed files and the variables generated for a module with these facts.
    """
    sources = facts.pop("provider_sources", {})
    snapshot = replace(SNAPSHOT, provider_sources=sources, **facts)
    made = generate(snapshot, setup, backend=setup.backend_config, shown="a/b/c")
    files = {
        name: pygohcl.loads(text) if name == BACKEND_FILE else json.loads(text)
        for name, text in made.files.items()
    }
    return files, dict(made.variables)


def test_provider_configuration() -> None:
    """
    Providers become JSON configuration in which nothing of a value is interpreted; blocks within
    are objects, aliases a list.
    """
    files, variables = generated(
        WorkDirConfig(
            "local",
            {},
            {
                "aws": {"region": "a${b}", "default_tags": {"tags": {"k%{x": ["%{if}", 1, None]}}},
                "acme": [{}, {"alias": "east", "region": "e"}],
                "bare": None,
            },
        )
    )
    assert files[PROVIDER_FILE] == {
        "provider": {
            "acme": [{}, {"alias": "east", "region": "e"}],
            "aws": [{"region": "a$${b}", "default_tags": {"tags": {"k%%{x": ["%%{if}", 1, None]}}}],
            "bare": [{}],
        }
    }
    assert variables == {}


def test_secrets_are_variables() -> None:
    """
    No secret is in a file: each leaf is a sensitive variable whose value is returned.
    """
    files, variables = generated(
        WorkDirConfig(
            "local",
            {},
            {"a": {"token": Secret("s1"), "login": Secret({"user": "s2", "keys": ["s3", 4]})}},
        )
    )
    assert "s1" not in json.dumps(files)
    assert files[PROVIDER_FILE]["provider"]["a"] == [
        {
            "token": "${var.orchestrator_secret_1}",
            "login": {
                "user": "${var.orchestrator_secret_2}",
                "keys": ["${var.orchestrator_secret_3}", "${var.orchestrator_secret_4}"],
            },
        }
    ]
    assert set(files[PROVIDER_FILE]["variable"]) == set(variables)
    assert files[PROVIDER_FILE]["variable"]["orchestrator_secret_1"] == {"sensitive": True}
    assert list(variables.values()) == ["s1", "s2", "s3", 4]


def test_required_providers() -> None:
    """
    A source is generated only where the module lacks it: the one the blueprint gives, or that of
    a local module.
    """
    files, _ = generated(
        WorkDirConfig(
            "local",
            {},
            {
                "given": {"source": "corp/given", "version": "~> 1", "x": 1},
                "own": {"source": "corp/own", "version": "~> 1"},
                "child": {},
                "usual": {},
            },
        ),
        provider_sources={"own": "some.host/corp/own"},
        provider_uses={
            "given": "hashicorp/given", "child": "corp/child", "usual": "hashicorp/usual",
        },
    )  # fmt: skip
    assert files[BACKEND_FILE]["terraform"]["required_providers"] == {
        "given": {"source": "corp/given", "version": "~> 1"},
        "child": {"source": "corp/child"},
    }
    assert files[PROVIDER_FILE]["provider"]["given"] == [{"x": 1}]
    assert files[PROVIDER_FILE]["provider"]["own"] == [{"version": "~> 1"}]


def test_unused_providers_are_left_out() -> None:
    """
    A provider that the module is known not to use is not configured: the engine would fetch it.
    """
    files, variables = generated(
        WorkDirConfig("local", {}, {"aws": {"token": Secret("x")}}), provider_uses={}
    )
    assert (list(files), variables) == ([BACKEND_FILE], {})


@pytest.mark.parametrize(
    ("setup", "message"),
    [
        (WorkDirConfig("local", {}, {"own": {}}), 'configures provider "own" itself'),
        (
            WorkDirConfig("local", {}, {"declared": {"source": "x/y"}}),
            "is corp/declared for the module",
        ),
        (WorkDirConfig("local", {}, {"p": "x"}), 'provider "p" must be a mapping'),
        (WorkDirConfig("local", {}, {"p": [{}, {}]}), "needs a different `alias`"),
        (WorkDirConfig("local", {}, {"p": {"alias": "a b"}}), "an `alias` that is no name"),
        (
            WorkDirConfig("s3", {"a": {"b": [Secret("s")]}}),
            'environment variables of the "s3" backend',
        ),
    ],
)
def test_refused_setup(setup: WorkDirConfig, message: str) -> None:
    """
    What cannot be generated is said with the step and what to do, before an engine runs.
    """
    with pytest.raises(Invalid, match=message) as caught:
        generated(setup, provider_blocks=("own",), provider_sources={"declared": "corp/declared"})
    assert str(caught.value).startswith("a/b/c: ")


def test_backend_settings_are_literal() -> None:
    """
    Nothing of a backend setting is interpreted; maps are values but where the backend has blocks.
    """
    config = {"key": 'a${b}"%{c}\n\b', "endpoints": {"s3": "http://x"}, "n": 1, "on": True}
    remote = {"workspaces": {"name": "web"}}
    for kind, settings in (("s3", config), ("remote", remote)):
        files, _ = generated(setup := WorkDirConfig(kind, settings))
        text = generate(SNAPSHOT, setup, backend=settings, shown="a/b/c").backend
        whole = pygohcl.loads(backend_text({"backend": {kind: settings}}))

        assert pygohcl.loads(text) == settings
        assert whole == {"terraform": {"backend": {kind: settings}}}
        assert files[BACKEND_FILE] == {"terraform": {"backend": {kind: {}}}}


def test_a_module_that_leaves_its_backend_to_init_gets_no_file(project: Project) -> None:
    """
    Of the same type, and where the blueprint adds no source of a provider; init does the rest, and
    again where the settings change.
    """
    files, _ = generated(WorkDirConfig("s3", {}), partial_backend="s3")
    other, _ = generated(WorkDirConfig("s3", {}), partial_backend="local")
    more = WorkDirConfig("s3", {}, {"corp": {"source": "corp/corp"}})
    sourced, _ = generated(more, partial_backend="s3", provider_uses={"corp": "corp/corp"})
    assert (list(files), list(other)) == ([], [BACKEND_FILE])
    assert BACKEND_FILE in sourced

    root = project.prepare(partial_backend="local")
    project.init(root)
    project.dirs.mark_initialised(root)
    moved = WorkDirConfig("local", {"path": "elsewhere.tfstate"})
    assert not project.prepare(partial_backend="local").init_needed
    assert not (root.directory / BACKEND_FILE).exists()
    assert project.prepare(moved, partial_backend="local").init_needed


def test_no_pattern_of_a_module_meets_notes_or_json_of_ours(project: Project) -> None:
    """
    A module may read its own files by a pattern: but for native configuration there are only its
    own and those of the engine. What earlier versions left among them is moved away.
    """
    root = project.prepare()
    write(root.directory / ".orchestrator/layout.json", "{}")
    root = project.prepare()
    names = {path.relative_to(root.directory).as_posix() for path in root.directory.rglob("*")}
    assert names == {"main.tf", BACKEND_FILE}


# Working directories


def test_layout(project: Project) -> None:
    """
    A target's directory holds the module and the backend override; nobody else may look.
    """
    write(project.module / "bin/run", "#!", 0o755)
    root = project.prepare()
    assert root.directory == project.work / "web/prod/network"
    assert (root.location, root.backend_type) == (".orchestrator/state/network.tfstate", "local")
    state = project.root / ".orchestrator/state"
    assert pygohcl.loads((root.directory / BACKEND_FILE).read_text()) == {
        "terraform": {"backend": {"local": {}}}
    }
    assert root.backend_file is not None
    assert pygohcl.loads((root.directory / root.backend_file).read_text()) == {
        "path": f"{state}/network.tfstate"
    }
    modes = {
        path: path.stat().st_mode & 0o777
        for path in [root.directory, state, *root.directory.rglob("*")]
    }
    private = {path: 0o700 if path.is_dir() or path.name == "run" else 0o600 for path in modes}
    assert modes == private


def test_module_below_its_tree(project: Project) -> None:
    """
    With a local module beside it the engine runs in the module's place in the tree.
    """
    write(project.root / "shared/main.tf")
    root = project.prepare(local_modules=(str(project.root / "shared"),))
    assert root.directory == project.work / "web/prod/network/m"
    assert (root.directory / "../shared/main.tf").is_file()


def test_unchanged_snapshot_touches_nothing(project: Project) -> None:
    """
    Preparing again leaves every file of the module and the generated ones as they are.
    """
    root = project.prepare()
    files = [root.directory / "main.tf", root.directory / BACKEND_FILE]
    before = [path.stat().st_ino for path in files]
    project.prepare()
    assert [path.stat().st_ino for path in files] == before


def test_edited_working_copy_is_restored(project: Project) -> None:
    """
    What runs is the snapshot: a file changed in or gone from the working directory comes back.
    """
    write(project.module / "other.tf", "# other")
    root = project.prepare()
    write(root.directory / "main.tf", "# edited")
    (root.directory / "other.tf").unlink()
    project.prepare()
    assert (root.directory / "main.tf").read_text() == "# main"
    assert (root.directory / "other.tf").read_text() == "# other"


def test_new_snapshot_replaces_the_old(project: Project) -> None:
    """
    Files of the earlier snapshot go; what the engine or a provisioner left stays.
    """
    write(project.module / "old/x.tf")
    write(project.module / ".terraform.lock.hcl", "# own")
    root = project.prepare()
    left = [
        ".terraform/x", ".terraform.lock.hcl", "errored.tfstate", "terraform.tfstate.d/x", "made/y",
    ]  # fmt: skip
    for name in left:
        write(root.directory / name, "left")
    (project.module / "old/x.tf").unlink()
    write(project.module / "new.tf")
    project.prepare()
    assert not (root.directory / "old").exists()
    assert (root.directory / "new.tf").exists()
    assert [(root.directory / name).read_text() for name in left] == ["left"] * 5


def test_moved_module_takes_errored_state_along(project: Project) -> None:
    """
    When a new local module changes the module's place in the tree, an errored state is still found.
    """
    root = project.prepare()
    write(root.directory / "errored.tfstate", "precious")
    write(project.root / "shared/main.tf")
    moved = project.prepare(local_modules=(str(project.root / "shared"),))
    errored = project.dirs.errored_state(moved)
    assert errored is not None
    assert errored.read_text() == "precious"


def test_killed_halfway(project: Project) -> None:
    """
    What a killed prepare left of a snapshot is removed by the next one, of another snapshot.
    """
    root = project.prepare()
    write(project.module / "half.tf")
    blocked = root.directory / "zzz"
    write(blocked / "in-the-way")
    write(project.module / "zzz", "a file where a directory is")
    with pytest.raises(Exception, match="cannot prepare"):
        project.prepare()
    (project.module / "zzz").unlink()
    (project.module / "half.tf").unlink()
    project.prepare()
    assert not (root.directory / "half.tf").exists()


@pytest.mark.parametrize(
    "name", ["extra.tf", "terraform.tfvars", "x.auto.tfvars.json", "y.tf.json"]
)
def test_strange_configuration(project: Project, name: str) -> None:
    """
    A file that the engine would load although it is not of the module is refused, not applied.
    """
    stranger = write(project.prepare().directory / name)
    with pytest.raises(Invalid, match="not of the module") as caught:
        project.prepare()
    assert str(stranger) in str(caught.value)
    assert stranger.exists()


def test_reserved_name(project: Project) -> None:
    """
    A module that holds a file by the name of a generated one is refused.
    """
    write(project.module / BACKEND_FILE, "{}")
    with pytest.raises(Invalid, match="a name that is kept"):
        project.prepare()


@pytest.mark.parametrize("name", ["~_override.tf", "zzzz_z_override.tf.json", "é_override.tofu"])
def test_no_override_file_comes_after_ours(project: Project, name: str) -> None:
    """
    Of several override files the last by name wins: one of the module's that would is refused.
    """
    write(project.module / name)
    with pytest.raises(Invalid, match="is read after the generated"):
        project.prepare()


@pytest.mark.parametrize("name", ["override.tf", "z_override.tf.json", "backend_override.tf"])
def test_the_backend_of_the_blueprint_is_the_last_word(project: Project, name: str) -> None:
    """
    Ours is read after the override files that people write.
    """
    write(project.module / name)
    root = project.prepare()
    overrides = [path.name for path in root.directory.iterdir() if "override" in path.name]
    assert max(overrides) == BACKEND_FILE


@pytest.mark.parametrize(
    "backend",
    [
        {"type": "local", "config": {"path": "/elsewhere", "workspace_dir": None}},
        {"type": "cloud", "config": {"organization": "acme"}},
        None,
    ],
)
def test_another_backend_in_force_is_refused(project: Project, backend: Json) -> None:
    """
    What init has set up is compared with what the blueprint wants, whatever led it there; the
    directory does not pass for initialised then.
    """
    root = project.prepare()
    text = json.dumps({"version": 3, **({"backend": backend} if backend else {})})
    write(root.directory / ".terraform/terraform.tfstate", text)
    with pytest.raises(Invalid, match="backend"):
        project.dirs.mark_initialised(root)
    assert project.prepare().init_needed


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_file_is_never_given_to_the_engine_as_a_state(
    project: Project, make: Callable[[Path], None]
) -> None:
    """
    It would read for ever, and heed no signal meanwhile.
    """
    state = project.root / str(SETUP.backend_config["path"])
    state.parent.mkdir(parents=True)
    make(state)
    with pytest.raises(EngineFailed, match=r"network\.tfstate: is not a regular file"):
        project.prepare()


def test_a_note_that_cannot_be_read_needs_init(project: Project) -> None:
    """
    Whatever stands in its place: that the directory is initialised is not known then.
    """
    root = project.prepare()
    (note,) = list(project.root.rglob("wanted.json"))
    note.unlink()
    note.mkdir()
    with pytest.raises(EngineFailed, match="cannot prepare the working directory"):
        project.prepare()
    note.rmdir()
    done = note.with_name("initialised.json")
    done.unlink(missing_ok=True)
    done.mkdir()
    assert project.prepare().init_needed and root.init_needed


def test_the_override_file_of_an_earlier_version_goes(project: Project) -> None:
    """
    A working directory that an earlier version of the tool made goes on working.
    """
    root = project.prepare()
    former = write(root.directory / "orchestrator_override.tf.json", "{}")
    project.prepare()
    assert not former.exists()


def test_import_blocks_are_there_for_one_call(project: Project) -> None:
    """
    Further files go with the context, and those of a killed process when it is prepared again.
    """
    root = project.prepare()
    file = root.directory / QUERY_FILE
    with project.dirs.with_files(root, {QUERY_FILE: "{}"}):
        assert file.read_text() == "{}"
    assert not file.exists()
    write(file, "{}")
    project.prepare()
    assert not file.exists()


def test_provider_file_goes_with_its_providers(project: Project) -> None:
    """
    Provider configuration that is no longer wanted is not left behind.
    """
    root = project.prepare(
        WorkDirConfig("local", SETUP.backend_config, {"aws": {"t": Secret("s")}})
    )
    assert root.variables == {"orchestrator_secret_1": "s"}
    assert (root.directory / PROVIDER_FILE).exists()
    project.prepare()
    assert not (root.directory / PROVIDER_FILE).exists()


def test_written_through_no_link(project: Project) -> None:
    """
    A link that something left in the working directory does not lead our files elsewhere.
    """
    write(project.module / "sub/x", "1")
    root = project.prepare()
    outside = write(project.root / "outside/x", "untouched")
    (root.directory / "sub/x").unlink()
    (root.directory / "sub").rmdir()
    (root.directory / "sub").symlink_to(outside.parent)
    write(project.module / "sub/x", "2")
    project.prepare()
    assert outside.read_text() == "untouched"
    assert (root.directory / "sub/x").read_text() == "2"


def test_lock_file(project: Project) -> None:
    """
    The module's own lock file is where it starts; the engine's and a stored one win; a module's
    that has changed since wins again.
    """
    own = write(project.module / ".terraform.lock.hcl", "own")
    root = project.prepare()
    assert project.dirs.lock_file(root) == b"own"
    write(root.directory / ".terraform.lock.hcl", "by init")
    write(project.module / "main.tf", "# changed")
    assert project.dirs.lock_file(project.prepare()) == b"by init"
    stored = WorkDirConfig("local", SETUP.backend_config, lock_file=b"stored")
    assert project.dirs.lock_file(project.prepare(stored)) == b"stored"
    write(own, "upgraded")
    assert project.dirs.lock_file(project.prepare()) == b"upgraded"
    (root.directory / ".terraform.lock.hcl").unlink()
    assert project.dirs.lock_file(project.prepare()) == b"upgraded"


def test_init_holds(project: Project) -> None:
    """
    Init is needed once; after it the same wishes need none.
    """
    root = project.prepare()
    assert root.init_needed
    assert project.prepare().init_needed
    project.init(root)
    assert not project.prepare().init_needed


@pytest.mark.parametrize("damage", [None, "", "{"])
def test_a_backend_that_init_noted_and_nobody_can_read_needs_init(
    project: Project, damage: str | None
) -> None:
    """
    Every call of the engine fails without it; damaged it would fail init itself, and goes.
    """
    root = project.prepare()
    project.init(root)
    noted = root.directory / ".terraform/terraform.tfstate"
    if damage is None:
        noted.unlink()
    else:
        noted.write_text(damage)
    assert project.prepare().init_needed
    assert not noted.exists()


@pytest.mark.parametrize(
    ("setup", "engine"),
    [
        (WorkDirConfig("local", {"path": "elsewhere.tfstate"}), "terraform 1"),
        (WorkDirConfig("local", SETUP.backend_config, {"aws": {"region": "x"}}), "terraform 1"),
        (WorkDirConfig("local", SETUP.backend_config, lock_file=b"another"), "terraform 1"),
        (SETUP, "terraform 2"),
    ],
)
def test_other_wishes_need_init(project: Project, setup: WorkDirConfig, engine: str) -> None:
    """
    Another backend, provider configuration, lock file or engine needs a new init.
    """
    project.init(project.prepare())
    assert project.prepare(setup, engine=engine).init_needed


TWIN = Target("web", "prod", "twin")
ELSEWHERE = WorkDirConfig("local", {"path": "elsewhere.tfstate"})


def test_an_init_is_taken_over_where_only_the_state_is_elsewhere(project: Project) -> None:
    """
    What init set up and installed is copied, with the own place of the provider state.
    """
    snapshot = project.dirs.snapshot(module(project.module))
    twin = project.dirs.prepare(TWIN, snapshot, ELSEWHERE, "terraform 1")
    root = project.prepare()
    write(twin.directory / ".terraform/providers/h/n/t/1/linux/provider")
    project.init(twin)
    taken_over = project.dirs.copy_init(twin, root)
    assert taken_over and twin.init_key == root.init_key
    assert not project.prepare().init_needed
    assert (root.directory / ".terraform/providers/h/n/t/1/linux/provider").is_file()
    backend = json.loads((root.directory / ".terraform/terraform.tfstate").read_text())["backend"]
    assert backend["config"]["path"].endswith(".orchestrator/state/network.tfstate")
    assert project.dirs.lock_file(root) == project.dirs.lock_file(twin) is not None


@pytest.mark.parametrize("note", ["", "{}", '{"backend": {"type": "s3", "config": {"key": "k"}}}'])
def test_an_init_that_is_not_understood_is_not_taken_over(project: Project, note: str) -> None:
    """
    Then the directory needs an init of its own.
    """
    snapshot = project.dirs.snapshot(module(project.module))
    twin = project.dirs.prepare(TWIN, snapshot, ELSEWHERE, "terraform 1")
    project.init(twin)
    write(twin.directory / ".terraform/terraform.tfstate", note)
    assert not project.dirs.copy_init(twin, project.prepare())
    assert project.prepare().init_needed


@pytest.mark.parametrize(
    ("setup", "engine"),
    [
        (WorkDirConfig("local", ELSEWHERE.backend_config, {"aws": {"region": "x"}}), "terraform 1"),
        (WorkDirConfig("local", ELSEWHERE.backend_config, lock_file=b"another"), "terraform 1"),
        (WorkDirConfig("local", {"path": "a", "workspace_dir": "b"}), "terraform 1"),
        (WorkDirConfig("s3", {"bucket": "b", "key": "k"}), "terraform 1"),
        (ELSEWHERE, "terraform 2"),
    ],
)
def test_another_init_has_another_key(project: Project, setup: WorkDirConfig, engine: str) -> None:
    """
    Only where all that init depends on is the same, one stands for the other.
    """
    snapshot = project.dirs.snapshot(module(project.module))
    other = project.dirs.prepare(TWIN, snapshot, setup, engine)
    assert other.init_key != project.prepare().init_key


def test_other_module_needs_init(project: Project) -> None:
    """
    Another content of the module needs a new init.
    """
    project.init(project.prepare())
    write(project.module / "main.tf", "# changed")
    assert project.prepare().init_needed


def test_lost_init_is_needed_again(project: Project) -> None:
    """
    Init is needed where .terraform is gone, or the plugin cache that its providers are links to.
    """
    root = project.prepare()
    project.init(root)
    link = root.directory / ".terraform/providers/h/n/t/1/linux"
    link.parent.mkdir(parents=True)
    link.symlink_to(project.root / "no-cache")
    without_cache = project.prepare().init_needed
    link.unlink()
    project.init(root)
    with_all = project.prepare().init_needed
    (root.directory / ".terraform").rename(root.directory / "away")
    without_directory = project.prepare().init_needed
    assert (without_cache, with_all, without_directory) == (True, False, True)


def test_secret_values_do_not_need_init(project: Project) -> None:
    """
    A rotated secret of provider configuration is a value, not configuration.
    """
    one, two = (
        WorkDirConfig("local", SETUP.backend_config, {"aws": {"token": Secret(value)}})
        for value in ("s3cret-1", "s3cret-2")
    )
    project.init(project.prepare(one))
    assert not project.prepare(two).init_needed
    on_disk = b"".join(p.read_bytes() for p in project.work.rglob("*") if p.is_file())
    assert b"s3cret" not in on_disk


def test_instances_have_directories_of_their_own() -> None:
    """
    Instances of a repeated step never share a directory, with each other or with a step, whatever
    their keys are.
    """
    keys = ["a", "A", "a b", "a-b", "..", ".", "é" * 200, "x" * 200, "x" * 199 + "y"]
    steps = ["web", *(f'web["{key}"]' for key in keys)]
    found = [work_path(Target("b", "e", step)) for step in steps]
    assert len({str(path).lower() for path in found}) == len(steps)
    assert all(len(path.parts) == 3 and len(path.name.encode()) < 200 for path in found)


def test_full_disk_is_no_traceback(project: Project) -> None:
    """
    A working directory that cannot be written is an engine error that names the place.
    """
    write(project.work, "a file where the work directory belongs")
    with pytest.raises(Exception, match=f"cannot prepare .* {project.work}") as caught:
        project.prepare()
    assert caught.type.__name__ == "EngineFailed"

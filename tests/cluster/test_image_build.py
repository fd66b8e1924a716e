"""`toolkit image` with the real Apptainer: what is built, what is kept, and what is left when a build fails or is killed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import pytest

from tests.cluster.image_fixtures import Tiny, manifest_in
from tests.cluster.ranks import wait_for
from tests.hostile import HOSTILE
from toolkit.images.host import host_config as host
from toolkit.images.recipe.block import WHEELS
from toolkit.model.base import from_json
from toolkit.model.image import Manifest

SLOW = ("echo begun > /begun", "mkdir /deep /deep/er", "sleep 300")
BUILT = ["tiny.log", "tiny.sif"]


def manifest(store: Tiny) -> dict[str, object]:
    return manifest_in(store.images / "tiny.sif")


def nothing_runs(store: Tiny) -> None:
    wait_for(lambda: not store.processes(), f"the end of {store.processes()}")
    assert store.mounts() == []


def test_a_build_makes_an_image_its_manifest_and_its_log(tiny: Tiny) -> None:
    recipe = tiny.recipe(
        "echo hello > /greeting",
        checks='greeting = "cat /greeting", home = "! test -e $HOME/anything"',
    )
    done = tiny.run("build", recipe)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(tiny.images / "tiny.sif")
    assert tiny.left() == BUILT
    assert tiny.inside("/bin/cat", "/greeting") == "hello\n"
    known = manifest(tiny)
    check, *_ = cast("list[dict[str, object]]", known["verified"])
    assert (check["name"], check["outcome"], check["detail"]) == ("greeting", "passed", "hello")
    assert known["size"] == (tiny.images / "tiny.sif").stat().st_size
    assert set(known["seconds"]) == {"base", "act", "checks", "pack"}  # type: ignore[call-overload]
    for step in ("base", "act", "checks", "pack"):
        assert re.search(rf"^{step} .* done +\d+:\d\d$", done.stderr, re.MULTILINE), done.stderr
    nothing_runs(tiny)
    assert sorted(path.name for path in tiny.place.iterdir()) == ["images", "tiny.toml"], "no home"
    again = tiny.run("verify", str(tiny.images / "tiny.sif"), "--json")
    assert again.returncode == 0, again.stderr
    verdicts = {one["name"]: one["outcome"] for one in json.loads(again.stdout)["verdicts"]}
    assert (verdicts["greeting"], verdicts["home"]) == ("passed", "passed")


def test_what_has_not_changed_is_kept_and_what_has_is_built(built: Tiny) -> None:
    first = manifest(built)
    again = built.run("build", "tiny.toml", "--json")
    assert json.loads(again.stdout)["kept"] is True
    assert built.run("build", built.recipe("exit 3")).returncode == 74
    assert manifest(built) == first
    assert built.inside("/bin/cat", "/greeting") == "old\n"
    changed = built.run("build", built.recipe("echo two > /greeting"), "--json")
    assert json.loads(changed.stdout)["kept"] is False
    assert built.inside("/bin/cat", "/greeting") == "two\n"
    assert json.loads(built.run("build", "tiny.toml", "--force", "--json").stdout)["kept"] is False
    assert built.left() == BUILT


def test_a_failed_step_is_named_with_its_command_and_the_tail(tiny: Tiny) -> None:
    done = tiny.run("build", tiny.recipe("echo before", "cat /missing/file", "echo after"))
    assert done.returncode == 74
    assert "the step act failed" in done.stderr
    assert "command: cat /missing/file" in done.stderr
    assert "| cat: /missing/file: No such file or directory" in done.stderr
    assert "after" not in re.sub("failed after", "", done.stderr)
    log = tiny.images / "tiny.failed.log"
    assert str(log) in done.stderr
    assert "+ echo before" in log.read_text()
    assert tiny.left() == ["tiny.failed.log"]
    nothing_runs(tiny)


def test_an_image_that_fails_a_check_does_not_appear(tiny: Tiny) -> None:
    checks = 'good = "echo fine", bad = "echo the sum is wrong; exit 1"'
    done = tiny.run("build", tiny.recipe("true", checks=checks))
    assert done.returncode == 74
    assert "did not pass 1 of 2 checks" in done.stderr
    assert "| bad: the sum is wrong" in done.stderr
    assert tiny.left() == ["tiny.failed.log"]


@pytest.mark.parametrize("is_alone", [True, False], ids=["the tool", "all that could end it"])
def test_a_killed_build_leaves_no_process_and_the_next_removes_the_rest(
    tiny: Tiny, is_alone: bool
) -> None:
    recipe = tiny.recipe(*SLOW)
    process = tiny.started(recipe, until="+ sleep 300")
    wait_for(tiny.sleeps, "the sleep")
    for entry in Path("/proc").glob("[0-9]*") if not is_alone else ():
        with contextlib.suppress(OSError):
            line = (entry / "cmdline").read_bytes()
            if b"apptainer.sandbox\0" in line and str(tiny.place).encode() in line:
                os.kill(int(entry.name), signal.SIGKILL)
    process.kill()
    process.communicate(timeout=120)
    nothing_runs(tiny)
    assert tiny.mounts() == []
    assert tiny.run("path", "tiny").returncode == 67
    assert any(name.startswith(".toolkit-build-") for name in tiny.left())
    tiny.recipe("true")
    assert tiny.run("build", recipe).returncode == 0
    assert tiny.left() == BUILT


def test_an_interrupted_build_says_what_is_left(tiny: Tiny) -> None:
    process = tiny.started(tiny.recipe(*SLOW), until="+ sleep 300")
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 130
    assert re.search(r"^act .* stopped", stderr, re.MULTILINE), stderr
    assert f"no process of the build is left; the log: {tiny.images / 'tiny.failed.log'}" in stderr
    assert "Traceback" not in stderr
    assert tiny.left() == ["tiny.failed.log"]
    nothing_runs(tiny)


def test_the_second_of_two_builds_waits_and_finds_it_done(tiny: Tiny) -> None:
    recipe = tiny.recipe("echo begun", "sleep 300 || true")
    first = tiny.started(recipe, until="+ sleep 300")
    building = rf"tiny is being built by process {first.pid} on \S+ since 20"
    second = tiny.start("build", recipe, "--json")
    assert second.stderr is not None
    said = second.stderr.readline()
    assert re.search(rf"^waiting +{building}", said), said
    tiny.wake()
    stdout, _ = second.communicate(timeout=120)
    assert first.wait(120) == 0
    assert json.loads(stdout)["kept"] is True
    first.communicate()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system takes root")
def test_a_disk_that_fills_up_is_said_to_be_full(tiny: Tiny) -> None:
    small = tiny.place / "small"
    small.mkdir()
    tiny.extra["TOOLKIT_BUILD_TMP"] = str(small)
    recipe = tiny.recipe("while true; do cat /bin/sh >> /large; done")
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m,mode=755", "tmpfs", str(small)], check=True
    )
    try:
        done = tiny.run("build", recipe)
        assert done.returncode == 73, done.stderr
        assert "full in the step act" in done.stderr
        assert list(small.iterdir()) == []
    finally:
        subprocess.run(["umount", "--lazy", str(small)], check=True)
    assert tiny.left() == ["tiny.failed.log"]


def test_values_reach_the_shell_byte_for_byte(tiny: Tiny) -> None:
    """Every hostile string as a requirement of pip, through Apptainer's own parser and %post's own shell."""
    texts = [
        text
        for text in (*HOSTILE, "{{ mirror }}", "{{{x}}}", "%post", "# %post")
        if text.isprintable() and not text.startswith("-")
    ]
    listed = ", ".join(json.dumps(text, ensure_ascii=False) for text in texts)
    more = f'[[steps]]\nblock = "python"\n[[steps]]\nblock = "pip"\npackages = [{listed}]\n'
    done = tiny.run("build", tiny.recipe("true", more=more))
    assert done.returncode == 0, done.stderr
    assert tiny.inside("/bin/cat", "/said").split("\0")[:-1] == ["install", "--no-compile", *texts]
    assert "pwned" not in tiny.inside("/bin/find", "/", "-xdev", "-name", "pwned")


def test_what_the_host_lends_is_there_in_the_build_and_not_in_the_image(tiny: Tiny) -> None:
    wheels = tiny.place / "wheels, and more"
    wheels.mkdir()
    (wheels / "x.whl").touch()
    tiny.extra |= {
        "PIP_FIND_LINKS": f"file://{str(wheels).replace(' ', '%20')}",
        "PIP_INDEX_URL": "https://reader:t0psecret@packages.example.org/simple",
        "APPTAINER_BIND": f"{wheels}:/leaked",
        "APPTAINERENV_LEAKED": "yes",
        "LEAKED": "yes",
    }
    done = tiny.run(
        "build",
        tiny.recipe("cat /mnt/pip.conf", "find /mnt -name '*.whl'", "ls -d /leaked || true", "env"),
    )
    assert done.returncode == 0, done.stderr
    log = (tiny.images / "tiny.log").read_text()
    assert re.search(r"^/mnt/find-links/\d+/x.whl$", log, re.MULTILINE)
    assert "https://reader:****@packages.example.org/simple" in log
    assert "t0psecret" not in log
    assert "cannot access '/leaked'" in log
    assert "LEAKED" not in log
    assert tiny.inside("/bin/find", "/mnt") == "/mnt\n"
    strings = (tiny.images / "tiny.sif").read_bytes()
    assert b"packages.example.org" not in strings
    assert b"t0psecret" not in strings


def test_temporary_files_of_a_build_are_its_own(tiny: Tiny) -> None:
    marks = [
        Path(directory) / f"toolkit-test-mark-{os.getpid()}" for directory in ("/tmp", "/var/tmp")
    ]
    for mark in marks:
        mark.touch()
    try:
        commands = [f"echo x > {mark}-within" for mark in marks] + [
            f"! test -e {mark}" for mark in marks
        ]
        checks = ", ".join(
            f'at{number} = "echo x > {mark}-within"' for number, mark in enumerate(marks)
        )
        done = tiny.run("build", tiny.recipe(*commands, checks=checks))
        assert done.returncode == 0, done.stderr
        assert not any(mark.with_name(f"{mark.name}-within").exists() for mark in marks)
        assert tiny.inside("/bin/find", "/tmp", "/var/tmp") == "/tmp\n/var/tmp\n"
    finally:
        for mark in marks:
            mark.unlink()


@pytest.mark.parametrize(("which", "layers"), [("tiny", ()), ("users_tiny", ("--flat",))])
def test_a_check_has_shared_memory_that_is_not_the_hosts(
    which: str, layers: tuple[str, ...], request: pytest.FixtureRequest
) -> None:
    """As ranks on one node and the semaphores of Python's multiprocessing need it."""
    store = request.getfixturevalue(which)
    kept = Path("/dev/shm", f"toolkit-check-{os.getpid()}")
    done = store.run(
        "build",
        store.recipe("true", checks=f'writes = "echo kept > {kept} && cat {kept}"'),
        *layers,
    )
    assert done.returncode == 0, done.stderr
    assert not kept.exists()


def test_what_a_killed_build_of_an_ordinary_user_leaves_goes_with_the_next(
    users_tiny: Tiny,
) -> None:
    """Directories of the build belong to subordinate ids, which the user alone could not remove."""
    recipe = users_tiny.recipe("mkdir -p /owned/deep", "chown -R 33:33 /owned", *SLOW)
    process = users_tiny.started(recipe, until="+ sleep 300")
    process.kill()
    process.communicate(timeout=120)
    nothing_runs(users_tiny)
    users_tiny.recipe("true")
    assert users_tiny.run("build", recipe).returncode == 0
    assert users_tiny.left() == BUILT


def unpacked(image: Path, name: str) -> str:
    """A file as it lies in the image; a running container sees the machine's own in its place."""
    listed = subprocess.run(
        ["apptainer", "sif", "list", str(image)], capture_output=True, text=True, check=True
    ).stdout
    offset = re.search(r"(\d+)-\d+ *\|FS", listed)
    assert offset, listed
    argv = ["unsquashfs", "-cat", "-offset", offset[1], str(image), name]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def within(image: Path, script: str) -> str:
    argv = [
        *f"apptainer --silent run --cleanenv --containall {image} sh -c".split(),
        script,
    ]
    return subprocess.run(argv, capture_output=True, text=True, check=True, cwd="/").stdout


def test_the_real_image_has_proven_itself(pytorch_image: Path) -> None:
    known = manifest_in(pytorch_image)
    verdicts = from_json(json.dumps(known), Manifest).verified
    proven = {verdict.name for verdict in verdicts if verdict.outcome == "passed"}
    assert proven >= {"imports", "openmpi", "user-site", "horovod-build", "ranks-mpi", "ranks-gloo"}
    assert known["frameworks"]["torch"] == "2.13.0+cpu"
    assert known["frameworks"]["horovod"] == "0.28.1"
    assert set(known["frameworks"]) == {
        "torch",
        "numpy",
        "sklearn",
        "horovod",
        "mpi4py",
        "submitit",
    }
    assert known["mpi"] == ["pmix"]
    assert known["size"] < 520_000_000


def test_the_real_image_holds_nothing_of_the_machine_it_was_built_on(pytorch_image: Path) -> None:
    for name in ("etc/resolv.conf", "etc/hosts", "etc/hostname"):
        assert unpacked(pytorch_image, name) == ""
    assert unpacked(pytorch_image, "etc/apt/sources.list").startswith(
        "# The mirror of the build is not kept."
    )
    found = "find /mnt /tmp /var/tmp /root /home /var/cache/apt /var/lib/apt/lists /var/log /etc/dpkg/dpkg.cfg.d ! -type d"
    assert within(pytorch_image, f"{found} ! -path '/root/.*'") == ""
    assert (
        within(
            pytorch_image,
            "find / -xdev '(' -name pip.conf -o -name 'installed-by-name' ')' ! -path '/proc/*'",
        )
        == ""
    )
    mirror = host.debian_mirror("bookworm")
    names = [
        urlsplit(mirror).netloc,
        socket.gethostname(),
        *(bind.source for bind in host.collect_host_config().binds),
    ]
    # The system's own file of authorities has the same name everywhere, and a host may be called by
    # a word like others. And a machine may keep its wheels where every build of ours puts what it
    # compiles, which the definition says.
    common = ("/etc/ssl", "/etc/pki", WHEELS)
    telling = [
        name
        for name in names
        if len(name) > 4 and re.search(r"[-./\d]", name) and not name.startswith(common)
    ]
    pattern = "|".join(re.escape(name) for name in telling)
    assert pattern
    places = "/etc /var /opt/toolkit /opt/venv/pyvenv.cfg /.singularity.d"
    assert (
        within(
            pytorch_image,
            f"grep -rIlE {shlex.quote(pattern)} {places} --exclude=hosts --exclude=resolv.conf || true",
        )
        == ""
    )
    for part in ("1", "2"):
        said = subprocess.run(
            ["apptainer", "sif", "dump", part, str(pytorch_image)],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert not re.search(pattern, said)


def test_stores_that_share_a_directory_for_builds_do_not_disturb_each_other(
    tiny: Tiny, tiny_base: str
) -> None:
    stores = [
        Tiny(tiny.place / name, tiny_base, extra={"TOOLKIT_BUILD_TMP": str(tiny.place / "scratch")})
        for name in "ab"
    ]
    recipes = []
    for store in stores:
        store.images.mkdir(parents=True)
        recipes.append(store.recipe("sleep 0.3", f"echo {store.place.name} > /greeting"))
    running = [
        store.start("build", recipe, "--force")
        for store, recipe in zip(stores, recipes, strict=True)
    ]
    assert [
        (
            process.wait(120),
            process.stderr.read() if process.returncode and process.stderr else "",
        )
        for process in running
    ] == [(0, "")] * 2
    assert [store.inside("/bin/cat", "/greeting") for store in stores] == ["a\n", "b\n"]
    assert list((tiny.place / "scratch").iterdir()) == []

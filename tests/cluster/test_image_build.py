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
from urllib.parse import urlsplit

import pytest

from tests.cluster.image_fixtures import Tiny, manifest_in, outcomes, small_disk, steps, unsquashfs
from tests.cluster.ranks import wait_for
from tests.hostile import HOSTILE
from toolkit.images.host import host_config as host
from toolkit.images.recipe.block import WHEELS

BUILT = ["tiny.log", "tiny.sif"]


def test_a_build_makes_an_image_its_manifest_and_its_log(tiny: Tiny) -> None:
    recipe = tiny.recipe(
        "echo hello > /greeting",
        checks='greeting = "cat /greeting", home = "! test -e $HOME/anything"',
    )
    done = tiny.run("build", recipe)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(tiny.sif)
    assert tiny.left() == BUILT
    assert tiny.inside("/bin/cat", "/greeting") == "hello\n"
    known = tiny.manifest
    check, *_ = known["verified"]
    assert (check["name"], check["outcome"], check["detail"]) == ("greeting", "passed", "hello")
    assert known["size"] == tiny.sif.stat().st_size
    assert set(known["seconds"]) == {"base", "act", "checks", "pack"}
    assert outcomes(done.stderr) == dict.fromkeys(known["seconds"], "done")
    tiny.idle()
    assert sorted(path.name for path in tiny.place.iterdir()) == ["images", "tiny.toml"], "no home"
    again = tiny.run("verify", tiny.sif, "--json")
    assert again.returncode == 0, again.stderr
    verdicts = {one["name"]: one["outcome"] for one in json.loads(again.stdout)["verdicts"]}
    passed, unchecked = ("greeting", "home", "entrypoint"), ("imports", "ranks-mpi")
    assert {verdicts[name] for name in passed} == {"passed"}
    assert {verdicts[name] for name in unchecked} == {"unchecked"}


def test_what_has_not_changed_is_kept_and_what_has_is_built(built: Tiny) -> None:
    def is_kept(*words: object) -> bool:
        return bool(json.loads(built.run("build", *words, "--json").stdout)["kept"])

    assert is_kept("tiny.toml")
    assert not is_kept(built.recipe("echo two > /greeting"))
    assert built.inside("/bin/cat", "/greeting") == "two\n"
    assert not is_kept("tiny.toml", "--force")
    assert built.left() == BUILT


def test_a_failed_step_is_named_and_all_from_before_it_is_kept(built: Tiny) -> None:
    before = built.manifest
    more = steps(("second", "cat /missing/file; echo after"))
    done = built.run("build", built.recipe("echo new > /greeting", more=more))
    assert done.returncode == 74
    assert "the step second failed" in done.stderr
    assert "command: cat /missing/file" in done.stderr
    assert "| cat: /missing/file: No such file or directory" in done.stderr
    log = built.images / "tiny.failed.log"
    assert str(log) in done.stderr
    assert "+ echo after" not in log.read_text()
    assert built.left() == ["tiny.failed.log", *BUILT]
    assert (built.manifest, built.inside("/bin/cat", "/greeting")) == (before, "old\n")
    built.idle()
    mended = built.built(built.recipe("echo new > /greeting", more=steps(("second", "true"))))
    assert (mended["act"], mended["second"]) == ("kept", "done")


def test_an_image_that_fails_a_check_does_not_appear(tiny: Tiny) -> None:
    checks = 'good = "echo fine", bad = "echo the sum is wrong; exit 1"'
    done = tiny.run("build", tiny.recipe("true", checks=checks))
    assert done.returncode == 74
    assert "did not pass 1 of 2 checks" in done.stderr
    assert "| bad: the sum is wrong" in done.stderr
    noisy = 'printf "#!/bin/sh\\necho welcome\\n" > /.singularity.d/env/99-noise.sh'
    done = tiny.run("build", tiny.recipe("mkdir -p /.singularity.d/env", noisy))
    assert done.returncode == 74
    assert "| entrypoint: by run: it prints 1 line of its own, first: welcome" in done.stderr
    assert tiny.left() == ["tiny.failed.log"]


@pytest.mark.parametrize(
    ("which", "is_alone"),
    [
        pytest.param("tiny", False, id="all that could end it"),
        pytest.param("users_tiny", True, id="the tool, of an ordinary user"),
    ],
)
def test_a_killed_build_leaves_no_process_and_the_next_removes_the_rest(request, which, is_alone):
    """Directories of a user's build belong to subordinate ids, which the user alone could not remove."""
    store: Tiny = request.getfixturevalue(which)
    first = ("mkdir -p /owned/deep", "chown -R 33:33 /owned")
    more = steps(("second", "true"), ("slow", "mkdir /a; chown 33 /a; sleep 300"))
    process = store.started(store.recipe(*first, more=more), until="+ sleep 300")
    notes = store.images / ".cache/layers"  # a layer counts with its note, which is written last
    wait_for(lambda: list(notes.glob("[!.]*.json")), "the first layer")
    wait_for(store.sleeps, "the sleep")
    for entry in Path("/proc").glob("[0-9]*") if not is_alone else ():
        with contextlib.suppress(OSError):
            line = (entry / "cmdline").read_bytes()
            if b"apptainer.sandbox\0" in line and str(store.place).encode() in line:
                os.kill(int(entry.name), signal.SIGKILL)
    process.kill()
    process.communicate(timeout=120)
    store.idle()
    assert store.run("path", "tiny").returncode == 67
    assert any(name.startswith(".toolkit-build-") for name in store.left())
    more = steps(("second", "true"), ("slow", "true"))
    again = store.built(store.recipe(*first, more=more))
    assert (again["base"], again["act"], again["slow"]) == ("kept", "kept", "done")
    assert store.left() == BUILT


def test_an_interrupted_build_says_what_is_left(tiny: Tiny) -> None:
    process = tiny.started(tiny.recipe("mkdir /deep /deep/er", "sleep 300"), until="+ sleep 300")
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 130
    assert outcomes(stderr)["act"] == "stopped", stderr
    assert f"no process of the build is left; the log: {tiny.images / 'tiny.failed.log'}" in stderr
    assert "Traceback" not in stderr
    assert tiny.left() == ["tiny.failed.log"]
    tiny.idle()


def test_a_disk_that_fills_up_is_said_to_be_full(tiny: Tiny) -> None:
    small = tiny.place / "small"
    small.mkdir()
    tiny.extra["TOOLKIT_BUILD_TMP"] = str(small)
    with small_disk(small, "64m"):
        done = tiny.run("build", tiny.recipe("while true; do cat /bin/sh >> /large; done"))
        assert done.returncode == 73, done.stderr
        assert "full in the step act" in done.stderr
        assert list(small.iterdir()) == []
    assert tiny.left() == ["tiny.failed.log"]


def test_a_full_disk_while_the_image_is_put_together(tiny: Tiny) -> None:
    with small_disk(tiny.images, "13m"):
        recipe = tiny.recipe("cat /bin/* /lib/*/* > /large")
        space = recipe.read_text().replace("image = 10", "image = 1").replace("= 50", "= 1")
        recipe.write_text(space)
        done = tiny.run("build", recipe)
        assert done.returncode == 73, done.stderr
        assert tiny.run("path", "tiny").returncode == 67


def test_values_reach_the_shell_byte_for_byte(tiny: Tiny) -> None:
    """Every hostile string as a requirement of pip, through Apptainer's own parser and %post's own shell."""
    texts = [
        text
        for text in (*HOSTILE, "{{ mirror }}", "{{{x}}}", "%post", "# %post")
        if text.isprintable() and not text.startswith("-")
    ]
    listed = json.dumps(texts, ensure_ascii=False)
    more = f'[[steps]]\nblock = "python"\n[[steps]]\nblock = "pip"\npackages = {listed}\n'
    tiny.built(tiny.recipe("true", more=more), "--flat")
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
    found = "find /mnt -name '*.whl'"
    tiny.built(tiny.recipe("cat /mnt/pip.conf", found, "ls -d /leaked || true", "env"))
    log = (tiny.images / "tiny.log").read_text()
    assert re.search(r"^/mnt/find-links/\d+/x.whl$", log, re.MULTILINE)
    assert "https://reader:****@packages.example.org/simple" in log
    assert "t0psecret" not in log
    assert "cannot access '/leaked'" in log
    assert "LEAKED" not in log
    assert tiny.inside("/bin/find", "/mnt") == "/mnt\n"
    strings = tiny.sif.read_bytes()
    assert b"packages.example.org" not in strings
    assert b"t0psecret" not in strings


@pytest.mark.parametrize(
    ("which", "options", "shared"),
    [
        ("tiny", (), ("/tmp", "/var/tmp", "/dev/shm")),
        # The steps of a flat build can do what its user can.
        ("users_tiny", ("--flat",), ("/dev/shm",)),
    ],
)
def test_temporary_files_and_shared_memory_of_a_build_are_its_own(request, which, options, shared):
    """Shared memory, as ranks on one node and the semaphores of Python's multiprocessing need it."""
    store: Tiny = request.getfixturevalue(which)
    marks = [Path(directory, f"toolkit-test-mark-{os.getpid()}") for directory in shared]
    within = [f"echo x > {mark}-within && cat {mark}-within" for mark in marks]
    checks = ", ".join(f'at{number} = "{command}"' for number, command in enumerate(within))
    of_steps = () if options else (*within, *(f"! test -e {mark}" for mark in marks))
    for mark in marks:
        mark.touch()
    try:
        store.built(store.recipe("true", *of_steps, checks=checks), *options)
    finally:
        for mark in marks:
            mark.unlink()
    assert not any(mark.with_name(f"{mark.name}-within").exists() for mark in marks)
    found = store.inside("/bin/find", "/tmp", "/var/tmp")
    assert not any(f"{mark.name}-within" in found for mark in marks)


def within(image: Path, script: str) -> str:
    words = f"apptainer --silent run --cleanenv --containall {image} sh -c".split()
    done = subprocess.run([*words, script], capture_output=True, text=True, check=True, cwd="/")
    return done.stdout


def test_the_real_image_has_proven_itself(pytorch_image: Path) -> None:
    known = manifest_in(pytorch_image)
    proven = {one["name"] for one in known["verified"] if one["outcome"] == "passed"}
    assert proven >= {"imports", "openmpi", "user-site", "horovod-build", "ranks-mpi", "ranks-gloo"}
    assert known["frameworks"]["torch"] == "2.13.0+cpu"
    assert known["frameworks"]["horovod"] == "0.28.1"
    names = {"torch", "numpy", "sklearn", "horovod", "mpi4py", "submitit"}
    assert set(known["frameworks"]) == names
    assert known["mpi"] == ["pmix"]
    assert known["size"] < 520_000_000


def test_the_real_image_holds_nothing_of_the_machine_it_was_built_on(pytorch_image: Path) -> None:
    # As they lie in the image; a running container sees the machine's own in their place.
    for name in ("etc/resolv.conf", "etc/hosts", "etc/hostname"):
        assert unsquashfs(pytorch_image, "-cat", name=name) == ""
    sources = unsquashfs(pytorch_image, "-cat", name="etc/apt/sources.list")
    assert sources.startswith("# The mirror of the build is not kept.")
    found = "find /mnt /tmp /var/tmp /root /home /var/cache/apt /var/lib/apt/lists /var/log /etc/dpkg/dpkg.cfg.d ! -type d"
    assert within(pytorch_image, f"{found} ! -path '/root/.*'") == ""
    named = "find / -xdev '(' -name pip.conf -o -name 'installed-by-name' ')' ! -path '/proc/*'"
    assert within(pytorch_image, named) == ""
    names = [
        urlsplit(host.debian_mirror("bookworm")).netloc,
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
    listed = f"grep -rIlE {shlex.quote(pattern)} {places} --exclude=hosts --exclude=resolv.conf"
    assert within(pytorch_image, f"{listed} || true") == ""
    for part in ("1", "2"):
        words = ["apptainer", "sif", "dump", part, str(pytorch_image)]
        said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        assert not re.search(pattern, said)


def test_stores_that_share_a_directory_for_builds_do_not_disturb_each_other(
    tiny: Tiny, tiny_base: str
) -> None:
    shared = {"TOOLKIT_BUILD_TMP": str(tiny.place / "scratch")}
    stores = [Tiny(tiny.place / name, tiny_base, extra=shared) for name in "ab"]
    running = []
    for store in stores:
        store.images.mkdir(parents=True)
        recipe = store.recipe("sleep 0.3", f"echo {store.place.name} > /greeting")
        running.append(store.start("build", recipe, "--force"))
    ended = [(process.communicate(timeout=120)[1], process.returncode) for process in running]
    assert [code for _, code in ended] == [0, 0], ended
    assert [store.inside("/bin/cat", "/greeting") for store in stores] == ["a\n", "b\n"]
    assert list((tiny.place / "scratch").iterdir()) == []

"""What a build step may say to the build: its exit code, and nothing else; as root and as an ordinary user, by the real kernel."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.cluster.image_fixtures import Tiny, outcomes, steps

# Builds one recipe after the other in one process, and tells what became of each and what was said.
DRIVER = """\
import json, os, pathlib, sys, threading
from toolkit.errors import ToolkitError
from toolkit.images.builder.build import build
from tests.progress import Silent

said, path = [], pathlib.Path(sys.argv[1])
Silent.say = lambda self, subject, text: said.append(subject)
text = path.read_text()
for code in sys.argv[2:]:
    path.write_text(text.replace("CODE", code))
    try:
        outcome = build(str(path), Silent()).path
    except ToolkitError as error:
        outcome = f"{type(error).__name__} {error.place} {error.cause}"
    left = [thread.name for thread in threading.enumerate() if type(thread).__name__ == "Copier"]
    links = [pathlib.Path("/proc/self/fd", number) for number in os.listdir("/proc/self/fd")]
    left += [str(link.readlink()) for link in links if link.is_symlink() and "deleted" in str(link.readlink())]
    print(json.dumps((code, outcome, said, left)), flush=True)
"""
# Of a program, of the toolkit, of a time limit, of Apptainer, of a signal, and the last one.
CODES = ["1", "74", "124", "125", "137", "255"]


def test_a_step_that_fails_fails_the_build_with_its_own_code(store: Tiny) -> None:
    recipe = store.recipe("echo 1 > /first", more=steps(("last", "exit CODE")))
    recipe.chmod(0o666)
    words = [*store.become, sys.executable, "-c", DRIVER, str(recipe), *CODES]
    env = store.environment()
    done = subprocess.run(words, env=env, cwd=store.place, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row[0] for row in rows] == CODES
    for code, outcome, said, left in rows:
        assert outcome.startswith("BuildError step last, command: exit"), (code, outcome)
        assert outcome.endswith(f"(exit code {code})"), (code, outcome)
        assert (said, left) == ([], []), "no thread copies, and no removed file is open"
    assert not list(store.images.glob("*.sif"))


def test_a_store_below_tmp_is_seen_through_the_fence(store: Tiny) -> None:
    """Apptainer gets another /tmp, in which it sees the directories of its build alone."""
    with tempfile.TemporaryDirectory(prefix="toolkit-test-", dir="/tmp") as images:
        shutil.copystat(store.images, images)
        shutil.chown(images, store.images.stat().st_uid, store.images.stat().st_gid)
        store.extra = {"TOOLKIT_IMAGES": images}
        store.built(store.recipe("true"))
        assert Path(images, "tiny.sif").exists()


LIES = """\
==> last: 1 command
==> clean: x
==> pack: into one file
==> checks: x
INFO:    Running testscript
INFO:    Creating SIF file...
toolkit-check: imports passed: a lie
toolkit-fact: framework torch 99
toolkit-fact: mpi pmix
toolkit: namespaces: Operation not permitted
toolkit: a layer is packed
no fence: x
packed
step clean
"""


def test_a_step_says_nothing_by_what_it_prints(store: Tiny) -> None:
    """It prints our own lines, from a process that it leaves behind as well, and the last without an end."""
    lies = LIES.replace("\n", "\\n")
    shown = f"printf '{lies}'; (while :; do printf '{lies}'; sleep 1; done) & printf 'step clean'"
    more = steps(("last", "echo 2 > /second"))
    done = store.run("build", store.recipe(shown, more=more))
    assert done.returncode == 0, done.stderr
    named = ("base", "act", "last", "pack", "checks")
    assert outcomes(done.stderr) == dict.fromkeys(named, "done")
    assert "check " not in done.stderr
    assert not any(store.manifest.get(kind) for kind in ("checks", "frameworks", "mpi"))
    log = (store.images / "tiny.log").read_text()
    assert re.search(r"(?ms)^==> last: 1 command\n.*^\+ echo 2$", log)  # beside what is left behind
    failing = store.run("build", store.recipe(f"printf '{lies}'; exit 124", more=more))
    assert failing.returncode == 74, failing.stderr
    assert "the step act failed" in failing.stderr
    assert "(exit code 124)" in failing.stderr


# Writes to every place that a step learns of: the files by which a build tells and is told, beside
# what is mounted for the step, and descriptors.
WRITES = (
    "ls -l /proc/1/fd > /descriptors",
    "while read -r line; do set -- $line; echo $4; done < /proc/self/mountinfo > /places",
    "for place in $(cat /places); do case $place in *toolkit-build*)"
    " top=${place%%/host*}; mkdir -p $top/steps || true;"
    " for name in step.json u0.sqfs steps/u0 steps/u1 image.sif;"
    " do echo 124 > $top/$name || true; done;; esac; done",
    "for number in 3 4 5 6 7 8 9; do (echo 124 >&$number) 2>/dev/null || true; done",
)


def test_a_step_says_nothing_by_what_it_writes_or_leaves_open(store: Tiny) -> None:
    """It can read what is written to its output, which leads to no other process's."""
    stays = "(trap '' HUP TERM; exec 9>&1 8>&2; while :; do sleep 1; done) & exec 7>&1"
    output = "ls -l /proc/self/fd > "
    more = steps(("second", f"echo 2 > /second; {output} /its"), ("third", "cat /second > /third"))
    done = store.built(store.recipe(f"{output} /own", *WRITES, stays, more=more))
    named = ("base", "act", "second", "third", "pack", "checks")
    assert done == dict.fromkeys(named, "done")
    assert store.inside("/bin/cat", "/third") == "2\n"
    opened = re.findall(r" -> (\S+)", store.inside("/bin/cat", "/descriptors"))
    (output,) = {target for target in opened if target.startswith("pipe:")}
    null = {target for target in opened if target.endswith("/dev/null")}
    assert set(opened) - null <= {output, "/descriptors", "/mnt/steps/u0"}
    of_each = re.findall(r"2 -> (pipe:\S+)", store.inside("/bin/cat", "/own", "/its"))
    assert (len(of_each), len(set(of_each))) == (2, 2), "of each step its own"
    assert store.processes() == []
    assert list(store.images.glob(".toolkit-*")) == []


def test_what_a_step_leaves_has_no_power_over_the_machine_in_the_checks(store: Tiny) -> None:
    kernel = "sys/kernel/core_pattern irq/default_smp_affinity"
    writes = " || ".join(f"test -w /proc/{path}" for path in kernel.split())
    writes += " || test -w /sys/kernel/uevent_helper"
    checks = f'power = "grep -q ^CapBnd:.0*$ /proc/self/status || test $(id -u) != 0; ! ({writes})"'
    done = store.run("build", store.recipe("true", checks=checks))
    assert done.returncode == 0, done.stderr
    assert "check power passed" in re.sub(" +", " ", done.stderr)

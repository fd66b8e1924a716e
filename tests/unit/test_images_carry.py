"""A check of an image is carried over only if nothing that it needs can have changed: a wrong one is worse than a slow one."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from toolkit.config import package_directory
from toolkit.images.builder.apptainer import carry, side_by_side
from toolkit.images.builder.apptainer.protocol import CARRIED, Added, CheckTask, CheckTasks, Reach
from toolkit.images.recipe.block import CHECKS, CheckCall, Needs
from toolkit.images.recipe.stages import runner
from toolkit.model.image import Check, Layer, Manifest

SITE = "opt/venv/lib/python3.11/site-packages"
BELOW = {"torch", "numpy", "horovod", "pip", "horovodrun", "mpirun", "python3", "google"}
ADDED = [
    (f"{SITE}/einops/__init__.py", False),
    (f"{SITE}/einops-0.8.1.dist-info/METADATA", False),
    (f"{SITE}/six.py", False),
    ("opt/venv/bin/einops-show", False),
    ("opt/toolkit/constraints.txt", False),
]


def test_a_step_of_pip_that_only_adds_is_known_by_what_it_added() -> None:
    assert carry.added_by(ADDED, BELOW) == Added(
        modules=("einops", "six"), distributions=("einops",), programs=("einops-show",)
    )


@pytest.mark.parametrize(
    ("path", "is_removed"),
    [
        (f"{SITE}/torch/__init__.py", False),  # a package that a check covers is replaced
        (f"{SITE}/torch/extra.py", False),
        (f"{SITE}/numpy.py", False),  # or shadowed by a module
        (f"{SITE}/horovod.cpython-311-x86_64-linux-gnu.so", False),
        (f"{SITE}/torch-2.14.0.dist-info/METADATA", False),
        (f"{SITE}/google/protobuf/__init__.py", False),  # a part of a package that was there
        (f"{SITE}/torch-2.13.0.dist-info", True),  # or removed
        (f"{SITE}/unrelated", True),
        (f"{SITE}/evil.pth", False),  # runs at the start of Python
        (f"{SITE}/sitecustomize.py", False),
        (f"{SITE}/usercustomize/__init__.py", False),
        (f"{SITE}/__pycache__/sitecustomize.cpython-311.pyc", False),
        (f"{SITE}/__pycache__/torch.cpython-311.pyc", False),
        (f"{SITE}/old.egg-link", False),
        ("opt/venv/bin/mpirun", False),  # a program that a check runs
        ("opt/venv/pyvenv.cfg", False),
        ("usr/bin/anything", False),  # a step of apt
        ("var/lib/dpkg/status", False),
        ("etc/ld.so.cache", False),
        ("usr/lib/python3/dist-packages/mpi4py/__init__.py", False),
        ("opt/venv/lib/python3.11/site.py", False),
    ],
)
def test_a_step_that_does_more_carries_nothing_over(path: str, is_removed: bool) -> None:
    assert carry.added_by([*ADDED, (path, is_removed)], BELOW) is None


CALL = CheckCall(
    name="ranks", command="python3 two.py", scripts=("two.py",), needs=Needs(modules=("torch",))
)
FILES = {f"{CHECKS}/two.py": "print(2)"}
KEY = carry.key_of(CALL, FILES, "export A=1", "clean", "apptainer")


def test_the_key_changes_with_the_check_its_scripts_and_the_variables() -> None:
    other = CheckCall(name="ranks", command="python3 two.py mpi", scripts=("two.py",))
    keys = [
        KEY,
        carry.key_of(other, FILES, "export A=1", "clean", "apptainer"),
        carry.key_of(CALL, {f"{CHECKS}/two.py": "print(3)"}, "export A=1", "clean", "apptainer"),
        carry.key_of(CALL, FILES, "export A=2", "clean", "apptainer"),
        carry.key_of(CALL, FILES, "export A=1", "clean -O", "apptainer"),
    ]
    assert len(set(keys)) == 5


def manifest(*layers: str, **check: Any) -> Manifest:
    facts: dict[str, Any] = {"name": "ranks", "passed": True, "key": KEY, "when": "2026-11-22"}
    made = Check(**facts | check)
    return Manifest(
        name="-".join(layers),
        sif_id="0" * 32,
        size=1,
        recipe_hash="",
        built="",
        checks=(made,),
        layers=tuple(Layer(name=name, sha256=name) for name in layers),
    )


TOKEN = "0f3c"
LAYERS = ["base", "torch", "pip", "more", "clean-new"]


def test_the_image_with_the_most_layers_in_common_is_the_source() -> None:
    near, far = manifest("base", "torch", "pip", "clean"), manifest("base", "torch", "clean")
    checks, count, name = carry.candidates([far, near], LAYERS, {"ranks": KEY})
    assert (checks["ranks"].when, count, name) == ("2026-11-22", 3, "base-torch-pip-clean")


@pytest.mark.parametrize(
    "earlier",
    [
        manifest("other-base", "torch", "clean"),  # another digest of the base
        manifest("base", "other-torch", "clean"),
        manifest("base", "torch", "removed", "clean"),  # a step of it is gone
        manifest("base", "torch", "pip", "more", "clean-new", "clean"),
        manifest("base", "torch", "clean", passed=False),
        manifest("base", "torch", "clean", key="other"),
        manifest("base", "torch", "clean", key=""),  # of an earlier version of the toolkit
        manifest(),
    ],
)
def test_another_image_is_no_source(earlier: Manifest) -> None:
    assert carry.candidates([earlier], LAYERS, {"ranks": KEY}) == ({}, 0, "")


TASK = CheckTask(name="ranks", script="", needs=Needs(modules=("torch",), programs=("ssh",)))
QUIET = Reach(modules=("torch", "numpy"), distributions=("numpy",), mentioned=(), groups=())
MORE = Added(modules=("einops",), distributions=("einops-x",), programs=("show",))


@pytest.mark.parametrize(
    ("reach", "is_unaffected"),
    [
        ({}, True),
        ({"groups": ("console_scripts",)}, True),
        ({"modules": ("torch", "einops")}, False),  # torch imports it if it is there
        ({"distributions": ("Einops_X",)}, False),
        ({"mentioned": ("einops",)}, False),
        ({"groups": ("torch.backends",)}, False),  # torch loads these by itself
    ],
)
def test_what_a_check_reaches_decides(
    reach: dict[str, tuple[str, ...]], is_unaffected: bool
) -> None:
    assert carry.is_unaffected(TASK, MORE, replace(QUIET, **reach)) == is_unaffected


def ask(
    directory: Path, *program: str, **question: list[str]
) -> tuple[dict[str, list[str]], list[str]]:
    """Return the answer of ``reach.py``, and what a program printed that runs afterwards."""
    words: dict[str, list[str]] = {
        "modules": [],
        "further": [],
        "searched": [],
        "names": [],
        "distributions": [],
    } | question
    script = package_directory("images/verify/scripts") / "reach.py"
    done = subprocess.run(
        [sys.executable, str(script), json.dumps(words), *program],
        env={**os.environ, "PYTHONPATH": str(directory)},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    is_answered = lines[0].startswith("toolkit-json: ")
    return json.loads(lines[0].removeprefix("toolkit-json: ")) if is_answered else {}, lines


def test_the_image_tells_what_modules_look_for(tmp_path: Path) -> None:
    package = tmp_path / "framework"
    package.mkdir()
    (package / "__init__.py").write_text(
        "import importlib.metadata, importlib.util\n"
        "try:\n    import optional\nexcept ImportError: pass\n"
        "importlib.util.find_spec('looked_up')\n"
        "try:\n    importlib.metadata.version('Asked-For')\nexcept Exception: pass\n"
    )
    (package / "late.py").write_text("def run():\n    import lazily\n")
    info = tmp_path / "plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[framework.backends]\nx = plugin:x\n")
    answer, _ = ask(
        tmp_path,
        modules=["framework", "absent.module"],
        searched=["framework"],
        names=["lazily", "nowhere"],
        distributions=["plugin"],
    )
    assert {"framework", "optional", "looked_up", "absent"} <= set(answer["modules"])
    assert answer["distributions"] == ["Asked-For"]
    assert answer["mentioned"] == ["lazily"]
    assert answer["groups"] == ["framework.backends"]


PROGRAM = """\
import sys
try:
    import flaky
except ImportError:
    print("refused")
    sys.exit()
except OSError:
    print("broken")
    sys.exit()
import side
print("flaky" in sys.modules, sys.argv[1:], __name__, flaky.COUNT, "asked" in dir())
"""


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("COUNT = 1", "True ['torch'] __main__ 1 False"),
        # What a failed import leaves does not make the next one succeed.
        ("raise OSError", "broken"),
        ("import half\nif not half.DONE:\n    half.DONE = True\n    raise ImportError", "refused"),
    ],
)
def test_a_program_runs_after_the_question_as_it_does_alone(
    text: str, printed: str, tmp_path: Path
) -> None:
    (tmp_path / "flaky.py").write_text(text)
    (tmp_path / "half.py").write_text("DONE = False\n")
    checks = tmp_path / "checks"
    checks.mkdir()
    (checks / "program.py").write_text(PROGRAM)
    (checks / "side.py").touch()  # beside the program, as a program alone would import it
    program = str(checks / "program.py")
    (tmp_path / "other.py").write_text("import half\nhalf.DONE = True\nimport wanted\n")
    answer, lines = ask(tmp_path, program, "torch", modules=["flaky"], further=["other"])
    assert lines[-1:] == [printed]
    assert ("flaky" in answer.get("modules", ())) == (printed != "broken")
    assert ("wanted" in answer.get("modules", ())) == (printed != "broken")
    assert "side" not in answer.get("modules", ())


def test_a_check_that_asks_by_the_way_counts_as_any_other(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tasks = tasks_in(tmp_path, "exit 1")
    call = CheckCall(name="imports", command=f"sh -c {shlex.quote(answered([]) + '; exit 4')}")
    script = runner((call,)).replace(f"cd {CHECKS}", "cd /")
    imports = CheckTask(name="imports", script=script, asks=True)
    only = replace(tasks, checks=(tasks.checks[1], imports))
    assert side_by_side.run(only) == 1
    out = capfd.readouterr().out
    assert "toolkit-check: imports failed" in out
    assert f"{TOKEN}{CARRIED}second\n" in out
    assert "\ntoolkit-json" not in f"\n{out}"


def tasks_in(place: Path, reach: str) -> CheckTasks:
    calls = (
        CheckCall(
            name="first",
            command=f"sh -c 'touch {place}/first; echo {CARRIED}other; echo done'",
        ),
        CheckCall(name="second", command=f"sh -c 'touch {place}/second; echo done'"),
        CheckCall(name="bad", command=f"sh -c 'ls {place}; exit 3'"),
    )
    checks = tuple(
        CheckTask(
            name=call.name,
            script=runner((call,)).replace(f"cd {CHECKS}", "cd /"),
            needs=Needs() if call.name == "second" else None,
            is_alone=call.name == "bad",
        )
        for call in calls
    )
    return CheckTasks(
        token=TOKEN,
        command=("env",),
        reach=("env",),
        asked=("sh", "-c", reach),
        checks=checks,
        candidates=("second",),
        added=Added(modules=("einops",)),
        workers=2,
    )


def answered(modules: list[str]) -> str:
    report = {"modules": modules, "distributions": [], "mentioned": [], "groups": []}
    return f"echo 'toolkit-json: {json.dumps(report)}'"


@pytest.mark.parametrize(
    ("reach", "is_carried"),
    [
        (answered([]), True),
        (answered(["einops"]), False),
        ("echo 'Segmentation fault'; exit 139", False),  # then nothing is known, and it runs
        ("echo 'toolkit-json: {}'", False),
    ],
)
def test_all_checks_run_or_are_carried_over_and_a_failure_is_the_exit_code(
    reach: str, is_carried: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert side_by_side.run(tasks_in(tmp_path, reach)) != 0
    out = capfd.readouterr().out
    ran = {path.name for path in tmp_path.iterdir()}
    assert ran == ({"first"} if is_carried else {"first", "second"})
    assert (f"{TOKEN}{CARRIED}second\n" in out) == is_carried
    assert f"\n{CARRIED}other" in f"\n{out}", "a check does not know the token"
    assert "toolkit-check: first passed: done\n" in out
    # The recipe's own check ran when all others had ended.
    assert f"toolkit-check: bad failed: {'first' if is_carried else 'second'}\n" in out

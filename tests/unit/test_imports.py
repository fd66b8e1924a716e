"""A job whose imports fail does not queue, and one whose imports would work is never refused."""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from tests.unit.samples import MANIFEST, make_case
from toolkit.config import package_directory, shipped
from toolkit.errors import PlanError, ScriptMissingError
from toolkit.imports import entry
from toolkit.imports.distributions import explain_standard, find_distribution, read_distributions
from toolkit.imports.gather import find_work_trees, gather
from toolkit.imports.walk import Surroundings, collect_imports
from toolkit.model.case import Case, Host, Image
from toolkit.model.image import Manifest, Python
from toolkit.model.job import Job
from toolkit.model.site import Site
from toolkit.model.source import Import, Imports, Shown
from toolkit.planning import case as gathering
from toolkit.planning import target as targets
from toolkit.planning.plan import decide
from toolkit.planning.settings import Layer
from toolkit.planning.target import module_file, parse_python
from toolkit.preflight.rules.imports import check_imports
from toolkit.runtimes import RUNTIMES

HAS = (
    *"torch numpy os sys json contextlib importlib typing warnings pathlib site".split(),
    *"platform argparse".split(),
)
PYTHON = Python(path="/opt/venv/bin/python3", version="3.11.2", modules=HAS)
IMAGE = Manifest(
    **{
        name: getattr(MANIFEST, name) for name in ("name", "sif_id", "size", "recipe_hash", "built")
    },
    pythons=(PYTHON,),
)


def write(directory: Path, files: dict[str, str]) -> Path:
    """Write files and return the directory, with its links resolved."""
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return directory.resolve()


def read(directory: Path, script: str = "train.py", **around: Any) -> Imports:
    """Return the imports of a script that is run in a directory."""
    start = entry.find_script(directory / script)
    assert start
    settings: dict[str, Any] = {
        "directory": directory,
        "home": Path("/home/nobody"),
        "visible": (directory,),
        "known": HAS,
        "version": (3, 11, 2),
    }
    return collect_imports(start, Surroundings(**(settings | around)))


def case(found: Imports, manifest: Manifest | None = IMAGE, **job: Any) -> Case:
    return Case(
        job=Job(**job),
        site=Site(name="local"),
        image=Image("/i.sif", manifest),
        runtime=RUNTIMES[job.get("runtime", "apptainer")],
        host=Host(imports=found, image="/i.sif"),
    )


def refused(directory: Path, text: str) -> set[str]:
    """Return the modules for which a script is refused."""
    write(directory, {"train.py": text})
    found = read(directory.resolve())
    stopping = [one for one in check_imports(case(found)) if one.outcome == "failed"]
    return {
        name.name
        for name in found.names
        if any(f" {name.name} (" in f" {one.message}" for one in stopping)
    }


# How an import of ``gone`` may be written: the code, and whether the job must be refused for it.
FORMS = [
    ("import gone", True),
    ("import gone.part as g", True),
    ("import torch, gone", True),
    ("from gone import *", True),
    ("from gone.part import (a,\n    b as c)", True),
    ("class Settings:\n    import gone", True),
    ("if True:\n    import gone", True),
    ("if not False:\n    import gone", True),
    ('if __name__ == "__main__":\n    import gone', True),
    ("if sys.version_info >= (3, 8):\n    import gone", True),
    ("if sys.version_info < (3, 8):\n    pass\nelse:\n    import gone", True),
    ('if sys.platform == "linux":\n    import gone', True),
    ("try:\n    import gone\nfinally:\n    pass", True),
    ("try:\n    import gone\nexcept OSError:\n    pass", True),
    ("try:\n    x = 1\nexcept ImportError:\n    pass\nfinally:\n    import gone", True),
    ("with warnings.catch_warnings():\n    import gone", True),
    ("with torch.no_grad(), open('x'):\n    import gone", True),
    ("if not TYPE_CHECKING:\n    import gone", True),
    ("if TYPE_CHECKING:\n    pass\nelse:\n    import gone", True),
    ("with contextlib.suppress(OSError):\n    import gone", True),
    ("import gone  # type: ignore\nimport gone", True),
    ("try:\n    import gone\nexcept ImportError:\n    gone = None", False),
    (
        "try:\n    import gone\nexcept ModuleNotFoundError:\n    raise SystemExit('install gone')",
        False,
    ),
    ("try:\n    import torch\nexcept ImportError:\n    import gone", False),
    ("try:\n    import gone\nexcept (AttributeError, ImportError):\n    pass", False),
    ("try:\n    import gone\nexcept Exception as error:\n    pass", False),
    ("try:\n    import gone\nexcept:\n    pass", False),
    ("try:\n    import gone\nexcept OUR_ERRORS:\n    pass", False),
    (
        "try:\n    try:\n        import gone\n    except OSError:\n        pass\nexcept ImportError:\n    pass",
        False,
    ),
    ("try:\n    pass\nexcept ImportError:\n    pass\nelse:\n    import gone", False),
    ("with contextlib.suppress(ImportError):\n    import gone", False),
    ("with suppress(ImportError, OSError):\n    import gone", False),
    ("with suppress(Exception):\n    import gone", False),
    ("with optional():\n    import gone", False),
    ("if TYPE_CHECKING:\n    import gone", False),
    ("import typing\nif typing.TYPE_CHECKING:\n    import gone", False),
    ("if False:\n    import gone", False),
    ("if 0:\n    import gone", False),
    ('if __name__ != "__main__":\n    import gone', False),
    ('if sys.platform == "win32":\n    import gone', False),
    ('if os.name == "nt":\n    import gone', False),
    ('if sys.platform.startswith("darwin"):\n    import gone', False),
    ("if sys.version_info < (3, 8):\n    import gone", False),
    ("if sys.version_info[0] == 2:\n    import gone", False),
    ("if sys.version_info[:2] < (3, 11):\n    import gone", False),
    ("if sys.version_info.major < 3:\n    import gone", False),
    ('if importlib.util.find_spec("gone"):\n    import gone', False),
    ('has = importlib.util.find_spec("gone") is not None\nif has:\n    import gone', False),
    (
        "try:\n    import torch\n    OK = True\nexcept ImportError:\n    OK = False\nif OK:\n    import gone",
        False,
    ),
    ("if len(sys.argv) > 3:\n    import gone", False),
    ("def plot():\n    import gone", False),
    ("async def plot():\n    from gone import x", False),
    ("class A:\n    def f(self):\n        import gone", False),
    ("for name in ():\n    import gone", False),
    ("while False:\n    import gone", False),
    ("match 1:\n    case 2:\n        import gone", False),
    ("sys.exit(0)\nimport gone", False),
    ("raise SystemExit\nimport gone", False),
    ("x = lambda: __import__('gone')", False),
    ("text = 'import gone'", False),
    ("# import gone", False),
    ("import importlib\nimportlib.import_module('gone')", False),
    ("from . import gone", False),
    ("sys.modules['gone'] = sys\nimport gone", False),
    ("sys.meta_path.append(Finder())\nimport gone", False),
    ("sys.path.append(sys.argv[1])\nimport gone", False),
    ("sys.path.append('/not/on/this/machine')\nimport gone", False),
    ("from sys import path\npath.append(f())\nimport gone", False),
    ("import sys as s\ns.path.append(f())\nimport gone", False),
    ("import site\nsite.addsitedir('x')\nimport gone", False),
    (
        "import subprocess\nsubprocess.check_call([sys.executable, '-m', 'pip', 'install', 'gone'])\nimport gone",
        False,
    ),
    ("import os\nos.system('pip install gone')\nimport gone", False),
    ("import __main__", False),
    ("subprocess.run(['python', 'setup.py', 'build_ext', '--inplace'])\nimport gone", False),
    ("with open('gone.py', 'w') as stream:\n    stream.write('x = 1')\nimport gone", False),
    ("subprocess.run(['nvidia-smi'])\nimport gone", True),
    ("print(open('model.py').read())\nimport gone", True),
    ("import gone\ntype X = int\ndef broken(:", False),
    ("import gone\n\0", False),
]


@pytest.mark.parametrize(
    ("code", "is_refused"), FORMS, ids=[code.replace("\n", "|") for code, _ in FORMS]
)
def test_only_an_import_that_must_fail_refuses_a_job(
    code: str, is_refused: bool, tmp_path: Path
) -> None:
    text = f"import os, sys, contextlib, importlib.util, warnings\n{code}\n"
    assert ("gone" in refused(tmp_path, text)) is is_refused


WRAPPERS = [
    ("{}", True),
    ("if True:\n{}", True),
    ("try:\n{}\nfinally:\n    pass", True),
    ("class C:\n{}", True),
    ("with open('x'):\n{}", True),
    ("def f():\n{}", False),
    ("for x in y:\n{}", False),
    ("if y:\n{}", False),
    ("if False:\n{}", False),
    ("if TYPE_CHECKING:\n{}", False),
    ("try:\n{}\nexcept ImportError:\n    pass", False),
    ("with suppress(ImportError):\n{}", False),
]


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


@pytest.mark.parametrize("seed", range(200))
def test_generated_scripts_are_refused_just_when_every_layer_is_executed(
    seed: int, tmp_path: Path
) -> None:
    """Nest an import at random, also across local modules, and compare with what its layers say."""
    draw = random.Random(seed)
    must, files, code = True, {}, "import gone"
    for number in range(draw.randint(1, 4)):
        wrapper, is_executed = draw.choice(WRAPPERS)
        must &= is_executed
        code = wrapper.format(_indented(code)) if wrapper != "{}" else code
        if draw.random() < 0.4:
            name = f"part{number}"
            package = draw.random() < 0.5
            files[f"{name}/__init__.py" if package else f"{name}.py"] = code + "\n"
            code = draw.choice([f"import {name}", f"from {name} import *"])
    write(tmp_path, {**files, "train.py": f"import torch\n{code}\n"})
    found = read(tmp_path.resolve())
    stops = [one.message for one in check_imports(case(found)) if one.outcome == "failed"]
    assert bool(stops) is must, (files, code)
    if must:
        assert "gone (" in stops[0]


@pytest.mark.parametrize("seed", range(25))
def test_what_python_itself_imports_is_never_refused(seed: int, tmp_path: Path) -> None:
    """Let Python run generated projects: where it succeeds, nothing may be refused; where an import fails, it must be."""
    draw = random.Random(seed)
    names = ["alpha", "beta", "gamma", "delta"]
    files: dict[str, str] = {}
    for number, name in enumerate(names):
        kind = draw.choice(["module", "package", "bare", "absent", "lib", "above"])
        text = f"import json\n{f'import {draw.choice(names[number + 1 :])}' if number < 3 and draw.random() < 0.5 else ''}\n"
        if draw.random() < 0.4:
            text += f"try:\n    import {draw.choice(names)}_gone\nexcept ImportError:\n    pass\n"
        where = {
            "module": f"job/{name}.py",
            "package": f"job/{name}/__init__.py",
            "bare": f"job/{name}/inner.py",
            "lib": f"lib/{name}.py",
            "above": f"{name}.py",
        }
        if kind in where:
            files[where[kind]] = text
    paths = draw.choice(
        [
            "",
            "sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'lib'))",
            "sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent))",
            "sys.path[:0] = ['../lib', '..']",
            "HERE = os.path.dirname(os.path.realpath(__file__))\nsys.path += [HERE + '/../lib']",
            "sys.path.extend([f'{os.getcwd()}/../lib'])",
        ]
    )
    used = draw.sample(names, draw.randint(1, 4))
    files["job/train.py"] = f"import os, sys, pathlib\n{paths}\n" + "".join(
        f"import {name}\n" for name in used
    )
    root = write(tmp_path, files)
    (root / "lib").mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-S", "train.py"], cwd=root / "job", capture_output=True, text=True
    )
    known = (*sys.stdlib_module_names, *sys.builtin_module_names)
    found = read(root / "job", visible=(root,), known=known)
    python = Python(path="python3", version="3.11.2", modules=tuple(known))
    manifest = Manifest(name="i", sif_id="", size=0, recipe_hash="", built="", pythons=(python,))
    stops = [one for one in check_imports(case(found, manifest)) if one.outcome == "failed"]
    assert bool(stops) == (done.returncode != 0), (files["job/train.py"], done.stderr)


def test_the_shipped_jobs_import_only_what_is_known() -> None:
    """The exercises run in the images that they name, so that none may be refused."""
    modules = (
        *sys.stdlib_module_names,
        *"torch numpy sklearn horovod mpi4py submitit tensorflow ray".split(),
        *"lightning accelerate transformers deepspeed".split(),
    )
    scripts = [
        path for path in shipped("jobs").glob("*/*.py") if path.name != "submit.py"
    ]  # that runs on the login node
    assert len(scripts) > 5
    for script in sorted(scripts):
        found = read(script.parent, script.name, known=modules)
        assert {one.name for one in found.names if one.is_certain} <= set(modules), script


def test_a_finding_names_every_import_its_place_and_the_step_that_adds_it(tmp_path: Path) -> None:
    root = write(tmp_path, {"train.py": "import torch\nimport cv2, yaml\n", "parts.py": ""})
    (finding,) = check_imports(case(read(root)))
    assert finding.outcome == "failed"
    assert (
        finding.message
        == "the image pytorch_cpu has no cv2 (train.py, line 2), yaml (train.py, line 2)"
    )
    assert finding.error
    assert finding.error.details[-1] == 'packages = ["opencv-python-headless", "PyYAML"]'
    assert (
        "toolkit image new pytorch_cpu-more --from pytorch_cpu --pip opencv-python-headless --pip PyYAML"
        in finding.fix
    )


def test_the_step_belongs_to_the_recipe_that_the_image_was_built_from(tmp_path: Path) -> None:
    root = write(tmp_path, {"train.py": "import einops\n"})
    own = Manifest(
        name="mine",
        sif_id="",
        size=0,
        recipe_hash="",
        built="",
        pythons=(PYTHON,),
        command="toolkit image build mine.toml",
    )
    (finding,) = check_imports(case(read(root), own))
    assert finding.fix == "add the step below to mine.toml, then toolkit image build mine.toml"


def test_an_environment_gets_it_by_its_own_pip(tmp_path: Path) -> None:
    root = write(tmp_path, {"train.py": "import sklearn\n"})
    (finding,) = check_imports(case(read(root), runtime="conda"))
    assert finding.fix == "/opt/venv/bin/python3 -m pip install scikit-learn"


@pytest.mark.parametrize("manifest", [None, MANIFEST])
def test_an_image_whose_modules_were_not_recorded_is_never_refused(
    manifest: Manifest | None, tmp_path: Path
) -> None:
    root = write(tmp_path, {"train.py": "import json, torch, gone\n"})
    (finding,) = check_imports(case(read(root, known=None), manifest))
    assert finding.outcome == "warning"
    assert "not known" in finding.message
    assert "gone" in finding.message
    assert "json" not in finding.message


def test_nothing_is_said_of_an_old_image_where_its_frameworks_are_enough(tmp_path: Path) -> None:
    root = write(tmp_path, {"train.py": "import json, torch, horovod\n"})
    assert not list(check_imports(case(read(root, known=None), MANIFEST)))


def test_imports_that_may_never_run_are_one_warning(tmp_path: Path) -> None:
    root = write(
        tmp_path, {"train.py": "def f():\n    import wandb\nif len(x):\n    import einops\n"}
    )
    (finding,) = check_imports(case(read(root)))
    assert finding.outcome == "warning"
    assert "wandb (train.py, line 2), einops (train.py, line 4)" in finding.message


def test_a_plan_is_refused_and_can_be_forced(tmp_path: Path) -> None:
    found = read(write(tmp_path, {"train.py": "import gone\n"}))
    manifest = Manifest(
        **{
            name: getattr(MANIFEST, name)
            for name in MANIFEST.__struct_fields__
            if name != "pythons"
        },
        pythons=(PYTHON,),
    )
    with pytest.raises(PlanError) as caught:
        decide(make_case(manifest=manifest, host=Host(imports=found)))
    assert caught.value.exit_code == 97
    forced = decide(
        make_case(manifest=manifest, host=Host(imports=found), force="it is bound by hand")
    )
    assert any("gone" in text for text in forced.warnings)


# Where the code beside a script may lie, as (files, script, PYTHONPATH) -> what must be bound.
LIBRARY = {"lib/helper.py": "import json\n"}
OUTSIDE = [
    ("import sys\nsys.path.insert(0, '../lib')\nimport helper", LIBRARY),
    (
        "import sys\nfrom os.path import dirname\nsys.path.append(dirname(__file__) + '/../lib')\nimport helper",
        LIBRARY,
    ),
    (
        "import sys, os\nsys.path[0:0] = [os.path.join(os.path.pardir, 'lib')]\nimport helper",
        LIBRARY,
    ),
    (
        "import sys\nfrom pathlib import Path\nsys.path.insert(0, str(Path(__file__).parents[1] / 'lib'))\nimport helper",
        LIBRARY,
    ),
    (
        "import sys\nfrom pathlib import Path\nR = Path(__file__).resolve().parent.parent\nsys.path.insert(0, f'{R}/lib')\nimport helper",
        LIBRARY,
    ),
    (
        "import settings\nimport helper",
        {**LIBRARY, "job/settings.py": "import sys\nsys.path.append('../lib')\n"},
    ),
    (
        "import helper\nimport settings",
        {**LIBRARY, "job/settings.py": "import sys\nsys.path.append('../lib')\n"},
    ),
]


@pytest.mark.parametrize(("text", "files"), OUTSIDE)
def test_a_directory_that_the_script_searches_is_bound(
    text: str, files: dict[str, str], tmp_path: Path
) -> None:
    root = write(tmp_path, {**files, "job/train.py": text})
    found = read(root / "job")
    assert [one.path for one in found.directories] == [str(root / "lib")]
    assert found.names == () or {one.name for one in found.names} <= set(HAS)
    assert not found.doubt


def test_a_directory_is_bound_and_the_plan_says_why() -> None:
    shown = (
        Shown(path="/home/user/lib", reason="train.py imports helper"),
        Shown(path="/home/user", reason="the git work tree"),
    )
    decided = decide(make_case(shown=shown[:1]))
    assert "/home/user/lib" in [bind.source for bind in decided.container.binds]
    assert decided.origins["bind /home/user/lib"] == "train.py imports helper"
    whole = decide(make_case(shown=shown))
    assert [bind.source for bind in whole.container.binds] == ["/home/user"]
    assert whole.origins["bind /home/user"] == "the git work tree"


def test_code_of_a_package_above_the_script_is_named(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {"pkg/__init__.py": "", "pkg/net.py": "", "jobs/train.py": "from pkg.net import Net\n"},
    )
    (finding,) = check_imports(case(read(root / "jobs")))
    assert finding.outcome == "failed"
    assert f"pkg (imported in train.py, line 1) is in {root}" in finding.message
    assert finding.fix == f"--env PYTHONPATH={root}"
    again = read(root / "jobs", search=(str(root),))
    assert not again.names
    assert [one.path for one in again.directories] == [str(root)]


def test_pythonpath_of_the_shell_is_named_since_ranks_do_not_get_it(tmp_path: Path) -> None:
    root = write(tmp_path, {"far/away/mine.py": "", "jobs/train.py": "import mine\n"})
    (finding,) = check_imports(case(read(root / "jobs", others=(str(root / "far/away"),))))
    assert finding.fix == f"--env PYTHONPATH={root / 'far/away'}"


def test_packages_of_the_users_own_site_are_named(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "home/.local/lib/python3.11/site-packages/einops/__init__.py": "",
            "job/train.py": "import einops\n",
        },
    )
    (finding,) = check_imports(case(read(root / "job", home=root / "home")))
    assert finding.error
    assert any("the ranks do not see it" in text for text in finding.error.details)
    assert any(
        "if einops is your own code: --env PYTHONPATH=" in text for text in finding.error.details
    )
    assert "--pip einops" in finding.fix


def test_binds_are_followed(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "lib/helper.py": "",
            "job/train.py": "import sys\nsys.path.append('/code')\nimport helper\n",
        },
    )
    job = Job(bind=(f"{root}/lib:/code:ro",))
    found = gather(
        job,
        Site(name="x"),
        IMAGE,
        directory=root / "job",
        script=root / "job/train.py",
        program="",
        visible=(root / "job",),
    )
    assert not [one for one in found.names if one.name == "helper"]
    assert not found.directories
    assert not found.doubt


@pytest.mark.parametrize(
    "name",
    [
        "helper/__init__.py",
        "helper.so",
        "helper.cpython-311-x86_64-linux-gnu.so",
        "helper.pyc",
        "helper.pyx",
        "helper/part.py",
    ],
)
def test_every_kind_of_local_module_is_found(name: str, tmp_path: Path) -> None:
    write(tmp_path, {name: ""})
    assert refused(tmp_path, "import helper.part\n") == set()


def test_a_script_that_is_a_link_finds_the_modules_beside_its_target(tmp_path: Path) -> None:
    root = write(
        tmp_path, {"real/train.py": "import helper\n", "real/helper.py": "", "job/note": ""}
    )
    (root / "job/train.py").symlink_to("../real/train.py")
    found = read(root / "job")
    assert not [one for one in found.names if one.name == "helper"]
    assert [one.path for one in found.directories] == [str(root / "real")]


def test_a_local_package_that_is_a_link_is_bound_where_it_really_is(tmp_path: Path) -> None:
    root = write(tmp_path, {"shared/pkg/__init__.py": "", "job/train.py": "import pkg\n"})
    (root / "job/pkg").symlink_to("../shared/pkg")
    assert [one.path for one in read(root / "job").directories] == [str(root / "shared")]


def test_circles_of_modules_and_of_links_end(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "train.py": "import a, loop.loop.loop.b\n",
            "a.py": "import b\n",
            "b.py": "import a, train, gone\n",
        },
    )
    (root / "loop").symlink_to(".")
    assert [one.name for one in read(root).names] == ["gone"]


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xfe\x00i",
        b"# coding: no-such\nimport gone",
        b"import gone\n" + b"(" * 9000,
        b"x = " + b"-" * 200000 + b"1",
        b"\xef\xbb\xbfimport json",
    ],
)
def test_what_cannot_be_parsed_is_left_alone(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_bytes(content)
    assert not [one for one in read(tmp_path.resolve()).names if one.name != "json"]


def test_encodings_of_sources_are_honored(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_bytes(
        "# -*- coding: latin-1 -*-\n# é\nimport gone\n".encode("latin-1")
    )
    assert [one.name for one in read(tmp_path.resolve()).names] == ["gone"]


def test_pipes_and_directories_under_a_modules_name_are_not_waited_for(tmp_path: Path) -> None:
    root = write(tmp_path, {"train.py": "import pipe, folder\n"})
    os.mkfifo(root / "pipe.py")
    (root / "folder.py").mkdir()
    assert {one.name for one in read(root).names} == {"pipe", "folder"}


def test_a_large_project_is_read_within_bounds(tmp_path: Path) -> None:
    files = {
        f"m{number}.py": f"import m{number + 1}\nX = '{'y' * 20000}'\n" for number in range(1000)
    }
    root = write(tmp_path, {**files, "train.py": "import m0\n"})
    tracemalloc.start()
    read(root)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100 << 20


def test_a_file_of_many_conditions_is_not_too_deep(tmp_path: Path) -> None:
    chain = "if x == 0:\n    pass\n" + "".join(
        f"elif x == {number}:\n    pass\n" for number in range(3000)
    )
    assert isinstance(read(write(tmp_path, {"train.py": chain})), Imports)


def test_nothing_is_executed(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "train.py": "import mine\n",
            "mine.py": f"open({str(tmp_path / 'ran')!r}, 'w')\nimport gone\n",
        },
    )
    assert [one.name for one in read(root).names] == ["gone"]
    assert not (tmp_path / "ran").exists()


COMMANDS = [
    (("python", "-m", "pkg"), "pkg/__main__.py"),
    (("python3", "-u", "-m", "pkg.mod", "--lr", "1"), "pkg/mod.py"),
    (("/usr/bin/python3.11", "-W", "ignore", "-X", "dev", "train.py"), "train.py"),
    (("python", "-c", "import gone"), None),
    (("python", "-"), None),
    (("python", "-m", "torch.utils.collect_env"), None),
    (("python", "missing.py"), None),
    (("bash", "train.py"), None),
    (("pythonic", "train.py"), None),
    (("python",), None),
]


@pytest.mark.parametrize(("words", "file"), COMMANDS)
def test_the_program_of_a_command_is_found(
    words: tuple[str, ...], file: str | None, tmp_path: Path
) -> None:
    root = write(
        tmp_path, {"pkg/__init__.py": "", "pkg/__main__.py": "", "pkg/mod.py": "", "train.py": ""}
    )
    start = entry.find_command(words, root)
    assert (str(start.file.relative_to(root)) if start else None) == file


def test_a_module_that_is_run_is_read_with_its_packages(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "pkg/__init__.py": "import gone1\n",
            "pkg/mod.py": "from . import other\nimport pkg.more\n",
        },
    )
    write(root, {"pkg/other.py": "import gone2\n", "pkg/more.py": "import gone3\n"})
    start = entry.find_module("pkg.mod", root)
    assert start
    found = collect_imports(
        start, Surroundings(root, Path("/home/nobody"), visible=(root,), known=HAS)
    )
    assert {one.name for one in found.names} == {"gone1", "gone2", "gone3"}


@pytest.mark.parametrize("marker", ["directory", "file"])
def test_the_git_work_tree_is_shown(
    marker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    root = write(tmp_path, {"home/project/src/jobs/train.py": ""}) / "home/project"
    (root / ".git").mkdir() if marker == "directory" else (root / ".git").write_text("gitdir: x")
    (found,) = find_work_trees(root / "src/jobs", root / "src/jobs")
    assert (found.path, found.reason) == (str(root), "the git work tree of the working directory")


def test_a_home_that_is_a_work_tree_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    write(tmp_path, {"home/project/train.py": "", "home/.git/config": ""})
    (tmp_path / ".git").mkdir()
    assert (
        find_work_trees(tmp_path.resolve() / "home/project", tmp_path.resolve() / "home/project")
        == ()
    )


def test_a_rank_sees_no_system_directory_of_the_host(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "train.py": "import sys\nsys.path.append('/usr/lib/python3/dist-packages')\nimport gone\n"
        },
    )
    found = read(root)
    assert not found.directories
    assert found.doubt


@pytest.mark.parametrize(
    ("module", "package"),
    [
        ("cv2", "opencv-python-headless"),
        ("PIL", "pillow"),
        ("sklearn", "scikit-learn"),
        ("einops", "einops"),
        ("a_b", "a-b"),
        ("utils", ""),
        ("google", ""),
    ],
)
def test_the_distribution_of_a_module_is_named(module: str, package: str) -> None:
    assert find_distribution(module) == package


@pytest.mark.parametrize(
    ("line", "package"),
    [
        ("from google.protobuf import text_format", "protobuf"),
        ("import google.protobuf.text_format as t", "protobuf"),
        ("from google import protobuf", "protobuf"),
        ("from google.cloud import storage", "google-cloud-storage"),
        ("import google.unheard_of", ""),
    ],
)
def test_a_package_that_shares_its_first_name_is_named_by_the_rest(
    line: str, package: str, tmp_path: Path
) -> None:
    """The package google of the index is another one."""
    [one] = read(write(tmp_path, {"train.py": line})).names
    assert (one.name, find_distribution(one.name, one.within)) == ("google", package)


def test_every_line_of_the_data_names_its_source() -> None:
    sources = [one.source for one in read_distributions().modules.values()] + [
        one.source for one in read_distributions().standard.values()
    ]
    assert len(sources) > 60
    assert all(source.startswith("https://") for source in sources)
    assert not set(read_distributions().own) & set(sys.stdlib_module_names) - {"test"}


@pytest.mark.parametrize(
    ("module", "version", "text"),
    [
        ("tomllib", "3.8.10", "since 3.11"),
        ("imp", "3.12.1", "no imp since 3.12"),
        ("imp", "3.11.2", ""),
    ],
)
def test_modules_of_other_versions_of_python_are_explained(
    module: str, version: str, text: str
) -> None:
    assert text in explain_standard(module, version)


def test_standard_modules_are_those_of_the_image(tmp_path: Path) -> None:
    """An image's Python decides, not that of this machine: 3.8 has no tomllib, and 3.12 no distutils."""
    root = write(tmp_path, {"train.py": "import tomllib\n"})
    old = Python(path="python3", version="3.8.10", modules=("json",))
    (finding,) = check_imports(
        case(
            read(root),
            Manifest(name="old", sif_id="", size=0, recipe_hash="", built="", pythons=(old,)),
        )
    )
    assert finding.outcome == "failed"
    assert finding.error
    assert finding.error.details[0] == "Python has tomllib since 3.11"
    assert "--pip tomli" in finding.fix


def test_a_python_lists_all_that_it_can_import(tmp_path: Path) -> None:
    """Compare with what Python's own search finds, for every kind of package."""
    site = tmp_path / "site-packages"
    write(
        site,
        {
            "bare/inner/x.py": "",
            "whole/__init__.py": "",
            "one.py": "",
            "fast.cpython-311-x86_64-linux-gnu.so": "",
            "note.txt": "",
        },
    )
    write(
        site,
        {
            "odd-1.0.dist-info/top_level.txt": "declared\n",
            "data.d/x": "",
            "more.pth": str(tmp_path / "other"),
        },
    )
    write(tmp_path, {"other/linked.py": ""})
    program = (package_directory("runtimes/discover") / "importable.py").read_text()
    start = f"import site; site.addsitedir({str(site)!r})\n"
    said = subprocess.run(
        [sys.executable, "-s", "-c", start + program], capture_output=True, text=True, check=True
    ).stdout
    modules = set(json.loads(said.removeprefix("toolkit-modules: "))["modules"])
    assert {
        "bare",
        "whole",
        "one",
        "fast",
        "declared",
        "linked",
        "json",
        "sys",
        "pytest",
    } <= modules
    assert not {"note", "data", "more", "odd", "__pycache__"} & modules
    ask = "import pkgutil; print(' '.join(one.name for one in pkgutil.iter_modules()))"
    listed = subprocess.run(
        [sys.executable, "-c", ask], capture_output=True, text=True, check=True
    ).stdout.split()
    assert {name for name in listed if name.isidentifier()} <= modules


def test_findings_name_only_some_of_many() -> None:
    names = [f"gone{number}" for number in range(40)]
    found = Imports(names=tuple(Import(name=name, file="train.py", line=1) for name in names))
    (finding,) = check_imports(case(found))
    assert "and 32 more" in finding.message


def test_forms_are_many() -> None:
    assert len(FORMS) > 60
    assert len(set(itertools.chain(code for code, _ in FORMS))) == len(FORMS)


@pytest.mark.parametrize(
    "launcher", ["torchrun", "srun", "spawn", "none", "horovod", "horovod-gloo", "mpi"]
)
def test_every_launcher_runs_a_module_by_its_name(launcher: str) -> None:
    decided = decide(
        make_case(
            {"launcher": launcher, "python_module": "pkg.train"},
            script="pkg/train.py",
            folder="/home/user/project/pkg",
        )
    )
    words = " ".join(decided.launch.program)
    assert "-m pkg.train" in words
    assert "pkg/train.py" not in words
    assert words.endswith("--epochs 12")


def test_a_module_is_run_as_one_by_the_launcher_of_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name would be taken for that of a program of the image."""
    root = write(tmp_path, {"pkg/train.py": ""})
    seen: list[tuple[str, bool]] = []

    class StopError(Exception):
        pass

    def resolve(name: str, _: Path, *, program: bool, **__: bool) -> object:
        seen.append((name, program))
        raise StopError

    monkeypatch.setattr(targets, "resolve", resolve)
    values = {"python_module": "pkg.train", "launcher": "none"}
    for flags, name in ((values, "pkg.train"), ({"launcher": "none"}, "hostname")):
        with pytest.raises(StopError):
            gathering.gather(name, Layer("flag", flags), root)
    assert seen == [("pkg/train.py", True), ("hostname", True)]


MODULES = [
    (("python", "-m", "pkg.train", "--lr", "1"), ("pkg/train.py", "pkg.train", ("--lr", "1"))),
    (("python3", "-u", "-m", "pkg"), ("pkg/__main__.py", "pkg", ())),
    (("python", "train.py", "-m", "x"), ("train.py", "", ("-m", "x"))),
    (("python", "-c", "1"), None),
    (("python", "-m"), None),
    (("python",), None),
    (("/usr/bin/python3", "train.py"), None),
    (("train.py", "-m", "x"), None),
]


@pytest.mark.parametrize(("words", "expected"), MODULES)
def test_a_command_of_python_is_a_script_or_a_module(
    words: tuple[str, ...], expected: object, tmp_path: Path
) -> None:
    root = write(
        tmp_path, {"pkg/__init__.py": "", "pkg/__main__.py": "", "pkg/train.py": "", "train.py": ""}
    )
    assert parse_python(words, root) == expected


def test_a_file_called_python_is_run_as_it_is(tmp_path: Path) -> None:
    root = write(tmp_path, {"python": "", "train.py": ""})
    assert parse_python(("python", "train.py"), root) is None


@pytest.mark.parametrize("name", ["torch.distributed.run", "pkg.missing", "pkg", "", "..", "a/b"])
def test_a_module_that_is_not_here_is_refused_with_the_way_to_run_one_of_the_image(
    name: str, tmp_path: Path
) -> None:
    root = write(tmp_path, {"pkg/__init__.py": ""})
    with pytest.raises(ScriptMissingError) as caught:
        module_file(name, root)
    assert f"-- python -m {name}" in (caught.value.next_step or "")


def test_a_module_is_taken_from_flags_and_keeps_its_name(tmp_path: Path) -> None:
    root = write(tmp_path, {"pkg/train.py": ""})
    target, flags = targets.python_target(
        "pkg.train", Layer("flag", {"python_module": "pkg.train"}), root
    )
    assert (target, flags.values) == (
        "pkg/train.py",
        {"python_module": "pkg.train", "job_name": "train"},
    )
    layer = Layer("flag", {"arguments": ("-m", "pkg.train", "--lr", "1"), "job_name": "mine"})
    target, flags = targets.python_target("python", layer, root)
    assert flags.values == {
        "python_module": "pkg.train",
        "job_name": "mine",
        "arguments": ("--lr", "1"),
    }
    untouched = Layer("flag", {"arguments": ("-m", "pkg.train")})
    assert targets.python_target("train.py", untouched, root) == ("train.py", untouched)

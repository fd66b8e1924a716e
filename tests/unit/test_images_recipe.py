"""Recipes: what is refused, the plan of steps that one becomes on its base, and definitions that nothing breaks out of."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from tests.hostile import HOSTILE
from tests.unit.samples import MANIFEST
from toolkit.cli.groups import image as command
from toolkit.config import package_directory
from toolkit.errors import ConfigError, UnknownImageError, UsageError
from toolkit.images.recipe import catalogue, library
from toolkit.images.recipe.bases import LocalImage
from toolkit.images.recipe.block import Setting, Step
from toolkit.images.recipe.catalogue import FACTS
from toolkit.images.recipe.image_checks import list_missing, promised_variables
from toolkit.images.recipe.names import list_features, list_recipes
from toolkit.images.recipe.plan import Plan
from toolkit.images.recipe.recipe import Recipe
from toolkit.model.base import BadDataError
from toolkit.model.image import Packages
from toolkit.units import compare

HEAD = 'summary = "x"\n[base]\nkind = "debootstrap"\nrelease = "bookworm"\n'
# What is wrong | its key | the nearest | the recipe: `B` is a base of four lines, `S` begins a step, `;` ends a line.
BROKEN = r"""
an unknown key | sumary | summary | sumary = "x"
an unknown kind of base | base.kind | debootstrap | summary = "x"; [base]; kind = "debootstrp"
an unknown block | steps[0].block | pip | B S "pipp"
no block | steps[0].block | | B [[steps]]; packages = ["x"]
an unknown key of the second step | steps[1].packges | packages | B S "python"; S "pip"; packges = []
a wrong type | steps[0].packages | | B S "pip"; packages = "numpy"
a missing key | steps[0] | | B S "pip"
an option in place of a package | steps[0] | | B S "apt"; packages = ["-oDir=/"]
a line break | steps[0].commands[0] | | B S "run"; commands = ["a\nb"]
an open line | steps[0] | | B S "run"; commands = ["echo \\"]
braces in a command | steps[0] | | B S "run"; commands = ["echo {{ x }}"]
a command in a variable | steps[0] | | B S "env"; variables = { A = "$(id)" }; expand = ["A"]
a variable that is not there | steps[0] | | B S "env"; variables = { A = "1" }; expand = ["B"]
no name of a variable | steps[0] | | B S "env"; variables = { "a b" = "1" }
a command in a user | steps[0] | | B S "shell"; user = "$(id)"
a copy of nothing | steps[0] | | B S "copy"; path = "/x"
permissions that are none | steps[0] | | B S "copy"; path = "/x"; source = "."; mode = "u+x"
a name that is taken | steps | | B S "run"; commands = ["true"]; name = "base"
the name of a step of the build stage | steps | | B S "apt"; packages = ["git"]; S "run"; commands = ["true"]; name = "build.apt"; S "horovod"
the name of what another compiles | steps | | B S "run"; commands = ["true"]; name = "horovod-build"; S "horovod"
a name of two words | steps[0] | | B S "run"; commands = ["true"]; name = "a b"
a relative base | base | | summary = "x"; [base]; kind = "localimage"; path = "x.sif"
no release | base | | summary = "x"; [base]; kind = "debootstrap"; release = "12; reboot"
an unknown release | base | | summary = "x"; [base]; kind = "ngc"; framework = "pytorch"; release = "22.33"
no reference | base | | summary = "x"; [base]; kind = "docker"; image = "a b"
no digest | base | | summary = "x"; [base]; kind = "docker"; image = "a/b:c"; digest = "sha256:12"
an unknown part of a base | base.has[0] | | summary = "x"; [base]; kind = "docker"; image = "a/b:c"; has = ["pythn"]
no base | base | | summary = "x"
no compute capability | steps[0] | | B S "cuda"; version = "13.0"; architectures = ["sm_80"]
a command in what is left out | steps[0] | | B S "pip"; packages = ["x"]; leave_out = ["$(id)"]
a command in a variable of a wheel | steps[0] | | B S "wheel"; name = "x"; packages = ["x"]; variables = { "A=1;id" = "1" }
a replaced package of an earlier step | steps[2].replaces | | B S "python"; S "pip"; packages = ["Torch==1"]; S "pip"; packages = ["torch==2"]; replaces = ["torch"]
a replaced package that the step does not bring | steps[1] | | B S "python"; S "pip"; packages = ["rich"]; replaces = ["torch"]
an unknown operation | steps[0].operations[0] | | B S "horovod"; version = "0.28.1"; operations = ["ncccl"]
"""


@pytest.mark.parametrize("case", BROKEN.strip().splitlines(), ids=lambda case: case.split("|")[0])
def test_broken_recipes_say_where_and_what_would_be_right(tmp_path, case):
    _, key, close, text = (part.strip() for part in case.split("|", 3))
    lines = text.replace("; reboot", "\0").replace("B ", HEAD, 1) if text[0] == "B" else text
    lines = lines.replace("; reboot", "\0").replace("; ", "\n").replace("\0", "; reboot")
    path = tmp_path / "broken.toml"
    path.write_text(lines.replace('S "', '[[steps]]\nblock = "') + "\n")
    with pytest.raises(ConfigError) as caught:
        library.load(str(path))
    assert (caught.value.place or "").partition(", key ")[2] == key
    assert (caught.value.close or "", caught.value.exit_code) == (close, 78)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("broken.toml", 'summary = "x"\nsteps = [\n', "not valid TOML"),
        ("two words.toml", HEAD, "cannot be the name of a recipe"),
        ("missing.toml", None, "cannot be read"),
        ("x.toml", 'summary = "x"\nextends = "x.toml"\n', "in a circle"),
    ],
)
def test_files_that_are_no_recipes(tmp_path, name, text, message):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=message):
        library.load(str(tmp_path / name))


@pytest.mark.parametrize(
    ("text", "close"),
    [
        ('extends = "pytorch_cp"', "pytorch_cpu"),
        ('features = ["jupiter"]\nextends = "pytorch_cpu"', "jupyter"),
    ],
)
def test_what_is_unknown_has_a_near_name(text, close, tmp_path):
    (tmp_path / "x.toml").write_text(f'summary = "x"\n{text}\n')
    with pytest.raises(UnknownImageError) as raised:
        library.load(str(tmp_path / "x.toml"))
    assert raised.value.close == close


def planned(path: Path, text: str, *features: str) -> Plan:
    path.write_text(f'summary = "x"\n{text}')
    return library.load(str(path), features)


def names(plan: Plan) -> tuple[list[str], ...]:
    return tuple([step.name for step in steps] for steps in (plan.common, plan.build, plan.final))


def lines(plan: Plan) -> str:
    return "\n".join(line for step in plan.steps for line in step.lines)


NGC = '[base]\nkind = "ngc"\nframework = "pytorch"\nrelease = "25.06"\n'
WHEEL = '[[steps]]\nblock = "wheel"\nname = "mine"\npackages = ["a==1"]\n'


def test_the_compiler_of_cuda_is_in_the_build_stage_only(tmp_path):
    plan = library.load("deepspeed_cuda")
    assert names(plan)[1] == ["compilers", "cuda-build", "horovod-build", "deepspeed-build"]
    built = "\n".join(line for step in plan.build for line in step.lines)
    assert "[cccl,cudart,nvcc,nvml]==13.0.3.*" in built
    assert "HOROVOD_GPU_OPERATIONS=NCCL" in built
    assert not any(word in lines(plan) for word in ("nvcc", "g++", "cuda-build.sh"))
    assert plan.gpu_code[0] == "sm_75"
    assert "gpu-code" in plan.files["/opt/toolkit/checks/run"]
    on_ngc = planned(tmp_path / "ngc.toml", f'extends = "deepspeed_cuda"\n{NGC}')
    assert "cuda-toolkit" not in lines(on_ngc), "the base has a compiler"


@pytest.mark.parametrize(
    "step", ['"horovod"\noperations = ["mpi", "nccl"]', '"nccl-tests"\nversion = "v2.13.6"']
)
def test_a_base_that_has_cuda_needs_no_step_for_it(tmp_path, step):
    """NVIDIA's images of CUDA, which bring no compilers of ours and are not in the catalogue."""
    base = '[base]\nkind = "docker"\nimage = "nvcr.io/nvidia/cuda:12.4.1-devel-ubuntu22.04"\n'
    built = str(planned(tmp_path / "x.toml", f"{base}[[steps]]\nblock = {step}\n").build)
    assert "/opt/cuda-build.sh" not in built
    assert "CUDA_HOME=/usr/local/cuda" in built


def test_a_wheel_on_a_base_with_compilers_has_its_directory_and_packages(tmp_path):
    """Horovod before it has removed the directory, and there is no stage that installs packages."""
    text = f'extends = "pytorch_22.03"\n{WHEEL}build_packages = ["libfoo-dev"]\n'
    plan = planned(tmp_path / "x.toml", text)
    step = next(step for step in plan.steps if step.name == "mine")
    assert "libfoo-dev" in step.lines[0]
    assert step.lines[1] == "mkdir -p /opt/wheels"
    assert "rm -r /opt/mine-wheels" in step.lines, "the image keeps what it installed"


def test_a_step_that_compiles_after_horovod_leaves_horovod_to_be_found(tmp_path):
    plan = planned(tmp_path / "x.toml", f'extends = "pytorch_cpu"\n{WHEEL}')
    assert library.load("pytorch_cpu").products_key in plan.earlier_products


def test_one_recipe_on_two_bases(tmp_path):
    plan = planned(tmp_path / "x.toml", f'extends = "pytorch_cpu"\n{NGC}')
    assert names(plan) == (["horovod", "pip"], [], [])
    assert (plan.dropped, plan.path) == (("openmpi", "python", "pip"), ())
    note = "has these steps of the recipe already: openmpi, python, pip"
    assert note in library.render(plan)


def test_what_extends_comes_after_and_names_its_files_from_where_it_lies(tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other/file").write_text("x")
    copy = '[[steps]]\nblock = "copy"\nsource = "file"\npath = "/file"\n'
    (tmp_path / "other/one.toml").write_text(f'{HEAD}[[steps]]\nblock = "python"\n{copy}')
    pip = '[[steps]]\nblock = "pip"\npackages = ["x==1"]\n'
    text = f'extends = "other/one.toml"\nfeatures = ["submitit"]\n{pip}'
    plan = planned(tmp_path / "two.toml", text)
    assert names(plan)[0] == ["apt", "python", "copy", "pip", "submitit"]
    assert plan.common[2].detail == "other/file to /file"


def test_each_step_has_a_name_of_its_own_by_which_its_time_is_kept():
    steps: list[dict[str, Any]] = [{"block": "pip", "packages": ["x"]}]
    steps += [{"block": "apt", "packages": [name]} for name in ("git", "vim")]
    assert names(plan_of(*steps))[0] == ["pip", "apt-more", "apt-more-2"]


@pytest.mark.parametrize("feature", list_features())
@pytest.mark.parametrize("recipe", ["pytorch_cpu", "pytorch_25.06"])
def test_any_feature_goes_with_any_recipe_and_builds_nothing_again(recipe, feature):
    plain, more = library.load(recipe), library.load(recipe, [feature])
    assert {step.name for step in more.steps} > {step.name for step in plain.steps}
    assert more.steps[: len(plain.steps) - 1] == plain.steps[:-1]
    assert more.space.image > plain.space.image
    assert library.hash_recipe(more) != library.hash_recipe(plain)


def test_the_hash_follows_the_checks(monkeypatch):
    first = library.hash_recipe(library.load("pytorch_cpu"))
    scripts = library.read_check_scripts()
    changed = {**scripts, "user_site.py": scripts["user_site.py"] + "# changed\n"}
    monkeypatch.setattr(library, "read_check_scripts", lambda: changed)
    assert library.hash_recipe(library.load("pytorch_cpu")) != first


@pytest.mark.parametrize(
    ("found", "lacks"),
    [
        ({"OF_BASE": "", "TIME": "another", "HOME": None}, []),
        ({"OF_BASE": None}, ["the variable OF_BASE is not set"]),
        ({"MINE": None}, ["the variable MINE is not set"]),
        ({"PATH": "/bin"}, ["PATH lacks /opt/venv/bin", "PATH lacks /opt/base/bin"]),
        ({"LD_LIBRARY_PATH": "/x:/.singularity.d/libs"}, ["LD_LIBRARY_PATH lacks /opt/lib"]),
    ],
)
def test_an_image_lacks_what_its_recipe_or_base_promised(found, lacks):
    """The values matter only of lists of directories: others may differ each time, or the recipe replaces them."""
    plan = Plan(
        name="x",
        base=LocalImage(path="/base.sif"),
        path=("/opt/venv/bin",),
        environment={"MINE": "1", "CPATH": "/mine"},
        settings=(Setting("LIBRARY_PATH", "${LIBRARY_PATH}:/more"), Setting("ARG", "1", True)),
    )
    same = {"OF_BASE": "a", "HOME": "/root", "LD_LIBRARY_PATH": "/opt/lib:/.singularity.d/libs"}
    base = {**same, "TIME": "now", "PATH": "/opt/base/bin:/bin", "CPATH": "/theirs"}
    base |= {"APPTAINER_NAME": "base.sif"}
    whole = {**same, "TIME": "later", "PATH": "/opt/venv/bin:/opt/base/bin:/bin", "MINE": "1"}
    whole |= {"CPATH": "/mine", "LIBRARY_PATH": ":/more"}
    has = {name: value for name, value in {**whole, **found}.items() if value is not None}
    assert list_missing(promised_variables(base, plan.variables, plan.path), has) == lacks


@pytest.mark.parametrize("form", library.FORMATS)
@pytest.mark.parametrize("name", list_recipes())
def test_the_committed_definitions_are_what_their_recipes_render_to(name, form):
    committed = library.definition_path(name, form).read_text()
    assert committed == library.render(library.load(name), form)
    hosts = set(re.findall(r"https?://([^\s/:]+)", committed))
    assert hosts <= {"download.pytorch.org", "github.com"}, "it names no machine"


def test_no_check_holds_what_a_definition_cannot():
    for name, text in library.read_check_scripts().items():
        assert not re.search(r"\{\{|\}\}|^(%|END-OF-FILE$)", text, re.MULTILINE), name


DEBIAN = {"kind": "debootstrap", "release": "bookworm"}
REFUSED = [text for text in HOSTILE if not text.isprintable()]
PRINTABLE = [text for text in HOSTILE if text.isprintable()]
BRACES = ("{{ mirror }}", "{{{{", "}}}", "a{{b}}c", "{{{x}}}", "'{{'")


def plan_of(*steps: dict[str, Any], summary: str = "x", **more: Any) -> Plan:
    recipe = Recipe(**{"summary": summary, "base": DEBIAN, "steps": steps, **more})
    return library.plan_recipe("x", recipe)


def pip(*packages: str, **more: Any) -> dict[str, Any]:
    return {"block": "pip", "name": "extra", "packages": list(packages), **more}


def substituted(text: str) -> str:
    """What Apptainer does to a definition first, were it told an argument of every name."""
    return re.sub(r"\{\{\s*(\w+)\s*\}\}", "REPLACED", text)


@pytest.mark.parametrize("text", [*(t for t in PRINTABLE if not t.startswith("-")), *BRACES])
def test_a_value_reaches_the_shell_byte_for_byte(text, tmp_path):
    rendered = substituted(library.render(plan_of(pip(text))))
    line = next(line for line in rendered.splitlines() if line.startswith("    pip install"))
    script = f'pip() {{ printf "%s\\0" "$@" > {tmp_path}/said; }}\n{line}\n'
    subprocess.run(["sh", "-ec", script], check=True, cwd=tmp_path)
    said = (tmp_path / "said").read_text().split("\0")
    assert said == ["install", "--no-compile", text, ""]
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("text", [*REFUSED, "\n%post\nreboot", "a\0b", "\u2028", "--option"])
def test_or_is_refused(text):
    with pytest.raises(BadDataError):
        plan_of(pip(text))


@pytest.mark.parametrize("text", [*PRINTABLE, *BRACES])
def test_a_summary_stays_a_comment(text):
    rendered, calm = (library.render(plan_of(summary=each)) for each in (text, "x"))
    assert rendered.startswith("# x: ")
    assert substituted(rendered) == rendered.replace("{{ mirror }}", "REPLACED")
    assert rendered.splitlines()[1:] == calm.splitlines()[1:]


@pytest.mark.parametrize("form", library.FORMATS)
@pytest.mark.parametrize("text", PRINTABLE)
def test_a_variable_stays_in_its_line(text, form):
    calm, hostile = (
        library.render(plan_of({"block": "env", "variables": {"A": value}}), form).splitlines()
        for value in ("calm", text)
    )
    pairs = zip(calm, hostile, strict=True)
    differ = [new for old, new in pairs if old != new and "-hash" not in new]
    assert all(line.startswith(("    export A=", "ENV A=")) for line in differ)


@pytest.mark.parametrize(
    "words",
    [
        "--from nvcr.io/nvidia/pytorch:25.06-py3 --with horovod --with jupyter",
        "--from pytorch_cpu --pip einops==0.8.1",
        "--from docker://ghcr.io/someone/thing:1 --with submitit",
    ],
)
def test_a_new_recipe_can_be_rendered(words, tmp_path):
    arguments = ("new", "mine", "--directory", str(tmp_path), *words.split())
    assert CliRunner().invoke(command, arguments, catch_exceptions=False).exit_code == 0
    for form in library.FORMATS:
        assert library.render(library.load(str(tmp_path / "mine.toml")), form)
    assert isinstance(CliRunner().invoke(command, arguments).exception, UsageError)


# A later step of pip keeps what the image was verified for, or replaces it on purpose.
TORCH = pip("torch==2.13.0+cpu", "numpy==2.4.6", name="torch", imports=["torch"])
STACK = ({"block": "python"}, {"block": "openmpi"}, TORCH, {"block": "horovod"})


def outputs(plan: Plan) -> dict[str, Step]:
    return {output.name: output for output in plan.outputs}


PIP = """\
pip() {
    echo "$PIP_CONSTRAINT|$*" >> PLACE/calls
    case $* in
    list*) printf '%s\\n' Torch==2.13.0+cpu torchmetrics==1 scikit_learn==1.9 pip==23 ;;
    *dry-run*) echo 'Would install a-1 torchvision-0.28.0' ;;
    *) false ;;
    esac
}
"""


def test_the_lines_of_a_step_of_pip_do_what_they_say(tmp_path):
    """Run them: only what is installed becomes a constraint, that of the base stays, and a failure says what fits."""
    steps = (STACK[0], TORCH, pip("scikit-learn", name="more"), pip("torchvision==0.29.2"))
    text = "\n".join(outputs(plan_of(*steps))["extra"].lines)
    script = PIP.replace("PLACE", str(tmp_path)) + text.replace("/opt/toolkit", f"{tmp_path}/opt")
    env = {"PATH": "/usr/bin:/bin", "PIP_CONSTRAINT": "/base.txt"}
    done = subprocess.run(["sh", "-ec", script], env=env, capture_output=True, text=True)
    assert done.returncode == 1
    constraints = tmp_path / "opt/constraints.txt"
    assert constraints.read_text() == "Torch==2.13.0+cpu\nscikit_learn==1.9\n"
    said = "toolkit-conflict: torchvision==0.29.2\ntoolkit-fits: a-1 torchvision-0.28.0\n"
    assert said in done.stdout
    calls = (tmp_path / "calls").read_text().splitlines()
    assert all(call.startswith(f"{constraints} /base.txt|") for call in calls[1:])


def test_an_override_changes_the_step_that_brings_the_package_and_what_is_compiled_on_it():
    before, after = plan_of(*STACK), plan_of(*STACK, overrides={"Torch": "2.14.0+cpu"})
    assert outputs(after)["torch"].requirements == ("torch==2.14.0+cpu", "numpy==2.4.6")
    assert list(outputs(after)) == list(outputs(before))
    assert after.products_key != before.products_key


def test_an_override_keeps_extras_and_conditions_and_wins_over_an_extended_recipe():
    step = pip("ray[default,train]>=2; python_version < '3.14'", "x @ https://x/y.whl")
    versions = {"ray": "2.1", "torch": "2.14", "x": "1.0"}
    base = Recipe(summary="x", base=DEBIAN, steps=(*STACK, step), overrides=versions)
    merged = library.extend_recipe(base, Recipe(summary="y", overrides={"ray": "2.60.0"}))
    found = outputs(library.plan_recipe("x", merged))
    wanted = ("ray[default,train]==2.60.0; python_version < '3.14'", "x==1.0")
    assert found["extra"].requirements == wanted
    assert found["torch"].requirements[0] == "torch==2.14"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"trch": "2"}, "no step of pip brings 'trch'"),
        ({"torch": ">=2"}, "is not a version"),
        ({"torch": "2 --index-url=https://x"}, "is not a version"),
        ({"torch": ""}, "is not a version"),
        ({"odd": "2"}, "cannot get another version"),
    ],
)
def test_an_override_is_the_version_of_a_package_that_a_step_brings(overrides, message):
    with pytest.raises(BadDataError, match=message) as caught:
        plan_of(*STACK, pip("odd ? 1"), overrides=overrides)
    assert caught.value.key == f"overrides.{next(iter(overrides))}"


def test_what_a_base_holds_is_replaced_before_anything_is_compiled_on_it():
    has = ["python", "torch", "horovod", "compilers", "openmpi"]
    steps = ({"block": "horovod"}, pip("torch==2.14", replaces=["torch"]))
    found = outputs(plan_of(*steps, base={"kind": "docker", "image": "x/y:1", "has": has}))
    assert list(found) == ["extra", "horovod"]
    assert "(torchvision|" in found["extra"].lines[2]
    assert found["extra"].lines[3] == 'export PIP_CONSTRAINT="/opt/toolkit/constraints.txt"'
    assert found["horovod"].build_lines


def installed(site: Path, name: str, files: dict[str, str], top: str = "") -> None:
    """Write a package as pip installs it."""
    meta = f"{name.replace('-', '_')}-1.5.dist-info"
    known = {f"{meta}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n", **files}
    known |= {f"{meta}/top_level.txt": top} if top else {}
    known[f"{meta}/RECORD"] = "".join(f"{path},,\n" for path in (*known, "../../bin/x.py"))
    for path, text in known.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text)


def test_the_check_imports_what_packages_bring_and_names_what_cannot_be_imported(tmp_path):
    beside = {"cv9/__init__.py": "", "cv9/fast.so": "", "tests/__init__.py": "1/0"}
    installed(tmp_path, "some-image-lib", beside)
    installed(tmp_path, "Same_Name", {"same_name.py": "__version__ = '7'", "other.py": "1/0"})
    installed(tmp_path, "declared", {"one/x.py": ""}, top="one\n_private\n")
    installed(tmp_path, "broken", {"broken/__init__.py": "raise RuntimeError('no operator x')"})

    def check(*words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, str(package_directory("images/checks") / "imports.py"), *words]
        env = {"PYTHONPATH": str(tmp_path)}
        return subprocess.run(argv, env=env, capture_output=True, text=True)

    done = check("json", "--of", "some-image-lib", "same-name", "declared")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].endswith("cv9 1.5, same_name 7, one 1.5")
    assert "toolkit-fact: framework cv9 1.5" in done.stdout
    done = check("--of", "broken")
    assert done.returncode == 1
    assert "broken cannot be imported: RuntimeError: no operator x" in done.stderr
    assert check("--of", "no-such-package").returncode != 0


# The catalogue of NGC's releases.
def test_a_release_as_it_is_written():
    found = catalogue.find("pytorch", "24.05")
    assert (found.name, found.reference) == ("pytorch:24.05", "nvcr.io/nvidia/pytorch:24.05-py3")
    facts = ("version", "python", "cuda", "openmpi", "driver")
    values = "2.4.0a0+07cecf4168 3.10 12.4.1 4.1.4+ 550.54"
    assert " ".join(str(found.value(name)) for name in facts) == values
    assert found.facts["driver"].note.startswith("the driver shipped with that toolkit")


def test_unknown_is_not_none():
    """That something is known not to be there is a fact; that nobody knows it is none."""
    release = catalogue.find("pytorch", "22.03")
    assert (release.value("openmpi"), release.facts.get("openmpi")) == (None, None)
    assert (release.value("horovod"), release.facts["horovod"].value) == (None, "none")
    with pytest.raises(UnknownImageError) as caught:
        catalogue.find("pytorhc", "22.03")
    assert caught.value.close == "pytorch:22.03"


def test_every_fact_has_a_source_and_a_name_and_the_newest_release_is_first():
    for entry in catalogue._read_catalogue().releases:
        assert set(entry) <= {*FACTS, "framework", "release", "source"}
    releases = catalogue.list_releases()
    assert all(fact.source and fact.value for each in releases for fact in each.facts.values())
    months = [one.release for one in releases if one.framework == "pytorch"]
    assert months == sorted(months, reverse=True)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("pytorch:22.03-py3", "pytorch:22.03"),
        ("docker://nvcr.io/nvidia/tensorflow:22.03-tf2-py3", "tensorflow:22.03"),
        ("tensorflow:22.03-py3", None),
        ("mirror.example/nvidia/pytorch:22.03-py3", None),
    ],
)
def test_a_release_is_known_by_its_references(text, name):
    found = catalogue.find_by_name(text)
    assert (found.name if found else None) == name


@pytest.mark.parametrize(
    ("pip", "cuda"),
    [
        ({"nvidia-cuda-runtime": "13.0.96"}, "13.0"),
        ({"nvidia-cuda-runtime-cu12": "12.9.79"}, "12.9"),
        ({"nvidia-cuda-runtime-x": "1.0"}, ""),
        ({"nvidia-cuda-runtime": f"{'9' * 5000}.0"}, ""),  # more digits than Python converts
    ],
)
def test_the_cuda_that_packages_of_python_bring(pip, cuda):
    manifest = replace(MANIFEST, frameworks={"tensorflow": "2.21.0"}, packages=Packages(pip=pip))
    assert catalogue.find_cuda(manifest) == cuda


DRIVERS = {"10.2.89": "440.33", "11.6.1": "450", "12.8.0": "525", "13.1": "580", "9.0": None}
GPUS = {"V100 NVLink": "7.0", "NVIDIA A100-SXM4-80GB": "8.0", "a100_1g.5gb": "8.0", "x": None}


@pytest.mark.parametrize(
    ("find", "known"), [(catalogue.find_oldest_driver, DRIVERS), (catalogue.find_capability, GPUS)]
)
def test_the_oldest_driver_of_a_cuda_version_and_the_capability_of_a_gpu(find, known):
    found = {text: find(text) for text in known}
    assert {text: fact and fact[0] for text, fact in found.items()} == known


def test_versions_are_compared_as_far_as_they_are_said():
    rows = "12.8.1 12 0|12.8.1 12.8 0|12.8 12.8.1 -1|11.6.1 12 -1|550.54 525.60.13 1|3.9 3.10 -1"
    for version, other, result in (row.split() for row in rows.split("|")):
        assert compare(version, other) == int(result), version

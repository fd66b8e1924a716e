"""Plans: which steps a recipe becomes on which base, and definitions that nothing of a recipe breaks out of."""

from __future__ import annotations

import json
import re
import subprocess

import pytest
from click.testing import CliRunner

from tests.hostile import HOSTILE
from toolkit.cli.groups import image as command
from toolkit.errors import UsageError
from toolkit.images.recipe import library
from toolkit.images.recipe.bases import LocalImage
from toolkit.images.recipe.block import Setting
from toolkit.images.recipe.image_checks import list_missing, promised_variables
from toolkit.images.recipe.names import list_features, list_recipes
from toolkit.images.recipe.plan import Plan
from toolkit.images.recipe.recipe import Recipe
from toolkit.model.base import BadDataError

BASE = 'summary = "x"\n[base]\nkind = "debootstrap"\nrelease = "bookworm"\n'
REFUSED = [text for text in HOSTILE if not text.isprintable()]
PRINTABLE = [text for text in HOSTILE if text.isprintable()]
BRACES = ("{{ mirror }}", "{{{{", "}}}", "a{{b}}c", "{{{x}}}", "'{{'")


def planned(path, text, *features: str):
    path.write_text(text)
    return library.load(str(path), features)


def names(plan):
    return tuple([step.name for step in steps] for steps in (plan.common, plan.build, plan.final))


def lines(plan):
    return "\n".join(line for step in plan.steps for line in step.lines)


def test_the_compiler_of_cuda_is_in_the_build_stage_only(tmp_path):
    plan = library.load("deepspeed_cuda")
    assert names(plan)[1] == ["compilers", "cuda-build", "horovod-build", "deepspeed-build"]
    built, image = (
        "\n".join(line for step in steps for line in step.lines)
        for steps in (plan.build, plan.steps)
    )
    assert all(
        word in built
        for word in ("[cccl,cudart,nvcc,nvml]==13.0.3.*", "HOROVOD_GPU_OPERATIONS=NCCL")
    )
    assert not any(word in image for word in ("nvcc", "g++", "cuda-build.sh"))
    assert plan.gpu_code[0] == "sm_75"
    assert "gpu-code" in plan.files["/opt/toolkit/checks/run"]
    on_ngc = 'extends = "deepspeed_cuda"\n[base]\nkind = "ngc"\nframework = "pytorch"\nrelease = "25.06"\n'
    text = lines(planned(tmp_path / "ngc.toml", f'summary = "x"\n{on_ngc}'))
    assert "cuda-toolkit" not in text, "the base has a compiler"


@pytest.mark.parametrize(
    "step", ['"horovod"\noperations = ["mpi", "nccl"]', '"nccl-tests"\nversion = "v2.13.6"']
)
def test_a_base_that_has_cuda_needs_no_step_for_it(tmp_path, step):
    """NVIDIA's images of CUDA, which bring no compilers of ours and are not in the catalogue."""
    base = '[base]\nkind = "docker"\nimage = "nvcr.io/nvidia/cuda:12.4.1-devel-ubuntu22.04"\n'
    text = f'summary = "x"\n{base}[[steps]]\nblock = {step}\n'
    built = str(planned(tmp_path / "x.toml", text).build)
    assert "/opt/cuda-build.sh" not in built
    assert "CUDA_HOME=/usr/local/cuda" in built


def test_a_wheel_on_a_base_with_compilers_has_its_directory_and_packages(tmp_path):
    """Horovod before it has removed the directory, and there is no stage that installs packages."""
    wheel = '[[steps]]\nblock = "wheel"\nname = "mine"\npackages = ["a==1"]\nbuild_packages = ["libfoo-dev"]\n'
    text = f'summary = "x"\nextends = "pytorch_22.03"\n{wheel}'
    plan = planned(tmp_path / "x.toml", text)
    step = next(step for step in plan.steps if step.name == "mine")
    assert "libfoo-dev" in step.lines[0]
    assert step.lines[1] == "mkdir -p /opt/wheels"
    assert "rm -r /opt/mine-wheels" in step.lines, "the image keeps what it installed"


def test_a_step_that_compiles_after_horovod_leaves_horovod_to_be_found(tmp_path):
    wheel = '[[steps]]\nblock = "wheel"\nname = "mine"\npackages = ["a==1"]\n'
    plan = planned(tmp_path / "x.toml", f'summary = "x"\nextends = "pytorch_cpu"\n{wheel}')
    assert library.load("pytorch_cpu").products_key in plan.earlier_products


def test_one_recipe_on_two_bases(tmp_path):
    text = 'summary = "x"\nextends = "pytorch_cpu"\n[base]\nkind = "ngc"\nframework = "pytorch"\nrelease = "25.06"\n'
    plan = planned(tmp_path / "x.toml", text)
    assert names(plan) == (["horovod", "pip"], [], [])
    assert (plan.dropped, plan.path) == (("openmpi", "python", "pip"), ())
    note = "has these steps of the recipe already: openmpi, python, pip"
    assert note in library.render(plan)


def test_what_extends_comes_after_and_names_its_files_from_where_it_lies(tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other/file").write_text("x")
    copy = '[[steps]]\nblock = "copy"\nsource = "file"\npath = "/file"\n'
    (tmp_path / "other/one.toml").write_text(f'{BASE}[[steps]]\nblock = "python"\n{copy}')
    text = 'summary = "2"\nextends = "other/one.toml"\nfeatures = ["submitit"]\n[[steps]]\nblock = "pip"\npackages = ["x==1"]\n'
    plan = planned(tmp_path / "two.toml", text)
    assert names(plan)[0] == ["apt", "python", "copy", "pip", "submitit"]
    assert plan.common[2].detail == "other/file to /file"


def test_each_step_has_a_name_of_its_own_by_which_its_time_is_kept(tmp_path):
    apt = '[[steps]]\nblock = "apt"\npackages = ["{}"]\n'
    text = BASE + '[[steps]]\nblock = "pip"\npackages = ["x"]\n'
    plan = planned(tmp_path / "x.toml", text + apt.format("git") + apt.format("vim"))
    assert names(plan)[0] == ["pip", "apt-more", "apt-more-2"]


@pytest.mark.parametrize("feature", list_features())
@pytest.mark.parametrize("recipe", ["pytorch_cpu", "pytorch_25.06"])
def test_any_feature_goes_with_any_recipe_and_builds_nothing_again(recipe, feature):
    plain, more = library.load(recipe), library.load(recipe, [feature])
    assert {step.name for step in more.steps} > {step.name for step in plain.steps}
    assert more.steps[: len(plain.steps) - 1] == plain.steps[:-1]
    assert more.space.image > plain.space.image
    assert library.hash_recipe(more) != library.hash_recipe(plain)


def test_the_hash_follows_the_contents(monkeypatch):
    first = library.hash_recipe(pip("a"))
    assert library.hash_recipe(pip("a")) == first != library.hash_recipe(pip("b"))
    scripts = library.read_check_scripts()
    changed = {**scripts, "user_site.py": scripts["user_site.py"] + "# changed\n"}
    monkeypatch.setattr(library, "read_check_scripts", lambda: changed)
    assert library.hash_recipe(pip("a")) != first


@pytest.mark.parametrize(
    ("found", "lacks"),
    [
        ({}, []),
        ({"OF_BASE": None}, ["the variable OF_BASE is not set"]),
        ({"MINE": None}, ["the variable MINE is not set"]),
        ({"PATH": "/bin"}, ["PATH lacks /opt/venv/bin", "PATH lacks /opt/base/bin"]),
        ({"LD_LIBRARY_PATH": "/x:/.singularity.d/libs"}, ["LD_LIBRARY_PATH lacks /opt/lib"]),
        ({"OF_BASE": "", "TIME": "another", "HOME": None}, []),
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
    base = {
        **{"OF_BASE": "a", "TIME": "now", "PATH": "/opt/base/bin:/bin", "CPATH": "/theirs"},
        **{"LD_LIBRARY_PATH": "/opt/lib:/.singularity.d/libs", "HOME": "/root"},
        **{"APPTAINER_NAME": "base.sif"},
    }
    whole = {
        **{"OF_BASE": "a", "TIME": "later", "PATH": "/opt/venv/bin:/opt/base/bin:/bin"},
        **{"MINE": "1", "CPATH": "/mine", "LIBRARY_PATH": ":/more", "HOME": "/root"},
        **{"LD_LIBRARY_PATH": "/opt/lib:/.singularity.d/libs"},
    }
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


def pip(*packages: str, summary="x"):
    steps = ({"block": "python"}, {"block": "pip", "packages": list(packages)})
    base = {"kind": "debootstrap", "release": "bookworm"}
    return library.plan_recipe("x", Recipe(summary=summary, base=base, steps=steps))


def substituted(text):
    """What Apptainer does to a definition first, were it told an argument of every name."""
    return re.sub(r"\{\{\s*(\w+)\s*\}\}", "REPLACED", text)


@pytest.mark.parametrize("text", [*(t for t in PRINTABLE if not t.startswith("-")), *BRACES])
def test_a_value_reaches_the_shell_byte_for_byte(text, tmp_path):
    rendered = substituted(library.render(pip(text)))
    line = next(line for line in rendered.splitlines() if line.startswith("    pip install"))
    script = f'pip() {{ printf "%s\\0" "$@" > {tmp_path}/said; }}\n{line}\n'
    subprocess.run(["sh", "-ec", script], check=True, cwd=tmp_path)
    said = (tmp_path / "said").read_text().split("\0")
    assert said == ["install", "--no-compile", text, ""]
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize(
    "text", [*REFUSED, "two\nlines", "\n%post\nreboot", "a\0b", "\u2028", "--option"]
)
def test_or_is_refused(text):
    with pytest.raises(BadDataError):
        pip(text)


@pytest.mark.parametrize("text", [*PRINTABLE, *BRACES])
def test_a_summary_stays_a_comment(text):
    rendered = library.render(pip("a", summary=text))
    assert rendered.startswith("# x: ")
    assert substituted(rendered) == rendered.replace("{{ mirror }}", "REPLACED")
    calm = library.render(pip("a"))
    hashes = re.compile("recipe-hash .*")
    assert hashes.sub("", rendered).splitlines()[1:] == hashes.sub("", calm).splitlines()[1:]


@pytest.mark.parametrize("form", library.FORMATS)
@pytest.mark.parametrize("text", PRINTABLE)
def test_a_variable_stays_in_its_line(text, form, tmp_path):
    def rendered(value: str) -> list[str]:
        value = json.dumps(value, ensure_ascii=False)
        step = f'[[steps]]\nblock = "env"\nvariables = {{ A = {value} }}\n'
        return library.render(planned(tmp_path / "x.toml", BASE + step), form).splitlines()

    calm, hostile = rendered("calm"), rendered(text)
    differ = [
        new for old, new in zip(calm, hostile, strict=True) if old != new and "-hash" not in new
    ]
    assert len(differ) <= 1
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

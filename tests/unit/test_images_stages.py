"""Recipes that extend others, features, bases that hold things already; and the stages that all of it becomes."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from tests.hostile import HOSTILE
from toolkit.cli.groups import image as command
from toolkit.errors import ConfigError, ToolkitError, UnknownImageError, UsageError
from toolkit.images.recipe import library
from toolkit.images.recipe.bases import LocalImage
from toolkit.images.recipe.image_checks import list_missing, promised_variables
from toolkit.images.recipe.names import list_features
from toolkit.images.recipe.plan import Plan


def staged(path: Path, text: str, *features: str) -> Plan:
    path.write_text(text)
    return library.load(str(path), features)


def names(stages: Plan) -> tuple[list[str], list[str], list[str]]:
    common, build, final = (
        [step.name for step in steps] for steps in (stages.common, stages.build, stages.final)
    )
    return common, build, final


def lines(stages: Plan) -> str:
    return "\n".join(line for step in stages.steps for line in step.lines)


def test_compilers_are_in_the_build_stage_only() -> None:
    stages = library.load("pytorch_cpu")
    assert names(stages) == (
        ["apt", "python", "torch"],
        ["compilers", "horovod-build"],
        ["horovod", "pip", "clean"],
    )
    assert "g++" not in lines(stages)
    assert "g++" in stages.build[0].lines[1]
    assert [step.name for step in stages.final if step.products] == ["horovod"]


def test_a_base_with_compilers_needs_no_stage_of_its_own() -> None:
    stages = library.load("pytorch_22.03")
    assert names(stages) == (["horovod"], [], ["clean"])
    assert "apt-get" not in lines(stages)
    assert "HOROVOD_GPU_OPERATIONS=NCCL" in lines(stages)
    assert "cffi==" not in lines(stages), "the base keeps its own versions"


def test_one_recipe_on_two_bases(tmp_path: Path) -> None:
    text = 'summary = "x"\nextends = "pytorch_cpu"\n[base]\nkind = "ngc"\nframework = "pytorch"\nrelease = "25.06"\n'
    stages = staged(tmp_path / "x.toml", text)
    assert names(stages) == (["horovod", "pip"], [], ["clean"])
    assert stages.dropped == ("openmpi", "python", "pip")
    assert "has these steps of the recipe already: openmpi, python, pip" in library.render(
        library.load(str(tmp_path / "x.toml"))
    )
    assert stages.path == ()


def test_what_extends_comes_after(tmp_path: Path) -> None:
    (tmp_path / "one.toml").write_text(
        'summary = "1"\n[base]\nkind = "debootstrap"\nrelease = "bookworm"\n[[steps]]\nblock = "python"\n'
    )
    stages = staged(
        tmp_path / "two.toml",
        'summary = "2"\nextends = "one.toml"\nfeatures = ["submitit"]\n[[steps]]\nblock = "pip"\npackages = ["x==1"]\n',
    )
    assert names(stages)[0] == ["apt", "python", "pip", "submitit"]


def test_each_step_has_a_name_of_its_own_by_which_its_time_is_kept(tmp_path: Path) -> None:
    apt = '[[steps]]\nblock = "apt"\npackages = ["PACKAGE"]\n'
    pip = '[[steps]]\nblock = "pip"\npackages = ["x"]\n'
    text = 'summary = "x"\n[base]\nkind = "debootstrap"\nrelease = "bookworm"\n' + pip
    stages = staged(
        tmp_path / "x.toml", text + apt.replace("PACKAGE", "git") + apt.replace("PACKAGE", "vim")
    )
    assert names(stages)[0] == ["pip", "apt-more", "apt-more-2"]


@pytest.mark.parametrize("feature", list_features())
@pytest.mark.parametrize("recipe", ["pytorch_cpu", "pytorch_25.06"])
def test_any_feature_goes_with_any_recipe(recipe: str, feature: str) -> None:
    plain, more = library.load(recipe), library.load(recipe, [feature])
    assert {step.name for step in more.steps} > {step.name for step in plain.steps}
    before = plain.steps[:-1]
    assert more.steps[: len(before)] == before, "what is there already is not built again"
    assert more.space.image > plain.space.image
    assert library.hash_recipe(more) != library.hash_recipe(plain)


@pytest.mark.parametrize(
    ("text", "error", "close"),
    [
        ('extends = "pytorch_cp"', UnknownImageError, "pytorch_cpu"),
        ('extends = "x.toml"', ConfigError, None),
        ('features = ["jupiter"]\nextends = "pytorch_cpu"', UnknownImageError, "jupyter"),
        ("", ConfigError, None),
        ('[base]\nkind = "ngc"\nframework = "pytorch"\nrelease = "22.33"', ConfigError, None),
        ('[base]\nkind = "docker"\nimage = "a b"', ConfigError, None),
        ('[base]\nkind = "docker"\nimage = "a/b:c"\nhas = ["pythn"]', ConfigError, None),
        ('[base]\nkind = "docker"\nimage = "a/b:c"\ndigest = "sha256:12"', ConfigError, None),
        ('[base]\nkind = "dokcer"\nimage = "a/b:c"', ConfigError, "docker"),
    ],
)
def test_what_is_unknown_is_refused(
    text: str, error: type[ToolkitError], close: str | None, tmp_path: Path
) -> None:
    with pytest.raises(error) as raised:
        staged(tmp_path / "x.toml", f'summary = "x"\n{text}\n')
    assert (
        str(tmp_path / "x.toml") in (raised.value.place or "") or raised.value.place == "features"
    )
    assert raised.value.close == close


@pytest.mark.parametrize("form", ["apptainer", "docker"])
@pytest.mark.parametrize("text", [text for text in HOSTILE if text.isprintable()])
def test_hostile_values_stay_in_their_place(text: str, form: str, tmp_path: Path) -> None:
    import json

    path = tmp_path / "x.toml"
    path.write_text(
        'summary = "x"\n[base]\nkind = "debootstrap"\nrelease = "bookworm"\n[[steps]]\nblock = "env"\n'
        f"variables = {{ A = {json.dumps(text, ensure_ascii=False)} }}\n"
    )
    calm = library.render(_with(path, "calm"), form).splitlines()
    hostile = library.render(_with(path, None), form).splitlines()
    assert len(hostile) == len(calm)
    differ = [
        new
        for old, new in zip(calm, hostile, strict=True)
        if old != new and "recipe-hash" not in new
    ]
    assert len(differ) <= 1
    assert all(line.startswith(("    export A=", "ENV A=")) for line in differ)


def _with(path: Path, value: str | None):  # type: ignore[no-untyped-def]  # noqa: ANN202
    if value is None:
        return library.load(str(path))
    calm = path.with_name("calm.toml")
    calm.write_text(
        'summary = "x"\n[base]\nkind = "debootstrap"\nrelease = "bookworm"\n[[steps]]\nblock = "env"\nvariables = { A = "calm" }\n'
    )
    return msgspec.structs.replace(library.load(str(calm)), name="x")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--from", "nvcr.io/nvidia/pytorch:25.06-py3", "--with", "horovod", "--with", "jupyter"),
        ("--from", "pytorch_cpu", "--pip", "einops==0.8.1"),
        ("--from", "docker://ghcr.io/someone/thing:1", "--with", "submitit"),
        ("--from", "base.sif"),
    ],
    ids=lambda arguments: arguments[1],
)
def test_a_new_recipe_resolves(arguments: tuple[str, ...], tmp_path: Path) -> None:
    done = CliRunner().invoke(
        command, ("new", "mine", "--directory", str(tmp_path), *arguments), catch_exceptions=False
    )
    assert done.exit_code == 0
    for form in ("apptainer", "docker"):
        assert library.render(library.load(str(tmp_path / "mine.toml")), form)
    again = CliRunner().invoke(command, ("new", "mine", "--directory", str(tmp_path), *arguments))
    assert isinstance(again.exception, UsageError)


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
def test_an_image_lacks_what_its_recipe_or_base_promised(
    found: dict[str, str | None], lacks: list[str]
) -> None:
    """The values matter only of lists of directories: others may differ each time, or the recipe replaces them."""
    stages = Plan(
        name="x",
        base=LocalImage(path="/base.sif"),
        path=("/opt/venv/bin",),
        environment={"MINE": "1", "CPATH": "/mine"},
        expanding={"LIBRARY_PATH": "${LIBRARY_PATH}:/more"},
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
    assert list_missing(promised_variables(base, stages.variables, stages.path), has) == lacks

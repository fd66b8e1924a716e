"""Recipes: what is refused, and that it is said where and what would have been right."""

from __future__ import annotations

import pytest

from toolkit.errors import ConfigError, UnknownImageError
from toolkit.images.recipe import library

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
the name of what another adds | steps | | B S "run"; commands = ["true"]; S "apt"; packages = ["zip"]; S "run"; commands = ["true"]; name = "apt-more"
a name of two words | steps[0] | | B S "run"; commands = ["true"]; name = "a b"
a relative base | base | | summary = "x"; [base]; kind = "localimage"; path = "x.sif"
no release | base | | summary = "x"; [base]; kind = "debootstrap"; release = "12; reboot"
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
        ("broken.toml/missing.toml", None, "cannot be read"),
        (".toml", None, "cannot be read"),
    ],
)
def test_files_that_are_no_recipes(tmp_path, name, text, message):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=message):
        library.load(str(tmp_path / name))


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
def test_what_is_unknown_is_refused(text, error, close, tmp_path):
    (tmp_path / "x.toml").write_text(f'summary = "x"\n{text}\n')
    with pytest.raises(error) as raised:
        library.load(str(tmp_path / "x.toml"))
    of_file = str(tmp_path / "x.toml") in (raised.value.place or "")
    assert of_file or raised.value.place in ("features", None)
    assert raised.value.close == close

"""`toolkit lint`: each rule finds its fault and leaves the nearest script alone; --fix never changes the meaning."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.hostile import HOSTILE
from toolkit import sites
from toolkit.cli.check import lint_files as command
from toolkit.errors import NoSpaceError, UsageError, of_system
from toolkit.lint.files import context_of, save
from toolkit.lint.linter import fixed, lint
from toolkit.lint.rules import RULES
from toolkit.lint.script import Context, Script, parse
from toolkit.model.site import Site, SitePartition
from toolkit.quoting import sbatch
from tools.docs.lint_cases import CASES, Case


def context(case: Case, text: str) -> Context:
    site = sites.load(case.site) if case.site else None
    context = context_of(Path("job.sbatch"), text, site)
    return context._replace(is_directory=lambda path: path == "there")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_rule_finds_its_fault_and_no_other_does(case):
    found = lint(case.bad, context(case, case.bad))
    assert [(one.name, one.line) for one in found] == [(case.rule, line) for line in case.lines]
    assert all(one.cause and one.source and one.message for one in found)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_near_miss_is_left_alone(case):
    assert lint(case.good, context(case, case.good)) == ()


@pytest.mark.parametrize("case", [case for case in CASES if case.fixed], ids=lambda case: case.id)
def test_what_is_mechanical_is_mended(case):
    text, mended = fixed(case.bad, context(case, case.good))
    assert text == case.fixed
    assert mended
    assert lint(text, context(case, text)) == ()


def test_every_rule_has_a_case():
    names = {rule.name for rule in RULES}
    assert len(names) == len(RULES)
    assert names == {case.rule for case in CASES}


@pytest.mark.parametrize("value", HOSTILE)
def test_nothing_makes_it_stumble(value):
    for text in (
        value,
        f"#!/bin/bash\n#SBATCH {value}\n{value}\n",
        f"srun {value} \\",
        f"a=({value}",
        f"cat <<E\n{value}",
        f'echo "{value}\n{value}',
    ):
        lint(text, Context(site=sites.load("neuron")))
        fixed(text)


def test_the_command_shows_faults(tmp_path):
    script = tmp_path / "job.sbatch"
    script.write_text("#!/bin/bash\n#SBATCH –nodes=2\nif true\n")
    done = CliRunner().invoke(command, [str(script)])
    assert done.exit_code == 1
    assert f"{script}:2: error: –nodes begins with an en dash [dash]" in done.stdout
    assert "[syntax]" in done.stdout


BROKEN = "#!/bin/bash\n#SBATCH –nodes={}\nsrun true\n"
FIXED = "#!/bin/bash\n#SBATCH --nodes={}\nsrun true\n"


def fix(script: Path) -> str:
    done = CliRunner().invoke(command, ["--fix", str(script)])
    assert done.exit_code == 0, done.output
    return script.read_text()


def test_no_original_is_ever_written_over(tmp_path):
    script = tmp_path / "job.sbatch"
    for number in (1, 2, 3):
        script.write_text(BROKEN.format(number))
        assert fix(script) == FIXED.format(number)
        assert fix(script) == FIXED.format(number)  # changes nothing, and keeps nothing
    kept = {path.name: path.read_text() for path in tmp_path.glob("*.orig*")}
    names = ("job.sbatch.orig", "job.sbatch.orig.2", "job.sbatch.orig.3")
    assert kept == {name: BROKEN.format(number) for number, name in enumerate(names, 1)}


def test_a_link_stays_a_link_and_modes_stay(tmp_path):
    real, link = tmp_path / "real.sbatch", tmp_path / "link.sbatch"
    real.write_text(BROKEN.format(1))
    real.chmod(0o750)
    link.symlink_to("real.sbatch")
    # Dangling; nothing is written through it.
    (tmp_path / "real.sbatch.orig").symlink_to(tmp_path / "precious")
    assert fix(link) == FIXED.format(1)
    assert link.is_symlink()
    assert not (tmp_path / "precious").exists()
    original = tmp_path / "real.sbatch.orig.2"
    assert original.read_text() == BROKEN.format(1)
    assert [path.stat().st_mode & 0o7777 for path in (real, original)] == [0o750, 0o750]


@pytest.mark.parametrize("fails", ["pathlib.Path.replace", "os.fsync"])
def test_a_fix_that_fails_leaves_everything_as_it_was(fails, tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    script = tmp_path / "job.sbatch"
    script.write_text(BROKEN.format(1))
    monkeypatch.setattr(fails, full)
    done = CliRunner().invoke(command, ["--fix", str(script)])
    assert isinstance(done.exception, OSError)
    assert isinstance(of_system(done.exception), NoSpaceError)
    assert [path.name for path in tmp_path.iterdir()] == ["job.sbatch"]
    assert script.read_text() == BROKEN.format(1)


def test_what_is_no_file_is_not_fixed(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="regular files"):
        save(tmp_path / "pipe", "text")


SMALL = Site(
    name="small",
    partitions={"long": SitePartition(nodes=4, cpus=8, gpus=4, memory=8192, max_minutes=60)},
)


@pytest.mark.parametrize(
    ("directives", "line", "message"),
    [
        ("#SBATCH -p long\n#SBATCH -t 1:01:00", 3, "partition long gives 60 minutes at most"),
        ("#SBATCH -p long\n#SBATCH -N 5-9", 3, "partition long has 4 nodes, 5 were asked for"),
        ("#SBATCH -p long\n#SBATCH -p lang", 3, "no partition 'lang'"),
        ("#SBATCH -p long\n#SBATCH --mem=9G", 3, "8192 MB of memory per node, 9216"),
        ("#SBATCH -p long\n#SBATCH -N 2 -n 17", 3, "8 CPUs per node, 9 were"),
        ("#SBATCH -p long\n#SBATCH -N 2-8 -n 16 -t 1:00:00 --mem=8G", 0, ""),
        ("#SBATCH -p long\n#SBATCH -n 17", 0, ""),  # Slurm takes as many nodes as it needs
        # One task with all CPUs, where `toolkit run` would start a rank for each GPU.
        ("#SBATCH -p long\n#SBATCH --gres=gpu:v100:4 -c 8", 0, ""),
        ("#SBATCH -p long\n#SBATCH --gres=gpu:v100:5", 3, "4 GPUs, 5 were asked for"),
        ("#SBATCH -p long\n#SBATCH -N all -c ² -t soon --mem=much", 0, ""),  # sbatch refuses these
    ],
)
def test_a_site_is_asked_by_the_rules_of_run(directives, line, message):
    found = [
        (one.line, one.message)
        for one in lint(f"#!/bin/bash\n{directives}\nsrun true\n", Context(site=SMALL))
        if one.name == "site"
    ]
    assert [number for number, _ in found] == ([line] if line else [])
    assert all(message in text for _, text in found)


WORD = st.text(st.sampled_from("abcXYZ019_.:/%,+@-–—“”‘’$=# \"'\\\\"), min_size=1, max_size=12)
PLAIN = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)
NUMBER = st.integers(1, 64).map(str)
TEXT = ("job-name", "comment", "output", "chdir", "account", "constraint")
COUNT = ("nodes", "ntasks", "ntasks-per-node", "cpus-per-task")
SHORT = {"job-name": "J", "nodes": "N", "ntasks": "n", "account": "A", "output": "o"}
FAULTS = ["none", "en dash", "em dash", "underscores", "indented", "blank after hash"]
FAULTS += ["lower case", "carriage return", "late"]

Meant = tuple[str, str]


def spoiled(option: Meant, fault: str, *, is_short: bool) -> str:
    """Write a directive with a fault."""
    name, value = option
    text = sbatch(value)
    if is_short and name in SHORT:
        line = f"#SBATCH -{SHORT[name]} {text}"
        return {"en dash": line.replace(" -", " –", 1), "carriage return": f"{line}\r"}.get(
            fault, line
        )
    line = f"#SBATCH --{name}={text}"
    return {
        "en dash": f"#SBATCH –{name}={text}",
        "em dash": f"#SBATCH —{name} {text}",
        "underscores": f"#SBATCH --{name.replace('-', '_')}={text}",
        "indented": f"  {line}",
        "blank after hash": f"# {line[1:]}",
        "lower case": f"#sbatch --{name}={text}",
        "carriage return": f"{line}\r",
    }.get(fault, line)


def options_of(script: Script) -> set[Meant]:
    """Return what sbatch would read of a script."""
    return {
        (option.name, option.value or "")
        for one in script.directives
        if one.effective
        for option in one.options
    }


@st.composite
def scripts(draw: st.DrawFn) -> tuple[str, set[Meant]]:
    """A script, and the options that its author meant, each once."""
    names = draw(st.lists(st.sampled_from((*TEXT, *COUNT)), unique=True, max_size=5))
    meant = [(name, draw(NUMBER if name in COUNT else st.one_of(WORD, PLAIN))) for name in names]
    before: list[str] = []
    after: list[str] = []
    for option in meant:
        fault = draw(st.sampled_from(FAULTS))
        line = spoiled(option, fault, is_short=draw(st.booleans()))
        (after if fault == "late" else before).append(line)
    lines = ["#!/bin/bash", *before, "module purge", *after, "srun true"]
    return "\n".join(lines) + "\n", set(meant)


# A busy machine is no fault of the strategy.
@settings(max_examples=300)
@given(scripts())
@example(('#!/bin/bash\n#SBATCH --comment="a –b"\nsrun true\n', {("comment", "a –b")}))
@example(('#!/bin/bash\n#SBATCH --comment="it’s"\nsrun true\n', {("comment", "it’s")}))
@example(('#!/bin/bash\n#SBATCH --comment="\\"–X"\nsrun true\n', {("comment", '"–X')}))
def test_what_is_fixed_is_what_was_meant(written):
    """Each option that sbatch reads after --fix was meant, or it stood there so before."""
    text, meant = written
    result, _ = fixed(text)
    assert fixed(result)[0] == result
    assert len(lint(result)) <= len(lint(text))
    before, after = options_of(parse(text)), options_of(parse(result))
    assert after <= meant | before, (text, result)
    assert {name for name, _ in before & meant} <= {name for name, _ in after & meant}, result


HIDDEN = ("#SBATCH –n 4", "#SBATCH -- time=1", "  #SBATCH -c 2", "#sbatch -n 1")


@given(st.lists(st.sampled_from(HIDDEN), max_size=4))
def test_a_script_that_a_script_writes_is_left_alone(lines):
    inner = "\n".join(("#!/bin/bash", "#SBATCH -N 2", *lines, "true"))
    for writing in (f"cat >other <<'END'\n{inner}\nEND", f"printf '{inner}\n' >other"):
        text = f"#!/bin/bash\n#SBATCH -N 1\n{writing}\nsbatch other\n"
        assert fixed(text)[0] == text

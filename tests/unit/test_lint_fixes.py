"""--fix never changes the meaning: what a script's author meant comes out, or the line is left as it is.

Directives are written as they are meant and then spoiled, as people and word processors do it.
"""

from __future__ import annotations

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from toolkit.lint.linter import fixed, lint
from toolkit.lint.script import Script, parse
from toolkit.quoting import sbatch

WORD = st.text(st.sampled_from("abcXYZ019_.:/%,+@-–—“”‘’$=# \"'\\\\"), min_size=1, max_size=12)
PLAIN = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)
NUMBER = st.integers(1, 64).map(str)
TEXT = ("job-name", "comment", "output", "chdir", "account", "constraint")
COUNT = ("nodes", "ntasks", "ntasks-per-node", "cpus-per-task")
SHORT = {"job-name": "J", "nodes": "N", "ntasks": "n", "account": "A", "output": "o"}
FAULTS = ("none", "en dash", "em dash", "underscores", "indented", "blank after hash")
FAULTS += ("lower case", "carriage return", "late")

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
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(scripts())
@example(('#!/bin/bash\n#SBATCH --comment="a –b"\nsrun true\n', {("comment", "a –b")}))
@example(('#!/bin/bash\n#SBATCH --comment="it’s"\nsrun true\n', {("comment", "it’s")}))
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

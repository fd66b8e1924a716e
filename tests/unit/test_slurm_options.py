"""Options of sbatch: the one table, what is handed on with --slurm, and typed GPUs."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import fields, replace

from tests.hostile import HOSTILE, MULTILINE
from tests.unit.samples import FACTS, NEURON, PARTITIONS, make_case
from toolkit import scripts, sites
from toolkit.cli.options import flags
from toolkit.cli.run import command, explanation
from toolkit.errors import ConfigError, PlanError, ToolkitError, UsageError
from toolkit.model.base import from_json, from_toml, to_json
from toolkit.model.case import Case
from toolkit.model.job import Job
from toolkit.model.plan import Plan
from toolkit.model.site import Facts, Site
from toolkit.model.slurm_options import OPTIONS, OWN, Takes
from toolkit.planning.plan import decide
from toolkit.planning.settings import Layer, from_environment, layer, merge
from toolkit.quoting import sbatch_option
from toolkit.rules.partition import gpu_types
from toolkit.runs.interactive import salloc_command
from toolkit.slurm import parse

HELP = """Usage: sbatch [OPTIONS(0)...] [ : [OPTIONS(N)...]] script(0) [args(0)...]

Parallel run options:
  -a, --array=indexes         job array index values
      --bb=<spec>             burst buffer specifications
      --contiguous            demand a contiguous range of nodes
      --exclusive[=user]      allocate nodes in exclusive mode
  -L, --licenses=names        required license, comma separated
      --mail-user=user        who to send email notification for job state
      --nice[=value]          decrease scheduling priority by value
  -H, --hold                  submit job in held state
  -B  --extra-node-info=S[:C[:T]]  combine request of sockets per node,
      --mem=MB                minimum amount of real memory
                              --mem >= --mem-per-cpu if --mem is specified.

Options provided by plugins:
      --auto_mount=path       [spank] mount a directory
"""
INSTALLED = parse.sbatch_options(HELP)
TYPED = tuple(replace(one, gpus_by_type={"v100": one.gpus}) for one in PARTITIONS)


def planned(job: dict[str, Any], **changes: Any) -> Plan:
    return decide(make_case(job, **changes))


def refused(slurm: dict[str, Any], installed: dict[str, Takes] | None = None) -> ToolkitError:
    facts = replace(FACTS, sbatch_options=INSTALLED if installed is None else installed)
    with pytest.raises(PlanError) as caught:
        planned({"slurm": slurm}, facts=facts)
    (finding,) = caught.value.findings
    return finding


def test_the_help_of_sbatch_says_what_each_option_takes() -> None:
    assert INSTALLED == {
        "array": "value",
        "bb": "value",
        "contiguous": "flag",
        "exclusive": "maybe",
        "licenses": "value",
        "mail-user": "value",
        "nice": "maybe",
        "hold": "flag",
        "extra-node-info": "value",
        "mem": "value",
        "auto_mount": "value",
    }


def test_flags_and_fields_are_those_of_the_table() -> None:
    """A new option of ours is a row of the table and a field of ``Job``; this says which one is missing."""
    others = """summary script arguments image runtime conda_env modules site launcher bind datasets env pass_env secret runs
    max_restarts init max_requeues interactive pty sweep rerun_of after require_signed signature_key snapshot python_module slurm"""
    assert {one.name for one in fields(Job)} - {*others.split()} == {one.field for one in OWN}
    shown = {name: parameter for parameter in command.params for name in parameter.opts}
    shown.pop("--cluster", None)  # the group adds it to each command that it loads
    assert {f"--{one.name}" for one in OWN} <= set(shown)
    assert all(one.help and shown[f"--{one.name}"].help == one.help for one in OWN)
    # --cluster, which names a local cluster, comes to each command when the command line loads it.
    foreign = {f"--{name}" for name, one in OPTIONS.items() if not one.kind} - {"--cluster"}
    assert not set(shown) & foreign


def test_every_option_that_a_plan_decides_is_refused_with_the_reason() -> None:
    decided = {name: option for name, option in OPTIONS.items() if option.refusal}
    assert {"nodes", "ntasks", "gpus", "output", "chdir", "array", "wrap", "export"} <= set(decided)
    for name, option in decided.items():
        finding = refused({name: "1"})
        assert option.refusal in finding.cause
        assert finding.place == f"--slurm {name}"
        assert finding.next_step == (option.instead or None)


@pytest.mark.parametrize("value", HOSTILE)
def test_a_hostile_value_reaches_sbatch_as_it_is(value: str) -> None:
    decided = planned({"slurm": {"mail-user": value}})
    text = scripts.script(decided)
    (line,) = [line for line in text.splitlines() if line.startswith("#SBATCH --mail-user")]
    written = line.removeprefix("#SBATCH --mail-user=")
    if written.startswith('"'):  # sbatch's grammar: a backslash escapes, whatever follows
        body, read = iter(written[1:-1]), ""
        for character in body:
            read += next(body) if character == "\\" else character
        written = read
    assert written == value
    argv = salloc_command(
        planned({"slurm": {"mail-user": value}, "interactive": True}), "job.sbatch"
    )
    assert f"--mail-user={value}" in argv
    assert shlex.split(shlex.join(argv)) == list(argv)


@pytest.mark.parametrize("value", MULTILINE)
def test_a_value_that_no_directive_can_carry_is_refused(value: str) -> None:
    assert "an #SBATCH line cannot carry" in refused({"licenses": value}).cause


@pytest.mark.parametrize("name", [*(text for text in HOSTILE if text != "plain"), *MULTILINE, ""])
def test_a_hostile_name_is_no_option(name: str) -> None:
    finding = refused({name: "x"}, installed={})
    assert "cannot be an option of sbatch" in finding.cause
    with pytest.raises(UsageError):
        sbatch_option(name)
    with pytest.raises(UsageError):  # nor does one of a damaged record reach a script
        scripts.script(replace(planned({}), slurm={name: "x"}))


@pytest.mark.parametrize(
    ("slurm", "says", "close"),
    [
        ({"licences": "a"}, "the sbatch of this cluster has no option --licences", "licenses"),
        ({"mail-usr": "a"}, "no option --mail-usr", "mail-user"),
        ({"L": "a"}, "'L' is a short option", None),
        ({"burst-buffer": "a"}, "no option --burst-buffer", None),
        ({"reboot": True}, "the sbatch of this cluster has no option --reboot", None),
        ({"licenses": True}, "sbatch's --licenses needs a value", None),
        ({"contiguous": "yes"}, "sbatch's --contiguous takes no value", None),
        ({"auto_mount": True}, "sbatch's --auto_mount needs a value", None),
        ({"gres": "nvme:1,gpu:2"}, "the plan counts GPUs by node", None),
    ],
)
def test_what_the_installed_sbatch_does_not_take_is_refused(
    slurm: dict[str, Any], says: str, close: str | None
) -> None:
    finding = refused(slurm)
    assert says in finding.cause
    if close:
        assert finding.close == close


def test_an_option_that_the_help_leaves_out_and_one_of_a_plugin_are_taken() -> None:
    facts = replace(FACTS, sbatch_options=INSTALLED)
    decided = planned({"slurm": {"wait-all-nodes": 1, "auto_mount": "/data"}}, facts=facts)
    assert decided.slurm == {"wait-all-nodes": "1", "auto_mount": "/data"}
    assert decided.notes == ()


def test_without_sbatch_an_unknown_option_is_written_with_a_note() -> None:
    decided = planned({"slurm": {"licenses": "a", "newest": "b"}})
    assert decided.slurm == {"licenses": "a", "newest": "b"}
    assert [note.partition(":")[0] for note in decided.notes] == ["--slurm newest"]


def test_precedence_holds_for_each_option() -> None:
    site = Site(name="x", slurm={"licenses": "site", "nice": 1, "hold": True, "wckey": "site"})
    layers = [
        Layer("site x", {"slurm": site.slurm}),
        layer("toolkit.toml", from_toml('[slurm]\nlicenses = "project"\nhold = false', Job)),
        layer("job.toml", from_toml('[slurm]\nlicenses = "job"\ntmp = "1G"', Job)),
        from_environment({"TOOLKIT_SLURM_LICENSES": "shell", "TOOLKIT_SLURM_CONTIGUOUS": "yes"}),
        flags({"slurm": ("nice=7", "mail-user=", "--tmp=2G")}, ()),
    ]
    merged = merge(layers)
    assert merged.job.slurm == {
        "licenses": "shell",
        "nice": "7",
        "wckey": "site",
        "tmp": "2G",
        "contiguous": True,
        "mail-user": "",
    }
    assert merged.origins["slurm licenses"] == "environment"
    assert merged.origins["slurm nice"] == "--slurm"
    assert merged.origins["slurm wckey"] == "site x"
    assert merge(layers[:3]).origins["slurm tmp"] == "job.toml"
    decided = decide(make_case()._replace(job=replace(make_case().job, slurm=merged.job.slurm)))
    table = explanation(replace(decided, origins={**decided.origins, **merged.origins}))
    assert [row.split() for row in table.splitlines() if "slurm wckey" in row] == [
        ["slurm", "wckey", "site", "site", "x"]
    ]


@pytest.mark.parametrize(
    ("given", "key", "value"),
    [
        ("partition=long", "partition", "long"),
        ("exclusive", "exclusive", True),
        ("exclusive=user", "exclusive", "user"),
        ("job-name=mine", "job_name", "mine"),
        ("mem=4G", "mem", "4G"),
    ],
)
def test_an_option_with_a_flag_of_its_own_is_that_flag(given: str, key: str, value: object) -> None:
    merged = merge([Layer("job.toml", {key: "other"}), flags({"slurm": (given,)}, ())])
    assert getattr(merged.job, key) == value
    assert merged.origins[key] == f"--{key.replace('_', '-')}"
    assert merged.job.slurm == {}


def test_exclusive_with_a_word_is_written_with_it() -> None:
    assert dict(planned({"exclusive": "user"}).directives)["exclusive"] == "user"
    assert dict(planned({"exclusive": True}).directives)["exclusive"] == ""
    assert "exclusive" not in dict(planned({"exclusive": False}).directives)


def test_one_option_cannot_have_two_values() -> None:
    with pytest.raises(UsageError, match="contradicts"):
        merge([flags({"partition": "a", "slurm": ("partition=b",)}, ())])
    with pytest.raises(UsageError, match="given twice"):
        flags({"slurm": ("nice=1", "nice=2")}, ())


def test_a_run_that_is_repeated_has_its_options() -> None:
    job = Job(slurm={"licenses": "matlab:1", "hold": True, "mail-user": ""}, gpus="a100:4")
    assert from_json(to_json(job), Job) == job
    decided = planned({"slurm": {"hold": True, "mail-user": ""}})
    again = from_json(to_json(decided), Plan)
    assert again == decided
    assert again.slurm == {"hold": None, "mail-user": ""}
    assert "#SBATCH --hold\n" in scripts.script(again)
    assert '#SBATCH --mail-user=""\n' in scripts.script(again)


def test_a_plan_of_an_earlier_version_is_still_read() -> None:
    text = to_json(planned({"exclusive": True}))
    assert '"slurm"' not in text
    assert '"gpu_type"' not in text
    assert ("exclusive", None) in from_json(text, Plan).sbatch_options


def test_a_dependency_that_the_user_judges_is_written_once() -> None:
    decided = planned({"after": ("7",), "dependency": "afterok:7", "slurm": {}})
    assert dict(decided.directives)["kill-on-invalid-dep"] == "yes"
    decided = planned({"dependency": "afterok:7", "slurm": {"kill-on-invalid-dep": "no"}})
    names = [name for name, _ in decided.sbatch_options]
    assert names.count("kill-on-invalid-dep") == 1
    assert dict(decided.directives)["kill-on-invalid-dep"] == "no"


# Typed GPUs


@pytest.mark.parametrize(
    ("gpus", "most", "by_node", "kind"),
    [
        ("a100:4", 4, (), "a100"),
        ("a100:8,4", 8, (8, 4), "a100"),
        ("1g.10gb:2", 2, (), "1g.10gb"),
        ("4", 4, (), ""),
        (4, 4, (), ""),
    ],
)
def test_count_and_type_are_apart(
    gpus: int | str, most: int, by_node: tuple[int, ...], kind: str
) -> None:
    job = Job(gpus=gpus)
    assert (job.most_gpus, job.gpus_by_node, job.gpu_type) == (most, by_node, kind)
    assert from_toml(f"gpus_per_node = {gpus!r}", Job).most_gpus == most


def test_typed_gpus_are_asked_for_by_type_and_counted_by_number() -> None:
    facts = replace(FACTS, partitions=TYPED)
    decided = planned({"gpus": "V100:2", "nodes": 1, "ntasks_per_node": None}, facts=facts)
    assert (decided.gpus_per_node, decided.gpu_type, decided.ranks_per_node) == (2, "V100", 2)
    assert dict(decided.directives)["gres"] == "gpu:v100:2"  # as Slurm spells it
    assert decided.shape == "1 node x 2 V100 GPUs"
    several = {"gpus": "v100:4", "nodes": 2, "ntasks_per_node": None}
    assert dict(planned(several, facts=facts).directives)["gres"] == "gpu:v100:2"
    unequal = {"gpus": "v100:2,1", "nodes": None, "ntasks_per_node": None}
    assert dict(planned(unequal, facts=facts).directives)["gpus"] == "v100:3"


@pytest.mark.parametrize(
    ("job", "place", "says"),
    [
        ({"gpus": "a100:2"}, "--gpus", "partition main has no GPUs of type 'a100'"),
        ({"gpus_per_node": "v100:3"}, "--gpus-per-node", "has 2 GPUs (v100), 3 were asked for"),
        ({"gpus": "v100:4", "gpus_per_node": "a100:2"}, "--gpus", "name two types"),
    ],
)
def test_a_type_that_is_not_there_and_too_many_of_one_are_refused(
    job: dict[str, Any], place: str, says: str
) -> None:
    with pytest.raises(PlanError) as caught:
        planned({"ntasks_per_node": None, **job}, facts=replace(FACTS, partitions=TYPED))
    assert says in caught.value.findings[0].cause
    assert caught.value.findings[0].place == place


def _type_finding(job: Job, site: Site, facts: Facts | None = None) -> ToolkitError | None:
    return next(gpu_types(Case(job, site, facts=facts or Facts())), None)


def test_a_site_file_tells_which_types_there_are() -> None:
    neuron = sites.load("neuron")
    assert _type_finding(Job(gpus="v100:2", partition="cas_v100_4"), neuron) is None
    wrong = _type_finding(Job(gpus="h200:2", partition="cas_v100_4"), neuron)
    assert wrong is not None
    assert "with h200: --partition" in (wrong.next_step or "")
    typo = _type_finding(Job(gpus="a10:2"), neuron)
    assert typo is not None
    assert typo.close == "a100"
    untyped = Facts(
        partitions=PARTITIONS, container="singularity"
    )  # Slurm says gpu:4, the file says V100
    job = {"gpus": "v100:4", "partition": "cas_v100_4", "nodes": 1, "ntasks_per_node": None}
    decided = planned(job, site=replace(NEURON, partitions=neuron.partitions), facts=untyped)
    assert dict(decided.directives)["gres"] == "gpu:4"
    assert decided.gpu_type == "v100"


def test_a_site_says_what_slurm_calls_a_type() -> None:
    long_name = "nvidia_a100-sxm4-80gb"
    site = replace(NEURON, gpu_types={"a100": long_name, "any": ""})
    facts = Facts(partitions=tuple(replace(one, gpus_by_type={long_name: 4}) for one in PARTITIONS))
    job = {"gpus": "a100:2", "nodes": 1, "ntasks_per_node": None}
    decided = planned(job, site=site, facts=replace(facts, container="singularity"))
    assert dict(decided.directives)["gres"] == f"gpu:{long_name}:2"


def test_a_type_of_gpu_that_a_directive_cannot_carry_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ours.toml").write_text('[gpu_types]\na100 = "A100 NVLink"\n')
    with pytest.raises(
        ConfigError, match='expected a name without blanks, such as "a100"'
    ) as caught:
        sites.from_file(tmp_path / "ours.toml")
    assert "gpu_types" in str(caught.value.place)


def test_sinfo_counts_the_gpus_of_each_type() -> None:
    lines = (
        "main*|up|1:00:00|1-infinite|2|idle|4|4000|gpu:a100:4(S:0-1),gpu:1g.10gb:7\n"
        "main*|up|1:00:00|1-infinite|2|idle|4|4000|gpu:v100:2,nvme:100\n"
        "cpu|up|1:00:00|1-infinite|2|idle|4|4000|(null)"
    )
    main, cpu = parse.partitions(lines)
    assert main.gpus_by_type == {"a100": 4, "1g.10gb": 7, "v100": 2}
    assert main.gpus == 11
    assert (cpu.gpus, cpu.gpus_by_type) == (0, {})
    assert parse.gpu_counts("gres/gpu=8,gres/gpu:a100=8") == {"": 8, "a100": 8}
    assert parse.gpu_counts("gpu:4(IDX:0-3)") == {"": 4}

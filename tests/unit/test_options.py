"""What becomes of options: those of sbatch, of GPUs and memory, and variables that are passed on."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from msgspec.structs import fields, replace

from tests.hostile import HOSTILE, MULTILINE
from tests.unit.run_fixtures import Slurm
from tests.unit.samples import FACTS, LOCAL, NEURON, PARTITIONS, findings, make_case
from toolkit import scripts, sites
from toolkit.cli.options import flags
from toolkit.cli.run import command, explanation
from toolkit.errors import ToolkitError, UsageError
from toolkit.model.base import from_json, from_toml, to_json
from toolkit.model.case import Case
from toolkit.model.job import Job
from toolkit.model.run import Plan
from toolkit.model.site import Facts, Site
from toolkit.model.slurm_options import OPTIONS, OWN
from toolkit.planning import settings
from toolkit.planning.plan import decide
from toolkit.planning.settings import Layer, from_environment, layer, merge
from toolkit.quoting import sbatch_option
from toolkit.rules.job import gpu_types
from toolkit.runs.submit import salloc_command

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
LISTED = "array bb contiguous exclusive licenses mail-user nice hold extra-node-info mem auto_mount"
WITH_SBATCH = replace(FACTS, sbatch_options=Slurm(sbatch=HELP).sbatch_options())
TYPED = replace(
    FACTS, partitions=tuple(replace(one, gpus_by_type={"v100": one.gpus}) for one in PARTITIONS)
)
ON_4 = {"partition": "cas_v100_4", "ntasks_per_node": None}  # its nodes have 4 GPUs
MANY = ",".join(map(str, range(1000)))
ONE = {"nodes": 1, "ntasks_per_node": None}


def planned(job: dict[str, Any], **changes: Any) -> Plan:
    return decide(make_case(job, **changes))


def test_the_help_of_sbatch_lists_its_options():
    assert Slurm(sbatch=HELP).sbatch_options() == tuple(LISTED.split())


def test_flags_and_fields_are_those_of_the_table():
    """A new option of ours is a row of the table and a field of ``Job``; this says which one is missing."""
    others = """summary script arguments image runtime conda_env modules site launcher bind datasets env pass_env secret runs
    max_restarts init max_requeues notify retry interactive pty sweep rerun_of after require_signed signature_key snapshot stage_image python_module slurm"""
    assert {one.name for one in fields(Job)} - {*others.split()} == {one.field for one in OWN}
    shown = {name: parameter for parameter in command.params for name in parameter.opts}
    shown.pop("--cluster", None)  # the group adds it to each command that it loads
    assert {f"--{one.name}" for one in OWN} <= set(shown)
    assert all(one.help and shown[f"--{one.name}"].help == one.help for one in OWN)
    # --cluster, which names a local cluster, comes to each command when the command line loads it.
    foreign = {f"--{name}" for name, one in OPTIONS.items() if not one.kind} - {"--cluster"}
    assert not set(shown) & foreign


def test_every_option_that_a_plan_decides_is_refused_with_the_reason():
    decided = {name: option for name, option in OPTIONS.items() if option.refusal}
    assert {"nodes", "ntasks", "gpus", "output", "chdir", "array", "wrap", "export"} <= set(decided)
    for name, option in decided.items():
        (finding,) = findings({"slurm": {name: "1"}}, facts=WITH_SBATCH)
        assert option.refusal in finding.cause
        assert finding.place == f"--slurm {name}"
        assert finding.next_step == (option.instead or None)


# What is refused: the settings, the place of the first finding and words of its cause, of a cluster with an sbatch.
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"slurm": {"licences": "a"}}, "--slurm licences", "the sbatch of this cluster has no option --licences"),
    ({"slurm": {"mail-usr": "a"}}, "--slurm mail-usr", "no option --mail-usr"),
    ({"slurm": {"burst-buffer": "a"}}, "--slurm burst-buffer", "no option --burst-buffer"),
    ({"slurm": {"reboot": True}}, "--slurm reboot", "the sbatch of this cluster has no option --reboot"),
    ({"slurm": {"gres": "nvme:1,gpu:2"}}, "--slurm gres", "--gres cannot be passed to sbatch: the plan counts GPUs by node"),
    *(({"slurm": {name: True}}, f"--slurm {name}", f"--{name} needs a value") for name in ("mail-user", "account", "gres")),
    *(({"slurm": {"licenses": value}}, "--slurm licenses", "an #SBATCH line cannot carry") for value in MULTILINE),
    # GPUs and memory, at the option that was used
    (ON_4 | {"gpus_per_node": 8}, "--gpus-per-node", "has 4 GPU"),  # never that for the job
    (ON_4 | {"gpus": 10}, "--gpus", "has 4 GPU"),  # 5 each are too many as well
    (ON_4 | {"gpus": 7}, "--gpus", "has 4 GPU"),  # cannot be shared evenly
    (ON_4 | {"gpus": 8, "nodes": 1}, "--gpus", "has 4 GPU"),
    (ON_4 | {"gpus": 8, "gpus_per_node": 2}, "--gpus", "gives 4 GPUs, --gpus asks for 8"),
    (ON_4 | {"gpus": "4,2", "gpus_per_node": 2}, "--gpus", "gives 4 GPUs, --gpus asks for 4,2"),
    (ON_4 | {"gpus_per_node": "4,0", "nodes": 1}, "--gpus-per-node", "has no GPU"),
    ({"gpus": "a100:2", "ntasks_per_node": None}, "--gpus", "has no GPUs of type 'a100'"),
    ({"gpus_per_node": "v100:3", "ntasks_per_node": None}, "--gpus-per-node", "has 2 GPUs (v100), 3 were asked for"),
    ({"gpus": "v100:4", "gpus_per_node": "a100:2", "ntasks_per_node": None}, "--gpus", "gives a100:4 GPUs, --gpus asks for v100:4"),
    ({"mem": "5G"}, "--mem", "has 4000 MB of memory per node, 5120 were asked for"),
    ({"mem": "4001"}, "--mem", "4001"),
    # what could not go back into the queue
    ({"requeue": True, "signal": "USR1@60"}, "--signal", "--requeue needs USR1 or USR2"),
    ({"requeue": True, "signal": "B:TERM@60"}, "--signal", "USR1 or USR2"),
    ({"requeue": True, "signal": "B:USR1@60", "time": "2"}, "--signal", "as soon as it runs"),
    # what is no sweep
    *(({"sweep": (text,)}, "--sweep", "NAME=VALUE") for text in ("lr", "lr=", "lr=1,,2", 'lr="1', "lr=1\n2")),
    *(({"sweep": texts}, "--sweep", "once") for texts in (("lr=1,1",), ("lr=1", "lr=2"))),
    ({"sweep": ("lr=1,2",), "array": "0,2"}, "--array", "no point 2"),
    *(({"array": text}, "--array", "no list") for text in ("0-3%x", "0-99%", ",", "0-", "1,x", "3-1", "0-9999999")),
    ({"sweep": ("lr=1,2",), "nodes": "1:2"}, "--nodes", "fixed number of nodes"),
    ({"sweep": tuple(f"{name}={MANY}" for name in "abc")}, "--sweep", "the sweep has 1000000000 points; the limit is 10000"),
    # what does not go with a terminal
    *(({"interactive": True, **job}, place, "one job") for job, place in (
        ({"array": "0-3"}, "--array"), ({"requeue": True}, "--requeue"), ({"nodes": "1:2"}, "--nodes"), ({"sweep": ("lr=1,2",)}, "--array"))),
    ({"launcher": "horovod-elastic", "pty": True}, "--pty", "cannot give ranks a terminal"),
    ({"launcher": "shell"}, "--launcher", ""),
]  # fmt: skip


@pytest.mark.parametrize(("job", "place", "says"), REFUSED, ids=range(len(REFUSED)))
def test_what_cannot_be_is_refused_at_the_option_that_was_used(job, place, says):
    found = findings(job, facts=replace(TYPED, sbatch_options=WITH_SBATCH.sbatch_options))
    told = [finding for finding in found if finding.place == place]
    assert told, found
    assert says in told[0].summary
    assert len({finding.place for finding in found}) == 1 or "gpu" in str(job) or "launcher" in job


@pytest.mark.parametrize("name", [*(text for text in HOSTILE if text != "plain"), *MULTILINE, ""])
def test_a_hostile_name_is_no_option(name):
    (finding,) = findings({"slurm": {name: "x"}})
    assert "cannot be an option of sbatch" in finding.cause
    with pytest.raises(UsageError):
        sbatch_option(name)
    with pytest.raises(UsageError):  # nor does one of a damaged record reach a script
        scripts.script(replace(planned({}), slurm={name: "x"}))


@pytest.mark.parametrize("value", HOSTILE)
def test_a_hostile_value_reaches_sbatch_as_it_is(value):
    text = scripts.script(planned({"slurm": {"mail-user": value}}))
    (line,) = [line for line in text.splitlines() if line.startswith("#SBATCH --mail-user")]
    written = line.removeprefix("#SBATCH --mail-user=")
    if written.startswith('"'):  # sbatch's grammar: a backslash escapes, whatever follows
        body, read = iter(written[1:-1]), ""
        for character in body:
            read += next(body) if character == "\\" else character
        written = read
    assert written == value
    allocated = planned({"slurm": {"mail-user": value}, "interactive": True})
    argv = salloc_command(allocated, "job.sbatch")
    assert f"--mail-user={value}" in argv
    assert shlex.split(shlex.join(argv)) == list(argv)


def test_options_that_the_help_leaves_out_and_those_of_plugins_are_taken():
    decided = planned({"slurm": {"wait-all-nodes": 1, "auto_mount": "/data"}}, facts=WITH_SBATCH)
    assert decided.slurm == {"wait-all-nodes": "1", "auto_mount": "/data"}
    unchecked = planned({"slurm": {"licenses": "a", "newest": "b"}})  # where there is no sbatch
    assert unchecked.slurm == {"licenses": "a", "newest": "b"}


def test_precedence_holds_for_each_option():
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
    origins = [merged.origins[f"slurm {name}"] for name in ("licenses", "nice", "wckey")]
    assert origins == ["environment", "--slurm", "site x"]
    assert merge(layers[:3]).origins["slurm tmp"] == "job.toml"
    decided = planned({"slurm": merged.job.slurm})
    table = explanation(replace(decided, origins={**decided.origins, **merged.origins}))
    assert [row.split() for row in table.splitlines() if "slurm wckey" in row] == [
        ["slurm", "wckey", "site", "site", "x"]
    ]


def test_an_option_with_a_flag_of_its_own_is_that_flag():
    for given, key, value in (
        ("partition=long", "partition", "long"),
        ("exclusive", "exclusive", True),
        ("exclusive=user", "exclusive", "user"),
        ("job-name=mine", "job_name", "mine"),
        ("mem=4G", "mem", "4G"),
    ):
        merged = merge([Layer("job.toml", {key: "other"}), flags({"slurm": (given,)}, ())])
        assert getattr(merged.job, key) == value
        assert merged.origins[key] == f"--{key.replace('_', '-')}"
        assert merged.job.slurm == {}


def test_one_option_cannot_have_two_values():
    with pytest.raises(UsageError, match="contradicts"):
        merge([flags({"partition": "a", "slurm": ("partition=b",)}, ())])
    with pytest.raises(UsageError, match="given twice"):
        flags({"slurm": ("nice=1", "nice=2")}, ())


WRITTEN: list[tuple[dict[str, Any], dict[str, str | None]]] = [
    ({"exclusive": "user"}, {"exclusive": "user"}),
    ({"exclusive": True}, {"exclusive": ""}),
    ({"exclusive": False}, {"exclusive": None}),
    ({"mem": "3G"}, {"mem": "3G"}),
    ({"mem": 4000}, {"mem": "4000"}),
    ({"mem": "0"}, {"mem": "0"}),
    ({}, {"mem": None, "dependency": None, "kill-on-invalid-dep": None}),
    ({"after": ("7",), "dependency": "afterok:7"}, {"kill-on-invalid-dep": "yes"}),
    ({"after": ("train-0001",)}, {"dependency": None, "kill-on-invalid-dep": None}),  # it has ended
    ({"dependency": "afterok:7"}, {"dependency": "afterok:7", "kill-on-invalid-dep": None}),
    ({"dependency": "afterok:7", "slurm": {"kill-on-invalid-dep": "no"}}, {"kill-on-invalid-dep": "no"}),
    # a job that goes back is told to stop in time
    ({"requeue": True}, {"signal": "B:USR1@120", "requeue": "", "no-requeue": None}),
    ({"requeue": True, "time": "4:00"}, {"signal": "B:USR1@60"}),
    ({"requeue": True, "signal": "RB:12@600"}, {"signal": "B:USR2@600"}),
    ({"requeue": True, "signal": "B:SIGUSR1@10"}, {"signal": "B:USR1@10"}),
    ({"signal": "USR1@60"}, {"signal": "USR1@60", "requeue": None, "no-requeue": ""}),
    # any other asks its ranks where they are, unless the signal is the user's
    ({}, {"signal": "URG@40"}),
    ({"array": "0-3"}, {"signal": "URG@40"}),
    ({"interactive": True}, {"signal": None}),
    # GPUs are asked for by Slurm's name of their type
    (ONE | {"gpus": "V100:2"}, {"gres": "gpu:v100:2"}),
    (ONE | {"gpus": "v100:4", "nodes": 2}, {"gres": "gpu:v100:2"}),
    (ONE | {"gpus": "v100:2,1", "nodes": None}, {"gpus": "v100:3", "gres": None}),
    ({"sweep": ("lr=1",)}, {"array": "0"}),
]  # fmt: skip


@pytest.mark.parametrize(("job", "directives"), WRITTEN, ids=range(len(WRITTEN)))
def test_what_is_asked_of_slurm_is_written_once(job, directives):
    decided = planned(job, facts=TYPED)
    for name, value in directives.items():
        assert dict(decided.directives).get(name) == value
        names = [name for name, _ in decided.sbatch_options]
        assert names.count(name) == (value is not None)


def test_a_plan_of_an_earlier_version_is_still_read():
    text = to_json(planned({"exclusive": True}))
    assert '"slurm"' not in text
    assert '"gpu_type"' not in text
    assert ("exclusive", None) in from_json(text, Plan).sbatch_options


# GPUs and memory


@pytest.mark.parametrize(
    ("job", "on_each", "says"),
    [
        ({"gpus": 4}, 4, "4 on each of 2 nodes, 8 in all"),  # as it has always been here
        ({"gpus": 2}, 2, "2 on each of 2 nodes, 4 in all"),
        ({"gpus": 8}, 4, "number for the job, as in Slurm: 4 on each of 2 nodes"),
        ({"gpus": 6}, 3, "number for the job, as in Slurm: 3 on each of 2 nodes"),
        ({"gpus": 12, "nodes": 3}, 4, "4 on each of 3 nodes"),
        ({"gpus": 4, "nodes": "1:2", "launcher": "torchrun"}, 4, "4 on each node"),
        ({"gpus": 4, "nodes": 1}, 4, ""),  # both readings are the same
        ({"gpus_per_node": 4}, 4, ""),
        ({"gpus_per_node": 4, "gpus": 8}, 4, ""),
        ({"gpus": 0}, 0, ""),
    ],
)
def test_gpus_are_read_as_slurm_does_where_that_can_be_told(job, on_each, says):
    decided = planned(ON_4 | job)
    assert decided.gpus_per_node == on_each
    assert dict(decided.directives).get("gres") == (f"gpu:{on_each}" if on_each else None)
    assert says in " ".join(decided.notes)
    assert bool(decided.notes) == bool(says)


def _type_finding(job: Job, site: Site) -> ToolkitError | None:
    return next(gpu_types(Case(job, site)), None)


def test_a_site_file_tells_which_types_there_are():
    neuron = sites.load("neuron")
    assert _type_finding(Job(gpus="v100:2", partition="cas_v100_4"), neuron) is None
    wrong = _type_finding(Job(gpus="h200:2", partition="cas_v100_4"), neuron)
    assert wrong is not None
    assert "with h200: --partition" in (wrong.next_step or "")
    typo = _type_finding(Job(gpus="a10:2"), neuron)
    assert typo is not None
    assert typo.close == "a100"
    # Slurm says gpu:4, the file says V100.
    untyped = Facts(partitions=PARTITIONS, container="singularity")
    job = ONE | {"gpus": "v100:4", "partition": "cas_v100_4"}
    decided = planned(job, site=replace(NEURON, partitions=neuron.partitions), facts=untyped)
    assert (dict(decided.directives)["gres"], decided.gpu_type) == ("gpu:4", "v100")


# Variables that are passed on


def passed(*names: str, **given: Any) -> tuple[Job, list[ToolkitError]]:
    return settings.with_variables(merge([Layer("below", given), flags({"env": names}, ())]).job)


def test_env_with_a_name_alone_passes_the_variable_on(monkeypatch):
    monkeypatch.setenv("OPTION_A", "line one\nline 'two'")
    monkeypatch.setenv("OPTION_EMPTY", "")
    monkeypatch.delenv("OPTION_B", raising=False)
    found, wrong = passed("OPTION_A", "OPTION_EMPTY", "X=1", env={"OPTION_A": "of the project"})
    assert found.env == {"OPTION_A": "line one\nline 'two'", "OPTION_EMPTY": "", "X": "1"}
    assert not wrong
    _, wrong = passed("OPTION_B")
    assert [(one.place, one.cause) for one in wrong] == [
        ("--env", "the variable OPTION_B is not set in this shell")
    ]
    with pytest.raises(UsageError, match="expects NAME=VALUE"):
        passed("")


def test_with_conda_a_name_that_is_no_variable_is_the_environment(monkeypatch):
    monkeypatch.setenv("OPTION_A", "a")
    missing = "the variable vision is not set in this shell"
    for names, below, environment, unset in (
        (("OPTION_A", "torch"), None, "torch", []),
        (("torch", "vision"), None, "torch", [missing]),
        (("OPTION_A",), "base", "base", []),
    ):
        found, wrong = passed(*names, runtime="conda", conda_env=below)
        assert (found.conda_env, [one.cause for one in wrong]) == (environment, unset)
        assert found.env == ({"OPTION_A": "a"} if "OPTION_A" in names else {})


def test_a_sweep_is_an_array_with_a_point_for_each_value_with_each():
    decided = planned({"sweep": ("lr=0.1,-0.01", 'tag="a,b",c', "-x=1")})
    assert dict(decided.directives)["array"] == "0-3"
    assert [point.arguments for point in decided.points] == [
        ("--lr", "0.1", "--tag", "a,b", "-x", "1"),
        ("--lr", "0.1", "--tag", "c", "-x", "1"),
        ("--lr=-0.01", "--tag", "a,b", "-x", "1"),
        ("--lr=-0.01", "--tag", "c", "-x", "1"),
    ]
    assert decided.points[3].values == (("lr", "-0.01"), ("tag", "c"), ("x", "1"))


def test_salloc_gets_the_options_that_it_has_within_the_sites_limit():
    site = replace(LOCAL, interactive_minutes=60)
    (finding,) = findings({"interactive": True, "time": "2:00:00"}, site=site)
    assert "60 minutes at most" in finding.cause
    job = {
        **{"interactive": True, "time": "30", "after": ("7",), "dependency": "afterok:7"},
        "slurm": {"propagate": "ALL", "wckey": "x"},
    }
    words = salloc_command(planned(job, site=site), "job.sbatch")
    assert words[0] == "salloc"
    assert {"--time=30", "--wckey=x"} < set(words)
    for name in ("propagate", "kill-on-invalid-dep", "requeue"):
        assert name not in " ".join(words)


def test_a_job_after_others_is_cancelled_where_it_can_never_start():
    job = {"after": ("train-0001",), "dependency": "singleton"}
    decided = dict(planned(job, after=("afterok:7", "afterany:8")).directives)
    assert decided["dependency"] == "singleton,afterok:7,afterany:8"
    assert decided["kill-on-invalid-dep"] == "yes"

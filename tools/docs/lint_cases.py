"""Faults of scripts, each with the nearest script that has none.

Their pages and tests are made of them; the real sbatch is asked about those that it refuses.
"""

from __future__ import annotations

from typing import NamedTuple


class Case(NamedTuple):
    """A fault.

    Attributes:
        rule: that finds it.
        bad: the script that has it.
        good: the nearest that does not.
        lines: where it is found.
        fixed: what ``--fix`` makes of ``bad``; empty where nothing is mechanical.
        refused: sbatch itself refuses ``bad`` and takes ``good``.
        site: that both are for.
    """

    rule: str
    bad: str
    good: str
    lines: tuple[int, ...] = (2,)
    fixed: str = ""
    refused: bool = False
    site: str = ""

    @property
    def id(self) -> str:
        """The name of the case in tests."""
        return f"{self.rule}-{self.bad.splitlines()[self.lines[0] - 1][:40].strip()}".replace(
            " ", "_"
        )


def _batch(*lines: str) -> str:
    return "\n".join(("#!/bin/bash", *lines)) + "\n"


def _case(rule: str, bad: str, good: str, *, mends: bool = False, refused: bool = False) -> Case:
    fine = _batch(good, "srun true")
    return Case(rule, _batch(bad, "srun true"), fine, fixed=fine if mends else "", refused=refused)


def _command(rule: str, bad: str, good: str, *, mends: bool = False) -> Case:
    """Build a fault in one command of a batch script."""
    fine = _batch("#SBATCH --nodes=2", good)
    return Case(
        rule, _batch("#SBATCH --nodes=2", bad), fine, lines=(3,), fixed=fine if mends else ""
    )


def _site(rule: str, bad: str, good: str, site: str = "neuron") -> Case:
    """Build a fault: a directive that a site does not take."""
    rest = () if "comment" in good else ('#SBATCH --comment="field=misc;appl=pytorch"',)
    return Case(rule, _batch(bad, *rest, "srun true"), _batch(good, *rest, "srun true"), site=site)


CASES = (
    Case(
        "line-ending",
        "#!/bin/bash\r\n#SBATCH --nodes=1\r\n",
        "#!/bin/bash\n#SBATCH --nodes=1\n",
        (1,),
        "#!/bin/bash\n#SBATCH --nodes=1\n",
        True,
    ),
    Case(
        "shebang",
        "#SBATCH --nodes=1\ntrue\n",
        "#!/bin/bash\n#SBATCH --nodes=1\ntrue\n",
        (1,),
        "#!/bin/bash\n#SBATCH --nodes=1\ntrue\n",
        True,
    ),
    _case("dash", "#SBATCH –comment etc", "#SBATCH --comment etc", mends=True, refused=True),
    _case("dash", '#SBATCH -J "my job" –N 2', '#SBATCH -J "my –a" -N 2', mends=False),
    _command("dash", "horovodrun –np 4 python t.py", "horovodrun -np 4 python t.py", mends=True),
    _command("dash", "srun –n 2 python t.py", "srun -n 2 python t.py 'a –b'", mends=False),
    _case("hidden-directive", " #SBATCH --nodes=1", "#SBATCH --nodes=1", mends=True),
    _case("hidden-directive", "# SBATCH --nodes=1", "##SBATCH --nodes=1"),
    Case(
        "late-directive",
        _batch("module purge", "#SBATCH --nodes=1", "srun true"),
        _batch("#SBATCH --nodes=1", "module purge", "srun true"),
        (3,),
        _batch("#SBATCH --nodes=1", "module purge", "srun true"),
    ),
    _case(
        "stray-word",
        "#SBATCH --job-name=multinode torchrun",
        '#SBATCH --job-name="multinode torchrun"',
        refused=True,
    ),
    _case("stray-word", "#SBATCH --job-name = resnet", "#SBATCH --job-name=resnet", refused=True),
    _case("stray-word", "#SBATCH --job-name =resnet", '#SBATCH --comment "a = b" --exclusive=user'),
    _case("stray-word", '#SBATCH --comment="a', '#SBATCH --comment="a"', refused=True),
    _case("stray-word", "#SBATCH --nodes=1 now", "#SBATCH --nodes=1 # now", refused=True),
    _case(
        "unknown-option",
        "#SBATCH --ntasks_per_node=1",
        "#SBATCH --ntasks-per-node=1",
        mends=True,
        refused=True,
    ),
    _case("unknown-option", "#SBATCH --ntask=1", "#SBATCH --ntasks=1", refused=True),
    _case("unknown-option", "#SBATCH --nodez=1", "#SBATCH --tasks-per=1", refused=True),
    _case(
        "variable-in-directive",
        "#SBATCH --output=/scratch/${USER}/%j.log",
        "#SBATCH --output=/scratch/%u/%j.log",
        mends=True,
    ),
    _case("variable-in-directive", "#SBATCH --chdir=$HOME", "#SBATCH --chdir=/home"),
    _case("log-name", "#SBATCH -e %s.e%j", "#SBATCH -e %x.e%3j%%s"),
    _case("log-name", "#SBATCH --error=%i_%x_log", "#SBATCH --error=%j_%x_log"),
    _case("log-directory", "#SBATCH --output=logs/%j.log", "#SBATCH --output=there/%j.log"),
    _command("syntax", 'echo "never closed', "echo 'it\"s'"),
    Case(
        "continuation",
        _batch("#SBATCH --nodes=1", "srun", "    --label true"),
        _batch(
            "#SBATCH --nodes=1", "arguments=(", "    --label", ")", "srun \\", "    --label true"
        ),
        (4,),
    ),
    _command("assignment", "MASTER ADDR=$(hostname)", "export MASTER_ADDR=$(hostname)"),
    _command(
        "assignment",
        "export PATH=/home/${USER} /.local/bin:$PATH",
        "export PATH=/home/${USER}/.local/bin:$PATH",
    ),
    _command("assignment", "MASTER_PORT= 29500", "MASTER_PORT= srun true"),
    _command("assignment", "epochs = 3", "if [ $epochs = 3 ]; then true; fi"),
    _command(
        "early-expansion", 'srun bash -c "echo $SLURM_PROCID"', "srun bash -c 'echo $SLURM_PROCID'"
    ),
    _command(
        "early-expansion",
        "srun python t.py --rank $SLURM_PROCID",
        "srun python t.py --world-size $SLURM_NTASKS",
    ),
    _command("early-expansion", "export RANK=$SLURM_PROCID", "export WORLD_SIZE=$SLURM_NTASKS"),
    Case(
        "early-expansion",
        _batch("#SBATCH -N 2", "f() { :; }", "export -f f", "export RANK=$SLURM_PROCID"),
        _batch("#SBATCH -N 2", "f() {", "    export RANK=$SLURM_PROCID", "}", "export -f f"),
        (5,),
    ),
    _command(
        "slurm-variable",
        "python t.py --world-size $SLURM_TASKS_PER_NODE",
        "python t.py --world-size $SLURM_NTASKS",
    ),
    _command(
        "slurm-variable",
        'a=$(scontrol show nodelist "$SLURM_NODELIST")',
        'a=$(scontrol show hostnames "$SLURM_NODELIST")',
    ),
    _command("slurm-variable", "address=$(hostname --ip-address)", "address=$(hostname --fqdn)"),
    _command(
        "slurm-variable",
        "horovodrun -H $SLURM_JOB_NODELIST python t.py",
        "horovodrun -H $hosts python t.py",
    ),
    Case(
        "rank-count",
        _batch("#SBATCH -N 2", "#SBATCH -n 4", "horovodrun -np 2 python t.py"),
        _batch("#SBATCH -N 2", "#SBATCH -n 4", "horovodrun -np 4 python t.py"),
        (4,),
    ),
    Case(
        "world-size",
        _batch("#SBATCH -N 2", "#SBATCH --ntasks-per-node=4", "srun python t.py --world-size 4"),
        _batch("#SBATCH -N 2", "#SBATCH --ntasks-per-node=4", "srun python t.py --world-size 8"),
        (4,),
    ),
    Case(
        "world-size",
        _batch("#SBATCH -n 8", "export WORLD_SIZE=2", "srun python t.py"),
        _batch("#SBATCH -N 8 --ntasks-per-node=1", "export WORLD_SIZE=32", "srun python spawn.py"),
        (3,),
    ),
    Case(
        "step-cpus",
        _batch("#SBATCH --cpus-per-task=8", "srun bash -c 'python t.py'"),
        _batch("#SBATCH --cpus-per-task=8", 'srun -c "$SLURM_CPUS_PER_TASK" python t.py'),
        (3,),
    ),
    Case(
        "step-cpus",
        _batch("#SBATCH -c 8", "srun -n 2 \\", "    python t.py -c 8"),
        _batch("#SBATCH -c 8", 'srun --comment="a  b" -n 2 $OPTIONS \\', "    -c8 python t.py"),
        (3,),
    ),
    Case(
        "gpu-binding",
        _batch("#SBATCH --ntasks=4", "#SBATCH --gpus-per-task=1", "srun python t.py"),
        _batch("#SBATCH --ntasks=1", "#SBATCH --gpus-per-task=1", "srun python t.py"),
        (3,),
    ),
    _command(
        "gpu-binding",
        "srun -n 4 --gpus-per-task=1 python t.py",
        "srun --ntasks=1 --gpus-per-task=1 nvidia-smi",
    ),
    _command(
        "gpu-binding",
        "srun bash -c 'CUDA_VISIBLE_DEVICES=$SLURM_LOCALID python t.py'",
        "CUDA_VISIBLE_DEVICES=0,1 srun python t.py",
    ),
    _command(
        "fixed-port",
        "export MASTER_PORT=29500",
        "export MASTER_PORT=$((61000 + SLURM_JOB_ID % 4536))",
    ),
    _command(
        "fixed-port",
        "srun torchrun --rdzv-endpoint=$host:29400 t.py",
        "srun torchrun --rdzv-endpoint=$host:0 t.py --data=20230101",
    ),
    Case(
        "bare-wait",
        _batch("#SBATCH --nodes=2", "srun -n1 a & srun -n1 b &", "wait"),
        _batch("#SBATCH --nodes=2", "srun -n1 a & pid=$!", 'wait "$pid"'),
        (4,),
    ),
    Case(
        "bare-wait",
        _batch("#SBATCH --nodes=2", "srun a &", "wait"),
        _batch("#SBATCH --nodes=2", "srun a 2>&1 && echo done &> log", "wait"),
        (4,),
    ),
    _command("ssh", "ssh $node hostname", "ssh-keyscan $node"),
    _command("kill-by-name", "pkill -f vllm", 'kill "$pid"'),
    _command("secret", "jupyter lab --NotebookApp.token=$USER", "jupyter lab --config token.py"),
    _command(
        "secret", "export WANDB_API_KEY=0123456789abcdef", "export WANDB_API_KEY=$(cat ~/.wandb)"
    ),
    _site("site", "#SBATCH --comment=pytorch", '#SBATCH --comment="field=nlp;appl=pytorch"'),
    _site("site", "#SBATCH --nodes=1", "#SBATCH --comment=etc", site="neuron-2022"),
    _site("site", "#SBATCH --mem=16G", "#SBATCH --cpus-per-task=1"),
    Case(
        "site",
        _batch("#SBATCH --account=a --qos=regular", "srun true"),
        _batch("#SBATCH --account=a --qos=regular --constraint=gpu", "srun true"),
        site="perlmutter-like",
    ),
    _site("site", "#SBATCH -p cas_v100", "#SBATCH -p cas_v100_4"),
    _site("site", "#SBATCH -p cas_v100_4 --gres=gpu:8", "#SBATCH -p cas_v100_4 --gres=gpu:4"),
    _site("site", "#SBATCH -p jupyter", "#SBATCH -p cpu"),
    Case(
        "site-module",
        _batch('#SBATCH --comment="field=misc;appl=misc"', "module load cuda/10.0"),
        _batch('#SBATCH --comment="field=misc;appl=misc"', "module load cuda/12.9.1 gcc"),
        (3,),
        site="neuron",
    ),
    _command(
        "lone-launcher", "torchrun --nproc-per-node=4 t.py", "srun torchrun --nproc-per-node=4 t.py"
    ),
    _command(
        "lone-launcher",
        "NCCL_DEBUG=INFO python -m torch.distributed.run t.py",
        "python -m torch.utils.collect_env",
    ),
    Case(
        "lone-launcher",
        _batch("#SBATCH -N 2-4", "torchrun t.py"),
        _batch("#SBATCH -N 1", "torchrun t.py"),
        (3,),
    ),
    Case(
        "lone-launcher",
        _batch("#SBATCH -N 2", "export A=1", "torchrun \\", "    t.py"),
        _batch("#SBATCH -N 2", "srun --label \\", "    torchrun t.py"),
        (4,),
    ),
    Case(
        "lone-launcher",
        _batch("#SBATCH -N 2", "torchrun t.py"),
        _batch(
            "#SBATCH -N 2",
            'if [ -z "$INSIDE" ]; then INSIDE=1 srun bash "$0"; exit; fi',
            "torchrun t.py",
        ),
        (3,),
    ),
    Case(
        "lone-launcher",
        _batch("#SBATCH -N 2", "torchrun t.py", "srun ./my_tool"),
        _batch("#SBATCH -N 2", "torchrun t.py", "srun ./my_torchrun"),
        (3,),
    ),
    _command("node-count", "srun torchrun --nnodes=4 t.py", "srun torchrun --nnodes=1:4 t.py"),
    _command(
        "node-count",
        "srun python -m torch.distributed.run --nnodes=8 t.py",
        "srun torchrun --standalone --nnodes=1 t.py",
    ),
    Case(
        "node-count",
        _batch("#SBATCH --nodes=1", "torchrun --nnodes=2 t.py"),
        _batch("#SBATCH --time=1:00:00", "torchrun --nnodes=2 t.py"),
        (3,),
    ),
    _command(
        "export",
        "MASTER_ADDR=$(hostname)\nsrun python t.py",
        "export MASTER_ADDR=$(hostname)\nsrun python t.py",
        mends=True,
    ),
    _command(  # what names it elsewhere may pass it on
        "export",
        'MASTER_ADDR=$(scontrol show hostnames "$(cat list)" | head -n 1)',
        'MASTER_ADDR=$(scontrol show hostnames "$(cat list)" | head -n 1)\nexport MASTER_ADDR',
    ),
    _command("export", "NCCL_DEBUG=INFO", "set -a\nNCCL_DEBUG=INFO"),
    _command("export", "  NCCL_DEBUG=INFO", "source env.sh; NCCL_DEBUG=INFO"),
    _command(
        "local-rendezvous", "export MASTER_ADDR=localhost", "export MASTER_ADDR=localhost.site"
    ),
    _command(
        "local-rendezvous",
        "srun python t.py --dist-url tcp://localhost:$PORT",
        "srun python t.py --web localhost:$PORT",
    ),
    _command(
        "local-rendezvous",
        'srun bash -c "MASTER_ADDR=127.0.0.1 python t.py"',
        'if [ "$ONE" ]; then MASTER_ADDR=127.0.0.1; fi',
    ),
    Case(
        "local-rendezvous",
        _batch("#SBATCH -N 2", "export MASTER_ADDR=localhost"),
        _batch(
            "#SBATCH -N 2",
            "export MASTER_ADDR=localhost",
            'export MASTER_ADDR=$(scontrol show hostnames "$SLURM_NODELIST" | head -n1)',
        ),
        (3,),
    ),
    Case(
        "local-rendezvous",
        _batch("#SBATCH -N 2", "export MASTER_ADDR=::1"),
        _batch("#SBATCH -N 1", "export MASTER_ADDR=::1"),
        (3,),
    ),
    Case(
        "no-nv",
        _batch("#SBATCH --gres=gpu:4", "srun singularity exec image.sif python t.py"),
        _batch("#SBATCH --gres=gpu:4", "srun singularity exec --nv image.sif python t.py"),
        (3,),
    ),
    Case(
        "no-nv",
        _batch(
            "#SBATCH --gpus-per-node=a100:1",
            "/opt/bin/apptainer --silent run \\",
            "    --bind /data image.sif",
        ),
        _batch(
            "#SBATCH --gpus-per-node=a100:1",
            "apptainer pull x.sif docker://x",
            "apptainer run $OPTIONS image.sif",
        ),
        (3,),
    ),
    Case(
        "no-nv",
        _batch("#SBATCH -G 1", "apptainer exec image.sif python t.py"),
        _batch("#SBATCH -G 1", "export APPTAINER_NV=1", "apptainer exec image.sif python t.py"),
        (3,),
    ),
    Case(
        "no-nv",
        _batch("#SBATCH -G 1", "singularity exec $HOME/x.sif python t.py"),
        _batch("#SBATCH -G 1", "singularity exec $OPTIONS $HOME/x.sif python t.py"),
        (3,),
    ),
    _command(
        "conda-activate",
        "conda activate torch",
        'eval "$(conda shell.bash hook)" && conda activate torch',
    ),
    Case(
        "conda-activate",
        _batch("#SBATCH --nodes=1", "conda activate torch", "source ~/.bashrc"),
        _batch("#SBATCH --nodes=1", "module load miniforge", "conda activate torch"),
        (3,),
    ),
    Case(
        "conda-activate",
        "#!/bin/bash -e\n#SBATCH --nodes=1\nconda activate torch\n",
        "#!/bin/bash -l\n#SBATCH --nodes=1\nconda activate torch\n",
        (3,),
    ),
    # As published scripts have it: both branches of a condition, files that are sourced, an image
    # in a variable.
    Case(
        "lone-launcher",
        _batch("#SBATCH -N 2", "torchrun t.py"),
        _batch(
            "#SBATCH -N 2",
            "if [[ $nodes -gt 1 ]]; then",
            "    srun torchrun \\",
            "        t.py",
            "else",
            "    torchrun t.py",
            "fi",
        ),
        (3,),
    ),
    Case(
        "lone-launcher",
        _batch("#SBATCH -N 2", "cd x", "torchrun t.py", "if true; then true; fi"),
        _batch("#SBATCH -N 2", 'if [ "$SLURM_NNODES" = 1 ]; then', "    torchrun t.py", "fi"),
        (4,),
    ),
    Case(
        "no-nv",
        _batch("#SBATCH --gres gpu", 'SIF="/apps/x.sif"', 'singularity exec "$SIF" python t.py'),
        _batch("#SBATCH --gres gpu", "RUN=$MAYBE", "singularity exec $RUN x.sif python t.py"),
        (4,),
    ),
    # Nothing to fix: what quotes hide, remarks, scripts that a script writes, contradictions.
    Case(
        "dash",
        _batch('#SBATCH –N 1 --comment="a –b"'),
        _batch('#SBATCH -N 1 --comment="a –b"'),
        (2,),
        _batch('#SBATCH -N 1 --comment="a –b"'),
    ),
    Case(
        "late-directive",
        _batch("#SBATCH -N 1", "module purge", "#SBATCH -N 2"),
        _batch("#SBATCH -N 1", "cat >other <<END", "#SBATCH -N 2", "END", "sbatch other"),
        (4,),
    ),
    _case(
        "unknown-option",
        "#SBATCH --ntasks_per_node=1 --comment=--ntasks_per_node",
        "#SBATCH --comment=--ntasks_per_node",
    ),
)

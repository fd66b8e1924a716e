"""The groups of commands: the tables of what is in them, and their help."""

from __future__ import annotations

from toolkit.cli.main import Commands, Group

BENCH: Commands = {
    "Measure": {
        "allreduce": (
            "bench:allreduce",
            "Measure all-reduce over NCCL, Gloo, Horovod or MPI.",
        ),
        "compare": (
            "bench:compare",
            "Compare trainings: samples per second, memory, accuracy.",
        ),
    },
    "Scaling": {
        "stage": (
            "bench:stage",
            "Measure from how many nodes on a copy of the image on each pays.",
        ),
        "scale": ("bench:scale", "Measure how a training scales over nodes."),
    },
}
CLUSTER: Commands = {
    "Any cluster": {
        "show": (
            "cluster:show",
            "Show partitions, free GPUs, limits, and how much of them you use.",
        ),
    },
    "The local cluster": {
        "down": ("cluster:down", "Stop the cluster and end its jobs."),
        "exec": (
            "cluster:execute",
            "Run a command in the cluster: one of Slurm's, or any other.",
        ),
        "status": (
            "cluster:status",
            "Show the nodes and daemons of the cluster.",
        ),
        "up": (
            "cluster:up",
            "Start a local cluster: nodes and partitions as you describe them.",
        ),
    },
    "Faults of nodes": {
        "cut": ("cluster:cut", "Cut NODE off the network, as if its cable was pulled."),
        "join": (
            "cluster:join",
            "Connect NODE to the network again, and wait until Slurm uses it.",
        ),
        "kill": ("cluster:kill", "Switch NODE off, as a power failure does."),
        "start": ("cluster:start", "Switch NODE on again, and wait until Slurm uses it."),
    },
}
IMAGE: Commands = {
    "Find": {
        "diff": ("image_find:diff", "Compare two images: packages, labels, environment, files."),
        "list": (
            "image_find:list_images",
            "List recipes and images with their state, size and contents.",
        ),
        "path": ("image_find:path", "Print the path of an image."),
        "sbom": ("image_find:sbom", "Print the contents of an image as a bill of materials."),
        "search": ("image_find:search", "Find recipes, images and NVIDIA's NGC releases."),
        "show": ("image_find:show", "Show the facts of a recipe, an image or an NGC release."),
    },
    "Build": {
        "build": ("image_make:build", "Build the image of a recipe."),
        "import": (
            "image_make:import_recipe",
            "Convert a Dockerfile or a Singularity definition to a recipe.",
        ),
        "lock": ("image_make:lock", "Record exactly what the image of a recipe was built from."),
        "new": ("image_make:new", "Write a recipe that builds, on top of an image or a recipe."),
        "render": ("image_make:render", "Show the definition that a recipe becomes."),
    },
    "Check and sign": {
        "sign": ("image_move:sign", "Sign an image with a key."),
        "verify": ("image_move:verify", "Verify an image, and that it fits the cluster."),
        "verify-signature": (
            "image_move:verify_signature",
            "Verify that an image is signed by a key and unchanged since.",
        ),
    },
    "Share": {
        "copy": ("image_move:copy", "Copy an image to a directory, here or on another machine."),
        "pull": ("image_move:pull", "Pull an image from a registry."),
        "push": ("image_move:push", "Push an image to a registry."),
    },
    "Remove": {
        "cache": ("image_move:cache", "Show or clear what builds reuse."),
        "prune": (
            "image_move:prune",
            "Remove old or unused images, and what killed builds left.",
        ),
        "remove": ("image_move:remove", "Remove an image of yours."),
    },
}
JOBS: Commands = {
    "Commands": {
        "copy": (
            "learn:copy",
            "Copy the exercise NAME to DIRECTORY (default: one of its name, here).",
        ),
        "list": ("learn:list_jobs", "List the exercises."),
    },
}
NOTEBOOK: Commands = {
    "Commands": {
        "connect": (
            "connect:notebook_connect",
            "Connect to a notebook again (default: the newest that runs).",
        ),
        "start": (
            "connect:notebook_start",
            "Start JupyterLab in an image on a node, and connect to it.",
        ),
        "stop": (
            "connect:notebook_stop",
            "End a notebook and its job (default: the newest that runs).",
        ),
    },
}
SITE: Commands = {
    "Read": {
        "list": ("site:list_sites", "List the known sites."),
        "show": ("site:show", "Show what the file of a site says, with what it extends."),
    },
    "Write and check your own": {
        "check": ("site:check", "Check a site's file, and compare it with the live cluster."),
        "init": ("site:init", "Write the file of a site from the live cluster."),
        "rules": ("site:rules", "List the rules that jobs are checked against before submission."),
        "schema": ("site:schema", "Print the JSON schema of a site's file."),
        "use": ("site:use", "Make NAME your default site."),
    },
}
WORKSHOP: Commands = {
    "Prepare": {
        "new": ("workshop:new", "Write a workshop with two exercises that works as it is."),
        "pack": (
            "workshop:pack",
            "Pack a workshop into one file: images, exercises, data, guide.",
        ),
        "schema": (
            "workshop:schema",
            "Print the JSON schema of workshop.toml, for editors.",
        ),
        "show": (
            "workshop:show",
            "Check the workshop.toml of a folder, and show what it says.",
        ),
        "unpack": (
            "workshop:unpack",
            "Unpack a workshop for all participants of a cluster.",
        ),
    },
    "Take part": {
        "join": (
            "workshop:join",
            "Copy the exercises of a workshop, and check that they can run here.",
        ),
        "reset": (
            "workshop:reset",
            "Start an exercise, or the results of a participant, again.",
        ),
    },
    "Lead": {
        "close": ("workshop:close", "End a workshop: remove the shared directory of results."),
        "open": (
            "workshop:open_",
            "Create the shared directory of results that workshop.toml names.",
        ),
        "rehearse": (
            "workshop:rehearse",
            "Let many participants run all exercises at once, and report.",
        ),
        "status": (
            "workshop:status",
            "Show who has done which exercise, by the shared results.",
        ),
    },
}


bench = Group(
    "bench",
    table=BENCH,
    help="""Measure all-reduce, compare trainings, and measure how they scale.

\b
Examples:
  toolkit bench allreduce --nodes 2
  toolkit bench compare jobs/digits-ddp jobs/digits-horovod
  toolkit bench scale --nodes 1,2,4 jobs/digits-ddp
  toolkit bench stage --nodes 1,2,4 --image pytorch_cuda
""",
)


cluster = Group(
    "cluster",
    table=CLUSTER,
    alone="show",
    help="""Show free nodes of a cluster; run a real Slurm on this machine.

The local cluster is slurmctld, and a slurmd for each node.

Without a command it is `show`: partitions, free GPUs, limits, of the cluster that `toolkit run`
would take.

Every node has a host name, an address, a /tmp and a /dev/shm of its own, and processes that die
with it. Everything else is shared, as on a cluster with a parallel file system. It needs no
root where Slurm is installed.

\b
Examples:
  toolkit cluster
  toolkit cluster show --nodes 2 --gpus 4 --time 1:00:00
  toolkit cluster up --nodes 2 --gpus-per-node 2
  toolkit cluster exec -- srun -N2 hostname
  toolkit cluster kill nid002
  toolkit cluster down
""",
)
image = Group(
    "image",
    table=IMAGE,
    help="""Build, find, check and share images.

\b
Examples:
  toolkit image list
  toolkit image build pytorch_cpu
  toolkit image verify pytorch_cpu
  toolkit image render pytorch_cpu        # the definition, for plain `apptainer build`
""",
)
jobs = Group(
    "jobs",
    table=JOBS,
    help="""List and copy the exercises that come with the toolkit.

\b
Examples:
  toolkit jobs list
  toolkit jobs copy digits-ddp
  toolkit run jobs/digits-ddp             as it is, without a copy
""",
)
notebook = Group(
    "notebook",
    table=NOTEBOOK,
    implied="start",
    help="""Serve notebooks from a node: JupyterLab in an image.

Only you can reach the server: it listens on a socket in the node's own /tmp, never on the
network. Its connections come by ssh through the job itself to a socket of this host, to which the
printed ssh command leads from your own machine. It ends with its job.

\b
Examples:
  toolkit notebook --image mine --time 2:00:00 --gpus 1
  toolkit notebook --image mine --idle 30m course/
  toolkit notebook connect notebook-0001
  toolkit notebook stop
""",
)
site = Group(
    "site",
    table=SITE,
    help="""Show and describe clusters: partitions, limits, rules.

Each value has its source. Your own are files in ~/.config/toolkit/sites; `extends = "neuron"`
says only what is different.

\b
Examples:
  toolkit site list
  toolkit site show neuron
  toolkit site init ours
""",
)
workshop = Group(
    "workshop",
    table=WORKSHOP,
    help="""Give a workshop, or join one.

A workshop is a folder with a workshop.toml: images, exercises and data for all participants.
The instructor packs it into one file; a participant joins with that file, its address, or the
directory it was unpacked to.

\b
Examples:
  toolkit workshop new first-steps          for the instructor
  toolkit workshop rehearse first-steps --people 6
  toolkit workshop pack first-steps
  toolkit workshop join first-steps.tar     for a participant
  cd first-steps && toolkit run 01-ddp
""",
)

"""`toolkit image`: build images from recipes, show them, prove them.

The module of a command is imported when the command is used.
"""

from __future__ import annotations

import click

from toolkit.cli.lazy import Commands, LazyGroup

COMMANDS: Commands = {
    "Find": {
        "diff": ("inventory:diff", "Compare two images: packages, labels, environment, files."),
        "list": (
            "inventory:list_images",
            "List recipes and images with their state, size and contents.",
        ),
        "path": ("inventory:path", "Print the path of an image."),
        "sbom": ("inventory:sbom", "Print the contents of an image as a bill of materials."),
        "search": ("inventory:search", "Find recipes, images and NVIDIA's NGC releases."),
        "show": ("inventory:show", "Show the facts of a recipe, an image or an NGC release."),
    },
    "Build": {
        "build": ("build:build", "Build the image of a recipe."),
        "flatten": (
            "build:flatten",
            "Pack an image of layers again as one, without deleted files.",
        ),
        "import": (
            "recipes:import_recipe",
            "Convert a Dockerfile or a Singularity definition to a recipe.",
        ),
        "lock": ("build:lock", "Record exactly what the image of a recipe was built from."),
        "new": ("recipes:new", "Write a recipe that builds, on top of an image or a recipe."),
        "render": ("recipes:render", "Show the definition that a recipe becomes."),
    },
    "Check and sign": {
        "check": ("verify:check", "Run the checks that are in an image again."),
        "sign": ("verify:sign", "Sign an image with a key."),
        "verify": ("verify:verify", "Verify an image, and that it fits the cluster."),
        "verify-signature": (
            "verify:verify_signature",
            "Verify that an image is signed by a key and unchanged since.",
        ),
    },
    "Share": {
        "copy": ("transfer:copy", "Copy an image to a directory, here or on another machine."),
        "pull": ("transfer:pull", "Pull an image from a registry."),
        "push": ("transfer:push", "Push an image to a registry."),
    },
    "Remove": {
        "cache": ("removal:cache", "Show or clear what builds reuse."),
        "prune": ("removal:prune", "Remove old or unused images, and old logs of failed builds."),
        "remove": ("removal:remove", "Remove an image of yours."),
    },
}


@click.group(
    "image",
    cls=LazyGroup,
    package=__name__,
    commands=COMMANDS,
)
def command() -> None:
    """Build, find, check and share images.

    \b
    Examples:
      toolkit image list
      toolkit image build pytorch_cpu
      toolkit image check pytorch_cpu
      toolkit image render pytorch_cpu        # the definition, for plain `apptainer build`
    """

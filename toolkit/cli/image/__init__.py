"""`toolkit image`: build images from recipes, show them, prove them.

The module of a command is imported when the command is used.
"""

from __future__ import annotations

import click

from toolkit.cli.lazy import LazyGroup

VERBS: dict[str, tuple[str, str]] = {
    "list": (
        "toolkit.cli.image.inventory:list_images",
        "List recipes and images: what is built, how large, with what in it.",
    ),
    "show": (
        "toolkit.cli.image.inventory:show",
        "Everything that is known of a recipe, an image or an NGC release.",
    ),
    "search": ("toolkit.cli.image.inventory:search", "Find recipes, images and NGC releases."),
    "build": ("toolkit.cli.image.build:build", "Build the image of a recipe."),
    "verify": (
        "toolkit.cli.image.verify:verify",
        "Prove what an image holds, and that it fits a cluster.",
    ),
    "check": ("toolkit.cli.image.verify:check", "Run the checks that an image carries again."),
    "new": ("toolkit.cli.image.recipes:new", "Write a recipe that builds."),
    "import": (
        "toolkit.cli.image.recipes:import_recipe",
        "Make a recipe of a Dockerfile or a definition.",
    ),
    "render": ("toolkit.cli.image.recipes:render", "Show the definition that a recipe becomes."),
    "lock": ("toolkit.cli.image.build:lock", "Write down exactly what an image was built from."),
    "diff": ("toolkit.cli.image.contents:diff", "Compare two images."),
    "sbom": (
        "toolkit.cli.image.contents:sbom",
        "Print what is in an image, as a bill of materials.",
    ),
    "sign": ("toolkit.cli.image.signatures:sign", "Sign an image with a key."),
    "verify-signature": (
        "toolkit.cli.image.signatures:verify_signature",
        "Tell whether an image is signed by a key, and unchanged since.",
    ),
    "path": ("toolkit.cli.image.inventory:path", "Print where an image is."),
    "remove": ("toolkit.cli.image.removal:remove", "Remove an image of yours."),
    "prune": ("toolkit.cli.image.removal:prune", "Remove images that are old or unused."),
    "push": ("toolkit.cli.image.transfer:push", "Put an image into a registry."),
    "pull": ("toolkit.cli.image.transfer:pull", "Bring an image from a registry."),
    "copy": (
        "toolkit.cli.image.transfer:copy",
        "Copy an image to a directory here or on another machine.",
    ),
    "flatten": (
        "toolkit.cli.image.build:flatten",
        "Pack an image again as one layer, without hidden files.",
    ),
    "cache": ("toolkit.cli.image.removal:cache", "Show what builds keep for the next."),
}


@click.group("image", cls=LazyGroup, verbs=VERBS)
def command() -> None:
    """Build, list and check images.

    \b
    Examples:
      toolkit image list
      toolkit image build pytorch_cpu
      toolkit image check pytorch_cpu
      toolkit image render pytorch_cpu        # the definition, for plain `apptainer build`
    """

"""`toolkit image`: build images from recipes, show them, prove them. One module per verb, imported when it is used."""

from __future__ import annotations

import click

from toolkit.cli.lazy import LazyGroup

VERBS: dict[str, tuple[str, str]] = {
    "list": (
        "toolkit.cli.image.listing",
        "List recipes and images: what is built, how large, with what in it.",
    ),
    "show": (
        "toolkit.cli.image.show",
        "Everything that is known of a recipe, an image or an NGC release.",
    ),
    "search": ("toolkit.cli.image.search", "Find recipes, images and NGC releases."),
    "build": ("toolkit.cli.image.build", "Build the image of a recipe."),
    "verify": (
        "toolkit.cli.image.verify",
        "Prove what an image holds, and that it fits a cluster.",
    ),
    "check": ("toolkit.cli.image.check", "Run the checks that an image carries again."),
    "new": ("toolkit.cli.image.new", "Write a recipe that builds."),
    "import": ("toolkit.cli.image.import_", "Make a recipe of a Dockerfile or a definition."),
    "render": ("toolkit.cli.image.render", "Show the definition that a recipe becomes."),
    "lock": ("toolkit.cli.image.lock", "Write down exactly what an image was built from."),
    "diff": ("toolkit.cli.image.diff", "Compare two images."),
    "sbom": ("toolkit.cli.image.sbom", "Print what is in an image, as a bill of materials."),
    "sign": ("toolkit.cli.image.sign", "Sign an image with a key."),
    "verify-signature": (
        "toolkit.cli.image.verify_signature",
        "Tell whether an image is signed by a key, and unchanged since.",
    ),
    "path": ("toolkit.cli.image.path", "Print where an image is."),
    "remove": ("toolkit.cli.image.remove", "Remove an image of yours."),
    "prune": ("toolkit.cli.image.prune", "Remove images that are old or unused."),
    "push": ("toolkit.cli.image.push", "Put an image into a registry."),
    "pull": ("toolkit.cli.image.pull", "Bring an image from a registry."),
    "copy": ("toolkit.cli.image.copy", "Copy an image to a directory here or on another machine."),
    "flatten": (
        "toolkit.cli.image.flatten",
        "Pack an image again as one layer, without hidden files.",
    ),
    "cache": ("toolkit.cli.image.cache", "Show what builds keep for the next."),
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

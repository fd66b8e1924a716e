"""The checks of an image, in their order. Later ones use the results of earlier ones."""

from toolkit.images.verify.checks import contents, image_file, ranks, site

# The names are those of the checks that an image carries.
CHECKS = (
    image_file.check_manifest,
    image_file.check_size,
    image_file.check_labels,
    image_file.check_signature,
    contents.check_entrypoint,
    *contents.USUAL,
    site.check_container,
    site.check_pmi,
    *ranks.ON_NODES,
    site.check_driver,
)

"""The checks of an image, in their order. Later ones use the results of earlier ones."""

from toolkit.images.verify.checks import cluster, image

# Every build ends with these, since they are quick.
AT_BUILD = (
    image.check_manifest,
    image.check_size,
    image.check_labels,
    image.check_signature,
    image.check_entrypoint,
    cluster.check_container,
    cluster.check_pmi,
    cluster.check_driver,
)
# The names are those of the checks that an image carries.
CHECKS = (
    *AT_BUILD[:5],
    *image.USUAL,
    cluster.check_container,
    cluster.check_pmi,
    *cluster.ON_NODES,
    cluster.check_driver,
)

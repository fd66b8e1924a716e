"""The checks of an image, on an ``ImageCase``. Later ones use the results of earlier ones."""

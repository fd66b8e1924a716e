"""The checks of an image. Each works on an ``ImageCase``; later ones use what earlier ones found."""

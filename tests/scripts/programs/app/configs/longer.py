from .base import *  # noqa

EPOCHS = 2

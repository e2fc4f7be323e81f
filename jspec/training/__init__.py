"""Training of draft models and of draft heads."""

from jspec._validate import extras

extras.require("training", "train", "optax", "orbax")

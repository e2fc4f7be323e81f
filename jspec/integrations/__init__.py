"""jspec in the place of other libraries' samplers. Each module needs the library of its name."""

"""The contract of drafters and models, for other people's code: plain functions, no pytest.

Each raises AssertionError with a sentence if a promise is broken, and `jspec.InputError` if it is
called in a wrong way.
"""

from jspec.testing.drafter_contract import check_drafter as check_drafter
from jspec.testing.fuzzing import fuzz as fuzz
from jspec.testing.model_contract import check_model as check_model
from jspec.testing.prefix_lm import PrefixLM as PrefixLM
from jspec.testing.promises import Report as Report

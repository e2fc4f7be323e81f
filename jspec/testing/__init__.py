"""The contract of drafters and models, for other people's code: plain functions, no pytest.

`check_drafter` and `check_model` run what they are given and raise AssertionError with a sentence
where a promise is broken. Both raise `jspec.InputError` if they are called in a wrong way, and
return a `Report`. `PrefixLM` is the target that they use if they are given none; the memory of
`RecurrentLM` is a state a row. `check_partitions` decodes the same rows in batches of several
sizes.

`certify` is for a model and a drafter in use: it compares texts, judges what differs, and returns a
`Certificate`. `check_bits` compares forward passes of trees with forward passes of one token, bit
by bit.
"""

from jspec.testing.certification.bitwise import Bits as Bits
from jspec.testing.certification.bitwise import check_bits as check_bits
from jspec.testing.certification.certificate import Certificate as Certificate
from jspec.testing.certification.certifying import certify as certify
from jspec.testing.drafter_contract import check_drafter as check_drafter
from jspec.testing.model_contract import check_model as check_model
from jspec.testing.partitions import check_partitions as check_partitions
from jspec.testing.prefix_lm import PrefixLM as PrefixLM
from jspec.testing.promises import Report as Report
from jspec.testing.recurrent_lm import RecurrentLM as RecurrentLM

__all__ = [
    "Bits",
    "Certificate",
    "PrefixLM",
    "RecurrentLM",
    "Report",
    "certify",
    "check_bits",
    "check_drafter",
    "check_model",
    "check_partitions",
]

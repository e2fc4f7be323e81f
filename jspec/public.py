"""The public names of `jspec`, once. `jspec` itself hands them out on first use."""

from jspec import rules as rules
from jspec import sampling as sampling
from jspec import tree as tree
from jspec import verify as verify
from jspec.base import Cache as Cache
from jspec.base import CausalLM as CausalLM
from jspec.base import Drafter as Drafter
from jspec.base import Feedback as Feedback
from jspec.base import NodeRule as NodeRule
from jspec.base import Output as Output
from jspec.base import Result as Result
from jspec.base import Round as Round
from jspec.base import Sampling as Sampling
from jspec.base import State as State
from jspec.base import Stats as Stats
from jspec.base import Status as Status
from jspec.base import Tree as Tree
from jspec.base import Verdict as Verdict
from jspec.base import Verifier as Verifier
from jspec.drafters.autoregressive import Autoregressive as Autoregressive
from jspec.engine import Chunk as Chunk
from jspec.engine import decode as decode
from jspec.engine import prefill as prefill
from jspec.engine import step as step
from jspec.engine import stream as stream
from jspec.tree import Template as Template

"""The modules of the names in `jspec.__all__`; `jspec` itself hands them out on first use."""

from jspec.artefact import export as export
from jspec.base import Cache as Cache
from jspec.base import Feedback as Feedback
from jspec.base import Frame as Frame
from jspec.base import Logprobs as Logprobs
from jspec.base import Output as Output
from jspec.base import PromptChunk as PromptChunk
from jspec.base import Result as Result
from jspec.base import Sampling as Sampling
from jspec.base import Scored as Scored
from jspec.base import State as State
from jspec.base import Stats as Stats
from jspec.base import Status as Status
from jspec.base import Tree as Tree
from jspec.base import TreeKV as TreeKV
from jspec.base import Verdict as Verdict
from jspec.base import WidthChoice as WidthChoice
from jspec.cost_curve import CostCurve as CostCurve
from jspec.drafters.adaptive import Adaptive as Adaptive
from jspec.drafters.adaptive import AdaptiveParams as AdaptiveParams
from jspec.drafters.adaptive import adaptive as adaptive
from jspec.drafters.autoregressive import Autoregressive as Autoregressive
from jspec.drafters.draft_head.block import BlockDrafter as BlockDrafter
from jspec.drafters.draft_head.eagle import EAGLE as EAGLE
from jspec.drafters.draft_head.eagle import EAGLE2 as EAGLE2
from jspec.drafters.draft_head.lyanna import Lyanna as Lyanna
from jspec.drafters.draft_head.medusa import Medusa as Medusa
from jspec.drafters.draft_model.calibrated_dyspec import CalibratedDySpec as CalibratedDySpec
from jspec.drafters.draft_model.coupled_tree import CoupledTree as CoupledTree
from jspec.drafters.draft_model.dyspec import DySpec as DySpec
from jspec.drafters.draft_model.rsd_c import RSDC as RSDC
from jspec.drafters.draft_model.rsd_s import RSDS as RSDS
from jspec.drafters.draft_model.sequoia import Sequoia as Sequoia
from jspec.drafters.draft_model.specinfer import SpecInfer as SpecInfer
from jspec.drafters.draft_model.spectr import SpecTr as SpecTr
from jspec.drafters.draft_model.speculative_decoding import (
    SpeculativeDecoding as SpeculativeDecoding,
)
from jspec.drafters.draft_model.vocabulary import PaddedVocabulary as PaddedVocabulary
from jspec.drafters.ensemble.budgeted_merge import BudgetedMerge as BudgetedMerge
from jspec.drafters.ensemble.merge import Merge as Merge
from jspec.drafters.ensemble.merge import merge as merge
from jspec.drafters.jump_forward import JumpForward as JumpForward
from jspec.drafters.retrieval.dynamic_token_recycling import (
    DynamicTokenRecycling as DynamicTokenRecycling,
)
from jspec.drafters.retrieval.lookahead import Lookahead as Lookahead
from jspec.drafters.retrieval.prompt_lookup import PromptLookup as PromptLookup
from jspec.drafters.retrieval.rest import REST as REST
from jspec.drafters.retrieval.suffix import Suffix as Suffix
from jspec.drafters.retrieval.token_recycling import TokenRecycling as TokenRecycling
from jspec.drafters.scripted import Script as Script
from jspec.drafters.scripted import Scripted as Scripted
from jspec.drafters.verified import Verified as Verified
from jspec.drafters.verified import with_verifier as with_verifier
from jspec.engine import decode as decode
from jspec.engine import prefill as prefill
from jspec.engine import step as step
from jspec.errors import InputError as InputError
from jspec.errors import RecompileError as RecompileError
from jspec.grammar.stops import StopStrings as StopStrings
from jspec.grammar.stops import stop_strings as stop_strings
from jspec.methods import auto as auto
from jspec.programs import Program as Program
from jspec.programs import no_recompile as no_recompile
from jspec.programs import warmup as warmup
from jspec.protocols import CausalLM as CausalLM
from jspec.protocols import Drafter as Drafter
from jspec.protocols import DraftHead as DraftHead
from jspec.protocols import NodeRule as NodeRule
from jspec.protocols import Verifier as Verifier
from jspec.row_moves import fork as fork
from jspec.serving import Engine as Engine
from jspec.serving import News as News
from jspec.streaming import Chunk as Chunk
from jspec.streaming import stream as stream
from jspec.tracing import Trace as Trace
from jspec.tracing import TracedRound as TracedRound
from jspec.tracing import TracedWidths as TracedWidths
from jspec.tracing import trace as trace
from jspec.tree import Template as Template
from jspec.verify.block_verification import BlockVerification as BlockVerification
from jspec.verify.schemes import Scheme as Scheme
from jspec.verify.traversal_verification import TraversalVerification as TraversalVerification
from jspec.verify.tree_verifier import TreeVerifier as TreeVerifier

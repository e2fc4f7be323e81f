"""The modules of the names in `jspec.__all__`; `jspec` itself hands them out on first use."""

from jspec._validate.errors import InputError as InputError
from jspec._validate.errors import RecompileError as RecompileError
from jspec.decoding import decode as decode
from jspec.decoding import prefill as prefill
from jspec.decoding import step as step
from jspec.decoding.artefact import export as export
from jspec.decoding.engine import Engine as Engine
from jspec.decoding.engine import News as News
from jspec.decoding.programs import Program as Program
from jspec.decoding.programs import no_recompile as no_recompile
from jspec.decoding.programs import warmup as warmup
from jspec.decoding.rows import fork as fork
from jspec.decoding.streaming import Chunk as Chunk
from jspec.decoding.streaming import stream as stream
from jspec.drafters.adaptive import Adaptive as Adaptive
from jspec.drafters.adaptive import AdaptiveParams as AdaptiveParams
from jspec.drafters.adaptive import adaptive as adaptive
from jspec.drafters.autoregressive import Autoregressive as Autoregressive
from jspec.drafters.cost_curve import CostCurve as CostCurve
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
from jspec.methods import auto as auto
from jspec.processors.grammar.stops import StopStrings as StopStrings
from jspec.processors.grammar.stops import stop_strings as stop_strings
from jspec.protocols import CausalLM as CausalLM
from jspec.protocols import Drafter as Drafter
from jspec.protocols import DraftHead as DraftHead
from jspec.protocols import NodeRule as NodeRule
from jspec.protocols import Verifier as Verifier
from jspec.testing.tracing import Trace as Trace
from jspec.testing.tracing import TracedRound as TracedRound
from jspec.testing.tracing import TracedWidths as TracedWidths
from jspec.testing.tracing import trace as trace
from jspec.tree import Template as Template
from jspec.types import Cache as Cache
from jspec.types import Feedback as Feedback
from jspec.types import Frame as Frame
from jspec.types import Logprobs as Logprobs
from jspec.types import Output as Output
from jspec.types import PromptChunk as PromptChunk
from jspec.types import Result as Result
from jspec.types import Sampling as Sampling
from jspec.types import Scored as Scored
from jspec.types import State as State
from jspec.types import Stats as Stats
from jspec.types import Status as Status
from jspec.types import Tree as Tree
from jspec.types import TreeKV as TreeKV
from jspec.types import Verdict as Verdict
from jspec.types import WidthChoice as WidthChoice
from jspec.verify.block_verification import BlockVerification as BlockVerification
from jspec.verify.schemes import Scheme as Scheme
from jspec.verify.traversal_verification import TraversalVerification as TraversalVerification
from jspec.verify.tree_verifier import TreeVerifier as TreeVerifier

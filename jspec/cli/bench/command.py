"""The command `jspec bench`. The work is in files of its own, so that `--help` needs no JAX."""

from pathlib import Path
from typing import Annotated

import typer

from jspec._validate.errors import InputError
from jspec.cli import options
from jspec.cli.bench import questions as asking
from jspec.cli.bench import settings as checks
from jspec.cli.bench.ledger import Ledger
from jspec.sessions.run_settings import RunSettings, sampling_request


def bench(
    model: options.Model = None,
    draft_model: options.DraftModel = None,
    head: options.Head = None,
    methods: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,..",
            help="Methods to measure; `jspec methods` lists them.",
            show_default="auto, token_recycling, prompt_lookup; with --draft-model also "
            "coupled_tree",
        ),
    ] = None,
    speculative_config: Annotated[
        list[str] | None,
        typer.Option(
            metavar="JSON",
            help='A further method with its options, such as {"method": "suffix", '
            '"num_speculative_tokens": 12}; may be repeated.',
            show_default=False,
        ),
    ] = None,
    questions: options.Questions = None,
    speed_bench: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="SPEED-Bench instead of questions: its files, by class and length of context.",
            show_default=False,
        ),
    ] = None,
    prompts: options.Prompts = None,
    limit: Annotated[
        int | None,
        options.integer_option(
            "Use N questions, spread evenly over the categories.", show_default="all"
        ),
    ] = None,
    turns: Annotated[int, options.integer_option("Maximum number of turns per question.")] = 1,
    max_new_tokens: options.MaxNewTokens = 128,
    temperature: options.Temperature = 0.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    min_p: options.MinP = 0.0,
    seed: options.Seed = 0,
    ignore_eos: options.IgnoreEos = False,
    batch_size: options.BatchSize = 1,
    repeats: Annotated[int, options.integer_option("Repeats of each measurement.")] = 3,
    cold: Annotated[
        bool, typer.Option("--cold", help="Reset the drafter's memory between prompts.")
    ] = False,
    memory: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Start from the memory that `jspec generate --memory` saved, and leave the file "
            "as it is.",
            show_default=False,
        ),
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Apply no chat template, even if the tokenizer has one.")
    ] = False,
    dtype: options.Dtype = None,
    kv_dtype: options.KvDtype = None,
    out: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER", help="Folder for measurements. The same command resumes from them."
        ),
    ] = Path("jspec-bench"),
    peers: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Measure methods on your model and prompts, alongside plain decoding, and say which to use.

    Drafters keep their memory from prompt to prompt, as in `jspec generate`; see --cold.
    """
    if peers is not None:  # for one version
        raise InputError(
            "--peers is gone from jspec bench; run `python -m benchmarks.peers` in a checkout of "
            "jspec, which has the same options"
        )
    request = sampling_request(temperature, top_k, top_p, min_p, seed, ignore_eos)
    run = RunSettings(max_new_tokens, request, batch_size=batch_size, memory=memory)
    settings = checks.BenchSettings(run, repeats, limit, turns, cold, raw)
    choices = checks.choices(methods, speculative_config or [], head, draft_model)
    draft = checks.draft_model(choices, model, draft_model)
    if memory is not None and not memory.is_file():
        raise InputError(
            f"--memory is {memory}, and there is no such file; `jspec generate --memory {memory}` "
            "writes one"
        )
    sources = {"--questions": questions, "--speed-bench": speed_bench, "--prompts": prompts}
    names = [name for name, source in sources.items() if source is not None]
    if len(names) > 1:
        raise InputError(f"{names[0]} and {names[1]} were both given; give one of them")
    if prompts is not None:
        entries = asking.from_prompts(prompts)
    elif speed_bench is not None:
        entries = asking.from_speed_bench(speed_bench)
    else:
        entries = asking.read(questions or asking.SAMPLE)
    ledger = Ledger(out / "rows.jsonl")

    # From here on JAX is imported.
    from jspec.cli.bench import run as runs
    from jspec.sessions import compilation

    compilation.keep_on_disk()
    job = checks.BenchOptions(model, draft, head, dtype, kv_dtype, choices, settings)
    runs.run(job, entries, ledger)

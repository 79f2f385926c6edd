"""`minispec train …`: the target generates text, small models learn from it.

minispec train corpus --prompts FILE --out runs/corpus          the target generates
minispec train draft --corpus runs/corpus --out runs/draft      a draft model learns to guess it
minispec train medusa --corpus runs/corpus --out runs/medusa    heads on its last state learn to look ahead
minispec train micro --out runs/micro                           stories, and the embedded pair

What the result is worth: `minispec bench acceptance --drafters eagle --heads runs/eagle/model`.
"""

from __future__ import annotations

from importlib import import_module

from ..cli import options

COMMANDS = {
    "corpus": "let the target continue prompts and keep what it generates",
    "draft": "distil a small draft model from the target's own output",
    "medusa": "train Medusa's heads on the target's own output",
    "eagle": "train EAGLE's head, which drafts on the target's own features",
    "dflash": "train a drafter that fills in a whole block at once",
    "pairs": "train what DFlash 2 and DSpark add to such a drafter",
    "mtp": "train a multi-token prediction module, chained as DeepSeek-V3's and Qwen3-Next's are",
    "micro": "train the embedded pair on stories the target generates",
}


def add_arguments(parser) -> None:
    commands = parser.add_subparsers(title="what to do", required=True)
    for name, help in COMMANDS.items():
        module = import_module(f"{__name__}.{name}")
        command = commands.add_parser(name, help=help, description=module.__doc__)
        options.add_model(command, "smollm2", "the target, which generates the text")
        options.add_device(command)
        help = "default: 16 bits on a GPU, bfloat16 if it has units for that"
        command.add_argument("--dtype", choices=("float32", "float16", "bfloat16"), help=help)
        options.add_seed(command)
        module.add_arguments(command)
        command.set_defaults(run=run, train=module.run)


def run(args) -> None:
    import torch

    from minispec.load.folder import load

    target = load(args.model, device=args.device, dtype=args.dtype and getattr(torch, args.dtype))
    args.train(args, target)

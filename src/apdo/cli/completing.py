"""What a shell offers as completions at a place of the command line."""

from collections.abc import Iterable, Mapping

import click
from click.shell_completion import CompletionItem

from apdo.algorithms import ALGORITHMS
from apdo.cli.declaring import Offer
from apdo.envs import ENVIRONMENTS


def named(words: Iterable[str] | Mapping[str, str], files: bool = False) -> Offer:
    """Offer some words, perhaps with their meanings. With `files`, also offer files if no word fits."""
    meanings = words if isinstance(words, Mapping) else dict.fromkeys(words, "")

    def offer(_ctx: click.Context, _param: click.Parameter, begun: str) -> list[CompletionItem]:
        found = [CompletionItem(word, help=text or None) for word, text in meanings.items() if word.startswith(begun)]
        return found or ([CompletionItem(begun, type="file")] if files else [])

    return offer


def files(_ctx: click.Context, _param: click.Parameter, begun: str) -> list[CompletionItem]:
    """Offer files and folders."""
    return [CompletionItem(begun, type="file")]


def folders(_ctx: click.Context, _param: click.Parameter, begun: str) -> list[CompletionItem]:
    """Offer folders."""
    return [CompletionItem(begun, type="dir")]


def presets(_ctx: click.Context, _param: click.Parameter, begun: str) -> list[CompletionItem]:
    """Offer the presets that apply to the named algorithm, or all presets."""
    # Imported here because no other command needs the table of presets.
    from apdo.experiment.presets import PRESETS

    algorithm = str(_ctx.params.get("algorithm"))
    fitting = {name: one.what for name, one in PRESETS.items() if one.options(algorithm) or algorithm not in ALGORITHMS}
    return named(fitting)(_ctx, _param, begun)


algorithms = named({name: one.what for name, one in ALGORITHMS.items()}, files=True)
"""The algorithms, or a file of the user's own."""
environments = named({name: what for name, (_, _, what) in ENVIRONMENTS.items()}, files=True)
"""The environments, or a file of the user's own."""

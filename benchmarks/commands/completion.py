"""Prints what makes a shell complete the words of this command: sub-commands, options, their values, files.

bash: add `source <(tf-ensembles completion bash)` to ~/.bashrc. zsh: the same in ~/.zshrc, after `compinit`.
fish: `tf-ensembles completion fish > ~/.config/fish/completions/tf-ensembles.fish`.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator, Sequence

from benchmarks.commands import options

PROGRAM = "tf-ensembles"


@dataclasses.dataclass(frozen=True)
class Word:
    """An option, or what stands without one."""

    names: tuple[str, ...]  # () for what stands without an option
    takes: str  # "" for nothing, or "words", "files", "folders", "values"
    several: bool  # whether it takes any number of them
    words: tuple[str, ...]
    about: str


@dataclasses.dataclass(frozen=True)
class Place:
    """Where in the tree of commands something is typed."""

    path: str  # such as "/sweep/run"
    commands: dict[str, str]  # with what each is for
    words: tuple[Word, ...]

    @property
    def options(self) -> list[str]:
        """All names of options."""
        return [name for word in self.words for name in word.names]

    @property
    def bare(self) -> tuple[list[str], str]:
        """What may stand without an option: words, and a kind of files."""
        mine = [word for word in self.words if not word.names]
        kinds = [word.takes for word in mine if word.takes in ("files", "folders")]
        return [*self.commands, *(text for word in mine for text in word.words)], kinds[0] if kinds else ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the shell."""
    parser.epilog = options.examples("completion bash", "completion zsh", "completion fish")
    parser.add_argument("shell", choices=tuple(_SCRIPTS), help="for which shell")


def run(args: argparse.Namespace) -> None:
    """Prints the script."""
    text = script(args.shell)
    options.answer(args, {"shell": args.shell, "script": text}, text.rstrip())


def script(shell: str) -> str:
    """Returns the script for a shell."""
    return _SCRIPTS[shell](list(places()))


def places() -> Iterator[Place]:
    """Yields where words are typed, from the parsers themselves."""
    from benchmarks.commands import main

    top = (
        Word(("--help",), "", False, (), "tell all options"),
        Word(("--version",), "", False, (), "print the version"),
    )
    yield Place("", main.COMMANDS, (*top, Word(("--debug",), "", False, (), "show tracebacks")))
    for name in main.COMMANDS:
        parser = main.make_parser(name)
        yield _place(f"/{name}", parser)
        for below, one in main.sub_parsers(parser).items():
            yield _place(f"/{name}/{below}", one)


def _place(path: str, parser: argparse.ArgumentParser) -> Place:
    from benchmarks.commands import main

    helps = {
        choice.dest: choice.help or ""
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
        for choice in action._choices_actions
    }
    below = main.sub_parsers(parser)
    words = [
        _word(action)
        for action in parser._actions
        if action.help != argparse.SUPPRESS and not isinstance(action, argparse._SubParsersAction)
    ]
    return Place(path, {name: helps.get(name, "") for name in below}, tuple(words))


def _word(action: argparse.Action) -> Word:
    names = tuple(name for name in action.option_strings if name.startswith("--"))
    about = (action.help or "").split(" (default")[0].replace("%%", "%")
    suggested = getattr(action, options.SUGGESTIONS, None)
    words = tuple(map(str, action.choices or (suggested() if suggested else ())))
    takes = "values"
    if action.nargs == 0:
        takes = ""
    elif words:
        takes = "words"
    elif action.metavar == "FOLDER" or action.nargs == 2:
        takes = "folders"
    elif action.type in (options.local_path, options.store_root) or str(action.metavar).startswith("FILE"):
        takes = "files"
    return Word(names, takes, action.nargs in ("+", "*"), words, about)


# bash


def _bash(listed: Sequence[Place]) -> str:
    nested = "|".join(place.path for place in listed if place.path)
    values, several, bare = [], [], []
    for place in listed:
        for word in (word for word in place.words if word.takes and word.names):
            reply = _BASH_REPLY[word.takes].format(words=" ".join(word.words))
            keys = "|".join(f'"{place.path} {name}"' for name in word.names)
            values.append(f"        {keys}) {reply}; return ;;")
            if word.several and word.takes == "words":
                several.append(f'        {keys}) words="{" ".join(word.words)} " ;;')
        known, files = place.bare
        then = _BASH_REPLY[files].format(words="").replace("COMPREPLY=", "COMPREPLY+=") if files else ":"
        text = " ".join([*known, *place.options])
        bare.append(f'        "{place.path}") words+="{text}"; COMPREPLY=($(compgen -W "$words" -- "$cur")); {then} ;;')
    return _BASH.format(
        program=PROGRAM, nested=nested, values="\n".join(values), several="\n".join(several), bare="\n".join(bare)
    )


_BASH_REPLY = {
    "words": 'COMPREPLY=($(compgen -W "{words}" -- "$cur"))',
    "files": 'COMPREPLY=($(compgen -f -- "$cur"))',
    "folders": 'COMPREPLY=($(compgen -d -- "$cur"))',
    "values": "COMPREPLY=()",
}
_BASH = """# bash completion of {program}: source <({program} completion bash)
_tf_ensembles() {{
    local cur="${{COMP_WORDS[COMP_CWORD]}}" prev="${{COMP_WORDS[COMP_CWORD-1]}}" place="" last="" words="" index word
    COMPREPLY=()
    for ((index = 1; index < COMP_CWORD; index++)); do
        word="${{COMP_WORDS[index]}}"
        case "$place/$word" in
            {nested}) place="$place/$word" ;;
        esac
        [[ "$word" == --* ]] && last="$word"
    done
    case "$place $prev" in
{values}
    esac
    case "$place $last" in
{several}
    esac
    case "$place" in
{bare}
    esac
}}
complete -o filenames -F _tf_ensembles {program}
"""


# zsh


def _zsh(listed: Sequence[Place]) -> str:
    nested = "|".join(place.path for place in listed if place.path)
    values, several, bare = [], [], []
    for place in listed:
        for word in (word for word in place.words if word.takes and word.names):
            keys = "|".join(f'"{place.path} {name}"' for name in word.names)
            values.append(f"        ({keys}) {_ZSH_REPLY[word.takes].format(words=' '.join(word.words))}; return ;;")
            if word.several and word.takes == "words":
                several.append(f"        ({keys}) compadd -- {' '.join(word.words)} ;;")
        known, files = place.bare
        then = f"; {_ZSH_REPLY[files]}" if files else ""
        bare.append(f'        ("{place.path}") compadd -- {" ".join([*known, *place.options])}{then} ;;')
    return _ZSH.format(
        program=PROGRAM, nested=nested, values="\n".join(values), several="\n".join(several), bare="\n".join(bare)
    )


_ZSH_REPLY = {"words": "compadd -- {words}", "files": "_files", "folders": "_files -/", "values": ":"}
_ZSH = """#compdef {program}
# zsh completion of {program}: source <({program} completion zsh), after compinit
_tf_ensembles() {{
    local place="" last="" prev="${{words[CURRENT-1]}}" word
    for word in "${{(@)words[2,CURRENT-1]}}"; do
        case "$place/$word" in
            ({nested}) place="$place/$word" ;;
        esac
        [[ "$word" == --* ]] && last="$word"
    done
    case "$place $prev" in
{values}
    esac
    case "$place $last" in
{several}
    esac
    case "$place" in
{bare}
    esac
}}
if [[ "${{funcstack[1]}}" == _tf_ensembles ]]; then _tf_ensembles "$@"; else compdef _tf_ensembles {program}; fi
"""


# fish


def _fish(listed: Sequence[Place]) -> str:
    nested = " ".join(place.path for place in listed if place.path)
    lines = []
    for place in listed:
        here = f"complete -c {PROGRAM} -n \"__tf_ensembles_at '{place.path}'\""
        for name, about in place.commands.items():
            lines.append(f"{here} -a {name} -d {_fish_quote(about)}")
        for word in place.words:
            reply = _FISH_REPLY[word.takes].format(words=_fish_quote(" ".join(word.words)))
            if word.names:
                names = " ".join(f"-l {name.removeprefix('--')}" for name in word.names)
                lines.append(f"{here} {names} {reply} -d {_fish_quote(word.about)}")
            elif word.takes != "values":
                lines.append(f"{here} {reply.removeprefix('-x ').replace('-r -F', '-F')}")
    return _FISH.format(program=PROGRAM, nested=nested, lines="\n".join(lines))


def _fish_quote(text: str) -> str:
    quoted = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{quoted}'"


_FISH_REPLY = {
    "": "",
    "words": "-x -a {words}",
    "files": "-r -F",
    "folders": "-x -a '(__fish_complete_directories)'",
    "values": "-x",
}
_FISH = """# fish completion of {program}: {program} completion fish > ~/.config/fish/completions/{program}.fish
function __tf_ensembles_at
    set -l place ""
    for word in (commandline -opc)[2..-1]
        switch "$place/$word"
            case {nested}
                set place "$place/$word"
        end
    end
    test "$place" = "$argv[1]"
end
complete -c {program} -f
{lines}
"""

_SCRIPTS = {"bash": _bash, "zsh": _zsh, "fish": _fish}

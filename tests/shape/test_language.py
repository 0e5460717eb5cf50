"""Plain English: phrases that made readers stop do not come back.

The check reads the README, the guides and decisions, the strings, docstrings and comments of the source, from which the
reference is generated, and the comments of its statements. It lists only phrases that have a plainer wording
everywhere. Released migrations are not read, because nobody may edit them.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from tests.shape.tree import ROOT, listed, modules, statements

# A phrase as a regular expression, and what to write instead.
GLOSSARY = {
    r"\b(?:go|goes|went) on\b": '"continue", or "resume"',
    r"\bwhoever\b": "name who acts: the worker, the caller, the reader",
    r"\banew\b": '"again"',
    r"\bbelongs? into\b": '"belongs in", or "put it into"',
    r"\bat rest\b": '"idle", or "ended"',
    r"\bheed(?:s|ed|ing)?\b": '"follow", "obey" or "react to"',
    r"\b(?:told|tells?|telling) of\b": '"report", "announce" or "learn of"',
    r"\bof which nobody knows\b": '"whose … is unknown"',
    r"\bmend(?:s|ed|ing)?\b": '"fix", or "correct"',
    r"\b(?:comes?|came) to (?:it|that|the same|its end|a commit|that commit|a lane|a fallback)\b": '"reach"',
    r"\b(?:is|are|was|were) gone on with\b": '"continued"',
    r"\b(?:runs it|waits|is paused|is asked|needs approval|is open) since\b": '"has been … since", or "was … at"',
    r"\bof late\b": '"recently"',
    r"\ball the same\b": '"anyway", "still" or "nevertheless"',
    r"\bin vain\b": 'say what does not happen: "finds nothing", "fails"',
    r"\b(?:is|are|was|were) begun\b": '"begins", or "began"',
    r"\bshall\b": '"must", "should" or "is to"',
    r"[a-z], say[,.](?! \w+[,)])": '"for example"',
    r"\b(?:is|are|was|were) no (?:part|fault|sign|call|settings?) of\b": '"is not …"',
    r"(?<!there )\b(?:is|are) no (?:run|job|model|fork|number|object|schema|batch|cassette|outcome|frame|text|JSON|"
    r"file|tool|name|cursor|terminal|request|database|session)\b(?! (?:that|which|with|for|to|here|yet|left|of))": (
        '"is not a …"'
    ),
}
PHRASES = [(re.compile(phrase, re.IGNORECASE), better) for phrase, better in GLOSSARY.items()]
ANY = re.compile("|".join(GLOSSARY), re.IGNORECASE)
_COMMENT = re.compile(r"^[^\n]*?(?:--([^\n]*))?$", re.MULTILINE)


def pages() -> list[Path]:
    guides = [*sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "decisions").glob("*.md"))]
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "llms.txt", *guides]


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """A page as it is; of code, its strings and comments, with the line each begins on."""
    source = path.read_text()
    if not ANY.search(source):
        return
    if path.suffix == ".sql":
        yield 1, _COMMENT.sub(r"\1", source)
        return
    if path.suffix != ".py":
        yield 1, source
        return
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.STRING, tokenize.COMMENT):
            yield token.start[0], token.string


def found(path: Path) -> Iterator[str]:
    for first, text in texts(path):
        for phrase, better in PHRASES:
            for match in phrase.finditer(text):
                line = first + text.count("\n", 0, match.start())
                yield f"{path.relative_to(ROOT)}:{line}: {match[0]!r}: write {better}"


def test_texts_are_plain_english() -> None:
    hard = [each for path in (*pages(), *modules(), *statements()) for each in found(path)]
    assert not hard, "\n".join(("hard to read:", *hard))


def test_the_reference_describes_what_it_lists() -> None:
    """A dataclass without a docstring would be described by its signature."""
    text = re.sub(
        r"^```.*?^```", "", (ROOT / "docs" / "reference" / "api.md").read_text(), flags=re.MULTILINE | re.DOTALL
    )
    assert not (bare := re.findall(r"^\w+\(.*: '.*\)$", text, re.MULTILINE)), listed(bare)

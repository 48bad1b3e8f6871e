"""A translated page has all that its English page has: an edit of the one fails here until the other follows.

What words mean cannot be compared, so what stands around them is: the sequence of headings, paragraphs, list items,
code blocks and table cells, and in each of them the commands, names, links and figures. Whoever rewords a sentence of
the English page must still think of the translation; whoever adds or removes something cannot forget it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parent.parent
TRANSLATIONS: Final = sorted(
    str(path.relative_to(ROOT)) for path in (*ROOT.glob("*.ko.md"), *(ROOT / "docs").glob("**/*.ko.md"))
)

_HEADING: Final = re.compile(r"(#{1,6}) ")
_ITEM: Final = re.compile(r"( *(?:[*+-]|\d+[.)])) ")
_CELL_BORDER: Final = re.compile(r"(?<!\\)\|")
_CODE: Final = re.compile(r"(`+)(.+?)\1(?!`)")
_LINK: Final = re.compile(r"(!?)\[([^]]*)\]\(([^)\s]+)\)")
_FIGURE: Final = re.compile(r"\d+(?:[.,:]\d+)*")
_WORD: Final = re.compile(r"\b[a-z]{2,}\b")


@dataclass(frozen=True, slots=True)
class Block:
    """One piece of a page, on one line. `kind` is how it is marked, so that both pages have the same kinds in a row."""

    kind: str
    text: str

    @property
    def code(self) -> Counter[str]:
        """What stands in `code spans`; of a code block, all of it."""
        if self.kind == "code block":
            return Counter([self.text])
        return Counter(span for _, span in _CODE.findall(self.text))

    @property
    def links(self) -> Counter[tuple[str, str]]:
        """Where links and images lead, in whatever language the page there is."""
        return Counter((mark, target.replace(".ko.md", ".md")) for mark, _, target in _LINK.findall(self._uncoded))

    @property
    def prose(self) -> str:
        """What is left without code and targets: what a reader reads as sentences."""
        return _LINK.sub(lambda link: "" if link[3].startswith(link[2]) else link[2], self._uncoded)

    @property
    def _uncoded(self) -> str:
        return "" if self.kind == "code block" else _CODE.sub("", self.text)


def blocks(page: str) -> Iterator[Block]:
    """Split a page, as far as our pages use Markdown."""
    lines = iter(page.splitlines())
    kind, collected = "", list[str]()
    for line in lines:
        heading, item = _HEADING.match(line), _ITEM.match(line)
        fenced, row = line.startswith("```"), line.startswith("|")
        indented = not collected and line.startswith("    ")
        if collected and (not line or heading or item or fenced or row):
            yield Block(kind, " ".join(collected))
            collected = []
        if fenced:
            yield Block("code block", "\n".join([line, *_until_fence(lines)]))
        elif indented:
            yield Block("code block", line)
        elif row:
            yield from _row(line)
        elif heading:
            yield Block(heading[1], line)
        elif item:
            kind, collected = item[1], [line]
        elif line:
            kind = kind if collected else "paragraph"
            collected.append(line.strip())
    if collected:
        yield Block(kind, " ".join(collected))


def _until_fence(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        yield line
        if line.startswith("```"):
            return
    raise AssertionError("a code block is not closed")


def _row(line: str) -> Iterator[Block]:
    cells = [cell.strip() for cell in _CELL_BORDER.split(line.strip().strip("|"))]
    yield Block(f"row of {len(cells)}", "")
    for cell in cells:
        yield Block("rule" if re.fullmatch(":?-+:?", cell) else "cell", cell)


def differences(english: str, translated: str) -> list[str]:
    """Return one line for each thing that the translation lacks, or has and should not."""
    first, second = list(blocks(english)), list(blocks(translated))
    for number, (one, other) in enumerate(zip(first, second, strict=False)):
        if one.kind != other.kind:
            return [f"block {number}: {one.kind} {one.text!r} became {other.kind} {other.text!r}"]
    if len(first) != len(second):
        rest = (first if len(first) > len(second) else second)[min(len(first), len(second))]
        return [f"{len(first)} blocks became {len(second)}; the first that is left over: {rest.kind} {rest.text!r}"]
    return [
        f"{one.text!r}: {complaint}"
        for one, other in zip(first, second, strict=True)
        for complaint in _compare(one, other)
    ]


def _compare(one: Block, other: Block) -> Iterator[str]:
    if one.code != other.code:
        yield f"code {_told(one.code - other.code)} became {_told(other.code - one.code)}"
    if one.links != other.links:
        yield f"links {_told(one.links - other.links)} became {_told(other.links - one.links)}"
    lost = Counter(_FIGURE.findall(one.prose)) - Counter(_FIGURE.findall(other.prose))
    if lost:  # more are right: "two steps" may be written with a figure in another language
        yield f"figures {_told(lost)} are lost"
    if _WORD.search(one.prose) and one.prose == other.prose:
        yield "is not translated"


def _told(things: Counter[str] | Counter[tuple[str, str]]) -> list[str]:
    return sorted("".join(thing) for thing in things.elements())


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_readme_and_the_security_model_are_there_in_korean() -> None:
    assert {"README.ko.md", "docs/security.ko.md"} <= set(TRANSLATIONS)


@pytest.mark.parametrize("name", TRANSLATIONS)
def test_a_translation_has_all_that_its_english_page_has_and_nothing_else(name: str) -> None:
    found = differences(read(name.replace(".ko.md", ".md")), read(name))
    assert found == [], "\n".join(found)


@pytest.mark.parametrize("name", TRANSLATIONS)
def test_the_two_languages_lead_to_each_other_at_the_top(name: str) -> None:
    korean = Path(name).name
    english = korean.replace(".ko.md", ".md")
    tops = [list(blocks(page))[1].text for page in (read(name.replace(".ko.md", ".md")), read(name))]
    assert tops == [f"English | [한국어]({korean})", f"[English]({english}) | 한국어"]


@pytest.mark.parametrize("name", TRANSLATIONS)
def test_a_korean_page_leads_to_the_korean_one_wherever_there_is_one_and_to_no_page_that_is_missing(name: str) -> None:
    _, top, *rest = blocks(read(name))
    targets = {target for block in rest for _, _, target in _LINK.findall(block.text) if "://" not in target}
    assert targets
    for target in targets:
        path = (ROOT / name).parent / target
        assert path.exists(), target
        assert target.endswith(".ko.md") or not path.with_suffix(".ko.md").exists(), target
    assert ".ko.md" not in top.text


ENGLISH: Final = """\
# A page

It needs Python 3.11, see [the settings](docs/settings.md) and [docs/limits.md](docs/limits.md).

```console
codespace doctor  # what is in force
```

![A hold](docs/hold.png)

| key | meaning |
| --- | --- |
| `sandbox` | `required` refuses |

1. Call `init`
   once.
2. Then wait.
"""
KOREAN: Final = """\
# 페이지

Python 3.11이 필요하다. [설정](docs/settings.md)과 [docs/limits.md](docs/limits.md)를 보라.

```console
codespace doctor  # what is in force
```

![보류](docs/hold.png)

| 키 | 뜻 |
| --- | --- |
| `sandbox` | `required`는 거부한다 |

1. `init`을
   한 번 호출한다.
2. 그리고 기다린다.
"""
EDITS: Final = {
    "a section": ("![A hold]", "## More\n\n![A hold]", "## '## More' became paragraph '![보류](docs/hold.png)'"),
    "a level": ("# A page", "## A page", "block 0: ## '## A page' became # '# 페이지'"),
    "a paragraph": ("![A hold]", "More.\n\n![A hold]", "paragraph '![A hold](docs/hold.png)' became row of 2"),
    "a command": ("doctor  #", "doctor --json  #", "code ['```console\\ncodespace doctor --json  #"),
    "a comment of a command": ("in force", "enforced", "# what is enforced\\n```'] became ['```console\\n"),
    "the language of a block": ("```console", "```sh", "code ['```sh\\n"),
    "a line of a block": ("```console\n", "```console\ncodespace init\n", "code ['```console\\ncodespace init\\n"),
    "a row": ("1. Call", "| `git` | commit |\n\n1. Call", "row of 2 '' became 1. '1. `init`을 한 번 호출한다.'"),
    "a column": ("| key |", "| key | default |", "row of 3 '' became row of 2 ''"),
    "a setting": ("`required` refuses", "`required` and `git` refuse", "code ['git'] became []"),
    "a setting of another name": ("`sandbox`", "`cage`", "code ['cage'] became ['sandbox']"),
    "a setting no more": ("`required` refuses", "it refuses", "code [] became ['required']"),
    "an item": ("2. Then", "2. Look.\n3. Then", "6 blocks became"),
    "an item inside": ("2. Then", "   * Look.\n2. Then", "   * '   * Look.' became 2. '2. 그리고"),
    "the number of an item": ("2. Then", "3. Then", "3. '3. Then wait.' became 2. '2. 그리고"),
    "a link": ("Then wait", "Then [wait](docs/wait.md)", "links ['docs/wait.md'] became []"),
    "a link elsewhere": (
        "(docs/settings.md)",
        "(docs/tools.md)",
        "links ['docs/tools.md'] became ['docs/settings.md']",
    ),
    "a picture": ("(docs/hold.png)", "(docs/held.png)", "links ['!docs/held.png'] became ['!docs/hold.png']"),
    "a figure": ("3.11", "3.12", "figures ['3.12'] are lost"),
    "more at the end": ("wait.\n", "wait.\n\nMore.\n", "the first that is left over: paragraph 'More.'"),
    "less at the end": ("2. Then wait.\n", "", "the first that is left over: 2. '2. 그리고 기다린다.'"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_of_the_english_page_is_noticed_until_the_translation_follows(edit: str) -> None:
    old, new, complaint = EDITS[edit]
    assert differences(ENGLISH, KOREAN) == []
    edited = ENGLISH.replace(old, new, 1)
    assert edited != ENGLISH
    (found,) = differences(edited, KOREAN)
    assert complaint in found


def test_a_new_wording_is_left_to_people() -> None:
    assert differences(ENGLISH.replace("Then wait", "Wait then"), KOREAN) == []


def test_a_piece_that_was_copied_and_not_translated_is_noticed() -> None:
    copied = KOREAN.replace("2. 그리고 기다린다.", "2. Then wait.").replace("| 뜻 |", "| meaning |")
    assert differences(ENGLISH, copied) == ["'meaning': is not translated", "'2. Then wait.': is not translated"]


def test_what_is_a_name_alone_needs_no_translation() -> None:
    page = "# CodeSpace\n\n| [docs/why/](docs/why/all.md) | `sandbox`, `git` |\n| --- | --- |\n"
    assert differences(page, page) == []


def test_an_indented_block_is_code_too() -> None:
    first, second = "# A\n\n    run it\n", "# A\n\n    run them\n"
    assert differences(first, second) == ["'    run it': code ['    run it'] became ['    run them']"]


def test_a_block_that_is_not_closed_is_told() -> None:
    with pytest.raises(AssertionError, match="not closed"):
        list(blocks("```console\ncodespace doctor\n"))

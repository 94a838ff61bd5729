"""The blocks of code on a page."""

import re
import subprocess
from dataclasses import dataclass, field

MARK = re.compile(r"<!-- (all )?(not run|run by|checked by|first|then):\s(.*?)\s-->", re.DOTALL)


@dataclass
class Command:
    text: str
    # The line of the page on which it stands.
    line: int
    # What the page says that it prints; none, if the page does not say.
    output: list | None = None


@dataclass
class Block:
    language: str
    line: int
    indent: str
    lines: list
    marks: dict = field(default_factory=dict)

    @property
    def commands(self):
        """The commands: all lines of a script, or what stands behind a `$` with the output under it."""
        if self.language != "console":
            return [Command("\n".join(self.lines), self.line + 1)]
        found = []
        for number, line in enumerate(self.lines, self.line + 1):
            if line.startswith("$ "):
                found.append(Command(line[2:], number, []))
            elif found and not found[-1].output and is_open(found[-1].text):
                found[-1].text += "\n" + line.removeprefix("> ")
            elif found:
                found[-1].output.append(line)
        return found


def is_open(command):
    """Whether a command goes on in the next line, as the shell sees it."""
    if command.endswith("\\"):
        return True
    read = subprocess.run(["bash", "-n"], input=command + "\n", capture_output=True, text=True)
    return "unexpected EOF" in read.stderr or "end of file" in read.stderr or "end-of-file" in read.stderr


def indent_of(line):
    return line[: len(line) - len(line.lstrip())]


def of(text):
    """The blocks of a page, each with the marks in the comments right before it."""
    whole = {mark.group(2): mark.group(3) for mark in MARK.finditer(text) if mark.group(1)}
    found = []
    marks = {}
    lines = text.split("\n")
    at = 0
    while at < len(lines):
        line = lines[at]
        fence = re.match(r"(\s*)```(\S*)", line)
        if fence:
            indent, language = fence.groups()
            end = at + 1
            while lines[end].strip() != "```":
                end += 1
            body = [text.removeprefix(indent) for text in lines[at + 1 : end]]
            found.append(Block(language.split(",")[0], at + 1, indent, body, {**whole, **marks}))
            marks = {}
            at = end
        elif line.strip().startswith("<!--"):
            end = at
            while "-->" not in lines[end]:
                end += 1
            comment = "\n".join(text.removeprefix(indent_of(line)) for text in lines[at : end + 1])
            marks.update({mark.group(2): mark.group(3) for mark in MARK.finditer(comment) if not mark.group(1)})
            at = end
        elif line.strip():
            marks = {}
        at += 1
    return found

"""What can be said of a command without running it: its syntax, and that what it names exists."""

import re
import shlex
import subprocess

import shell

WORDS = re.compile(r"[|;&]+|\$\(|\n")


def problems(text, root):
    syntax = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True)
    if syntax.returncode != 0:
        yield f"not a command of a shell: {syntax.stderr.strip()}"
        return
    joined = re.sub(r"\\\n", " ", text)
    joined = re.sub(r"(^|\s)#[^\n]*", "", joined)
    arguments = []
    for part in WORDS.split(re.sub(r"\d?>+\s*\S+|<\s*\S+", "", joined)):
        try:
            words = shlex.split(part)
        except ValueError:
            continue
        if words[:2] == ["set", "--"]:
            arguments = words[2:]
        words = [one for word in words for one in (arguments if word == "$@" else [word])]
        while words and re.match(r"\w+=", words[0]):
            words.pop(0)
        if not words:
            continue
        if words[0] == "solehold":
            yield from bad_options(words[1:])
        elif words[0] == "make":
            yield from bad_targets(words[1:], root)
        elif words[:2] == ["cargo", "run"] and "--bin" in words:
            yield from no_binary(words[words.index("--bin") + 1], root)


def bad_options(words):
    """Options that the program does not know. It reads its arguments in order, so that the help comes last."""
    before = words[: words.index("--")] if "--" in words else words
    asked = subprocess.run([shell.binary(), *before, "--help"], capture_output=True, text=True)
    if asked.returncode != 0:
        yield f"solehold {' '.join(words)}: {asked.stderr.strip()}"


def bad_targets(words, root):
    targets = re.findall(r"^([a-z0-9-]+):", (root / "Makefile").read_text(), re.MULTILINE)
    for word in words:
        if "=" not in word and not word.startswith("-") and word not in targets:
            yield f"make {word}: there is no such target"


def no_binary(name, root):
    manifests = [path for path in root.glob("examples/*/Cargo.toml")] + [root / "crates/cli/Cargo.toml"]
    if not any(re.search(rf'^name = "{re.escape(name)}"', path.read_text(), re.MULTILINE) for path in manifests):
        yield f"cargo run --bin {name}: no package has such a program"

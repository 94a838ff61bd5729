"""Every snippet of the book runs here or in a test, or its page says why not.

A comment before a block of code says what is done with it:

    <!-- not run: it needs two machines -->        its commands are only checked: their programs, options and targets
    <!-- run by: crates/cli/tests/gate_sql.rs -->  a test takes it from the page
    <!-- first: touch report.sh -->                what comes before the block, and is not shown
    <!-- then: assert is_even(2) -->               what comes after it, for blocks in Python

    <!-- checked by: solehold serve --check --config -->   a file that this command accepts

One of the first two at the top of a page, with "all", holds for all blocks: `<!-- all run by: ... -->`.
"""

import concurrent.futures
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import blocks
import commands
import pages
import shell

ROOT = Path(__file__).resolve().parents[2]
SHELL = {"sh", "console", "bash"}
# Programs; other languages are data, output or configuration.
LANGUAGES = SHELL | {"python", "go", "ts", "rust", "java", "perl"}


def problems_of(path, update):
    """What is wrong with the snippets of a page, and how many commands were run."""
    text = (ROOT / path).read_text()
    if "<!-- Made from the code: make reference -->" in text:
        return [], 0
    found = []
    runnable = []
    for block in blocks.of(text):
        at = f"{path}:{block.line}"
        if checker := block.marks.get("checked by"):
            found += [f"{at}: {why}" for why in refusals(checker, block)]
        if block.language not in LANGUAGES:
            continue
        test = block.marks.get("run by")
        if test is not None:
            found += [f"{at}: {why}" for why in not_run_by(path, test)]
        elif "not run" in block.marks:
            found += [f"{at}: {why}" for why in checked(block)]
        elif block.language in SHELL:
            runnable.append(block)
        elif block.language == "python":
            found += [f"{at}: {why}" for why in failures_in_python(block)]
        else:
            found.append(f"{at}: no test runs this {block.language}: name one by `<!-- run by: PATH -->`")
    if runnable:
        results, problem = shell.run(runnable)
        found += [f"{path}:{line}: {why}" for line, why in shell.differences(results)]
        found += [f"{path}: {problem}"] if problem else []
        if update and not problem:
            (ROOT / path).write_text(shell.updated(text, results))
    return found, sum(len(block.commands) for block in runnable)


def refusals(checker, block):
    """What a program has to say against a file. Secrets that it names are made for it."""
    with tempfile.TemporaryDirectory(prefix="solehold-snippets-") as folder:
        (Path(folder) / "secret").write_text("s" * 32)
        text = re.sub(r"/run/secrets/[a-z-]+", f"{folder}/secret", "\n".join(block.lines))
        (Path(folder) / "file").write_text(text + "\n")
        program, *arguments = checker.split()
        program = shell.binary() if program == "solehold" else program
        ran = subprocess.run([program, *arguments, "file"], cwd=folder, capture_output=True, text=True, timeout=60)
        if ran.returncode != 0:
            yield f"{checker}: {ran.stderr.strip()}"


def failures_in_python(block):
    parts = (block.marks.get("first", ""), *block.lines, block.marks.get("then", ""))
    ran = subprocess.run([sys.executable, "-c", "\n".join(parts)], capture_output=True, text=True, timeout=60)
    if ran.returncode != 0:
        yield ran.stderr.strip()


def not_run_by(path, test):
    """Why it is not true that a test takes its snippets from a page."""
    file = ROOT / test
    if not file.is_file():
        yield f"{test} does not exist"
    elif Path(path).name not in file.read_text():
        yield f"{test} does not name {Path(path).name}"


def checked(block):
    if not block.marks["not run"].strip():
        yield "`not run` needs a reason"
    if block.language in SHELL:
        yield from commands.problems("\n".join(command.text for command in block.commands), ROOT)


def main():
    arguments = [argument for argument in sys.argv[1:] if argument != "--update"]
    update = "--update" in sys.argv[1:]
    chosen = arguments or sorted({re.sub("#.*", "", page) for page in pages.listed(ROOT)})
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda path: problems_of(path, update), chosen))
    problems = [problem for found, _ in results for problem in found]
    for problem in problems:
        print(problem, file=sys.stderr)
    ran = sum(count for _, count in results)
    print(f"{ran} commands of {len(chosen)} pages were run")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()

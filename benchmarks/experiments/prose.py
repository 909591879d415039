"""The prose corpus: the King James Bible as Debian packages it, one text file a chapter, one line a verse.

    apt-get install bible-kjv bible-kjv-text
    python -m benchmarks.experiments.prose FOLDER

The text is in the public domain. Chapters are documents: `load_corpus(FOLDER)` puts each whole into one split. The
digest of all files is printed and compared with that of the text with which the committed results were made.
"""

import hashlib
import re
import subprocess
import sys
from pathlib import Path

from geowidth import records
from geowidth.errors import UserError

COMMAND = ("bible", "-f", "gen1:1-rev22:21")
VERSE = re.compile(r"(\w+?)(\d+):(\d+) (.*)")
SHA256 = "960f3c717aca058b7a6113babb298de0724615c793a443c8cadf801e8d85650b"


def verses():
    """All verses as the `bible` program prints them, a reference and a text in each line."""
    try:
        return subprocess.run(COMMAND, check=True, capture_output=True, text=True, encoding="utf-8").stdout
    except FileNotFoundError:
        raise UserError("there is no `bible` program; apt-get install bible-kjv bible-kjv-text") from None


def chapters(printed):
    """{file name: text} of every chapter in printed verses; the name is book and chapter, the text has no numbers."""
    found = {}
    for line in printed.splitlines():
        match = VERSE.fullmatch(line)
        if match is None:
            raise UserError(f"line {line[:60]!r} is not a verse; needed: lines such as 'Ge1:1 In the beginning'")
        book, chapter, _, text = match.groups()
        found.setdefault(f"{book}-{int(chapter):03}.txt", []).append(text + "\n")
    return {name: "".join(lines) for name, lines in found.items()}


def digest(texts):
    """sha256 over names and texts, in the order of the names."""
    made = hashlib.sha256()
    for name in sorted(texts):
        made.update(f"{name}\0{texts[name]}\0".encode())
    return made.hexdigest()


def write(folder):
    """Write every chapter into `folder` and return (number of chapters, digest); other texts than ours are refused."""
    texts = chapters(verses())
    found = digest(texts)
    if found != SHA256:
        raise UserError(f"this text has sha256 {found}, not {SHA256} as the results; install bible-kjv-text 4.38")
    for name, text in texts.items():
        records.write_text(Path(folder) / name, text)
    return len(texts), found


def main(arguments):
    if len(arguments) != 1:
        print(__doc__.strip())
        return 2
    try:
        count, found = write(arguments[0])
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{count} chapters in {arguments[0]}, sha256 {found}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

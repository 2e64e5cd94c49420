#!/usr/bin/python3
"""Prints CHANGELOG.md in Debian's form (deb-changelog(5)): one entry for each version, and what is unreleased as that of this build.

    packaging/deb/changelog.py VERSION MAINTAINER SECONDS_SINCE_EPOCH >target/deb/changelog
"""
import os
import re
import sys
import textwrap
from datetime import datetime, timezone
from email.utils import format_datetime


def entries(text):
    """(version or None, date or None, lines) of each heading that has any."""
    for part in re.split(r"^## ", text, flags=re.M)[1:]:
        heading, _, body = part.partition("\n")
        match = re.match(r"\[(?P<version>[^\]]+)\](?: - (?P<date>\d{4}-\d\d-\d\d))?\s*$", heading)
        if not match:
            sys.exit(f"changelog.py: heading {heading!r} is not that of a version")
        lines = []
        # A change is one item, whatever lines it takes.
        for block in re.findall(r"^(### .*|- (?:.|\n(?!- |#|\n))*)", body, flags=re.M):
            block = " ".join(block.replace("`", "").split())
            if block.startswith("### "):
                lines += ["", f"  [ {block[4:]} ]"]
            else:
                lines.append(textwrap.fill(block[2:], 79, initial_indent="  * ", subsequent_indent="    ",
                                           break_long_words=False, break_on_hyphens=False))
        if lines:
            version = match["version"]
            yield None if version == "Unreleased" else version, match["date"], lines


def main():
    version, maintainer, now = sys.argv[1], sys.argv[2], datetime.fromtimestamp(int(sys.argv[3]), timezone.utc)
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
    text = open(os.path.join(root, "CHANGELOG.md"), encoding="utf-8").read()
    found = False
    for released, date, lines in entries(text):
        when = datetime.fromisoformat(date).replace(tzinfo=timezone.utc) if date else now
        print(f"quark ({released or version}) {'unstable' if released else 'UNRELEASED'}; urgency=medium")
        print("\n".join(lines if lines[0] == "" else ["", *lines]))
        print(f"\n -- {maintainer}  {format_datetime(when)}\n")
        found = True
    if not found:
        sys.exit("changelog.py: CHANGELOG.md has no changes")


if __name__ == "__main__":
    main()

"""Print what pyproject.toml asks for, one requirement a line.

Usage: requirements.py EXTRA[,EXTRA...], in the directory of pyproject.toml.
"""

import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
extras = project["optional-dependencies"]
wanted = [name for name in sys.argv[1].split(",") if name]
if unknown := sorted(set(wanted) - set(extras)):
    sys.exit(f"No such extra: {', '.join(unknown)}. There are: {', '.join(extras)}.")
requirements = [*project["dependencies"], *(line for name in wanted for line in extras[name])]
sys.stdout.write("".join(f"{line}\n" for line in requirements))

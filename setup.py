"""Write the README into the package's metadata, with absolute links. Everything else is in pyproject.toml."""

import re
from pathlib import Path

from setuptools import setup

PAGES = "https://github.com/counterpoise-ml/counterpoise/blob/main/"
IMAGES = "https://raw.githubusercontent.com/counterpoise-ml/counterpoise/main/"

readme = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
readme = re.sub(r"\]\((?!https:|#)", f"]({PAGES}", readme)
readme = re.sub(r'(src|srcset)="(?!https:)', rf'\1="{IMAGES}', readme)
setup(long_description=readme, long_description_content_type="text/markdown")

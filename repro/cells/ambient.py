"""What a user's environment already says about indexes, so that cells come from where their other packages come from.

uv reads its own variables and files by itself. pip's settings are translated where uv has none of its own. pip's
`extra-index-url` is left alone: pip mixes indexes where uv takes the first that has a name, so that translating it
would change which packages are found; `UV_INDEX` says it in uv's way.
"""

from __future__ import annotations

import configparser
import os
import sys
from collections.abc import Mapping
from pathlib import Path

# uv's variables for a setting, the first being the one to set; pip's variable; pip's key in its files.
TRANSLATED = (
    (("UV_DEFAULT_INDEX", "UV_INDEX_URL"), "PIP_INDEX_URL", "index-url"),
    (("UV_FIND_LINKS",), "PIP_FIND_LINKS", "find-links"),
)


def uv_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment to run uv in: the present one, with pip's settings in uv's words."""
    environ = os.environ if environ is None else environ
    result = dict(environ)
    for uv_names, pip_name, pip_key in TRANSLATED:
        if any(environ.get(name) for name in uv_names):
            continue
        value = environ.get(pip_name) or _from_pip_files(environ, pip_key)
        if value:
            # pip separates several with spaces, uv with commas.
            result[uv_names[0]] = ",".join(value.split())
    if environ.get("PIP_CERT") and not environ.get("SSL_CERT_FILE"):
        result["SSL_CERT_FILE"] = environ["PIP_CERT"]
    # A virtual environment that happens to be active must not be mistaken for the cell.
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH", "PYTHONHOME"):
        result.pop(name, None)
    return result


def index() -> str | None:
    """Return the index that the environment asks for, or None for the client's own default."""
    environment = uv_environment()
    return environment.get("UV_DEFAULT_INDEX") or environment.get("UV_INDEX_URL") or None


def _from_pip_files(environ: Mapping[str, str], key: str) -> str:
    if environ.get("PIP_CONFIG_FILE") == os.devnull:
        return ""
    home = Path(environ.get("HOME", ""))
    if environ.get("HOME") is None:
        return ""
    config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    files = [
        Path("/etc/pip.conf"),
        home / ".pip" / "pip.conf",
        config / "pip" / "pip.conf",
        Path(sys.prefix, "pip.conf"),
    ]
    if environ.get("PIP_CONFIG_FILE"):
        files.append(Path(environ["PIP_CONFIG_FILE"]))
    value = ""
    for file in files:
        parser = configparser.RawConfigParser()
        try:
            parser.read(file)
        except (configparser.Error, UnicodeDecodeError):
            continue
        for section in ("global", "install"):
            value = parser.get(section, key, fallback=value)
    return value
